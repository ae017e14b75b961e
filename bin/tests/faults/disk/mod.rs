//! A disk that fails under the running broker, in each of the ways of `docs/faults.md`, "The disk".
//!
//! The broker has two shards. The second one's store is on a disk of its own, which gets sick: what the first one does shows that shards
//! share no fate. A load with a journal runs on both, and in the end the checker holds both stores to it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::checker::{self, Checker, Rules, Summary};
use crate::support::load::{Acked, Identity, Journal, Load, LoadSpec, Refused};
use crate::support::wire::{Conn, Reply, code, eventually, send_ext};
use crate::support::{Broker, Options, Target, TempDir, tempdir};

mod full;
mod hang;
mod io_error;
mod read_only;
mod slow;
mod small_files;
mod watermarks;

const TOPIC: &str = "Journal";
const QUEUES: u32 = 4;
/// The shard on the disk of the machine, and the one on the disk that gets sick.
const WELL: u16 = 0;
const SICK: u16 = 1;
/// What has to come comes within this.
const SOON: Duration = Duration::from_secs(30);

const SERVICE_NOT_AVAILABLE: i32 = 14;
const FLUSH_DISK_TIMEOUT: i32 = 10;
const SYSTEM_ERROR: i32 = 1;

/// A broker with a sick disk. The fields go in this order: the broker before the disk that it holds open.
struct Ward<D> {
    broker: Broker,
    disk: D,
    journal: Arc<Journal>,
    checker: Checker,
    /// Directories that go away last.
    keep: Vec<TempDir>,
}

impl Ward<()> {
    /// A broker whose shards are on the disk of the machine: faults are made otherwise.
    fn on_one_disk(what: &str, options: Options) -> Ward<()> {
        let dir = tempdir(what);
        let broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), two_shards(options));
        Ward::with(broker, (), dir)
    }
}

impl<D> Ward<D> {
    /// Starts the broker with the second shard's store below `mount(disk)`.
    fn open(
        what: &str,
        options: Options,
        disk: impl FnOnce(&Path) -> Result<D, String>,
        mount: impl FnOnce(&D) -> &Path,
    ) -> Result<Ward<D>, String> {
        let dir = tempdir(what);
        let disk = disk(dir.path())?;
        let options = two_shards(options);
        let mut broker = Broker::new(Target::RingMq, &dir.sub("broker"), options, None);
        let place = mount(&disk).join("store");
        std::fs::create_dir_all(&place).map_err(|e| e.to_string())?;
        // A store knows its shards from its first start on: then the second one is given its disk.
        broker.start();
        broker.sigkill();
        let link = broker.shard_dir(SICK);
        std::fs::remove_dir_all(&link).map_err(|e| e.to_string())?;
        std::os::unix::fs::symlink(place, link).map_err(|e| e.to_string())?;
        broker.start();
        Ok(Ward::with(broker, disk, dir))
    }

    fn with(broker: Broker, disk: D, dir: TempDir) -> Ward<D> {
        broker.create_topic(TOPIC, QUEUES);
        let journal = Journal::create(&dir.path().join("journal"));
        Ward { broker, disk, journal, checker: Checker::new(), keep: vec![dir] }
    }

    /// A load on both shards.
    fn load(&self, conns: u32, window: usize, rate_max: u64) -> Load {
        self.load_on(&[WELL, SICK], conns, window, rate_max)
    }

    fn load_on(&self, shards: &[u16], conns: u32, window: usize, rate_max: u64) -> Load {
        let topic = TOPIC.to_owned();
        let spec = LoadSpec { topic, queues: QUEUES, conns, window, rate_max };
        let shards: Vec<_> = shards.iter().map(|k| (*k, self.broker.address(*k))).collect();
        Load::start_on(&shards, &spec, &self.journal)
    }

    fn conn(&self, shard: u16) -> Conn {
        Conn::open(self.broker.address(shard)).expect("a connection")
    }

    /// Waits for `more` further acknowledgements of a shard.
    fn await_acks(&self, shard: u16, more: usize) {
        let want = self.journal.count_of(shard) + more;
        let there = eventually(SOON, || (self.journal.count_of(shard) >= want).then_some(()));
        let refusals = self.journal.refusals();
        let last = &refusals[refusals.len().saturating_sub(3)..];
        assert!(there.is_some(), "shard {shard} acknowledges nothing; last refusals: {last:?}");
    }

    /// Waits until the sick shard has answered a send of the load with this code; gives the first such answer.
    fn await_refusal(&self, code: i32) -> Refused {
        let found = eventually(SOON, || {
            self.journal.refusals().into_iter().find(|r| r.shard == SICK && r.code == code)
        });
        found
            .unwrap_or_else(|| panic!("no answer {code}, but {:?}", self.journal.refusals().last()))
    }

