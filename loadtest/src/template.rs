//! Requests that are encoded once and patched in place for every send.
//!
//! A placeholder stands wherever requests differ: correlation id, queue, born time, unique keys, queue offset. All of them
//! have a fixed width, so a frame never changes its length and its lengths never need to be touched. Numbers in ext fields
//! get leading zeros; stock and RingMQ read them as decimal all the same.

use bytes::BytesMut;
use ringmq_net::code::request;
use ringmq_net::command::{RequestHead, encode_request};
use ringmq_net::frame::{FRAME_BYTES_MAX, SerializeType};
use ringmq_net::header::ExtValue;
use ringmq_net::headers::pull_flag;

use crate::digits::{put_decimal, put_hex};
use crate::error::LoadError;
use crate::stamp;

/// Correlation ids are this plus a number below [`OPAQUE_SPAN`]: always ten digits, never negative.
pub const OPAQUE_BASE: i32 = 1_000_000_000;
/// How many correlation ids there are.
pub const OPAQUE_SPAN: u32 = 1_000_000_000;

/// Where the correlation id is in a binary frame: after prefix, code, language and version.
const BINARY_OPAQUE_AT: usize = 13;

// Placeholders. Each occurs once in a frame unless the user's topic or group contains it.
const OPAQUE: i32 = 1_918_273_645;
const QUEUE: &str = "90817";
const TOPIC_NUMBER: &str = "53719";
const BORN: &str = "8172635445362";
const OFFSET: &str = "0091827364554637281";
const KEY: &str = "F1E2D3C4B5A6978801928374A5B6C7D8";
/// Digits at the end of a key that count.
const KEY_COUNTER: usize = 12;
/// Digits before them that name the connection.
const KEY_CONNECTION: usize = 4;

/// What all sends of a run have in common.
#[derive(Clone, Debug)]
pub struct SendSpec {
    /// Topic.
    pub topic: String,
    /// How many topics: above 1, they are named after the topic, with a dash and a number of five digits.
    pub topics: usize,
    /// Producer group.
    pub group: String,
    /// Value of the TAGS property; empty means none.
    pub tag: String,
    /// Queues wished for if the broker makes the topic.
    pub default_queues: usize,
    /// Bytes of one message's body.
    pub body_bytes: usize,
    /// Messages in a request; above 1 it is a SEND_BATCH_MESSAGE.
    pub batch: usize,
    /// Form of the header.
    pub serialize: SerializeType,
    /// Names this run in keys and stamps.
    pub run_id: u64,
    /// Whether bodies begin with a [`stamp`].
    pub stamped: bool,
}

/// An encoded send request and where its variable parts are.
#[derive(Clone, Debug)]
pub struct SendTemplate {
    bytes: Vec<u8>,
    binary: bool,
    opaque_at: usize,
    topic_at: Option<usize>,
    queue_at: usize,
    born_at: usize,
    key_at: Vec<usize>,
    stamp_at: Vec<usize>,
}

