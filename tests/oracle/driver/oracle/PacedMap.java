package oracle;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The transactions of a broker that are due, made to be looked at fifty times a second at most.
 *
 * <p>From 5.5.0 on a thread looks at them without a pause, as soon as there was one, and takes a core for as long as the
 * broker runs.
 */
final class PacedMap<K, V> extends ConcurrentHashMap<K, V> {
    private static final long serialVersionUID = 1;

    @Override
    public Set<Map.Entry<K, V>> entrySet() {
        try {
            Thread.sleep(20);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
        return super.entrySet();
    }
}
