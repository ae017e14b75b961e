//! Headers as stock peers write them, byte for byte.

use bytes::BytesMut;

use super::*;
use crate::command::Command;
use crate::frame::{FRAME_BYTES_MAX, FrameRef, Peek, peek};
use crate::reply::{ReplyHead, encode_reply};

/// A frame written by the stock 4.9.8 encoder: SEND_MESSAGE_V2 with a JSON header.
pub(crate) const SEND_V2_JSON: &str = r#"{"code":310,"extFields":{"a":"PG","b":"TopicTest","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0","i":"UNIQ_KEY\u00017F0000010BB818B4AAC214A1B2C30000\u0002WAIT\u0001true\u0002TAGS\u0001TagA","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}"#;

const SEND_V2_BINARY: &str = "000000eb010000e20136000199000000070000000000000000000000cd00016100000002504700016200000009546f70696354657374000163000000065442573130320001640000000134000165000000013100016600000001300001670000000d3137303030303030303030303000016800000001300001690000003d554e49515f4b4559013746303030303031304242383138423441414332313441314232433330303030025741495401747275650254414753015461674100016a000000013000016b0000000566616c736500016d0000000566616c736500016e0000000862726f6b65722d6148656c6c6f";

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn framed(header: &str, body: &str) -> Vec<u8> {
    let mut out = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&(header.len() as u32).to_be_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body.as_bytes());
    out
}

fn whole(buf: &[u8]) -> FrameRef<'_> {
    match peek(buf, FRAME_BYTES_MAX) {
        Ok(Peek::Frame(frame)) if frame.len == buf.len() => frame,
        other => panic!("not one whole frame: {other:?}"),
    }
}

fn json(header: &str) -> Result<Command, HeaderError> {
    let wire = framed(header, "");
    Command::decode(&whole(&wire))
}

#[test]
fn send_v2_reads_the_same_from_both_forms() {
    let json = framed(SEND_V2_JSON, "Hello");
    assert_eq!(json.len(), 354);
    let binary = unhex(SEND_V2_BINARY);
    assert_eq!(binary.len(), 239);
    let from_json = Command::decode(&whole(&json)).unwrap();
    let from_binary = Command::decode(&whole(&binary)).unwrap();
    assert_eq!(from_json.code, 310);
    assert_eq!((from_json.opaque, from_json.flag, from_json.version), (7, 0, 409));
    assert_eq!(from_json.language, Language::JAVA);
    assert_eq!(from_json.ext("b"), Some("TopicTest"));
    let properties =
        "UNIQ_KEY\u{1}7F0000010BB818B4AAC214A1B2C30000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
    assert_eq!(from_json.ext("i"), Some(properties));
    assert_eq!(&from_json.body[..], b"Hello");
    let same = Command { serialize: from_json.serialize, ..from_binary.clone() };
    assert_eq!(from_json, same);
    // And both are written back to the byte.
    let mut out = BytesMut::new();
    from_json.encode(&mut out);
    assert_eq!(out, json);
    out.clear();
    from_binary.encode(&mut out);
    assert_eq!(out, binary);
}

#[test]
fn send_reply_is_what_stock_writes() {
    let ext = [
        ("queueId", ExtValue::I64(1)),
        ("TRACE_ON", ExtValue::Bool(true)),
        ("MSG_REGION", ExtValue::Str("DefaultRegion")),
        ("msgId", ExtValue::Str("7F00000100002A9F0000000000001234")),
        ("queueOffset", ExtValue::I64(42)),
    ];
    let mut reply = ReplyHead {
        serialize: SerializeType::Json,
        opaque: 7,
        code: 0,
        remark: None,
        ext: Some(&ext),
    };
    let mut out = BytesMut::new();
    encode_reply(&mut out, &reply, 0);
    let want = framed(
        r#"{"code":0,"extFields":{"queueId":"1","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F0000000000001234","queueOffset":"42"},"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}"#,
        "",
    );
    assert_eq!(out, want);
    assert_eq!(out.len(), 240);
    let order = [ext[3], ext[0], ext[4], ext[1], ext[2]];
    reply.serialize = SerializeType::Binary;
    reply.ext = Some(&order);
    out.clear();
    encode_reply(&mut out, &reply, 0);
    assert_eq!(
        out,
        unhex(
            "000000940100009000000001990000000700000001000000000000007b00056d736749640000002037463030303030313030303032413946303030303030303030303030313233340007717565756549640000000131000b71756575654f6666736574000000023432000854524143455f4f4e0000000474727565000a4d53475f524547494f4e0000000d44656661756c74526567696f6e"
        )
    );
}

