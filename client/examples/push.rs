//! Messages are brought to an async function, many at once; one that fails comes again, and at last becomes a dead letter.

use std::sync::Arc;

use ringmq_client::{Client, ConsumeFrom, Message, Outcome};
use tokio::sync::Semaphore;

const TOPIC: &str = "pushed";

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("example-producers").start().await?;
    for tag in ["invoice", "offer", "invoice"] {
        producer.send(Message::new(TOPIC, format!("an {tag}")).tag(tag)).await?;
    }

    let done = Arc::new(Semaphore::new(0));
    let listener_done = done.clone();
    let consumer = client
        .consumer("example-push")
        .subscribe(TOPIC, "invoice || order")
        .consume_from(ConsumeFrom::First)
        .concurrency(8)
        .retries(3)
        .start(move |message| {
            let done = listener_done.clone();
            async move {
                println!("{} for the {}. time", message.message_id(), message.reconsume_times + 1);
                if message.reconsume_times == 0 && message.queue_offset % 2 == 1 {
                    // Like an error, but it comes again after 1 s instead of 10.
                    return Outcome::RetryAtLevel(1);
                }
                done.add_permits(1);
                Outcome::Consumed
            }
        })
        .await?;

    // A program would wait for its signal to end here.
    let _ = done.acquire_many(2).await;
    // Waits for listeners that run, stores how far they are, and leaves the group.
    consumer.shutdown().await?;
    println!("all invoices are consumed");
    client.shutdown().await
}
