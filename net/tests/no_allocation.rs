//! The path of a message through the codec allocates nothing after warm-up.

use bytes::BytesMut;
use ringmq_net::command::{Command, RequestHead, encode_request};
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, SerializeType, peek};
use ringmq_net::header::{ExtValue, HeaderDecoder, HeaderView};
use ringmq_net::headers::{PullHeader, SendHeader, UpdateConsumerOffsetHeader};
use ringmq_net::reply::{ReplyHead, encode_reply};

mod support;

#[global_allocator]
static COUNTING: support::Counting = support::Counting;

fn send(serialize: SerializeType) -> BytesMut {
    let header = SendHeader {
        producer_group: "PG",
        topic: "TopicTest",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id: 1,
        born_timestamp: 1_700_000_000_000,
        properties: "UNIQ_KEY\u{1}7F0000010BB818B4AAC214A1B2C30000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA",
        ..SendHeader::default()
    };
    framed(serialize, 310, &header.ext_v2())
}

fn framed(serialize: SerializeType, code: i32, ext: &[(&'static str, ExtValue<'_>)]) -> BytesMut {
    let body = [b'x'; 1024];
    let mut out = BytesMut::new();
    let request = RequestHead { serialize, opaque: 7, ..RequestHead::new(code, ext) };
    assert!(encode_request(&mut out, &request, body.len()));
    out.extend_from_slice(&body);
    out
}

/// What a handler does to the header: the typed form of the code.
fn typed(view: &HeaderView<'_>) -> i32 {
    match view.code() {
        11 => PullHeader::decode(view).unwrap().queue_id,
        15 => UpdateConsumerOffsetHeader::decode(view).unwrap().queue_id,
        code => SendHeader::decode(code, view).unwrap().queue_id,
    }
}

#[test]
fn decode_and_reply_allocate_nothing() {
    let pull = Command::request(11)
        .with_ext("consumerGroup", "CG")
        .with_ext("topic", "TopicTest")
        .with_ext("queueId", 1)
        .with_ext("queueOffset", 5)
        .with_ext("maxMsgNums", 32)
        .with_ext("sysFlag", 3)
        .with_ext("commitOffset", 5)
        .with_ext("suspendTimeoutMillis", 15000)
        .with_ext("subVersion", 1_700_000_000_000i64)
        .with_ext("expressionType", "TAG");
    let commit = UpdateConsumerOffsetHeader {
        consumer_group: "CG",
        topic: "T",
        queue_id: 1,
        commit_offset: 9,
    };
    let mut pull_frame = BytesMut::new();
    pull.encode(&mut pull_frame);
    let frames = [
        send(SerializeType::Json),
        send(SerializeType::Binary),
        pull_frame,
        framed(SerializeType::Json, 15, &commit.ext()),
        framed(SerializeType::Binary, 15, &commit.ext()),
    ];
    let mut decoder = HeaderDecoder::new();
    let mut out = BytesMut::with_capacity(64 * 1024);
    let mut round = || {
        out.clear();
        for buf in &frames {
            let Ok(Peek::Frame(frame)) = peek(buf, FRAME_BYTES_MAX) else { panic!("no frame") };
            let view = decoder.decode(frame.serialize, frame.header).unwrap();
            let ext = [
                ("msgId", ExtValue::Str("7F00000100002A9F0000000000001234")),
                ("queueId", ExtValue::I64(i64::from(typed(&view)))),
                ("queueOffset", ExtValue::I64(i64::MAX)),
                ("TRACE_ON", ExtValue::Bool(true)),
            ];
            let reply = ReplyHead::to(&view, 0).remark("FOUND").ext(&ext);
            encode_reply(&mut out, &reply, 0);
        }
    };
    round();
    let count = support::allocations(|| (0..100).for_each(|_| round()));
    assert_eq!(count, 0, "allocations in 100 rounds of {} commands", frames.len());
    // And the counter does count.
    assert_eq!(support::allocations(|| drop(std::hint::black_box(vec![0u8; 9]))), 1);
}

/// Prints nanoseconds per header; run it in release with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a check"]
fn nanoseconds_per_header() {
    const ROUNDS: u32 = 1000;
    for serialize in [SerializeType::Json, SerializeType::Binary] {
        let buf = send(serialize);
        let Ok(Peek::Frame(frame)) = peek(&buf, FRAME_BYTES_MAX) else { panic!("no frame") };
        let mut decoder = HeaderDecoder::new();
        let mut time = |name: &str, mut work: Box<dyn FnMut(&mut HeaderDecoder) -> i32 + '_>| {
            // The best of many short stretches: other work on the machine only ever adds.
            let stretch = |_| {
                let started = std::time::Instant::now();
                for _ in 0..ROUNDS {
                    std::hint::black_box(work(&mut decoder));
                }
                started.elapsed() / ROUNDS
            };
            let each = (0..1000).map(stretch).min().unwrap_or_default();
            println!("{serialize:?} header of {} bytes, {name}: {each:?}", frame.header.len());
        };
        let decode = |decoder: &mut HeaderDecoder| {
            decoder.decode(frame.serialize, std::hint::black_box(frame.header)).unwrap().opaque()
        };
        time("decode", Box::new(decode));
        time(
            "decode and typed",
            Box::new(|decoder| {
                let header = std::hint::black_box(frame.header);
                typed(&decoder.decode(frame.serialize, header).unwrap())
            }),
        );
        let ext = [
            ("msgId", ExtValue::Str("7F00000100002A9F0000000000001234")),
            ("queueId", ExtValue::I64(1)),
            ("queueOffset", ExtValue::I64(42)),
            ("MSG_REGION", ExtValue::Str("DefaultRegion")),
            ("TRACE_ON", ExtValue::Bool(true)),
        ];
        let mut out = BytesMut::with_capacity(1024);
        let reply = ReplyHead { serialize, opaque: 7, code: 0, remark: None, ext: Some(&ext) };
        time(
            "reply",
            Box::new(|_| {
                out.clear();
                encode_reply(&mut out, std::hint::black_box(&reply), 0);
                out.len() as i32
            }),
        );
    }
}
