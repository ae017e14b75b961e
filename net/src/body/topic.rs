//! Topic configurations and the version of such tables.

use super::{Body, BodyError, boolean, int, key_text, long, pairs, text};
use crate::json::{Limits, Value, Writer};

/// Version of a table. Two are equal or not; neither is ever "newer".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DataVersion {
    /// Milliseconds of the last change.
    pub timestamp: i64,
    /// Changes so far.
    pub counter: i64,
}

impl DataVersion {
    /// After one more change.
    #[must_use]
    pub fn next(self, now_ms: i64) -> Self {
        DataVersion { timestamp: now_ms, counter: self.counter.wrapping_add(1) }
    }

    pub(super) fn field(value: &Value<'_>) -> Result<Self, BodyError> {
        value.get("dataVersion").map_or(Ok(Self::default()), Self::read)
    }
}

impl Body for DataVersion {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(DataVersion {
            timestamp: long(value, "timestamp", 0)?,
            counter: long(value, "counter", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_i64("counter", self.counter);
        w.field_i64("timestamp", self.timestamp);
        w.end_object();
    }
}

/// How many tags a message of a topic has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TopicFilterType {
    /// One.
    #[default]
    SingleTag,
    /// Several.
    MultiTag,
}

impl TopicFilterType {
    /// The enumeration name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TopicFilterType::SingleTag => "SINGLE_TAG",
            TopicFilterType::MultiTag => "MULTI_TAG",
        }
    }

    /// From an enumeration name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "SINGLE_TAG" => Some(TopicFilterType::SingleTag),
            "MULTI_TAG" => Some(TopicFilterType::MultiTag),
            _ => None,
        }
    }
}

/// A topic on one broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicConfig {
    /// Name.
    pub topic_name: String,
    /// Queues that consumers see.
    pub read_queue_nums: i32,
    /// Queues that producers see.
    pub write_queue_nums: i32,
    /// Bits: 8 priority, 4 read, 2 write, 1 inherit.
    pub perm: i32,
    /// Tags of its messages.
    pub topic_filter_type: TopicFilterType,
    /// Bits: 1 unit topic, 2 has a unit subscription.
    pub topic_sys_flag: i32,
    /// Set from the name server's order table.
    pub order: bool,
}

impl TopicConfig {
    /// A topic with that many queues both ways, readable and writable.
    #[must_use]
    pub fn new(topic_name: impl Into<String>, queue_nums: i32) -> Self {
        TopicConfig {
            topic_name: topic_name.into(),
            read_queue_nums: queue_nums,
            write_queue_nums: queue_nums,
            perm: 6,
            topic_filter_type: TopicFilterType::SingleTag,
            topic_sys_flag: 0,
            order: false,
        }
    }
}

impl Body for TopicConfig {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let filter = value.get("topicFilterType").and_then(Value::as_str);
        Ok(TopicConfig {
            topic_name: text(value, "topicName")?,
            read_queue_nums: int(value, "readQueueNums", 16)?,
            write_queue_nums: int(value, "writeQueueNums", 16)?,
            perm: int(value, "perm", 6)?,
            topic_filter_type: filter.and_then(TopicFilterType::from_name).unwrap_or_default(),
            topic_sys_flag: int(value, "topicSysFlag", 0)?,
            order: boolean(value, "order", false)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_bool("order", self.order);
        w.field_i64("perm", self.perm);
        w.field_i64("readQueueNums", self.read_queue_nums);
        w.field_str("topicFilterType", self.topic_filter_type.name());
        w.field_str("topicName", &self.topic_name);
        w.field_i64("topicSysFlag", self.topic_sys_flag);
        w.field_i64("writeQueueNums", self.write_queue_nums);
        w.end_object();
    }
}

/// All topics of a broker: the answer to GET_ALL_TOPIC_CONFIG (21), part of a registration, and
/// `topics.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicConfigTable {
    /// The table's version.
    pub data_version: DataVersion,
    /// The topics.
    pub topics: Vec<TopicConfig>,
}

impl Body for TopicConfigTable {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut topics = Vec::new();
        for (key, config) in pairs(value, "topicConfigTable")? {
            let mut config = TopicConfig::read(config)?;
            if config.topic_name.is_empty() {
                config.topic_name = key_text(key, "topicConfigTable")?;
            }
            topics.push(config);
        }
        Ok(TopicConfigTable { data_version: DataVersion::field(value)?, topics })
    }

    fn write(&self, w: &mut Writer) {
        write_topic_table(w, self.data_version, &self.topics);
    }
}

/// Writes a [`TopicConfigTable`] out of the caller's own.
pub fn write_topic_table<'t>(
    w: &mut Writer,
    version: DataVersion,
    topics: impl IntoIterator<Item = &'t TopicConfig>,
) {
    w.begin_object();
    w.key("dataVersion");
    version.write(w);
    w.key("topicConfigTable");
    w.begin_object();
    for topic in topics {
        w.key(&topic.topic_name);
        topic.write(w);
    }
    w.end_object();
    w.end_object();
}
