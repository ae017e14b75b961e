//! A queue's name, also as the key of maps.

use super::{Body, BodyError, int, text};
use crate::json::{Value, Writer};

/// One queue of one broker group. Identity is all three fields, as sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageQueue {
    /// Topic.
    pub topic: String,
    /// Name of the broker group.
    pub broker_name: String,
    /// Queue id.
    pub queue_id: i32,
}

impl MessageQueue {
    /// A queue.
    #[must_use]
    pub fn new(topic: impl Into<String>, broker: impl Into<String>, queue_id: i32) -> Self {
        MessageQueue { topic: topic.into(), broker_name: broker.into(), queue_id }
    }

    /// From the key of a map: an object, or a string that holds the object's text.
    pub(super) fn from_key(key: &Value<'_>) -> Result<Self, BodyError> {
        match key {
            Value::Object(_) => Self::read(key),
            Value::Str(inner) => Self::from_json(inner.as_bytes()),
            _ => Err(BodyError::Shape { field: "offsetTable", wanted: "keyed by message queues" }),
        }
    }

    /// As the key of a map: the raw object, which is not JSON but what stock writes.
    pub(super) fn write_key(&self, w: &mut Writer) {
        w.key_with(|w| self.write(w));
    }
}

impl Body for MessageQueue {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(MessageQueue {
            topic: text(value, "topic")?,
            broker_name: text(value, "brokerName")?,
            queue_id: int(value, "queueId", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("brokerName", &self.broker_name);
        w.field_i64("queueId", self.queue_id);
        w.field_str("topic", &self.topic);
        w.end_object();
    }
}
