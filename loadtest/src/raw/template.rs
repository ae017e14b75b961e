//! Requests that are encoded once and patched in place for every send.
//!
//! A placeholder stands wherever requests differ: correlation id, queue, born time, unique keys, queue offset. All of them
//! have a fixed width, so a header never changes its length. Numbers in ext fields get leading zeros; stock and RingMQ read them as
//! decimal all the same.
//!
//! A slot holds one request that way:
//!
//! ```text
//!   |  room  | length, header | body         | room |
//!            ^ frame                         ^ end
//!                             ^ always at the same place
//! ```
//!
//! A body is the beginning of the run's filler, so that another size is nothing but another length. Headers of other topics or tags are
//! copied in when they are wanted; so are the bodies of batches, whose records carry lengths of their own.

use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;
use ringmq_net::code::request;
use ringmq_net::command::{RequestHead, encode_request};
use ringmq_net::frame::{FRAME_BYTES_MAX, SerializeType};
use ringmq_net::header::ExtValue;
use ringmq_net::headers::pull_flag;

use crate::error::LoadError;
use crate::kind::Kind;
use crate::raw::digits::{put_decimal, put_hex};
use crate::sizes::{Sizes, draw, draw_key, mix};
use crate::stamp::{self, Stamp};

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
/// The digits of a message's key, as opposed to its unique key.
const USER_KEY: &str = "4738291056";
/// Digits at the end of a key that count.
const KEY_COUNTER: usize = 12;
/// Digits before them that name the connection.
const KEY_CONNECTION: usize = 4;
/// Most sizes that batches are made in.
const BATCH_SIZES: usize = 16;
/// Most bytes of batches that are kept encoded.
const BATCH_BYTES_MAX: usize = 256 << 20;

/// What all sends of a run have in common.
#[derive(Clone, Debug)]
pub struct SendSpec {
    /// Kinds of messages; one or more. In a batch all are of the first one's topic.
    pub kinds: Vec<Kind>,
    /// How many topics: above 1, they are named after the kind's topic, with a dash and a number of five digits.
    pub topics: usize,
    /// Producer group.
    pub group: String,
    /// Different keys that messages have; 0 = they have none.
    pub keys: u64,
    /// Delay level; 0 = none.
    pub delay_level: u32,
    /// Queues wished for if the broker makes the topic.
    pub default_queues: usize,
    /// Bytes of one message's body.
    pub sizes: Sizes,
    /// Messages in a request; above 1 it is a SEND_BATCH_MESSAGE.
    pub batch: usize,
    /// Form of the header.
    pub serialize: SerializeType,
    /// Names this run in keys and stamps.
    pub run_id: u64,
    /// Whether bodies begin with a [`stamp`].
    pub stamped: bool,
}

/// What a request is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Which header.
    pub head: u32,
    /// Which body.
    pub body: u32,
    /// Bytes of one message's body.
    pub size: u32,
}

/// Which header and body a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held(Option<(u32, u32)>);

#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    opaque_at: usize,
    topic_at: Option<usize>,
    queue_at: usize,
    born_at: usize,
    key_at: Option<usize>,
    user_key_at: Option<usize>,
}

/// A body with places counted from its start.
#[derive(Debug, Default)]
struct Body {
    bytes: Vec<u8>,
    size: usize,
    key_at: Vec<usize>,
    user_key_at: Vec<usize>,
    stamp_at: Vec<usize>,
}

#[derive(Debug)]
struct Encoded {
    spec: SendSpec,
    heads: Vec<Head>,
    bodies: Vec<Body>,
    head_max: usize,
    body_max: usize,
    binary: bool,
}

/// Encoded send requests and where their variable parts are; one connection's view of them.
#[derive(Clone, Debug)]
pub struct SendTemplate {
    encoded: Arc<Encoded>,
    connection: usize,
}