#[test]
fn pull_reply_is_what_stock_writes() {
    let ext = [
        ("suggestWhichBrokerId", ExtValue::I64(0)),
        ("nextBeginOffset", ExtValue::I64(6)),
        ("maxOffset", ExtValue::I64(6)),
        ("minOffset", ExtValue::I64(0)),
    ];
    let reply = ReplyHead {
        serialize: SerializeType::Json,
        opaque: 8,
        code: 0,
        remark: Some("FOUND"),
        ext: Some(&ext),
    };
    let mut out = BytesMut::new();
    encode_reply(&mut out, &reply, 0);
    let want = r#"{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"6","maxOffset":"6","minOffset":"0"},"flag":1,"language":"JAVA","opaque":8,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":409}"#;
    assert_eq!(out, framed(want, ""));
    let order = [ext[0], ext[1], ext[3], ext[2]];
    let reply = ReplyHead { serialize: SerializeType::Binary, ext: Some(&order), ..reply };
    out.clear();
    encode_reply(&mut out, &reply, 0);
    assert_eq!(
        out,
        unhex(
            "0000006f0100006b0000000199000000080000000100000005464f554e4400000051001473756767657374576869636842726f6b657249640000000130000f6e657874426567696e4f6666736574000000013600096d696e4f6666736574000000013000096d61784f66667365740000000136"
        )
    );
}

#[test]
fn unknown_code_reply_is_what_stock_writes() {
    let mut out = BytesMut::new();
    let reply = ReplyHead {
        serialize: SerializeType::Binary,
        opaque: 1005,
        code: 3,
        remark: Some(" request type 361 not supported"),
        ext: None,
    };
    encode_reply(&mut out, &reply, 0);
    let want = unhex(
        "0003000199000003ed000000010000001f2072657175657374207479706520333631206e6f7420737570706f7274656400000000",
    );
    assert_eq!(out[8..], want);
}

#[test]
fn notify_consumer_ids_changed_is_what_stock_writes() {
    let mut command = Command::oneway(crate::code::request::NOTIFY_CONSUMER_IDS_CHANGED)
        .with_ext("consumerGroup", "CG");
    command.opaque = 1;
    let mut out = BytesMut::new();
    command.encode(&mut out);
    assert_eq!(
        out,
        unhex(
            "00000087000000837b22636f6465223a34302c226578744669656c6473223a7b22636f6e73756d657247726f7570223a224347227d2c22666c6167223a322c226c616e6775616765223a224a415641222c226f7061717565223a312c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3430397d"
        )
    );
}

#[test]
fn leniencies_of_fastjson_are_accepted() {
    let got = json(
        " {'code':'11',opaque: -5 , \"flag\":\"2\",\"version\":317,\"language\":12,\"zzz\":{\"a\":[1,{\"}\":']'}]},\
         \"extFields\":{\"queueId\":3,x:true,\"y\":null,\"z\":-1.5e3,\"e\":\"\",\"n\":[1, {}],},\"remark\":null,} \n",
    )
    .unwrap();
    assert_eq!((got.code, got.opaque, got.flag, got.version), (11, -5, 2, 317));
    assert_eq!(got.language, Language::RUST);
    assert_eq!(got.remark, None);
    assert_eq!(got.ext("queueId"), Some("3"));
    assert_eq!(got.ext("x"), Some("true"));
    assert_eq!(got.ext("z"), Some("-1.5e3"));
    assert_eq!(got.ext("n"), Some("[1, {}]"));
    assert_eq!((got.ext("y"), got.ext("e"), got.ext("absent")), (None, None, None));
}

