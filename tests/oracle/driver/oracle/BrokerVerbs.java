package oracle;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Runs a name server and a whole broker. */
final class BrokerVerbs {
    private static final String DEFAULT_TOPIC = "TBW102";
    private static final int ANNOUNCEMENTS = 600;
    private static final String SILENT = "<configuration><root level=\"OFF\"/></configuration>";
    private static final String[] LOG_CONFIGURATIONS = {
        "logback_tools.xml", "rmq.tools.logback.xml", "logback_broker.xml", "logback_namesrv.xml"
    };

    private final StoreVerbs store;
    private NamesrvController nameServer;
    private Object broker;
    private BrokerConfig brokerConfiguration;
    private MessageStoreConfig storeConfiguration;
    private String nameServerAddress;

    BrokerVerbs(StoreVerbs store) {
        this.store = store;
    }

    void register(Map<String, Driver.Verb> verbs) {
        verbs.put("open-broker", this::open);
        verbs.put("close-broker", request -> close());
        verbs.put("role", request -> role());
        verbs.put("topic", this::topic);
    }

    String nameServerAddress() {
        return nameServerAddress;
    }

    private Answer open(Request request) throws Exception {
        String home = request.text("home");
        prepareHome(home);
        if (request.has("name-server-port")) {
            openNameServer(home, request.number("name-server-port", 0));
        }
        nameServerAddress = request.text("name-server");
        System.setProperty("rocketmq.home.dir", home);
        System.setProperty("rocketmq.namesrv.addr", nameServerAddress);
        TreeSet<String> unknown = new TreeSet<>();
        storeConfiguration = StoreVerbs.configuration(request, unknown);
        brokerConfiguration = new BrokerConfig();
        unknown.addAll(Reflect.configure(brokerConfiguration, request.startingWith("broker.")));
        brokerConfiguration.setNamesrvAddr(nameServerAddress);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(request.number("port", 0));
        broker = controller(brokerConfiguration, server, storeConfiguration);
        if (!Boolean.TRUE.equals(Reflect.call(broker, "initialize"))) {
            throw new IllegalStateException("the broker refuses to start");
        }
        store.adopt(Reflect.call(broker, "getMessageStore"));
        paceTransactions();
        Loopback.confineServers(broker);
        Reflect.call(broker, "start");
        if (request.isTrue("leads")) {
            awaitLeadership();
        }
        // A member of a larger group is addressed directly, because its leader is not elected yet.
        if (nameServer != null) {
            announce(DEFAULT_TOPIC);
        }
        return new Answer().with("unknown", String.join(",", unknown));
    }

    private void paceTransactions() throws Exception {
        String getter = "getTransactionalMessageService";
        Object transactions = Reflect.can(broker, getter) ? Reflect.call(broker, getter) : null;
        if (transactions != null && Reflect.hasField(transactions, "deleteContext")) {
            Reflect.replaceField(transactions, "deleteContext", new PacedMap<Integer, Object>());
        }
    }

    private void openNameServer(String home, int port) throws Exception {
        NamesrvConfig configuration = new NamesrvConfig();
        configuration.setRocketmqHome(home);
        configuration.setKvConfigPath(home + "/namesrv/kvConfig.json");
        configuration.setConfigStorePath(home + "/namesrv/namesrv.properties");
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        nameServer = new NamesrvController(configuration, server);
        nameServer.initialize();
        Loopback.confineServers(nameServer);
        nameServer.start();
    }

    private static void prepareHome(String home) throws IOException {
        File conf = new File(home, "conf");
        conf.mkdirs();
        for (String name : LOG_CONFIGURATIONS) {
            Files.write(new File(conf, name).toPath(), SILENT.getBytes(StandardCharsets.UTF_8));
        }
    }

    private static Object controller(BrokerConfig broker, NettyServerConfig server, MessageStoreConfig store)
            throws Exception {
        Class<?> type = Reflect.classOrNull("org.apache.rocketmq.broker.BrokerController");
        for (Constructor<?> constructor : type.getConstructors()) {
            Class<?>[] types = constructor.getParameterTypes();
            if (types.length == 4 && types[1] == NettyServerConfig.class) {
                return constructor.newInstance(broker, server, new NettyClientConfig(), store);
            }
        }
        throw new NoSuchMethodException("constructor of " + type);
    }

    private void awaitLeadership() throws Exception {
        for (int i = 0; i < 600; i++) {
            if (leads()) {
                return;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("no leader after a minute");
    }

    private boolean leads() {
        return !"SLAVE".equals(storeConfiguration.getBrokerRole().name()) && brokerConfiguration.getBrokerId() == 0;
    }

    /** Returns whether this member of a DLedger group leads, its term, and the ends of its log and of its commits. */
    private Answer role() throws Exception {
        Object log = Reflect.field(Reflect.call(broker, "getMessageStore"), "commitLog");
        Object member = Reflect.call(Reflect.field(log, "dLedgerServer"), "getMemberState");
        Object ledger = Reflect.call(Reflect.field(log, "dLedgerServer"), "getdLedgerStore");
        return new Answer()
                .with("leads", leads() && Boolean.TRUE.equals(Reflect.call(member, "isLeader")))
                .with("term", Reflect.call(member, "currTerm"))
                .with("end", Reflect.call(ledger, "getLedgerEndIndex"))
                .with("committed", Reflect.call(ledger, "getCommittedIndex"));
    }

    /** Registers the broker's topics with the name server until it has them: 5.x needs some time to detect it. */
    private void announce(String topic) throws Exception {
        Object routes = Reflect.call(nameServer, "getRouteInfoManager");
        for (int i = 0; i < ANNOUNCEMENTS; i++) {
            report();
            if (Reflect.call(routes, "pickupTopicRouteData", topic) != null) {
                return;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("the name server does not learn of " + topic);
    }

    private void report() throws Exception {
        Method report = Reflect.methodOrNull(broker.getClass(), "registerBrokerAll", true, false, true);
        if (report == null) {
            Reflect.call(broker, "registerBrokerAll", true, false);
        } else {
            report.invoke(broker, true, false, true);
        }
    }

    private Answer topic(Request request) throws Exception {
        TopicConfig topic = new TopicConfig(request.text("name"));
        topic.setReadQueueNums(request.number("queues", 1));
        topic.setWriteQueueNums(request.number("queues", 1));
        Map<String, String> attributes = request.startingWith("attribute.");
        if (!attributes.isEmpty()) {
            @SuppressWarnings("unchecked")
            Map<String, String> known = (Map<String, String>) Reflect.call(topic, "getAttributes");
            attributes.forEach((name, value) -> known.put("+" + name, value));
        }
        Reflect.call(Reflect.call(broker, "getTopicConfigManager"), "updateTopicConfig", topic);
        announce(topic.getTopicName());
        return Answer.NOTHING;
    }

    private Answer close() throws Exception {
        store.drain();
        Reflect.replaceField(
                broker, "messageStore", QuickShutdown.withoutSleep(Reflect.call(broker, "getMessageStore")));
        Reflect.call(broker, "shutdown");
        if (nameServer != null) {
            nameServer.shutdown();
        }
        broker = null;
        nameServer = null;
        return Answer.NOTHING;
    }
}