impl SendTemplate {
    /// Encodes the requests.
    ///
    /// # Errors
    /// A frame would be longer than brokers take, or topic, group or tag contain a placeholder.
    pub fn new(spec: &SendSpec) -> Result<Self, LoadError> {
        let topic = spec.kinds.first().map(|kind| kind.topic.clone()).unwrap_or_default();
        let error = |why| LoadError::Frame { topic: topic.clone(), why };
        let mut bodies = Vec::new();
        if spec.batch > 1 {
            let sizes = spec.sizes.sample(BATCH_SIZES);
            let each = (spec.sizes.max() + 256) * spec.batch * spec.kinds.len();
            if each.saturating_mul(sizes.len()) > BATCH_BYTES_MAX {
                return Err(error(
                    "the batches of all sizes and tags together would be above 256 MiB",
                ));
            }
            for size in sizes {
                bodies.extend(spec.kinds.iter().map(|kind| batch_body(spec, kind, size)));
            }
        } else {
            let bytes = stamped(stamp::filler(spec.run_id, spec.sizes.max()), spec);
            bodies.push(Body { size: bytes.len(), bytes, ..Body::default() });
        }
        let kinds =
            if spec.batch > 1 { &spec.kinds[..1.min(spec.kinds.len())] } else { &spec.kinds };
        let heads: Result<Vec<_>, _> = kinds.iter().map(|kind| Head::new(spec, kind)).collect();
        let heads = heads?;
        let head_max = heads.iter().map(|head| head.bytes.len()).max().unwrap_or(0);
        let body_max = bodies.iter().map(|body| body.bytes.len()).max().unwrap_or(0);
        if head_max + body_max > FRAME_BYTES_MAX {
            return Err(error("the frame would be longer than 16 MiB"));
        }
        let binary = spec.serialize == SerializeType::Binary;
        let encoded = Encoded { spec: spec.clone(), heads, bodies, head_max, body_max, binary };
        Ok(SendTemplate { encoded: Arc::new(encoded), connection: 0 })
    }

    /// The same requests with the keys of one connection (the low 16 bits of its number).
    #[must_use]
    pub fn for_connection(&self, connection: usize) -> Self {
        SendTemplate { encoded: Arc::clone(&self.encoded), connection: connection & 0xFFFF }
    }

    /// The connection that it is for.
    #[must_use]
    pub fn connection(&self) -> usize {
        self.connection
    }

    /// Bytes of a slot, in which every request finds room.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.encoded.head_max + self.encoded.body_max
    }

    /// Messages in a request.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.encoded.spec.batch.max(1)
    }

    /// What the request is made of whose first message has this number: drawn, and the same each time.
    #[must_use]
    pub fn shape(&self, number: u64) -> Shape {
        let Encoded { spec, bodies, .. } = &*self.encoded;
        if spec.batch <= 1 && spec.kinds.len() == 1 && spec.sizes.min() == spec.sizes.max() {
            return Shape { head: 0, body: 0, size: spec.sizes.max() as u32 };
        }
        if spec.batch > 1 {
            let random = mix(spec.run_id ^ (self.connection as u64) << 48 ^ number);
            let body = ((random >> 32) % bodies.len().max(1) as u64) as u32;
            let size = bodies.get(body as usize).map_or(0, |body| body.size);
            return Shape { head: 0, body, size: size as u32 };
        }
        let (kind, size) =
            draw(spec.run_id, self.connection, number, spec.kinds.len(), &spec.sizes);
        Shape { head: kind as u32, body: 0, size: size as u32 }
    }

    /// Makes `slot` the next request and returns where its frame is. `held` is what the slot holds, and belongs to it.
    pub fn patch(
        &self,
        slot: &mut [u8],
        held: &mut Held,
        shape: Shape,
        patch: &SendPatch<'_>,
    ) -> Range<usize> {
        let Encoded { spec, heads, bodies, head_max, binary, .. } = &*self.encoded;
        let (head, body) = (&heads[shape.head as usize], &bodies[shape.body as usize]);
        let start = head_max - head.bytes.len();
        self.fill(slot, held, shape);
        let length = if spec.batch > 1 {
            body.bytes.len()
        } else {
            body.bytes.len().min(shape.size as usize)
        };
        let frame = start..head_max + length;
        let prefix = (frame.len() - 4) as u32;
        slot[start..start + 4].copy_from_slice(&prefix.to_be_bytes());
        put_opaque(&mut slot[start..], head.opaque_at, *binary, patch.opaque);
        let at = |place: usize| start + place;
        if let Some(place) = head.topic_at {
            put_decimal(&mut slot[at(place)..][..TOPIC_NUMBER.len()], patch.place.topic.into());
        }
        put_decimal(&mut slot[at(head.queue_at)..][..QUEUE.len()], patch.place.queue.into());
        slot[at(head.born_at)..][..BORN.len()].copy_from_slice(patch.born);
        let keys =
            head.key_at.map(at).into_iter().chain(body.key_at.iter().map(|place| head_max + place));
        for (number, place) in (patch.first_message..).zip(keys) {
            let counter = place + KEY.len() - KEY_COUNTER;
            put_hex(&mut slot[counter..][..KEY_COUNTER], number);
        }
        if spec.keys > 0 {
            let places = head.user_key_at.map(at).into_iter();
            let places = places.chain(body.user_key_at.iter().map(|place| head_max + place));
            for (number, place) in (patch.first_message..).zip(places) {
                let key = draw_key(self.connection, number, spec.keys);
                put_decimal(&mut slot[place..][..USER_KEY.len()], key);
            }
        }
        if spec.stamped {
            let sender = patch.epoch << 16 | self.connection as u32;
            let mut stamp = Stamp {
                sender,
                intended: patch.intended,
                number: patch.first_message,
                floor: patch.floor,
            };
            if spec.batch > 1 {
                for place in &body.stamp_at {
                    stamp::put(&mut slot[head_max + place..], spec.run_id, &stamp, body.size);
                    stamp.number += 1;
                }
            } else {
                stamp::put(&mut slot[*head_max..], spec.run_id, &stamp, length);
            }
        }
        frame
    }

    /// Has the slot hold header and body of this shape, with what is the same in all requests of the connection.
    fn fill(&self, slot: &mut [u8], held: &mut Held, shape: Shape) {
        if held.0 == Some((shape.head, shape.body)) {
            return;
        }
        let Encoded { spec, heads, bodies, head_max, .. } = &*self.encoded;
        let (head, body) = (&heads[shape.head as usize], &bodies[shape.body as usize]);
        let start = head_max - head.bytes.len();
        if held.0.is_none_or(|(_, old)| old != shape.body) {
            slot[*head_max..head_max + body.bytes.len()].copy_from_slice(&body.bytes);
        }
        slot[start..*head_max].copy_from_slice(&head.bytes);
        let keys = head.key_at.map(|at| start + at).into_iter();
        for place in keys.chain(body.key_at.iter().map(|at| head_max + at)) {
            let connection = place + KEY.len() - KEY_COUNTER - KEY_CONNECTION;
            put_hex(&mut slot[place..connection], spec.run_id);
            put_hex(&mut slot[connection..connection + KEY_CONNECTION], self.connection as u64);
        }
        held.0 = Some((shape.head, shape.body));
    }
}

