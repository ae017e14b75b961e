//! SIGKILL at random moments under load, at `write`: nothing acknowledged and nothing that a consumer saw may change or go.

use std::time::Duration;

use crate::support::checker::{self, Checker, Rules};
use crate::support::load::{Journal, Load, LoadSpec};
use crate::support::random::Random;
use crate::support::wire::{Conn, code, frame};
use crate::support::{Broker, Options, Target, exclusive, rounds, tempdir};

const QUEUES: u32 = 4;

#[test]
fn acknowledged_messages_survive_sigkill_at_random_moments() {
    let _alone = exclusive();
    let target = Target::from_env();
    let mut random = Random::from_env("sigkill");
    let dir = tempdir("sigkill");
    // On the file system of /dev/shm if there is one: not the store's.
    let journal_dir = tempfile::tempdir_in(if std::path::Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    })
    .expect("a place for the journal");
    let journal = Journal::create(&journal_dir.path().join("journal"));
    let options = Options { shards: 2, segment_bytes: 16 << 20, ..Options::default() };
    let mut broker = Broker::standalone(target, &dir.sub("broker"), options);
    broker.create_topic("Journal", QUEUES);
    let rules = Rules::of(target, "write");
    let spec = LoadSpec {
        topic: "Journal".to_owned(),
        queues: QUEUES,
        conns: 4,
        window: 16,
        rate_max: 8_000,
    };
    let mut checker = Checker::new();
    for round in 0..rounds(10) {
        let before = journal.count();
        let watchers = checker::watch(&broker.addresses(), "Journal", QUEUES, &checker.ends());
        let load = Load::start(&broker.addresses(), &spec, &journal);
        journal.await_count(before + 1);
        let moment = Duration::from_millis(300 + random.below(1_500));
        std::thread::sleep(moment);
        broker.sigkill();
        load.stop();
        let seen = watchers.into_iter().flat_map(|w| w.join().expect("a watcher")).collect();
        let seen = checker.hold_to(seen);
        let took = broker.start();
        let summary = checker.check(&broker.addresses(), "Journal", QUEUES, &journal, rules);
        println!(
            "round {round}: killed after {moment:?}, {seen} seen live, serving again after {took:?}, {summary:?}"
        );
    }
    assert_eq!(journal.refused(), Vec::<String>::new(), "a send was refused");
}

/// A Java 4.9.8 client whose request was read and not answered takes the end of the stream for nothing and waits out its timeout, so that
/// the send is lost; a reset sends it to another broker at once.
#[test]
fn peers_of_a_killed_broker_see_a_reset() {
    let _alone = exclusive();
    let target = Target::from_env();
    let dir = tempdir("reset");
    let mut broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    broker.create_topic("Journal", QUEUES);
    let waiting = |queue| {
        let mut conn = Conn::open(broker.address(0)).expect("a connection");
        let ext = checker::pull_fields("Journal", queue, "0", "20000");
        conn.write(&frame(code::PULL_MESSAGE, 1, &ext, &[])).expect("a pull that waits");
        conn
    };
    let conns = [waiting("0"), waiting("1"), waiting("2")];
    // The pulls have been read when a later request of another connection is answered: one reactor takes them in turn.
    let mut later = Conn::open(broker.address(0)).expect("a connection");
    for _ in 0..50 {
        later
            .call(code::GET_MAX_OFFSET, &[("topic", "Journal"), ("queueId", "0")], &[])
            .expect("a reply");
    }
    broker.sigkill();
    for mut conn in conns {
        let error = conn.read_reply().expect_err("no reply comes").kind();
        if target.is_stock() {
            assert_eq!(error, std::io::ErrorKind::UnexpectedEof);
        } else {
            assert_eq!(error, std::io::ErrorKind::ConnectionReset);
        }
    }
}
