//! Many messages at once: as a batch, which is one request for each part of up to 4 MiB, and as single sends that are on their way together.

use ringmq_client::{Client, Error, Message};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("meters").start().await?;

    let readings = (0..1000).map(|i| Message::new("readings", format!("reading {i}")));
    match producer.send_batch(readings).await {
        Ok(receipts) => println!("{} messages are stored", receipts.len()),
        // What was stored before is told: the rest can be sent again.
        Err(Error::Batch(failure)) => {
            println!("{} are stored, then: {failure}", failure.sent.len())
        }
        Err(error) => return Err(error),
    }

    let mut sends = JoinSet::new();
    for i in 0..1000 {
        let producer = producer.clone();
        sends.spawn(async move {
            producer.send(Message::new("readings", format!("reading {i}"))).await
        });
    }
    let mut stored = 0;
    while let Some(Ok(sent)) = sends.join_next().await {
        sent?;
        stored += 1;
    }
    println!("{stored} more messages are stored");
    client.shutdown().await
}
