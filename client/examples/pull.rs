//! Messages are taken when there is time for them, and the program says itself what is done.

use std::time::Duration;

use ringmq_client::{Client, ConsumeFrom, Message};

const TOPIC: &str = "pulled-by-example";

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("example-producers").start().await?;
    for n in 0..20 {
        producer.send(Message::new(TOPIC, format!("number {n}"))).await?;
    }

    let consumer = client
        .consumer("example-pull")
        .subscribe(TOPIC, "*")
        .consume_from(ConsumeFrom::First)
        .manual_commit()
        .start_pull()
        .await?;
    let mut sum = 0;
    while sum < 20 {
        let messages = consumer.poll(Duration::from_secs(5)).await?;
        sum += messages.len();
        // Everything that polls gave so far is stored as done when this returns.
        consumer.commit().await?;
    }

    // Back to the last message of a queue: it comes again.
    let queue = consumer.assignment().borrow().first().cloned();
    if let Some(queue) = queue {
        let end = consumer.position(&queue)?;
        println!("{} messages in queue {} of {}", end, queue.queue_id, queue.broker_name);
        if end > 0 {
            consumer.seek(&queue, end - 1).await?;
            let again = consumer.poll(Duration::from_secs(5)).await?;
            println!("again: {} message", again.len());
        }
    }
    consumer.shutdown().await?;
    println!("{sum} messages pulled");
    client.shutdown().await
}
