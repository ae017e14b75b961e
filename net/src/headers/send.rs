//! What producers send: messages and the ends of transactions.

use super::{ExtFields, Field, FieldError, headers};
use crate::code::request;
use crate::header::{ExtValue, HeaderView};

/// The header of all send requests: SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324) with names in full, the
/// V2 forms and SEND_BATCH_MESSAGE (310, 320, 325) with one letter each.
///
/// Group, topic and properties are empty when absent: the broker has its own check and text for a blank
/// topic, and never looks at the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendHeader<'a> {
    /// Producer group; not validated.
    pub producer_group: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// Template topic for auto creation, usually `TBW102`.
    pub default_topic: &'a str,
    /// Queues the client wishes on auto creation; 4 when absent.
    pub default_topic_queue_nums: i32,
    /// Queue; negative lets the broker choose.
    pub queue_id: i32,
    /// System flag bits, stored.
    pub sys_flag: i32,
    /// Milliseconds, stored as it is.
    pub born_timestamp: i64,
    /// The user's flag, stored as it is.
    pub flag: i32,
    /// `name 0x01 value` pairs joined by 0x02.
    pub properties: &'a str,
    /// How often the message was consumed before.
    pub reconsume_times: i32,
    /// Unit mode: only marks an automatically created topic.
    pub unit_mode: bool,
    /// Limit of retries, for sends to a retry topic.
    pub max_reconsume_times: Option<i32>,
    /// The body is a batch. This and not the code says so: C++ sends batches with 310.
    pub batch: bool,
}

const FIELDS: usize = 13;

/// Names in full, in the order of the letters.
const V1: [&str; FIELDS] = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
];

/// One letter each.
const V2: [&str; FIELDS] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"];

impl<'a> SendHeader<'a> {
    /// Reads the form that `code` implies.
    ///
    /// # Errors
    /// A field is missing or is not a number.
    pub fn decode(code: i32, view: &HeaderView<'a>) -> Result<Self, FieldError> {
        match code {
            request::SEND_MESSAGE | request::SEND_REPLY_MESSAGE => Self::v1(view),
            _ => Self::v2(view),
        }
    }

    /// Reads names in full.
    ///
    /// # Errors
    /// A field is missing or is not a number.
    pub fn v1(view: &HeaderView<'a>) -> Result<Self, FieldError> {
        let mut texts = [""; FIELDS];
        for (name, value) in view.ext_iter() {
            if let Some(at) = V1.iter().position(|known| *known == name) {
                texts[at] = value;
            }
        }
        Self::from_texts(&texts, &V1)
    }

    /// Reads one-letter names.
    ///
    /// # Errors
    /// A field is missing or is not a number.
    pub fn v2(view: &HeaderView<'a>) -> Result<Self, FieldError> {
        let mut texts = [""; FIELDS];
        for (name, value) in view.ext_iter() {
            if let [letter @ b'a'..=b'm'] = name.as_bytes() {
                texts[usize::from(letter - b'a')] = value;
            }
        }
        Self::from_texts(&texts, &V2)
    }

    fn from_texts(
        texts: &[&'a str; FIELDS],
        names: &[&'static str; FIELDS],
    ) -> Result<Self, FieldError> {
        let [group, topic, default_topic, .., batch] = texts;
        let int_or = |at: usize, default: i32| {
            if texts[at].is_empty() { Ok(default) } else { i32::read(names[at], texts[at]) }
        };
        Ok(SendHeader {
            producer_group: group,
            topic,
            default_topic,
            default_topic_queue_nums: int_or(3, 4)?,
            queue_id: Field::read(names[4], texts[4])?,
            sys_flag: Field::read(names[5], texts[5])?,
            born_timestamp: Field::read(names[6], texts[6])?,
            flag: Field::read(names[7], texts[7])?,
            properties: texts[8],
            reconsume_times: int_or(9, 0)?,
            unit_mode: Field::read(names[10], texts[10])?,
            max_reconsume_times: Field::read(names[11], texts[11])?,
            batch: Field::read(names[12], batch)?,
        })
    }

    /// The ext fields for sending, names in full.
    #[must_use]
    pub fn ext_v1(&self) -> ExtFields<'a> {
        self.ext(&V1)
    }

    /// The ext fields for sending, one letter each.
    #[must_use]
    pub fn ext_v2(&self) -> ExtFields<'a> {
        self.ext(&V2)
    }

    fn ext(&self, names: &[&'static str; FIELDS]) -> ExtFields<'a> {
        let int = |number: i32| Some(ExtValue::I64(i64::from(number)));
        let values = [
            Some(ExtValue::Str(self.producer_group)),
            Some(ExtValue::Str(self.topic)),
            Some(ExtValue::Str(self.default_topic)),
            int(self.default_topic_queue_nums),
            int(self.queue_id),
            int(self.sys_flag),
            Some(ExtValue::I64(self.born_timestamp)),
            int(self.flag),
            Some(ExtValue::Str(self.properties)),
            int(self.reconsume_times),
            Some(ExtValue::Bool(self.unit_mode)),
            self.max_reconsume_times.and_then(int),
            Some(ExtValue::Bool(self.batch)),
        ];
        let named = names.iter().zip(values);
        named.filter_map(|(name, value)| Some((*name, value?))).collect()
    }
}

/// Values of [`EndTransactionHeader::commit_or_rollback`]; any other means "unknown" and is not answered.
pub mod transaction_action {
    /// Unknown yet.
    pub const UNKNOWN: i32 = 0;
    /// Make the message visible.
    pub const COMMIT: i32 = 8;
    /// Drop the message.
    pub const ROLLBACK: i32 = 12;
}

headers! {
    /// END_TRANSACTION (37).
    EndTransactionHeader {
        /// Must equal the half message's group.
        producer_group: &'a str = "producerGroup",
        /// Queue offset of the half message.
        tran_state_table_offset: i64 = "tranStateTableOffset",
        /// Physical offset of the half message.
        commit_log_offset: i64 = "commitLogOffset",
        /// See [`transaction_action`].
        commit_or_rollback: i32 = "commitOrRollback",
        /// The answer to a check.
        from_transaction_check: bool = "fromTransactionCheck",
        /// Not used.
        msg_id: Option<&'a str> = "msgId",
        /// Not used.
        transaction_id: Option<&'a str> = "transactionId",
    }

    /// The reply to a send, for clients.
    SendReplyHeader {
        /// Offset message id; of a batch, all of them joined by commas.
        msg_id: &'a str = "msgId",
        /// The queue.
        queue_id: i32 = "queueId",
        /// Queue offset, of a batch that of its first message.
        queue_offset: i64 = "queueOffset",
        /// Not set by 4.9.8.
        transaction_id: Option<&'a str> = "transactionId",
        /// Region of the broker.
        region: Option<&'a str> = "MSG_REGION",
        /// May clients trace? Absent means no to some of them.
        trace_on: bool = "TRACE_ON",
        /// RingMQ only: the level reached, `memory`, `write` or `sync`.
        ack_level: Option<&'a str> = "ackLevel",
        /// RingMQ only: how many slaves hold the message.
        ack_replicas: Option<i32> = "ackReplicas",
    }
}
