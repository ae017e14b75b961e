//! What administrators ask of running consumers through the broker: state (307), consuming one message (309), other offsets (222), where they
//! are (223).

use super::ext::Ext;
use super::fixture::{Message, consumer_beat, shared, soon, stock, topic, unique};
use super::peer::{CPP, FLAG_ONEWAY, FORMS, Form, Frame, GO, Peer};

/// A consumer of a topic, known to the broker.
fn consumer(client: &str, group: &str, topic: &str) -> Peer {
    let mut peer = shared().peer(Form::Json);
    join(&mut peer, client, group, topic);
    peer
}

fn join(peer: &mut Peer, client: &str, group: &str, topic: &str) {
    let beat = consumer_beat(client, group, topic, "*", 1);
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
}

/// The next request of the broker that is not about members.
#[track_caller]
fn asked(peer: &mut Peer) -> Frame {
    loop {
        let request = peer.request();
        if request.code != 40 {
            return request;
        }
    }
}

#[test]
fn a_consumers_state_is_asked_of_it_and_passed_on_byte_for_byte() {
    for form in FORMS {
        let (topic, group) = (topic(1), unique("Running"));
        let mut admin = shared().peer(form);
        let mut member = consumer("client-1", &group, &topic);
        let ext = Ext::new([
            ("consumerGroup", group.as_str()),
            ("clientId", "client-1"),
            ("jstackEnable", "true"),
            ("AccessKey", "of the tool"),
        ]);
        let opaque = admin.post(307, 0, &ext, &[]);
        let request = asked(&mut member);
        assert_eq!((request.code, request.flag), (307, 0));
        for (name, value) in ext.iter() {
            assert_eq!(request.ext(name), Some(value));
        }
        // As Go answers: objects for keys, which is no JSON. Nobody between looks at it.
        let body = br#"{"mqTable":{{"topic":"T","brokerName":"b","queueId":0}:{"x":1}}, "properties":{}, no JSON at all"#;
        member.respond(&request, 0, &Ext::new([("more", "fields")]), body);
        let reply = admin.reply();
        assert_eq!((reply.opaque, reply.code, reply.body.as_slice()), (opaque, 0, &body[..]));
        assert_eq!(reply.ext("more"), Some("fields"));
        // A refusal is passed on as well.
        admin.post(307, 0, &ext, &[]);
        let request = asked(&mut member);
        member.respond(&request, 1, &Ext::none(), &[]);
        assert_eq!(admin.reply().code, 1);
    }
}

#[test]
fn who_is_not_there_or_does_not_answer_is_said() {
    let (topic, group) = (topic(1), unique("Silent"));
    let mut admin = shared().peer(Form::Json);
    let ext =
        Ext::new([("consumerGroup", group.as_str()), ("clientId", "c"), ("jstackEnable", "false")]);
    let offline = format!("The Consumer <{group}> <c> not online");
    admin.call(307, &ext, &[]).refused(1, &offline);
    let mut member = consumer("other", &group, &topic);
    admin.call(307, &ext, &[]).refused(1, &offline);
    // Too old to know the question.
    member.version = 61;
    join(&mut member, "c", &unique("x"), &topic);
    let old = unique("Old");
    let mut older = shared().peer(Form::Json);
    older.version = 61;
    join(&mut older, "c", &old, &topic);
    let reply = admin.call(307, &ext.clone().with("consumerGroup", &old), &[]);
    assert!(reply.code == 1 && reply.remark().contains("too low"), "{reply:?}");
    // One that goes away instead of answering.
    let goes = consumer("c", &group, &topic);
    admin.post(307, 0, &ext, &[]);
    let mut goes = goes;
    asked(&mut goes);
    drop(goes);
    if stock() {
        return; // It waits out its 10 s.
    }
    let reply = admin.reply();
    assert_eq!(reply.code, 1, "{reply:?}");
    assert!(reply.remark().starts_with(&format!("invoke consumer <{group}> <c> Exception: ")));
    // One that says nothing: the answer comes before the tool gives up, after 15 s.
    let mut silent = consumer("c", &group, &topic);
    admin.post(307, 0, &ext, &[]);
    let request = asked(&mut silent);
    let reply = admin.reply();
    assert_eq!(reply.code, 207, "{reply:?}");
    assert!(reply.remark().starts_with(&format!("consumer <{group}> <c> Timeout: ")), "{reply:?}");
    // Too late is nobody's.
    silent.respond(&request, 0, &Ext::none(), b"late");
    silent.respond(&request, 0, &Ext::none(), b"twice");
    silent.quiet();
    admin.quiet();
}

