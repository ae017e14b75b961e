//! SEND_MESSAGE (10) and SEND_MESSAGE_V2 (310): checks, replies, where messages go, topics that sends make.

use std::collections::BTreeSet;

use super::ext::{BORN, Ext};
use super::fixture::{
    FAQ, Own, SOON, offset_id, physical_offset, shared, soon, stock, topic, unique,
};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Frame, Peer};

/// Both codes in both forms.
fn every_way(scenario: impl Fn(&mut Peer, i32)) {
    for form in FORMS {
        for code in [10, 310] {
            let mut peer = shared().peer(form);
            scenario(&mut peer, code);
        }
    }
}

fn try_send(peer: &mut Peer, code: i32, ext: Ext, body: &[u8]) -> Frame {
    let reply = peer.call(code, &ext.named_for(code), body);
    // Go takes the absence of TRACE_ON for "off"; C++ wants exactly "true".
    assert_eq!(reply.ext("MSG_REGION"), Some("DefaultRegion"), "{reply:?}");
    assert_eq!(reply.ext("TRACE_ON"), Some("true"), "{reply:?}");
    reply
}

#[test]
fn a_stored_message_is_told_where_it_is() {
    every_way(|peer, code| {
        let topic = topic(4);
        for expected in 0..3 {
            let ext = Ext::send(&topic).with("e", 2);
            let reply = try_send(peer, code, ext, b"where").ok();
            assert_eq!(reply.remark, None);
            assert!(reply.body.is_empty());
            assert_eq!((reply.number("queueId"), reply.number("queueOffset")), (2, expected));
            assert_eq!(reply.ext("transactionId"), None);
            let id = reply.ext("msgId").expect("a message id");
            assert_eq!(id, offset_id(shared().main, physical_offset(id)));
            if !stock() {
                assert_eq!(reply.ext("ackLevel"), Some("write"));
                assert_eq!(reply.ext("ackReplicas"), Some("0"));
            }
            let message = peer.view(physical_offset(id));
            assert_eq!((message.topic.as_str(), message.queue_id), (topic.as_str(), 2));
            assert_eq!(message.queue_offset, expected);
        }
        assert_eq!(peer.pull(&topic, 2, 0).len(), 3);
    });
}

#[test]
fn a_record_keeps_what_was_sent_and_the_addresses_of_both_ends() {
    every_way(|peer, code| {
        let topic = topic(1);
        let ext = Ext::send(&topic).with("f", 0x301).with("h", -9).with("j", 3);
        try_send(peer, code, ext, &[0, 159, 146, 150]).ok();
        let message = peer.pull(&topic, 0, 0).remove(0);
        assert_eq!(message.body, [0, 159, 146, 150]);
        assert_eq!((message.sys_flag, message.flag, message.reconsume_times), (0x301, -9, 3));
        assert_eq!(message.born, BORN);
        assert_eq!((message.born_host, message.store_host), (peer.address(), shared().main));
    });
}

#[test]
fn an_empty_body_is_stored() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    peer.send(&topic, &[], b"");
    assert!(peer.pull(&topic, 0, 0)[0].body.is_empty());
}

#[test]
fn topic_names_are_refused_in_stocks_order_with_its_words() {
    let blank = "The specified topic is blank.";
    let illegal =
        "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$";
    let long = "The specified topic is longer than topic max length.";
    every_way(|peer, code| {
        let refused = |peer: &mut Peer, name: &str, remark: &str| {
            // A queue id that would be refused, too, by a later check.
            let ext = Ext::send(name).with("e", 99);
            try_send(peer, code, ext, b"x").refused(1, remark);
        };
        refused(peer, "", blank);
        refused(peer, " \t", blank);
        refused(peer, "a b", illegal);
        refused(peer, "a.b", illegal);
        refused(peer, "主题", illegal);
        refused(peer, &format!("{}!", "x".repeat(130)), illegal);
        for path in ["a/b", "../x", "..", "/", "\\", "a\0b", ".", "~"] {
            refused(peer, path, illegal);
        }
        for length in [128, 255, 256, 70_000] {
            if length < 32_768 || peer.form == Form::Json {
                refused(peer, &"x".repeat(length), long);
            }
        }
        try_send(peer, code, Ext::send("x").without("b"), b"x").refused(1, blank);
        let longest = format!("{}{}", unique("L"), "x".repeat(127));
        try_send(peer, code, Ext::send(&longest[..127]), b"x").ok();
    });
}

