//! Whatever bytes arrive, the codec answers with a value or an error: it neither panics nor spends
//! memory out of proportion.
//!
//! `RINGMQ_SEED` replays a run, `RINGMQ_FUZZ_ITERATIONS` lengthens it.

use bytes::BytesMut;
use ringmq_net::body::{
    self, Body, BodyError, CheckClientConfig, ClusterInfo, ConsumeDirectlyResult, ConsumeQueueBody,
    ConsumeStats, ConsumeStatsList, ConsumeTimeSpans, ConsumerConnection, ConsumerList,
    ConsumerOffsetTable, ConsumerRunningInfo, ConsumerStatus, DataVersion, DelayOffsetTable,
    GroupList, Heartbeat, INFLATED_BYTES_MAX, KvTable, LockBatch, LockOk, ProducerConnection,
    ProducerTable, RegisterBroker, ResetOffset, SubscriptionGroupTable, TopicConfigTable,
    TopicList, TopicRouteData, TopicStats,
};
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, SerializeType, peek};
use ringmq_net::ha_frame;
use ringmq_net::header::{HeaderDecoder, HeaderView};
use ringmq_net::headers as h;
use ringmq_net::json::{Limits, Value, Writer};
use ringmq_net::reply::{ReplyHead, encode_reply};
use support::Random;

mod support;

#[global_allocator]
static COUNTING: support::Counting = support::Counting;

const ITERATIONS: u64 = 10_000;

/// Most bytes of memory per byte of input, and what every input may have. The factor is that of the worst
/// JSON shape, see [`Limits`].
const PEAK_FACTOR: usize = 256;
const PEAK_BASE: usize = 512 * 1024;

/// Commands and bodies of stock peers: what a mutation starts from.
fn corpus() -> Vec<Vec<u8>> {
    let heartbeat = r#"{"clientID":"c2@cpp","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g2","messageModel":1,"subscriptionDataSet":[{"codeSet":["65"],"subString":"*","subVersion":"100","tagsSet":["A"],"topic":"TopicA"}]}],"producerDataSet":[{"groupName":"PG"}]}"#;
    let reset = r#"{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}:1,"{\"topic\":\"T\"}":8}}"#;
    let offsets = r#"{"offsetTable":{"TopicA@CG1":{0:12,1:12}},"dataVersion":{"counter":1}}"#;
    let route = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"a","cluster":"C"}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    let register = r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":17},"topicConfigTable":{"TopicA":{"order":true,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":1,"writeQueueNums":4}}}}"#;
    let zlib = RegisterBroker::from_json(register.as_bytes()).unwrap().to_compressed();
    let send = h::SendHeader {
        producer_group: "PG",
        topic: "标Topic",
        default_topic: "TBW102",
        born_timestamp: 1_700_000_000_000,
        properties: "UNIQ_KEY\u{1}7F00\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}",
        max_reconsume_times: Some(16),
        ..h::SendHeader::default()
    };
    let bodies = [heartbeat.as_bytes(), reset.as_bytes(), offsets.as_bytes(), route.as_bytes()];
    let bodies =
        bodies.into_iter().chain([register.as_bytes(), &zlib, b"brokerName=a\\\n b\n", b""]);
    let mut corpus = Vec::new();
    for (at, body) in bodies.enumerate() {
        for serialize in [SerializeType::Json, SerializeType::Binary] {
            let mut command = Command::request(310).with_header(&send.ext_v2());
            command.serialize = serialize;
            command.opaque = at as i32;
            command.remark = (at % 2 == 0).then(|| "re\"mark\n".to_owned());
            let mut out = BytesMut::new();
            command.with_body(body.to_vec()).encode(&mut out);
            corpus.push(out.to_vec());
        }
    }
    let mut ha = ha_frame::encode_header(4096, 5).to_vec();
    ha.extend_from_slice(b"hello");
    corpus.push(ha);
    corpus
}

const TOKENS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\"",
    b"'",
    b"\\",
    b"\\u00",
    b"\\uD83D",
    b"null",
    b"true",
    b"-",
    b"1e999",
    b"9223372036854775808",
    b"{{",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\x7f\xff",
    b"\"extFields\":{",
    b"\"code\":",
    b"\xF0\x9F\x98",
    b"e",
    b"[[[[[[[[",
    b"0",
];

