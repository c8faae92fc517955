package oracle;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin in this process and captures its output. */
final class AdminVerb {
    void register(Map<String, Driver.Verb> verbs) {
        verbs.put("mqadmin", this::run);
    }

    private Answer run(Request request) throws Exception {
        String[] arguments = request.startingWith("argument.").values().toArray(new String[0]);
        forgetUsedCommands();
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(new PrintStream(printed, true, "UTF-8"));
        System.setErr(new PrintStream(complained, true, "UTF-8"));
        try {
            MQAdminStartup.main0(arguments, null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return new Answer().with("stdout", printed.toString("UTF-8")).with("stderr", complained.toString("UTF-8"));
    }

    /** New commands for each call, because a command keeps its closed client. */
    private static void forgetUsedCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