#[test]
fn a_consumer_is_made_to_consume_one_message() {
    for form in FORMS {
        let (topic, group) = (topic(1), unique("Directly"));
        let mut admin = shared().peer(form);
        let reply = admin.send(&topic, &[("KEYS", "k")], b"again");
        let id = reply.ext("msgId").expect("an id").to_owned();
        let mut member = consumer("c", &group, &topic);
        let ext = Ext::new([("consumerGroup", group.as_str()), ("clientId", "c"), ("msgId", &id)]);
        admin.post(309, 0, &ext, &[]);
        let request = asked(&mut member);
        assert_eq!((request.code, request.flag), (309, 0));
        assert_eq!(request.ext("brokerName"), Some("broker-a"));
        assert_eq!(request.ext("msgId"), Some(id.as_str()));
        let message = Message::all(&request.body).remove(0);
        assert_eq!((message.text().as_str(), message.id()), ("again", id.clone()));
        let body =
            br#"{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}"#;
        member.respond(&request, 0, &Ext::none(), body);
        let reply = admin.reply().ok();
        assert_eq!(reply.body, body);
        let offline = format!("The Consumer <{group}> <d> not online");
        admin.call(309, &ext.clone().with("clientId", "d"), &[]).refused(1, &offline);
        if !stock() {
            let reply = admin.call(309, &ext.clone().with("msgId", "no id"), &[]);
            assert_eq!(reply.code, 1);
            let nowhere = format!("{}{:016X}", &id[..16], 1u64 << 40);
            let reply = admin.call(309, &ext.clone().with("msgId", nowhere), &[]);
            assert_eq!(reply.code, 1);
        }
        admin.quiet();
    }
}

fn reset(topic: &str, group: &str, timestamp: i64, force: bool) -> Ext {
    Ext::new([("topic", topic), ("group", group)])
        .with("timestamp", timestamp)
        .with("isForce", force)
}

/// The offsets of a topic's queues as an answer or a request tells them; a map keyed by objects.
#[track_caller]
fn offsets(body: &[u8], topic: &str, queues: i32) -> Vec<i64> {
    let text = String::from_utf8(body.to_vec()).expect("text");
    assert!(
        text.starts_with("{\"offsetTable\":{{\"brokerName\":\"broker-a\",\"queueId\":"),
        "{text}"
    );
    let of = |queue: i32| {
        let key =
            format!("{{\"brokerName\":\"broker-a\",\"queueId\":{queue},\"topic\":\"{topic}\"}}:");
        let at = text.find(&key).unwrap_or_else(|| panic!("{key} in {text}")) + key.len();
        let end = text[at..].find([',', '}']).expect("an end") + at;
        text[at..end].parse().unwrap_or_else(|_| panic!("{text}"))
    };
    (0..queues).map(of).collect()
}