    /// Waits for a line of the broker's log that holds all of `parts`.
    fn await_log(&mut self, parts: &[&str]) -> String {
        let process = self.broker.process();
        let line = eventually(SOON, || {
            let text = process.log_text();
            text.lines().find(|l| parts.iter().all(|p| l.contains(p))).map(str::to_owned)
        });
        line.unwrap_or_else(|| panic!("no line with {parts:?} in the log"))
    }

    /// How many lines of the log hold `part`.
    fn log_lines(&mut self, part: &str) -> usize {
        self.broker.process().log_text().lines().filter(|l| l.contains(part)).count()
    }

    /// What goes on whatever the sick disk does: the other shard takes messages; the sick one is registered, takes heartbeats, and
    /// gives what was sent last.
    fn the_rest_goes_on(&self) {
        self.await_acks(WELL, 100);
        let mut namesrv = Conn::open(self.broker.namesrv).expect("the name server");
        let reply = namesrv.call(code::GET_BROKER_CLUSTER_INFO, &[], &[]).expect("an answer");
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        for shard in [WELL, SICK] {
            assert!(body.contains(&format!("\"{}\"", self.broker.shard_name(shard))), "{body}");
        }
        let mut conn = self.conn(SICK);
        let beat =
            br#"{"clientID":"c","producerDataSet":[{"groupName":"journal"}],"consumerDataSet":[]}"#;
        assert_eq!(conn.call(code::HEART_BEAT, &[], beat).expect("an answer").code, 0);
        for queue in 0..QUEUES as i32 {
            let end = max_offset(&mut conn, queue);
            let reply = checker::pull(&mut conn, TOPIC, queue, end - 1, 0).expect("a pull");
            assert_eq!(reply.code, 0, "the newest message of queue {queue}: {:?}", reply.remark);
        }
    }

    /// A log that has stopped takes nothing more, also when the disk is well again.
    fn stays_stopped(&self) {
        let acked = self.journal.count_of(SICK);
        self.await_acks(WELL, 300);
        assert_eq!(self.journal.count_of(SICK), acked, "acknowledged by a log that has stopped");
    }

    /// Holds both stores to the journal: what was acknowledged is there, and so is what was answered 10 with `ackLevel=write`.
    fn check(&mut self, level: &'static str) -> Summary {
        let addresses = self.broker.addresses();
        let rules = Rules::of(Target::RingMq, level);
        let summary = self.checker.check(&addresses, TOPIC, QUEUES, &self.journal, rules);
        let written = written_late(&self.journal.refusals());
        for (shard, queue, offset, id) in &written {
            let found = self.checker.seen.get(&(*shard, *queue, *offset));
            let found = found.unwrap_or_else(|| {
                panic!("{id:?} was answered 10 at level write and is not at {queue} {offset}")
            });
            assert_eq!(found.id, *id, "shard {shard} queue {queue} offset {offset}");
        }
        println!("{summary:?}, {} answered late and there", written.len());
        summary
    }
}

/// The broker of a ward, which stops without a while of serving on.
fn two_shards(options: Options) -> Options {
    let config = format!("{}\n[drain]\nserve_ms = 0\nexit_ms = 4000\n", options.config);
    Options { shards: 2, config, ..options }
}

/// The messages that were answered 10 with `ackLevel=write`, and where.
fn written_late(refusals: &[Refused]) -> Vec<(u16, i32, i64, Identity)> {
    let late = refusals
        .iter()
        .filter(|r| r.code == FLUSH_DISK_TIMEOUT && r.level.as_deref() == Some("write"));
    let mut all = Vec::new();
    for refused in late {
        let (queue, offset) = refused.place.expect("a 10 says where the message is");
        for n in 0..refused.count {
            let id = Identity { seq: refused.first.seq + n, ..refused.first };
            all.push((refused.shard, queue, offset + n as i64, id));
        }
    }
    all
}

fn max_offset(conn: &mut Conn, queue: i32) -> i64 {
    let ext = [("topic", TOPIC), ("queueId", &queue.to_string())];
    conn.call(code::GET_MAX_OFFSET, &ext, &[]).expect("an answer").number("offset")
}

/// Asks for a topic as `mqadmin updateTopic` does. Returns the answer.
fn create_topic(conn: &mut Conn, topic: &str) -> Reply {
    let ext = [
        ("topic", topic),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "1"),
        ("writeQueueNums", "1"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    conn.call(code::UPDATE_AND_CREATE_TOPIC, &ext, &[]).expect("an answer")
}

/// One message of a test's own to some topic, which is made if it is not there. Returns the answer.
fn send(conn: &mut Conn, topic: &str, body: &[u8]) -> Reply {
    let ext = send_ext("PG", topic, "0", "", false);
    conn.call(code::SEND_MESSAGE_V2, &ext, body).expect("an answer")
}

/// Messages of a shard, as acknowledged.
fn acked_on(journal: &Journal, shard: u16) -> Vec<Acked> {
    journal.acked().into_iter().filter(|a| a.shard == shard).collect()
}
