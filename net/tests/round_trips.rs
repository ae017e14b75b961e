//! What is written is read again the same, in every form, for values of all kinds.

use std::collections::BTreeMap;

use bytes::BytesMut;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use ringmq_net::body::{
    Body, BrokerData, ConsumeFrom, ConsumeType, ConsumerData, ConsumerOffsetTable, DataVersion,
    Heartbeat, MessageModel, MessageQueue, QueueData, RegisterBroker, ResetOffset,
    SubscriptionData, SubscriptionGroupConfig, SubscriptionGroupTable, TopicConfig,
    TopicConfigTable, TopicFilterType, TopicRouteData, body_crc32,
};
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, SerializeType, peek};
use ringmq_net::ha_frame::{self, HaPeek};
use ringmq_net::json::{Value, Writer};
use ringmq_net::language::Language;

/// Texts with all that needs care: separators, controls, quotes, more than ASCII.
fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zA-Z0-9_%@#\u{0}\u{1}\u{2}\"'\\\\/\n\t \u{7f}é標😀]{0,16}")
        .unwrap()
}

fn name() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zA-Z0-9_%|-]{1,20}").unwrap()
}

fn command() -> impl Strategy<Value = Command> {
    let serialize = prop_oneof![Just(SerializeType::Json), Just(SerializeType::Binary)];
    let numbers = (any::<i16>(), any::<i16>(), any::<i32>(), any::<i32>(), 0u8..13);
    let remark = option::of(text().prop_filter("an empty remark is none", |r| !r.is_empty()));
    let ext = vec((text(), text()), 0..20);
    let body = vec(any::<u8>(), 0..200);
    (serialize, numbers, remark, ext, body).prop_map(|(serialize, numbers, remark, ext, body)| {
        let (code, version, opaque, flag, language) = numbers;
        Command {
            code: i32::from(code),
            language: Language(language),
            version: i32::from(version),
            opaque,
            flag,
            remark,
            ext: ext.into_iter().map(|(k, v)| (k.into(), v)).collect(),
            body: body.into(),
            serialize,
        }
    })
}

fn value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        proptest::num::f64::NORMAL.prop_map(Value::Float),
        text().prop_map(|text| Value::Str(text.into())),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let key = prop_oneof![
            text().prop_map(|text| Value::Str(text.into())),
            any::<i64>().prop_map(Value::Int),
            vec(
                (text().prop_map(|t| Value::Str(t.into())), any::<i64>().prop_map(Value::Int)),
                0..3
            )
            .prop_map(Value::Object),
        ];
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec((key, inner), 0..6).prop_map(Value::Object),
        ]
    })
}

fn topic() -> impl Strategy<Value = TopicConfig> {
    let filter = prop_oneof![Just(TopicFilterType::SingleTag), Just(TopicFilterType::MultiTag)];
    (name(), any::<[i32; 4]>(), filter, any::<bool>()).prop_map(|(name, n, filter, order)| {
        TopicConfig {
            topic_name: name,
            read_queue_nums: n[0],
            write_queue_nums: n[1],
            perm: n[2],
            topic_filter_type: filter,
            topic_sys_flag: n[3],
            order,
        }
    })
}

fn data_version() -> impl Strategy<Value = DataVersion> {
    any::<(i64, i64)>().prop_map(|(timestamp, counter)| DataVersion { timestamp, counter })
}

fn topics() -> impl Strategy<Value = TopicConfigTable> {
    (data_version(), vec(topic(), 0..8))
        .prop_map(|(data_version, topics)| TopicConfigTable { data_version, topics })
}

fn subscription() -> impl Strategy<Value = SubscriptionData> {
    let lists = (vec(text(), 0..4), vec(any::<i32>(), 0..4));
    (text(), text(), lists, any::<i64>(), any::<bool>()).prop_map(
        |(topic, sub_string, (tags, codes), sub_version, class_filter_mode)| SubscriptionData {
            topic,
            sub_string,
            expression_type: "SQL92".into(),
            tags,
            codes,
            sub_version,
            class_filter_mode,
        },
    )
}

fn consumer() -> impl Strategy<Value = ConsumerData> {
    (text(), vec(subscription(), 0..4), any::<bool>(), any::<bool>()).prop_map(
        |(group_name, subscriptions, unit_mode, known)| ConsumerData {
            group_name,
            consume_type: known.then_some(ConsumeType::Actively),
            message_model: known.then_some(MessageModel::Broadcasting),
            consume_from: known.then_some(ConsumeFrom::Timestamp),
            subscriptions,
            unit_mode,
        },
    )
}

fn route() -> impl Strategy<Value = TopicRouteData> {
    let queue = (text(), any::<[i32; 4]>()).prop_map(|(broker_name, n)| QueueData {
        broker_name,
        read_queue_nums: n[0],
        write_queue_nums: n[1],
        perm: n[2],
        topic_sys_flag: n[3],
    });
    // Ids beyond 2^53 do not occur, and the strict form quotes keys anyway.
    let broker = (text(), text(), btree_map(any::<i64>(), text(), 0..4)).prop_map(
        |(cluster, broker_name, broker_addrs)| BrokerData { cluster, broker_name, broker_addrs },
    );
    let filters = btree_map(text(), vec(text(), 0..3), 0..3);
    (option::of(text()), vec(queue, 0..4), vec(broker, 0..4), filters).prop_map(
        |(order_topic_conf, queues, brokers, filter_servers)| TopicRouteData {
            order_topic_conf,
            queues,
            brokers,
            filter_servers,
        },
    )
}

