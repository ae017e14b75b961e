//! How much one pull returns: 32 messages, 256 KiB, and always at least the first.

use super::ext::Ext;
use super::fixture::{Message, Own, settle, shared, stock, topic};
use super::peer::{Form, Frame, Peer};

fn pull(peer: &mut Peer, topic: &str, offset: i64, most: i32, tag: &str) -> Frame {
    let ext = Ext::pull("TOOLS_CONSUMER", topic, 0, offset).with("maxMsgNums", most);
    peer.call(11, &ext.with("subscription", tag), &[])
}

/// Sends without waiting for each reply.
fn send_many(
    peer: &mut Peer,
    topic: &str,
    count: usize,
    tag: impl Fn(usize) -> &'static str,
    body: &[u8],
) {
    for i in 0..count {
        peer.post(310, 0, &Ext::send(topic).properties(&[("TAGS", tag(i))]), body);
    }
    for _ in 0..count {
        peer.reply().ok();
    }
    settle();
}

#[test]
fn at_most_32_messages_come_at_once_and_as_many_as_asked_for_below() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    send_many(&mut peer, &topic, 40, |_| "t", b"small");
    let mut got = |offset: i64, most: i32| {
        let reply = pull(&mut peer, &topic, offset, most, "*");
        let count = Message::all(&reply.body).len() as i64;
        assert_eq!(reply.number("nextBeginOffset"), offset + count);
        count
    };
    assert_eq!(got(0, 1000), 32);
    assert_eq!(got(0, 32), 32);
    assert_eq!(got(0, 7), 7);
    assert_eq!(got(32, 32), 8);
    // The count is looked at once there is a message.
    assert_eq!(got(0, 1), 1);
    assert_eq!(got(0, 0), 1);
    if !stock() {
        // An exception there, answered 1.
        assert_eq!(got(0, -5), 1);
    }
}

#[test]
fn at_most_256_kib_come_at_once_but_always_the_first_message() {
    const LIMIT: usize = 262_144;
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    send_many(&mut peer, &topic, 6, |_| "t", &vec![b'b'; 100_000]);
    let reply = pull(&mut peer, &topic, 0, 32, "*");
    assert_eq!(Message::all(&reply.body).len(), 2);
    assert!(reply.body.len() <= LIMIT);
    assert_eq!(reply.number("nextBeginOffset"), 2);
    peer.send(&topic, &[], &vec![b'B'; LIMIT * 2]);
    let reply = pull(&mut peer, &topic, 6, 32, "*");
    assert_eq!(Message::all(&reply.body).len(), 1);
    // Where a large one is not the first, it waits for the next pull.
    let reply = pull(&mut peer, &topic, 5, 32, "*");
    assert_eq!(Message::all(&reply.body).len(), 1);
    assert_eq!(reply.number("nextBeginOffset"), 6);
}

#[test]
fn a_selective_pull_looks_at_a_bounded_number_of_messages() {
    if stock() {
        return;
    }
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    send_many(&mut peer, &topic, 1000, |i| if i == 999 { "rare" } else { "usual" }, b"x");
    let reply = pull(&mut peer, &topic, 0, 32, "rare");
    assert_eq!((reply.code, reply.remark()), (20, "NO_MATCHED_MESSAGE"));
    assert_eq!(reply.number("nextBeginOffset"), 800);
    let reply = pull(&mut peer, &topic, 800, 32, "rare");
    assert_eq!(reply.code, 0);
    assert_eq!(Message::all(&reply.body)[0].queue_offset, 999);
    assert_eq!(reply.number("nextBeginOffset"), 1000);
}

#[test]
fn limits_are_those_of_the_configuration() {
    let own = Own::start("pull-limits", "[limits]\npull_messages = 100\npull_bytes = 8192\n");
    let mut peer = own.place.peer(Form::Json);
    send_many(&mut peer, "Small", 120, |_| "t", b"x");
    let mut count = |most: i32| Message::all(&pull(&mut peer, "Small", 0, most, "*").body).len();
    let by_bytes = count(1_024);
    assert!(
        (33..100).contains(&by_bytes),
        "{by_bytes}: 8 KiB hold more than 32 and fewer than 100"
    );
    assert_eq!(count(20), 20);
    // A single message above the limit comes nevertheless, and alone.
    peer.send("Large", &[], &vec![b'l'; 3 << 20]);
    peer.send("Large", &[], b"small");
    let reply = pull(&mut peer, "Large", 0, 32, "*");
    assert_eq!(Message::all(&reply.body).len(), 1);
    assert_eq!(reply.number("nextBeginOffset"), 1);
}
