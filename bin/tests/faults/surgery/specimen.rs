//! The stores that are operated on: one that was stopped clean and one that was killed, each with some segments, several files a queue,
//! several index files, delayed messages, groups and offsets.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::support::load::{Acked, Journal, Load, LoadSpec};
use crate::support::record::Record;
use crate::support::wire::{self, Conn, code};
use crate::support::{Broker, Options, Target, TempDir, tempdir};

pub(super) const TOPIC: &str = "Journal";
pub(super) const QUEUES: u32 = 4;
pub(super) const SEGMENT_BYTES: u64 = 1 << 20;
/// Bytes of a consume queue file: 200 units.
pub(super) const QUEUE_FILE_BYTES: u64 = 4000;
/// Slots of an index file, which has four entries for each.
const INDEX_SLOTS: u64 = 250;
const MESSAGES: u64 = 2_500;
const UPDATE_GROUP: i32 = 200;

/// How the broker on it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Clean,
    Killed,
}

/// A record of the log, found by this module's own hand.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Physical offset.
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) topic: String,
    pub(super) queue: i32,
    pub(super) offset: i64,
    pub(super) body_len: usize,
    /// Store time, milliseconds since 1970.
    pub(super) stored_ms: i64,
}

impl Place {
    /// Where the body begins in the record: both hosts are IPv4.
    pub(super) const BODY_AT: usize = 88;

    /// Where the topic's length is in the record.
    pub(super) fn topic_at(&self) -> usize {
        Place::BODY_AT + self.body_len
    }

    /// Where the length of the properties is in the record.
    pub(super) fn properties_at(&self) -> usize {
        self.topic_at() + 1 + self.topic.len()
    }
}

/// A stopped store. Nothing in it is changed.
pub(super) struct Specimen {
    pub(super) acked: Vec<Acked>,
    /// All whole records, in log order.
    pub(super) records: Vec<Place>,
    /// Up to where RingMQ's state says the log was flushed.
    pub(super) durable: u64,
    store: PathBuf,
    _dir: TempDir,
}

pub(super) fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        store_keys: format!(
            "consume_queue_file_bytes = {QUEUE_FILE_BYTES}\nindex_slots = {INDEX_SLOTS}\nindex_entries = {}\n",
            INDEX_SLOTS * 4
        ),
        config: "[limits]\nmessage_bytes = 524288\n\n[drain]\nserve_ms = 0\n".to_owned(),
        ..Options::default()
    }
}

static MADE: Mutex<[Weak<Specimen>; 2]> = Mutex::new([Weak::new(), Weak::new()]);

impl Specimen {
    /// Made once for all tests that run at the same time.
    pub(super) fn of(end: End) -> Arc<Specimen> {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut made[usize::from(end == End::Killed)];
        if let Some(specimen) = slot.upgrade() {
            return specimen;
        }
        let specimen = Arc::new(Specimen::make(end));
        *slot = Arc::downgrade(&specimen);
        specimen
    }

    fn make(end: End) -> Specimen {
        let dir = tempdir("specimen");
        let mut broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options());
        let journal = Journal::create(&dir.path().join("journal"));
        broker.create_topic(TOPIC, QUEUES);
        // From now on the backup of topics.json has the topic too.
        broker.create_topic("Other", 1);
        delayed_and_group(&broker);
        make_group(&broker, "first");
        make_group(&broker, "second");
        let spec = LoadSpec {
            topic: TOPIC.to_owned(),
            queues: QUEUES,
            conns: 3,
            window: 8,
            rate_max: 20_000,
        };
        let load = Load::start(&broker.addresses(), &spec, &journal);
        journal.await_count(MESSAGES);
        match end {
            End::Clean => {
                load.stop();
                broker.terminate(Duration::from_secs(20));
            }
            End::Killed => {
                broker.sigkill();
                load.stop();
            }
        }
        let store = broker.store_dir();
        let state = fs::read_to_string(store.join("ringmq/state")).expect("the state file");
        let durable = state.lines().find_map(|line| line.strip_prefix("durable ")?.parse().ok());
        Specimen {
            acked: journal.acked(),
            records: records(&store),
            durable: durable.expect("a durable offset"),
            store,
            _dir: dir,
        }
    }

    /// The last record of the load's topic that begins below `offset`.
    pub(super) fn record_below(&self, offset: u64) -> &Place {
        let of_load = |place: &&Place| place.topic == TOPIC && place.at < offset;
        self.records.iter().rev().find(of_load).expect("a record")
    }

    /// The newest of the load's that lies behind a record of an earlier millisecond than the last one's.
    pub(super) fn recent_record(&self) -> &Place {
        let last_ms = self.last_record().stored_ms;
        let mut pairs = self.records.windows(2).rev();
        let found = pairs.find(|pair| pair[0].stored_ms < last_ms && pair[1].topic == TOPIC);
        found.map(|pair| &pair[1]).expect("a store takes more than a millisecond to fill")
    }

    /// One in the middle of the first segment.
    pub(super) fn old_record(&self) -> &Place {
        self.record_below(SEGMENT_BYTES / 2)
    }

    pub(super) fn last_record(&self) -> &Place {
        self.records.last().expect("records")
    }

    /// A copy in `dir`, with RingMQ's files saying that it is the original: a copied store is taken for one that a stock broker had.
    pub(super) fn copy_to(&self, dir: &Path) {
        copy(&self.store, dir);
        let lock = fs::metadata(dir.join("lock")).expect("the lock file");
        let modified = lock.mtime() * 1_000_000_000 + lock.mtime_nsec();
        for name in ["state", "derived"] {
            let path = dir.join("ringmq").join(name);
            let text = fs::read_to_string(&path).expect("a file of ours");
            fs::write(&path, restamped(&text, lock.ino(), modified)).expect("a file of ours");
        }
    }
}

