//! A disk that is slower than the load (a blkio throttle).

use std::collections::BTreeSet;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::PathBuf;

use super::{FLUSH_DISK_TIMEOUT, SICK, SYSTEM_ERROR, Ward};
use crate::support::image::LoopFs;
use crate::support::{Options, Target, exclusive, skip};

const BYTES_A_SECOND: u64 = 1 << 20;
const UNWRITTEN_BYTES: u64 = 1 << 20;

#[test]
fn a_disk_slower_than_the_load_slows_its_senders_and_loses_nothing() {
    let _alone = exclusive();
    if Target::from_env().is_stock() {
        return skip("a stock broker writes through the page cache");
    }
    let config = format!("[limits]\nunwritten_bytes = {UNWRITTEN_BYTES}\n");
    let options = Options { segment_bytes: 16 << 20, config, ..Options::default() };
    let disk = |dir: &std::path::Path| LoopFs::create(dir, "disk", 512 << 20);
    let mut ward = match Ward::open("slow", options, disk, |d| &d.mount) {
        Ok(ward) => ward,
        Err(why) => return skip(&format!("a disk of its own needs root and loop devices: {why}")),
    };
    // The one has more in flight than may wait unwritten, the other never has.
    let heavy = ward.load_on(&[SICK], 8, 128, 3_000);
    let light = ward.load(1, 4, 400);
    ward.await_acks(SICK, 500);
    let before = ward.broker.process().memory_kib("VmRSS");
    let pid = ward.broker.process().pid();
    let throttle = match Throttle::start(pid, ward.disk.device(), BYTES_A_SECOND) {
        Ok(throttle) => throttle,
        Err(why) => {
            return skip(&format!("no blkio throttle (it needs root and cgroup v1): {why}"));
        }
    };
    let busy = ward.await_refusal(SYSTEM_ERROR);
    assert!(busy.remark.starts_with("[PC_SYNCHRONIZED]broker busy"), "{}", busy.remark);
    ward.await_acks(SICK, 100);
    ward.the_rest_goes_on();
    let after = ward.broker.process().memory_kib("VmRSS");
    println!("resident: {before} KiB, then {after} KiB");
    assert!(after < before + (64 << 10), "memory grew from {before} to {after} KiB");

    drop(throttle);
    heavy.stop();
    // As before by itself.
    let refused = ward.journal.refusals().len();
    ward.await_acks(SICK, 300);
    light.stop();
    let refusals = ward.journal.refusals();
    assert_eq!(refusals.len(), refused, "refused afterwards: {:?}", refusals.last());
    let codes: BTreeSet<i32> = refusals.iter().map(|r| r.code).collect();
    println!("{} answers were no success: {codes:?}", refusals.len());
    assert!(codes.is_subset(&[SYSTEM_ERROR, FLUSH_DISK_TIMEOUT].into()), "{codes:?}");
    assert!(refusals.iter().all(|r| r.shard == SICK), "the other shard refused a send");
    ward.check("write");
}

/// Limits what a process writes to a device, until dropped.
struct Throttle {
    dir: PathBuf,
    pid: u32,
}

impl Throttle {
    fn start(pid: u32, device: &str, bytes_a_second: u64) -> Result<Throttle, String> {
        let text = |e: std::io::Error| e.to_string();
        let dir = PathBuf::from(format!("/sys/fs/cgroup/blkio/ringmq-test-{pid}"));
        fs::create_dir(&dir).map_err(text)?;
        let throttle = Throttle { dir, pid };
        let id = fs::metadata(device).map_err(text)?.st_rdev();
        let limit = format!("{}:{} {bytes_a_second}", libc::major(id), libc::minor(id));
        let file = throttle.dir.join("blkio.throttle.write_bps_device");
        fs::write(file, limit).map_err(text)?;
        fs::write(throttle.dir.join("cgroup.procs"), pid.to_string()).map_err(text)?;
        Ok(throttle)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = fs::write("/sys/fs/cgroup/blkio/cgroup.procs", self.pid.to_string());
        let _ = fs::remove_dir(&self.dir);
    }
}
