//! Topics, groups, statistics and settings of one broker.

use ringmq_net::body::{
    Body, BrokerStats, ConsumeStats, ConsumeStatsList, ConsumeTimeSpans, ConsumerConnection,
    ConsumerOffsetTable, GroupList, KvTable, ProducerConnection, ProducerTable,
    SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfig, TopicConfigTable, TopicList,
    TopicStats, properties,
};
use ringmq_net::code::request;
use ringmq_net::command::Command;
use ringmq_net::headers::{
    CloneOffsetHeader, ConsumeStatsHeader, ConsumerGroupHeader, CreateTopicHeader,
    DeleteGroupHeader, GroupOnTopicHeader, ProducerGroupHeader, StatsDataHeader, TopicHeader,
};

use super::Broker;
use crate::error::Result;
use crate::route::TEMPLATE_TOPIC;
use crate::validate;

impl Broker {
    /// Creates a topic here, or changes it.
    ///
    /// # Errors
    /// See [`Broker`]; [`crate::Error::Invalid`] for a name that no topic can have.
    pub async fn create_topic(&self, topic: &TopicConfig) -> Result<()> {
        validate::new_topic(&topic.topic_name)?;
        let header = CreateTopicHeader {
            topic: &topic.topic_name,
            default_topic: Some(TEMPLATE_TOPIC),
            read_queue_nums: topic.read_queue_nums,
            write_queue_nums: topic.write_queue_nums,
            perm: topic.perm,
            topic_filter_type: topic.topic_filter_type.name(),
            topic_sys_flag: topic.topic_sys_flag,
            order: topic.order,
        };
        self.ask(Command::request(request::UPDATE_AND_CREATE_TOPIC).with_header(&header.ext()))
            .await
            .map(drop)
    }