impl SendTemplate {
    /// Encodes the request.
    ///
    /// # Errors
    /// The frame would be longer than brokers take, or topic, group or tag contain a placeholder.
    pub fn new(spec: &SendSpec) -> Result<Self, LoadError> {
        let error = |why| LoadError::Frame { topic: spec.topic.clone(), why };
        let batch = spec.batch > 1;
        let (body, keys_in_body, stamps_in_body) =
            if batch { batch_body(spec) } else { (filler(spec), Vec::new(), vec![0]) };
        let topic = match spec.topics {
            0 | 1 => spec.topic.clone(),
            _ => format!("{}-{TOPIC_NUMBER}", spec.topic),
        };
        let properties =
            if batch { "WAIT\u{1}true".to_owned() } else { message_properties(&spec.tag) };
        let ext = [
            ("a", ExtValue::Str(&spec.group)),
            ("b", ExtValue::Str(&topic)),
            ("c", ExtValue::Str("TBW102")),
            ("d", ExtValue::I64(spec.default_queues as i64)),
            ("e", ExtValue::Str(QUEUE)),
            ("f", ExtValue::Str("0")),
            ("g", ExtValue::Str(BORN)),
            ("h", ExtValue::Str("0")),
            ("i", ExtValue::Str(&properties)),
            ("j", ExtValue::Str("0")),
            ("k", ExtValue::Bool(false)),
            ("m", ExtValue::Bool(batch)),
        ];
        let code = if batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 };
        let mut bytes = encode(code, spec.serialize, &ext, body.len())
            .ok_or_else(|| error("header or body is too long"))?;
        let header = bytes.len();
        bytes.extend_from_slice(&body);
        if bytes.len() > FRAME_BYTES_MAX {
            return Err(error("the frame would be longer than 16 MiB"));
        }
        let head = &bytes[..header];
        let find = |placeholder: &str| {
            only(head, placeholder.as_bytes()).ok_or_else(|| error("it contains a placeholder"))
        };
        let binary = spec.serialize == SerializeType::Binary;
        let opaque_at = if binary { BINARY_OPAQUE_AT } else { find(&OPAQUE.to_string())? };
        let in_body = |at: &Vec<usize>| at.iter().map(|at| header + at).collect();
        let mut made = SendTemplate {
            binary,
            opaque_at,
            topic_at: if spec.topics > 1 { Some(find(TOPIC_NUMBER)?) } else { None },
            queue_at: find(QUEUE)?,
            born_at: find(BORN)?,
            key_at: if batch { in_body(&keys_in_body) } else { vec![find(KEY)?] },
            stamp_at: if spec.stamped { in_body(&stamps_in_body) } else { Vec::new() },
            bytes,
        };
        made.init(spec.run_id);
        Ok(made)
    }

    /// What is the same in all requests of the run but is not known to the encoder.
    fn init(&mut self, run_id: u64) {
        for at in &self.key_at {
            let prefix = KEY.len() - KEY_COUNTER - KEY_CONNECTION;
            put_hex(&mut self.bytes[*at..at + prefix], run_id);
        }
        for at in &self.stamp_at {
            stamp::put_head(&mut self.bytes[*at..], run_id);
        }
    }

    /// Makes the template's keys those of one connection (the low 16 bits of its number).
    pub fn set_connection(&mut self, connection: usize) {
        for at in &self.key_at {
            let end = at + KEY.len() - KEY_COUNTER;
            put_hex(&mut self.bytes[end - KEY_CONNECTION..end], connection as u64);
        }
    }

    /// The encoded request. Copies of it are what [`Self::patch`] works on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Messages in a request.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.key_at.len()
    }

    /// Makes `frame`, a copy of [`Self::bytes`], the next request. `first_message` numbers its first message among those of
    /// the connection; `intended` is the stamp's time.
    pub fn patch(&self, frame: &mut [u8], patch: &SendPatch<'_>) {
        put_opaque(frame, self.opaque_at, self.binary, patch.opaque);
        if let Some(at) = self.topic_at {
            put_decimal(&mut frame[at..][..TOPIC_NUMBER.len()], patch.place.topic.into());
        }
        put_decimal(&mut frame[self.queue_at..][..QUEUE.len()], patch.place.queue.into());
        frame[self.born_at..][..BORN.len()].copy_from_slice(patch.born);
        for (number, at) in (patch.first_message..).zip(&self.key_at) {
            let counter = at + KEY.len() - KEY_COUNTER;
            put_hex(&mut frame[counter..][..KEY_COUNTER], number);
        }
        for (number, at) in (patch.first_message..).zip(&self.stamp_at) {
            stamp::put(&mut frame[*at..], patch.intended, number);
        }
    }
}

/// A queue to send to. Both numbers have at most five digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the topic, see [`SendSpec::topics`].
    pub topic: u32,
    /// Queue.
    pub queue: u32,
}

/// What differs between two sends of one connection.
#[derive(Clone, Copy, Debug)]
pub struct SendPatch<'a> {
    /// Correlation id, of ten digits.
    pub opaque: i32,
    /// Where to.
    pub place: Place,
    /// Milliseconds since 1970 in [`born_digits`].
    pub born: &'a [u8; BORN.len()],
    /// Number of the first message among those of the connection.
    pub first_message: u64,
    /// When the request was meant to be sent, on the run's clock.
    pub intended: u64,
}

