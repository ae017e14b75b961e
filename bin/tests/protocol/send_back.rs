//! CONSUMER_SEND_MSG_BACK (36): what a consumer could not consume comes back later, or becomes a dead letter.

use super::ext::Ext;
use super::fixture::{FAQ, Message, physical_offset, shared, soon, stock, topic, unique};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Peer};

fn back(group: &str, offset: i64, level: i32) -> Ext {
    Ext::new([
        ("group", group),
        ("originTopic", "ignored"),
        ("originMsgId", "ignored"),
        ("unitMode", "false"),
    ])
    .with("offset", offset)
    .with("delayLevel", level)
    .with("bname", "broker-a")
}

/// A stored message to send back.
fn original(peer: &mut Peer) -> Message {
    let topic = topic(1);
    let ext = Ext::send(&topic).with("f", 0x1).properties(&[
        ("TAGS", "t"),
        ("KEYS", "k1 k2"),
        ("UNIQ_KEY", "U"),
    ]);
    let reply = peer.call(310, &ext, b"failed").ok();
    peer.view(physical_offset(reply.ext("msgId").expect("an id")))
}

/// What came last into a queue of the delay topic that belongs to this retry or dead letter topic.
fn scheduled(peer: &mut Peer, level: i32, real_topic: &str) -> Message {
    let queue = level - 1;
    soon("the message in the delay topic", || {
        let max = peer.max_offset("SCHEDULE_TOPIC_XXXX", queue);
        let from = (max - 32).max(0);
        if max == 0 {
            return None;
        }
        let waiting = peer.pull("SCHEDULE_TOPIC_XXXX", queue, from);
        waiting.into_iter().rev().find(|m| m.property("REAL_TOPIC") == Some(real_topic))
    })
}

#[test]
fn a_message_that_is_sent_back_waits_for_its_retry() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let group = unique("Back");
        let first = original(&mut peer);
        let reply = peer.call(36, &back(&group, first.physical_offset, 0), &[]).ok();
        assert!(reply.body.is_empty());
        let retry_topic = format!("%RETRY%{group}");
        // The broker decides: level 3 + times consumed.
        let again = scheduled(&mut peer, 3, &retry_topic);
        assert_eq!(again.property("DELAY"), Some("3"));
        assert_eq!(again.property("REAL_QID"), Some("0"));
        assert_eq!(again.property("RETRY_TOPIC"), Some(first.topic.as_str()));
        assert_eq!(again.property("ORIGIN_MESSAGE_ID"), Some(first.id().as_str()));
        assert_eq!(again.property("WAIT"), Some("false"));
        for name in ["TAGS", "KEYS", "UNIQ_KEY", "CLUSTER"] {
            assert_eq!(again.property(name), first.property(name), "{name}");
        }
        assert_eq!(again.reconsume_times, 1);
        assert_eq!(
            (&again.body, again.flag, again.sys_flag),
            (&first.body, first.flag, first.sys_flag)
        );
        assert_eq!(
            (again.born, again.born_host, again.store_host),
            (first.born, first.born_host, first.store_host)
        );
        // Again: the origin stays the first, the level rises.
        peer.call(36, &back(&group, again.physical_offset, 0), &[]).ok();
        let third = scheduled(&mut peer, 4, &retry_topic);
        assert_eq!(third.property("ORIGIN_MESSAGE_ID"), Some(first.id().as_str()));
        assert_eq!(third.property("RETRY_TOPIC"), Some(first.topic.as_str()));
        assert_eq!((third.property("DELAY"), third.reconsume_times), (Some("4"), 2));
        // A level that the consumer names, and one that is too high.
        peer.call(36, &back(&group, first.physical_offset, 17), &[]).ok();
        assert_eq!(scheduled(&mut peer, 17, &retry_topic).property("DELAY"), Some("17"));
        peer.call(36, &back(&group, first.physical_offset, 99), &[]).ok();
        assert_eq!(scheduled(&mut peer, 18, &retry_topic).property("DELAY"), Some("18"));
        // The retry topic and the group are there now.
        assert_eq!(peer.topic_config(&retry_topic).expect("the retry topic")["perm"], 6);
        assert!(peer.group_config(&group).is_some());
    }
}