/// A delayed message that is delivered and one that waits, a group with an offset.
fn delayed_and_group(broker: &Broker) {
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    for level in ["1", "18"] {
        let properties = format!("UNIQ_KEY\u{1}delay{level}\u{2}DELAY\u{1}{level}");
        let ext = wire::send_ext("group", "Other", "0", &properties, false);
        let reply = conn.call(code::SEND_MESSAGE_V2, &ext, b"late").expect("a reply");
        assert_eq!(reply.code, 0, "{reply:?}");
    }
    let queue = [("topic", "Other"), ("queueId", "0")];
    let delivered = wire::eventually(Duration::from_secs(20), || {
        let reply = conn.call(code::GET_MAX_OFFSET, &queue, &[]).ok()?;
        (reply.number("offset") == 1).then_some(())
    });
    assert!(delivered.is_some(), "the delayed message of level 1 is not delivered");
    let ext =
        [("consumerGroup", "group"), ("topic", TOPIC), ("queueId", "1"), ("commitOffset", "7")];
    assert_eq!(conn.call(code::UPDATE_CONSUMER_OFFSET, &ext, &[]).expect("a reply").code, 0);
}

/// Answered when the file is saved: what it was before is in the backup.
fn make_group(broker: &Broker, name: &str) {
    let body = format!("{{\"groupName\":\"{name}\",\"consumeEnable\":true,\"retryMaxTimes\":16}}");
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let reply = conn.call(UPDATE_GROUP, &[], body.as_bytes()).expect("a reply");
    assert_eq!(reply.code, 0, "{reply:?}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// The text with another stamp of the lock file, and its last line, the CRC-32C of those before, made anew.
fn restamped(text: &str, inode: u64, modified_ns: i64) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("crc32c ")) {
        let name = line.split(' ').next().unwrap_or_default();
        match name.replace('-', "_").as_str() {
            "lock_inode" => out.push_str(&format!("{name} {inode}\n")),
            "lock_modified_ns" => out.push_str(&format!("{name} {modified_ns}\n")),
            _ => out.push_str(&format!("{line}\n")),
        }
    }
    format!("{out}crc32c {:08x}\n", crc32c(out.as_bytes()))
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82F6_3B78 & 0u32.wrapping_sub(crc & 1))
        })
    })
}

/// All whole records of a store.
pub(super) fn records(store: &Path) -> Vec<Place> {
    let mut paths: Vec<PathBuf> = fs::read_dir(store.join("commitlog"))
        .expect("the log")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let start: u64 = path.file_name().and_then(|n| n.to_str()?.parse().ok()).expect("a name");
        let bytes = fs::read(&path).expect("a segment");
        let mut at = 0;
        while let Ok(record) = Record::decode(&bytes[at..]) {
            found.push(Place {
                at: start + at as u64,
                len: record.len,
                topic: record.topic.to_owned(),
                queue: record.queue_id,
                offset: record.queue_offset,
                body_len: record.body.len(),
                stored_ms: record.stored,
            });
            at += record.len;
        }
    }
    found
}
