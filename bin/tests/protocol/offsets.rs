//! Offsets of queues (29, 30, 31, 32) and of consumers (14, 15, 43).

use super::ext::Ext;
use super::fixture::{Own, shared, topic, unique};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Peer};

fn number(peer: &mut Peer, code: i32, ext: &Ext, name: &str) -> i64 {
    let reply = peer.call(code, ext, &[]).ok();
    assert!(reply.body.is_empty());
    reply.number(name)
}

#[test]
fn the_bounds_of_any_queue_can_be_asked_for() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let topic = topic(2);
        let ask = |peer: &mut Peer, topic: &str, queue: i32| {
            [30, 31].map(|code| number(peer, code, &Ext::queue(topic, queue), "offset"))
        };
        // Nothing is validated.
        for (topic, queue) in
            [("NoSuchTopic", 0), ("", 0), (topic.as_str(), 0), (&topic, 99), (&topic, -1)]
        {
            if !topic.is_empty() {
                assert_eq!(ask(&mut peer, topic, queue), [0, 0], "{topic} {queue}");
            }
            let ext = Ext::queue(if topic.is_empty() { "NoSuchTopic" } else { topic }, queue);
            assert_eq!(number(&mut peer, 32, &ext, "timestamp"), -1);
        }
        for _ in 0..3 {
            peer.send(&topic, &[], b"x");
        }
        assert_eq!(ask(&mut peer, &topic, 0), [3, 0]);
        assert_eq!(ask(&mut peer, &topic, 1), [0, 0]);
        let first = peer.pull(&topic, 0, 0).remove(0);
        assert_eq!(number(&mut peer, 32, &Ext::queue(&topic, 0), "timestamp"), first.stored);
    }
}

#[test]
fn a_time_is_answered_with_the_nearest_message() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(2);
    // Three messages with at least 40 ms between them: the store's clock, not ours, decides.
    let mut times = Vec::new();
    for _ in 0..3 {
        peer.send(&topic, &[], b"x");
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    times.extend(peer.pull(&topic, 0, 0).iter().map(|m| m.stored));
    let [first, second, third] = times[..] else { panic!("{times:?}") };
    for form in FORMS {
        let mut peer = shared().peer(form);
        let mut at = |time: i64| {
            number(&mut peer, 29, &Ext::queue(&topic, 0).with("timestamp", time), "offset")
        };
        assert_eq!(at(first), 0);
        assert_eq!(at(second), 1);
        assert_eq!(at(third), 2);
        assert_eq!(at(0), 0);
        assert_eq!(at(first - 1), 0);
        assert_eq!(at(second - 1), 1);
        assert_eq!(at(second + 1), 1);
        assert_eq!(at(first + 1), 0);
        // After all: the last message, not the queue's end.
        assert_eq!(at(third + 1), 2);
        assert_eq!(at(i64::MAX), 2);
        // In the middle of two, the earlier.
        if (second - first) % 2 == 0 {
            assert_eq!(at(first + (second - first) / 2), 0);
        }
        let ext = Ext::queue(&topic, 1).with("timestamp", first);
        assert_eq!(number(&mut peer, 29, &ext, "offset"), 0);
        let ext = Ext::queue("NoSuchTopic", 0).with("timestamp", first);
        assert_eq!(number(&mut peer, 29, &ext, "offset"), 0);
    }
}

fn progress(group: &str, topic: &str, queue: i32) -> Ext {
    Ext::queue(topic, queue).with("consumerGroup", group)
}

#[test]
fn a_consumers_progress_is_what_it_last_stored() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (group, topic) = (unique("Prog"), topic(1));
        for offset in [5, 3, 9, 0] {
            let reply =
                peer.call(15, &progress(&group, &topic, 0).with("commitOffset", offset), &[]).ok();
            assert_eq!(reply.ext.as_ref().map(|e| e.len()), Some(0));
            assert_eq!(number(&mut peer, 14, &progress(&group, &topic, 0), "offset"), offset);
        }
        // Nothing is validated: neither topic nor group nor queue has to be there.
        let ext = progress(&group, "NoSuchTopic", 77);
        peer.call(15, &ext.clone().with("commitOffset", 1_000), &[]).ok();
        assert_eq!(number(&mut peer, 14, &ext, "offset"), 1_000);
        assert!(peer.topic_config("NoSuchTopic").is_none());
    }
}

#[test]
fn java_commits_one_way() {
    let mut peer = shared().peer(Form::Json);
    let (group, topic) = (unique("One"), topic(1));
    peer.post(15, FLAG_ONEWAY, &progress(&group, &topic, 0).with("commitOffset", 4), &[]);
    assert_eq!(number(&mut peer, 14, &progress(&group, &topic, 0), "offset"), 4);
}

#[test]
fn a_new_group_begins_at_0_on_a_young_queue() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (group, topic) = (unique("New"), topic(1));
        assert_eq!(number(&mut peer, 14, &progress(&group, &topic, 0), "offset"), 0);
        assert_eq!(number(&mut peer, 14, &progress(&group, "NoSuchTopic", 5), "offset"), 0);
        for _ in 0..3 {
            peer.send(&topic, &[], b"x");
        }
        assert_eq!(number(&mut peer, 14, &progress(&group, &topic, 0), "offset"), 0);
    }
}

#[test]
fn slaves_get_all_progress_under_bare_queue_ids() {
    let mut peer = shared().peer(Form::Json);
    let (group, topic) = (unique("All"), topic(4));
    for queue in [0, 3] {
        let ext = progress(&group, &topic, queue).with("commitOffset", 10 + queue);
        peer.call(15, &ext, &[]).ok();
    }
    let body = peer.call(43, &Ext::none(), &[]).ok().text();
    assert!(body.starts_with("{\"offsetTable\":{"), "{body}");
    let entry = format!("\"{topic}@{group}\":{{0:10,3:13}}");
    assert!(body.contains(&entry), "{entry} in {body}");
    let body = peer.call(45, &Ext::none(), &[]).ok().text();
    assert!(body.starts_with("{\"offsetTable\":{") && body.ends_with("}}"), "{body}");
}

#[test]
fn a_new_groups_own_rule_decides_where_that_is_configured() {
    let own = Own::start("own-rule", "[topics]\nnew_groups_at_start = false\n");
    let mut peer = own.place.peer(Form::Json);
    peer.send("Young", &[], b"x");
    // 22: a client begins at the end, the beginning or a time, as it was told to.
    for (topic, queue) in [("Young", 0), ("Young", 1), ("NoSuchTopic", 0)] {
        assert_eq!(peer.committed("G", topic, queue), None, "{topic} {queue}");
    }
    peer.commit("G", "Young", 0, 0);
    assert_eq!(peer.committed("G", "Young", 0), Some(0));
}
