import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** One scenario's topic, group and clients. Everything made here is shut down by close. */
final class Ctx implements AutoCloseable {
    /** How long a scenario goes on listening after what it expects has come, to see what should not come. */
    static final long QUIET_MS = 1500;
    static final long PATIENCE_MS = 45_000;

    final String namesrv;
    final String name;
    final String topic;
    final String group;
    final Inbox inbox = new Inbox(this);
    private final Deque<Runnable> closers = new ArrayDeque<>();
    private DefaultMQProducer producer;

    Ctx(String namesrv, String prefix, String name, String topic) {
        this.namesrv = namesrv;
        this.name = name;
        this.topic = topic;
        this.group = prefix + "_g_" + name;
    }

    synchronized DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer(group + "_p");
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName(group + "_p");
            producer.setSendMsgTimeout(10_000);
            producer.start();
            DefaultMQProducer p = producer;
            onClose(p::shutdown);
        }
        return producer;
    }

    /** A push consumer that is not started yet. `who` names it in the events and makes its client id its own. */
    DefaultMQPushConsumer push(String who, String expression) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setInstanceName(group + "_" + who);
        c.setPollNameServerInterval(2000);
        c.subscribe(topic, expression);
        onClose(c::shutdown);
        return c;
    }

    DefaultLitePullConsumer lite(String who) {
        DefaultLitePullConsumer c = new DefaultLitePullConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setInstanceName(group + "_" + who);
        c.setPollNameServerInterval(2000);
        c.setAutoCommit(false);
        onClose(c::shutdown);
        return c;
    }

    /** MessageModel moved between packages from 4.x to 5.x, so it is reached by name. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void broadcasting(DefaultMQPushConsumer c) throws Exception {
        for (Method m : DefaultMQPushConsumer.class.getMethods()) {
            if (m.getName().equals("setMessageModel")) {
                m.invoke(c, Enum.valueOf((Class<Enum>) m.getParameterTypes()[0], "BROADCASTING"));
                return;
            }
        }
        throw new IllegalStateException("no setMessageModel");
    }

    Message message(int seq, String tag) throws Exception {
        return message(topic, seq, tag);
    }

    /** A body that depends on topic and number alone; some are long enough for the client to compress them. */
    static Message message(String topic, int seq, String tag) throws Exception {
        StringBuilder b = new StringBuilder(topic + "/" + seq + "/\u00e9\u6d88\u606f/");
        int length = seq % 10 == 7 ? 9000 : 40 + seq % 300;
        long x = seq + 1;
        while (b.length() < length) {
            x = x * 6364136223846793005L + 1442695040888963407L;
            b.append((char) ('a' + (int) ((x >>> 33) % 26)));
        }
        Message m = new Message(topic, tag, "k" + seq, b.toString().getBytes(StandardCharsets.UTF_8));
        m.putUserProperty("seq", String.valueOf(seq));
        return m;
    }

    static int seq(MessageExt m) {
        String s = m.getUserProperty("seq");
        return s == null ? -1 : Integer.parseInt(s);
    }

    void send(String how, int seq, String tag) throws Exception {
        Message m = message(seq, tag);
        sent(how, seq, m, producer().send(m));
    }

    void sent(String how, int seq, Message m, SendResult r) {
        sentAt(how, seq, m, r, r.getQueueOffset(), r.getOffsetMsgId(), r.getMsgId());
    }

    void sentAt(String how, int seq, Message m, SendResult r, long offset, String offsetMsgId, String msgId) {
        Out.event(name, "sent", "how", how, "topic", m.getTopic(), "broker", r.getMessageQueue().getBrokerName(),
            "queue", r.getMessageQueue().getQueueId(), "offset", offset, "seq", seq, "msgId", msgId, "offsetMsgId", offsetMsgId,
            "status", r.getSendStatus(), "crc", Out.crc(m.getBody()), "tags", m.getTags(), "at", System.currentTimeMillis());
    }

    /** The queues of the scenario's topic that `c` holds now. */
    Set<MessageQueue> assigned(DefaultMQPushConsumer c) {
        Set<MessageQueue> held = new HashSet<>();
        for (MessageQueue q : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (q.getTopic().equals(topic)) {
                held.add(q);
            }
        }
        return held;
    }

    /** Waits until `c` holds `n` queues of the topic: the client has no event for it. */
    void awaitAssigned(DefaultMQPushConsumer c, int n) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (assigned(c).size() != n) {
            if (System.currentTimeMillis() > end) {
                Out.event(name, "short", "want", n, "have", assigned(c).size(), "what", "queues");
                return;
            }
            Thread.sleep(50);
        }
    }

    /**
     * Waits until the broker holds the end of each of the topic's queues as the group's offset. The client stores offsets by a timer that
     * first fires 10 s after its start, so it is told to do it now.
     */
    void awaitCommitted(DefaultMQPushConsumer c) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        for (MessageQueue q : assigned(c)) {
            long max = producer().getDefaultMQProducerImpl().maxOffset(q);
            c.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            while (max > 0 && c.getDefaultMQPushConsumerImpl().getOffsetStore().readOffset(q, ReadOffsetType.READ_FROM_STORE) < max) {
                if (System.currentTimeMillis() > end) {
                    Out.event(name, "short", "want", max, "what", "committed offset of " + q);
                    return;
                }
                Thread.sleep(50);
                c.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            }
        }
    }

    void onClose(Runnable r) {
        synchronized (closers) {
            closers.push(r);
        }
    }

    @Override
    public void close() {
        synchronized (closers) {
            while (!closers.isEmpty()) {
                try {
                    closers.pop().run();
                } catch (RuntimeException e) {
                    Out.event(name, "fail", "text", "close: " + e);
                }
            }
        }
    }
}
