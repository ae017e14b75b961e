//! A slave whose disk is full: its master goes on, and it catches up by itself once there is space.

use std::fs;
use std::io::Write;

use crate::support::ha::{Pair, QUICK, assert_has_acknowledged, await_text, number};
use crate::support::image::LoopFs;
use crate::support::{skip, tempdir};
use crate::{QUEUES, TOPIC, journal, send, small_segments};

const DISK_BYTES: u64 = 96 << 20;
const LEFT_BYTES: u64 = 8 << 20;

#[test]
fn a_slave_on_a_full_disk_waits_for_space_and_then_loses_nothing() {
    let dir = tempdir("ha-full");
    let disk = match LoopFs::create(dir.path(), "disk", DISK_BYTES) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("a disk of its own needs root and loop devices: {why}")),
    };
    let journal = journal(&dir);
    let mut pair = Pair::prepare(dir.path(), "async-master", QUICK, small_segments());
    pair.slave.dir = disk.mount.join("slave");
    fs::create_dir_all(&pair.slave.dir).expect("the slave's directory");
    // A file system as small as this one is not to be called full before it is.
    pair.slave.options.config.push_str(
        "[retention]\ndisk_full_percent = 95\ndisk_aged_percent = 93\ndisk_forced_percent = 94\n",
    );
    pair.master.start();
    pair.slave.start();
    pair.master.create_topic(TOPIC, QUEUES);
    send(&pair.master, &journal, 500);
    pair.await_caught_up();
    let filler = disk.mount.join("filler");
    fill(&filler, LEFT_BYTES);
    let end = || number(pair.master.address(0), "commitLogMaxOffset").expect("the log's end");
    let before = end();
    while end() - before < 4 * LEFT_BYTES {
        send(&pair.master, &journal, 2_000);
    }
    let told = |state: &str| !state.starts_with("following");
    await_text(pair.slave.address(0), "ringmqHaState", told);
    fs::remove_file(&filler).expect("the filler goes");
    pair.await_caught_up();
    await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
    pair.compare_logs();
    assert_has_acknowledged(&pair.slave, TOPIC, QUEUES, &journal);
    drop(pair);
}

/// Takes all space but `left` bytes.
fn fill(filler: &std::path::Path, left: u64) {
    let mut file = fs::File::create(filler).expect("the filler");
    let block = vec![1; 1 << 20];
    loop {
        let room = fs_free(filler);
        if room <= left + block.len() as u64 || file.write_all(&block).is_err() {
            break;
        }
        file.sync_data().expect("the filler's bytes");
    }
}

fn fs_free(at: &std::path::Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(at.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a zeroed structure is a valid one to be filled, and the path ends with a zero.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(path.as_ptr(), &mut stat), 0, "statvfs");
        stat
    };
    stat.f_bavail * stat.f_frsize
}
