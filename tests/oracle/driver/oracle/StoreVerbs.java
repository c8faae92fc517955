package oracle;

import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Drives the store classes themselves, without a broker around them. */
final class StoreVerbs {
    private static final Class<?> INNER_MESSAGE = Reflect.classOrNull(
            "org.apache.rocketmq.common.message.MessageExtBrokerInner", "org.apache.rocketmq.store.MessageExtBrokerInner");
    private static final long DRAIN_MILLISECONDS = 120_000;

    private final SetClock clock = new SetClock();
    private Object store;

    void register(Map<String, Driver.Verb> verbs) {
        verbs.put("open-store", this::open);
        verbs.put("open-store-timed", this::openTimed);
        verbs.put("put", this::put);
        verbs.put("put-batch", this::putBatch);
        verbs.put("drain", request -> drain());
        verbs.put("close-store", request -> close());
        verbs.put("expire", request -> expire());
        verbs.put("find-offsets", this::findOffsets);
        verbs.put("read", this::read);
        verbs.put("edges", this::edges);
        verbs.put("log-end", request -> new Answer().with("offset", Reflect.call(store, "getMaxPhyOffset")));
    }

    /** Lets the verbs use the store of a broker. */
    void adopt(Object brokerStore) throws Exception {
        store = brokerStore;
        Reflect.replaceField(store, "systemClock", clock);
        if (Reflect.hasField(store, "indexService")) {
            Reflect.replaceField(Reflect.field(store, "indexService"), "readWriteLock", new PacedLock());
        }
        Loopback.confineReplication(store);
        Object log = Reflect.field(store, "commitLog");
        if (Reflect.hasField(log, "dLedgerServer")) {
            Loopback.confineServers(Reflect.field(Reflect.field(log, "dLedgerServer"), "dLedgerRpcService"));
        }
    }

    static MessageStoreConfig configuration(Request request, TreeSet<String> unknown) throws Exception {
        MessageStoreConfig configuration = new MessageStoreConfig();
        unknown.addAll(Reflect.configure(configuration, request.startingWith("store.")));
        return configuration;
    }

    private Answer open(Request request) throws Exception {
        TreeSet<String> unknown = make(request);
        Object loaded = Reflect.call(store, "load");
        // A broker does not start if its store does not load.
        if (Boolean.TRUE.equals(loaded)) {
            Reflect.call(store, "start");
        }
        return new Answer().with("loaded", loaded).with("unknown", String.join(",", unknown));
    }

