//! One store, served in turn by a stock broker and by RingMQ, after clean stops and after SIGKILL: each opens what the other wrote, and
//! all that either acknowledged is there.

use std::time::Duration;

use crate::support::checker::{Checker, Rules};
use crate::support::load::{Journal, Load, LoadSpec};
use crate::support::wire::{Conn, code};
use crate::support::{Broker, Options, Target, exclusive, have, peers, tempdir};

const QUEUES: u32 = 4;

#[test]
fn stock_and_ringmq_open_what_the_other_wrote() {
    if !have("java", "a stock broker") || !have("mvn", "a stock broker") {
        return;
    }
    peers::fetch("stock-4.9.7");
    let _alone = exclusive();
    let ours = Target::from_env();
    let dir = tempdir("stock-store");
    let journal = Journal::create(&dir.path().join("journal"));
    let options = Options { segment_bytes: 16 << 20, ..Options::default() };
    let mut broker = Broker::new(Target::Stock497, &dir.sub("broker"), options, None);
    let mut checker = Checker::new();
    let mut stored_offset: Option<i64> = None;
    let spec = LoadSpec {
        topic: "Journal".to_owned(),
        queues: QUEUES,
        conns: 4,
        window: 8,
        rate_max: 6_000,
    };
    // Who serves, and whether it is then killed.
    let turns = [
        (Target::Stock497, false),
        (ours, false),
        (Target::Stock497, true),
        (ours, true),
        (Target::Stock497, false),
        (ours, false),
    ];
    for (turn, (target, kill)) in turns.into_iter().enumerate() {
        broker.switch(target);
        let took = broker.start();
        if turn == 0 {
            broker.create_topic("Journal", QUEUES);
        }
        // One level for all would be wrong: a stock broker tells none.
        let rules = Rules::of(Target::Stock497, "");
        let summary = checker.check(&broker.addresses(), "Journal", QUEUES, &journal, rules);
        println!("turn {turn}, {target:?}: serving after {took:?}, {summary:?}");
        if let Some(offset) = stored_offset {
            assert_eq!(committed(&broker), offset, "the group's offset, as stored before");
        }
        commit(&broker, turn as i64);
        // Both kinds store offsets by a timer: a killed one may have had no time for it.
        stored_offset = (!kill).then_some(turn as i64);
        let before = journal.count();
        let load = Load::start(&broker.addresses(), &spec, &journal);
        journal.await_count(before + 3_000);
        if kill {
            broker.sigkill();
        } else {
            broker.terminate(Duration::from_secs(60));
        }
        load.stop();
    }
    broker.start();
    let summary = checker.check(
        &broker.addresses(),
        "Journal",
        QUEUES,
        &journal,
        Rules::of(Target::Stock497, ""),
    );
    println!("at the end: {summary:?}");
}

fn commit(broker: &Broker, offset: i64) {
    let offset = offset.to_string();
    let ext = [
        ("consumerGroup", "group"),
        ("topic", "Journal"),
        ("queueId", "1"),
        ("commitOffset", &offset),
    ];
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    assert_eq!(conn.call(code::UPDATE_CONSUMER_OFFSET, &ext, &[]).expect("a commit").code, 0);
}

fn committed(broker: &Broker) -> i64 {
    let ext = [("consumerGroup", "group"), ("topic", "Journal"), ("queueId", "1")];
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    conn.call(code::QUERY_CONSUMER_OFFSET, &ext, &[]).expect("a committed offset").number("offset")
}
