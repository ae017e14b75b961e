//! A master and its slaves, of either kind, on one machine: started, asked how they are, and compared byte for byte.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::broker::NameServer;
use super::checker;
use super::journal::{Identity, Journal, identity};
use super::wire::{Conn, eventually};
use super::{Broker, Options, Target};

/// Patience with anything that a slave has to come to.
pub const CAUGHT_UP_MAX: Duration = Duration::from_secs(60);
const GET_BROKER_RUNTIME_INFO: i32 = 28;

/// Times that suit a test: a silent peer is noticed in two seconds, one that is back in half a second. A slave has all of its master's
/// history.
pub const QUICK: &str = "heartbeat_ms = 300\nhousekeeping_ms = 2000\nmetadata_ms = 300\nretry_max_ms = 500\nstart = \"oldest\"\n";

/// A broker that is told to stop, or opens its store anew, ends at once: no client of these tests has to hear of it first.
pub const NO_DRAIN: &str = "[drain]\nserve_ms = 0\n";

/// A master and one slave of one group, and their name server.
pub struct Pair {
    pub namesrv: NameServer,
    pub master: Broker,
    pub slave: Broker,
}

impl Pair {
    /// Two RingMQ brokers. `ha` is the section `ha` of both, less the role; `options` counts for both.
    pub fn start(dir: &Path, role: &str, ha: &str, options: Options) -> Pair {
        let mut pair = Pair::prepare(dir, role, ha, options);
        pair.master.start();
        pair.slave.start();
        pair
    }

    /// The same, not started but for the name server.
    pub fn prepare(dir: &Path, role: &str, ha: &str, options: Options) -> Pair {
        let namesrv = NameServer::start(Target::RingMq, &dir.join("namesrv"));
        let broker = |name: &str, args: &[&str]| {
            let mut options = options.clone();
            options.args.extend(args.iter().map(|arg| (*arg).to_owned()));
            let drain = if options.config.contains(NO_DRAIN) { "" } else { NO_DRAIN };
            options.config = format!("[ha]\n{ha}\n{drain}{}", options.config);
            Broker::new(Target::RingMq, &dir.join(name), options, Some(namesrv.address))
        };
        let master = broker("master", &["--role", role]);
        let slave = broker("slave", &["--role", "slave", "--broker-id", "1"]);
        Pair { namesrv, master, slave }
    }

    /// Waits until the slave has all that the master has, shard by shard, and has dispatched it.
    pub fn await_caught_up(&self) {
        for shard in 0..self.master.shards() {
            await_caught_up(self.master.address(shard), self.slave.address(shard));
        }
    }

    /// Every byte that the slave has, against the master's; gives how many were compared.
    pub fn compare_logs(&self) -> u64 {
        let shards = 0..self.master.shards();
        let compared = shards
            .map(|shard| compare_logs(&self.master.shard_dir(shard), &self.slave.shard_dir(shard)));
        compared.sum()
    }
}

/// What a broker tells of itself; nothing if it does not answer.
pub fn runtime(address: SocketAddr) -> BTreeMap<String, String> {
    let table = || -> Option<BTreeMap<String, String>> {
        let mut conn = Conn::open(address).ok()?;
        let reply = conn.call(GET_BROKER_RUNTIME_INFO, &[], &[]).ok()?;
        let json: serde_json::Value = serde_json::from_slice(&reply.body).ok()?;
        let table = json.get("table")?.as_object()?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        Some(table.iter().map(|(key, value)| (key.clone(), text(value))).collect())
    };
    table().unwrap_or_default()
}

/// A number of [`runtime`].
pub fn number(address: SocketAddr, key: &str) -> Option<u64> {
    runtime(address).get(key)?.parse().ok()
}

/// Waits until a broker's text for `key` is as wanted.
pub fn await_text(address: SocketAddr, key: &str, wanted: impl Fn(&str) -> bool) {
    let reached = eventually(CAUGHT_UP_MAX, || {
        runtime(address).get(key).filter(|text| wanted(text)).map(|_| ())
    });
    assert!(reached.is_some(), "{key} of {address} stays {:?}", runtime(address).get(key));
}

/// Waits until the slave's log is as long as the master's and dispatched.
pub fn await_caught_up(master: SocketAddr, slave: SocketAddr) {
    let reached = eventually(CAUGHT_UP_MAX, || {
        let end = number(master, "commitLogMaxOffset")?;
        let of_slave = runtime(slave);
        let is = |key: &str, value: u64| of_slave.get(key) == Some(&value.to_string());
        (is("commitLogMaxOffset", end) && is("dispatchBehindBytes", 0)).then_some(())
    });
    assert!(
        reached.is_some(),
        "the slave does not catch up: master {:?}, slave {:?}",
        runtime(master),
        runtime(slave)
    );
}

/// The segments of a store, by their start.
pub fn segments(store: &Path) -> BTreeMap<u64, PathBuf> {
    let dir = store.join("commitlog");
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries
        .map(|entry| entry.expect("an entry").path())
        .filter_map(|path| {
            let start = path.file_name()?.to_str()?.parse().ok()?;
            Some((start, path))
        })
        .collect()
}

