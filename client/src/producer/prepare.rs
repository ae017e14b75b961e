//! From a message to the request that carries it, the same for every try.

use bytes::{BufMut, Bytes, BytesMut};
use ringmq_net::body::MessageQueue;
use ringmq_net::code::request;
use ringmq_net::command::Command;
use ringmq_net::headers::SendHeader;
use ringmq_net::record::sys_flag;

use super::Settings;
use crate::error::{Error, Result};
use crate::id::{UniqueIds, now_ms};
use crate::message::{Message, names, properties_text};
use crate::route::TEMPLATE_TOPIC;
use crate::validate;

/// Topics of messages that are consumed again.
const RETRY_PREFIX: &str = "%RETRY%";
/// Bytes of a batch's member around its body and properties.
const MEMBER_FIXED_BYTES: usize = 22;
/// What of the body limit a batch leaves free.
const BATCH_RESERVE_BYTES: usize = 1024;

/// What a message is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    /// The first half of a transaction.
    Half,
}

/// A message, or a batch of them, ready to be sent and sent again.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) topic: String,
    /// Of a batch, that of its first message.
    pub(super) message_id: String,
    /// Those of a batch's messages.
    pub(super) member_ids: Vec<String>,
    pub(super) body: Bytes,
    code: i32,
    sys_flag: i32,
    flag: i32,
    properties: String,
    born_ms: i64,
    reconsume_times: i32,
    max_reconsume_times: Option<i32>,
}

impl Prepared {
    pub(super) fn message(
        settings: &Settings,
        ids: &UniqueIds,
        message: Message,
        form: Form,
    ) -> Result<Prepared> {
        validate::message(&message, settings.body_bytes_max)?;
        let mut message = with_id(ids, message);
        let mut flags = 0;
        if form == Form::Half {
            // A half message has no delay: the two exclude each other, as in stock.
            message = message.delay_level(0).system(names::TRAN_MSG, "true");
            message = message.system(names::PGROUP, settings.group.as_str());
            flags |= sys_flag::TRANSACTION_PREPARED;
        }
        let properties = properties_text(&message.properties);
        validate::properties(&properties)?;
        let reply = message.get(names::MSG_TYPE) == Some("reply");
        let retry = message.topic.starts_with(RETRY_PREFIX);
        let count = |name| message.get(name).filter(|_| retry).and_then(|text| text.parse().ok());
        let small = (message.body.len() >= settings.compress_from)
            .then(|| settings.compression.compress(settings.compression_level, &message.body))
            .flatten();
        if small.is_some() {
            flags |= settings.compression.flag();
        }
        Ok(Prepared {
            code: if reply { request::SEND_REPLY_MESSAGE_V2 } else { request::SEND_MESSAGE_V2 },
            message_id: message.get(names::UNIQ_KEY).unwrap_or_default().to_owned(),
            member_ids: Vec::new(),
            sys_flag: flags,
            flag: message.flag,
            properties,
            born_ms: now_ms(),
            reconsume_times: count(names::RECONSUME_TIME).unwrap_or(0),
            max_reconsume_times: count(names::MAX_RECONSUME_TIMES),
            body: small.map_or(message.body, Bytes::from),
            topic: message.topic,
        })
    }

    /// Batches with all of `messages` in order, each within the body limit.
    pub(super) fn batches(
        settings: &Settings,
        ids: &UniqueIds,
        messages: Vec<Message>,
    ) -> Result<Vec<Prepared>> {
        check_batch(settings, &messages)?;
        let max = settings.body_bytes_max.saturating_sub(BATCH_RESERVE_BYTES);
        let mut batches: Vec<Prepared> = Vec::new();
        let mut body = BytesMut::new();
        for message in messages {
            let message = with_id(ids, message);
            let properties = properties_text(&message.properties);
            validate::properties(&properties)?;
            let len = MEMBER_FIXED_BYTES + message.body.len() + properties.len();
            if len > max {
                return Err(Error::invalid(format!(
                    "a message of {len} bytes does not fit into a batch of {max}: send it alone"
                )));
            }
            let id = message.get(names::UNIQ_KEY).unwrap_or_default().to_owned();
            match batches.last_mut() {
                Some(batch) if body.len() + len <= max => batch.member_ids.push(id),
                last => {
                    if let Some(batch) = last {
                        batch.body = body.split().freeze();
                    }
                    batches.push(Prepared::empty_batch(&message, id));
                }
            }
            put_member(&mut body, &message, &properties, len);
        }
        if let Some(batch) = batches.last_mut() {
            batch.body = body.freeze();
        }
        Ok(batches)
    }

