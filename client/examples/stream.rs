//! A topic as a stream.

use ringmq_client::{Client, ConsumeFrom, Message};

const TOPIC: &str = "streamed";

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("example-producers").start().await?;
    producer.send_batch((1..=10).map(|n| Message::new(TOPIC, n.to_string()))).await?;

    let consumer = client.consumer("example-stream").subscribe(TOPIC, "*");
    let consumer = consumer.consume_from(ConsumeFrom::First).start_pull().await?;
    // It is a `Stream` of the futures crates, too.
    let mut numbers = consumer.stream();
    let mut sum = 0;
    for _ in 0..10 {
        let Some(message) = numbers.next().await else { break };
        sum += String::from_utf8_lossy(&message.body).parse::<u32>().unwrap_or(0);
    }
    println!("the sum is {sum}");
    consumer.shutdown().await?;
    client.shutdown().await
}