#[test]
fn the_brokers_own_topics_take_no_sends() {
    every_way(|peer, code| {
        for name in [
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
        ] {
            let remark = format!("Sending message to topic[{name}] is forbidden.");
            try_send(peer, code, Ext::send(name).with("e", 99), b"x").refused(16, &remark);
        }
    });
}

#[test]
fn system_topics_that_are_for_clients_take_sends() {
    let mut peer = shared().peer(Form::Json);
    for name in [
        "TBW102",
        "BenchmarkTest",
        "DefaultCluster",
        "broker-a",
        "DefaultCluster_REPLY_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
    ] {
        try_send(&mut peer, 310, Ext::send(name), b"x").ok();
    }
}

#[test]
fn an_unknown_topic_without_a_template_is_17() {
    let plain = topic(1);
    every_way(|peer, code| {
        let name = unique("Unknown");
        let remark = format!("topic[{name}] not exist, apply first please!{FAQ}");
        // Neither a topic that is not there nor one without the inherit bit is a template.
        for template in ["NoSuchTemplate", plain.as_str(), ""] {
            if template.is_empty() && stock() {
                continue;
            }
            let ext = Ext::send(&name).with("c", template).with("e", 99);
            try_send(peer, code, ext, b"x").refused(17, &remark);
        }
        assert_eq!(peer.topic_config(&name), None);
    });
}

#[test]
fn a_queue_that_is_not_there_is_1_with_the_topics_settings() {
    every_way(|peer, code| {
        let name = unique("Q");
        let create = Ext::create_topic(&name, 4).with("readQueueNums", 6);
        peer.call(17, &create, &[]).ok();
        let remark = format!(
            "request queueId[6] is illegal, TopicConfig [topicName={name}, readQueueNums=6, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: {}",
            peer.address()
        );
        try_send(peer, code, Ext::send(&name).with("e", 6), b"x").refused(1, &remark);
        // The greater of the two counts is the bound.
        let reply = try_send(peer, code, Ext::send(&name).with("e", 5), b"x").ok();
        assert_eq!(reply.number("queueId"), 5);
    });
}

#[test]
fn a_negative_queue_id_lets_the_broker_choose_among_the_write_queues() {
    let name = unique("Any");
    let mut peer = shared().peer(Form::Json);
    peer.call(17, &Ext::create_topic(&name, 4).with("readQueueNums", 16), &[]).ok();
    let mut chosen = BTreeSet::new();
    for _ in 0..64 {
        let reply = try_send(&mut peer, 310, Ext::send(&name).with("e", -1), b"x").ok();
        let queue = reply.number("queueId") as i32;
        chosen.insert(queue);
        let message = peer.view(physical_offset(reply.ext("msgId").expect("an id")));
        assert_eq!((message.queue_id, message.queue_offset), (queue, reply.number("queueOffset")));
    }
    assert_eq!(
        chosen,
        BTreeSet::from([0, 1, 2, 3]),
        "64 sends, each queue missed by chance in 1 of 10^8 runs"
    );
    if stock() {
        return; // A division by zero there, answered 1 without fields.
    }
    let none = unique("None");
    peer.call(17, &Ext::create_topic(&none, 0).with("readQueueNums", 1), &[]).ok();
    assert_eq!(try_send(&mut peer, 310, Ext::send(&none).with("e", -1), b"x").code, 1);
}

#[test]
fn a_field_that_is_missing_or_no_number_is_code_1() {
    every_way(|peer, code| {
        let topic = topic(1);
        for field in ["e", "f", "g", "h"] {
            for ext in [Ext::send(&topic).with(field, "x1"), Ext::send(&topic).without(field)] {
                let reply = peer.call(code, &ext.named_for(code), b"x");
                assert_eq!(reply.code, 1, "{field}: {reply:?}");
                assert!(!reply.remark().is_empty());
            }
        }
        // Optional ones.
        let ext = ["j", "k", "m", "n", "i", "a"].into_iter().fold(Ext::send(&topic), Ext::without);
        try_send(peer, code, ext, b"x").ok();
        assert_eq!(peer.max_offset(&topic, 0), 1);
    });
}

