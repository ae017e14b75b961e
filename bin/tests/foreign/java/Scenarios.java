import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * A stock Java client at work: `java Scenarios NAMESRV PREFIX QUEUES NAME...` runs the named scenarios side by side, each on a topic
 * and a group of its own (`PREFIX_NAME`; `NAME=TOPIC` names another topic), and reports as JSON lines what was sent and what came. QUEUES
 * is how many queues a topic has on all brokers together. The same source is compiled with every client version under test.
 */
public final class Scenarios {
    interface Body {
        void run(Ctx c) throws Exception;
    }

    private static final Map<String, Body> ALL = new LinkedHashMap<>();
    static int queues;

    static {
        ALL.put("auto", Producing::auto);
        ALL.put("quick", Producing::auto);
        ALL.put("send", Producing::send);
        ALL.put("query", Producing::query);
        ALL.put("flood", Producing::flood);
        ALL.put("online", Consuming::online);
        ALL.put("orderly", Consuming::orderly);
        ALL.put("broadcast", Consuming::broadcast);
        ALL.put("tags", Consuming::tags);
        ALL.put("retry", Consuming::retry);
        ALL.put("dead", Consuming::dead);
        ALL.put("delay", Consuming::delay);
        ALL.put("restart", Consuming::restart);
        ALL.put("rebalance", Consuming::rebalance);
        ALL.put("lite", Pulling::lite);
        ALL.put("pull", Pulling::pull);
    }

    private Scenarios() {
    }

    /** Loads the client's classes by one call of its own, with patience: all scenarios start at once, and the client's limit is 3 s. */
    private static void warmUp(String namesrv) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("warm-up");
        p.setNamesrvAddr(namesrv);
        p.setInstanceName("warm-up");
        p.start();
        for (int i = 0; i < 10; i++) {
            try {
                p.fetchPublishMessageQueues("TBW102");
                break;
            } catch (Exception e) {
                Thread.sleep(500);
            }
        }
        p.shutdown();
    }

    public static void main(String[] args) throws Exception {
        queues = Integer.parseInt(args[2]);
        List<String> names = new ArrayList<>();
        for (int i = 3; i < args.length; i++) {
            names.add(args[i]);
        }
        warmUp(args[0]);
        CountDownLatch left = new CountDownLatch(names.size());
        for (String argument : names) {
            String name = argument.split("=")[0];
            String topic = argument.contains("=") ? argument.split("=")[1] : args[1] + "_" + name;
            Thread t = new Thread(() -> {
                try (Ctx c = new Ctx(args[0], args[1], name, topic)) {
                    ALL.get(name).run(c);
                } catch (Throwable e) {
                    StringWriter w = new StringWriter();
                    e.printStackTrace(new PrintWriter(w));
                    Out.event(name, "fail", "text", w.toString());
                } finally {
                    Out.event(name, "done");
                    left.countDown();
                }
            }, name);
            t.start();
        }
        boolean all = left.await(150, TimeUnit.SECONDS);
        System.exit(all ? 0 : 3);
    }
}
