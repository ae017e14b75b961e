//! The first program: sends one message.
//!
//! ```sh
//! NAMESRV_ADDR=127.0.0.1:9876 cargo run -p ringmq-client --example first
//! ```

use ringmq_client::{Client, Message};

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("greeters").start().await?;
    let receipt = producer.send(Message::new("greetings", "hello")).await?;
    println!("stored as {} in {:?}", receipt.message_id, receipt.queue);
    client.shutdown().await
}
