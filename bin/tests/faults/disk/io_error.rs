//! A disk that answers EIO: to a write, a flush or a read. The disk is one of the test's own, so the errors come all the way through the
//! kernel.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::{
    FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE, SICK, SOON, SYSTEM_ERROR, TOPIC, WELL, Ward,
    create_topic, max_offset, send,
};
use crate::support::checker::{self, read_all};
use crate::support::fuse::faults::FaultId;
use crate::support::fuse::{Effect, Keep, RecordedDisk, Requests};
use crate::support::image::{repair, run};
use crate::support::random::Random;
use crate::support::record::Record;
use crate::support::wire::{Conn, Reply, code, eventually, send_ext};
use crate::support::{Options, Target, exclusive, rounds, skip};

const EIO: Effect = Effect::Fail(libc::EIO);
const SEGMENT_BYTES: u64 = 16 << 20;
const EXIT_MAX: Duration = Duration::from_secs(15);

fn open(what: &str, durability: &'static str) -> Option<Ward<RecordedDisk>> {
    if Target::from_env().is_stock() {
        skip("what a stock broker makes of EIO differs by its version");
        return None;
    }
    let options = Options { segment_bytes: SEGMENT_BYTES, durability, ..Options::default() };
    let disk = |dir: &Path| RecordedDisk::create(dir, "disk", 512 << 20, Keep::Nothing);
    match Ward::open(what, options, disk, |d| &d.mount) {
        Ok(ward) => Some(ward),
        Err(why) => {
            skip(&format!("a disk of the test's own needs root, FUSE and loop devices: {why}"));
            None
        }
    }
}

impl Ward<RecordedDisk> {
    fn segment(&self, start: u64) -> std::path::PathBuf {
        self.disk.mount.join(format!("store/commitlog/{start:020}"))
    }

    /// Which bytes of the disk hold a range of the log, all of it in one segment.
    fn of_log(&self, log: Range<u64>) -> Range<u64> {
        let start = log.start - log.start % SEGMENT_BYTES;
        let ranges = self.disk.ranges_of(&self.segment(start)).expect("the segment's blocks");
        place(&ranges, log.start - start..log.end - start)
    }

    /// Makes writes fail a little ahead of the log's tail and `more`. That is zeroed already, for zeroing leads by more.
    fn bad_ahead(&self, more: u64) -> FaultId {
        let acked = super::acked_on(&self.journal, SICK);
        let tail = acked.iter().map(|a| physical(&a.message_id)).max().expect("acknowledgements");
        let mut from = (tail + (1 << 20) + more).next_multiple_of(4096);
        let len = 1 << 20;
        if from % SEGMENT_BYTES + len > SEGMENT_BYTES {
            // The next segment is there: it is made while this one is written.
            from = from.next_multiple_of(SEGMENT_BYTES);
        }
        self.disk.faults().add(Requests::WRITES, self.of_log(from..from + len), EIO)
    }

    /// Stops a broker whose log has stopped, has the file system checked, and starts it again.
    fn repair(&mut self) {
        let (status, _) = self.broker.terminate(EXIT_MAX);
        assert_eq!(status.code(), Some(1), "an end that left something undone says so");
        repair(self.disk.device(), &self.disk.mount).expect("a sound file system");
        self.broker.start();
    }
}

/// Where a range of a file is, by the file's extents. They must hold it in one piece.
fn place(extents: &[Range<u64>], range: Range<u64>) -> Range<u64> {
    let mut before = 0;
    for extent in extents {
        let len = extent.end - extent.start;
        if range.start < before + len {
            let from = extent.start + range.start - before;
            let to = from + (range.end - range.start);
            assert!(to <= extent.end, "{range:?} lies in two pieces: {extents:?}");
            return from..to;
        }
        before += len;
    }
    panic!("{range:?} is not in {extents:?}");
}

fn physical(message_id: &str) -> u64 {
    u64::from_str_radix(&message_id[16..], 16).expect("a message id")
}

