//! Waiting pulls: answered by a message that matches, by their own deadline, by the scan when others passed; dropped with their connection.

use std::time::{Duration, Instant};

use super::ext::Ext;
use super::fixture::{Message, now_ms, shared, stock, topic, unique};
use super::peer::{FORMS, Form, Frame, Peer};

/// Far above what a wake-up takes, far below the scan's 5 s and every deadline used here.
const AT_ONCE: Duration = Duration::from_millis(2_500);

fn wait(topic: &str, queue: i32, offset: i64, timeout_ms: u64) -> Ext {
    Ext::pull("TOOLS_CONSUMER", topic, queue, offset).waiting(timeout_ms)
}

/// Makes sure that what was posted before has been handled.
fn handled(peer: &mut Peer) {
    peer.post(30, 0, &Ext::queue("Handled", 0), &[]);
    assert_eq!(peer.reply().number("offset"), 0, "something else was answered");
}

#[test]
fn a_message_that_matches_answers_a_waiting_pull_at_once() {
    for form in FORMS {
        for code in [11, 361] {
            if stock() && code == 361 {
                continue;
            }
            let (mut consumer, mut producer) = (shared().peer(form), shared().peer(Form::Json));
            let topic = topic(1);
            for round in 0..5 {
                let opaque = consumer.post(code, 0, &wait(&topic, 0, round, 20_000), &[]);
                handled(&mut consumer);
                let began = Instant::now();
                producer.send(&topic, &[], b"wake");
                let reply = consumer.reply_within(AT_ONCE).expect("an answer at once");
                println!("answered after {:?}", began.elapsed());
                assert_eq!((reply.opaque, reply.code, reply.remark()), (opaque, 0, "FOUND"));
                assert_eq!(Message::all(&reply.body)[0].queue_offset, round);
                assert_eq!(reply.number("nextBeginOffset"), round + 1);
                if !stock() {
                    assert_eq!(reply.form, form);
                }
            }
        }
    }
}

#[test]
fn every_waiting_pull_of_the_queue_is_answered_and_no_other() {
    let topic = topic(2);
    let mut waiting: Vec<Peer> = (0..4).map(|_| shared().peer(Form::Json)).collect();
    let mut other = shared().peer(Form::Binary);
    other.post(11, 0, &wait(&topic, 1, 0, 20_000), &[]);
    handled(&mut other);
    for peer in &mut waiting {
        peer.post(11, 0, &wait(&topic, 0, 0, 20_000), &[]);
        handled(peer);
    }
    shared().peer(Form::Json).send(&topic, &[], b"x");
    for peer in &mut waiting {
        assert_eq!(peer.reply_within(AT_ONCE).expect("an answer at once").code, 0);
    }
    other.quiet();
}

#[test]
fn a_first_message_reaches_a_pull_that_waits_on_a_queue_that_was_never_used() {
    let (mut consumer, mut producer) = (shared().peer(Form::Json), shared().peer(Form::Json));
    let topic = topic(8);
    consumer.post(11, 0, &wait(&topic, 7, 0, 20_000), &[]);
    handled(&mut consumer);
    producer.call(310, &Ext::send(&topic).with("e", 7), b"first").ok();
    assert_eq!(consumer.reply_within(AT_ONCE).expect("an answer at once").code, 0);
}

#[test]
fn a_waiting_pull_is_answered_by_its_own_deadline() {
    if stock() {
        return; // Up to 5 s later.
    }
    let mut consumer = shared().peer(Form::Json);
    let topic = topic(1);
    // The second is asked later and due earlier.
    let began = Instant::now();
    let late = consumer.post(11, 0, &wait(&topic, 0, 0, 1_500), &[]);
    let early = consumer.post(11, 0, &wait(&topic, 0, 0, 300), &[]);
    let mut answered = |opaque: i32, due_ms: u64| {
        let reply = consumer.reply();
        let took = began.elapsed();
        assert_eq!((reply.opaque, reply.code), (opaque, 19), "{reply:?}");
        assert_eq!(reply.remark(), "NO_MESSAGE_IN_QUEUE");
        assert_eq!(reply.number("nextBeginOffset"), 0);
        let due = Duration::from_millis(due_ms);
        assert!(took >= due && took < due + Duration::from_millis(2_000), "due {due:?}: {took:?}");
        took
    };
    let first = answered(early, 300);
    assert!(first < Duration::from_millis(1_500));
    answered(late, 1_500);
}