    /** Opens a store and measures the time until all messages are dispatched: some releases dispatch during load. */
    private Answer openTimed(Request request) throws Exception {
        TreeSet<String> unknown = make(request);
        long begin = System.nanoTime();
        Object loaded = Reflect.call(store, "load");
        Object opening = store;
        AtomicReference<Exception> failure = new AtomicReference<>();
        // The start ends only at the next full second after the last dispatch, so another thread polls it.
        Thread starting = new Thread(() -> {
            try {
                Reflect.call(opening, "start");
            } catch (Exception failed) {
                failure.set(failed);
            }
        });
        starting.start();
        drain(request.longNumber("patience", DRAIN_MILLISECONDS));
        long afterDispatch = System.nanoTime();
        starting.join();
        // Before the dispatcher has its start offset, no lag is visible: then the end of the start counts.
        if (System.nanoTime() - afterDispatch > TimeUnit.SECONDS.toNanos(2)) {
            afterDispatch = System.nanoTime();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return new Answer()
                .with("loaded", loaded)
                .with("unknown", String.join(",", unknown))
                .with("rebuild-ns", afterDispatch - begin);
    }

    /** Creates the store object, and returns the settings that the release does not support. */
    private TreeSet<String> make(Request request) throws Exception {
        TreeSet<String> unknown = new TreeSet<>();
        MessageStoreConfig configuration = configuration(request, unknown);
        BrokerConfig broker = new BrokerConfig();
        Reflect.configure(broker, request.startingWith("broker."));
        Class<?> listenerType = Reflect.classOrNull("org.apache.rocketmq.store.MessageArrivingListener");
        Object listener = Proxy.newProxyInstance(
                StoreVerbs.class.getClassLoader(), new Class<?>[] {listenerType}, (proxy, method, arguments) -> null);
        Object statistics = Reflect.construct(
                Reflect.classOrNull("org.apache.rocketmq.store.stats.BrokerStatsManager"), "oracle", Boolean.TRUE);
        adopt(Reflect.construct(
                Reflect.classOrNull("org.apache.rocketmq.store.DefaultMessageStore"),
                configuration,
                statistics,
                listener,
                broker,
                new ConcurrentHashMap<String, TopicConfig>()));
        return unknown;
    }

    private Answer put(Request request) throws Exception {
        applyClock(request);
        return outcome(Reflect.call(store, "putMessage", innerMessage(request)));
    }

    private Answer putBatch(Request request) throws Exception {
        applyClock(request);
        List<Message> messages = new ArrayList<>();
        for (Request item : request.items()) {
            messages.add(ClientVerbs.message(item));
        }
        MessageExt batch = (MessageExt) Reflect.classOrNull("org.apache.rocketmq.common.message.MessageExtBatch")
                .getConstructor()
                .newInstance();
        fill(batch, request);
        batch.setBody((byte[]) MessageDecoder.class.getMethod("encodeMessages", List.class).invoke(null, messages));
        return outcome(Reflect.call(store, "putMessages", batch));
    }

    private static Answer outcome(Object result) throws Exception {
        Answer answer = new Answer().with("status", Reflect.call(result, "getPutMessageStatus"));
        Object appended = Reflect.call(result, "getAppendMessageResult");
        if (appended == null) {
            return answer;
        }
        return answer.with("offset", Reflect.call(appended, "getWroteOffset"))
                .with("size", Reflect.call(appended, "getWroteBytes"))
                .with("queue-offset", Reflect.call(appended, "getLogicsOffset"))
                .with("store-timestamp", Reflect.call(appended, "getStoreTimestamp"));
    }

    private MessageExt innerMessage(Request request) throws Exception {
        MessageExt message = (MessageExt) INNER_MESSAGE.getConstructor().newInstance();
        fill(message, request);
        message.setBody(request.bytesOrNull("body"));
        String properties = request.wideTextOrNull("properties");
        if (properties != null) {
            Reflect.call(message, "setPropertiesString", properties);
            Map<String, String> parsed = new HashMap<>(MessageDecoder.string2messageProperties(properties));
            // The store would move a delayed message to the schedule topic, but a test puts messages into fixed topics.
            parsed.remove("DELAY");
            Reflect.call(message, "setProperties", parsed);
        }
        return message;
    }

    private void fill(MessageExt message, Request request) throws Exception {
        message.setTopic(request.text("topic"));
        message.setQueueId(request.number("queue-id", 0));
        message.setSysFlag(request.number("sys-flag", 0));
        message.setFlag(request.number("flag", 0));
        message.setReconsumeTimes(request.number("reconsume-times", 0));
        message.setPreparedTransactionOffset(request.longNumber("prepared-transaction-offset", 0));
        message.setBornTimestamp(request.longNumber("born-timestamp", clock.now()));
        message.setBornHost(host(request, "born-host", "10.1.2.3", 54321));
        message.setStoreHost(host(request, "store-host", "127.0.0.1", 10911));
    }

    private static InetSocketAddress host(Request request, String name, String otherwise, int port) throws Exception {
        String address = request.has(name) ? request.text(name) : otherwise;
        return new InetSocketAddress(InetAddress.getByName(address), request.number(name + "-port", port));
    }

    Answer drain() throws Exception {
        return drain(DRAIN_MILLISECONDS);
    }

    private Answer drain(long patience) throws Exception {
        long begin = System.nanoTime();
        long deadline = System.currentTimeMillis() + patience;
        while (waitsForAgreement()
                || (Long) Reflect.call(store, "dispatchBehindBytes") > 0
                || waitsForGroupCommit()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the store does not dispatch");
            }
            Thread.sleep(1);
        }
        return new Answer().with("drain-ns", System.nanoTime() - begin);
    }

    /** Returns whether DLedger has uncommitted entries, which are neither dispatched nor counted as lag. */
    private boolean waitsForAgreement() throws Exception {
        Object log = Reflect.field(store, "commitLog");
        if (!Reflect.hasField(log, "dLedgerServer")) {
            return false;
        }
        Object ledger = Reflect.call(Reflect.field(log, "dLedgerServer"), "getdLedgerStore");
        return (Long) Reflect.call(ledger, "getCommittedIndex") < (Long) Reflect.call(ledger, "getLedgerEndIndex");
    }

