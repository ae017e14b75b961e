//! Messages: one to send, and one that was received.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use ringmq_net::body::MessageQueue;
use ringmq_net::record::{self, OffsetMessageId, Properties, RecordError, RecordView};

use crate::compress::decompress;
use crate::error::{Error, Result};

/// Names of properties that clients read or write. An application's own must not be among [`names::RESERVED`].
pub mod names {
    #![allow(missing_docs)]
    pub use ringmq_net::record::name::*;

    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    pub const TTL: &str = "TTL";
    pub const TRANSACTION_ID: &str = "__transactionId__";
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    pub const ARRIVE_TIME: &str = "ARRIVE_TIME";

    /// Names that stock clients refuse as an application's own, since clients and brokers act on them.
    pub const RESERVED: &[&str] = &[
        KEYS,
        TAGS,
        WAIT,
        DELAY,
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QID,
        TRAN_MSG,
        PGROUP,
        MIN_OFFSET,
        MAX_OFFSET,
        "BUYER_ID",
        ORIGIN_MESSAGE_ID,
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        RECONSUME_TIME,
        "MSG_REGION",
        "TRACE_ON",
        UNIQ_KEY,
        MAX_RECONSUME_TIMES,
        "CONSUME_START_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "INSTANCE_ID",
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        ARRIVE_TIME,
        "PUSH_REPLY_TIME",
        CLUSTER,
        MSG_TYPE,
        INNER_MULTI_DISPATCH,
        INNER_MULTI_QUEUE_OFFSET,
        TRANSACTION_ID,
    ];
}

/// A message to send. It is given away with the send, so nothing of the caller's is ever changed.
///
/// ```
/// # use ringmq_client::Message;
/// let message = Message::new("orders", "an order").tag("new").key("order-17").property("origin", "shop");
/// assert_eq!(message.topic(), "orders");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub(crate) topic: String,
    pub(crate) body: Bytes,
    pub(crate) flag: i32,
    pub(crate) properties: BTreeMap<String, String>,
    /// The first property that was refused; the send tells.
    defect: Option<String>,
}

impl Message {
    /// A message with that body.
    pub fn new(topic: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Message {
            topic: topic.into(),
            body: body.into(),
            flag: 0,
            properties: BTreeMap::new(),
            defect: None,
        }
    }

    /// With a tag, by which consumers can select.
    #[must_use]
    pub fn tag(self, tag: impl Into<String>) -> Self {
        self.system(names::TAGS, tag)
    }

    /// With one more key, by which the message can be found. Keys have no blanks.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        let key = key.as_ref();
        if key.contains(' ') {
            self.fault(format!("key \"{key}\" has a blank, which separates keys: replace it"));
            return self;
        }
        let keys = match self.properties.get(names::KEYS) {
            Some(keys) => format!("{keys} {key}"),
            None => key.to_owned(),
        };
        self.system(names::KEYS, keys)
    }

    /// With more keys.
    #[must_use]
    pub fn keys<K: AsRef<str>>(self, keys: impl IntoIterator<Item = K>) -> Self {
        keys.into_iter().fold(self, Message::key)
    }

    /// With an application's property. A name that clients or brokers act on ([`names::RESERVED`]), an empty name or value, and the
    /// separators 0x01 and 0x02 make the send fail with [`Error::Invalid`].
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        if names::RESERVED.contains(&name.as_str()) {
            self.fault(format!("property {name} is used by RocketMQ itself: choose another name"));
            return self;
        }
        self.put(name, value)
    }

    /// Delivered later, by a level of the broker's table: level 1 is 1 s, 3 is 10 s, 18 is 2 h unless the broker is configured
    /// otherwise. 0 is at once.
    #[must_use]
    pub fn delay_level(mut self, level: u32) -> Self {
        if level == 0 {
            self.properties.remove(names::DELAY);
            return self;
        }
        self.system(names::DELAY, level.to_string())
    }

    /// Whether the broker answers only after it flushed and replicated as it is configured to; true unless said.
    #[must_use]
    pub fn wait_stored(self, wait: bool) -> Self {
        self.system(names::WAIT, wait.to_string())
    }

    /// With a number that RocketMQ stores and does not look at.
    #[must_use]
    pub fn flag(mut self, flag: i32) -> Self {
        self.flag = flag;
        self
    }

    /// The reply to a request, to be sent like any message.
    ///
    /// # Errors
    /// [`Error::CannotReply`] when `request` is none, or did not come from a broker.
    pub fn reply_to(request: &ReceivedMessage, body: impl Into<Bytes>) -> Result<Self> {
        let need = |property| request.property(property).ok_or(Error::CannotReply { property });
        let cluster = need(names::CLUSTER)?;
        let mut reply = Message::new(format!("{cluster}_REPLY_TOPIC"), body)
            .system(names::MSG_TYPE, "reply")
            .system(names::CORRELATION_ID, need(names::CORRELATION_ID)?)
            .system(names::REPLY_TO_CLIENT, need(names::REPLY_TO_CLIENT)?);
        if let Some(ttl) = request.property(names::TTL) {
            reply = reply.system(names::TTL, ttl);
        }
        Ok(reply)
    }

    /// Topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// A property, RocketMQ's own included.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// What was refused while the message was made.
    pub(crate) fn defect(&self) -> Option<&str> {
        self.defect.as_deref()
    }

    /// With a property of RocketMQ's own.
    pub(crate) fn system(self, name: &str, value: impl Into<String>) -> Self {
        self.put(name.to_owned(), value.into())
    }

    fn put(mut self, name: String, value: String) -> Self {
        let control = |text: &str| text.contains(['\u{0}', '\u{1}', '\u{2}']);
        if name.is_empty() || value.is_empty() {
            self.fault(format!("property \"{name}\" has an empty name or value: leave it out"));
        } else if control(&name) || control(&value) {
            self.fault(format!(
                "property {name:?} holds the character 0x00, 0x01 or 0x02: remove it"
            ));
        } else {
            self.properties.insert(name, value);
        }
        self
    }

    fn fault(&mut self, what: String) {
        self.defect.get_or_insert(what);
    }
}

