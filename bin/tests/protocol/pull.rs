//! PULL_MESSAGE (11) and its 5.x alias LITE_PULL_MESSAGE (361): checks in order, and what an answer says of the queue.

use super::ext::Ext;
use super::fixture::{FAQ, consumer_beat, settle, shared, soon, stock, topic, unique};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Frame, Peer};

fn every_way(scenario: impl Fn(&mut Peer, i32)) {
    for form in FORMS {
        for code in [11, 361] {
            if !(stock() && code == 361) {
                scenario(&mut shared().peer(form), code);
            }
        }
    }
}

/// What an answer tells of the queue.
#[track_caller]
fn bounds(reply: &Frame) -> (i32, &str, [i64; 3]) {
    assert_eq!(reply.number("suggestWhichBrokerId"), 0);
    let numbers = ["nextBeginOffset", "minOffset", "maxOffset"].map(|name| reply.number(name));
    (reply.code, reply.remark(), numbers)
}

#[test]
fn messages_come_as_they_were_stored_with_the_queues_bounds() {
    every_way(|peer, code| {
        let topic = topic(2);
        for body in [b"zero", b"one.", b"two."] {
            peer.call(310, &Ext::send(&topic).with("e", 1), body).ok();
        }
        let reply = peer.call(code, &Ext::pull("TOOLS_CONSUMER", &topic, 1, 1), &[]);
        assert_eq!(bounds(&reply), (0, "FOUND", [3, 0, 3]));
        let messages = super::fixture::Message::all(&reply.body);
        let got: Vec<(i64, String)> = messages.iter().map(|m| (m.queue_offset, m.text())).collect();
        assert_eq!(got, [(1, "one.".to_owned()), (2, "two.".to_owned())]);
        let limited = Ext::pull("TOOLS_CONSUMER", &topic, 1, 0).with("maxMsgNums", 2);
        let reply = peer.call(code, &limited, &[]);
        assert_eq!(bounds(&reply), (0, "FOUND", [2, 0, 3]));
    });
}

#[test]
fn offsets_outside_of_the_queue_are_told_with_where_to_go_on() {
    every_way(|peer, code| {
        let topic = topic(2);
        let mut pull = |queue: i32, offset: i64| {
            let reply = peer.call(code, &Ext::pull("TOOLS_CONSUMER", &topic, queue, offset), &[]);
            assert!(reply.body.is_empty());
            let (code, remark, numbers) = bounds(&reply);
            (code, remark.to_owned(), numbers)
        };
        let none = "NO_MESSAGE_IN_QUEUE".to_owned();
        assert_eq!(pull(0, 0), (19, none.clone(), [0, 0, 0]));
        assert_eq!(pull(0, 5), (21, none.clone(), [0, 0, 0]));
        assert_eq!(pull(0, -1), (21, none, [0, 0, 0]));
        for _ in 0..3 {
            shared().peer(Form::Json).send(&topic, &[], b"x");
        }
        assert_eq!(pull(0, 3), (19, "OFFSET_OVERFLOW_ONE".to_owned(), [3, 0, 3]));
        assert_eq!(pull(0, 4), (21, "OFFSET_OVERFLOW_BADLY".to_owned(), [3, 0, 3]));
        assert_eq!(pull(0, i64::MAX), (21, "OFFSET_OVERFLOW_BADLY".to_owned(), [3, 0, 3]));
        assert_eq!(pull(0, -1), (21, "OFFSET_TOO_SMALL".to_owned(), [0, 0, 3]));
        assert_eq!(pull(0, i64::MIN), (21, "OFFSET_TOO_SMALL".to_owned(), [0, 0, 3]));
    });
}

