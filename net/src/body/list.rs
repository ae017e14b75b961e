//! Lists of names, and tables of text.

use std::collections::BTreeMap;

use super::{Body, BodyError, key_text, opt_text, pairs, texts};
use crate::json::{Limits, Value, Writer};

/// Topics: answers to 206, 224, 304, 305, 311 to 313.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicList {
    /// Only in the answer to 304: a broker to ask for its own system topics.
    pub broker_addr: Option<String>,
    /// The topics.
    pub topics: Vec<String>,
}

impl Body for TopicList {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(TopicList {
            broker_addr: opt_text(value, "brokerAddr")?,
            topics: texts(value, "topicList")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_opt_str("brokerAddr", self.broker_addr.as_deref());
        w.field_strs("topicList", &self.topics);
        w.end_object();
    }
}

/// Groups: the answer to QUERY_TOPIC_CONSUME_BY_WHO (300).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupList {
    /// The groups.
    pub groups: Vec<String>,
}

impl Body for GroupList {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(GroupList { groups: texts(value, "groupList")? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_strs("groupList", &self.groups);
        w.end_object();
    }
}

/// Text by key: answers to 28, 103 and 219.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvTable {
    /// The table.
    pub table: BTreeMap<String, String>,
}

impl Body for KvTable {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut table = BTreeMap::new();
        for (key, value) in pairs(value, "table")? {
            // A null value is one that is not there.
            if let Some(value) = value.to_text() {
                table.insert(key_text(key, "table")?, value);
            }
        }
        Ok(KvTable { table })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("table");
        w.begin_object();
        for (key, value) in &self.table {
            w.field_str(key, value);
        }
        w.end_object();
        w.end_object();
    }
}
