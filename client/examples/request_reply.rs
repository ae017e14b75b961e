//! A request and the reply to it: a producer asks, whoever consumes the topic answers. One program plays both parts here.

use std::time::Duration;

use ringmq_client::protocol::body::TopicConfig;
use ringmq_client::{Client, ConsumeFrom, Message};

const TOPIC: &str = "questions";

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let admin = client.admin();
    for cluster in admin.cluster_info().await?.clusters.keys() {
        admin.create_topic(cluster, &TopicConfig::new(TOPIC, 4)).await?;
    }

    let replies = client.producer("answerers").start().await?;
    let consumer = client
        .consumer("answerers")
        .subscribe(TOPIC, "*")
        .consume_from(ConsumeFrom::First)
        .start(move |request| {
            let replies = replies.clone();
            async move {
                println!("asked: {}", String::from_utf8_lossy(&request.body));
                // A question whose asker has gone is not worth a retry.
                match Message::reply_to(&request, "42") {
                    Ok(reply) => match replies.send(reply).await {
                        Ok(_) => println!("replied"),
                        Err(error) => println!("the reply was not sent: {error}"),
                    },
                    Err(error) => println!("no request: {error}"),
                }
            }
        })
        .await?;

    let asker = client.producer("askers").start().await?;
    let reply = asker.request(Message::new(TOPIC, "6 x 7?"), Duration::from_secs(5)).await?;
    println!("answered: {}", String::from_utf8_lossy(&reply.body));
    consumer.shutdown().await?;
    client.shutdown().await
}
