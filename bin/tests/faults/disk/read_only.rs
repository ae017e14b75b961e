//! A file system that finds itself damaged and goes read-only under the broker (`errors=remount-ro`).

use std::time::Duration;

use super::{SERVICE_NOT_AVAILABLE, SICK, SYSTEM_ERROR, TOPIC, Ward, create_topic};
use crate::support::checker;
use crate::support::image::LoopFs;
use crate::support::{Options, Target, exclusive, skip};

#[test]
fn a_file_system_that_goes_read_only_stops_its_shards_log_and_nothing_else() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("a stock broker exits or spins, by its version");
    }
    let options = Options { segment_bytes: 16 << 20, ..Options::default() };
    let disk = |dir: &std::path::Path| LoopFs::create(dir, "disk", 512 << 20);
    let mut ward = match Ward::open("read-only", options, disk, |d| &d.mount) {
        Ok(ward) => ward,
        Err(why) => return skip(&format!("a disk of its own needs root and loop devices: {why}")),
    };
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 500);
    ward.disk.go_read_only().expect("a read-only file system");

    let refused = ward.await_refusal(SERVICE_NOT_AVAILABLE);
    assert!(refused.remark.contains("Read-only file system"), "{}", refused.remark);
    assert!(refused.remark.contains("start the broker again"), "{}", refused.remark);
    ward.await_log(&["the log takes no more messages", "Read-only file system", "check the disk"]);
    ward.the_rest_goes_on();
    let mut conn = ward.conn(SICK);
    let first = checker::pull(&mut conn, TOPIC, 0, 0, 0).expect("a pull");
    assert_eq!(first.code, 0, "what was sent first is read on: {:?}", first.remark);
    let reply = create_topic(&mut conn, "Late");
    let remark = reply.remark.unwrap_or_default();
    assert_eq!(reply.code, SYSTEM_ERROR, "a topic that is not saved: {remark}");
    assert!(remark.contains("not saved") && remark.contains("Read-only"), "{remark}");
    ward.stays_stopped();
    load.stop();
    assert_eq!(ward.log_lines("the log takes no more messages"), 1, "said once");

    let (status, took) = ward.broker.terminate(Duration::from_secs(15));
    assert_eq!(status.code(), Some(1), "an end that left something undone says so");
    assert!(ward.broker.shard_dir(SICK).join("abort").exists(), "the stop was not clean");
    assert!(!ward.broker.shard_dir(super::WELL).join("abort").exists(), "this one was");
    println!("ended after {took:?}");
    ward.disk.repair().expect("a repaired file system");
    ward.broker.start();
    ward.check("write");
    let load = ward.load(2, 8, 2_000);
    ward.await_acks(SICK, 200);
    load.stop();
    ward.check("write");
}