    /// Deletes a topic and its messages here.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn delete_topic(&self, topic: &str) -> Result<()> {
        self.ask(of_topic(request::DELETE_TOPIC_IN_BROKER, topic)).await.map(drop)
    }

    /// All topics with their settings.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn topics(&self) -> Result<TopicConfigTable> {
        self.ask_body(Command::request(request::GET_ALL_TOPIC_CONFIG)).await
    }

    /// The broker's own topics.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn system_topics(&self) -> Result<TopicList> {
        self.ask_body(Command::request(request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).await
    }

    /// First and last offset of each queue of a topic.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn topic_stats(&self, topic: &str) -> Result<TopicStats> {
        self.ask_body(of_topic(request::GET_TOPIC_STATS_INFO, topic)).await
    }

    /// Groups that consume a topic.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn groups_of_topic(&self, topic: &str) -> Result<Vec<String>> {
        let command = of_topic(request::QUERY_TOPIC_CONSUME_BY_WHO, topic);
        self.ask_body::<GroupList>(command).await.map(|list| list.groups)
    }

    /// Creates a consumer group here, or changes it.
    ///
    /// # Errors
    /// See [`Broker`]; [`crate::Error::Invalid`] for a name that no group can have.
    pub async fn create_group(&self, group: &SubscriptionGroupConfig) -> Result<()> {
        validate::group(&group.group_name)?;
        let command = Command::request(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
            .with_body(group.to_json());
        self.ask(command).await.map(drop)
    }

    /// Deletes a consumer group here, with its progress if asked.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn delete_group(&self, group: &str, with_offsets: bool) -> Result<()> {
        let header = DeleteGroupHeader {
            group_name: group,
            remove_offset: with_offsets,
            clean_offset: with_offsets,
        };
        let command =
            Command::request(request::DELETE_SUBSCRIPTIONGROUP).with_header(&header.ext());
        self.ask(command).await.map(drop)
    }

    /// All consumer groups with their settings.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn groups(&self) -> Result<SubscriptionGroupTable> {
        self.ask_body(Command::request(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).await
    }

    /// Connected members of a consumer group, with its subscriptions.
    ///
    /// # Errors
    /// See [`Broker`]; 206 when there are none.
    pub async fn consumer_connections(&self, group: &str) -> Result<ConsumerConnection> {
        let header = ConsumerGroupHeader { consumer_group: group };
        let command =
            Command::request(request::GET_CONSUMER_CONNECTION_LIST).with_header(&header.ext());
        self.ask_body(command).await
    }

    /// Connected members of a producer group.
    ///
    /// # Errors
    /// See [`Broker`]; refused when there are none.
    pub async fn producer_connections(&self, group: &str) -> Result<ProducerConnection> {
        let header = ProducerGroupHeader { producer_group: group };
        let command =
            Command::request(request::GET_PRODUCER_CONNECTION_LIST).with_header(&header.ext());
        self.ask_body(command).await
    }

    /// All connected producers by group.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn producers(&self) -> Result<ProducerTable> {
        self.ask_body(Command::request(request::GET_ALL_PRODUCER_INFO)).await
    }

    /// Progress of a group in each queue here, of one topic or of all.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consume_stats(&self, group: &str, topic: Option<&str>) -> Result<ConsumeStats> {
        let header = ConsumeStatsHeader { consumer_group: group, topic };
        self.ask_body(Command::request(request::GET_CONSUME_STATS).with_header(&header.ext())).await
    }

    /// Progress of all groups.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn all_consume_stats(&self, order_topics: bool) -> Result<ConsumeStatsList> {
        let command =
            Command::request(request::GET_BROKER_CONSUME_STATS).with_ext("isOrder", order_topics);
        self.ask_body(command).await
    }

    /// All progress of all groups, as a slave copies it.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consumer_offsets(&self) -> Result<ConsumerOffsetTable> {
        self.ask_body(Command::request(request::GET_ALL_CONSUMER_OFFSET)).await
    }

    /// Times of the first, the last and the consumed message of each queue.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consume_time_spans(&self, topic: &str, group: &str) -> Result<ConsumeTimeSpans> {
        let header = GroupOnTopicHeader { topic, group };
        let command = Command::request(request::QUERY_CONSUME_TIME_SPAN).with_header(&header.ext());
        self.ask_body(command).await
    }

    /// Copies a group's progress to another group, for one topic or for all.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn clone_offsets(&self, from: &str, to: &str, topic: Option<&str>) -> Result<()> {
        let header = CloneOffsetHeader { src_group: from, dest_group: to, topic, offline: false };
        let command = Command::request(request::CLONE_GROUP_OFFSET).with_header(&header.ext());
        self.ask(command).await.map(drop)
    }

    /// One statistic, such as `TOPIC_PUT_NUMS` of a topic.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn stats(&self, stats_name: &str, stats_key: &str) -> Result<BrokerStats> {
        let header = StatsDataHeader { stats_name, stats_key };
        let command = Command::request(request::VIEW_BROKER_STATS_DATA).with_header(&header.ext());
        self.ask_body(command).await
    }

    /// Numbers about the running broker.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn runtime_info(&self) -> Result<KvTable> {
        self.ask_body(Command::request(request::GET_BROKER_RUNTIME_INFO)).await
    }

    /// The broker's settings.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn config(&self) -> Result<Vec<(String, String)>> {
        let reply = self.ask(Command::request(request::GET_BROKER_CONFIG)).await?;
        Ok(properties::parse(&String::from_utf8_lossy(&reply.body)))
    }

    /// Changes settings.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn update_config(&self, changes: &[(&str, &str)]) -> Result<()> {
        let text = properties::print(changes.iter().copied());
        let command = Command::request(request::UPDATE_BROKER_CONFIG).with_body(text.into_bytes());
        self.ask(command).await.map(drop)
    }

    /// Deletes queues whose messages are gone.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn clean_expired_queues(&self) -> Result<()> {
        self.ask(Command::request(request::CLEAN_EXPIRED_CONSUMEQUEUE)).await.map(drop)
    }

    /// Deletes queues of topics that are gone.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn clean_unused_topics(&self) -> Result<()> {
        self.ask(Command::request(request::CLEAN_UNUSED_TOPIC)).await.map(drop)
    }

    /// Deletes expired segments of the log now.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn delete_expired_segments(&self) -> Result<()> {
        self.ask(Command::request(request::DELETE_EXPIRED_COMMITLOG)).await.map(drop)
    }
}

fn of_topic(code: i32, topic: &str) -> Command {
    Command::request(code).with_header(&TopicHeader { topic }.ext())
}
