//! A disk that hangs for ten seconds and comes back, and one that hangs while the broker is asked to stop.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{FLUSH_DISK_TIMEOUT, SICK, SYSTEM_ERROR, TOPIC, WELL, Ward};
use crate::support::checker;
use crate::support::fuse::{Effect, Keep, RecordedDisk, Requests};
use crate::support::wire::{code, frame};
use crate::support::{Options, Target, exclusive, skip};

const HANGS: Duration = Duration::from_secs(10);
/// `durability.ack_timeout_ms` by default, and what a busy machine adds to it.
const ACK_TIMEOUT: Duration = Duration::from_millis(2_500);
const SLACK: Duration = Duration::from_secs(5);
const UNWRITTEN_BYTES: u64 = 1 << 20;

fn open(what: &str) -> Option<Ward<RecordedDisk>> {
    if Target::from_env().is_stock() {
        skip("a stock broker writes through the page cache");
        return None;
    }
    let config = format!("[limits]\nunwritten_bytes = {UNWRITTEN_BYTES}\n");
    let options = Options { segment_bytes: 16 << 20, config, ..Options::default() };
    let disk = |dir: &Path| RecordedDisk::create(dir, "disk", 512 << 20, Keep::Nothing);
    match Ward::open(what, options, disk, |d| &d.mount) {
        Ok(ward) => Some(ward),
        Err(why) => {
            skip(&format!("a disk of the test's own needs root, FUSE and loop devices: {why}"));
            None
        }
    }
}

#[test]
fn a_disk_that_hangs_delays_its_shards_answers_within_bounds_and_all_goes_on_by_itself() {
    let _alone = exclusive();
    let Some(mut ward) = open("hang") else { return };
    let light = ward.load(1, 4, 400);
    ward.await_acks(SICK, 200);
    // What is no longer in memory after a start, for a pull that needs the disk.
    light.stop();
    let (status, _) = ward.broker.terminate(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0));
    ward.broker.start();
    let light = ward.load(1, 4, 400);
    ward.await_acks(SICK, 200);
    let before = ward.broker.process().memory_kib("VmRSS");

    let began = Instant::now();
    let fault = ward.disk.faults().everywhere(Requests::ALL, Effect::Hang);
    let heavy = ward.load_on(&[SICK], 8, 128, 3_000);
    let mut cold = ward.conn(SICK);
    let ext = checker::pull_fields(TOPIC, "0", "0", "0");
    cold.write(&frame(code::PULL_MESSAGE, 1, &ext, &[])).expect("a pull of what is on the disk");
    let late = ward.await_refusal(FLUSH_DISK_TIMEOUT);
    assert_eq!(late.level.as_deref(), Some("memory"), "{late:?}");
    let busy = ward.await_refusal(SYSTEM_ERROR);
    assert!(busy.remark.starts_with("[PC_SYNCHRONIZED]broker busy"), "{}", busy.remark);
    ward.the_rest_goes_on();
    std::thread::sleep(HANGS.saturating_sub(began.elapsed()));
    ward.the_rest_goes_on();
    assert!(cold.buffered_reply().expect("a connection").is_none(), "answered without the disk");
    let after = ward.broker.process().memory_kib("VmRSS");
    println!("resident: {before} KiB, then {after} KiB");
    assert!(after < before + (64 << 10), "memory grew from {before} to {after} KiB");

    heavy.stop();
    ward.disk.faults().remove(fault);
    assert_eq!(cold.read_reply().expect("an answer").code, 0, "the pull goes on");
    ward.await_acks(SICK, 200);
    light.stop();
    let refusals = ward.journal.refusals();
    let codes: BTreeSet<i32> = refusals.iter().map(|r| r.code).collect();
    println!("{} answers were no success: {codes:?}", refusals.len());
    assert!(codes.is_subset(&[SYSTEM_ERROR, FLUSH_DISK_TIMEOUT].into()), "{codes:?}");
    assert!(refusals.iter().all(|r| r.shard == SICK), "the other shard refused a send");
    let longest = refusals.iter().map(|r| r.took).max().unwrap_or_default();
    assert!(longest < ACK_TIMEOUT + SLACK, "an answer took {longest:?}");
    let summary = ward.check("write");
    // Nothing crashed: what was answered 10 is there, each at its place, once.
    let mut there = 0;
    for refused in refusals.iter().filter(|r| r.code == FLUSH_DISK_TIMEOUT) {
        let (queue, offset) = refused.place.expect("a 10 says where the message is");
        let found = ward.checker.seen.get(&(SICK, queue, offset));
        assert_eq!(found.map(|f| f.id), Some(refused.first), "at {queue} {offset}");
        there += refused.count;
    }
    assert!(there > 0);
    assert_eq!(summary.records, summary.acked + there, "each message once, and none refused");
    let (status, _) = ward.broker.terminate(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "a clean end");
}

#[test]
fn a_stop_during_a_hang_answers_who_waits_and_ends_when_the_disk_does() {
    let _alone = exclusive();
    let Some(mut ward) = open("hang-stop") else { return };
    let load = ward.load(2, 4, 800);
    ward.await_acks(SICK, 200);
    let fault = ward.disk.faults().everywhere(Requests::ALL, Effect::Hang);
    ward.await_refusal(FLUSH_DISK_TIMEOUT);
    ward.broker.process().signal(libc::SIGTERM);
    // Every sender is answered and then hears that the connection is closed: none is left waiting for the disk.
    load.stop();
    ward.await_log(&[
        "ending at once",
        "drain.exit_ms",
        "the store is recovered at the next start",
    ]);
    assert!(!ward.broker.shard_dir(WELL).join("abort").exists(), "this shard's stop was clean");
    let held = ward.broker.process().wait(Duration::from_millis(100)).is_none();
    println!("the kernel keeps the process: {held}");
    ward.disk.faults().remove(fault);
    let status = ward.broker.process().wait(Duration::from_secs(30)).expect("an end");
    assert_eq!(status.code(), Some(1));
    assert!(ward.broker.shard_dir(SICK).join("abort").exists(), "this one's was not");
    ward.broker.start();
    ward.check("write");
}