    fn empty_batch(first: &Message, id: String) -> Prepared {
        let wait = first.properties.get_key_value(names::WAIT);
        Prepared {
            code: request::SEND_BATCH_MESSAGE,
            topic: first.topic.clone(),
            message_id: id.clone(),
            member_ids: vec![id],
            body: Bytes::new(),
            sys_flag: 0,
            flag: 0,
            // Not the members' ids: a broker would give the first one's to all.
            properties: properties_text(wait),
            born_ms: now_ms(),
            reconsume_times: 0,
            max_reconsume_times: None,
        }
    }

    pub(super) fn is_batch(&self) -> bool {
        self.code == request::SEND_BATCH_MESSAGE
    }

    /// The request for a queue. Nothing of an earlier try is in it.
    pub(super) fn command(
        &self,
        settings: &Settings,
        queue: &MessageQueue,
        queues: i32,
    ) -> Command {
        let header = SendHeader {
            producer_group: &settings.group,
            topic: &self.topic,
            default_topic: TEMPLATE_TOPIC,
            default_topic_queue_nums: queues,
            queue_id: queue.queue_id,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_ms,
            flag: self.flag,
            properties: &self.properties,
            reconsume_times: self.reconsume_times,
            unit_mode: false,
            max_reconsume_times: self.max_reconsume_times,
            batch: self.is_batch(),
        };
        Command::request(self.code).with_header(&header.ext_v2()).with_body(self.body.clone())
    }
}

/// The id is made once, so that consumers can tell a message that was stored twice.
fn with_id(ids: &UniqueIds, message: Message) -> Message {
    match message.get(names::UNIQ_KEY) {
        Some(_) => message,
        None => message.system(names::UNIQ_KEY, ids.next(now_ms())),
    }
}

fn check_batch(settings: &Settings, messages: &[Message]) -> Result<()> {
    let Some(first) = messages.first() else {
        return Err(Error::invalid("the batch is empty: send at least one message"));
    };
    let refuse = |what: &str| Err(Error::invalid(format!("{what}: send it without a batch")));
    for message in messages {
        validate::message(message, settings.body_bytes_max)?;
        if message.get(names::DELAY).is_some() {
            return refuse("a message with a delay level cannot be in a batch");
        }
        if message.topic.starts_with(RETRY_PREFIX) {
            return refuse("a message of a retry topic cannot be in a batch");
        }
        if message.get(names::MSG_TYPE).is_some() {
            return refuse("a reply cannot be in a batch");
        }
        if message.topic != first.topic {
            return Err(Error::invalid(format!(
                "a batch has one topic, this one has {} and {}: make two of it",
                first.topic, message.topic
            )));
        }
        if message.get(names::WAIT) != first.get(names::WAIT) {
            return Err(Error::invalid(
                "the messages of a batch differ in wait_stored: make two of it",
            ));
        }
    }
    Ok(())
}