#[test]
fn a_half_message_is_refused_with_16() {
    if stock() {
        return;
    }
    every_way(|peer, code| {
        let topic = topic(1);
        for value in ["true", "TRUE"] {
            let ext =
                Ext::send(&topic).with("f", 4).properties(&[("TRAN_MSG", value), ("PGROUP", "P")]);
            try_send(peer, code, ext, b"x")
                .refused(16, "the broker[127.0.0.1] sending transaction message is forbidden");
        }
        // An earlier check comes first.
        let ext = Ext::send(&topic).with("e", 1).properties(&[("TRAN_MSG", "true")]);
        assert_eq!(try_send(peer, code, ext, b"x").code, 1);
        let ext = Ext::send(&topic).properties(&[("TRAN_MSG", "false")]);
        try_send(peer, code, ext, b"x").ok();
        assert_eq!(peer.max_offset(&topic, 0), 1);
    });
}

#[test]
fn prepared_and_rolled_back_records_never_enter_a_queue() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    for flag in [0x4, 0xC] {
        // DELAY does not act on them either.
        let ext = Ext::send(&topic).with("f", flag).properties(&[("DELAY", "18")]);
        let reply = try_send(&mut peer, 310, ext, b"x").ok();
        assert_eq!(reply.number("queueOffset"), 0);
        let message = peer.view(physical_offset(reply.ext("msgId").expect("an id")));
        assert_eq!((message.sys_flag, message.topic.as_str()), (flag, topic.as_str()));
        assert_eq!(message.queue_offset, 0);
    }
    let committed = Ext::send(&topic).with("f", 0x8);
    assert_eq!(try_send(&mut peer, 310, committed, b"in").ok().number("queueOffset"), 0);
    assert_eq!(peer.pull(&topic, 0, 0).len(), 1);
    assert_eq!(peer.max_offset(&topic, 0), 1);
}

#[test]
fn bodies_over_the_limit_are_13_and_the_limit_is_taken() {
    const LIMIT: usize = 4 << 20;
    let mut peer = shared().peer(Form::Binary);
    let topic = topic(1);
    let body = vec![b'x'; LIMIT + 1];
    let remark = "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg properties length limit 32KB.";
    try_send(&mut peer, 310, Ext::send(&topic), &body).refused(13, remark);
    try_send(&mut peer, 310, Ext::send(&topic), &body[..LIMIT]).ok();
    let message = peer.pull(&topic, 0, 0).remove(0);
    assert_eq!(message.body.len(), LIMIT);
}

#[test]
fn a_oneway_send_is_stored_and_never_answered_not_even_when_refused() {
    every_way(|peer, code| {
        let topic = topic(1);
        let send =
            |peer: &mut Peer, ext: Ext| peer.post(code, FLAG_ONEWAY, &ext.named_for(code), b"x");
        send(peer, Ext::send(&topic));
        send(peer, Ext::send(&topic).with("e", 9));
        send(peer, Ext::send("").with("e", 9));
        send(peer, Ext::send(&topic).with("e", "no number"));
        send(peer, Ext::send(&topic).properties(&[("TRAN_MSG", "true")]));
        // A later request is answered, so the former were not.
        assert_eq!(peer.pull(&topic, 0, 0).len(), 1);
        peer.quiet();
    });
}

#[test]
fn who_does_not_wait_is_told_the_level_of_that_moment() {
    if stock() {
        return;
    }
    every_way(|peer, code| {
        let topic = topic(1);
        let ext = Ext::send(&topic).properties(&[("WAIT", "false")]);
        let reply = try_send(peer, code, ext, b"x").ok();
        assert_eq!(reply.ext("ackLevel"), Some("memory"));
        let ext = Ext::send(&topic).properties(&[("WAIT", "true")]);
        assert_eq!(try_send(peer, code, ext, b"x").ok().ext("ackLevel"), Some("write"));
    });
}

#[test]
fn many_sends_in_flight_are_answered_each_by_its_own_opaque() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let ext = Ext::send(&topic);
    let mut posted: BTreeSet<i32> = (0..200).map(|_| peer.post(310, 0, &ext, b"x")).collect();
    let mut offsets = BTreeSet::new();
    while !posted.is_empty() {
        let reply = peer.reply().ok();
        assert!(posted.remove(&reply.opaque), "{reply:?}");
        offsets.insert(reply.number("queueOffset"));
    }
    assert_eq!(offsets, (0..200).collect());
}

#[test]
fn many_new_topics_at_once_are_all_acknowledged() {
    let mut peer = shared().peer(Form::Json);
    let names: Vec<String> = (0..64).map(|_| unique("Burst")).collect();
    for name in &names {
        peer.post(310, 0, &Ext::send(name), b"x");
    }
    for _ in &names {
        peer.reply().ok();
    }
    for name in &names {
        assert_eq!(peer.pull(name, 0, 0).len(), 1);
    }
}

