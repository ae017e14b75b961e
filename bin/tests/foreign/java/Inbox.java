import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;

/** What the consumers of one scenario got, counted by the sequence number that each message carries as a user property. */
final class Inbox {
    private final Ctx ctx;
    private final Map<String, Integer> times = new HashMap<>();
    private int all;

    Inbox(Ctx ctx) {
        this.ctx = ctx;
    }

    /** Reports the message and returns how often `who` has had it, this time included. */
    synchronized int add(String who, MessageExt m) {
        int n = times.merge(who + "/" + m.getUserProperty("seq"), 1, Integer::sum);
        all++;
        Out.event(ctx.name, "recv", "who", who, "topic", m.getTopic(), "broker", m.getBrokerName(), "queue", m.getQueueId(),
            "offset", m.getQueueOffset(), "seq", Ctx.seq(m), "msgId", m.getMsgId(), "tags", m.getTags(), "keys", m.getKeys(),
            "reconsume", m.getReconsumeTimes(), "crc", Out.crc(m.getBody()), "born", m.getBornTimestamp(), "stored", m.getStoreTimestamp(), "at", System.currentTimeMillis(),
            "origin", m.getProperty("ORIGIN_MESSAGE_ID"));
        notifyAll();
        return n;
    }

    synchronized int count() {
        return all;
    }

    /** Waits until `n` deliveries were seen in all; says so in an event if they did not come in time. */
    synchronized boolean await(int n, long timeoutMs) throws InterruptedException {
        long end = System.currentTimeMillis() + timeoutMs;
        while (all < n) {
            long left = end - System.currentTimeMillis();
            if (left <= 0) {
                Out.event(ctx.name, "short", "want", n, "have", all);
                return false;
            }
            wait(left);
        }
        return true;
    }
}
