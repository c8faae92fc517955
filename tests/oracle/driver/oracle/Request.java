package oracle;

import java.io.UnsupportedEncodingException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The named values of one request. */
final class Request {
    private final Map<String, String> encoded = new LinkedHashMap<>();

    static Request parse(String text) {
        Request request = new Request();
        for (String pair : text.split("&")) {
            int equals = pair.indexOf('=');
            if (equals > 0) {
                request.encoded.put(pair.substring(0, equals), pair.substring(equals + 1));
            }
        }
        return request;
    }

    boolean has(String name) {
        return encoded.containsKey(name);
    }

    String text(String name) {
        String value = encoded.get(name);
        if (value == null) {
            throw new IllegalArgumentException("the request does not name " + name);
        }
        return decode(value, "UTF-8");
    }

    String textOrNull(String name) {
        return has(name) ? text(name) : null;
    }

    /** A text with lone surrogates, which UTF-8 cannot encode, is sent as UTF-16, with a name that ends in 16. */
    String wideTextOrNull(String name) {
        if (has(name + "16")) {
            return new String(bytes(name + "16"), StandardCharsets.UTF_16BE);
        }
        return textOrNull(name);
    }

    byte[] bytes(String name) {
        return decode(encoded.get(name), "ISO-8859-1").getBytes(StandardCharsets.ISO_8859_1);
    }

    byte[] bytesOrNull(String name) {
        return has(name) ? bytes(name) : null;
    }

    int number(String name, int otherwise) {
        return has(name) ? Integer.parseInt(encoded.get(name)) : otherwise;
    }

    long longNumber(String name, long otherwise) {
        return has(name) ? Long.parseLong(encoded.get(name)) : otherwise;
    }

    boolean isTrue(String name) {
        return "true".equals(encoded.get(name));
    }

    /** The values whose names begin with a prefix, by the rest of their names, in the order sent. */
    Map<String, String> startingWith(String prefix) {
        Map<String, String> found = new LinkedHashMap<>();
        for (Map.Entry<String, String> entry : encoded.entrySet()) {
            String name = decode(entry.getKey(), "UTF-8");
            if (name.startsWith(prefix)) {
                found.put(name.substring(prefix.length()), decode(entry.getValue(), "UTF-8"));
            }
        }
        return found;
    }

    /** The requests of a list, with names such as {@code 0.name}, {@code 1.name}, … */
    List<Request> items() {
        List<Request> items = new ArrayList<>();
        for (Map.Entry<String, String> entry : encoded.entrySet()) {
            int dot = entry.getKey().indexOf('.');
            if (dot <= 0 || !Character.isDigit(entry.getKey().charAt(0))) {
                continue;
            }
            int number = Integer.parseInt(entry.getKey().substring(0, dot));
            while (items.size() <= number) {
                items.add(new Request());
            }
            items.get(number).encoded.put(entry.getKey().substring(dot + 1), entry.getValue());
        }
        return items;
    }

    private static String decode(String value, String charset) {
        try {
            return URLDecoder.decode(value, charset);
        } catch (UnsupportedEncodingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
