package oracle;

import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Runs one RocketMQ release for a test: reads one request per line, and answers each with one line, in order.
 *
 * <p>A request is {@code verb name=value&name=value}, an answer {@code ok name=value&…} or {@code error text}, with
 * names and values encoded as in a form. The process ends with its standard input, so it never outlives the test.
 */
public final class Driver {
    /** Executes one verb. */
    interface Verb {
        Answer answer(Request request) throws Exception;
    }

    private final Map<String, Verb> verbs = new HashMap<>();

    private Driver() {
        StoreVerbs store = new StoreVerbs();
        BrokerVerbs broker = new BrokerVerbs(store);
        store.register(verbs);
        broker.register(verbs);
        new ClientVerbs(broker).register(verbs);
        new AdminVerb().register(verbs);
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream answers =
                new PrintStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16), false, "UTF-8");
        // Some releases print to standard output, which is reserved for the protocol.
        System.setOut(System.err);
        // Every process of RocketMQ sets this first; otherwise, the name server treats the broker as an old one.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        QuickShutdown.endPollsFor(Thread.currentThread());
        Driver driver = new Driver();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII), 1 << 16);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.append(driver.answer(line)).append('\n');
            if (!requests.ready()) {
                answers.flush();
            }
        }
        // Remaining threads of brokers would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private String answer(String line) {
        int space = line.indexOf(' ');
        Verb verb = verbs.get(line.substring(0, space));
        if (verb == null) {
            return "error no such verb";
        }
        try {
            return "ok " + verb.answer(Request.parse(line.substring(space + 1)));
        } catch (InvocationTargetException failed) {
            return failure(failed.getCause());
        } catch (Throwable failed) {
            return failure(failed);
        }
    }

    private static String failure(Throwable failed) {
        failed.printStackTrace();
        return "error " + Answer.encode(failed.toString());
    }
}