#[test]
fn a_pull_that_may_not_wait_is_answered_now() {
    let mut consumer = shared().peer(Form::Json);
    let topic = topic(1);
    let began = Instant::now();
    let ext = wait(&topic, 0, 0, 20_000).with("sysFlag", 4);
    assert_eq!(consumer.call(11, &ext, &[]).code, 19);
    // Nor one whose offset is not the queue's end.
    assert_eq!(consumer.call(11, &wait(&topic, 0, 5, 20_000), &[]).code, 21);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn messages_that_do_not_match_leave_it_waiting_until_the_scan_moves_it_on() {
    let (mut consumer, mut producer) = (shared().peer(Form::Json), shared().peer(Form::Json));
    let topic = topic(1);
    let ext = wait(&topic, 0, 0, 20_000).with("subscription", "wanted");
    consumer.post(11, 0, &ext, &[]);
    handled(&mut consumer);
    producer.send(&topic, &[("TAGS", "other")], b"x");
    producer.send(&topic, &[("TAGS", "other")], b"x");
    let reply = consumer.reply_within(Duration::from_secs(10)).expect("the scan each 5 s");
    assert_eq!((reply.code, reply.remark()), (20, "NO_MATCHED_MESSAGE"));
    // A scan may have come between the two.
    let next = reply.number("nextBeginOffset");
    assert!((1..=2).contains(&next), "{reply:?}");
    // The next one is answered by what matches, past what does not.
    consumer.post(11, 0, &wait(&topic, 0, 2, 20_000).with("subscription", "wanted"), &[]);
    handled(&mut consumer);
    producer.send(&topic, &[("TAGS", "other")], b"x");
    producer.send(&topic, &[("TAGS", "wanted")], b"yes");
    let reply = soonest(&mut consumer);
    assert_eq!(reply.code, 0, "{reply:?}");
    let got = Message::all(&reply.body);
    assert_eq!((got.len(), got[0].queue_offset, got[0].text().as_str()), (1, 3, "yes"));
}

/// The next reply; when the scan came in between, that of the pull again.
fn soonest(consumer: &mut Peer) -> Frame {
    let reply = consumer.reply_within(Duration::from_secs(10)).expect("an answer");
    if reply.code != 20 {
        return reply;
    }
    panic!("the scan was between two sends that follow each other at once: {reply:?}")
}

#[test]
fn a_registered_subscription_decides_what_wakes() {
    let (mut consumer, mut producer) = (shared().peer(Form::Json), shared().peer(Form::Json));
    let (topic, group) = (topic(1), unique("Wake"));
    let mut beat = super::fixture::consumer_beat("c", &group, &topic, "wanted", 1);
    if stock() {
        beat = beat.replace("\"codeSet\":[]", "\"codeSet\":[-795125073]");
    }
    consumer.call(34, &Ext::none(), beat.as_bytes()).ok();
    let ext =
        Ext::pull(&group, &topic, 0, 0).waiting(20_000).with("sysFlag", 2).with("subVersion", 1);
    consumer.post(11, 0, &ext.without("subscription"), &[]);
    handled(&mut consumer);
    producer.send(&topic, &[("TAGS", "wanted")], b"yes");
    assert_eq!(consumer.reply_within(AT_ONCE).expect("an answer at once").code, 0);
}

#[test]
fn a_waiting_pull_goes_with_its_connection() {
    if stock() {
        return;
    }
    let waiting = |peer: &mut Peer| {
        let table = peer.call(28, &Ext::none(), &[]).ok().json();
        table["table"]["ringmqWaitingPulls"]
            .as_str()
            .expect("a number")
            .parse::<i64>()
            .expect("a number")
    };
    // Others wait, too: count on a broker of its own.
    let own = super::fixture::Own::start("longpoll", "");
    let mut watcher = own.place.peer(Form::Json);
    let mut consumer = own.place.peer(Form::Json);
    watcher.call(17, &Ext::create_topic("Gone", 1), &[]).ok();
    for _ in 0..50 {
        consumer.post(11, 0, &wait("Gone", 0, 0, 60_000), &[]);
    }
    handled(&mut consumer);
    assert_eq!(waiting(&mut watcher), 50);
    drop(consumer);
    super::fixture::soon("the pulls of a closed connection to be dropped", || {
        (waiting(&mut watcher) == 0).then_some(())
    });
    // And nobody minds that they are gone.
    watcher.send("Gone", &[], b"x");
    assert_eq!(watcher.pull("Gone", 0, 0).len(), 1);
}

#[test]
fn all_checks_are_made_again_when_it_wakes() {
    let (mut consumer, mut admin) = (shared().peer(Form::Json), shared().peer(Form::Json));
    let topic = topic(1);
    consumer.post(11, 0, &wait(&topic, 0, 0, 1_000), &[]);
    handled(&mut consumer);
    admin.call(17, &Ext::create_topic(&topic, 1).with("perm", 2), &[]).ok();
    let reply = consumer.reply();
    assert_eq!(reply.code, 16, "{reply:?}");
}

#[test]
fn a_delayed_message_wakes_a_waiting_pull_when_its_time_has_come() {
    let (mut consumer, mut producer) = (shared().peer(Form::Json), shared().peer(Form::Json));
    let topic = topic(1);
    consumer.post(11, 0, &wait(&topic, 0, 0, 20_000), &[]);
    handled(&mut consumer);
    let sent = now_ms();
    producer.send(&topic, &[("DELAY", "1")], b"late");
    let reply = consumer.reply_within(Duration::from_secs(10)).expect("the delayed message");
    assert_eq!(reply.code, 0, "{reply:?}");
    let message = Message::all(&reply.body).remove(0);
    assert!(message.stored - sent >= 1_000, "{} ms early", 1_000 - (message.stored - sent));
}