#[test]
fn consumers_are_told_where_to_go_on_and_the_broker_changes_nothing_itself() {
    for form in FORMS {
        let (topic, group) = (topic(2), unique("Reset"));
        let mut admin = shared().peer(form);
        for _ in 0..3 {
            admin.send(&topic, &[], b"x");
            // Times apart: a reset goes by them.
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        let times: Vec<i64> = admin.pull(&topic, 0, 0).iter().map(|m| m.stored).collect();
        admin.commit(&group, &topic, 0, 2);
        admin.commit(&group, &topic, 1, 0);
        let mut member = consumer("c", &group, &topic);
        for (timestamp, force, expected) in [
            (0, true, [0, 0]),
            (times[1], true, [1, 0]),
            (-1, true, [3, 0]),
            // Not forced, only backwards.
            (-1, false, [2, 0]),
            (times[0], false, [0, 0]),
        ] {
            let reply = admin.call(222, &reset(&topic, &group, timestamp, force), &[]).ok();
            assert_eq!(offsets(&reply.body, &topic, 2), expected, "{timestamp} {force}");
            let request = asked(&mut member);
            assert_eq!((request.code, request.flag), (220, FLAG_ONEWAY));
            assert_eq!(request.ext("topic"), Some(topic.as_str()));
            assert_eq!(request.ext("group"), Some(group.as_str()));
            assert_eq!(request.ext("isForce"), Some("false"));
            assert_eq!(request.number("timestamp"), timestamp);
            assert_eq!(offsets(&request.body, &topic, 2), expected);
        }
        assert_eq!(admin.committed(&group, &topic, 0), Some(2));
        if !stock() {
            // The first message of that time or later; none: the end. Stock takes the nearest.
            for (timestamp, expected) in
                [(times[0] + 1, 1), (times[2], 2), (times[2] + 1, 3), (i64::MAX, 3)]
            {
                let reply = admin.call(222, &reset(&topic, &group, timestamp, true), &[]).ok();
                assert_eq!(offsets(&reply.body, &topic, 2)[0], expected, "{timestamp}");
            }
        }
    }
}

#[test]
fn of_messages_of_one_time_a_reset_takes_the_first() {
    if stock() {
        return;
    }
    let (topic, group) = (topic(1), unique("SameTime"));
    let mut admin = shared().peer(Form::Json);
    let mut batch = Vec::new();
    for _ in 0..20 {
        batch.extend([23i32, 0, 0, 0, 1].iter().flat_map(|int| int.to_be_bytes()));
        batch.extend_from_slice(b"x\0\0");
    }
    for _ in 0..3 {
        admin.call(320, &Ext::send(&topic).with("m", "true"), &batch).ok();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    admin.commit(&group, &topic, 0, 60);
    let mut member = consumer("c", &group, &topic);
    let times: Vec<i64> = (0..3).map(|n| admin.pull(&topic, 0, n * 20)[0].stored).collect();
    for (n, time) in times.iter().enumerate() {
        let reply = admin.call(222, &reset(&topic, &group, *time, true), &[]).ok();
        assert_eq!(offsets(&reply.body, &topic, 1), [n as i64 * 20]);
        asked(&mut member);
    }
}

#[test]
fn a_reset_is_refused_in_stocks_order_with_its_words() {
    for form in FORMS {
        let (topic, group) = (topic(2), unique("NoReset"));
        let mut admin = shared().peer(form);
        let unknown = unique("Unknown");
        let remark =
            format!("[reset-offset] reset offset failed, no topic in this broker. topic={unknown}");
        admin.call(222, &reset(&unknown, &group, 0, true), &[]).refused(1, &remark);
        // A queue without progress, also where nobody is online.
        admin.commit(&group, &topic, 0, 0);
        let remark = format!("THe consumer group <{group}> not exist");
        admin.call(222, &reset(&topic, &group, 0, true), &[]).refused(1, &remark);
        admin.commit(&group, &topic, 1, 0);
        // 206: tools go another way then.
        let remark = format!(
            "Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: 7"
        );
        admin.call(222, &reset(&topic, &group, 7, true), &[]).refused(206, &remark);
        // A 5.x tool sends more.
        let ext = reset(&topic, &group, 7, true).with("queueId", -1).with("offset", -1);
        admin.call(222, &ext, &[]).refused(206, &remark);
    }
}

#[test]
fn each_consumer_is_told_in_the_form_that_it_reads() {
    if stock() {
        return; // It goes by the language of the administrator's tool.
    }
    let (topic, group) = (topic(1), unique("Forms"));
    let mut admin = shared().peer(Form::Json);
    admin.send(&topic, &[], b"x");
    admin.commit(&group, &topic, 0, 1);
    let mut members: Vec<(u8, Peer)> = [CPP, GO, 0]
        .into_iter()
        .map(|language| {
            let mut peer = shared().peer(Form::Json);
            peer.language = language;
            join(&mut peer, &format!("c{language}"), &group, &topic);
            (language, peer)
        })
        .collect();
    let reply = admin.call(222, &reset(&topic, &group, 0, true), &[]).ok();
    assert_eq!(offsets(&reply.body, &topic, 1), [0]);
    for (language, member) in &mut members {
        let text = asked(member).text();
        let list = format!(
            r#"{{"offsetTable":[{{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"{topic}"}}]}}"#
        );
        assert_eq!(text == list, *language == CPP, "{text}");
    }
}

#[test]
fn where_consumers_are_is_asked_of_all_or_of_one() {
    let (topic, group) = (topic(1), unique("Where"));
    let mut admin = shared().peer(Form::Json);
    let ext = Ext::new([("topic", topic.as_str()), ("group", group.as_str())]);
    let reply = admin.call(223, &ext, &[]);
    assert_eq!(reply.code, 1, "{reply:?}");
    let mut members = [consumer("c1", &group, &topic), consumer("c2", &group, &topic)];
    let queue = format!(r#"{{"brokerName":"broker-a","queueId":0,"topic":"{topic}"}}"#);
    let answer = |member: &mut Peer, at: i64| {
        let request = asked(member);
        assert_eq!((request.code, request.flag), (221, 0));
        assert_eq!(request.ext("topic"), Some(topic.as_str()));
        assert_eq!(request.ext("group"), Some(group.as_str()));
        let body = format!(r#"{{"consumerTable":{{}},"messageQueueTable":{{{queue}:{at}}}}}"#);
        member.respond(&request, 0, &Ext::none(), body.as_bytes());
    };
    admin.post(223, 0, &ext, &[]);
    if !stock() {
        answer(&mut members[0], 16);
        answer(&mut members[1], 17);
        let expected = format!(
            r#"{{"consumerTable":{{"c1":{{{queue}:16}},"c2":{{{queue}:17}}}},"messageQueueTable":{{}}}}"#
        );
        assert_eq!(admin.reply().ok().text(), expected);
        admin.post(223, 0, &ext.clone().with("clientAddr", "c2"), &[]);
        answer(&mut members[1], 18);
        let expected =
            format!(r#"{{"consumerTable":{{"c2":{{{queue}:18}}}},"messageQueueTable":{{}}}}"#);
        assert_eq!(admin.reply().ok().text(), expected);
        // Who goes, or answers nonsense, is left out.
        admin.post(223, 0, &ext, &[]);
        let request = asked(&mut members[0]);
        members[0].respond(&request, 0, &Ext::none(), b"nonsense");
        asked(&mut members[1]);
        let [_first, second] = members;
        drop(second);
        let reply = admin.reply().ok();
        assert_eq!(reply.text(), r#"{"consumerTable":{},"messageQueueTable":{}}"#);
        soon("the member to leave", || {
            let ask = Ext::new([("consumerGroup", group.as_str())]);
            (admin.call(38, &ask, &[]).text() == "{\"consumerIdList\":[\"c1\"]}").then_some(())
        });
    }
}
