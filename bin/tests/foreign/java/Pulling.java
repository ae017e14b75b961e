import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull consumers and the old pull consumer. */
final class Pulling {
    private Pulling() {
    }

    /** Subscribes, polls and commits 40; a second one of the group gets only the 20 sent since; a third seeks to the beginning. */
    static void lite(Ctx c) throws Exception {
        DefaultLitePullConsumer one = c.lite("c1");
        one.subscribe(c.topic, "*");
        one.start();
        for (int i = 0; i < 40; i++) {
            c.send("sync", i, "TagA");
        }
        poll(c, one, "c1", 40, 25_000);
        one.commitSync();
        one.shutdown();
        for (int i = 40; i < 60; i++) {
            c.send("sync", i, "TagA");
        }
        DefaultLitePullConsumer two = c.lite("c2");
        two.subscribe(c.topic, "*");
        two.start();
        poll(c, two, "c2", 20, 25_000);
        two.commitSync();
        two.shutdown();
        DefaultLitePullConsumer three = c.lite("c3");
        three.start();
        Consuming.readAll(c, three, "c3", c.topic, 60);
    }

    private static void poll(Ctx c, DefaultLitePullConsumer lite, String who, int n, long timeoutMs) {
        long end = System.currentTimeMillis() + timeoutMs;
        int have = 0;
        while (have < n && System.currentTimeMillis() < end) {
            List<MessageExt> got = lite.poll(500);
            got.forEach(m -> c.inbox.add(who, m));
            have += got.size();
        }
        lite.poll(1000).forEach(m -> c.inbox.add(who, m));
    }

    /** The old pull consumer, and the offset questions. */
    @SuppressWarnings("deprecation")
    static void pull(Ctx c) throws Exception {
        long before = System.currentTimeMillis();
        for (int i = 0; i < 40; i++) {
            c.send("sync", i, "TagA");
        }
        DefaultMQPullConsumer p = new DefaultMQPullConsumer(c.group);
        p.setNamesrvAddr(c.namesrv);
        p.setInstanceName(c.group + "_c1");
        c.onClose(p::shutdown);
        p.start();
        TreeSet<MessageQueue> queues = new TreeSet<>(p.fetchSubscribeMessageQueues(c.topic));
        // A stock broker acknowledges a message before its consume queue has it.
        long visible = 0;
        for (int i = 0; i < 100 && visible < 40; i++) {
            visible = 0;
            for (MessageQueue q : queues) {
                visible += p.maxOffset(q);
            }
            Thread.sleep(visible < 40 ? 50 : 0);
        }
        for (MessageQueue q : queues) {
            long at = p.minOffset(q);
            long max = p.maxOffset(q);
            value(c, q, "min", at);
            value(c, q, "max", max);
            value(c, q, "before all", p.searchOffset(q, before - 60_000));
            value(c, q, "after all", p.searchOffset(q, System.currentTimeMillis() + 60_000));
            value(c, q, "earliest is recent", Math.abs(p.earliestMsgStoreTime(q) - before) < 60_000 ? 1 : 0);
            while (at < max) {
                PullResult r = p.pull(q, "*", at, 5);
                if (r.getPullStatus() == PullStatus.FOUND) {
                    r.getMsgFoundList().forEach(m -> c.inbox.add("c1", m));
                }
                at = r.getNextBeginOffset();
            }
            value(c, q, "end is", p.pull(q, "*", max, 5).getPullStatus() == PullStatus.NO_NEW_MSG ? 1 : 0);
            value(c, q, "beyond is", p.pull(q, "*", max + 100, 5).getPullStatus() == PullStatus.OFFSET_ILLEGAL ? 1 : 0);
            p.updateConsumeOffset(q, at);
            p.getOffsetStore().persist(q);
            // The client commits with a oneway request, so the question may overtake it.
            for (int i = 0; i < 40 && p.fetchConsumeOffset(q, true) != at; i++) {
                Thread.sleep(50);
            }
            value(c, q, "committed", p.fetchConsumeOffset(q, true));
        }
    }

    private static void value(Ctx c, MessageQueue q, String what, long v) {
        Out.event(c.name, "value", "broker", q.getBrokerName(), "queue", q.getQueueId(), "what", what, "value", v);
    }
}
