//! Ext fields of the requests that the tests send.

/// Names and values, as text: what goes on the wire.
#[derive(Debug, Clone, Default)]
pub struct Ext(Vec<(String, String)>);

/// What 310 and 320 call what 10 spells out.
const SEND_NAMES: [(&str, &str); 14] = [
    ("a", "producerGroup"),
    ("b", "topic"),
    ("c", "defaultTopic"),
    ("d", "defaultTopicQueueNums"),
    ("e", "queueId"),
    ("f", "sysFlag"),
    ("g", "bornTimestamp"),
    ("h", "flag"),
    ("i", "properties"),
    ("j", "reconsumeTimes"),
    ("k", "unitMode"),
    ("l", "maxReconsumeTimes"),
    ("m", "batch"),
    ("n", "bname"),
];

/// When messages of these tests are born.
pub const BORN: i64 = 1_700_000_000_123;

impl Ext {
    pub fn new<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Ext {
        Ext(fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub fn none() -> Ext {
        Ext::default()
    }

    /// With a field added or replaced.
    pub fn with(mut self, name: &str, value: impl ToString) -> Ext {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn without(mut self, name: &str) -> Ext {
        self.0.retain(|(known, _)| known != name);
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Of a send to queue 0, in the short names of 310 and 320.
    pub fn send(topic: &str) -> Ext {
        Ext::new([
            ("a", "PG"),
            ("b", topic),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", "0"),
            ("f", "0"),
            ("h", "7"),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
            ("n", "broker-a"),
        ])
        .with("g", BORN)
    }

    /// Properties of a send.
    pub fn properties(self, pairs: &[(&str, &str)]) -> Ext {
        self.with("i", properties(pairs))
    }

    /// A send's fields as `code` names them.
    pub fn named_for(self, code: i32) -> Ext {
        if code != 10 {
            return self;
        }
        let long = |name: String| {
            let found = SEND_NAMES.iter().find(|(short, _)| *short == name);
            found.map_or(name, |(_, long)| (*long).to_owned())
        };
        Ext(self.0.into_iter().map(|(name, value)| (long(name), value)).collect())
    }

    /// Of a pull of everything that may not wait.
    pub fn pull(group: &str, topic: &str, queue: i32, offset: i64) -> Ext {
        Ext::new([("consumerGroup", group), ("topic", topic), ("maxMsgNums", "32")])
            .with("queueId", queue)
            .with("queueOffset", offset)
            .with("sysFlag", 4)
            .with("commitOffset", 0)
            .with("suspendTimeoutMillis", 0)
            .with("subscription", "*")
            .with("subVersion", 0)
            .with("bname", "broker-a")
    }

    /// A pull that may wait so long.
    pub fn waiting(self, timeout_ms: u64) -> Ext {
        self.with("sysFlag", 6).with("suspendTimeoutMillis", timeout_ms)
    }

    /// Of a request about one queue.
    pub fn queue(topic: &str, queue: i32) -> Ext {
        Ext::new([("topic", topic)]).with("queueId", queue)
    }

    /// Of a topic's creation.
    pub fn create_topic(topic: &str, queues: i32) -> Ext {
        Ext::new([
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ])
        .with("readQueueNums", queues)
        .with("writeQueueNums", queues)
    }
}

/// The text of these properties, as 4.9.8's Java client writes it.
pub fn properties(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}")).collect();
    pairs.join("\u{2}")
}
