package oracle;

import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * The lock of the index service, which waits for the next millisecond after each new file.
 *
 * <p>An index file is named by the millisecond of its creation: two created in one millisecond would be one file mapped
 * twice. The service takes the read lock before it checks whether a new file is due, and the write lock after creating
 * it; waiting there does not change the content of files.
 */
final class PacedLock implements ReadWriteLock {
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock();
    private volatile long created;

    @Override
    public Lock readLock() {
        while (System.currentTimeMillis() <= created) {
            Thread.yield();
        }
        return lock.readLock();
    }

    @Override
    public Lock writeLock() {
        created = System.currentTimeMillis();
        return lock.writeLock();
    }
}
