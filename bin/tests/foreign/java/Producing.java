import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The ways of sending, and finding a message again. */
final class Producing {
    private Producing() {
    }

    private static DefaultMQPushConsumer listen(Ctx c) throws Exception {
        DefaultMQPushConsumer push = c.push("c1", "*");
        push.registerMessageListener((MessageListenerConcurrently) (msgs, context) -> {
            msgs.forEach(m -> c.inbox.add("c1", m));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        return push;
    }

    /** Ten sends, to a topic that nobody made unless the test did. */
    static void auto(Ctx c) throws Exception {
        for (int i = 0; i < 10; i++) {
            c.send("sync", i, "TagA");
        }
        listen(c);
        c.inbox.await(10, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** 20 sync, 20 async, 20 oneway, 3 batches of 10, 40 by a queue selector. */
    static void send(Ctx c) throws Exception {
        listen(c);
        DefaultMQProducer p = c.producer();
        for (int i = 0; i < 20; i++) {
            c.send("sync", i, "TagA");
        }
        CountDownLatch async = new CountDownLatch(20);
        for (int i = 20; i < 40; i++) {
            int seq = i;
            Message m = c.message(seq, "TagB");
            p.send(m, new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    c.sent("async", seq, m, r);
                    async.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    Out.event(c.name, "fail", "text", "async " + seq + ": " + e);
                    async.countDown();
                }
            });
        }
        if (!async.await(20, TimeUnit.SECONDS)) {
            Out.event(c.name, "fail", "text", "async sends without an answer: " + async.getCount());
        }
        for (int i = 40; i < 60; i++) {
            Message m = c.message(i, "TagC");
            p.sendOneway(m);
            Out.event(c.name, "sent", "how", "oneway", "topic", m.getTopic(), "seq", i, "crc", Out.crc(m.getBody()), "tags", m.getTags());
        }
        for (int first = 60; first < 90; first += 10) {
            List<Message> batch = new ArrayList<>();
            for (int i = first; i < first + 10; i++) {
                batch.add(c.message(i, "TagD"));
            }
            SendResult r = p.send(batch);
            String[] offsetIds = r.getOffsetMsgId().split(",");
            String[] ids = r.getMsgId().split(",");
            for (int i = 0; i < 10; i++) {
                c.sentAt("batch", first + i, batch.get(i), r, r.getQueueOffset() + i, offsetIds[i], ids[i]);
            }
        }
        for (int i = 90; i < 130; i++) {
            Message m = c.message(i, "TagE");
            c.sent("ordered", i, m, p.send(m, (qs, msg, key) -> {
                Collections.sort(qs);
                return qs.get((Integer) key % qs.size());
            }, i % 4));
        }
        c.inbox.await(130, Ctx.PATIENCE_MS);
        Thread.sleep(Ctx.QUIET_MS);
    }

    /** By offset id, by unique id, by key. */
    static void query(Ctx c) throws Exception {
        DefaultMQProducer p = c.producer();
        long begin = System.currentTimeMillis() - 60_000;
        for (int i = 0; i < 5; i++) {
            Message m = c.message(i, "TagA");
            SendResult r = p.send(m);
            c.sent("sync", i, m, r);
            c.inbox.add("offsetId", p.viewMessage(c.topic, r.getOffsetMsgId()));
            c.inbox.add("uniqId", eventually(() -> p.viewMessage(c.topic, r.getMsgId())));
            String key = "k" + i;
            QueryResult q = eventually(() -> p.queryMessage(c.topic, key, 32, begin, System.currentTimeMillis() + 60_000));
            for (MessageExt found : q.getMessageList()) {
                c.inbox.add("key", found);
            }
        }
    }

    interface Call<T> {
        T get() throws Exception;
    }

    /** The index follows the log: what was just acknowledged may take a moment to be found by key. */
    private static <T> T eventually(Call<T> call) throws Exception {
        long end = System.currentTimeMillis() + 10_000;
        while (true) {
            try {
                return call.get();
            } catch (Exception e) {
                if (System.currentTimeMillis() > end) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    /** Sends in sequence with nothing but defaults until told on standard input to stop. */
    static void flood(Ctx c) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer(c.group + "_p");
        p.setNamesrvAddr(c.namesrv);
        p.start();
        c.onClose(p::shutdown);
        int seq = 0;
        while (System.in.available() == 0) {
            Message m = c.message(seq, "TagA");
            try {
                c.sent("sync", seq, m, p.send(m));
            } catch (Exception e) {
                Out.event(c.name, "fail", "text", "send " + seq + ": " + e);
            }
            seq++;
        }
    }
}
