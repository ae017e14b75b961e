//! SIGTERM under load: the program ends well within 5 s with exit code 0, leaves no `abort`, and nothing acknowledged is lost.

use std::time::Duration;

use crate::support::checker::{Checker, Rules};
use crate::support::load::{Journal, Load, LoadSpec};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const QUEUES: u32 = 4;

#[test]
fn sigterm_under_load_ends_cleanly_and_loses_nothing() {
    let _alone = exclusive();
    let target = Target::from_env();
    let dir = tempdir("shutdown");
    let journal = Journal::create(&dir.path().join("journal"));
    let options = Options { shards: 2, ..Options::default() };
    let mut broker = Broker::standalone(target, &dir.sub("broker"), options);
    broker.create_topic("Journal", QUEUES);
    let spec = LoadSpec {
        topic: "Journal".to_owned(),
        queues: QUEUES,
        conns: 4,
        window: 16,
        rate_max: 8_000,
    };
    let rules = Rules::of(target, "write");
    let mut checker = Checker::new();
    for round in 0..2 {
        let load = Load::start(&broker.addresses(), &spec, &journal);
        journal.await_count(journal.count() + 500);
        for shard in 0..broker.shards() {
            assert!(
                broker.shard_dir(shard).join("abort").exists(),
                "no abort while shard {shard} runs"
            );
        }
        // A stock broker takes its time for the shutdown of its threads.
        let limit = Duration::from_secs(if target.is_stock() { 60 } else { 5 });
        let (status, took) = broker.terminate(limit);
        load.stop();
        if target.is_stock() {
            // A JVM that was asked to end by a signal says so in its exit code.
            assert_eq!(status.code(), Some(143));
        } else {
            assert_eq!(status.code(), Some(0), "exit code");
        }
        for shard in 0..broker.shards() {
            let abort = broker.shard_dir(shard).join("abort");
            assert!(!abort.exists(), "{} is still there after a clean stop", abort.display());
        }
        broker.start();
        let summary = checker.check(&broker.addresses(), "Journal", QUEUES, &journal, rules);
        println!("round {round}: ended after {took:?}, {summary:?}");
    }
    // What is answered once the stop was asked for is a refusal that makes a producer go elsewhere, and nothing else.
    for refused in journal.refused() {
        assert!(refused.starts_with("code 14 ") || target.is_stock(), "{refused}");
    }
}