#[test]
fn a_moved_offset_is_noted_in_the_event_topic() {
    let mut peer = shared().peer(Form::Json);
    let (topic, group) = (topic(1), unique("Moved"));
    peer.send(&topic, &[], b"x");
    let before = peer.max_offset("OFFSET_MOVED_EVENT", 0);
    assert_eq!(peer.call(11, &Ext::pull(&group, &topic, 0, 99), &[]).code, 21);
    // Others move offsets, too, while this test runs.
    let event = soon("the event", || {
        if peer.max_offset("OFFSET_MOVED_EVENT", 0) == before {
            return None;
        }
        let events = peer.pull("OFFSET_MOVED_EVENT", 0, before);
        events.into_iter().find(|event| event.property("KEYS") == Some(group.as_str()))
    });
    assert_eq!(event.property("TAGS"), Some(group.as_str()));
    let body: serde_json::Value = serde_json::from_slice(&event.body).expect("JSON");
    let expected = serde_json::json!({
        "consumerGroup": group,
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": topic},
        "offsetNew": 1,
        "offsetRequest": 99,
    });
    assert_eq!(body, expected);
}

#[test]
fn checks_come_in_stocks_order_with_its_words() {
    every_way(|peer, code| {
        let topic = topic(2);
        let group = unique("Order");
        let pull = |topic: &str| Ext::pull(&group, topic, 0, 0);
        // 3: the group may not consume. Everything after it would fail as well.
        let off = unique("Off");
        let body = format!("{{\"groupName\":\"{off}\",\"consumeEnable\":false}}");
        peer.call(200, &Ext::none(), body.as_bytes()).ok();
        let ext = Ext::pull(&off, "NoSuchTopic", 99, 0);
        peer.call(code, &ext, &[]).refused(16, &format!("subscription group no permission, {off}"));
        // 4: the topic; note the blank before the line's end. It is never made here.
        let unknown = unique("Unknown");
        let remark = format!("topic[{unknown}] not exist, apply first please! {FAQ}");
        peer.call(code, &pull(&unknown).with("queueId", 99), &[]).refused(17, &remark);
        assert_eq!(peer.topic_config(&unknown), None);
        // 5: its read permission.
        let write_only = unique("WriteOnly");
        peer.call(17, &Ext::create_topic(&write_only, 1).with("perm", 2), &[]).ok();
        let remark = format!("the topic[{write_only}] pulling message is forbidden");
        peer.call(code, &pull(&write_only).with("queueId", 99), &[]).refused(16, &remark);
        // 6: the queue.
        for queue in [2, 99, -1] {
            let remark = format!(
                "queueId[{queue}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[2] consumer:[/{}]",
                peer.address()
            );
            let ext = pull(&topic).with("queueId", queue).with("sysFlag", 0);
            peer.call(code, &ext, &[]).refused(1, &remark);
        }
        // 7: the subscription of the request.
        let bad = "parse the consumer's subscription failed";
        peer.call(code, &pull(&topic).with("subscription", "||"), &[]).refused(23, bad);
        let sql = pull(&topic).with("expressionType", "SQL92");
        peer.call(code, &sql.clone().without("subscription"), &[]).refused(23, bad);
        // 8: what is no tag expression.
        let remark = "The broker does not support consumer to filter message by SQL92";
        peer.call(code, &sql.with("subscription", "a > 5"), &[]).refused(1, remark);
        // None of these carries offsets; the one that passes all checks made the group.
        assert_eq!(peer.call(code, &pull(&topic), &[]).code, 19);
        assert!(peer.group_config(&group).is_some());
    });
}

#[test]
fn a_group_that_cannot_be_made_is_26() {
    if stock() {
        return;
    }
    every_way(|peer, code| {
        let remark = format!("subscription group [no group!] does not exist, {FAQ}");
        let ext = Ext::pull("no group!", "NoSuchTopic", 99, 0);
        peer.call(code, &ext, &[]).refused(26, &remark);
    });
}

