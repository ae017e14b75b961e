//! Messages by key (12) and by physical offset (33).

use super::ext::{Ext, properties};
use super::fixture::{Message, physical_offset, shared, soon, stock, topic, unique};
use super::peer::{FORMS, Form, Frame, Peer};

fn query(peer: &mut Peer, topic: &str, key: &str, more: &[(&str, &str)]) -> Frame {
    let mut ext = Ext::new([("topic", topic), ("key", key), ("maxNum", "64")])
        .with("beginTimestamp", 0)
        .with("endTimestamp", i64::MAX)
        .with("_UNIQUE_KEY_QUERY", "false");
    for (name, value) in more {
        ext = ext.with(name, value);
    }
    peer.call(12, &ext, &[])
}

#[track_caller]
fn bodies(reply: &Frame) -> Vec<String> {
    assert_eq!(reply.code, 0, "{reply:?}");
    Message::all(&reply.body).iter().map(Message::text).collect()
}

/// Messages enter the index once they are visible, which their answer does not wait for on a stock broker.
fn indexed(peer: &mut Peer, topic: &str, key: &str, count: usize) {
    soon("messages in the index", || {
        let reply = query(peer, topic, key, &[]);
        (reply.code == 0 && Message::all(&reply.body).len() == count).then_some(())
    });
}

#[test]
fn messages_are_found_by_each_of_their_keys_and_by_their_unique_key() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let topic = topic(2);
        let unique_key = unique("UNIQ");
        peer.send(&topic, &[("KEYS", "red green"), ("UNIQ_KEY", &unique_key)], b"first");
        peer.call(310, &Ext::send(&topic).with("e", 1).properties(&[("KEYS", "green")]), b"second")
            .ok();
        indexed(&mut peer, &topic, "green", 2);
        assert_eq!(bodies(&query(&mut peer, &topic, "red", &[])), ["first"]);
        // In the order of the log.
        let reply = query(&mut peer, &topic, "green", &[]);
        assert_eq!(bodies(&reply), ["first", "second"]);
        assert!(reply.number("indexLastUpdateTimestamp") > 0);
        assert!(reply.number("indexLastUpdatePhyoffset") > 0);
        assert_eq!(
            bodies(&query(
                &mut peer,
                &topic,
                &unique_key,
                &[("_UNIQUE_KEY_QUERY", "true"), ("maxNum", "1")]
            )),
            ["first"]
        );
        // Not part of a key, nor all of them, nor of another topic.
        for key in ["gree", "red green", ""] {
            if key.is_empty() {
                continue;
            }
            not_found(&query(&mut peer, &topic, key, &[]));
        }
        not_found(&query(&mut peer, "NoSuchTopic", "red", &[]));
    }
}

#[track_caller]
fn not_found(reply: &Frame) {
    let words = "can not find message, maybe time range not correct";
    assert_eq!((reply.code, reply.remark()), (22, words), "{reply:?}");
    assert_eq!(reply.number("indexLastUpdateTimestamp"), 0);
    assert_eq!(reply.number("indexLastUpdatePhyoffset"), 0);
}

#[test]
fn the_time_window_and_the_number_asked_for_hold() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    for i in 0..40 {
        peer.send(&topic, &[("KEYS", "many")], format!("{i}").as_bytes());
    }
    indexed(&mut peer, &topic, "many", 40);
    let message = peer.pull(&topic, 0, 20).remove(0);
    let later = (message.stored + 60_000).to_string();
    not_found(&query(&mut peer, &topic, "many", &[("beginTimestamp", &later)]));
    let earlier = (message.stored - 600_000).to_string();
    not_found(&query(&mut peer, &topic, "many", &[("endTimestamp", &earlier)]));
    assert_eq!(bodies(&query(&mut peer, &topic, "many", &[("maxNum", "5")])).len(), 5);
    // By unique key the number is 32 whatever is asked for.
    let reply = query(&mut peer, &topic, "many", &[("maxNum", "5"), ("_UNIQUE_KEY_QUERY", "true")]);
    assert_eq!(bodies(&reply).len(), 32);
}

#[test]
fn messages_of_a_batch_are_found_by_their_own_keys() {
    if stock() {
        return;
    }
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let inner = |key: &str, body: &[u8]| {
        let text = properties(&[("UNIQ_KEY", key)]);
        let mut out = Vec::new();
        for int in [0, 0, 0, 0, body.len() as i32] {
            out.extend_from_slice(&int.to_be_bytes());
        }
        out.extend_from_slice(body);
        out.extend_from_slice(&(text.len() as i16).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
        out
    };
    let (one, two, whole) = (unique("ONE"), unique("TWO"), unique("WHOLE"));
    let body = [inner(&one, b"1"), inner(&two, b"2")].concat();
    let ext = Ext::send(&topic).with("m", "true").properties(&[("UNIQ_KEY", &whole)]);
    peer.call(320, &ext, &body).ok();
    indexed(&mut peer, &topic, &two, 1);
    assert_eq!(bodies(&query(&mut peer, &topic, &one, &[])), ["1"]);
    assert_eq!(bodies(&query(&mut peer, &topic, &two, &[])), ["2"]);
    not_found(&query(&mut peer, &topic, &whole, &[]));
}

#[test]
fn a_record_is_shown_by_its_physical_offset_alone() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let topic = topic(1);
        let reply = peer.send(&topic, &[("TAGS", "t")], b"shown");
        let offset = physical_offset(reply.ext("msgId").expect("an id"));
        let view = |peer: &mut Peer, offset: i64| {
            peer.call(33, &Ext::none().with("offset", offset).with("topic", &topic), &[])
        };
        let reply = view(&mut peer, offset).ok();
        let pulled = peer.call(11, &Ext::pull("TOOLS_CONSUMER", &topic, 0, 0), &[]);
        assert_eq!(reply.body, pulled.body);
        assert_eq!(reply.remark, None);
        for offset in [i64::MAX, 1 << 40, -1, i64::MIN, offset + 1, offset + 40] {
            if stock() {
                continue;
            }
            let remark = format!("can not find message by the offset, {offset}");
            view(&mut peer, offset).refused(1, &remark);
        }
        assert_eq!(peer.call(33, &Ext::none(), &[]).code, 1);
    }
}

