package oracle;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends and consumes messages like an application, with the client of the release. */
final class ClientVerbs {
    private static final int COMPRESS_OVER_BYTES = 1000;
    private static final int SEND_TIMEOUT_MILLISECONDS = 15_000;
    private static final int ROUTE_ATTEMPTS = 20;
    private static final int TRACES_ARE_SENT_MILLISECONDS = 5_000;
    private static final int GIVES_UP_SECONDS = 120;
    private static final int LOOKS_AGAIN_MILLISECONDS = 100;
    private static final Class<?> TRANSACTION_LISTENER =
            Reflect.classOrNull("org.apache.rocketmq.client.producer.TransactionListener");

    private final BrokerVerbs broker;
    private final Map<String, TransactionMQProducer> producers = new HashMap<>();

    ClientVerbs(BrokerVerbs broker) {
        this.broker = broker;
    }

    void register(Map<String, Driver.Verb> verbs) {
        verbs.put("send", this::send);
        verbs.put("send-batch", this::sendBatch);
        verbs.put("send-traced", this::sendTraced);
        verbs.put("send-in-transaction", this::sendInTransaction);
        verbs.put("close-producers", request -> closeProducers());
        verbs.put("pull", this::pull);
        verbs.put("consume", this::consume);
    }

    static Message message(Request request) {
        Message message = new Message(request.text("topic"), request.bytes("body"));
        if (request.has("tags")) {
            message.setTags(request.text("tags"));
        }
        if (request.has("keys")) {
            message.setKeys(request.text("keys"));
        }
        message.setFlag(request.number("flag", 0));
        message.setWaitStoreMsgOK(!"false".equals(request.textOrNull("waits-for-store")));
        if (request.has("delay-level")) {
            message.setDelayTimeLevel(request.number("delay-level", 0));
        }
        request.startingWith("properties.").forEach((name, value) -> MessageAccessor.putProperty(message, name, value));
        return message;
    }

    private Answer send(Request request) throws Exception {
        Message message = message(request);
        TransactionMQProducer producer = producer(request);
        for (int attempt = 1; ; attempt++) {
            try {
                return sent(producer.send(message));
            } catch (MQClientException noRoute) {
                if (attempt == ROUTE_ATTEMPTS) {
                    throw noRoute;
                }
                // The client gets the route of a topic some time after its creation.
                Thread.sleep(100);
            }
        }
    }