/// What a first send makes of an unknown topic.
#[track_caller]
fn made(peer: &mut Peer, ext: Ext) -> serde_json::Value {
    let name = ext.iter().find(|(n, _)| *n == "b").expect("a topic").1.to_owned();
    let reply = peer.call(310, &ext, b"x");
    let config = peer.topic_config(&name);
    config.unwrap_or_else(|| panic!("{name} was not made: {reply:?}"))
}

fn shape(config: &serde_json::Value) -> (i64, i64, i64, i64, bool) {
    let number = |name: &str| config[name].as_i64().unwrap_or_else(|| panic!("{name}: {config}"));
    assert_eq!(config["topicFilterType"], "SINGLE_TAG");
    (
        number("readQueueNums"),
        number("writeQueueNums"),
        number("perm"),
        number("topicSysFlag"),
        config["order"].as_bool().expect("order is a bool"),
    )
}

#[test]
fn an_unknown_topic_is_made_after_the_template_that_the_send_names() {
    let mut peer = shared().peer(Form::Json);
    let mut check = |name: &str, template: &str, wish: i32, unit: bool, expected| {
        let ext = Ext::send(&unique(name)).with("c", template).with("d", wish).with("k", unit);
        assert_eq!(shape(&made(&mut peer, ext)), expected, "{name} {template} {wish} {unit}");
    };
    check("A", "TBW102", 4, false, (4, 4, 6, 0, false));
    // The template's count is the most, and a negative wish makes none at all.
    check("A", "TBW102", 100, false, (8, 8, 6, 0, false));
    check("A", "TBW102", -3, false, (0, 0, 6, 0, false));
    check("A", "TBW102", 2, true, (2, 2, 6, 1, false));
    check("A", "DefaultCluster", 100, false, (16, 16, 6, 0, false));
    check("A", "broker-a", 4, false, (1, 1, 6, 0, false));
    check("%RETRY%A", "TBW102", 3, false, (3, 3, 6, 0, false));
    check("%RETRY%A", "TBW102", 3, true, (3, 3, 6, 2, false));
    // A retry topic needs no template.
    check("%RETRY%A", "NoSuchTemplate", 3, false, (1, 1, 6, 0, false));
    check("%RETRY%A", "NoSuchTemplate", 3, true, (1, 1, 6, 2, false));
}

#[test]
fn the_name_server_hears_of_a_new_topic_at_once() {
    let mut peer = shared().peer(Form::Json);
    let mut namesrv = Peer::open(shared().namesrv, Form::Json);
    let name = unique("Heard");
    let began = std::time::Instant::now();
    peer.send(&name, &[], b"x");
    soon("the route of a topic that a send made", || {
        let route = namesrv.call(105, &Ext::new([("topic", name.as_str())]), &[]);
        (route.code == 0).then_some(())
    });
    // Registrations come each 30 s by themselves.
    assert!(began.elapsed() < SOON);
}

#[test]
fn the_topic_table_has_a_new_version_after_each_new_topic() {
    let mut peer = shared().peer(Form::Json);
    let version = |peer: &mut Peer| {
        peer.call(21, &Ext::none(), &[]).ok().json()["dataVersion"]["counter"].as_i64()
    };
    let before = version(&mut peer);
    let name = unique("V");
    peer.send(&name, &[], b"x");
    assert!(version(&mut peer) > before);
}

#[test]
fn a_delay_above_the_highest_level_is_the_highest() {
    every_way(|peer, code| {
        let topic = topic(4);
        let ext = Ext::send(&topic).with("e", 3).properties(&[("DELAY", "99"), ("TAGS", "t")]);
        let reply = try_send(peer, code, ext, b"late").ok();
        // The queue that was asked for, and the offset in the delay topic's queue.
        assert_eq!(reply.number("queueId"), 3);
        let message = peer.view(physical_offset(reply.ext("msgId").expect("an id")));
        assert_eq!((message.topic.as_str(), message.queue_id), ("SCHEDULE_TOPIC_XXXX", 17));
        assert_eq!(message.queue_offset, reply.number("queueOffset"));
        assert_eq!(message.property("DELAY"), Some("18"));
        assert_eq!(message.property("REAL_TOPIC"), Some(topic.as_str()));
        assert_eq!(message.property("REAL_QID"), Some("3"));
        assert_eq!(message.property("CLUSTER"), Some("DefaultCluster"));
        assert_eq!(peer.max_offset(&topic, 3), 0);
    });
}

