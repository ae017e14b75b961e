//! SEND_BATCH_MESSAGE (320), and batches that come as 310 or 10 with the batch field set.

use super::ext::{Ext, properties};
use super::fixture::{offset_id, shared, stock, topic, unique};
use super::peer::{FLAG_ONEWAY, FORMS, Form, Frame, Peer};

/// One message in a batch's body.
fn inner(flag: i32, body: &[u8], properties: &str) -> Vec<u8> {
    let total = 22 + body.len() + properties.len();
    let mut out = Vec::with_capacity(total);
    for int in [total as i32, 0, 0, flag, body.len() as i32] {
        out.extend_from_slice(&int.to_be_bytes());
    }
    out.extend_from_slice(body);
    out.extend_from_slice(&(properties.len() as i16).to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
    out
}

fn batch(topic: &str) -> Ext {
    Ext::send(topic).with("m", "true")
}

fn every_way(scenario: impl Fn(&mut Peer, i32)) {
    for form in FORMS {
        for code in [10, 310, 320] {
            scenario(&mut shared().peer(form), code);
        }
    }
}

fn call(peer: &mut Peer, code: i32, ext: Ext, body: &[u8]) -> Frame {
    peer.call(code, &ext.named_for(code), body)
}

#[test]
fn each_message_of_a_batch_is_a_record_with_its_and_the_batchs_properties() {
    every_way(|peer, code| {
        let topic = topic(2);
        let body = [
            inner(0, b"m0", &properties(&[("UNIQ_KEY", "B0"), ("TAGS", "t"), ("WAIT", "true")])),
            inner(7, b"m1", &properties(&[("UNIQ_KEY", "B1"), ("WAIT", "true")])),
            inner(0, b"m2", ""),
        ]
        .concat();
        let ext = batch(&topic).with("e", 1).properties(&[("WAIT", "true")]);
        let reply = call(peer, code, ext, &body).ok();
        assert_eq!((reply.number("queueId"), reply.number("queueOffset")), (1, 0));
        assert_eq!(reply.ext("MSG_REGION"), Some("DefaultRegion"));
        assert_eq!(reply.ext("TRACE_ON"), Some("true"));
        let messages = peer.pull(&topic, 1, 0);
        let ids: Vec<String> =
            messages.iter().map(|m| offset_id(shared().main, m.physical_offset)).collect();
        assert_eq!(reply.ext("msgId"), Some(ids.join(",").as_str()));
        let bodies: Vec<String> = messages.iter().map(|m| m.text()).collect();
        assert_eq!(bodies, ["m0", "m1", "m2"]);
        let at: Vec<(i64, i32)> = messages.iter().map(|m| (m.queue_offset, m.flag)).collect();
        assert_eq!(at, [(0, 0), (1, 7), (2, 0)]);
        // The order of the batch's own pairs is nobody's.
        let level = [
            "CLUSTER\u{1}DefaultCluster\u{2}WAIT\u{1}true",
            "WAIT\u{1}true\u{2}CLUSTER\u{1}DefaultCluster",
        ];
        let begins = [
            "UNIQ_KEY\u{1}B0\u{2}TAGS\u{1}t\u{2}WAIT\u{1}true\u{2}",
            "UNIQ_KEY\u{1}B1\u{2}WAIT\u{1}true\u{2}",
            "",
        ];
        for (message, begin) in messages.iter().zip(begins) {
            let expected = level.map(|level| format!("{begin}{level}"));
            assert!(expected.contains(&message.properties), "{:?}", message.properties);
        }
        // One store time, one log range: a batch is all or nothing.
        assert!(messages.windows(2).all(|two| two[0].stored == two[1].stored));
    });
}

#[test]
fn a_separator_that_stands_at_the_end_is_not_doubled() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let body = inner(0, b"x", "TAGS\u{1}t\u{2}");
    call(&mut peer, 320, batch(&topic), &body).ok();
    let message = peer.pull(&topic, 0, 0).remove(0);
    assert_eq!(message.properties, "TAGS\u{1}t\u{2}CLUSTER\u{1}DefaultCluster");
}

#[test]
fn the_batch_field_alone_makes_a_batch() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let body = inner(0, b"x", "");
    // The code of batches without the field: one message.
    call(&mut peer, 320, Ext::send(&topic), &body).ok();
    let message = peer.pull(&topic, 0, 0).remove(0);
    assert_eq!(message.body, body);
}

#[test]
fn what_a_batch_may_not_be_is_13() {
    let remark = "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg properties length limit 32KB.";
    every_way(|peer, code| {
        let topic = topic(1);
        let body = inner(0, b"x", "");
        for flag in [0x4, 0x8, 0xC] {
            call(peer, code, batch(&topic).with("f", flag), &body).refused(13, remark);
        }
        call(peer, code, batch(&topic).properties(&[("DELAY", "3")]), &body).refused(13, remark);
        if !stock() {
            // Of one message in it, too: stock delivers that at once.
            let late = [body.clone(), inner(0, b"y", &properties(&[("DELAY", "3")]))].concat();
            call(peer, code, batch(&topic), &late).refused(13, remark);
        }
        assert_eq!(peer.max_offset(&topic, 0), 0);
    });
    let mut peer = shared().peer(Form::Binary);
    let topic = topic(1);
    // What counts is the batch's encoding.
    let longest = inner(0, &vec![b'x'; (4 << 20) - 22], "");
    let long = inner(0, &vec![b'x'; (4 << 20) - 21], "");
    call(&mut peer, 320, batch(&topic), &long).refused(13, remark);
    assert_eq!(peer.max_offset(&topic, 0), 0);
    call(&mut peer, 320, batch(&topic), &longest).ok();
    assert_eq!(peer.max_offset(&topic, 0), 1);
}

