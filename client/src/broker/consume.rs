//! What consumers ask: pulls, progress, locks, send-backs.

use std::time::Duration;

use ringmq_net::body::{Body, CheckClientConfig, ConsumerList, LockBatch, LockOk, MessageQueue};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::{
    ConsumerGroupHeader, PullHeader, QueryConsumerOffsetHeader, SendBackHeader,
    UpdateConsumerOffsetHeader, pull_flag,
};

use super::Broker;
use crate::error::Result;
use crate::message::ReceivedMessage;

/// How much longer than the broker may hold a pull its answer is waited for: brokers look at held pulls each 5 s.
const HOLD_SLACK: Duration = Duration::from_secs(15);

/// A pull of one queue.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// Consumer group.
    pub group: String,
    /// The queue. Its broker name is given to the messages.
    pub queue: MessageQueue,
    /// First offset wanted.
    pub offset: i64,
    /// Most messages, as far as the broker allows.
    pub max_messages: i32,
    /// Filter expression; `None` uses what the group registered by heartbeat.
    pub subscription: Option<String>,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// Version of the subscription.
    pub sub_version: i64,
    /// Progress to store on the way, if this broker is a master.
    pub commit: Option<i64>,
    /// How long the broker may hold the pull when there is nothing; zero answers at once.
    pub hold: Duration,
}

impl PullRequest {
    /// A pull of everything from `offset`, 32 messages at most, held up to 15 s.
    #[must_use]
    pub fn new(group: impl Into<String>, queue: MessageQueue, offset: i64) -> PullRequest {
        PullRequest {
            group: group.into(),
            queue,
            offset,
            max_messages: 32,
            subscription: Some("*".to_owned()),
            expression_type: "TAG".to_owned(),
            sub_version: 0,
            commit: None,
            hold: Duration::from_secs(15),
        }
    }

    fn command(&self) -> Command {
        let flag = |on: bool, bit: i32| if on { bit } else { 0 };
        let header = PullHeader {
            consumer_group: &self.group,
            topic: &self.queue.topic,
            queue_id: self.queue.queue_id,
            queue_offset: self.offset,
            max_msg_nums: self.max_messages,
            sys_flag: flag(self.commit.is_some(), pull_flag::COMMIT_OFFSET)
                | flag(!self.hold.is_zero(), pull_flag::SUSPEND)
                | flag(self.subscription.is_some(), pull_flag::SUBSCRIPTION),
            commit_offset: self.commit.unwrap_or(0),
            suspend_timeout_millis: self.hold.as_millis() as i64,
            subscription: self.subscription.as_deref(),
            sub_version: self.sub_version,
            expression_type: Some(&self.expression_type),
        };
        Command::request(request::PULL_MESSAGE).with_header(&header.ext())
    }
}

/// How a pull ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    /// There are messages.
    Found,
    /// Nothing new.
    NoNew,
    /// There were messages, but none that matches: go on at the next offset.
    NoMatch,
    /// The offset is outside the queue: go on at the next offset.
    OffsetIllegal,
}

/// The answer to a pull.
#[derive(Clone, Debug)]
pub struct PullReply {
    /// How it ended.
    pub status: PullStatus,
    /// Offset to go on at.
    pub next_offset: i64,
    /// First offset of the queue.
    pub min_offset: i64,
    /// Offset of the queue's next message.
    pub max_offset: i64,
    /// Broker id of the group to pull from next.
    pub suggested_broker_id: i64,
    /// Matching by the broker is by hash: a consumer compares tags itself.
    pub messages: Vec<ReceivedMessage>,
}

/// A consumed message that is given back for a retry.
#[derive(Clone, Debug)]
pub struct SendBack<'a> {
    /// Consumer group.
    pub group: &'a str,
    /// Place in the broker's log.
    pub physical_offset: i64,
    /// Delay level; 0 lets the broker decide, negative is the dead letter queue at once.
    pub delay_level: i32,
    /// The message's offset id.
    pub origin_message_id: &'a str,
    /// Its topic.
    pub origin_topic: &'a str,
    /// Retries before the dead letter queue.
    pub max_reconsume_times: i32,
}

/// Queues to lock or unlock for orderly consumption. Locks belong to the client id.
#[derive(Clone, Debug)]
pub struct Lock<'a> {
    /// Who locks.
    pub client_id: &'a str,
    /// Consumer group.
    pub group: &'a str,
    /// The queues, all of this broker's group.
    pub queues: &'a [MessageQueue],
}

impl Lock<'_> {
    fn body(&self) -> Vec<u8> {
        let body = LockBatch {
            client_id: self.client_id.to_owned(),
            consumer_group: self.group.to_owned(),
            queues: self.queues.to_vec(),
        };
        body.to_json()
    }
}

