//! SIGKILL at random moments under a mixed load: nothing acknowledged and nothing that a consumer saw may change or go. At `write` and
//! at `sync`, in the middle of starts, right after them, and between a clean stop and the next one.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::checker::{self, Rules};
use crate::support::journal::Journal;
use crate::support::judge::{End, Judge};
use crate::support::later::DELAYS_CONFIG;
use crate::support::load::LoadSpec;
use crate::support::mixed::Mixed;
use crate::support::random::Random;
use crate::support::tables::offsets_file;
use crate::support::wire::{Conn, code, eventually, frame};
use crate::support::{Broker, Options, Target, TempDir, exclusive, rounds, tempdir};

const TOPIC: &str = "Journal";
const QUEUES: u32 = 4;
/// After so many rounds a new store is begun: what a round checks grows with the store.
const STORE_ROUNDS: u32 = 20;

#[test]
fn acknowledged_messages_survive_sigkill_at_write() {
    kill_again_and_again("sigkill-write", "write", rounds(10), "");
}

#[test]
fn acknowledged_messages_survive_sigkill_at_sync() {
    kill_again_and_again("sigkill-sync", "sync", rounds(10), "");
}

/// Without zeroed space ahead of the log, a crash of the kernel may cost messages, but the end of the process does not.
#[test]
fn acknowledged_messages_survive_sigkill_without_zeroed_space() {
    kill_again_and_again("sigkill-unzeroed", "write", rounds(2).min(20), "zero_ahead = false\n");
}

fn kill_again_and_again(name: &str, level: &'static str, rounds: u32, durability: &str) {
    let _alone = exclusive();
    let mut random = Random::from_env(name);
    for first in (0..rounds).step_by(STORE_ROUNDS as usize) {
        let dir = tempdir(name);
        let mut store = Killed::new(&dir, level, durability);
        for round in first..rounds.min(first + STORE_ROUNDS) {
            store.round(round, &mut random);
        }
        store.finish(&mut random);
    }
}

/// A broker that is killed, and what is known of it.
struct Killed {
    broker: Broker,
    journal: std::sync::Arc<Journal>,
    /// On the file system of /dev/shm if there is one: not the store's.
    _journal_dir: tempfile::TempDir,
    judge: Judge,
    rules: Rules,
}

impl Killed {
    fn new(dir: &TempDir, level: &'static str, durability: &str) -> Killed {
        let target = Target::from_env();
        let shm = Path::new("/dev/shm");
        let journal_dir = tempfile::tempdir_in(if shm.is_dir() { shm } else { Path::new("/tmp") })
            .expect("a place for the journal");
        let journal = Journal::create(&journal_dir.path().join("journal"));
        let options = Options {
            shards: 2,
            durability: level,
            segment_bytes: 8 << 20,
            config: format!("[durability]\n{durability}\n{DELAYS_CONFIG}"),
            ..Options::default()
        };
        let broker = Broker::standalone(target, &dir.sub("broker"), options);
        Mixed::prepare(&broker, TOPIC, QUEUES);
        let rules = Rules::of(target, level);
        let judge = Judge::new(TOPIC, QUEUES);
        Killed { broker, journal, _journal_dir: journal_dir, judge, rules }
    }

    fn spec() -> LoadSpec {
        LoadSpec { topic: TOPIC.to_owned(), queues: QUEUES, conns: 2, window: 16, rate_max: 3_000 }
    }

    /// A load, an end, a start, a verdict.
    fn round(&mut self, round: u32, random: &mut Random) {
        let before = self.journal.count();
        let load =
            Mixed::start(&self.broker.addresses(), &Self::spec(), &self.journal, random.next());
        self.journal.await_count(before + 1);
        if round % 10 == 2 && self.rules.level == Some("write") {
            // Once, so that it is a later value than the first that a start finds.
            self.await_saved_offsets();
        }
        let moment = Duration::from_millis(100 + random.below(800));
        std::thread::sleep(moment);
        // Seldom a clean stop: it saves what a kill leaves as it was.
        let end = if round % 10 == 5 { End::Clean } else { End::Crash };
        match end {
            End::Clean => drop(self.broker.terminate(Duration::from_secs(20))),
            End::Crash => self.broker.sigkill(),
        }
        self.judge.ended(&self.broker, end, load.stop());
        if round % 3 == 1 {
            self.kill_a_start(random);
        }
        let took = self.broker.start();
        let told = self.journal.told();
        let verdict =
            self.judge.verdict(&self.broker, &self.journal, &told, self.rules, false, random);
        println!(
            "round {round}: {end:?} after {moment:?}, serving again after {took:?}, {verdict:?}"
        );
    }

    /// A second kill while the broker recovers, or right when it serves.
    fn kill_a_start(&mut self, random: &mut Random) {
        if random.below(3) == 0 {
            self.broker.start();
        } else {
            self.broker.spawn();
            std::thread::sleep(Duration::from_micros(random.below(120_000)));
        }
        self.broker.sigkill();
        self.judge.ended_unseen(&self.broker, End::Crash);
    }

    /// Waits until each shard has saved its committed offsets once more.
    fn await_saved_offsets(&self) {
        let files: Vec<_> =
            (0..self.broker.shards()).map(|k| offsets_file(&self.broker.shard_dir(k))).collect();
        let now = SystemTime::now();
        let saved = eventually(Duration::from_secs(30), || {
            let saved =
                |file| std::fs::metadata(file).and_then(|m| m.modified()).is_ok_and(|m| m > now);
            files.iter().all(saved).then_some(())
        });
        assert!(saved.is_some(), "committed offsets are not saved within 30 s");
    }

    /// At the end everything that is delayed is delivered.
    fn finish(mut self, random: &mut Random) {
        let told = self.journal.told();
        // No end came since the last verdict: the offsets are what they were.
        let verdict =
            self.judge.verdict(&self.broker, &self.journal, &told, self.rules, true, random);
        println!("at the end: {verdict:?}");
        assert!(verdict.later.dead > 0 && verdict.later.delivered > 0, "{verdict:?}");
        // A broker that was asked to end refuses what comes; nothing else is refused.
        let refused = self.journal.refused_in_earnest();
        let other = refused
            .iter()
            .find(|r| !r.contains("service not available") && !r.contains("SERVICE_NOT_AVAILABLE"));
        assert_eq!(other, None, "something was refused");
    }
}

/// A Java 4.9.8 client whose request was read and not answered takes the end of the stream for nothing and waits out its timeout, so that
/// the send is lost; a reset sends it to another broker at once.
#[test]
fn peers_of_a_killed_broker_see_a_reset() {
    let _alone = exclusive();
    let target = Target::from_env();
    let dir = tempdir("reset");
    let mut broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    broker.create_topic(TOPIC, QUEUES);
    let waiting = |queue| {
        let mut conn = Conn::open(broker.address(0)).expect("a connection");
        let ext = checker::pull_fields(TOPIC, queue, "0", "20000");
        conn.write(&frame(code::PULL_MESSAGE, 1, &ext, &[])).expect("a pull that waits");
        conn
    };
    let conns = [waiting("0"), waiting("1"), waiting("2")];
    // The pulls have been read when a later request of another connection is answered: one reactor takes them in turn.
    let mut later = Conn::open(broker.address(0)).expect("a connection");
    for _ in 0..50 {
        later
            .call(code::GET_MAX_OFFSET, &[("topic", TOPIC), ("queueId", "0")], &[])
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
