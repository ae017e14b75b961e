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
