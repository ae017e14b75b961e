//! What an administrator does: looks at clusters, makes a topic, follows a group's progress.

use ringmq_client::protocol::body::{SubscriptionGroupConfig, TopicConfig};
use ringmq_client::{Client, Message};

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let client = Client::builder().build()?;
    let admin = client.admin();
    let clusters = admin.cluster_info().await?.clusters;
    for (cluster, brokers) in &clusters {
        println!("cluster {cluster}: {}", brokers.join(", "));
        admin.create_topic(cluster, &TopicConfig::new("inventory", 8)).await?;
        admin.create_group(cluster, &SubscriptionGroupConfig::new("counters")).await?;
    }
    let producer = client.producer("stockers").start().await?;
    let receipt = producer.send(Message::new("inventory", "12 boxes").key("box")).await?;

    for (queue, offsets) in admin.topic_stats("inventory").await?.queues {
        println!(
            "{} {}: messages {} to {}",
            queue.broker_name, queue.queue_id, offsets.min_offset, offsets.max_offset
        );
    }
    if let Some(message) = admin.view_message(&receipt.offset_message_id).await? {
        println!("{}: {}", message.message_id(), String::from_utf8_lossy(&message.body));
    }
    for cluster in clusters.keys() {
        admin.delete_group(cluster, "counters", true).await?;
        admin.delete_topic(cluster, "inventory").await?;
    }
    client.shutdown().await
}