    private Answer sendBatch(Request request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Request item : request.items()) {
            messages.add(message(item));
        }
        Method send = DefaultMQProducer.class.getMethod("send", Collection.class);
        return sent((SendResult) send.invoke(producer(request), messages));
    }

    /** Sends messages one after another with a producer that reports each to the trace topic (4.4.0 and newer). */
    private Answer sendTraced(Request request) throws Exception {
        DefaultMQProducer producer = traced(DefaultMQProducer.class, "traced-producers");
        producer.setNamesrvAddr(broker.nameServerAddress());
        producer.setInstanceName("traced" + System.nanoTime());
        producer.setSendMsgTimeout(SEND_TIMEOUT_MILLISECONDS);
        producer.start();
        StringBuilder ids = new StringBuilder();
        for (Request item : request.items()) {
            ids.append(producer.send(message(item)).getMsgId()).append('\n');
        }
        Thread.sleep(TRACES_ARE_SENT_MILLISECONDS);
        producer.shutdown();
        return new Answer().with("message-ids", ids);
    }

    private static <T> T traced(Class<T> client, String group) throws Exception {
        return client.getConstructor(String.class, boolean.class, String.class).newInstance(group, true, null);
    }

    private Answer sendInTransaction(Request request) throws Exception {
        TransactionMQProducer producer = producer(request);
        Message message = message(request);
        String decision = request.text("decision");
        if (TRANSACTION_LISTENER != null) {
            return sent((SendResult) Reflect.call(producer, "sendMessageInTransaction", message, decision));
        }
        Object executer = deciding(Reflect.classOrNull("org.apache.rocketmq.client.producer.LocalTransactionExecuter"));
        return sent((SendResult) Reflect.call(producer, "sendMessageInTransaction", message, executer, decision));
    }

    private static Answer sent(SendResult result) throws Exception {
        MessageQueue queue = result.getMessageQueue();
        return new Answer()
                .with("status", result.getSendStatus())
                .with("message-id", result.getMsgId())
                .with("offset-message-id", Reflect.can(result, "getOffsetMsgId") ? Reflect.call(result, "getOffsetMsgId") : null)
                .with("queue", queue.getQueueId())
                .with("queue-offset", result.getQueueOffset());
    }

    private TransactionMQProducer producer(Request request) throws Exception {
        String group = request.has("producer") ? request.text("producer") : "producers";
        TransactionMQProducer known = producers.get(group);
        if (known != null) {
            return known;
        }
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(broker.nameServerAddress());
        producer.setInstanceName(group);
        producer.setCompressMsgBodyOverHowmuch(COMPRESS_OVER_BYTES);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MILLISECONDS);
        if (request.has("compression")) {
            System.setProperty("rocketmq.message.compressType", request.text("compression"));
        }
        if (TRANSACTION_LISTENER != null) {
            Reflect.call(producer, "setTransactionListener", deciding(TRANSACTION_LISTENER));
        } else {
            Class<?> checker = Reflect.classOrNull("org.apache.rocketmq.client.producer.TransactionCheckListener");
            Reflect.call(producer, "setTransactionCheckListener", deciding(checker));
        }
        producer.start();
        producers.put(group, producer);
        return producer;
    }

    /** Returns a listener that decides according to the request's argument, and commits at a later check. */
    private static Object deciding(Class<?> type) {
        return Proxy.newProxyInstance(ClientVerbs.class.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> {
            switch (method.getName()) {
                case "executeLocalTransaction":
                case "executeLocalTransactionBranch":
                    return LocalTransactionState.valueOf((String) arguments[1]);
                case "hashCode":
                    return System.identityHashCode(proxy);
                case "equals":
                    return proxy == arguments[0];
                case "toString":
                    return "decides as told";
                default:
                    return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
    }

    private Answer closeProducers() {
        producers.values().forEach(DefaultMQProducer::shutdown);
        producers.clear();
        return Answer.NOTHING;
    }

    /** Pulls every message of a topic, queue by queue: queue, queue offset, physical offset, keys. */
    private Answer pull(Request request) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("pullers");
        consumer.setNamesrvAddr(broker.nameServerAddress());
        consumer.setInstanceName("pullers" + System.nanoTime());
        consumer.start();
        StringBuilder rows = new StringBuilder();
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(request.text("topic"));
        for (MessageQueue queue : queues) {
            long next = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (next < end) {
                PullResult pulled = consumer.pull(queue, "*", next, request.number("at-once", 32));
                if (pulled.getPullStatus() == PullStatus.FOUND) {
                    pulled.getMsgFoundList().forEach(message -> rows.append(row(message)));
                } else if (pulled.getNextBeginOffset() <= next) {
                    throw new IllegalStateException(queue + " at " + next + ": " + pulled.getPullStatus());
                }
                next = pulled.getNextBeginOffset();
            }
        }
        consumer.shutdown();
        return new Answer().with("rows", rows);
    }

    /**
     * Consumes a topic for a while after some messages have come, failing for keys with a prefix, so that the broker
     * redelivers those. On a busy machine, the start of a client takes long.
     */
    private Answer consume(Request request) throws Exception {
        String failing = request.text("failing-keys");
        ConcurrentLinkedQueue<String> rows = new ConcurrentLinkedQueue<>();
        String group = request.text("group");
        boolean isTraced = request.isTrue("is-traced");
        DefaultMQPushConsumer consumer =
                isTraced ? traced(DefaultMQPushConsumer.class, group) : new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(broker.nameServerAddress());
        consumer.setInstanceName("consumers" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // A pop finally succeeds, because clients do not turn popped messages into dead letters.
        boolean pops = request.isTrue("pops");
        int attempts = request.number("attempts", 1);
        consumer.setMaxReconsumeTimes(attempts);
        if (pops) {
            Reflect.call(consumer, "setClientRebalance", false);
        }
        consumer.subscribe(request.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean fails = false;
            for (MessageExt message : messages) {
                rows.add(row(message));
                fails |= !failing.isEmpty() && message.getKeys() != null && message.getKeys().startsWith(failing)
                        && !(pops && message.getReconsumeTimes() >= attempts);
            }
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        int expected = request.number("at-least", 0);
        long givesUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(GIVES_UP_SECONDS);
        consumer.start();
        while (rows.size() < expected && System.nanoTime() < givesUp) {
            Thread.sleep(LOOKS_AGAIN_MILLISECONDS);
        }
        Thread.sleep(request.longNumber("milliseconds", 1000));
        consumer.shutdown();
        return new Answer().with("rows", String.join("", rows));
    }

    private static String row(MessageExt message) {
        return message.getQueueId() + " " + message.getQueueOffset() + " " + message.getCommitLogOffset() + " "
                + message.getKeys() + "\n";
    }
}