#[test]
fn a_failed_write_stops_the_log_until_a_start_and_loses_nothing() {
    let _alone = exclusive();
    let Some(mut ward) = open("write-error", "write") else { return };
    let mut random = Random::from_env("write error");
    for round in 0..rounds(1) {
        let load = ward.load(2, 8, 2_000);
        ward.await_acks(SICK, 300);
        let fault = ward.bad_ahead(random.below(1 << 20));
        let refused = ward.await_refusal(SERVICE_NOT_AVAILABLE);
        assert!(refused.remark.contains("write of the segment at "), "{}", refused.remark);
        assert!(refused.remark.contains("Input/output error"), "{}", refused.remark);
        ward.await_log(&["the log takes no more messages", "shards/1/commitlog", "check the disk"]);
        ward.the_rest_goes_on();
        let reply = create_topic(&mut ward.conn(SICK), &format!("Late{round}"));
        assert_eq!(reply.code, 0, "what isn't the log is saved as ever: {:?}", reply.remark);
        ward.disk.faults().remove(fault);
        ward.stays_stopped();
        load.stop();
        let (status, _) = ward.broker.terminate(EXIT_MAX);
        assert_eq!(status.code(), Some(1), "an end that left something undone says so");
        ward.broker.start();
        ward.check("write");
    }
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 300);
    load.stop();
    ward.check("write");
}

#[test]
fn a_failed_flush_stops_the_log_and_what_was_only_written_says_so() {
    let _alone = exclusive();
    let Some(mut ward) = open("flush-error", "sync") else { return };
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 300);
    let fault = ward.disk.faults().everywhere(Requests::FLUSHES, EIO);
    ward.await_refusal(SERVICE_NOT_AVAILABLE);
    let late = ward.await_refusal(FLUSH_DISK_TIMEOUT);
    assert_eq!(late.level.as_deref(), Some("write"), "{late:?}");
    assert!(late.remark.contains("flush of the segment at 0 "), "{}", late.remark);
    ward.await_log(&["the log takes no more messages", "flush of", "Input/output error"]);
    ward.the_rest_goes_on();
    // The kernel would call a second flush good: it has forgotten what the first one lost.
    ward.disk.faults().remove(fault);
    ward.stays_stopped();
    load.stop();
    ward.repair();
    ward.check("sync");
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 100);
    load.stop();
    ward.check("sync");
}

#[test]
fn a_bad_place_of_the_log_costs_the_messages_in_it_and_no_others() {
    let _alone = exclusive();
    let Some(mut ward) = open("read-error", "write") else { return };
    let mut conn = ward.conn(SICK);
    for topic in ["Bad", "Delayed"] {
        assert_eq!(create_topic(&mut conn, topic).code, 0);
    }
    // One message to a block and more: a bad block is one message.
    let body = |n: u64| vec![b'a' + n as u8; 8 << 10];
    let offsets: Vec<u64> = (0..10)
        .map(|n| physical(send(&mut conn, "Bad", &body(n)).ext("msgId").expect("an id")))
        .collect();
    // Room between the two bad blocks.
    assert_eq!(send(&mut conn, "Room", &body(20)).code, 0);
    let ext = send_ext("PG", "Delayed", "0", "DELAY\u{1}2", false);
    let delayed = conn.call(code::SEND_MESSAGE_V2, &ext, b"late").expect("an answer");
    let delayed_at = physical(delayed.ext("msgId").expect("an id"));
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 300);
    load.stop();
    // Nothing of it is in memory after a clean stop and a start.
    let (status, _) = ward.broker.terminate(EXIT_MAX);
    assert_eq!(status.code(), Some(0));
    ward.broker.start();

    let bad = offsets[4].next_multiple_of(4096);
    let block = ward.of_log(bad..bad + 4096);
    let fault = ward.disk.faults().add(Requests::READS, block, EIO);
    let late = delayed_at - delayed_at % 4096;
    let late_block = ward.of_log(late..late + 4096);
    let late_fault = ward.disk.faults().add(Requests::READS, late_block, EIO);

    let mut conn = ward.conn(SICK);
    let pull = |conn: &mut Conn, at| checker::pull(conn, "Bad", 0, at, 0).expect("a pull");
    let numbers = |reply: &Reply| -> Vec<u64> {
        let number = |b: Vec<u8>| u64::from(b[0] - b'a');
        let all = bodies(reply);
        assert!(all.iter().all(|b| *b == body(u64::from(b[0] - b'a'))), "a body has changed");
        all.into_iter().map(number).collect()
    };
    assert_eq!(numbers(&pull(&mut conn, 0)), [0, 1, 2, 3]);
    let reply = pull(&mut conn, 4);
    let remark = reply.remark.clone().unwrap_or_default();
    assert_eq!(reply.code, SYSTEM_ERROR, "{remark}");
    assert!(remark.contains("read of") && remark.contains("Input/output error"), "{remark}");
    assert_eq!(numbers(&pull(&mut conn, 5)), [5, 6, 7, 8, 9]);
    ward.await_log(&["check the disk", "read of", "commitlog", "Input/output error"]);
    ward.await_log(&["delay level 2 waits at offset 0 until it can be read"]);
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 300);
    ward.the_rest_goes_on();
    assert!(checker::pull(&mut conn, "Delayed", 0, 0, 0).expect("a pull").code != 0, "not yet");

    ward.disk.faults().remove(fault);
    ward.disk.faults().remove(late_fault);
    assert_eq!(numbers(&pull(&mut conn, 4)), [4, 5, 6, 7, 8, 9]);
    let delivered = eventually(SOON, || {
        let reply = checker::pull(&mut conn, "Delayed", 0, 0, 0).ok()?;
        (reply.code == 0).then(|| bodies(&reply))
    });
    assert_eq!(delivered.expect("the delayed message"), [b"late".to_vec()]);
    load.stop();
    ward.check("write");
}