/// The properties as they travel, the separator between them alone.
pub(crate) fn properties_text<'a>(
    properties: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> String {
    let mut text = String::new();
    for (name, value) in properties {
        if !text.is_empty() {
            text.push(record::PROPERTY_SEPARATOR as char);
        }
        text.push_str(name);
        text.push(record::NAME_SEPARATOR as char);
        text.push_str(value);
    }
    text
}

/// A message as a broker stored it, its body decompressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The queue it came from. A retried message has its original topic here.
    pub queue: MessageQueue,
    /// Its place in the queue.
    pub queue_offset: i64,
    /// Its place in the broker's log.
    pub physical_offset: i64,
    /// The sender's number.
    pub flag: i32,
    /// Bits, see [`ringmq_net::record::sys_flag`].
    pub sys_flag: i32,
    /// The sender's clock, milliseconds since 1970.
    pub born_timestamp: i64,
    /// The sender's address.
    pub born_host: SocketAddr,
    /// The broker's clock, milliseconds since 1970.
    pub store_timestamp: i64,
    /// The broker's address.
    pub store_host: SocketAddr,
    /// How often it was consumed before.
    pub reconsume_times: i32,
    /// Place of the half message of a committed transaction.
    pub prepared_transaction_offset: i64,
    /// The body.
    pub body: Bytes,
    /// All properties.
    pub properties: BTreeMap<String, String>,
}

impl ReceivedMessage {
    /// Reads all records of a pull's or query's body. `broker` is the name of the group they came from.
    ///
    /// # Errors
    /// What is wrong with which record, for a sentence.
    pub(crate) fn decode_all(bytes: &Bytes, broker: &str) -> Result<Vec<Self>, String> {
        let mut messages = Vec::new();
        let mut rest = bytes.clone();
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let fail = |e: RecordError| format!("record at byte {at}: {e}");
            let view = record::decode(&rest).map_err(fail)?;
            let size = view.total_size();
            messages.push(Self::from_record(&rest, &view, broker));
            let _ = rest.split_to(size);
        }
        Ok(messages)
    }

    fn from_record(bytes: &Bytes, view: &RecordView<'_>, broker: &str) -> Self {
        let flags = view.sys_flag();
        let properties = parse_properties(&view.properties_text());
        let topic = properties.get(names::RETRY_TOPIC).cloned();
        ReceivedMessage {
            queue: MessageQueue::new(
                topic.unwrap_or_else(|| view.topic().to_owned()),
                broker,
                view.queue_id(),
            ),
            queue_offset: view.queue_offset(),
            physical_offset: view.physical_offset(),
            flag: view.flag(),
            sys_flag: flags,
            born_timestamp: view.born_timestamp(),
            born_host: view.born_host(),
            store_timestamp: view.store_timestamp(),
            store_host: view.store_host(),
            reconsume_times: view.reconsume_times(),
            prepared_transaction_offset: view.prepared_transaction_offset(),
            body: open_body(flags, bytes.slice_ref(view.body())),
            properties,
        }
    }

    /// Topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.queue.topic
    }

    /// The sender's unique id, or the broker's if the sender gave none.
    #[must_use]
    pub fn message_id(&self) -> String {
        match self.property(names::UNIQ_KEY) {
            Some(id) => id.to_owned(),
            None => self.offset_message_id(),
        }
    }

    /// The broker's id: where the message is.
    #[must_use]
    pub fn offset_message_id(&self) -> String {
        let physical_offset = u64::try_from(self.physical_offset).unwrap_or(0);
        OffsetMessageId { store_host: self.store_host, physical_offset }.to_string()
    }

    /// A property, RocketMQ's own included.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.property(names::TAGS)
    }

    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.property(names::KEYS).unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }

    /// Is an answer expected? Then [`Message::reply_to`] makes it.
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.property(names::REPLY_TO_CLIENT).is_some()
            && self.property(names::MSG_TYPE) != Some("reply")
    }
}