impl Broker {
    /// Pulls messages. Waits as long as the broker may hold the pull, and 15 s more.
    ///
    /// # Errors
    /// See [`Broker`]; [`crate::Error::Malformed`] for messages that cannot be read.
    pub async fn pull(&self, pull: &PullRequest) -> Result<PullReply> {
        let command = pull.command();
        let broker = self.with_timeout(self.timeout.max(pull.hold.saturating_add(HOLD_SLACK)));
        let reply = broker.request(&command).await?;
        let status = match reply.code {
            response::SUCCESS => PullStatus::Found,
            response::PULL_NOT_FOUND => PullStatus::NoNew,
            response::PULL_RETRY_IMMEDIATELY => PullStatus::NoMatch,
            response::PULL_OFFSET_MOVED => PullStatus::OffsetIllegal,
            _ => return Err(self.refusal(command.code, reply)),
        };
        let number = |field| self.number(command.code, &reply, field);
        let (next_offset, min_offset) = (number("nextBeginOffset")?, number("minOffset")?);
        let (max_offset, suggested_broker_id) =
            (number("maxOffset")?, number("suggestWhichBrokerId")?);
        let mut messages = match status {
            PullStatus::Found => ReceivedMessage::decode_all(&reply.body, &pull.queue.broker_name)
                .map_err(|what| self.malformed(command.code, what))?,
            _ => Vec::new(),
        };
        // Only messages of the group's own retry topic go under the topic that they were first sent to: a dead letter is one of its topic.
        let retry = pull.queue.topic.strip_prefix("%RETRY%") == Some(pull.group.as_str());
        if !retry {
            messages.iter_mut().for_each(|m| m.queue.topic.clone_from(&pull.queue.topic));
        }
        Ok(PullReply { status, next_offset, min_offset, max_offset, suggested_broker_id, messages })
    }

    /// A group's progress in a queue: the offset it goes on at. `None` when it has none, and only then: any other answer is an
    /// error, so that nobody takes a failing broker for a new group.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consumer_offset(&self, group: &str, queue: &MessageQueue) -> Result<Option<i64>> {
        let header = QueryConsumerOffsetHeader {
            consumer_group: group,
            topic: &queue.topic,
            queue_id: queue.queue_id,
        };
        let command = Command::request(request::QUERY_CONSUMER_OFFSET).with_header(&header.ext());
        let reply = self.request(&command).await?;
        match reply.code {
            response::SUCCESS => self.number(command.code, &reply, "offset").map(Some),
            response::QUERY_NOT_FOUND => Ok(None),
            _ => Err(self.refusal(command.code, reply)),
        }
    }

    /// Stores a group's progress, and waits for the answer.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn update_consumer_offset(
        &self,
        group: &str,
        queue: &MessageQueue,
        offset: i64,
    ) -> Result<()> {
        self.ask(offset_command(group, queue, offset)).await.map(drop)
    }

    /// Stores a group's progress, without an answer.
    ///
    /// # Errors
    /// See [`Broker::request_oneway`].
    pub async fn update_consumer_offset_oneway(
        &self,
        group: &str,
        queue: &MessageQueue,
        offset: i64,
    ) -> Result<()> {
        self.request_oneway(&offset_command(group, queue, offset)).await
    }

    /// Client ids of a group's members on this broker, in the broker's order.
    ///
    /// # Errors
    /// See [`Broker`]; brokers refuse a group without members.
    pub async fn consumer_ids(&self, group: &str) -> Result<Vec<String>> {
        let header = ConsumerGroupHeader { consumer_group: group };
        let command =
            Command::request(request::GET_CONSUMER_LIST_BY_GROUP).with_header(&header.ext());
        self.ask_body::<ConsumerList>(command).await.map(|list| list.consumer_ids)
    }

    /// Locks queues; gives those that the client holds now.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn lock(&self, lock: &Lock<'_>) -> Result<Vec<MessageQueue>> {
        let command = Command::request(request::LOCK_BATCH_MQ).with_body(lock.body());
        self.ask_body::<LockOk>(command).await.map(|held| held.queues)
    }

    /// Unlocks queues.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn unlock(&self, lock: &Lock<'_>) -> Result<()> {
        let command = Command::request(request::UNLOCK_BATCH_MQ).with_body(lock.body());
        self.ask(command).await.map(drop)
    }

    /// Gives a message back, to be delivered again later or to become a dead letter.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn send_back(&self, back: &SendBack<'_>) -> Result<()> {
        let header = SendBackHeader {
            offset: back.physical_offset,
            group: back.group,
            delay_level: back.delay_level,
            origin_msg_id: Some(back.origin_message_id),
            origin_topic: Some(back.origin_topic),
            unit_mode: false,
            max_reconsume_times: Some(back.max_reconsume_times),
        };
        let command = Command::request(request::CONSUMER_SEND_MSG_BACK).with_header(&header.ext());
        self.ask(command).await.map(drop)
    }

    /// Would this subscription work here?
    ///
    /// # Errors
    /// See [`Broker`]; an expression that does not compile is refused with 23.
    pub async fn check_subscription(&self, check: &CheckClientConfig) -> Result<()> {
        let command = Command::request(request::CHECK_CLIENT_CONFIG).with_body(check.to_json());
        self.ask(command).await.map(drop)
    }
}

fn offset_command(group: &str, queue: &MessageQueue, offset: i64) -> Command {
    let header = UpdateConsumerOffsetHeader {
        consumer_group: group,
        topic: &queue.topic,
        queue_id: queue.queue_id,
        commit_offset: offset,
    };
    Command::request(request::UPDATE_CONSUMER_OFFSET).with_header(&header.ext())
}
