//! Delayed messages: stored in the delay topic, delivered at their time where they belong.

use super::ext::Ext;
use super::fixture::{Own, now_ms, shared, soon, topic};
use super::peer::{Form, Peer};

fn delayed(peer: &mut Peer, topic: &str, queue: i32, level: &str, body: &[u8]) -> i64 {
    let ext = Ext::send(topic).with("e", queue).with("j", 2).with("f", 1).properties(&[
        ("DELAY", level),
        ("TAGS", "TagA"),
        ("KEYS", "late"),
        ("WAIT", "true"),
    ]);
    peer.call(310, &ext, body).ok().number("queueOffset")
}

#[test]
fn a_message_of_level_1_is_delivered_after_one_second() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(4);
    let sent = now_ms();
    delayed(&mut peer, &topic, 2, "1", b"late");
    assert_eq!(peer.max_offset(&topic, 2), 0);
    let message = peer.pull(&topic, 2, 0).remove(0);
    let waited = message.stored - sent;
    println!("delivered after {waited} ms");
    assert!((1_000..15_000).contains(&waited), "{waited} ms");
    assert_eq!(
        (message.topic.as_str(), message.queue_id, message.queue_offset),
        (topic.as_str(), 2, 0)
    );
    assert_eq!(
        (message.body.as_slice(), message.reconsume_times, message.flag),
        (&b"late"[..], 2, 7)
    );
    assert_eq!((message.sys_flag, message.born), (1, super::ext::BORN));
    assert_eq!((message.born_host, message.store_host), (peer.address(), shared().main));
    let expected = [
        ("DELAY", "1"),
        ("TAGS", "TagA"),
        ("KEYS", "late"),
        ("WAIT", "true"),
        ("REAL_TOPIC", topic.as_str()),
        ("REAL_QID", "2"),
        ("CLUSTER", "DefaultCluster"),
    ];
    for (name, value) in expected {
        assert_eq!(message.property(name), Some(value), "{name} in {:?}", message.properties);
    }
    // Its tag is what filters see now.
    let ext = Ext::pull("TOOLS_CONSUMER", &topic, 2, 0);
    assert_eq!(peer.call(11, &ext.clone().with("subscription", "TagA"), &[]).code, 0);
    assert_eq!(peer.call(11, &ext.with("subscription", "TagB"), &[]).code, 20);
}

#[test]
fn messages_of_one_level_come_in_the_order_they_were_sent() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    for i in 0..20 {
        delayed(&mut peer, &topic, 0, "1", format!("{i}").as_bytes());
    }
    soon("all of them", || (peer.max_offset(&topic, 0) == 20).then_some(()));
    let bodies: Vec<String> = peer.pull(&topic, 0, 0).iter().map(|m| m.text()).collect();
    assert_eq!(bodies, (0..20).map(|i| i.to_string()).collect::<Vec<_>>());
}

#[test]
fn levels_are_those_of_the_configuration() {
    let own = Own::start("levels", "[topics]\ndelay_levels = \"2s 1s\"\n");
    let mut peer = own.place.peer(Form::Json);
    let sent = now_ms();
    for (level, queue) in [("2", 0), ("7", 1), ("1", 2)] {
        delayed(&mut peer, "Levels", queue, level, b"x");
    }
    for (queue, least) in [(0, 1_000), (1, 1_000), (2, 2_000)] {
        let message = peer.pull("Levels", queue, 0).remove(0);
        let waited = message.stored - sent;
        assert!((least..least + 10_000).contains(&waited), "queue {queue}: {waited} ms");
    }
    // The highest level there is, two here.
    assert_eq!(peer.pull("Levels", 1, 0)[0].property("DELAY"), Some("2"));
    // What became of it is told, and saved: see the runtime information.
    let table = peer.call(28, &Ext::none(), &[]).ok().json();
    assert_eq!(table["table"]["scheduleMessageOffset_2"], "2,2");
}

#[test]
fn a_level_that_is_no_number_or_not_above_0_is_no_delay() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    for level in ["0", "-1"] {
        delayed(&mut peer, &topic, 0, level, b"now");
    }
    assert_eq!(peer.max_offset(&topic, 0), 2);
}
