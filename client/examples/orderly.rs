//! Messages of one order are consumed one after the other, by whichever member of the group has their queue.

use std::sync::Arc;

use ringmq_client::{Client, ConsumeFrom, Message};
use tokio::sync::Semaphore;

const TOPIC: &str = "order-steps";

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("example-producers").start().await?;

    let done = Arc::new(Semaphore::new(0));
    let listener_done = done.clone();
    let consumer = client
        .consumer("example-orderly")
        .subscribe(TOPIC, "*")
        .consume_from(ConsumeFrom::First)
        .start_orderly(move |message| {
            let done = listener_done.clone();
            async move {
                // An error would make the queue wait and this message come again first.
                println!("{}", std::str::from_utf8(&message.body)?);
                done.add_permits(1);
                Ok::<(), std::str::Utf8Error>(())
            }
        })
        .await?;

    for step in ["paid", "packed", "shipped"] {
        for order in ["order-1", "order-2"] {
            let message = Message::new(TOPIC, format!("{order} is {step}"));
            producer.send_ordered(message, order).await?;
        }
    }
    let _ = done.acquire_many(6).await;
    consumer.shutdown().await?;
    println!("all steps are done");
    client.shutdown().await
}
