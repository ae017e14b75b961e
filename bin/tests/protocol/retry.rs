//! Sends of consumers to their own retry topics, where sending back failed or ordered consumption gave up.

use super::ext::Ext;
use super::fixture::{FAQ, physical_offset, shared, stock, unique};
use super::peer::{FORMS, Peer};

fn every_way(scenario: impl Fn(&mut Peer, i32)) {
    for form in FORMS {
        for code in [10, 310] {
            scenario(&mut shared().peer(form), code);
        }
    }
}

fn retry(group: &str, times: i32) -> Ext {
    Ext::send(&format!("%RETRY%{group}")).with("j", times)
}

#[test]
fn a_retry_past_the_limit_becomes_a_dead_letter() {
    every_way(|peer, code| {
        let group = unique("R");
        let (retry_topic, dead_topic) = (format!("%RETRY%{group}"), format!("%DLQ%{group}"));
        let send = |peer: &mut Peer, ext: Ext| peer.call(code, &ext.named_for(code), b"x").ok();
        let counts =
            |peer: &mut Peer| [&retry_topic, &dead_topic].map(|topic| peer.max_offset(topic, 0));
        // The group's limit is 16.
        send(peer, retry(&group, 15));
        assert_eq!(counts(peer), [1, 0]);
        send(peer, retry(&group, 16));
        assert_eq!(counts(peer), [1, 1]);
        // The request's counts from version 3.4.9 on.
        send(peer, retry(&group, 3).with("l", 4));
        assert_eq!(counts(peer), [2, 1]);
        send(peer, retry(&group, 3).with("l", 3));
        assert_eq!(counts(peer), [2, 2]);
        // Go sends 0 there with every message.
        send(peer, retry(&group, 0).with("l", 0));
        assert_eq!(counts(peer), [2, 3]);
        peer.version = 120;
        send(peer, retry(&group, 3).with("l", 3));
        assert_eq!(counts(peer), [3, 3]);
        peer.version = 409;
        let message = peer.pull(&dead_topic, 0, 0).remove(0);
        assert_eq!((message.reconsume_times, message.topic.as_str()), (16, dead_topic.as_str()));
        let config = peer.topic_config(&dead_topic).expect("the dead letter topic");
        assert_eq!((&config["writeQueueNums"], &config["perm"]), (&1.into(), &6.into()));
        assert!(peer.group_config(&group).is_some(), "made on its first use");
    });
}

#[test]
fn the_answer_tells_the_queue_that_was_asked_for() {
    every_way(|peer, code| {
        let group = unique("R");
        let ext = retry(&group, 20).with("d", 4).with("e", 3);
        let reply = peer.call(code, &ext.named_for(code), b"x").ok();
        assert_eq!(reply.number("queueId"), 3);
        let stored = peer.view(physical_offset(reply.ext("msgId").expect("an id")));
        assert_eq!((stored.topic, stored.queue_id), (format!("%DLQ%{group}"), 0));
    });
}

#[test]
fn a_limit_on_another_topic_is_ignored() {
    every_way(|peer, code| {
        // C++ sends it with every message, and Go 0.
        let topic = super::fixture::topic(1);
        let ext = Ext::send(&topic).with("j", 20).with("l", 0);
        peer.call(code, &ext.named_for(code), b"x").ok();
        assert_eq!(peer.max_offset(&topic, 0), 1);
    });
}

#[test]
fn a_dead_letter_is_there_at_once_whatever_delay_it_asks_for() {
    if stock() {
        return; // The delay acts there, on whoever reads the dead letters.
    }
    every_way(|peer, code| {
        let group = unique("R");
        let dead_topic = format!("%DLQ%{group}");
        let ext = retry(&group, 16).properties(&[("DELAY", "18"), ("TAGS", "t")]);
        let reply = peer.call(code, &ext.named_for(code), b"x").ok();
        let stored = peer.view(physical_offset(reply.ext("msgId").expect("an id")));
        assert_eq!((stored.topic.as_str(), stored.queue_id), (dead_topic.as_str(), 0));
        assert_eq!((stored.property("DELAY"), stored.property("TAGS")), (Some("0"), Some("t")));
        let dead = peer.pull(&dead_topic, 0, 0);
        assert_eq!((dead.len(), dead[0].property("REAL_TOPIC")), (1, None));
        // Anybody may read it.
        assert_eq!(peer.topic_config(&dead_topic).expect("the topic")["perm"], 6);
    });
}

#[test]
fn a_retry_of_a_group_that_cannot_be_made_is_26() {
    if stock() {
        return;
    }
    every_way(|peer, code| {
        // No client could start with a name like this one.
        let group = format!("%RETRY%{}", "");
        let ext = Ext::send(&group);
        let remark = format!("subscription group not exist,  {FAQ}");
        peer.call(code, &ext.named_for(code), b"x").refused(26, &remark);
    });
}
