import java.util.Collections;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The ways of a push consumer. */
final class Consuming {
    private Consuming() {
    }

    interface Judge {
        boolean ok(MessageExt m, int times);
    }

    private static DefaultMQPushConsumer start(Ctx c, String who, String expression, Judge judge) throws Exception {
        DefaultMQPushConsumer push = c.push(who, expression);
        listen(c, push, who, judge);
        push.start();
        return push;
    }

    private static void listen(Ctx c, DefaultMQPushConsumer push, String who, Judge judge) {
        push.registerMessageListener((MessageListenerConcurrently) (msgs, context) -> {
            boolean ok = true;
            for (MessageExt m : msgs) {
                ok &= judge.ok(m, c.inbox.add(who, m));
            }
            return ok ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
    }

    /** A consumer that stays until something is said on standard input, and reports what comes. */
    static void online(Ctx c) throws Exception {
        start(c, "c1", "*", (m, times) -> true);
        while (System.in.available() == 0) {
            Thread.sleep(50);
        }
    }

    /** 100 messages over four keys; one of them is refused once and comes again at once, before its successors. */
    static void orderly(Ctx c) throws Exception {
        DefaultMQPushConsumer push = c.push("c1", "*");
        AtomicBoolean refused = new AtomicBoolean();
        push.registerMessageListener((MessageListenerOrderly) (msgs, context) -> {
            for (MessageExt m : msgs) {
                c.inbox.add("c1", m);
                if (Ctx.seq(m) == 40 && refused.compareAndSet(false, true)) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        push.start();
        for (int i = 0; i < 100; i++) {
            Message m = c.message(i, "TagA");
            SendResult r = c.producer().send(m, (qs, msg, key) -> {
                Collections.sort(qs);
                return qs.get((Integer) key % qs.size());
            }, i % 4);
            c.sent("ordered", i, m, r);
        }
        c.inbox.await(101, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** Two members, each gets all. A broadcasting group begins at the end, so both hold their queues before the first send. */
    static void broadcast(Ctx c) throws Exception {
        for (String who : new String[] {"c1", "c2"}) {
            DefaultMQPushConsumer push = c.push(who, "*");
            Ctx.broadcasting(push);
            listen(c, push, who, (m, n) -> true);
            push.start();
            c.awaitAssigned(push, Scenarios.queues);
        }
        for (int i = 0; i < 40; i++) {
            c.send("sync", i, "TagA");
        }
        c.inbox.await(80, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    static void tags(Ctx c) throws Exception {
        start(c, "c1", "TagA || TagC", (m, n) -> true);
        for (int i = 0; i < 60; i++) {
            c.send("sync", i, new String[] {"TagA", "TagB", "TagC", null}[i % 4]);
        }
        c.inbox.await(30, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /**
     * Starts and stops a consumer, so that the group's retry topic exists: a client that starts before it may read from that topic only
     * after the next of its rebalances, each 20 s.
     */
    private static void warm(Ctx c) throws Exception {
        start(c, "c0", "*", (m, n) -> true).shutdown();
    }

    /** The even ones fail once: they come again after 10 s. */
    static void retry(Ctx c) throws Exception {
        warm(c);
        start(c, "c1", "*", (m, n) -> Ctx.seq(m) % 2 == 1 || m.getReconsumeTimes() > 0);
        for (int i = 0; i < 10; i++) {
            c.send("sync", i, "TagA");
        }
        c.inbox.await(15, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** Two attempts are allowed and both fail; then the message is in the group's dead letter topic. */
    static void dead(Ctx c) throws Exception {
        warm(c);
        MessageQueue first = Collections.min(c.producer().fetchPublishMessageQueues(c.topic));
        DefaultMQPushConsumer push = c.push("c1", "*");
        push.setMaxReconsumeTimes(1);
        listen(c, push, "c1", (m, n) -> false);
        push.start();
        for (int i = 0; i < 4; i++) {
            Message m = c.message(i, "TagA");
            c.sent("queue", i, m, c.producer().send(m, first));
        }
        c.inbox.await(8, Ctx.PATIENCE_MS);
        String letters = "%DLQ%" + c.group;
        for (long end = System.currentTimeMillis() + Ctx.PATIENCE_MS; System.currentTimeMillis() < end;) {
            try {
                c.producer().fetchPublishMessageQueues(letters);
                break;
            } catch (Exception e) {
                Thread.sleep(100);
            }
        }
        DefaultMQPushConsumer dead = new DefaultMQPushConsumer(c.group + "_dead");
        dead.setNamesrvAddr(c.namesrv);
        dead.setInstanceName(c.group + "_dead");
        dead.subscribe(letters, "*");
        c.onClose(dead::shutdown);
        listen(c, dead, "dead", (m, n) -> true);
        dead.start();
        c.inbox.await(12, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** Reads `topic` from its beginning, as soon as the name server knows it, until `n` messages more have come. */
    static void readAll(Ctx c, DefaultLitePullConsumer lite, String who, String topic, int n) throws Exception {
        long end = System.currentTimeMillis() + Ctx.PATIENCE_MS;
        java.util.Collection<MessageQueue> queues = Collections.emptyList();
        while (queues.isEmpty() && System.currentTimeMillis() < end) {
            try {
                queues = lite.fetchMessageQueues(topic);
            } catch (Exception e) {
                Thread.sleep(200);
            }
        }
        lite.assign(queues);
        for (MessageQueue q : queues) {
            lite.seekToBegin(q);
        }
        int have = 0;
        while (have < n && System.currentTimeMillis() < end) {
            for (MessageExt m : lite.poll(500)) {
                c.inbox.add(who, m);
                have++;
            }
        }
    }

    /** Level 1 is a second, level 2 five. */
    static void delay(Ctx c) throws Exception {
        start(c, "c1", "*", (m, n) -> true);
        for (int i = 0; i < 10; i++) {
            Message m = c.message(i, "TagA");
            m.setDelayTimeLevel(1 + i % 2);
            c.sent("delay", i, m, c.producer().send(m));
        }
        c.inbox.await(10, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** Consumes 30, leaves, misses 30, comes back under another client id and gets these. */
    static void restart(Ctx c) throws Exception {
        DefaultMQPushConsumer one = start(c, "c1", "*", (m, n) -> true);
        for (int i = 0; i < 30; i++) {
            c.send("sync", i, "TagA");
        }
        c.inbox.await(30, Ctx.PATIENCE_MS);
        c.awaitCommitted(one);
        one.shutdown();
        for (int i = 30; i < 60; i++) {
            c.send("sync", i, "TagA");
        }
        start(c, "c2", "*", (m, n) -> true);
        c.inbox.await(60, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** One member, then two, then the other alone; each time the queues are divided anew while nothing is unconsumed. */
    static void rebalance(Ctx c) throws Exception {
        DefaultMQPushConsumer one = start(c, "c1", "*", (m, n) -> true);
        c.awaitAssigned(one, Scenarios.queues);
        round(c, 0);
        c.awaitCommitted(one);
        DefaultMQPushConsumer two = start(c, "c2", "*", (m, n) -> true);
        c.awaitAssigned(two, Scenarios.queues / 2);
        c.awaitAssigned(one, Scenarios.queues - Scenarios.queues / 2);
        Set<MessageQueue> both = ConcurrentHashMap.newKeySet();
        both.addAll(c.assigned(one));
        both.addAll(c.assigned(two));
        Out.event(c.name, "value", "what", "queues held by one of both", "value", both.size());
        round(c, 40);
        c.awaitCommitted(one);
        c.awaitCommitted(two);
        one.shutdown();
        c.awaitAssigned(two, Scenarios.queues);
        round(c, 80);
        Thread.sleep(Ctx.QUIET_MS);
    }

    private static void round(Ctx c, int first) throws Exception {
        for (int i = first; i < first + 40; i++) {
            c.send("sync", i, "TagA");
        }
        c.inbox.await(first + 40, Ctx.PATIENCE_MS);
    }
}
