package oracle;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The due transactions of a broker, which are polled at most fifty times a second.
 *
 * <p>Since 5.5.0, a thread polls them without a pause after the first one, and so uses a core for as long as the
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