/// A born time as it stands in a frame.
#[must_use]
pub fn born_digits(unix_ms: u64) -> [u8; BORN.len()] {
    let mut digits = [0; BORN.len()];
    put_decimal(&mut digits, unix_ms);
    digits
}

/// What a pull asks for; the queue offset comes with each request.
#[derive(Clone, Debug)]
pub struct PullSpec<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Consumer group.
    pub group: &'a str,
    /// Queue.
    pub queue: i32,
    /// Most messages of an answer.
    pub batch: usize,
    /// How long the broker may hold a pull at the end of the queue, milliseconds; `None` = not at all.
    pub hold_ms: Option<u64>,
    /// Filter expression.
    pub expression: &'a str,
    /// Form of the header.
    pub serialize: SerializeType,
}

/// An encoded pull request of one queue.
#[derive(Clone, Debug)]
pub struct PullTemplate {
    bytes: Vec<u8>,
    binary: bool,
    opaque_at: usize,
    offset_at: usize,
}

impl PullTemplate {
    /// Encodes the request. The subscription travels in it: nothing needs to be registered.
    ///
    /// # Errors
    /// Topic, group or expression contain a placeholder.
    pub fn new(spec: &PullSpec<'_>) -> Result<Self, LoadError> {
        let error = |why| LoadError::Frame { topic: spec.topic.to_owned(), why };
        let suspend = if spec.hold_ms.is_some() { pull_flag::SUSPEND } else { 0 };
        let ext = [
            ("consumerGroup", ExtValue::Str(spec.group)),
            ("topic", ExtValue::Str(spec.topic)),
            ("queueId", ExtValue::I64(spec.queue.into())),
            ("queueOffset", ExtValue::Str(OFFSET)),
            ("maxMsgNums", ExtValue::I64(spec.batch as i64)),
            ("sysFlag", ExtValue::I64((pull_flag::SUBSCRIPTION | suspend).into())),
            ("commitOffset", ExtValue::I64(0)),
            ("suspendTimeoutMillis", ExtValue::I64(spec.hold_ms.unwrap_or(0) as i64)),
            ("subscription", ExtValue::Str(spec.expression)),
            ("subVersion", ExtValue::I64(0)),
            ("expressionType", ExtValue::Str("TAG")),
        ];
        let bytes = encode(request::PULL_MESSAGE, spec.serialize, &ext, 0)
            .ok_or_else(|| error("the header is too long"))?;
        let find = |placeholder: &str| {
            only(&bytes, placeholder.as_bytes()).ok_or_else(|| error("it contains a placeholder"))
        };
        let binary = spec.serialize == SerializeType::Binary;
        let opaque_at = if binary { BINARY_OPAQUE_AT } else { find(&OPAQUE.to_string())? };
        Ok(PullTemplate { binary, opaque_at, offset_at: find(OFFSET)?, bytes })
    }

    /// Makes it the next request and returns its bytes.
    pub fn patch(&mut self, opaque: i32, queue_offset: u64) -> &[u8] {
        put_opaque(&mut self.bytes, self.opaque_at, self.binary, opaque);
        put_decimal(&mut self.bytes[self.offset_at..][..OFFSET.len()], queue_offset);
        &self.bytes
    }
}

fn put_opaque(frame: &mut [u8], at: usize, binary: bool, opaque: i32) {
    if binary {
        frame[at..][..4].copy_from_slice(&opaque.to_be_bytes());
    } else {
        put_decimal(&mut frame[at..][..10], opaque as u64);
    }
}