/// One to eight changes to a copy of a seed; in half of the cases the length words are made right again, so
/// that the layers above are reached.
fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    if random.below(16) == 0 {
        return (0..random.below(300)).map(|_| random.next() as u8).collect();
    }
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..1 + random.below(8) {
        let at = random.below(input.len());
        match random.below(7) {
            0 => input.truncate(at.max(8)),
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 if at < input.len() => input[at] = random.next() as u8,
            3 => {
                let token = random.pick(TOKENS);
                input.splice(at..at, token.iter().copied());
            }
            4 => {
                let end = at + random.below(input.len().saturating_sub(at)).min(40);
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            5 => {
                let end = at + random.below(input.len().saturating_sub(at)).min(40);
                input.drain(at..end);
            }
            _ => {
                let other = &corpus[random.below(corpus.len())];
                input.truncate(at);
                input.extend_from_slice(&other[random.below(other.len())..]);
            }
        }
    }
    if random.below(2) == 0 && input.len() >= 8 {
        let total = (input.len() - 4) as u32;
        input[..4].copy_from_slice(&total.to_be_bytes());
        let header = u32::from_be_bytes([0, input[5], input[6], input[7]]).min(total - 4);
        let kind = u32::from(input[4] & 1) << 24;
        input[4..8].copy_from_slice(&(kind | header).to_be_bytes());
    }
    input
}

/// Everything a peer's bytes go through.
fn exercise(decoder: &mut HeaderDecoder, input: &[u8]) {
    if let Ok(Peek::Frame(frame)) = peek(input, FRAME_BYTES_MAX) {
        header(decoder, frame.serialize, frame.header, frame.body);
        bodies(frame.body);
    }
    // The layers by themselves too: not every mutation leaves the frame whole.
    let payload = input.get(8..).unwrap_or_default();
    header(decoder, SerializeType::Json, payload, b"");
    header(decoder, SerializeType::Binary, payload, b"");
    bodies(payload);
    let _ = ha_frame::peek(input, FRAME_BYTES_MAX);
    let _ = ha_frame::last_report(input);
}

fn header(decoder: &mut HeaderDecoder, serialize: SerializeType, header: &[u8], body: &[u8]) {
    let Ok(view) = decoder.decode(serialize, header) else { return };
    typed(&view);
    let mut out = BytesMut::new();
    let remark = view.remark().unwrap_or_default();
    encode_reply(&mut out, &ReplyHead::to(&view, 1).remark(remark), 0);
    assert!(
        matches!(peek(&out, FRAME_BYTES_MAX), Ok(Peek::Frame(frame)) if frame.len == out.len())
    );
    // What was read is written so that it reads the same.
    let command = Command::from_view(&view, body.to_vec().into());
    out.clear();
    command.encode(&mut out);
    let Ok(Peek::Frame(frame)) = peek(&out, FRAME_BYTES_MAX) else { panic!("no frame comes back") };
    let mut back = Command::decode(&frame).unwrap();
    back.language = command.language; // an unknown one is left out in JSON
    assert_eq!(back, command);
}

fn typed(view: &HeaderView<'_>) {
    for name in ["a", "topic", ""] {
        let last = view.ext_iter().filter(|(key, _)| *key == name).last();
        assert_eq!(view.ext(name), last.map(|(_, value)| value).filter(|value| !value.is_empty()));
    }
    let _ = h::SendHeader::v1(view);
    let _ = h::SendHeader::v2(view);
    let _ = h::PullHeader::decode(view);
    let _ = h::QueryMessageHeader::decode(view);
    let _ = h::EndTransactionHeader::decode(view);
    let _ = h::SendBackHeader::decode(view);
    let _ = h::UnregisterClientHeader::decode(view);
    let _ = h::CreateTopicHeader::decode(view);
    let _ = h::RegisterBrokerHeader::decode(view);
    let _ = h::PushReplyHeader::decode(view);
    let _ = h::PullReplyHeader::decode(view);
}

/// A body that was read is written, and read again the same.
fn stable<B: Body + PartialEq + std::fmt::Debug>(input: &[u8]) {
    if let Ok(read) = B::from_json(input) {
        let again = B::from_json(&read.to_json()).unwrap();
        // Doubles that are not finite are written as null; texts may say the same words.
        let told = |body: &B| format!("{body:?}").replace("inf", "0.0").replace("-0.0", "0.0");
        assert_eq!(told(&read), told(&again));
    }
}

fn bodies(input: &[u8]) {
    stable::<Heartbeat>(input);
    stable::<ResetOffset>(input);
    stable::<ConsumerOffsetTable>(input);
    stable::<TopicRouteData>(input);
    stable::<RegisterBroker>(input);
    stable::<TopicConfigTable>(input);
    stable::<SubscriptionGroupTable>(input);
    stable::<ClusterInfo>(input);
    stable::<LockBatch>(input);
    stable::<CheckClientConfig>(input);
    let _ = (LockOk::from_json(input), ConsumerList::from_json(input), KvTable::from_json(input));
    let _ =
        (TopicList::from_json(input), GroupList::from_json(input), DataVersion::from_json(input));
    let _ = (ConsumerConnection::from_json(input), ProducerConnection::from_json(input));
    let _ = (ProducerTable::from_json(input), TopicStats::from_json(input));
    let _ = (ConsumeStats::from_json(input), ConsumeStatsList::from_json(input));
    let _ = (ConsumeTimeSpans::from_json(input), ConsumeQueueBody::from_json(input));
    let _ = (ConsumerStatus::from_json(input), DelayOffsetTable::from_json(input));
    let _ = (ConsumerRunningInfo::from_json(input), ConsumeDirectlyResult::from_json(input));
    for version in [0, 409, 479] {
        let _ = RegisterBroker::decode(version, false, input);
    }
    let text = String::from_utf8_lossy(input);
    let _ = body::properties::parse(&text);
    if let Ok(value) = Value::parse(&text) {
        let mut w = Writer::new();
        value.write(&mut w);
        let written = w.finish();
        assert!(Value::parse(std::str::from_utf8(&written).unwrap()).is_ok());
    }
}

