//! Typed headers against the texts that stock clients send.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::command::{Command, RequestHead, encode_request};
use crate::frame::{FRAME_BYTES_MAX, Peek, SerializeType, peek};
use crate::header::HeaderDecoder;

/// Decodes a JSON header and hands it to `check`.
fn with_json(header: &str, check: impl FnOnce(&HeaderView<'_>)) {
    let mut decoder = HeaderDecoder::new();
    check(&decoder.decode(SerializeType::Json, header.as_bytes()).unwrap());
}

/// Sends `ext` in both forms and hands what arrives to `check`.
fn over_the_wire(ext: &ExtFields<'_>, check: impl Fn(&HeaderView<'_>)) {
    for serialize in [SerializeType::Json, SerializeType::Binary] {
        let mut out = BytesMut::new();
        let head = RequestHead { serialize, opaque: 1, ..RequestHead::new(10, ext) };
        assert!(encode_request(&mut out, &head, 0));
        let Ok(Peek::Frame(frame)) = peek(&out, FRAME_BYTES_MAX) else { panic!("no frame") };
        let mut decoder = HeaderDecoder::new();
        check(&decoder.decode(frame.serialize, frame.header).unwrap());
    }
}

#[test]
fn send_v2_of_a_java_producer() {
    with_json(crate::header::tests::SEND_V2_JSON, |view| {
        let got = SendHeader::decode(view.code(), view).unwrap();
        let want = SendHeader {
            producer_group: "PG",
            topic: "TopicTest",
            default_topic: "TBW102",
            default_topic_queue_nums: 4,
            queue_id: 1,
            born_timestamp: 1_700_000_000_000,
            properties: "UNIQ_KEY\u{1}7F0000010BB818B4AAC214A1B2C30000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA",
            ..SendHeader::default()
        };
        assert_eq!(got, want);
    });
}

#[test]
fn send_v2_of_a_cpp_producer_with_numbers() {
    let header = r#"{"code":310,"extFields":{"a":"PG","b":"T","c":"TBW102","d":4,"e":0,"f":0,"g":"1700000000000","h":0,"i":"","j":"0","k":"false","l":16,"m":"true","Signature":"","AccessKey":""},"flag":0,"language":"CPP","opaque":1,"remark":"","version":333}
"#;
    with_json(header, |view| {
        let got = SendHeader::v2(view).unwrap();
        assert_eq!((got.batch, got.max_reconsume_times, got.properties), (true, Some(16), ""));
        assert_eq!(view.language(), crate::language::Language::CPP);
    });
}

#[test]
fn pull_of_a_java_consumer() {
    let header = r#"{"code":11,"extFields":{"queueId":"1","maxMsgNums":"32","sysFlag":"3","suspendTimeoutMillis":"15000","commitOffset":"5","bname":"broker-a","topic":"TopicTest","queueOffset":"5","expressionType":"TAG","subVersion":"1700000000000","consumerGroup":"CG"}}"#;
    with_json(header, |view| {
        let got = PullHeader::decode(view).unwrap();
        let want = PullHeader {
            consumer_group: "CG",
            topic: "TopicTest",
            queue_id: 1,
            queue_offset: 5,
            max_msg_nums: 32,
            sys_flag: pull_flag::COMMIT_OFFSET | pull_flag::SUSPEND,
            commit_offset: 5,
            suspend_timeout_millis: 15000,
            subscription: None,
            sub_version: 1_700_000_000_000,
            expression_type: Some("TAG"),
        };
        assert_eq!(got, want);
    });
}

#[test]
fn errors_name_the_field() {
    with_json(r#"{"extFields":{"topic":"T","queueId":"x1"}}"#, |view| {
        let error = QueueHeader::decode(view).unwrap_err();
        assert_eq!(error.to_string(), "ext field queueId is \"x1\", which is not a 32-bit number");
    });
    with_json(r#"{"extFields":{"topic":"","queueId":"4294967296"}}"#, |view| {
        let error = QueueHeader::decode(view).unwrap_err();
        assert_eq!(error, FieldError::Missing { name: "topic" });
        assert!(required_i32(view, "queueId").is_err());
        assert_eq!(required_i64(view, "queueId"), Ok(4_294_967_296));
    });
    with_json("{}", |view| {
        let error = SendHeader::v1(view).unwrap_err();
        assert_eq!(error.to_string(), "ext field queueId is missing or empty");
        assert_eq!(SendHeader::v2(view), Err(FieldError::Missing { name: "e" }));
    });
}