fn encode(
    code: i32,
    serialize: SerializeType,
    ext: &[(&str, ExtValue<'_>)],
    body_bytes: usize,
) -> Option<Vec<u8>> {
    let mut out = BytesMut::new();
    let head = RequestHead { serialize, opaque: OPAQUE, ..RequestHead::new(code, ext) };
    encode_request(&mut out, &head, body_bytes).then(|| out.to_vec())
}

/// Where `needle` is in `bytes`, if it is there once.
fn only(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let mut found = bytes.windows(needle.len()).enumerate().filter(|(_, part)| *part == needle);
    let (at, _) = found.next()?;
    found.next().is_none().then_some(at)
}

fn message_properties(tag: &str) -> String {
    let tags = if tag.is_empty() { String::new() } else { format!("\u{2}TAGS\u{1}{tag}") };
    format!("UNIQ_KEY\u{1}{KEY}\u{2}WAIT\u{1}true{tags}")
}

/// A body that no link or disk can shrink much: printable and without a short period.
fn filler(spec: &SendSpec) -> Vec<u8> {
    let mut state = spec.run_id | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b' ' + (state >> 32) as u8 % 95
    };
    std::iter::repeat_with(&mut next).take(spec.body_bytes).collect()
}

/// The body of a batch with the positions of its keys and of its messages' bodies.
fn batch_body(spec: &SendSpec) -> (Vec<u8>, Vec<usize>, Vec<usize>) {
    let properties = message_properties(&spec.tag);
    let (mut keys, mut bodies) = (Vec::new(), Vec::new());
    let mut out = Vec::new();
    let body = filler(spec);
    for _ in 0..spec.batch {
        let total = 22 + body.len() + properties.len();
        out.extend_from_slice(&(total as u32).to_be_bytes());
        // Magic, CRC and the application's flag: the broker fills in the first two.
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        bodies.push(out.len());
        out.extend_from_slice(&body);
        out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        keys.push(out.len() + "UNIQ_KEY\u{1}".len());
        out.extend_from_slice(properties.as_bytes());
    }
    (out, keys, bodies)
}

#[cfg(test)]
mod tests {
    use ringmq_net::frame::{Peek, peek};
    use ringmq_net::header::HeaderDecoder;
    use ringmq_net::headers::{PullHeader, SendHeader};
    use ringmq_net::record::{BatchBody, Properties};

    use super::*;

    fn spec(batch: usize, serialize: SerializeType) -> SendSpec {
        SendSpec {
            topic: "TopicTest".into(),
            topics: 1,
            group: "PG".into(),
            tag: "TagA".into(),
            default_queues: 8,
            body_bytes: 100,
            batch,
            serialize,
            run_id: 0x0123_4567_89AB_CDEF,
            stamped: true,
        }
    }

    fn sent(spec: &SendSpec, patch: &SendPatch<'_>) -> Vec<u8> {
        let mut template = SendTemplate::new(spec).unwrap();
        template.set_connection(0x1002A);
        let mut frame = template.bytes().to_vec();
        template.patch(&mut frame, patch);
        frame
    }

    #[test]
    fn a_patched_send_reads_back_as_what_was_asked_for() {
        let born = born_digits(1_700_000_000_123);
        let patch = SendPatch {
            opaque: 1_000_000_777,
            place: Place { topic: 0, queue: 6 },
            born: &born,
            first_message: 0xABCD,
            intended: 99,
        };
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            let bytes = sent(&spec(1, serialize), &patch);
            let Ok(Peek::Frame(frame)) = peek(&bytes, FRAME_BYTES_MAX) else { panic!("no frame") };
            assert_eq!((frame.len, frame.body.len()), (bytes.len(), 100));
            let mut decoder = HeaderDecoder::new();
            let view = decoder.decode(frame.serialize, frame.header).unwrap();
            assert_eq!((view.code(), view.opaque()), (request::SEND_MESSAGE_V2, 1_000_000_777));
            let header = SendHeader::v2(&view).unwrap();
            assert_eq!((header.topic, header.producer_group), ("TopicTest", "PG"));
            assert_eq!((header.queue_id, header.born_timestamp), (6, 1_700_000_000_123));
            assert!(!header.batch);
            let known = Properties::new(header.properties).known();
            assert_eq!(known.uniq_key, Some("0123456789ABCDEF002A00000000ABCD"));
            assert_eq!((known.tags, known.waits()), (Some("TagA"), true));
            let read = stamp::read(frame.body, 0x0123_4567_89AB_CDEF);
            assert_eq!(read, Some(stamp::Stamp { intended: 99, number: 0xABCD }));
            assert_eq!(stamp::read(frame.body, 1), None);
        }
    }

    #[test]
    fn topics_are_told_apart_by_number() {
        let born = born_digits(1);
        let place = Place { topic: 42, queue: 7 };
        let patch =
            SendPatch { opaque: OPAQUE_BASE, place, born: &born, first_message: 0, intended: 0 };
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            let bytes = sent(&SendSpec { topics: 64, ..spec(1, serialize) }, &patch);
            let Ok(Peek::Frame(frame)) = peek(&bytes, FRAME_BYTES_MAX) else { panic!("no frame") };
            let mut decoder = HeaderDecoder::new();
            let view = decoder.decode(frame.serialize, frame.header).unwrap();
            let header = SendHeader::v2(&view).unwrap();
            assert_eq!((header.topic, header.queue_id), ("TopicTest-00042", 7));
        }
    }

    #[test]
    fn each_message_of_a_batch_has_its_own_key_and_stamp() {
        let born = born_digits(1);
        let patch = SendPatch {
            opaque: OPAQUE_BASE,
            place: Place { topic: 0, queue: 0 },
            born: &born,
            first_message: 64,
            intended: 5,
        };
        let spec = spec(3, SerializeType::Json);
        let bytes = sent(&spec, &patch);
        let Ok(Peek::Frame(frame)) = peek(&bytes, FRAME_BYTES_MAX) else { panic!("no frame") };
        let mut decoder = HeaderDecoder::new();
        let view = decoder.decode(frame.serialize, frame.header).unwrap();
        assert_eq!(view.code(), request::SEND_BATCH_MESSAGE);
        assert!(SendHeader::v2(&view).unwrap().batch);
        let batch = BatchBody::parse(frame.body).unwrap();
        assert_eq!(batch.count(), 3);
        for (number, message) in (64..).zip(batch.messages()) {
            let properties = std::str::from_utf8(message.properties).unwrap();
            let key = Properties::new(properties).get("UNIQ_KEY").unwrap().to_owned();
            assert_eq!(key, format!("0123456789ABCDEF002A{number:012X}"));
            assert_eq!(message.body.len(), 100);
            let read = stamp::read(message.body, spec.run_id);
            assert_eq!(read, Some(stamp::Stamp { intended: 5, number }));
        }
    }

    #[test]
    fn a_patched_pull_reads_back_as_what_was_asked_for() {
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            for hold_ms in [None, Some(15_000)] {
                let spec = PullSpec {
                    topic: "TopicTest",
                    group: "CG",
                    queue: 3,
                    batch: 32,
                    hold_ms,
                    expression: "*",
                    serialize,
                };
                let mut template = PullTemplate::new(&spec).unwrap();
                let bytes = template.patch(1_000_000_001, 1 << 40).to_vec();
                let Ok(Peek::Frame(frame)) = peek(&bytes, FRAME_BYTES_MAX) else {
                    panic!("no frame")
                };
                assert_eq!(frame.len, bytes.len());
                let mut decoder = HeaderDecoder::new();
                let view = decoder.decode(frame.serialize, frame.header).unwrap();
                assert_eq!((view.code(), view.opaque()), (request::PULL_MESSAGE, 1_000_000_001));
                let header = PullHeader::decode(&view).unwrap();
                assert_eq!((header.queue_id, header.queue_offset), (3, 1 << 40));
                assert_eq!(header.max_msg_nums, 32);
                let hold = (header.sys_flag & pull_flag::SUSPEND != 0)
                    .then_some(header.suspend_timeout_millis as u64);
                assert_eq!(hold, hold_ms);
                assert_eq!(header.subscription, Some("*"));
            }
        }
    }

    #[test]
    fn a_name_that_looks_like_a_placeholder_is_refused() {
        let spec = SendSpec { topic: format!("t{QUEUE}"), ..spec(1, SerializeType::Json) };
        assert!(matches!(SendTemplate::new(&spec), Err(LoadError::Frame { .. })));
    }
}