fn bodies(reply: &Reply) -> Vec<Vec<u8>> {
    assert_eq!(reply.code, 0, "{:?}", reply.remark);
    let records = Record::all(&reply.body).expect("records");
    records.iter().map(|r| r.body.to_vec()).collect()
}

/// The kernel writes units back at a time of its own and fails, and another process's sync hears of it first.
#[test]
fn a_failed_write_back_of_a_queue_is_never_called_durable() {
    let _alone = exclusive();
    let Some(mut ward) = open("write-back-error", "write") else { return };
    let mut conn = ward.conn(SICK);
    assert_eq!(create_topic(&mut conn, "Units").code, 0);
    let file = ward.disk.mount.join("store/consumequeue/Units/0/00000000000000000000");
    let sync = || run(std::process::Command::new("sync").arg("-f").arg(&ward.disk.mount));
    let send_until = |conn: &mut Conn, from: u32, to: u32| {
        for n in from..to {
            assert_eq!(send(conn, "Units", format!("unit {n}").as_bytes()).code, 0);
        }
        let written = eventually(SOON, || {
            let bytes = fs::read(&file).ok()?;
            let last = bytes.get((to as usize - 1) * 20..to as usize * 20)?;
            last.iter().any(|b| *b != 0).then_some(())
        });
        written.expect("the units are handed to the kernel");
    };
    send_until(&mut conn, 0, 40);
    sync().expect("a first sync");
    let ranges = ward.disk.ranges_of(&file).expect("the queue's blocks");
    let fault = ward.disk.faults().add(Requests::WRITES, ranges[0].clone(), EIO);
    send_until(&mut conn, 40, 80);
    let _ = sync();
    assert!(ward.disk.faults().await_hits(fault, 1, SOON), "a write-back that fails");
    let _ = sync();
    ward.disk.faults().remove(fault);

    let (status, _) = ward.broker.terminate(EXIT_MAX);
    assert_eq!(status.code(), Some(1), "units were lost, so this is no clean stop");
    assert!(ward.broker.shard_dir(SICK).join("abort").exists());
    assert!(!ward.broker.shard_dir(WELL).join("abort").exists());
    // The kernel forgets its copy.
    repair(ward.disk.device(), &ward.disk.mount).expect("a sound file system");
    ward.broker.start();
    let all = read_all(ward.broker.address(SICK), "Units", 1);
    let want: Vec<Vec<u8>> = (0..80).map(|n| format!("unit {n}").into_bytes()).collect();
    assert_eq!(all.into_iter().map(|m| m.body).collect::<Vec<_>>(), want);
    assert_eq!(max_offset(&mut ward.conn(SICK), 0), 0, "of {TOPIC}: nothing was sent");
}
