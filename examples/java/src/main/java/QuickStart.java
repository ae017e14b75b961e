import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends ten messages with a stock client and receives them. The only argument is the name server's address. */
public class QuickStart {
    private static final int COUNT = 10;

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("quickstart_producer");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        for (int i = 0; i < COUNT; i++) {
            byte[] body = ("Hello RingMQ " + i).getBytes(StandardCharsets.UTF_8);
            System.out.println(producer.send(new Message("TopicTest", "TagA", body)));
        }

        CountDownLatch missing = new CountDownLatch(COUNT);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("quickstart_consumer");
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("TopicTest", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                System.out.println("received " + new String(message.getBody(), StandardCharsets.UTF_8));
                missing.countDown();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        boolean all = missing.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        System.out.println(all ? "all received" : missing.getCount() + " messages are missing");
        System.exit(all ? 0 : 1);
    }
}