#[test]
fn absent_fields_have_the_defaults_of_stock() {
    let got = json("{}").unwrap();
    assert_eq!((got.code, got.opaque, got.flag, got.version), (0, 0, 0, 0));
    assert_eq!(got.language, Language::JAVA);
    assert_eq!(json(r#"{"language":"COBOL"}"#).unwrap().language, Language::UNKNOWN);
    assert_eq!(json(r#"{"extFields":null,"remark":""}"#).unwrap().remark, None);
}

#[test]
fn of_a_repeated_name_the_last_counts() {
    let got = json(r#"{"code":1,"code":2,"extFields":{"a":"1","a":"2","b":"1","b":""}}"#).unwrap();
    assert_eq!((got.code, got.ext("a"), got.ext("b")), (2, Some("2"), None));
    let got = json(r#"{"extFields":{"a":"1"},"extFields":{"b":"2"}}"#).unwrap();
    assert_eq!((got.ext("a"), got.ext("b")), (None, Some("2")));
}

#[test]
fn malformed_json_headers_are_refused() {
    for bad in [
        "",
        "null",
        "[]",
        "{",
        "{\"code\"",
        "{\"code\":",
        "{\"code\":1",
        "{\"code\":1}x",
        "{\"code\":1 \"flag\":2}",
        "{\"code\":abc}",
        "{\"code\":1.5}",
        "{\"code\":4294967296}",
        "{\"code\":[}",
        "{\"remark\":\"abc}",
        "{\"remark\":\"\\q\"}",
        "{\"extFields\":[]}",
        "{\"extFields\":{\"a\"}}",
        "{,}",
        "{\"x\":[{]}}",
    ] {
        assert!(json(bad).is_err(), "{bad}");
    }
    let deep = format!("{{\"x\":{}}}", "[".repeat(100_000));
    assert!(matches!(json(&deep), Err(HeaderError::Json { what: "value nested too deeply", .. })));
    let many = format!("{{\"extFields\":{{{}}}}}", "a:1,".repeat(EXT_FIELDS_MAX + 1));
    assert_eq!(json(&many), Err(HeaderError::TooManyFields));
}

#[test]
fn bytes_that_are_not_utf8_become_replacement_characters() {
    let mut wire = framed(r#"{"extFields":{"a":"_x","b":"ok"}}"#, "");
    let at = wire.iter().position(|b| *b == b'_').unwrap();
    wire[at] = 0xB0;
    let got = Command::decode(&whole(&wire)).unwrap();
    assert_eq!((got.ext("a"), got.ext("b")), (Some("\u{FFFD}x"), Some("ok")));

    let mut wire = unhex(SEND_V2_BINARY);
    wire[45] = 0xFF;
    let got = Command::decode(&whole(&wire)).unwrap();
    assert_eq!(got.ext("b"), Some("\u{FFFD}opicTest"));
    assert_eq!(got.ext("n"), Some("broker-a"));
}

#[test]
fn binary_headers_with_wrong_lengths_are_refused() {
    let good = unhex(SEND_V2_BINARY);
    let frame = whole(&good);
    let mut decoder = HeaderDecoder::new();
    for cut in 0..frame.header.len() {
        let got = decoder.decode(SerializeType::Binary, &frame.header[..cut]);
        assert!(got.is_err(), "cut at {cut}");
    }
    // The remark's length, the ext block's length, a key's and a value's length, each made negative.
    for at in [13, 17, 21, 24] {
        let mut header = frame.header.to_vec();
        header[at] = 0x80;
        assert!(decoder.decode(SerializeType::Binary, &header).is_err(), "length at {at}");
    }
    // Bytes after the ext block are ignored.
    let mut header = frame.header.to_vec();
    header.push(1);
    assert!(decoder.decode(SerializeType::Binary, &header).is_ok());
}

#[test]
fn a_giant_header_does_not_stay_in_memory() {
    let mut decoder = HeaderDecoder::new();
    let giant = format!(r#"{{"remark":"\n{}"}}"#, "x".repeat(1 << 20));
    assert!(decoder.decode(SerializeType::Json, giant.as_bytes()).unwrap().remark().is_some());
    decoder.decode(SerializeType::Json, b"{}").unwrap();
    assert!(decoder.scratch.capacity() <= SCRATCH_KEEP_BYTES);
}

#[test]
fn a_header_that_cannot_be_framed_becomes_an_error_reply() {
    let long = "x".repeat(crate::frame::HEADER_BYTES_MAX);
    let ext = [("msgId", ExtValue::Str(&long))];
    let reply = ReplyHead {
        serialize: SerializeType::Json,
        opaque: 3,
        code: 0,
        remark: None,
        ext: Some(&ext),
    };
    let mut out = BytesMut::new();
    encode_reply(&mut out, &reply, 0);
    let got = Command::decode(&whole(&out)).unwrap();
    assert_eq!((got.code, got.opaque), (1, 3));
}

/// All that a view says.
fn said(view: &HeaderView<'_>) -> String {
    let ext: Vec<_> = view.ext_iter().collect();
    let (code, opaque, flag, version) = (view.code(), view.opaque(), view.flag(), view.version());
    format!("{code} {opaque} {flag} {version} {:?} {:?} {ext:?}", view.language(), view.remark())
}

/// Small and repeatable.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Headers that nobody should send, beside those of stock clients.
const ODD: [&str; 11] = [
    r#"{"code":310,"x":{"opaque":0},"extFields":{"a":"x"}}"#,
    r#"{"code":310,"extFields":{"opaque":0},"extFields":{"a":"x"}}"#,
    r#"{"code":310,"x":'"opaque":0',"extFields":{"a":"x"}}"#,
    r#"{"code":310,"opaque":1,"extFields":{"a":"x","opaque":"5"},"opaque":1}"#,
    r#"{"code":310,"extFields":{"a":"x"},"opaque":7,'opaque':7}"#,
    r#"{"code":310,"extFields":{"a":"x"},"opaque":7,"\u006fpaque":7}"#,
    r#"{"code":310,"extFields":{"a":"x","a":"y"},"flag":0,"opaque":-7}"#,
    r#"{"code":310,"extFields":{"a":"1"},"extFields":{"b":"2"},"opaque":7}"#,
    r#"{"code":310,"extFields":{"a" : "x", b:3,"c":null},"opaque":7}"#,
    r#"{"code":310,"opaque":"7","extFields":{"a":"x"}}"#,
    r#"{"opaque":7,"code":310,"remark":"é","extFields":{"é":"ü\n"}}"#,
];

#[test]
fn what_was_read_before_changes_nothing() {
    let usual = [
        SEND_V2_JSON,
        r#"{"code":11,"extFields":{"queueId":"3","maxMsgNums":"32","sysFlag":"2","suspendTimeoutMillis":"15000","commitOffset":"0","topic":"T","queueOffset":"12","expressionType":"TAG","subVersion":"1","consumerGroup":"G"},"flag":0,"language":"JAVA","opaque":12,"serializeTypeCurrentRPC":"JSON","version":405}"#,
        r#"{"code":34,"flag":0,"language":"GO","opaque":3,"version":317,"remark":"","extFields":{}}"#,
    ];
    let values = [
        "",
        "0",
        "31",
        "TopicTest",
        r"K\u0001v\u0002W\u0001true",
        r"a\\",
        r#"\\\"q"#,
        "é",
        "\"",
        r"\q",
    ];
    let mut dice = Dice(2026);
    let mut decoder = HeaderDecoder::new();
    for round in 0..30_000 {
        let all = usual.len() + if round % 4 == 0 { ODD.len() } else { 0 };
        let at = dice.below(all);
        let mut text = usual.get(at).or_else(|| ODD.get(at - usual.len())).unwrap().to_string();
        // Most differ in the number alone; some in a value; a few are spoiled.
        text =
            text.replacen("\"opaque\":", &format!("\"opaque\":{}", dice.below(3)), dice.below(3));
        if dice.below(3) == 0 {
            let quoted: Vec<usize> = text.match_indices("\":\"").map(|(at, _)| at + 3).collect();
            let from = quoted.get(dice.below(quoted.len().max(1))).copied().unwrap_or(0);
            let end = text[from..].find('"').map_or(text.len(), |len| from + len);
            text.replace_range(from..end, values[dice.below(values.len())]);
        }
        let mut bytes = text.into_bytes();
        if dice.below(5) == 0 {
            let place = dice.below(bytes.len());
            match dice.below(3) {
                0 => drop(bytes.remove(place)),
                1 => bytes[place] = b"\"\\:,{}x0 "[dice.below(9)],
                _ => bytes.truncate(place),
            }
        }
        let mut fresh = HeaderDecoder::new();
        let want = fresh.decode(SerializeType::Json, &bytes).map(|view| said(&view));
        let got = decoder.decode(SerializeType::Json, &bytes).map(|view| said(&view));
        assert_eq!(got, want, "round {round}: {}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn kinds_that_are_met_often_stay_remembered() {
    let mut decoder = HeaderDecoder::new();
    let mut read = |code: usize| {
        let text = format!(r#"{{"code":{code},"extFields":{{"topic":"T"}},"opaque":1}}"#);
        assert_eq!(
            decoder.decode(SerializeType::Json, text.as_bytes()).unwrap().code(),
            code as i32
        );
        decoder.memos.of(&text).is_some_and(|memo| !memo.is_fresh())
    };
    for code in 100..120 {
        read(code);
    }
    // Twenty kinds, none of them often: another one finds its place.
    let known = (0..100).filter(|_| read(310)).count();
    assert!(known >= 80, "read by memory {known} times of 100");
    for code in 100..120 {
        read(code);
    }
    assert!(read(310), "forgotten over kinds that are rare");
}

#[test]
fn headers_of_one_client_are_read_by_memory() {
    let mut decoder = HeaderDecoder::new();
    let mut learned = 0;
    for n in 0..100 {
        let text = SEND_V2_JSON
            .replace("\"opaque\":7", &format!("\"opaque\":{n}"))
            .replace("\"e\":\"1\"", &format!("\"e\":\"{}\"", n % 16))
            .replace("C30000", &format!("C3{n:04X}"));
        let view = decoder.decode(SerializeType::Json, text.as_bytes()).unwrap();
        assert_eq!(view.opaque(), n);
        assert_eq!(view.ext("e"), Some((n % 16).to_string().as_str()));
        assert!(view.ext("i").unwrap().contains(&format!("C3{n:04X}\u{2}")));
        learned += i32::from(decoder.memos.of(&text).unwrap().is_fresh());
    }
    assert!(learned <= 8, "not read by memory {learned} times of 100");
}