#[test]
fn empty_groups_of_a_cpp_client_are_absent() {
    let header = r#"{"extFields":{"clientID":"c2@cpp","producerGroup":"","consumerGroup":"g2"}}"#;
    with_json(header, |view| {
        let got = UnregisterClientHeader::decode(view).unwrap();
        assert_eq!((got.producer_group, got.consumer_group), (None, Some("g2")));
    });
}

#[test]
fn update_topic_of_mqadmin() {
    let command = Command::request(17)
        .with_ext("readQueueNums", 4)
        .with_ext("perm", 6)
        .with_ext("writeQueueNums", 4)
        .with_ext("topicFilterType", "SINGLE_TAG")
        .with_ext("topic", "TopicA")
        .with_ext("defaultTopic", "TBW102")
        .with_ext("topicSysFlag", 0)
        .with_ext("order", false);
    let mut out = BytesMut::new();
    command.encode(&mut out);
    let Ok(Peek::Frame(frame)) = peek(&out, FRAME_BYTES_MAX) else { panic!("no frame") };
    let mut decoder = HeaderDecoder::new();
    let view = decoder.decode(frame.serialize, frame.header).unwrap();
    let got = CreateTopicHeader::decode(&view).unwrap();
    assert_eq!((got.topic, got.read_queue_nums, got.perm, got.order), ("TopicA", 4, 6, false));
}

/// Texts with everything that needs care: separators, quotes, more than ASCII.
fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zA-Z0-9_%\u{1}\u{2}\"\\\\/\n標😀]{1,12}").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn send_headers_survive_the_wire(
        group in text(), topic in text(), properties in text(), numbers in any::<[i32; 6]>(),
        born in any::<i64>(), max in any::<Option<i32>>(), flags in any::<[bool; 2]>(),
    ) {
        let sent = SendHeader {
            producer_group: &group, topic: &topic, default_topic: "TBW102",
            default_topic_queue_nums: numbers[0], queue_id: numbers[1], sys_flag: numbers[2],
            born_timestamp: born, flag: numbers[3], properties: &properties,
            reconsume_times: numbers[4], unit_mode: flags[0], max_reconsume_times: max, batch: flags[1],
        };
        over_the_wire(&sent.ext_v1(), |view| assert_eq!(SendHeader::v1(view), Ok(sent)));
        over_the_wire(&sent.ext_v2(), |view| assert_eq!(SendHeader::v2(view), Ok(sent)));
    }

    #[test]
    fn headers_survive_the_wire(
        a in text(), b in text(), c in any::<Option<i32>>(), n in any::<i64>(), i in any::<i32>(),
        yes in any::<bool>(),
    ) {
        let back = SendBackHeader {
            offset: n, group: &a, delay_level: i, origin_msg_id: Some(&b), origin_topic: None,
            unit_mode: yes, max_reconsume_times: c,
        };
        over_the_wire(&back.ext(), |view| assert_eq!(SendBackHeader::decode(view), Ok(back)));
        let register = RegisterBrokerHeader {
            broker_name: &a, broker_addr: &b, cluster_name: &a, ha_server_addr: None, broker_id: n,
            compressed: yes, body_crc32: i, heartbeat_timeout_millis: Some(n),
        };
        over_the_wire(&register.ext(), |view| {
            assert_eq!(RegisterBrokerHeader::decode(view), Ok(register));
        });
        let kv = KvHeader { namespace: Some(&a), key: None, value: Some(&b) };
        over_the_wire(&kv.ext(), |view| assert_eq!(KvHeader::decode(view), Ok(kv)));
    }
}