#[test]
fn a_retry_comes_when_its_time_has_come() {
    let mut peer = shared().peer(Form::Json);
    let group = unique("Comes");
    let first = original(&mut peer);
    peer.call(36, &back(&group, first.physical_offset, 1), &[]).ok();
    let again = peer.pull(&format!("%RETRY%{group}"), 0, 0).remove(0);
    assert_eq!((again.reconsume_times, again.body.as_slice()), (1, &b"failed"[..]));
    assert_eq!(again.property("RETRY_TOPIC"), Some(first.topic.as_str()));
    // DELAY, REAL_TOPIC and REAL_QID stay in what is delivered, and do not act again.
    assert_eq!(again.property("DELAY"), Some("1"));
    assert_eq!(again.property("REAL_TOPIC"), Some(format!("%RETRY%{group}").as_str()));
    let waited = again.stored - first.stored;
    assert!((1_000..15_000).contains(&waited), "{waited} ms");
}

#[test]
fn a_message_that_failed_too_often_is_a_dead_letter() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let group = unique("Dead");
        let dead_topic = format!("%DLQ%{group}");
        let first = original(&mut peer);
        // Because the consumer says so ...
        peer.call(36, &back(&group, first.physical_offset, -1), &[]).ok();
        let dead = peer.pull(&dead_topic, 0, 0).remove(0);
        assert_eq!(
            (dead.topic.as_str(), dead.queue_id, dead.reconsume_times),
            (dead_topic.as_str(), 0, 1)
        );
        assert_eq!(dead.property("DELAY"), Some("0"));
        assert_eq!(dead.property("RETRY_TOPIC"), Some(first.topic.as_str()));
        assert_eq!(dead.property("ORIGIN_MESSAGE_ID"), Some(first.id().as_str()));
        let config = peer.topic_config(&dead_topic).expect("the dead letter topic");
        assert_eq!((&config["readQueueNums"], &config["perm"]), (&1.into(), &6.into()));
        // ... because of the limit that it names, if it is new enough to name one ...
        let limited = back(&group, dead.physical_offset, 0).with("maxReconsumeTimes", 1);
        peer.call(36, &limited, &[]).ok();
        assert_eq!(peer.pull(&dead_topic, 0, 1)[0].reconsume_times, 2);
        peer.version = 120;
        peer.call(36, &limited, &[]).ok();
        assert_eq!(scheduled(&mut peer, 4, &format!("%RETRY%{group}")).reconsume_times, 2);
        peer.version = 409;
        // ... and because of the group's.
        let body = format!("{{\"groupName\":\"{group}\",\"retryMaxTimes\":1}}");
        peer.call(200, &Ext::none(), body.as_bytes()).ok();
        peer.call(36, &back(&group, dead.physical_offset, 0), &[]).ok();
        assert_eq!(peer.pull(&dead_topic, 0, 2)[0].reconsume_times, 2);
    }
}

#[test]
fn checks_come_in_stocks_order_with_its_words() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let first = original(&mut peer);
        if !stock() {
            let remark = format!("subscription group not exist, no group! {FAQ}");
            peer.call(36, &back("no group!", -1, 0), &[]).refused(26, &remark);
        }
        // 3: a group without retry queues gets none; nothing is looked at.
        let none = unique("NoRetry");
        let body = format!("{{\"groupName\":\"{none}\",\"retryQueueNums\":0}}");
        peer.call(200, &Ext::none(), body.as_bytes()).ok();
        peer.call(36, &back(&none, -1, 0), &[]).ok();
        assert_eq!(peer.topic_config(&format!("%RETRY%{none}")), None);
        // 5: the retry topic's write permission.
        let group = unique("Checks");
        let retry_topic = format!("%RETRY%{group}");
        peer.call(17, &Ext::create_topic(&retry_topic, 1).with("perm", 4), &[]).ok();
        let remark = format!("the topic[{retry_topic}] sending message is forbidden");
        peer.call(36, &back(&group, -1, 0), &[]).refused(16, &remark);
        // 6: the record.
        peer.call(17, &Ext::create_topic(&retry_topic, 1), &[]).ok();
        for offset in [i64::MAX, 1 << 40, -1] {
            let remark = format!("look message by offset failed, {offset}");
            let reply = peer.call(36, &back(&group, offset, 0), &[]);
            if !stock() {
                reply.refused(1, &remark);
            }
        }
        if !stock() {
            // Not the start of a record.
            let offset = first.physical_offset + 1;
            let remark = format!("look message by offset failed, {offset}");
            peer.call(36, &back(&group, offset, 0), &[]).refused(1, &remark);
        }
        for field in ["offset", "delayLevel"] {
            assert_eq!(peer.call(36, &back(&group, 0, 0).with(field, "x"), &[]).code, 1);
        }
    }
}

