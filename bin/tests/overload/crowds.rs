//! Ten thousand clients at once, and one message for each that waits.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::crowd::{Crowd, allow_files};
use crate::judge::{self, Budgets};
use crate::pair::Pair;
use crate::support::checker::pull_fields;
use crate::support::wire::{Conn, code, frame, send_ext};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const TOPIC: &str = "Storm";
const QUEUES: usize = 6;
/// Long polls that each connection has waiting, on different queues.
const POLLS: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);

/// `RINGMQ_CROWD`, else ten thousand.
fn crowd_size() -> usize {
    let size = std::env::var("RINGMQ_CROWD").ok();
    size.map_or(10_000, |s| s.parse().expect("RINGMQ_CROWD is a number"))
}

fn heartbeat(n: usize) -> Vec<u8> {
    let body = serde_json::json!({
        "clientID": format!("127.0.0.1@crowd-{n}"),
        "producerDataSet": [],
        "consumerDataSet": [{
            "groupName": "crowd", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": false,
            "subscriptionDataSet": [{
                "classFilterMode": false, "topic": TOPIC, "subString": "*", "tagsSet": [],
                "codeSet": [], "subVersion": 1, "expressionType": "TAG"
            }]
        }]
    });
    frame(code::HEART_BEAT, 1, &[], body.to_string().as_bytes())
}

fn long_poll(queue: usize, offset: u64) -> Vec<u8> {
    let (queue, offset) = (queue.to_string(), offset.to_string());
    let ext = pull_fields(TOPIC, &queue, &offset, "60000");
    frame(code::PULL_MESSAGE, 100 + queue.parse::<i32>().unwrap_or(0), &ext, &[])
}

#[test]
fn ten_thousand_clients_that_wait_all_get_their_message() {
    let _alone = exclusive();
    let size = crowd_size();
    allow_files(size as u64 + 2_048);
    let (conns, polls) = (size as u64, (size * POLLS) as u64);
    let budgets =
        Budgets { connections: conns + 64, waiting_pulls: polls + 100, ..Budgets::default() };
    let dir = tempdir("crowd");
    let options = Options { config: budgets.config(), ..Options::default() };
    let mut broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options);
    broker.create_topic(TOPIC, QUEUES as u32);
    let pair = Pair::start(&broker, dir.path(), 100);
    pair.await_more(50);
    let idle_kib = broker.process().memory_kib("VmRSS");
    let conns_before = judge::number(&broker, "ringmqConnections");

    let mut crowd = Crowd::open(broker.address(0), size);
    join_group(&mut crowd);
    let conns_kib = broker.process().memory_kib("VmRSS");
    wait_in_line(&broker, &mut crowd, 0);
    let waiting_kib = broker.process().memory_kib("VmRSS");
    println!(
        "resident: idle {idle_kib} KiB, {size} connections {conns_kib} KiB, {polls} waiting pulls {waiting_kib} KiB"
    );
    refuse_more(&mut broker, conns_before, &budgets);

    // The storm: one message for each queue, and so one for each that waits.
    give_each_queue_a_message(&broker);
    let mut answered: BTreeMap<i32, u64> = BTreeMap::new();
    let count = std::cell::Cell::new(0);
    crowd.receive_until(
        "an answer to each waiting pull",
        LIMIT,
        |_, frame| {
            if frame.is_reply {
                assert!(frame.body_len > 100, "an answer without its message: {frame:?}");
                *answered.entry(frame.code).or_default() += 1;
                count.set(count.get() + 1);
            }
        },
        || count.get() == polls,
    );
    assert_eq!(answered, BTreeMap::from([(0, polls)]));
    judge::await_number(&broker, "ringmqWaitingPulls", |n| n <= 4);
    assert_eq!(crowd.open_count(), size, "nobody was sent away");

    // All wait again, and go away at once.
    wait_in_line(&broker, &mut crowd, 1);
    drop(crowd);
    judge::await_number(&broker, "ringmqConnections", |n| n <= conns_before);
    judge::await_number(&broker, "ringmqWaitingPulls", |n| n <= 4);
    let peak = broker.process().memory_kib("VmHWM");
    let bound = budgets.peak_kib(idle_kib, conns, polls);
    let after = broker.process().memory_kib("VmRSS");
    println!("resident: peak {peak} KiB, bound {bound} KiB, after {after} KiB");
    assert!(peak <= bound, "the process had {peak} KiB, its budgets make {bound}");
    pair.await_more(50);
    let log = broker.process().log_text();
    judge::assert_no_stall(&log);
    judge::assert_calm_log(&log, 200);
    pair.judge(&mut broker);
}

/// Every connection registers in the same group: each that comes is news for all others.
fn join_group(crowd: &mut Crowd) {
    let done = std::cell::Cell::new(0);
    let size = crowd.len();
    for n in 0..size {
        crowd.send(n, &heartbeat(n));
        if n % 500 == 499 {
            crowd.receive(Duration::ZERO, |_, frame| {
                done.set(done.get() + usize::from(frame.is_reply));
            });
        }
    }
    crowd.receive_until(
        "an answer to each heartbeat",
        LIMIT,
        |_, frame| {
            assert!(!frame.is_reply || frame.code == 0, "{frame:?}");
            done.set(done.get() + usize::from(frame.is_reply));
        },
        || done.get() == size,
    );
}

/// Every connection waits for the message at `offset` on some of the queues.
fn wait_in_line(broker: &Broker, crowd: &mut Crowd, offset: u64) {
    for n in 0..crowd.len() {
        for poll in 0..POLLS {
            crowd.send(n, &long_poll((n + poll) % QUEUES, offset));
        }
    }
    let polls = (crowd.len() * POLLS) as u64;
    // The good consumers may wait too.
    judge::await_number(broker, "ringmqWaitingPulls", |n| n >= polls);
}

fn give_each_queue_a_message(broker: &Broker) {
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    for queue in 0..QUEUES {
        let ext = send_ext("storm", TOPIC, &queue.to_string(), "", false)
            .map(|(name, value)| (name, value.to_owned()));
        let ext: Vec<(&str, &str)> = ext.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let reply = conn.call(code::SEND_MESSAGE_V2, &ext, b"one for each of you").expect("a send");
        assert_eq!(reply.code, 0, "{reply:?}");
    }
}

/// The connections that are left over are filled, and one more is closed at once, with a line in the log.
fn refuse_more(broker: &mut Broker, conns_before: u64, budgets: &Budgets) {
    let left = 64 - conns_before as usize + 8;
    let mut more = Crowd::open(broker.address(0), left);
    let closed = std::cell::Cell::new(false);
    for _ in 0..100 {
        more.receive(Duration::from_millis(100), |_, _| ());
        closed.set(more.open_count() < left);
        if closed.get() {
            break;
        }
    }
    assert!(closed.get(), "{left} more connections than {} are served", budgets.connections);
    drop(more);
    judge::await_number(broker, "ringmqConnections", |n| n <= budgets.connections);
    let log = broker.process().log_text();
    assert!(log.contains("refused a connection over the limit"), "no line says so");
}