    /** Returns whether dispatched units are not in RocksDB yet: another thread writes them in groups. */
    private boolean waitsForGroupCommit() throws Exception {
        Object queues = Reflect.can(store, "getQueueStore") ? Reflect.call(store, "getQueueStore") : store;
        if (Reflect.hasField(queues, "rocksDBConsumeQueueStore")) {
            queues = Reflect.field(queues, "rocksDBConsumeQueueStore");
        }
        if (queues == null || !Reflect.hasField(queues, "groupCommitService")) {
            return false;
        }
        Object service = Reflect.field(queues, "groupCommitService");
        Thread thread = (Thread) Reflect.field(service, "thread"); // null before the store starts
        // In this order, because the thread runs while a unit is in neither collection.
        return !((Collection<?>) Reflect.field(service, "buffer")).isEmpty()
                || thread != null && thread.getState() != Thread.State.TIMED_WAITING
                || !((Collection<?>) Reflect.field(service, "requests")).isEmpty();
    }

    private Answer close() throws Exception {
        Reflect.call(QuickShutdown.withoutSleep(store), "shutdown");
        clock.set(null);
        store = null;
        return Answer.NOTHING;
    }

    /** Runs the broker's cleaning services immediately. */
    private Answer expire() throws Exception {
        if (Reflect.can(store, "cleanFilesPeriodically")) {
            Reflect.call(store, "cleanFilesPeriodically");
        }
        if (Reflect.can(store, "cleanQueueFilesPeriodically")) {
            Reflect.call(store, "cleanQueueFilesPeriodically");
        }
        if (Reflect.can(store, "getQueueStore")) {
            Object queues = Reflect.call(store, "getQueueStore");
            if (Reflect.hasField(queues, "cleanConsumeQueueService")) {
                Reflect.call(Reflect.field(queues, "cleanConsumeQueueService"), "run");
            }
        }
        return Answer.NOTHING;
    }

    /** Sets the store's clock to the time of a message, or lets it run. */
    private void applyClock(Request request) {
        clock.set(request.has("store-timestamp") ? Long.valueOf(request.text("store-timestamp")) : null);
    }

    /** Looks up a key in the index like a broker. */
    private Answer findOffsets(Request request) throws Exception {
        Object found = Reflect.call(
                Reflect.field(store, "indexService"),
                "queryOffset",
                request.text("topic"),
                request.text("key"),
                request.number("limit", 32),
                request.longNumber("begin", 0),
                request.longNumber("end", Long.MAX_VALUE));
        StringBuilder offsets = new StringBuilder();
        for (Object offset : (List<?>) Reflect.call(found, "getPhyOffsets")) {
            offsets.append(offsets.length() == 0 ? "" : " ").append(offset);
        }
        return new Answer().with("offsets", offsets);
    }

    /** Returns the first or next offset of a queue; old releases misspell the method. */
    private long edge(String which, String topic, int queue) throws Exception {
        String name = "get" + which + "OffsetInQueue";
        String misspelled = "get" + which + "OffsetInQuque";
        return (Long) Reflect.call(store, Reflect.can(store, name, topic, queue) ? name : misspelled, topic, queue);
    }

    /** Returns the first and the next queue offset of a queue. */
    private Answer edges(Request request) throws Exception {
        String topic = request.text("topic");
        int queue = request.number("queue", 0);
        return new Answer().with("min", edge("Min", topic, queue)).with("max", edge("Max", topic, queue));
    }

    /** Reads a queue from its first to its last message like a consumer. */
    private Answer read(Request request) throws Exception {
        String topic = request.text("topic");
        int queue = request.number("queue", 0);
        long next = edge("Min", topic, queue);
        long end = edge("Max", topic, queue);
        StringBuilder rows = new StringBuilder();
        while (next < end) {
            Object result = Reflect.call(store, "getMessage", "oracle", topic, queue, next, 32, null);
            for (Object buffer : (List<?>) Reflect.call(result, "getMessageBufferList")) {
                MessageExt message = MessageDecoder.decode((ByteBuffer) buffer, false);
                if (message != null) { // otherwise, the unit points to damaged bytes, which clients skip
                    rows.append(message.getQueueOffset()).append(' ').append(message.getCommitLogOffset()).append('\n');
                }
            }
            Reflect.call(result, "release");
            long after = (Long) Reflect.call(result, "getNextBeginOffset");
            if (after <= next) {
                throw new IllegalStateException("reading stops at " + next + ": " + Reflect.call(result, "getStatus"));
            }
            next = after;
        }
        return new Answer().with("rows", rows);
    }
}