/// The properties of a text; of a repeated name the last counts.
pub(crate) fn parse_properties(text: &str) -> BTreeMap<String, String> {
    Properties::new(text).iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Decompressed if the flag says so. One broken body must not stop a queue: it is handed over as it came, with its
/// flag still set, and a warning.
pub(crate) fn open_body(flags: i32, body: Bytes) -> Bytes {
    match decompress(flags, &body) {
        Ok(None) => body,
        Ok(Some(opened)) => opened.into(),
        Err(why) => {
            tracing::warn!(%why, "a body cannot be decompressed and is given as it is");
            body
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::Compression;
    use crate::fake::record as stored;

    #[test]
    fn received_messages_are_opened_and_keep_their_flag() {
        let body = vec![b'x'; 5000];
        let small = Compression::Zlib.compress(5, &body).unwrap();
        let mut bytes = stored("T", 0x301, &small, "UNIQ_KEY\u{1}ID\u{2}TAGS\u{1}a\u{2}").to_vec();
        bytes.extend_from_slice(&stored("%RETRY%g", 0, b"plain", "RETRY_TOPIC\u{1}T"));
        let got = ReceivedMessage::decode_all(&bytes.into(), "broker-a").unwrap();
        assert_eq!(got.len(), 2);
        assert!(got[0].body == body);
        assert_eq!(got[0].sys_flag & 1, 1);
        assert_eq!((got[0].message_id().as_str(), got[0].tag()), ("ID", Some("a")));
        assert_eq!(got[1].message_id(), "7F00000100002A9F0000000000001234");
        assert_eq!((got[1].topic(), &got[1].body[..]), ("T", &b"plain"[..]));
        let cut = ReceivedMessage::decode_all(&stored("T", 0, b"b", "").slice(..40), "b");
        assert!(cut.unwrap_err().contains("byte 0"));
    }

    #[test]
    fn a_body_that_cannot_be_opened_stops_nobody() {
        let bytes = stored("T", 0x301, b"not zlib", "");
        let got = ReceivedMessage::decode_all(&bytes, "b").unwrap();
        assert_eq!(&got[0].body[..], b"not zlib");
    }

    #[test]
    fn properties_that_would_be_misread_are_refused() {
        let defect = |m: Message| m.defect().map(str::to_owned);
        let m = || Message::new("t", "b");
        assert_eq!(defect(m().property("a", "1").tag("t").keys(["k1", "k2"])), None);
        assert!(defect(m().property("TAGS", "x")).unwrap().contains("TAGS"));
        assert!(defect(m().property("", "x")).is_some());
        assert!(defect(m().property("a", "")).is_some());
        assert!(defect(m().property("a", "x\u{2}DELAY\u{1}3")).is_some());
        assert!(defect(m().key("two words")).is_some());
        assert_eq!(m().keys(["k1", "k2"]).get("KEYS"), Some("k1 k2"));
        assert_eq!(m().delay_level(3).delay_level(0).get("DELAY"), None);
    }

    #[test]
    fn a_reply_carries_what_brings_it_back() {
        let text =
            "CLUSTER\u{1}C\u{2}CORRELATION_ID\u{1}id\u{2}REPLY_TO_CLIENT\u{1}me\u{2}TTL\u{1}3000";
        let request = ReceivedMessage::decode_all(&stored("T", 0, b"?", text), "b").unwrap();
        assert!(request[0].is_request());
        let reply = Message::reply_to(&request[0], "!").unwrap();
        assert_eq!(reply.topic(), "C_REPLY_TOPIC");
        for (name, value) in [
            ("MSG_TYPE", "reply"),
            ("CORRELATION_ID", "id"),
            ("REPLY_TO_CLIENT", "me"),
            ("TTL", "3000"),
        ] {
            assert_eq!(reply.get(name), Some(value));
        }
        let plain = ReceivedMessage::decode_all(&stored("T", 0, b"?", ""), "b").unwrap();
        let refused = Message::reply_to(&plain[0], "!").unwrap_err();
        assert_eq!(refused.code(), Some(10007));
        assert!(refused.to_string().contains("CLUSTER"));
    }
}
