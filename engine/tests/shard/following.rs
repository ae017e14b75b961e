//! A shard that follows another one's log has the same bytes, the same queues and the same answers, however the bytes come cut.

use std::path::Path;
use std::rc::Rc;

use ringmq_engine::log::{AppendError, FollowError};
use ringmq_engine::shard::{Shard, ShardError};
use ringmq_net::record::index_hash;

use crate::shards::{bodies, open, put_run, settle};
use crate::support::{MIB, disk_dir, on_reactor};

/// A small generator of its own, so that a seed means the same everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Puts `count` messages of up to 8 KiB into three queues.
async fn fill(shard: &Rc<Shard>, random: &mut Random, from: i64, count: i64) {
    for n in from..from + count {
        let queue = shard.queue("T", (n % 3) as i32).expect("a queue");
        let body = vec![n as u8; random.below(8 << 10) as usize + 1];
        put_run(shard, &queue, 1_000 + n, &[(body, format!("UNIQ_KEY\u{1}u{n}\u{2}TAGS\u{1}a"))]);
        if random.below(8) == 0 {
            settle(shard).await;
        }
    }
    settle(shard).await;
}

/// Takes `bytes` as far as the log takes them; waits where it must.
async fn take(slave: &Shard, from: u64, bytes: &[u8]) -> usize {
    loop {
        let taken = slave.log().follow(from, bytes.len(), |place| {
            let len = place.len().min(bytes.len());
            place[..len].copy_from_slice(&bytes[..len]);
            Ok(len)
        });
        let changed = slave.log().changed();
        slave.kick();
        match taken {
            Ok(taken) => return taken,
            Err(FollowError::Append(AppendError::Busy { .. } | AppendError::NotReady { .. })) => {
                changed.await;
            }
            Err(error) => panic!("the slave does not take bytes at {from}: {error}"),
        }
    }
}

/// Copies up to physical offset `to`, cut at random places, dispatching now and then.
async fn copy(master: &Shard, slave: &Rc<Shard>, random: &mut Random, to: u64) {
    let mut at = slave.log().appended();
    while at < to {
        let most = (random.below(5_000) + 1).min(to - at) as usize;
        let slice = master.log().stream(at, most).await.expect("a read").expect("bytes");
        at += take(slave, at, slice.bytes()).await as u64;
        if random.below(4) == 0 {
            slave.dispatch_followed().await.expect("whole records");
        }
    }
    slave.log().flushed(to).await.expect("a flush");
    slave.dispatch_followed().await.expect("whole records");
}

/// Every byte of both logs from the slave's first on, and every message.
async fn assert_same(seed: u64, master: &Rc<Shard>, slave: &Rc<Shard>) {
    let (mut at, end) = (slave.log().min_offset(), master.log().visible());
    assert_eq!(slave.log().written(), end, "seed {seed}");
    assert_eq!(slave.dispatched(), end, "seed {seed}");
    while at < end {
        let want = master.log().stream(at, 64 << 10).await.expect("a read").expect("bytes");
        let got = slave.log().read(at, want.bytes().len(), ringmq_engine::log::ReadHint::EXACT);
        assert!(got.await.expect("a read").bytes() == want.bytes(), "seed {seed}: bytes at {at}");
        at += want.bytes().len() as u64;
    }
    for id in 0..3 {
        let (of_master, of_slave) = (master.queue("T", id), slave.queue("T", id));
        let (of_master, of_slave) = (of_master.expect("a queue"), of_slave.expect("a queue"));
        assert_eq!(of_slave.max_offset(), of_master.max_offset(), "seed {seed}");
        assert_eq!(of_slave.next_offset(), of_master.next_offset(), "seed {seed}");
        let from = of_slave.min_offset();
        let want = bodies(master, &of_master, from).await;
        assert!(bodies(slave, &of_slave, from).await == want, "seed {seed}: queue {id}");
    }
}

