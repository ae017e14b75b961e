//! A request and the reply to it. One program plays both parts: it asks, takes the request from its queue, and answers.

use std::time::Duration;

use ringmq_client::{Client, Message, PullRequest, ReceivedMessage, Result};

/// The next request of the topic: whatever consumes may reply.
async fn take_request(client: &Client, topic: &str) -> Result<ReceivedMessage> {
    loop {
        for queue in &client.renew_route(topic).await?.readable {
            let group = client.broker_group(&queue.broker_name);
            let Some(master) = group.get(&0) else { continue };
            let broker = client.broker(master);
            let offset = broker.consumer_offset("answerers", queue).await?.unwrap_or(0);
            let mut pull = PullRequest::new("answerers", queue.clone(), offset);
            pull.hold = Duration::ZERO;
            let found = broker.pull(&pull).await?.messages;
            if let Some(message) = found.into_iter().find(ReceivedMessage::is_request) {
                let next = message.queue_offset + 1;
                broker.update_consumer_offset("answerers", queue, next).await?;
                return Ok(message);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::builder().build()?;
    let producer = client.producer("askers").start().await?;
    let asking = producer.request(Message::new("questions", "6 x 7?"), Duration::from_secs(10));
    let answering = async {
        // The first request makes the topic.
        while client.renew_route("questions").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let request = take_request(&client, "questions").await?;
        println!("asked: {}", String::from_utf8_lossy(&request.body));
        producer.send(Message::reply_to(&request, "42")?).await
    };
    let (reply, _) = tokio::try_join!(asking, answering)?;
    println!("answered: {}", String::from_utf8_lossy(&reply.body));
    client.shutdown().await
}