/// Compares each segment of the slave with the master's of the same name, to the last byte. What lies behind both logs' ends is zero in
/// both. Gives how many bytes were compared.
pub fn compare_logs(master: &Path, slave: &Path) -> u64 {
    let (of_master, of_slave) = (segments(master), segments(slave));
    let mut compared = 0;
    for (start, path) in &of_slave {
        let Some(other) = of_master.get(start) else { continue };
        compared += compare_files(path, other);
    }
    compared
}

/// Compares two files, piece by piece: a segment of a usual size is mostly room. Gives their length.
fn compare_files(one: &Path, other: &Path) -> u64 {
    const PIECE: u64 = 1 << 20;
    let open = |path: &Path| std::fs::File::open(path).expect("a segment");
    let (mut ours, mut theirs) = (open(one), open(other));
    let len = ours.metadata().expect("its length").len();
    assert_eq!(len, theirs.metadata().expect("its length").len(), "{}", one.display());
    let (mut got, mut want) = (Vec::new(), Vec::new());
    for at in (0..len).step_by(PIECE as usize) {
        for (file, piece) in [(&mut ours, &mut got), (&mut theirs, &mut want)] {
            piece.clear();
            file.take(PIECE).read_to_end(piece).expect("a piece");
        }
        if got != want {
            let differs = got.iter().zip(&want).position(|(a, b)| a != b);
            panic!("{} differs from {} at {at} + {differs:?}", one.display(), other.display());
        }
    }
    len
}

/// Every message of the journal is at `broker`, where it was acknowledged; gives how many there were.
pub fn assert_has_acknowledged(
    broker: &Broker,
    topic: &str,
    queues: u32,
    journal: &Journal,
) -> usize {
    for shard in 0..broker.shards() {
        assert_shard_has(broker.address(shard), shard, topic, queues, journal);
    }
    journal.acked().len()
}

/// Every message that a broker of one shard stored though its answer was no success is at `broker`, where that answer said.
pub fn assert_has_refused(broker: &Broker, topic: &str, queues: u32, journal: &Journal) {
    let found = identities(broker.address(0), topic, queues);
    for refused in journal.refusals() {
        let Some((queue, offset)) = refused.place else { continue };
        for at in 0..refused.count {
            let wanted = Identity { seq: refused.first.seq + at, ..refused.first };
            let there = found.get(&(queue, offset + at as i64));
            assert_eq!(there, Some(&Some(wanted)), "{refused:?} is not all there");
        }
    }
}

const TOPIC_NOT_EXIST: i32 = 17;

/// What is at each place of a topic.
fn identities(
    address: SocketAddr,
    topic: &str,
    queues: u32,
) -> BTreeMap<(i32, i64), Option<Identity>> {
    // A slave has the log first, and its master's topics some time after.
    let known = eventually(Duration::from_secs(20), || {
        let reply = checker::pull(&mut Conn::open(address).ok()?, topic, 0, 0, 0).ok()?;
        (reply.code != TOPIC_NOT_EXIST).then_some(())
    });
    assert!(known.is_some(), "{address} does not know {topic}");
    let mut found = BTreeMap::new();
    checker::read_each(address, topic, queues, |message| {
        found.insert((message.queue, message.offset), identity(&message.body));
    });
    found
}

/// Every message that the journal has of `shard` is at `address`, where it was acknowledged.
pub fn assert_shard_has(
    address: SocketAddr,
    shard: u16,
    topic: &str,
    queues: u32,
    journal: &Journal,
) {
    let found = identities(address, topic, queues);
    for acked in journal.acked().iter().filter(|acked| acked.shard == shard && acked.waits) {
        let place = (acked.queue, acked.offset);
        assert_eq!(found.get(&place), Some(&Some(acked.id)), "{acked:?} is not at {place:?}");
    }
}

/// Waits until the first slave of the master at this address gets its log.
pub fn await_streaming(master: SocketAddr) {
    await_text(master, "ringmqHaSlave_0", |peer| peer.contains("state=streaming"));
}

/// A copy of a broker's store, as of a backup.
pub struct Backup {
    store: PathBuf,
    pub copy: PathBuf,
}

impl Backup {
    /// Ends the broker for it, and starts it again.
    pub fn take(broker: &mut Broker, dir: &Path) -> Backup {
        broker.terminate(Duration::from_secs(30));
        let (store, copy) = (broker.store_dir(), dir.join("backup"));
        let copied = std::process::Command::new("cp").arg("-a").arg(&store).arg(&copy).status();
        assert!(copied.expect("cp").success());
        broker.start();
        Backup { store, copy }
    }

    /// The broker, which does not run, goes back to it.
    pub fn restore(self) {
        std::fs::remove_dir_all(&self.store).expect("the disk is lost");
        std::fs::rename(&self.copy, &self.store).expect("the backup");
    }
}
