//! What consumers send: pulls, offsets, send-backs; and finding messages.

use super::{FieldError, headers, required_i64};
use crate::header::{ExtValue, HeaderView};

/// Bits of [`PullHeader::sys_flag`].
pub mod pull_flag {
    /// Store `commitOffset` as the group's progress.
    pub const COMMIT_OFFSET: i32 = 1;
    /// The broker may hold the request until a message comes.
    pub const SUSPEND: i32 = 2;
    /// Use the subscription of the request, not the registered one.
    pub const SUBSCRIPTION: i32 = 4;
    /// Class filter; obsolete.
    pub const CLASS_FILTER: i32 = 8;
    /// Lite pull client; changes nothing.
    pub const LITE_PULL: i32 = 16;
}

headers! {
    /// PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).
    PullHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
        /// Topic.
        topic: &'a str = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// First queue offset wanted.
        queue_offset: i64 = "queueOffset",
        /// Most messages.
        max_msg_nums: i32 = "maxMsgNums",
        /// See [`pull_flag`].
        sys_flag: i32 = "sysFlag",
        /// The consumer's progress.
        commit_offset: i64 = "commitOffset" or 0,
        /// Longest hold, milliseconds.
        suspend_timeout_millis: i64 = "suspendTimeoutMillis" or 0,
        /// Filter expression.
        subscription: Option<&'a str> = "subscription",
        /// Version of the subscription.
        sub_version: i64 = "subVersion" or 0,
        /// `TAG` (also when absent) or `SQL92`.
        expression_type: Option<&'a str> = "expressionType",
    }

    /// QUERY_MESSAGE (12).
    QueryMessageHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// A key or a client unique id.
        key: &'a str = "key",
        /// Most messages.
        max_num: i32 = "maxNum",
        /// Start of the store time window, milliseconds.
        begin_timestamp: i64 = "beginTimestamp",
        /// End of it.
        end_timestamp: i64 = "endTimestamp",
        /// The key is a unique id.
        unique_key: bool = "_UNIQUE_KEY_QUERY",
    }

    /// VIEW_MESSAGE_BY_ID (33).
    ViewMessageHeader {
        /// Physical offset of the record.
        offset: i64 = "offset",
        /// Sent by 5.x clients only.
        topic: Option<&'a str> = "topic",
    }

    /// GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32).
    QueueHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
    }

    /// SEARCH_OFFSET_BY_TIMESTAMP (29).
    SearchOffsetHeader {
        /// Topic.
        topic: &'a str = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// Store time, milliseconds.
        timestamp: i64 = "timestamp",
        /// 5.x only: `LOWER` or `UPPER`.
        boundary_type: Option<&'a str> = "boundaryType",
    }

    /// QUERY_CONSUMER_OFFSET (14).
    QueryConsumerOffsetHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
        /// Topic.
        topic: &'a str = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
    }

    /// UPDATE_CONSUMER_OFFSET (15).
    UpdateConsumerOffsetHeader {
        /// Group.
        consumer_group: &'a str = "consumerGroup",
        /// Topic.
        topic: &'a str = "topic",
        /// Queue.
        queue_id: i32 = "queueId",
        /// The group's progress; may go backwards.
        commit_offset: i64 = "commitOffset",
    }

    /// CONSUMER_SEND_MSG_BACK (36).
    SendBackHeader {
        /// Physical offset of the consumed record.
        offset: i64 = "offset",
        /// Group.
        group: &'a str = "group",
        /// 0 lets the broker decide, negative means dead letter.
        delay_level: i32 = "delayLevel",
        /// Only for hooks.
        origin_msg_id: Option<&'a str> = "originMsgId",
        /// Only for hooks.
        origin_topic: Option<&'a str> = "originTopic",
        /// Unit mode.
        unit_mode: bool = "unitMode",
        /// Limit of retries, honoured from version 121 on.
        max_reconsume_times: Option<i32> = "maxReconsumeTimes",
    }

    /// UNREGISTER_CLIENT (35). C++ sends empty names: they are absent.
    UnregisterClientHeader {
        /// Client id.
        client_id: &'a str = "clientID",
        /// Producer group to leave.
        producer_group: Option<&'a str> = "producerGroup",
        /// Consumer group to leave.
        consumer_group: Option<&'a str> = "consumerGroup",
    }
}

/// The reply to a pull, for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullReplyHeader {
    /// Broker id to pull from next.
    pub suggest_which_broker_id: i64,
    /// Queue offset to go on at.
    pub next_begin_offset: i64,
    /// First queue offset.
    pub min_offset: i64,
    /// Queue offset of the next message to be written.
    pub max_offset: i64,
}

impl PullReplyHeader {
    /// Reads the ext fields.
    ///
    /// # Errors
    /// A field is missing or is not a number.
    pub fn decode(view: &HeaderView<'_>) -> Result<Self, FieldError> {
        Ok(PullReplyHeader {
            suggest_which_broker_id: required_i64(view, "suggestWhichBrokerId")?,
            next_begin_offset: required_i64(view, "nextBeginOffset")?,
            min_offset: required_i64(view, "minOffset")?,
            max_offset: required_i64(view, "maxOffset")?,
        })
    }

    /// The ext fields, in the order stock sends them.
    #[must_use]
    pub fn ext(&self) -> [(&'static str, ExtValue<'static>); 4] {
        [
            ("suggestWhichBrokerId", ExtValue::I64(self.suggest_which_broker_id)),
            ("nextBeginOffset", ExtValue::I64(self.next_begin_offset)),
            ("minOffset", ExtValue::I64(self.min_offset)),
            ("maxOffset", ExtValue::I64(self.max_offset)),
        ]
    }
}
