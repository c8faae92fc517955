package oracle;

import org.apache.rocketmq.common.SystemClock;

/** The store's clock, which a test may set to any time, or shift. */
final class SetClock extends SystemClock {
    private volatile Long fixed;

    SetClock() {
        super();
    }

    void set(Long milliseconds) {
        fixed = milliseconds;
    }

    @Override
    public long now() {
        Long time = fixed;
        return time == null ? System.currentTimeMillis() : time;
    }
}