impl Head {
    fn new(spec: &SendSpec, kind: &Kind) -> Result<Self, LoadError> {
        let error = |why| LoadError::Frame { topic: kind.topic.clone(), why };
        let batch = spec.batch > 1;
        let topic = match spec.topics {
            0 | 1 => kind.topic.clone(),
            _ => format!("{}-{TOPIC_NUMBER}", kind.topic),
        };
        let properties =
            if batch { "WAIT\u{1}true".to_owned() } else { message_properties(spec, kind) };
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
        let bytes =
            encode(code, spec.serialize, &ext, 0).ok_or_else(|| error("the header is too long"))?;
        let find = |placeholder: &str| {
            only(&bytes, placeholder.as_bytes()).ok_or_else(|| error("it contains a placeholder"))
        };
        let binary = spec.serialize == SerializeType::Binary;
        Ok(Head {
            opaque_at: if binary { BINARY_OPAQUE_AT } else { find(&OPAQUE.to_string())? },
            topic_at: if spec.topics > 1 { Some(find(TOPIC_NUMBER)?) } else { None },
            queue_at: find(QUEUE)?,
            born_at: find(BORN)?,
            key_at: if batch { None } else { Some(find(KEY)?) },
            user_key_at: if batch || spec.keys == 0 { None } else { Some(find(USER_KEY)?) },
            bytes,
        })
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
    /// How often the connection was made anew.
    pub epoch: u32,
    /// See [`Stamp::floor`].
    pub floor: u64,
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

fn message_properties(spec: &SendSpec, kind: &Kind) -> String {
    let mut properties = format!("UNIQ_KEY\u{1}{KEY}\u{2}WAIT\u{1}true");
    if !kind.tag.is_empty() {
        properties.push_str(&format!("\u{2}TAGS\u{1}{}", kind.tag));
    }
    if spec.keys > 0 {
        properties.push_str(&format!("\u{2}KEYS\u{1}k{USER_KEY}"));
    }
    if spec.delay_level > 0 {
        properties.push_str(&format!("\u{2}DELAY\u{1}{}", spec.delay_level));
    }
    properties
}

fn stamped(mut body: Vec<u8>, spec: &SendSpec) -> Vec<u8> {
    if spec.stamped {
        stamp::put_head(&mut body, spec.run_id);
    }
    body
}

/// The body of a batch.
fn batch_body(spec: &SendSpec, kind: &Kind, size: usize) -> Body {
    let properties = message_properties(spec, kind);
    let find = |placeholder| only(properties.as_bytes(), placeholder);
    let (key_in, user_key_in) = (find(KEY.as_bytes()), find(USER_KEY.as_bytes()));
    let message = stamped(stamp::filler(spec.run_id, size), spec);
    let mut out = Body { size, ..Body::default() };
    for _ in 0..spec.batch {
        let bytes = &mut out.bytes;
        let total = 22 + message.len() + properties.len();
        bytes.extend_from_slice(&(total as u32).to_be_bytes());
        // Magic, CRC and the application's flag: the broker fills in the first two.
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
        if spec.stamped {
            out.stamp_at.push(bytes.len());
        }
        bytes.extend_from_slice(&message);
        bytes.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        out.key_at.extend(key_in.map(|at| bytes.len() + at));
        if spec.keys > 0 {
            out.user_key_at.extend(user_key_in.map(|at| bytes.len() + at));
        }
        bytes.extend_from_slice(properties.as_bytes());
    }
    out
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
            kinds: vec![Kind { topic: "TopicTest".into(), tag: "TagA".into() }],
            topics: 1,
            group: "PG".into(),
            keys: 0,
            delay_level: 0,
            default_queues: 4,
            sizes: Sizes::fixed(100),
            batch,
            serialize,
            run_id: 0x0123_4567_89AB_CDEF,
            stamped: true,
        }
    }

