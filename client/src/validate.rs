//! What a client refuses before anything is sent, with the bounds of stock 4.9.8.

use crate::error::{Error, Result};
use crate::message::Message;

/// Longest topic in characters.
pub const TOPIC_CHARS_MAX: usize = 127;
/// Longest group in characters.
pub const GROUP_CHARS_MAX: usize = 255;
/// Longest properties in bytes, as a record takes them.
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
/// What a broker may add to the properties: CLUSTER, and the like.
const PROPERTIES_RESERVE: usize = 512;

/// Topics of the broker itself, which take no messages from clients.
const FORBIDDEN_TOPICS: &[&str] = &[
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];

/// Topics that an administrator must not create.
const SYSTEM_TOPICS: &[&str] = &["TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"];

fn legal(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'_' | b'-'))
}

/// A name of a producer or consumer group.
pub(crate) fn group(name: &str) -> Result<()> {
    if name.trim().is_empty() {
        return Err(Error::invalid("the group is blank: name it"));
    }
    if name.chars().count() > GROUP_CHARS_MAX {
        return Err(Error::invalid(format!(
            "a group of more than {GROUP_CHARS_MAX} characters: shorten it"
        )));
    }
    if !legal(name) {
        return Err(Error::invalid(format!(
            "group \"{name}\" has other characters than letters, digits, %, |, _ and -"
        )));
    }
    if matches!(name, "DEFAULT_PRODUCER" | "DEFAULT_CONSUMER") {
        return Err(Error::invalid(format!("group {name} is reserved: name your own")));
    }
    Ok(())
}

/// A topic's name.
pub(crate) fn topic(name: &str) -> Result<()> {
    if name.trim().is_empty() {
        return Err(Error::invalid("the topic is blank: name it"));
    }
    if name.chars().count() > TOPIC_CHARS_MAX {
        return Err(Error::invalid(format!(
            "a topic of more than {TOPIC_CHARS_MAX} characters: shorten it"
        )));
    }
    if !legal(name) {
        return Err(Error::invalid(format!(
            "topic \"{name}\" has other characters than letters, digits, %, |, _ and -"
        )));
    }
    Ok(())
}

/// A topic that is to be created.
pub(crate) fn new_topic(name: &str) -> Result<()> {
    topic(name)?;
    if FORBIDDEN_TOPICS.contains(&name)
        || SYSTEM_TOPICS.contains(&name)
        || name.starts_with("rmq_sys_")
    {
        return Err(Error::invalid(format!(
            "topic {name} belongs to the broker: choose another name"
        )));
    }
    Ok(())
}

/// A message, before it gets its id.
pub(crate) fn message(message: &Message, body_bytes_max: usize) -> Result<()> {
    topic(&message.topic)?;
    if FORBIDDEN_TOPICS.contains(&message.topic.as_str()) {
        return Err(Error::invalid(format!(
            "topic {} belongs to the broker and takes no messages",
            message.topic
        )));
    }
    if let Some(defect) = message.defect() {
        return Err(Error::invalid(defect));
    }
    if message.body.is_empty() {
        return Err(Error::invalid("the body is empty: RocketMQ takes at least one byte"));
    }
    let len = message.body.len();
    if len > body_bytes_max {
        return Err(Error::invalid(format!(
            "a body of {len} bytes: at most {body_bytes_max} are allowed, split it"
        )));
    }
    Ok(())
}

/// Properties as they will travel.
pub(crate) fn properties(text: &str) -> Result<()> {
    let max = PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE;
    let len = text.len();
    if len > max {
        return Err(Error::invalid(format!(
            "properties of {len} bytes: at most {max} are allowed, move some into the body"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_bounds_of_stock() {
        for ok in ["g", "%a|b_c-9", &"g".repeat(255)] {
            assert!(group(ok).is_ok(), "{ok}");
        }
        for bad in ["", " \t", &"g".repeat(256), "a b", "ä", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER"]
        {
            assert!(matches!(group(bad), Err(Error::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn topics_have_the_bounds_of_stock() {
        for ok in ["t", "%RETRY%g", &"t".repeat(127)] {
            assert!(topic(ok).is_ok(), "{ok}");
        }
        for bad in ["", " ", &"t".repeat(128), "a.b", "标"] {
            assert!(matches!(topic(bad), Err(Error::Invalid(_))), "{bad}");
        }
        for bad in ["TBW102", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"] {
            assert!(matches!(new_topic(bad), Err(Error::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn messages_have_the_bounds_of_stock() {
        let check = |topic: &str, body: Vec<u8>| message(&Message::new(topic, body), 4096);
        assert!(check("t", vec![0; 4096]).is_ok());
        assert!(check("TBW102", vec![0]).is_ok());
        for (topic, len) in [("t", 0), ("t", 4097), ("SCHEDULE_TOPIC_XXXX", 1), ("a b", 1)] {
            assert!(matches!(check(topic, vec![0; len]), Err(Error::Invalid(_))), "{topic} {len}");
        }
        assert!(message(&Message::new("t", "b").property("TAGS", "x"), 9).is_err());
        assert!(properties(&"x".repeat(32_000)).is_ok());
        assert!(properties(&"x".repeat(32_767)).is_err());
    }
}