fn put_member(out: &mut BytesMut, message: &Message, properties: &str, len: usize) {
    // The lengths fit: body and properties are within their limits.
    out.reserve(len);
    out.put_i32(len as i32);
    out.put_i32(0);
    out.put_i32(0);
    out.put_i32(message.flag);
    out.put_i32(message.body.len() as i32);
    out.put_slice(&message.body);
    out.put_i16(properties.len() as i16);
    out.put_slice(properties.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::decompress;
    use ringmq_net::record::{BatchBody, Properties};

    fn ids() -> UniqueIds {
        UniqueIds::new([127, 0, 0, 1].into(), 1, 1)
    }

    fn prepare(message: Message) -> Result<Prepared> {
        Prepared::message(&Settings::new("g"), &ids(), message, Form::Plain)
    }

    fn header(prepared: &Prepared) -> Command {
        prepared.command(&Settings::new("g"), &MessageQueue::new("t", "b", 3), 4)
    }

    #[test]
    fn bodies_from_4096_bytes_on_are_compressed_and_the_callers_is_not_touched() {
        let body = Bytes::from(vec![b'x'; 4096]);
        let prepared = prepare(Message::new("t", body.clone())).unwrap();
        assert!(prepared.body.len() < 4096 && body.len() == 4096);
        assert_eq!(header(&prepared).ext("f"), Some("769"));
        assert_eq!(decompress(769, &prepared.body).unwrap().unwrap(), body);
        let prepared = prepare(Message::new("t", body.slice(1..))).unwrap();
        assert_eq!((prepared.body.len(), header(&prepared).ext("f")), (4095, Some("0")));
    }

    #[test]
    fn every_try_is_the_same_message_with_a_header_of_its_own() {
        let message = Message::new("%RETRY%g", "b")
            .system(names::RECONSUME_TIME, "3")
            .system(names::MAX_RECONSUME_TIMES, "16");
        let prepared = prepare(message).unwrap();
        let settings = Settings::new("g");
        for id in [1, 2] {
            let command = prepared.command(&settings, &MessageQueue::new("%RETRY%g", "b", id), 4);
            assert_eq!(command.ext("e"), Some(id.to_string().as_str()));
            assert_eq!((command.ext("j"), command.ext("l")), (Some("3"), Some("16")));
            let text = command.ext("i").unwrap();
            assert_eq!(Properties::new(text).get("UNIQ_KEY"), Some(prepared.message_id.as_str()));
        }
    }

    #[test]
    fn a_half_message_has_no_delay_and_names_its_group() {
        let message = Message::new("t", "b").delay_level(3);
        let prepared = Prepared::message(&Settings::new("g"), &ids(), message, Form::Half).unwrap();
        let command = header(&prepared);
        let properties = Properties::new(command.ext("i").unwrap());
        assert_eq!(command.ext("f"), Some("4"));
        assert_eq!(properties.get("TRAN_MSG"), Some("true"));
        assert_eq!((properties.get("PGROUP"), properties.get("DELAY")), (Some("g"), None));
    }

    #[test]
    fn a_batch_is_split_by_encoded_size_and_keeps_order_ids_and_tags() {
        let mut settings = Settings::new("g");
        settings.body_bytes_max = 4096;
        let messages: Vec<Message> =
            (0..50).map(|i| Message::new("t", format!("{i:0>300}")).tag(format!("t{i}"))).collect();
        let batches = Prepared::batches(&settings, &ids(), messages).unwrap();
        assert!(batches.len() > 4);
        let mut seen = 0;
        for batch in &batches {
            assert!(batch.body.len() <= 4096 - BATCH_RESERVE_BYTES);
            let body = BatchBody::parse(&batch.body).unwrap();
            assert_eq!(body.count(), batch.member_ids.len());
            for (member, id) in body.messages().zip(&batch.member_ids) {
                assert_eq!(member.body, format!("{seen:0>300}").as_bytes());
                let text = std::str::from_utf8(member.properties).unwrap();
                let properties = Properties::new(text);
                assert_eq!(properties.get("UNIQ_KEY"), Some(id.as_str()));
                assert_eq!(properties.get("TAGS"), Some(format!("t{seen}").as_str()));
                seen += 1;
            }
            assert_eq!(
                Properties::new(header(batch).ext("i").unwrap_or_default()).get("UNIQ_KEY"),
                None
            );
        }
        assert_eq!(seen, 50);
    }

    #[test]
    fn what_cannot_be_in_a_batch_is_refused_before_anything_is_sent() {
        let refused = |messages: Vec<Message>| {
            let mut settings = Settings::new("g");
            settings.body_bytes_max = 4096;
            matches!(Prepared::batches(&settings, &ids(), messages), Err(Error::Invalid(_)))
        };
        let m = |topic: &str| Message::new(topic, "b");
        assert!(refused(vec![]));
        assert!(refused(vec![m("t"), m("u")]));
        assert!(refused(vec![m("t"), m("t").delay_level(1)]));
        assert!(refused(vec![m("%RETRY%g")]));
        assert!(refused(vec![m("t").wait_stored(false), m("t")]));
        assert!(refused(vec![Message::new("t", vec![0; 4000])]));
        assert!(!refused(vec![m("t"), m("t")]));
    }
}
