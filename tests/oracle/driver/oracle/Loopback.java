package oracle;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.ChannelFuture;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.remoting.netty.NettyRemotingServer;

/** Makes servers listen on the loopback address only; most releases have no setting for it. */
final class Loopback {
    private Loopback() {}

    static InetSocketAddress address(int port) {
        return new InetSocketAddress("127.0.0.1", port);
    }

    /** Confines the remoting servers in fields or maps of an object, before they are started. */
    static void confineServers(Object owner) throws Exception {
        for (Object value : Reflect.fields(owner)) {
            Iterable<?> candidates = value instanceof Map ? ((Map<?, ?>) value).values() : Collections.singleton(value);
            for (Object candidate : candidates) {
                if (candidate instanceof NettyRemotingServer) {
                    Reflect.replaceField(candidate, "serverBootstrap", new Bootstrap());
                }
            }
        }
    }

    /** Confines the replication listener of a store, before it is started. */
    static void confineReplication(Object store) throws Exception {
        Object service = Reflect.field(store, "haService");
        if (service == null) {
            return;
        }
        Class<?> type = Reflect.classOrNull("org.apache.rocketmq.store.ha.HAService");
        if (!type.isInterface()) {
            confineListener(service);
            return;
        }
        Object confined = Proxy.newProxyInstance(
                Loopback.class.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> {
                    try {
                        Object result = method.invoke(service, arguments);
                        if (method.getName().equals("init")) {
                            confineListener(service);
                        }
                        return result;
                    } catch (InvocationTargetException failed) {
                        throw failed.getCause();
                    }
                });
        Reflect.replaceField(store, "haService", confined);
    }

    private static void confineListener(Object service) throws Exception {
        Object listener = Reflect.field(service, "acceptSocketService");
        InetSocketAddress open = (InetSocketAddress) Reflect.field(listener, "socketAddressListen");
        Reflect.replaceField(listener, "socketAddressListen", address(open.getPort()));
    }

    /** A bootstrap that replaces any address with the loopback address. */
    private static final class Bootstrap extends ServerBootstrap {
        @Override
        public ServerBootstrap localAddress(SocketAddress address) {
            return super.localAddress(address(((InetSocketAddress) address).getPort()));
        }

        @Override
        public ChannelFuture bind(SocketAddress address) {
            return super.bind(address(((InetSocketAddress) address).getPort()));
        }
    }
}