#[test]
fn a_malformed_batch_is_1_and_stores_nothing() {
    every_way(|peer, code| {
        let topic = topic(1);
        let good = inner(0, b"good", "");
        let mut negative_body = inner(0, b"x", "");
        negative_body[16..20].copy_from_slice(&(-1i32).to_be_bytes());
        let mut long_body = inner(0, b"x", "");
        long_body[16..20].copy_from_slice(&i32::MAX.to_be_bytes());
        let mut negative_properties = inner(0, b"x", "");
        negative_properties[21..23].copy_from_slice(&(-1i16).to_be_bytes());
        // A container that is compressed as a message's body may be (zlib).
        let compressed = [
            0x78, 0x9c, 0x63, 0x60, 0x60, 0x60, 0x10, 0x67, 0x40, 0x02, 0x8c, 0x40, 0x5c, 0x01,
            0xc4, 0x0c,
        ];
        let reply = call(peer, code, batch(&topic).with("f", 1), &compressed);
        assert_ne!(reply.code, 0, "{reply:?}");
        for bad in [
            &good[..10],
            &[],
            &compressed,
            &negative_body,
            &long_body,
            &negative_properties,
            &good[..good.len() - 1],
        ] {
            let body = if bad.is_empty() { Vec::new() } else { [good.as_slice(), bad].concat() };
            let reply = call(peer, code, batch(&topic), &body);
            if !stock() {
                assert_eq!(reply.code, 1, "{bad:?}: {reply:?}");
            }
            assert_ne!(reply.code, 0, "{bad:?}: {reply:?}");
        }
        assert_eq!(peer.max_offset(&topic, 0), 0);
    });
}

#[test]
fn a_batch_passes_the_checks_of_a_send() {
    every_way(|peer, code| {
        let topic = topic(1);
        let body = inner(0, b"x", "");
        call(peer, code, batch(""), &body).refused(1, "The specified topic is blank.");
        assert_eq!(call(peer, code, batch(&topic).with("e", 1), &body).code, 1);
        assert_eq!(call(peer, code, batch(&unique("U")).with("c", "No"), &body).code, 17);
        let reply = call(peer, code, batch("SELF_TEST_TOPIC"), &body);
        reply.refused(16, "Sending message to topic[SELF_TEST_TOPIC] is forbidden.");
        let reply = call(peer, code, batch(&topic).with("e", -1), &body).ok();
        assert_eq!(reply.number("queueId"), 0);
    });
}

#[test]
fn retries_in_a_batch_never_become_dead_letters() {
    let mut peer = shared().peer(Form::Json);
    let retry = format!("%RETRY%{}", unique("G"));
    let body = inner(0, b"x", "");
    call(&mut peer, 320, batch(&retry).with("j", 99).with("l", 1), &body).ok();
    assert_eq!(peer.pull(&retry, 0, 0).len(), 1);
}

#[test]
fn a_5x_producers_key_of_the_whole_batch_does_not_hide_the_messages_own() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let (whole, own) = (unique("WHOLE"), unique("OWN"));
    let body = [
        inner(0, b"own", &properties(&[("UNIQ_KEY", &own)])),
        inner(0, b"none", &properties(&[("k", "v")])),
    ]
    .concat();
    call(&mut peer, 320, batch(&topic).properties(&[("UNIQ_KEY", &whole)]), &body).ok();
    let messages = peer.pull(&topic, 0, 0);
    let expected = if stock() { &whole } else { &own };
    assert_eq!(messages[0].property("UNIQ_KEY"), Some(expected.as_str()));
    assert_eq!(messages[1].property("UNIQ_KEY"), Some(whole.as_str()));
}

#[test]
fn tags_of_the_whole_batch_filter_as_every_reader_sees_them() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let body = inner(0, b"x", &properties(&[("TAGS", "inner")]));
    call(&mut peer, 320, batch(&topic).properties(&[("TAGS", "whole")]), &body).ok();
    // The last one of a name holds.
    assert_eq!(peer.pull(&topic, 0, 0)[0].property("TAGS"), Some("whole"));
    let pull = |tag: &str| Ext::pull("TOOLS_CONSUMER", &topic, 0, 0).with("subscription", tag);
    assert_eq!(peer.call(11, &pull("whole"), &[]).code, 0);
    assert_eq!(peer.call(11, &pull("inner"), &[]).code, 20);
}

#[test]
fn a_oneway_batch_is_stored_and_not_answered() {
    let mut peer = shared().peer(Form::Binary);
    let topic = topic(1);
    let body = [inner(0, b"a", ""), inner(0, b"b", "")].concat();
    peer.post(320, FLAG_ONEWAY, &batch(&topic), &body);
    peer.post(320, FLAG_ONEWAY, &batch(&topic), b"nonsense");
    assert_eq!(peer.pull(&topic, 0, 0).len(), 2);
    peer.quiet();
}