#[test]
fn keys_and_topics_of_equal_hashes_are_told_apart() {
    // In Java's hash `Aa` and `BB` are the same, and so is whatever they begin.
    let one = unique("Aa");
    let other = one.replacen("Aa", "BB", 1);
    let mut peer = shared().peer(Form::Json);
    for (topic, key) in [(&one, "Aa"), (&one, "BB"), (&other, "Aa"), (&other, "BB")] {
        peer.send(topic, &[("KEYS", key)], format!("{topic} {key}").as_bytes());
    }
    if stock() {
        return; // It returns all four, and leaves the choice to the client.
    }
    for topic in [&one, &other] {
        for key in ["Aa", "BB"] {
            let reply = query(&mut peer, topic, key, &[]);
            assert_eq!(bodies(&reply), [format!("{topic} {key}")]);
            let reply = query(&mut peer, topic, key, &[("maxNum", "1")]);
            assert_eq!(bodies(&reply), [format!("{topic} {key}")]);
        }
    }
    // Many of the other kind, and newer, do not hide the one that is asked for.
    for _ in 0..150 {
        peer.post(310, 0, &Ext::send(&other).properties(&[("KEYS", "BB")]), b"noise");
    }
    for _ in 0..150 {
        peer.reply().ok();
    }
    assert_eq!(bodies(&query(&mut peer, &one, "Aa", &[("maxNum", "1")])), [format!("{one} Aa")]);
}

#[test]
fn a_message_is_found_in_the_millisecond_of_its_store_time_and_in_no_other() {
    if stock() {
        return; // Its index knows whole seconds.
    }
    let mut peer = shared().peer(Form::Json);
    let (topic, id) = (topic(1), unique("ID"));
    peer.send(&topic, &[("KEYS", "k"), ("UNIQ_KEY", &id)], b"now");
    let stored = peer.pull(&topic, 0, 0)[0].stored;
    let mut ask = |key: &str, begin: i64, end: i64, by_id: &str| {
        let (begin, end) = (begin.to_string(), end.to_string());
        let window = [("beginTimestamp", begin.as_str()), ("endTimestamp", end.as_str())];
        let reply =
            query(&mut peer, &topic, key, &[window[0], window[1], ("_UNIQUE_KEY_QUERY", by_id)]);
        reply.code
    };
    assert_eq!(ask("k", stored, stored, "false"), 0);
    assert_eq!(ask("k", stored + 1, i64::MAX, "false"), 22);
    assert_eq!(ask("k", 0, stored - 1, "false"), 22);
    // By its id it is found, wherever its client's clock is: five seconds ahead, for one.
    assert_eq!(ask(&id, stored + 5_000, i64::MAX, "true"), 0);
}

#[test]
fn each_word_of_the_keys_is_a_key_and_blanks_are_none() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let many: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    for keys in ["a b ", " ", "", &many.join(" ")] {
        peer.send(&topic, &[("KEYS", keys)], keys.as_bytes());
    }
    indexed(&mut peer, &topic, "key-199", 1);
    for key in ["a", "b"] {
        assert_eq!(bodies(&query(&mut peer, &topic, key, &[])), ["a b "]);
    }
    for n in [0, 99, 199] {
        assert_eq!(bodies(&query(&mut peer, &topic, &many[n], &[])), [many.join(" ")]);
    }
    for key in [" ", "a b "] {
        assert_eq!(query(&mut peer, &topic, key, &[]).code, 22, "{key:?}");
    }
}

#[test]
fn two_messages_of_one_unique_key_are_both_stored_and_both_found() {
    let mut peer = shared().peer(Form::Json);
    let (topic, id) = (topic(1), unique("SAME"));
    let ids: Vec<String> = ["one", "two"]
        .iter()
        .map(|body| {
            let reply = peer.send(&topic, &[("UNIQ_KEY", &id)], body.as_bytes());
            reply.ext("msgId").expect("an id").to_owned()
        })
        .collect();
    assert_ne!(ids[0], ids[1]);
    indexed(&mut peer, &topic, &id, 2);
    let reply = query(&mut peer, &topic, &id, &[("_UNIQUE_KEY_QUERY", "true")]);
    assert_eq!(bodies(&reply), ["one", "two"]);
}

#[test]
fn a_field_that_is_missing_is_named_and_the_connection_stays() {
    if stock() {
        return; // It answers 1 with the name of an exception.
    }
    let mut peer = shared().peer(Form::Json);
    let ext = Ext::new([("topic", "T"), ("key", "k"), ("maxNum", "64")])
        .with("beginTimestamp", 0)
        .with("endTimestamp", i64::MAX);
    for field in ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"] {
        let reply = peer.call(12, &ext.clone().without(field), &[]);
        assert_eq!(reply.code, 1, "{reply:?}");
        assert!(reply.remark().contains(field), "{field}: {reply:?}");
    }
    assert_eq!(peer.call(12, &ext, &[]).code, 22);
}
