//! Groups of consumers and producers: what they are, who is connected, how far they are.

use std::collections::BTreeSet;

use ringmq_net::body::{
    ConsumeStats, ConsumerConnection, MessageQueue, ProducerConnection, SubscriptionGroupConfig,
};
use ringmq_net::code::response;

use super::Admin;
use crate::error::Result;
use crate::{Broker, ResetOffsets, validate};

/// What the topic of a group's retries begins with.
const RETRY_PREFIX: &str = "%RETRY%";
/// What the topic of a group's dead letters begins with.
const DEAD_PREFIX: &str = "%DLQ%";

impl Admin {
    /// Creates a consumer group on every master of a cluster, or changes it.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::Invalid`] for a name that no group can have.
    pub async fn create_group(&self, cluster: &str, group: &SubscriptionGroupConfig) -> Result<()> {
        validate::group(&group.group_name)?;
        for master in self.masters(cluster).await? {
            master.create_group(group).await?;
        }
        Ok(())
    }

    /// Deletes a consumer group on every master of a cluster, with its progress if asked, and its topics of retries and of dead letters.
    ///
    /// # Errors
    /// See [`Admin`].
    pub async fn delete_group(&self, cluster: &str, group: &str, with_offsets: bool) -> Result<()> {
        for master in self.masters(cluster).await? {
            master.delete_group(group, with_offsets).await?;
        }
        for prefix in [RETRY_PREFIX, DEAD_PREFIX] {
            let topic = format!("{prefix}{group}");
            if self.topic_route(&topic).await?.is_some() {
                self.delete_topic(cluster, &topic).await?;
            }
        }
        Ok(())
    }

    /// Progress of a group in every queue, of one topic or of all that it has progress in. Brokers that do not know the group are passed over.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::NoRoute`] when neither the topic nor the group's retry topic exists.
    pub async fn consume_stats(&self, group: &str, topic: Option<&str>) -> Result<ConsumeStats> {
        let retry = format!("{RETRY_PREFIX}{group}");
        let mut all = ConsumeStats::default();
        for master in self.masters_of_topic(topic.unwrap_or(&retry)).await? {
            match master.consume_stats(group, topic).await {
                Ok(part) => {
                    all.consume_tps += part.consume_tps;
                    all.queues.extend(part.queues);
                }
                Err(error) if error.is_refusal(response::CONSUMER_NOT_ONLINE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Connected members of a group over all brokers that it is on, each client once.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::NoRoute`] when the group has no retry topic yet.
    pub async fn consumer_connections(&self, group: &str) -> Result<ConsumerConnection> {
        let mut all = ConsumerConnection::default();
        let mut seen = BTreeSet::new();
        for master in self.masters_of_topic(&format!("{RETRY_PREFIX}{group}")).await? {
            let part = match master.consumer_connections(group).await {
                Ok(part) => part,
                Err(error) if error.is_refusal(response::CONSUMER_NOT_ONLINE) => continue,
                Err(error) => return Err(error),
            };
            let new = part.connections.into_iter().filter(|c| seen.insert(c.client_id.clone()));
            all.connections.extend(new);
            all.subscriptions.extend(part.subscriptions);
            all.consume_type = all.consume_type.or(part.consume_type);
            all.message_model = all.message_model.or(part.message_model);
            all.consume_from = all.consume_from.or(part.consume_from);
        }
        Ok(all)
    }

    /// Groups that consume a topic, over all its brokers.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::NoRoute`].
    pub async fn groups_of_topic(&self, topic: &str) -> Result<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        for master in self.masters_of_topic(topic).await? {
            all.extend(master.groups_of_topic(topic).await?);
        }
        Ok(all)
    }

    /// Connected members of a producer group over all masters of a topic, each client once.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::NoRoute`]. A broker that knows of no member refuses and is passed over.
    pub async fn producer_connections(
        &self,
        group: &str,
        topic: &str,
    ) -> Result<ProducerConnection> {
        let mut all = ProducerConnection::default();
        let mut seen = BTreeSet::new();
        for master in self.masters_of_topic(topic).await? {
            let part = match master.producer_connections(group).await {
                Ok(part) => part,
                Err(error) if error.is_refusal(response::SYSTEM_ERROR) => continue,
                Err(error) => return Err(error),
            };
            let new = part.connections.into_iter().filter(|c| seen.insert(c.client_id.clone()));
            all.connections.extend(new);
        }
        Ok(all)
    }

    /// Resets a group's progress in a topic to the first message stored at or after a time, on every master: in its running members, or if there
    /// are none in the brokers alone. Gives the new offsets.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::NoRoute`].
    pub async fn reset_offsets(
        &self,
        reset: &ResetOffsets<'_>,
    ) -> Result<Vec<(MessageQueue, i64)>> {
        let mut all = Vec::new();
        for master in self.masters_of_topic(reset.topic).await? {
            all.extend(reset_at(&master, reset).await?);
        }
        Ok(all)
    }

    /// Copies a group's progress in a topic to another group, on every master of the topic.
    ///
    /// # Errors
    /// See [`Admin`]; [`crate::Error::NoRoute`].
    pub async fn clone_offsets(&self, from: &str, to: &str, topic: &str) -> Result<()> {
        for master in self.masters_of_topic(topic).await? {
            master.clone_offsets(from, to, Some(topic)).await?;
        }
        Ok(())
    }
}

async fn reset_at(broker: &Broker, reset: &ResetOffsets<'_>) -> Result<Vec<(MessageQueue, i64)>> {
    match broker.reset_offsets(reset).await {
        Err(error) if error.is_refusal(response::CONSUMER_NOT_ONLINE) => {
            reset_without_members(broker, reset).await
        }
        // Brokers refuse so when the group has no progress in some queue. Then it gets one, and members are told after that.
        Err(error) if error.is_refusal(response::SYSTEM_ERROR) => {
            let stored = reset_without_members(broker, reset).await?;
            match broker.reset_offsets(reset).await {
                Err(error) if error.is_refusal(response::CONSUMER_NOT_ONLINE) => Ok(stored),
                done => done,
            }
        }
        done => done,
    }
}

/// As stock's tools do it for a group that is not running: queue by queue.
async fn reset_without_members(
    broker: &Broker,
    reset: &ResetOffsets<'_>,
) -> Result<Vec<(MessageQueue, i64)>> {
    let mut done = Vec::new();
    for (queue, offsets) in broker.topic_stats(reset.topic).await?.queues {
        let wanted = match reset.timestamp_ms {
            -1 => offsets.max_offset,
            time => broker.search_offset(reset.topic, queue.queue_id, time).await?,
        };
        let known = broker.consumer_offset(reset.group, &queue).await?;
        let target = match known {
            Some(known) if !reset.force => wanted.min(known),
            _ => wanted,
        };
        broker.update_consumer_offset(reset.group, &queue, target).await?;
        done.push((queue, target));
    }
    Ok(done)
}
