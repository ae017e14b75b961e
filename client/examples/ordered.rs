//! Ordered messages: those of one order go to one queue, each sent after the one before it was stored.

use ringmq_client::{Client, Message};

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("order-writers").start().await?;
    for order in ["order-17", "order-18"] {
        for step in ["created", "paid", "shipped"] {
            let message = Message::new("orders", format!("{order} {step}")).tag(step).key(order);
            let receipt = producer.send_ordered(message, order).await?;
            println!(
                "{order} {step}: queue {} of {}, offset {}",
                receipt.queue.queue_id, receipt.queue.broker_name, receipt.queue_offset
            );
        }
    }
    client.shutdown().await
}
