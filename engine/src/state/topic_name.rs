//! What a topic may be called, and which names belong to the broker itself.

use ringmq_net::code::response;
use thiserror::Error;

/// The template that clients name for auto-creation.
pub const TBW102: &str = "TBW102";
/// Used by stock's own start-up test; nobody may send to it.
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
/// For stock's benchmark programs.
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
/// Events "a pull's offset was out of range".
pub const OFFSET_MOVED_EVENT: &str = "OFFSET_MOVED_EVENT";
/// Message traces.
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
/// Half messages of transactions.
pub const TRANS_HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Operation marks of transactions.
pub const TRANS_OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Half messages that were checked too often.
pub const TRANS_CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub use super::delay::SCHEDULE_TOPIC;

/// Prefix of a consumer group's retry topic.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of a consumer group's dead letter topic.
pub const DLQ_PREFIX: &str = "%DLQ%";

/// Longest name, in characters (all ASCII).
pub const NAME_CHARS_MAX: usize = 127;

/// What stock appends to some remarks.
pub const FAQ: &str = "\nSee http://rocketmq.apache.org/docs/faq/ for further details.";

/// Topics to which no client may send (stock 4.9.8).
const SEND_FORBIDDEN: [&str; 6] = [
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT,
];

/// System topics that have the same name on every broker; its own and its cluster's name are added.
pub const SYSTEM_TOPICS: [&str; 9] = [
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRACE_TOPIC,
    TRANS_OP_HALF_TOPIC,
    BENCHMARK_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    OFFSET_MOVED_EVENT,
    TBW102,
    SELF_TEST_TOPIC,
];

/// Why a request about a topic was refused. Displayed, it is stock 4.9.8's remark; [`TopicRefused::code`]
/// is the response code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopicRefused {
    /// No name.
    #[error("The specified topic is blank.")]
    Blank,
    /// A character that no topic may have.
    #[error("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")]
    IllegalCharacters,
    /// Longer than [`NAME_CHARS_MAX`].
    #[error("The specified topic is longer than topic max length.")]
    TooLong,
    /// A topic to which only the broker writes.
    #[error("Sending message to topic[{0}] is forbidden.")]
    SendForbidden(String),
    /// An administrator's request about a topic of the broker's own.
    #[error("The topic[{0}] is conflict with system topic.")]
    System(String),
    /// Unknown, and not to be made by this request.
    #[error("topic[{0}] not exist, apply first please!{FAQ}")]
    NotExist(String),
    /// A queue count that can't be.
    #[error("topic[{0}] not changed: {1} queues, between 0 and 65536 are possible")]
    Queues(String, i32),
    /// Making one more would pass the bound.
    #[error("topic[{topic}] not created: this broker has {topics_max} topics, which is its bound")]
    TooMany {
        /// The topic.
        topic: String,
        /// The bound.
        topics_max: usize,
    },
}

impl TopicRefused {
    /// The response code that goes with the remark.
    pub fn code(&self) -> i32 {
        match self {
            Self::SendForbidden(_) => response::NO_PERMISSION,
            Self::NotExist(_) | Self::TooMany { .. } => response::TOPIC_NOT_EXIST,
            _ => response::SYSTEM_ERROR,
        }
    }
}

/// The checks of a name, in stock's order.
pub fn check_name(topic: &str) -> Result<(), TopicRefused> {
    if topic.trim().is_empty() {
        return Err(TopicRefused::Blank);
    }
    if !topic.bytes().all(is_name_byte) {
        return Err(TopicRefused::IllegalCharacters);
    }
    if topic.len() > NAME_CHARS_MAX {
        return Err(TopicRefused::TooLong);
    }
    Ok(())
}

/// Whether a name of a topic or group may have this byte.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-')
}

/// [`check_name`], and that clients may send to it at all.
pub fn check_send(topic: &str) -> Result<(), TopicRefused> {
    check_name(topic)?;
    if SEND_FORBIDDEN.contains(&topic) {
        return Err(TopicRefused::SendForbidden(topic.to_owned()));
    }
    Ok(())
}

/// The retry topic of a consumer group.
pub fn retry_topic(group: &str) -> String {
    format!("{RETRY_PREFIX}{group}")
}

/// The dead letter topic of a consumer group.
pub fn dlq_topic(group: &str) -> String {
    format!("{DLQ_PREFIX}{group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_in_stocks_order_with_stocks_remarks() {
        assert_eq!(check_name(" \t"), Err(TopicRefused::Blank));
        assert_eq!(check_name("a b"), Err(TopicRefused::IllegalCharacters));
        assert_eq!(check_name("主题"), Err(TopicRefused::IllegalCharacters));
        assert_eq!(check_name(&"x".repeat(128)), Err(TopicRefused::TooLong));
        assert_eq!(check_name(&"x".repeat(127)), Ok(()));
        assert_eq!(check_name("%RETRY%a|b_c-9"), Ok(()));
    }

    #[test]
    fn clients_cannot_send_to_the_brokers_own_queues() {
        let refused = check_send(SCHEDULE_TOPIC).unwrap_err();
        assert_eq!(refused.code(), 16);
        assert_eq!(
            refused.to_string(),
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."
        );
        assert_eq!(check_send(TBW102), Ok(()));
        assert_eq!(check_send(TRACE_TOPIC), Ok(()));
    }
}
