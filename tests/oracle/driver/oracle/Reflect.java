package oracle;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/** Accesses members that are private, or that differ between the sixteen releases. */
final class Reflect {
    private static final Map<Class<?>, Class<?>> BOXES = new HashMap<>();
    private static final Map<List<Object>, Method> FOUND = Collections.synchronizedMap(new HashMap<>());

    static {
        BOXES.put(boolean.class, Boolean.class);
        BOXES.put(int.class, Integer.class);
        BOXES.put(long.class, Long.class);
        BOXES.put(double.class, Double.class);
    }

    private Reflect() {}

    /** Finds the first of several classes that this release has, or null. */
    static Class<?> classOrNull(String... names) {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException | LinkageError absent) {
                continue;
            }
        }
        return null;
    }

    static Object call(Object target, String name, Object... arguments) throws Exception {
        Method method = methodOrNull(target.getClass(), name, arguments);
        if (method == null) {
            throw new NoSuchMethodException(target.getClass().getName() + "." + name + Arrays.toString(arguments));
        }
        return method.invoke(target, arguments);
    }

    static boolean can(Object target, String name, Object... arguments) {
        return methodOrNull(target.getClass(), name, arguments) != null;
    }

    static Method methodOrNull(Class<?> type, String name, Object... arguments) {
        List<Object> key = new ArrayList<>(arguments.length + 2);
        key.add(type);
        key.add(name);
        for (Object argument : arguments) {
            key.add(argument == null ? null : argument.getClass());
        }
        if (!FOUND.containsKey(key)) {
            FOUND.put(key, searchMethod(type, name, arguments));
        }
        return FOUND.get(key);
    }

    private static Method searchMethod(Class<?> type, String name, Object... arguments) {
        for (Class<?> declaring = type; declaring != null; declaring = declaring.getSuperclass()) {
            for (Method method : declaring.getDeclaredMethods()) {
                if (method.getName().equals(name) && !method.isBridge() && accepts(method.getParameterTypes(), arguments)) {
                    method.setAccessible(true);
                    return method;
                }
            }
        }
        return null;
    }

    static Object field(Object target, String name) throws Exception {
        return fieldOf(target, name).get(target);
    }

    /** Returns the values of all non-null fields of an object. */
    static List<Object> fields(Object target) throws IllegalAccessException {
        List<Object> values = new ArrayList<>();
        for (Class<?> declaring = target.getClass(); declaring != null; declaring = declaring.getSuperclass()) {
            for (Field field : declaring.getDeclaredFields()) {
                field.setAccessible(true);
                Object value = field.get(target);
                if (value != null) {
                    values.add(value);
                }
            }
        }
        return values;
    }

    static boolean hasField(Object target, String name) {
        try {
            return fieldOf(target, name) != null;
        } catch (NoSuchFieldException absent) {
            return false;
        }
    }

    static void replaceField(Object target, String name, Object value) throws Exception {
        fieldOf(target, name).set(target, value);
    }

    /** Calls the shortest public constructor whose parameters all match one of the given values. */
    static Object construct(Class<?> type, Object... offered) throws Exception {
        Constructor<?>[] constructors = type.getConstructors();
        Arrays.sort(constructors, Comparator.comparingInt(Constructor::getParameterCount));
        for (Constructor<?> constructor : constructors) {
            Object[] arguments = pick(constructor.getParameterTypes(), offered);
            if (arguments != null && arguments.length > 0) {
                return constructor.newInstance(arguments);
            }
        }
        throw new NoSuchMethodException("constructor of " + type);
    }

    /** Sets a bean's properties and returns the names of those that this release does not have. */
    static TreeSet<String> configure(Object bean, Map<String, String> properties) throws Exception {
        TreeSet<String> unknown = new TreeSet<>(properties.keySet());
        for (Method method : bean.getClass().getMethods()) {
            if (method.getParameterCount() != 1 || !method.getName().startsWith("set")) {
                continue;
            }
            for (Map.Entry<String, String> property : properties.entrySet()) {
                if (method.getName().substring(3).equalsIgnoreCase(property.getKey())) {
                    method.invoke(bean, convert(property.getValue(), method.getParameterTypes()[0]));
                    unknown.remove(property.getKey());
                    break;
                }
            }
        }
        return unknown;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object convert(String text, Class<?> type) {
        if (type.isEnum()) {
            return Enum.valueOf((Class<Enum>) type, text);
        }
        if (type == boolean.class) {
            return Boolean.valueOf(text);
        }
        if (type == int.class) {
            return Integer.valueOf(text);
        }
        if (type == long.class) {
            return Long.valueOf(text);
        }
        if (type == double.class) {
            return Double.valueOf(text);
        }
        return text;
    }

    private static Object[] pick(Class<?>[] types, Object[] offered) {
        Object[] arguments = new Object[types.length];
        for (int i = 0; i < types.length; i++) {
            for (Object value : offered) {
                if (BOXES.getOrDefault(types[i], types[i]).isInstance(value)) {
                    arguments[i] = value;
                }
            }
            if (arguments[i] == null) {
                return null;
            }
        }
        return arguments;
    }

    private static boolean accepts(Class<?>[] types, Object[] arguments) {
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            if (arguments[i] == null ? types[i].isPrimitive() : !BOXES.getOrDefault(types[i], types[i]).isInstance(arguments[i])) {
                return false;
            }
        }
        return true;
    }

    private static Field fieldOf(Object target, String name) throws NoSuchFieldException {
        for (Class<?> declaring = target.getClass(); declaring != null; declaring = declaring.getSuperclass()) {
            for (Field field : declaring.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field;
                }
            }
        }
        throw new NoSuchFieldException(target.getClass().getName() + "." + name);
    }
}
