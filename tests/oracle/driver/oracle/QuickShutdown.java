package oracle;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.rocketmq.store.MessageStore;

/**
 * Ends pauses of shutdowns in which RocketMQ only waits: up to fourteen seconds for a broker, three for a client.
 *
 * <p>A store sleeps for one to three seconds. Each server and client joins a thread that polls for events of its
 * connections, and notices only every three seconds that it has to end.
 */
final class QuickShutdown {
    private static final int INTERVAL_MILLISECONDS = 50;

    private QuickShutdown() {}

    /** Returns a store that does not sleep when it is shut down; all other methods are those of the given store. */
    static Object withoutSleep(Object store) {
        // A plugin, such as tiered storage, may do other work before it shuts down the store.
        boolean isPlugin = !store.getClass().getName().startsWith("org.apache.rocketmq.store.");
        return Proxy.newProxyInstance(
                QuickShutdown.class.getClassLoader(), new Class<?>[] {MessageStore.class}, (proxy, method, arguments) -> {
                    if (method.getName().equals("shutdown") && !isPlugin) {
                        Thread.currentThread().interrupt(); // ends the sleep, before which nothing else waits
                    }
                    try {
                        return method.invoke(store, arguments);
                    } catch (InvocationTargetException failed) {
                        throw failed.getCause();
                    }
                });
    }

    /** Starts a thread that ends the polls of event threads while the given thread waits for the end of one. */
    static void endPollsFor(Thread main) {
        Thread watching = new Thread(() -> {
            while (true) {
                if (calls(main.getStackTrace(), "ServiceThread", Thread.class)) {
                    Thread.getAllStackTraces().forEach((thread, frames) -> {
                        if (calls(frames, "NettyEventExecutor", LinkedBlockingQueue.class)) {
                            thread.interrupt();
                        }
                    });
                }
                try {
                    Thread.sleep(INTERVAL_MILLISECONDS);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        });
        watching.setDaemon(true);
        watching.start();
    }

    private static boolean calls(StackTraceElement[] frames, String caller, Class<?> called) {
        for (int i = 1; i < frames.length; i++) {
            if (frames[i].getClassName().endsWith(caller)) {
                return frames[i - 1].getClassName().equals(called.getName());
            }
        }
        return false;
    }
}