#[test]
fn a_pull_by_the_registered_subscription_passes_its_own_checks() {
    every_way(|peer, code| {
        let (group, topic) = (unique("Reg"), topic(1));
        let pull = |peer: &mut Peer, version: i64| {
            let ext =
                Ext::pull(&group, &topic, 0, 0).with("sysFlag", 0).with("subVersion", version);
            peer.call(code, &ext.without("subscription"), &[])
        };
        let no_group = format!("the consumer's group info not exist{FAQ}");
        pull(peer, 0).refused(24, &no_group);
        let other = consumer_beat("c1", &group, "AnotherTopic", "*", 100);
        peer.call(34, &Ext::none(), other.as_bytes()).ok();
        let not_subscribed = format!("the consumer's subscription not exist{FAQ}");
        pull(peer, 0).refused(24, &not_subscribed);
        let beat = consumer_beat("c1", &group, &topic, "*", 100);
        peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        pull(peer, 101).refused(25, "the consumer's subscription not latest");
        assert_eq!(pull(peer, 100).code, 19);
        assert_eq!(pull(peer, 99).code, 19);
        // An expression that is no tag expression.
        let sql = beat
            .replace("\"TAG\"", "\"SQL92\"")
            .replace("\"*\"", "\"a > 5\"")
            .replace("100", "200");
        peer.call(34, &Ext::none(), sql.as_bytes()).ok();
        pull(peer, 200)
            .refused(1, "The broker does not support consumer to filter message by SQL92");
        // A group that consumes by broadcast where that is off.
        let off = format!("{{\"groupName\":\"{group}\",\"consumeBroadcastEnable\":false}}");
        peer.call(200, &Ext::none(), off.as_bytes()).ok();
        let broadcast = beat.replace("CLUSTERING", "BROADCASTING").replace("100", "300");
        peer.call(34, &Ext::none(), broadcast.as_bytes()).ok();
        let remark = format!("the consumer group[{group}] can not consume by broadcast way");
        pull(peer, 999).refused(16, &remark);
    });
}

#[test]
fn the_progress_that_a_pull_brings_is_stored_when_its_checks_pass() {
    every_way(|peer, code| {
        let (group, topic) = (unique("Progress"), topic(1));
        peer.send(&topic, &[], b"x");
        let committed = |peer: &mut Peer| {
            let ext = Ext::queue(&topic, 0).with("consumerGroup", &group);
            peer.call(14, &ext, &[]).ok().number("offset")
        };
        let pull = |peer: &mut Peer, flags: i32, commit: i64, queue: i32| {
            let ext = Ext::pull(&group, &topic, queue, 1)
                .with("sysFlag", flags)
                .with("commitOffset", commit);
            peer.call(code, &ext, &[]).code
        };
        assert_eq!(pull(peer, 4, 7, 0), 19);
        assert_eq!(committed(peer), 0, "without bit 0 nothing is stored");
        assert_eq!(pull(peer, 5, 7, 0), 19);
        assert_eq!(committed(peer), 7);
        assert_eq!(pull(peer, 5, 3, 0), 19);
        assert_eq!(committed(peer), 3, "also backwards");
        assert_eq!(pull(peer, 5, 9, 1), 1);
        assert_eq!(committed(peer), 3, "a refused pull stores nothing");
        // A pull that begins to wait has stored it already.
        let ext = Ext::pull(&group, &topic, 0, 1).with("sysFlag", 7).with("commitOffset", 8);
        peer.post(code, 0, &ext.with("suspendTimeoutMillis", 20_000), &[]);
        settle();
        assert_eq!(committed(&mut shared().peer(Form::Json)), 8);
    });
}

#[test]
fn a_oneway_pull_is_not_answered() {
    if stock() {
        return;
    }
    every_way(|peer, code| {
        let (group, topic) = (unique("Oneway"), topic(1));
        peer.send(&topic, &[], b"x");
        peer.post(code, FLAG_ONEWAY, &Ext::pull(&group, &topic, 0, 0), &[]);
        peer.post(code, FLAG_ONEWAY, &Ext::pull(&group, &topic, 0, 1), &[]);
        peer.post(code, FLAG_ONEWAY, &Ext::pull(&group, &topic, 9, 1), &[]);
        peer.post(code, FLAG_ONEWAY, &Ext::pull(&group, &topic, 0, 1).waiting(1), &[]);
        peer.quiet();
    });
}

#[test]
fn optional_fields_may_be_missing() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    peer.send(&topic, &[], b"x");
    let ext = ["commitOffset", "suspendTimeoutMillis", "subVersion", "bname", "subscription"]
        .into_iter()
        .fold(Ext::pull("TOOLS_CONSUMER", &topic, 0, 0), Ext::without);
    assert_eq!(peer.call(11, &ext, &[]).code, 0);
    for field in ["queueId", "queueOffset", "maxMsgNums", "sysFlag"] {
        let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, 0).with(field, "x");
        assert_eq!(peer.call(11, &ext, &[]).code, 1, "{field}");
    }
}