fn written(value: &Value<'_>, mut w: Writer) -> String {
    value.write(&mut w);
    String::from_utf8(w.finish()).unwrap()
}

fn comes_back<B: Body + PartialEq + std::fmt::Debug>(body: &B) {
    assert_eq!(B::from_json(&body.to_json()).as_ref(), Ok(body));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn commands_come_back_from_both_forms(sent in command()) {
        let mut wire = BytesMut::new();
        sent.encode(&mut wire);
        let Ok(Peek::Frame(frame)) = peek(&wire, FRAME_BYTES_MAX) else { panic!("no frame") };
        prop_assert_eq!(frame.len, wire.len());
        prop_assert_eq!(Command::decode(&frame), Ok(sent));
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut(
        sent in vec(command(), 1..5), cuts in vec(1usize..300, 1..20),
    ) {
        let mut wire = BytesMut::new();
        sent.iter().for_each(|command| command.encode(&mut wire));
        let (mut have, mut start, mut cuts) = (0, 0, cuts.iter().cycle());
        let mut got = Vec::new();
        while start < wire.len() {
            match peek(&wire[start..have], FRAME_BYTES_MAX).unwrap() {
                Peek::Need(need) => {
                    prop_assert!(need > have - start);
                    prop_assert!(have < wire.len(), "more is needed than was sent");
                    have = wire.len().min(have + cuts.next().unwrap());
                }
                Peek::Frame(frame) => {
                    got.push(Command::decode(&frame).unwrap());
                    start += frame.len;
                }
            }
        }
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn ha_frames_come_back(offset in 0..=i64::MAX, body in vec(any::<u8>(), 0..100)) {
        let mut wire = ha_frame::encode_header(offset as u64, body.len() as u32).to_vec();
        wire.extend_from_slice(&body);
        let Ok(HaPeek::Frame(frame)) = ha_frame::peek(&wire, 100) else { panic!("no frame") };
        prop_assert_eq!((frame.physical_offset, frame.body), (offset, &body[..]));
    }

    #[test]
    fn json_comes_back_from_every_style(sent in value()) {
        for w in [Writer::new(), Writer::pretty()] {
            let text = written(&sent, w);
            prop_assert!(Value::parse(&text).as_ref() == Ok(&sent), "{}", text);
        }
    }

    #[test]
    fn bodies_come_back(
        client_id in text(), producers in vec(text(), 0..4), consumers in vec(consumer(), 0..4),
        topics in topics(), rows in vec((text(), text(), any::<i32>(), any::<i64>()), 0..5),
        offsets in btree_map(text(), btree_map(any::<i32>(), any::<i64>(), 0..4), 0..4),
        groups in vec(name(), 0..4),
    ) {
        comes_back(&Heartbeat { client_id, producers, consumers });
        comes_back(&topics);
        comes_back(&ConsumerOffsetTable { offsets });
        let groups = groups.into_iter().map(SubscriptionGroupConfig::new).collect();
        comes_back(&SubscriptionGroupTable { data_version: topics.data_version, groups });
        let rows = rows.into_iter().map(|(t, b, id, at)| (MessageQueue::new(t, b, id), at));
        let reset = ResetOffset { offsets: rows.collect() };
        comes_back(&reset);
        prop_assert_eq!(ResetOffset::from_json(&reset.to_list_json()), Ok(reset));
    }

    #[test]
    fn routes_come_back_from_both_dialects(route in route()) {
        comes_back(&route);
        let strict = route.to_strict_json();
        prop_assert!(strict.is_ascii());
        assert_eq!(TopicRouteData::from_json(&strict).as_ref(), Ok(&route));
        // Strict means strict: a plain JSON library reads it.
        let keys: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&strict).unwrap();
        prop_assert_eq!(keys.len(), 3 + usize::from(route.order_topic_conf.is_some()));
    }

    #[test]
    fn registrations_come_back_from_both_forms(
        topics in topics(), filter_servers in option::of(vec(name(), 0..3)),
    ) {
        let sent = RegisterBroker { filter_servers, topics };
        let plain = sent.to_json();
        assert_eq!(RegisterBroker::decode(409, false, &plain).as_ref(), Ok(&sent));
        prop_assert!(body_crc32(&plain) >= 0);
        let got = RegisterBroker::decode(409, true, &sent.to_compressed()).unwrap();
        let mut want = RegisterBroker { filter_servers: Some(sent.filter_servers.unwrap_or_default()), ..sent };
        for topic in &mut want.topics.topics {
            (topic.order, topic.topic_sys_flag) = (false, 0);
        }
        prop_assert_eq!(got, want);
    }
}