    fn patch(born: &[u8; 13]) -> SendPatch<'_> {
        SendPatch {
            opaque: 1_000_000_777,
            place: Place { topic: 0, queue: 6 },
            born,
            first_message: 0xABCD,
            intended: 99,
            epoch: 2,
            floor: 0xABC0,
        }
    }

    /// Patches a slot into several requests; returns what each of them is on the wire.
    fn sent(template: &SendTemplate, shapes: &[Shape], patch: &SendPatch<'_>) -> Vec<Vec<u8>> {
        let (mut slot, mut held) = (vec![0; template.slot_bytes()], Held::default());
        let one = |shape: &Shape| {
            let frame = template.patch(&mut slot, &mut held, *shape, patch);
            slot[frame].to_vec()
        };
        shapes.iter().map(one).collect()
    }

    fn stamp_of(number: u64) -> stamp::Body {
        stamp::Body::Ours(Stamp { sender: 2 << 16 | 0x2A, intended: 99, number, floor: 0xABC0 })
    }

    #[test]
    fn a_patched_send_reads_back_as_what_was_asked_for_whatever_was_in_the_slot_before() {
        let born = born_digits(1_700_000_000_123);
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            let mut spec = SendSpec {
                sizes: "48..5000".parse().unwrap(),
                keys: 7,
                delay_level: 3,
                ..spec(1, serialize)
            };
            spec.kinds.push(Kind { topic: "AnotherTopic".into(), tag: String::new() });
            let template = SendTemplate::new(&spec).unwrap().for_connection(0x2A);
            let shapes: Vec<_> = (0..50).map(|number| template.shape(number)).collect();
            assert!(
                shapes.iter().any(|shape| shape.head == 1)
                    && shapes.iter().any(|shape| shape.head == 0)
            );
            for (bytes, shape) in sent(&template, &shapes, &patch(&born)).iter().zip(&shapes) {
                let Ok(Peek::Frame(frame)) = peek(bytes, FRAME_BYTES_MAX) else {
                    panic!("no frame")
                };
                assert_eq!((frame.len, frame.body.len()), (bytes.len(), shape.size as usize));
                let mut decoder = HeaderDecoder::new();
                let view = decoder.decode(frame.serialize, frame.header).unwrap();
                assert_eq!((view.code(), view.opaque()), (request::SEND_MESSAGE_V2, 1_000_000_777));
                let header = SendHeader::v2(&view).unwrap();
                let kind = &spec.kinds[shape.head as usize];
                assert_eq!((header.topic, header.producer_group), (kind.topic.as_str(), "PG"));
                assert_eq!((header.queue_id, header.born_timestamp), (6, 1_700_000_000_123));
                assert!(!header.batch);
                let properties = Properties::new(header.properties);
                let known = properties.known();
                assert_eq!(known.uniq_key, Some("0123456789ABCDEF002A00000000ABCD"));
                assert_eq!(
                    (known.tags.unwrap_or_default(), known.waits()),
                    (kind.tag.as_str(), true)
                );
                let key = properties.get("KEYS").unwrap().strip_prefix('k').unwrap();
                assert!(key.len() == 10 && key.parse::<u64>().unwrap() < 7, "{key}");
                assert_eq!(properties.get("DELAY"), Some("3"));
                assert_eq!(stamp::read(frame.body, spec.run_id), stamp_of(0xABCD));
                let filler = stamp::filler(spec.run_id, 5000);
                assert_eq!(
                    frame.body[stamp::STAMP_BYTES..],
                    filler[stamp::STAMP_BYTES..frame.body.len()]
                );
            }
        }
    }

    #[test]
    fn topics_are_told_apart_by_number() {
        let born = born_digits(1);
        let patch = SendPatch { place: Place { topic: 42, queue: 7 }, ..patch(&born) };
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            let template =
                SendTemplate::new(&SendSpec { topics: 64, ..spec(1, serialize) }).unwrap();
            let bytes = &sent(&template, &[template.shape(0)], &patch)[0];
            let Ok(Peek::Frame(frame)) = peek(bytes, FRAME_BYTES_MAX) else { panic!("no frame") };
            let mut decoder = HeaderDecoder::new();
            let view = decoder.decode(frame.serialize, frame.header).unwrap();
            let header = SendHeader::v2(&view).unwrap();
            assert_eq!((header.topic, header.queue_id), ("TopicTest-00042", 7));
        }
    }

    #[test]
    fn each_message_of_a_batch_has_its_own_key_and_stamp() {
        let born = born_digits(1);
        let mut spec = SendSpec {
            sizes: "60:1,100:1".parse().unwrap(),
            keys: 9,
            ..spec(3, SerializeType::Json)
        };
        spec.kinds.push(Kind { topic: "TopicTest".into(), tag: "B".into() });
        let template = SendTemplate::new(&spec).unwrap().for_connection(0x2A);
        let shapes: Vec<_> = (0..40).map(|number| template.shape(number)).collect();
        let (mut tags, mut lengths) = (Vec::new(), Vec::new());
        for bytes in &sent(&template, &shapes, &SendPatch { first_message: 64, ..patch(&born) }) {
            let Ok(Peek::Frame(frame)) = peek(bytes, FRAME_BYTES_MAX) else { panic!("no frame") };
            let mut decoder = HeaderDecoder::new();
            let view = decoder.decode(frame.serialize, frame.header).unwrap();
            assert_eq!(view.code(), request::SEND_BATCH_MESSAGE);
            assert!(SendHeader::v2(&view).unwrap().batch);
            let batch = BatchBody::parse(frame.body).unwrap();
            assert_eq!(batch.count(), 3);
            for (number, message) in (64..).zip(batch.messages()) {
                let properties = std::str::from_utf8(message.properties).unwrap();
                let properties = Properties::new(properties);
                assert_eq!(
                    properties.get("UNIQ_KEY").unwrap(),
                    format!("0123456789ABCDEF002A{number:012X}")
                );
                assert!(properties.get("KEYS").unwrap().starts_with("k000000000"));
                tags.push(properties.get("TAGS").unwrap().to_owned());
                lengths.push(message.body.len());
                assert_eq!(stamp::read(message.body, spec.run_id), stamp_of(number));
            }
        }
        for (all, wanted) in [
            (tags.contains(&"B".into()), true),
            (tags.contains(&"TagA".into()), true),
            (lengths.contains(&60), true),
            (lengths.contains(&100), true),
        ] {
            assert_eq!(all, wanted, "{tags:?} {lengths:?}");
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
        let kinds = vec![Kind { topic: format!("t{QUEUE}"), tag: String::new() }];
        let spec = SendSpec { kinds, ..spec(1, SerializeType::Json) };
        assert!(matches!(SendTemplate::new(&spec), Err(LoadError::Frame { .. })));
    }
}