#[test]
fn several_retry_queues_are_all_used() {
    let mut peer = shared().peer(Form::Json);
    let group = unique("Several");
    let body = format!("{{\"groupName\":\"{group}\",\"retryQueueNums\":3}}");
    peer.call(200, &Ext::none(), body.as_bytes()).ok();
    let first = original(&mut peer);
    for _ in 0..24 {
        peer.call(36, &back(&group, first.physical_offset, 16), &[]).ok();
    }
    let retry_topic = format!("%RETRY%{group}");
    assert_eq!(peer.topic_config(&retry_topic).expect("the retry topic")["writeQueueNums"], 3);
    let used: std::collections::BTreeSet<String> = soon("24 messages in the delay topic", || {
        let max = peer.max_offset("SCHEDULE_TOPIC_XXXX", 15);
        let waiting: Vec<Message> = (0..max.min(64))
            .step_by(32)
            .flat_map(|back| peer.pull("SCHEDULE_TOPIC_XXXX", 15, (max - 32 - back).max(0)))
            .filter(|m| m.property("REAL_TOPIC") == Some(retry_topic.as_str()))
            .collect();
        let queues = waiting.iter().map(|m| m.property("REAL_QID").expect("a queue").to_owned());
        (waiting.len() >= 24).then(|| queues.collect())
    });
    assert_eq!(used.len(), 3, "{used:?}");
}

#[test]
fn a_oneway_send_back_is_done_and_not_answered() {
    let mut peer = shared().peer(Form::Json);
    let group = unique("Oneway");
    let first = original(&mut peer);
    peer.post(36, FLAG_ONEWAY, &back(&group, first.physical_offset, -1), &[]);
    peer.post(36, FLAG_ONEWAY, &back(&group, 1 << 40, -1), &[]);
    soon("the dead letter", || (peer.max_offset(&format!("%DLQ%{group}"), 0) == 1).then_some(()));
    peer.quiet();
}

#[test]
fn the_number_of_retries_decides_between_a_later_try_and_the_dead_letters() {
    let mut peer = shared().peer(Form::Json);
    let group = unique("Matrix");
    let (retry_topic, dead_topic) = (format!("%RETRY%{group}"), format!("%DLQ%{group}"));
    let topic = topic(1);
    for (times, level, limit, dead) in [
        (0, 0, None, false),
        (15, 0, None, false),
        (16, 0, None, true),
        (17, 5, None, true),
        (0, -1, None, true),
        (0, -99, None, true),
        (0, 99, None, false),
        (0, 0, Some(0), true),
        (3, 0, Some(4), false),
    ] {
        let ext = Ext::send(&topic).with("j", times);
        let reply = peer.call(310, &ext, b"x").ok();
        let offset = physical_offset(reply.ext("msgId").expect("an id"));
        let mut ext = back(&group, offset, level);
        if let Some(limit) = limit {
            ext = ext.with("maxReconsumeTimes", limit);
        }
        let before = peer.max_offset(&dead_topic, 0);
        peer.call(36, &ext, &[]).ok();
        if dead {
            soon("the dead letter", || {
                (peer.max_offset(&dead_topic, 0) == before + 1).then_some(())
            });
        } else {
            let level = if level == 0 { 3 + times } else { level }.min(18);
            // The one before it may be the last for a moment.
            soon("the retry in the delay topic", || {
                let last = scheduled(&mut peer, level, &retry_topic);
                (last.reconsume_times == times + 1).then_some(())
            });
            assert_eq!(peer.max_offset(&dead_topic, 0), before);
        }
    }
    // A group that takes no retries at all.
    let none = unique("Never");
    let body = format!("{{\"groupName\":\"{none}\",\"retryMaxTimes\":0}}");
    peer.call(200, &Ext::none(), body.as_bytes()).ok();
    let first = original(&mut peer);
    peer.call(36, &back(&none, first.physical_offset, 0), &[]).ok();
    soon("the dead letter", || (peer.max_offset(&format!("%DLQ%{none}"), 0) == 1).then_some(()));
}