#[test]
fn a_follower_has_the_same_bytes_and_queues_across_restarts_inside_records() {
    for seed in 0..6 {
        let (master_dir, slave_dir) = (disk_dir(), disk_dir());
        on_reactor(move || async move {
            let mut random = Random::new(seed + 1);
            let (master, _) = open(master_dir.path()).await;
            let (mut slave, _) = open(slave_dir.path()).await;
            let mut count = 0;
            for round in 0..4 {
                let more = random.below(300) as i64 + 1;
                fill(&master, &mut random, count, more).await;
                count += more;
                // Anywhere, most likely inside a record.
                let end = master.log().visible();
                let stop = slave.log().appended();
                let stop = stop + random.below(end - stop + 1);
                copy(&master, &slave, &mut random, stop).await;
                slave = reopen(slave, slave_dir.path(), round % 2 == 0).await;
                assert!(slave.log().appended() <= stop, "seed {seed}: only whole records stay");
                assert_eq!(slave.dispatched(), slave.log().appended(), "seed {seed}");
            }
            copy(&master, &slave, &mut random, master.log().visible()).await;
            assert_same(seed, &master, &slave).await;
            let found = slave.query_index(index_hash("T", "u0"), 32, 0, i64::MAX).await;
            assert_eq!(found.expect("a query").physical_offsets, [0], "seed {seed}: the key");
            slave = reopen(slave, slave_dir.path(), true).await;
            assert_same(seed, &master, &slave).await;
            // What followed can go on by itself.
            fill(&slave, &mut random, count, 30).await;
            slave.close().await.expect("a clean stop");
            master.close().await.expect("a clean stop");
        });
    }
}

async fn reopen(shard: Rc<Shard>, store: &Path, clean: bool) -> Rc<Shard> {
    if clean {
        shard.close().await.expect("a clean stop");
    } else {
        // Not closed: what a crash leaves, as far as this process can say.
        shard.log().flushed(shard.log().appended()).await.expect("a flush");
        shard.close().await.expect("a clean stop");
        std::fs::write(store.join("abort"), []).expect("the mark of a crash");
    }
    drop(shard);
    open(store).await.0
}

#[test]
fn an_empty_follower_begins_at_any_segment() {
    let (master_dir, slave_dir) = (disk_dir(), disk_dir());
    on_reactor(move || async move {
        let mut random = Random::new(77);
        let (master, _) = open(master_dir.path()).await;
        fill(&master, &mut random, 0, 900).await;
        let end = master.log().visible();
        assert!(end > 3 * MIB, "some segments: {end}");
        let start = end / MIB * MIB;
        let (slave, _) = open(slave_dir.path()).await;
        assert!(slave.begin_at(start + 1).await.is_err(), "not inside a segment");
        slave.begin_at(start).await.expect("another beginning");
        assert_eq!((slave.log().min_offset(), slave.log().appended()), (start, start));
        // It says so before any byte came, too.
        let slave = reopen(slave, slave_dir.path(), true).await;
        assert!(slave.log().appended() == start || slave.log().appended() == 0);
        if slave.log().appended() == 0 {
            slave.begin_at(start).await.expect("another beginning");
        }
        // The first record may have begun in the segment before: a copy goes on from a whole one.
        copy(&master, &slave, &mut random, end).await;
        assert_same(77, &master, &slave).await;
        assert!(slave.begin_at(0).await.is_err(), "no longer empty");
        let slave = reopen(slave, slave_dir.path(), true).await;
        assert_same(77, &master, &slave).await;
        slave.close().await.expect("a clean stop");
        master.close().await.expect("a clean stop");
    });
}

#[test]
fn what_is_no_log_or_is_damaged_is_not_taken_over() {
    let (master_dir, slave_dir) = (disk_dir(), disk_dir());
    on_reactor(move || async move {
        let mut random = Random::new(5);
        let (master, _) = open(master_dir.path()).await;
        fill(&master, &mut random, 0, 10).await;
        let (slave, _) = open(slave_dir.path()).await;
        let feed = |from: u64, bytes: Vec<u8>| {
            slave.log().follow(from, bytes.len(), move |place| {
                place[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            })
        };
        assert!(matches!(feed(0, vec![1; 100]), Err(FollowError::Form { offset: 0, .. })));
        assert!(matches!(feed(1, vec![0; 1]), Err(FollowError::Gap { from: 1, end: 0 })));
        assert_eq!(slave.log().appended(), 0, "nothing of it was stored");
        // The first record whole, the second with a body that is not what was sent.
        let end = master.log().visible() as usize;
        let log = master.log().read(0, end, ringmq_engine::log::ReadHint::EXACT).await;
        let log = log.expect("a read");
        let mut bytes = log.bytes().to_vec();
        let first = u32::from_be_bytes(bytes[..4].try_into().expect("a size")) as usize;
        bytes[first + 95] ^= 1;
        let mut at = 0;
        while at < bytes.len() {
            at += take(&slave, at as u64, &bytes[at..]).await;
        }
        slave.log().flushed(at as u64).await.expect("a flush");
        let damaged = slave.dispatch_followed().await;
        let at = match &damaged {
            Err(ShardError::Redo { offset, .. }) => Some(*offset as usize),
            _ => None,
        };
        assert_eq!(at, Some(first), "{damaged:?}");
        assert_eq!(slave.dispatched(), first as u64, "the record before it is there");
    });
}