/// Shows the input when the test fails.
struct Culprit<'i>(u64, &'i [u8]);

impl Drop for Culprit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("iteration {}, input {}", self.0, self.1.escape_ascii());
        }
    }
}

#[test]
fn mutated_frames_neither_panic_nor_bloat() {
    let corpus = corpus();
    let mut random = Random(support::seed());
    let iterations = support::env("RINGMQ_FUZZ_ITERATIONS").unwrap_or(ITERATIONS);
    let mut decoder = HeaderDecoder::new();
    for input in &corpus {
        exercise(&mut decoder, input);
    }
    for iteration in 0..iterations {
        let input = mutate(&mut random, &corpus);
        let _culprit = Culprit(iteration, &input);
        let peak = support::peak_bytes(|| exercise(&mut decoder, &input));
        let bound = PEAK_BASE + PEAK_FACTOR * input.len();
        assert!(peak <= bound, "{peak} bytes for an input of {}", input.len());
    }
}

/// `unit` repeated up to the frame limit between `open` and `close`.
fn filled(open: &str, unit: &str, close: &str) -> Vec<u8> {
    let count = (FRAME_BYTES_MAX - 8 - open.len() - close.len()) / unit.len();
    format!("{open}{}{close}", unit.repeat(count)).into_bytes()
}

#[test]
fn the_largest_frames_of_the_worst_shapes_stay_within_bounds() {
    const MIB: usize = 1024 * 1024;
    let mut decoder = HeaderDecoder::new();
    for header in [
        filled("{\"extFields\":{", "a:0,", "}}"),
        filled("{\"extFields\":{\"a\":\"", "\\n", "\"}}"),
        filled("{\"x\":", "[", ""),
        filled("{\"x\":\"", "\\u00e9", "\"}"),
        filled("", " ", ""),
    ] {
        let peak = support::peak_bytes(|| {
            let _ = decoder.decode(SerializeType::Json, &header).map(|view| view.opaque());
            // What stays for the next header is bounded as well.
            let _ = decoder.decode(SerializeType::Json, b"{}").map(|view| view.opaque());
        });
        assert!(peak <= FRAME_BYTES_MAX + MIB, "{peak} bytes for {:?}", &header[..20]);
    }
    let mut latin = filled("{\"remark\":\"", "x", "\"}");
    latin[11..].iter_mut().rev().skip(2).for_each(|byte| *byte = 0xE9);
    let peak = support::peak_bytes(|| {
        let _ = decoder.decode(SerializeType::Json, &latin).map(|view| view.opaque());
    });
    assert!(peak <= 6 * FRAME_BYTES_MAX, "{peak} bytes for a header of replacement characters");

    for body in [
        filled("[", "0,", "0]"),
        filled("[", "[0],", "0]"),
        filled("[", "{0:0},", "0]"),
        filled("[", "\"\\n\",", "0]"),
        filled("{", "{}:0,", "}"),
        filled("{", "{", ""),
        filled("", "[", ""),
    ] {
        let text = std::str::from_utf8(&body).unwrap();
        for (limits, most) in [(Limits::SMALL, 10 * MIB), (Limits::LARGE, 160 * MIB)] {
            let mut error = None;
            let peak = support::peak_bytes(|| error = Value::parse_within(text, limits).err());
            assert!(error.is_some() && peak <= most, "{peak} bytes for {:?}", &text[..20]);
        }
    }
}

#[test]
fn inflating_a_bomb_stops_at_the_bound() {
    use std::io::Write;
    let level = flate2::Compression::best();
    let mut bomb = flate2::write::ZlibEncoder::new(Vec::new(), level);
    (0..64).for_each(|_| bomb.write_all(&vec![0; INFLATED_BYTES_MAX / 16]).unwrap());
    let bomb = bomb.finish().unwrap();
    let mut got = None;
    let peak = support::peak_bytes(|| got = Some(RegisterBroker::decode(409, true, &bomb)));
    assert!(matches!(got, Some(Err(BodyError::Compressed { .. }))));
    assert!(peak <= 4 * INFLATED_BYTES_MAX, "{peak} bytes for a bomb of {}", bomb.len());
}
