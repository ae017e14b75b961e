//! A disk that is full to its last byte: what the log has prepared is used, then sends are refused; what can't be saved is kept and saved
//! later; and nothing needs an operator but the space.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::{SERVICE_NOT_AVAILABLE, SICK, SYSTEM_ERROR, Ward, create_topic};
use crate::support::image::LoopFs;
use crate::support::wire::{code, eventually};
use crate::support::{Options, Target, exclusive, skip};

const DISK_BYTES: u64 = 256 << 20;

#[test]
fn a_full_disk_refuses_its_shards_sends_and_all_is_saved_when_there_is_space() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("stock's own watermarks differ in time and place");
    }
    // One segment is being written and one prepared: retention has nothing that it could delete.
    let options = Options { segment_bytes: 64 << 20, ..Options::default() };
    let disk = |dir: &Path| LoopFs::create(dir, "disk", DISK_BYTES);
    let mut ward = match Ward::open("full", options, disk, |d| &d.mount) {
        Ok(ward) => ward,
        Err(why) => return skip(&format!("a disk of its own needs root and loop devices: {why}")),
    };
    let filler = ward.disk.mount.join("filler");
    let load = ward.load(2, 8, 1_000);
    ward.await_acks(SICK, 300);
    fill(&filler);
    // Segments are there already: messages are taken until the disk is looked at, and lose nothing by it.
    ward.await_acks(SICK, 100);
    look_at_the_disk(&ward);
    let refused = ward.await_refusal(SERVICE_NOT_AVAILABLE);
    assert!(refused.remark.contains("the broker's disk is full"), "{}", refused.remark);
    ward.await_log(&["the disk is too full", "new messages are refused"]);
    ward.the_rest_goes_on();
    let mut conn = ward.conn(SICK);
    let reply = create_topic(&mut conn, "Late");
    let remark = reply.remark.unwrap_or_default();
    assert_eq!(reply.code, SYSTEM_ERROR, "a topic that is not saved: {remark}");
    assert!(remark.contains("not saved") && remark.contains("No space left"), "{remark}");
    ward.await_log(&["configuration not saved", "topics.json", "No space left"]);

    fs::remove_file(&filler).expect("the filler goes");
    look_at_the_disk(&ward);
    ward.await_acks(SICK, 300);
    ward.await_log(&["configuration saved again", "topics.json"]);
    ward.await_log(&["the disk has room again"]);

    // Killed on a full disk: it may need space to start.
    fill(&filler);
    ward.await_acks(SICK, 100);
    ward.broker.sigkill();
    load.stop();
    ward.broker.spawn();
    let refusal = ended_or_serves(&mut ward);
    println!("a start on a full disk: {refusal:?}");
    fs::remove_file(&filler).expect("the filler goes");
    if refusal.is_some() {
        ward.broker.start();
    }
    ward.check("write");
    let (status, _) = ward.broker.terminate(Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "a clean end");
    assert!(!ward.broker.shard_dir(SICK).join("abort").exists());
    ward.broker.start();
    ward.check("write");
    assert!(ward.journal.refusals().iter().all(|r| r.shard == SICK), "the other shard refused");
}

/// Either the process ends with one line that names what it wants, or it serves.
fn ended_or_serves(ward: &mut Ward<LoopFs>) -> Option<String> {
    let address = ward.broker.address(SICK);
    let outcome = eventually(super::SOON, || {
        if !ward.broker.is_running() {
            let text = ward.broker.process().log_text();
            return Some(text.lines().last().map(str::to_owned));
        }
        std::net::TcpStream::connect(address).is_ok().then_some(None)
    });
    outcome.expect("a start that ends or serves")
}

/// Has the broker look at its disk now, and not at the next of its rounds.
fn look_at_the_disk(ward: &Ward<LoopFs>) {
    let reply = ward.conn(SICK).call(code::DELETE_EXPIRED_COMMITLOG, &[], &[]);
    assert_eq!(reply.expect("an answer").code, 0);
}

/// Takes all of the disk.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("the filler");
    let mut chunk = vec![0x55; 1 << 20];
    while !chunk.is_empty() {
        if file.write_all(&chunk).is_err() {
            chunk.truncate(chunk.len() / 2);
        }
    }
    // Some of it may be only in memory, and is refused now.
    let _ = file.sync_all();
}
