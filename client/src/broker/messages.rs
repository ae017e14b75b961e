//! Looking at queues and messages, and at what consumers do with them.

use bytes::Bytes;
use ringmq_net::body::{
    ConsumeDirectlyResult, ConsumeQueueBody, ConsumerRunningInfo, ConsumerStatus, MessageQueue,
    ResetOffset,
};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::{
    ConsumeDirectlyHeader, ConsumeQueueHeader, ConsumerStatusHeader, QueryMessageHeader,
    QueueHeader, ResetOffsetHeader, RunningInfoHeader, SearchOffsetHeader, ViewMessageHeader,
};

use super::Broker;
use crate::error::Result;
use crate::message::ReceivedMessage;

/// Which messages to find by key.
#[derive(Clone, Debug)]
pub struct QueryMessages<'a> {
    /// Topic.
    pub topic: &'a str,
    /// A key, or a unique id.
    pub key: &'a str,
    /// The key is a unique id.
    pub unique: bool,
    /// Most messages.
    pub max: i32,
    /// First store time, milliseconds since 1970.
    pub begin_ms: i64,
    /// Last store time.
    pub end_ms: i64,
}

/// Which offsets to reset.
#[derive(Clone, Debug)]
pub struct ResetOffsets<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Consumer group.
    pub group: &'a str,
    /// Store time to go to, milliseconds since 1970; -1 is the end.
    pub timestamp_ms: i64,
    /// Forwards too.
    pub force: bool,
}

impl Broker {
    /// Offset of a queue's next message.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn max_offset(&self, topic: &str, queue_id: i32) -> Result<i64> {
        self.ask_number(queue(request::GET_MAX_OFFSET, topic, queue_id), "offset").await
    }

    /// Offset of a queue's first message.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn min_offset(&self, topic: &str, queue_id: i32) -> Result<i64> {
        self.ask_number(queue(request::GET_MIN_OFFSET, topic, queue_id), "offset").await
    }

    /// Store time of a queue's first message, milliseconds since 1970; -1 when it has none.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn earliest_store_time(&self, topic: &str, queue_id: i32) -> Result<i64> {
        let command = queue(request::GET_EARLIEST_MSG_STORETIME, topic, queue_id);
        self.ask_number(command, "timestamp").await
    }

    /// Offset of the message stored nearest to a time.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn search_offset(
        &self,
        topic: &str,
        queue_id: i32,
        timestamp_ms: i64,
    ) -> Result<i64> {
        let header =
            SearchOffsetHeader { topic, queue_id, timestamp: timestamp_ms, boundary_type: None };
        let command =
            Command::request(request::SEARCH_OFFSET_BY_TIMESTAMP).with_header(&header.ext());
        self.ask_number(command, "offset").await
    }

    /// Messages by key or unique id. Brokers index by hash: messages of other keys are left out here.
    ///
    /// # Errors
    /// See [`Broker`]. Nothing found is an empty list.
    pub async fn query_messages(&self, query: &QueryMessages<'_>) -> Result<Vec<ReceivedMessage>> {
        let header = QueryMessageHeader {
            topic: query.topic,
            key: query.key,
            max_num: query.max,
            begin_timestamp: query.begin_ms,
            end_timestamp: query.end_ms,
            unique_key: query.unique,
        };
        let command = Command::request(request::QUERY_MESSAGE).with_header(&header.ext());
        let reply = self.request(&command).await?;
        match reply.code {
            response::SUCCESS => {}
            response::QUERY_NOT_FOUND => return Ok(Vec::new()),
            _ => return Err(self.refusal(command.code, reply)),
        }
        let mut found = self.read_messages(command.code, &reply.body)?;
        found.retain(|message| match query.unique {
            true => message.message_id() == query.key,
            false => message.keys().any(|key| key == query.key),
        });
        Ok(found)
    }

    /// The message at a place of this broker's log, as an offset message id names it.
    ///
    /// # Errors
    /// See [`Broker`]; brokers refuse a place without a message with 1.
    pub async fn view_message(&self, physical_offset: i64) -> Result<Option<ReceivedMessage>> {
        let header = ViewMessageHeader { offset: physical_offset, topic: None };
        let command = Command::request(request::VIEW_MESSAGE_BY_ID).with_header(&header.ext());
        let code = command.code;
        let reply = self.ask(command).await?;
        self.read_messages(code, &reply.body).map(|mut found| found.pop())
    }

    fn read_messages(&self, code: i32, body: &Bytes) -> Result<Vec<ReceivedMessage>> {
        ReceivedMessage::decode_all(body, "").map_err(|what| self.malformed(code, what))
    }

    /// Units of a queue, with what a group's filter makes of them.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consume_queue(
        &self,
        topic: &str,
        queue_id: i32,
        index: i64,
        count: i32,
        consumer_group: Option<&str>,
    ) -> Result<ConsumeQueueBody> {
        let header = ConsumeQueueHeader { topic, queue_id, index, count, consumer_group };
        let command = Command::request(request::QUERY_CONSUME_QUEUE).with_header(&header.ext());
        self.ask_body(command).await
    }

    /// Resets a group's progress by time, on the broker and in its running members. Gives the new offsets.
    ///
    /// # Errors
    /// See [`Broker`]; 206 when no member runs.
    pub async fn reset_offsets(
        &self,
        reset: &ResetOffsets<'_>,
    ) -> Result<Vec<(MessageQueue, i64)>> {
        let header = ResetOffsetHeader {
            topic: reset.topic,
            group: reset.group,
            timestamp: reset.timestamp_ms,
            is_force: reset.force,
        };
        let command =
            Command::request(request::INVOKE_BROKER_TO_RESET_OFFSET).with_header(&header.ext());
        self.ask_body::<ResetOffset>(command).await.map(|table| table.offsets)
    }

    /// Where a group's running members are; `client_id` asks one of them.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consumer_status(
        &self,
        topic: &str,
        group: &str,
        client_id: Option<&str>,
    ) -> Result<ConsumerStatus> {
        let header = ConsumerStatusHeader { topic, group, client_addr: client_id };
        let command = Command::request(request::INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
            .with_header(&header.ext());
        self.ask_body(command).await
    }

    /// The state of one running consumer.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn running_info(
        &self,
        consumer_group: &str,
        client_id: &str,
        jstack_enable: bool,
    ) -> Result<ConsumerRunningInfo> {
        let header = RunningInfoHeader { consumer_group, client_id, jstack_enable };
        let command =
            Command::request(request::GET_CONSUMER_RUNNING_INFO).with_header(&header.ext());
        self.ask_body(command).await
    }

    /// Has a running consumer consume the message of that offset message id now.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn consume_directly(
        &self,
        consumer_group: &str,
        client_id: Option<&str>,
        msg_id: &str,
    ) -> Result<ConsumeDirectlyResult> {
        let header = ConsumeDirectlyHeader { consumer_group, client_id, msg_id, broker_name: None };
        let command =
            Command::request(request::CONSUME_MESSAGE_DIRECTLY).with_header(&header.ext());
        self.ask_body(command).await
    }
}

fn queue(code: i32, topic: &str, queue_id: i32) -> Command {
    Command::request(code).with_header(&QueueHeader { topic, queue_id }.ext())
}