#[test]
fn numbers_and_booleans_that_cpp_does_not_quote_are_read() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(4);
    let header = format!(
        "{{\"code\":310,\"extFields\":{{\"AccessKey\":\"\",\"OnsChannel\":\"\",\"Signature\":\"\",\"a\":\"PG\",\"b\":\"{topic}\",\"c\":\"TBW102\",\"d\":4,\"e\":2,\"f\":0,\"g\":\"1700000000123\",\"h\":0,\"i\":\"TAGS\\u0001t\\u0002\",\"j\":\"0\",\"k\":false,\"l\":16,\"m\":false}},\"flag\":0,\"language\":\"CPP\",\"opaque\":77,\"remark\":\"\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":333}}\n"
    );
    peer.write(&super::peer::raw_frame(header.as_bytes(), Form::Json, b"cpp"));
    let reply = peer.reply().ok();
    assert_eq!((reply.opaque, reply.number("queueId")), (77, 2));
    assert_eq!(peer.pull(&topic, 2, 0)[0].property("TAGS"), Some("t"));
}

#[test]
fn the_size_limit_is_the_configured_one_and_the_refusal_names_it() {
    const LIMIT: usize = 1 << 20;
    let own = Own::start("limit", "[limits]\nmessage_bytes = 1048576\n");
    let mut peer = own.place.peer(Form::Binary);
    let body = vec![b'x'; LIMIT + 1];
    try_send(&mut peer, 310, Ext::send("Limit"), &body[..LIMIT]).ok();
    let remark = "the message is illegal, maybe msg body or properties length not matched. msg body length limit 1048576B, msg properties length limit 32KB.";
    try_send(&mut peer, 310, Ext::send("Limit"), &body).refused(13, remark);
    assert_eq!(peer.max_offset("Limit", 0), 1);
}

#[test]
fn refused_sends_leave_no_hole_among_the_offsets_of_the_others() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let long_body = vec![b'x'; (4 << 20) + 1];
    let long_value = "v".repeat(40_000);
    let batch = |length: i32| {
        let mut item: Vec<u8> =
            [23, 0, 0, 0, length].iter().flat_map(|int: &i32| int.to_be_bytes()).collect();
        item.extend_from_slice(b"x\0\0");
        item
    };
    let mut expected = 0;
    for round in 0..3 {
        for (code, ext, body) in [
            (310, Ext::send(&topic), long_body.as_slice()),
            (310, Ext::send(&topic).properties(&[("k", &long_value)]), b"x"),
            (320, Ext::send(&topic).with("m", "true"), &batch(1_000)),
            (320, Ext::send(&topic).with("m", "true"), &batch(-1)),
            (320, Ext::send(&topic).with("m", "true"), &batch(i32::MAX)),
            (320, Ext::send(&topic).with("m", "true").properties(&[("DELAY", "3")]), &batch(1)),
        ] {
            let reply = peer.call(code, &ext, body);
            assert!([1, 13].contains(&reply.code), "{reply:?}");
            let good = peer.send(&topic, &[], format!("{expected}").as_bytes());
            assert_eq!(good.number("queueOffset"), expected, "round {round}");
            expected += 1;
        }
    }
    let texts: Vec<String> = peer.pull(&topic, 0, 0).iter().map(|m| m.text()).collect();
    assert_eq!(texts, (0..expected).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn the_topic_of_traces_is_there_from_the_start_where_it_is_wanted() {
    let own = Own::start("trace", "[topics]\ntrace = true\nauto_create = false\n");
    let mut namesrv = Peer::open(own.place.namesrv, Form::Json);
    let ask = Ext::new([("topic", "RMQ_SYS_TRACE_TOPIC")]);
    let route = soon("the route of the trace topic", || {
        let reply = namesrv.call(105, &ask, &[]);
        (reply.code == 0).then(|| reply.json())
    });
    assert_eq!(route["queueDatas"][0]["writeQueueNums"], 1);
    let mut peer = own.place.peer(Form::Json);
    // A trace names all messages it tells of as its keys.
    let ids = ["7F0000010001", "7F0000010002", "order-17"];
    peer.send("RMQ_SYS_TRACE_TOPIC", &[("KEYS", &ids.join(" "))], b"Pub");
    for id in ids {
        let ext = Ext::new([("topic", "RMQ_SYS_TRACE_TOPIC"), ("key", id), ("maxNum", "64")])
            .with("beginTimestamp", 0)
            .with("endTimestamp", i64::MAX);
        assert_eq!(peer.call(12, &ext, &[]).code, 0, "{id}");
    }
}
