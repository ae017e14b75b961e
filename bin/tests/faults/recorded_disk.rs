//! The tests' own disk is proven first: what it records, what it leaves after a cut, and how it fails when told to.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::support::fuse::cut::Survives;
use crate::support::fuse::{Cut, Effect, Keep, RecordedDisk, Replay, Requests, Step};
use crate::support::image::LoopFs;
use crate::support::{skip, tempdir};

const DISK_BYTES: u64 = 64 << 20;
const SOON: Duration = Duration::from_secs(20);

#[repr(align(4096))]
struct Block([u8; 4096]);

fn direct(path: &std::path::Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("a file opened for direct I/O")
}

#[test]
fn a_cut_keeps_what_was_flushed_and_nothing_else_for_sure() {
    let dir = tempdir("recorded");
    let disk = match RecordedDisk::create(dir.path(), "disk", DISK_BYTES, Keep::Record) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("a disk served by FUSE needs root: {why}")),
    };
    let record = disk.record();
    let path = disk.mount.join("file");
    fs::write(&path, vec![0; 64 * 4096]).expect("a file");
    let file = direct(&path);
    file.sync_all().expect("a sync");
    File::open(&disk.mount).and_then(|d| d.sync_all()).expect("a sync of the directory");
    for n in 0..8 {
        file.write_all_at(&Block([1; 4096]).0, n * 4096).expect("a write");
    }
    let before_flush = record.position();
    file.sync_data().expect("a sync");
    let flushed = record.position();
    let after_flush = &record.steps()[before_flush as usize..flushed as usize];
    assert!(after_flush.contains(&Step::Flush), "fdatasync reaches the disk as a flush");
    for n in 8..16 {
        file.write_all_at(&Block([2; 4096]).0, n * 4096).expect("a write");
    }
    let written = record.position();
    let content = |n: u64, image: &std::path::Path| {
        let fs = LoopFs::attach(dir.path(), &format!("cut{n}"), image.to_owned()).expect("a mount");
        fs::read(fs.mount.join("file")).expect("the file after the cut")
    };

    let mut replay = Replay::new(&record, disk.base()).expect("a replay");
    let image = dir.path().join("cut.img");
    let mut kept = Vec::new();
    for (n, (position, survives)) in [
        (before_flush, Survives::Nothing),
        (flushed, Survives::Nothing),
        (written, Survives::Nothing),
        (written, Survives::Sectors(512, 500)),
        (written, Survives::Everything),
    ]
    .into_iter()
    .enumerate()
    {
        replay.make(Cut { position, survives, seed: n as u64 }, &image).expect("a disk");
        let bytes = content(n as u64, &image);
        let sectors = |from: usize, value| {
            bytes[from * 4096..(from + 8) * 4096]
                .chunks(512)
                .filter(|s| s.iter().all(|b| *b == value))
                .count()
        };
        kept.push((sectors(0, 1), sectors(8, 2)));
    }
    assert_eq!(kept[0], (0, 0), "a write that was completed and not flushed is not safe");
    assert_eq!(kept[1], (64, 0), "a flush covers what was written before it");
    assert_eq!(kept[2], (64, 0), "and not what comes after");
    assert_eq!(kept[3].0, 64);
    assert!((1..64).contains(&kept[3].1), "some sectors of what was not flushed: {}", kept[3].1);
    assert_eq!(kept[4], (64, 64));
}

#[test]
fn the_disk_fails_waits_and_slows_down_where_it_is_told_to() {
    let dir = tempdir("failing");
    let disk = match RecordedDisk::create(dir.path(), "disk", DISK_BYTES, Keep::Nothing) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("a disk served by FUSE needs root: {why}")),
    };
    let path = disk.mount.join("file");
    fs::write(&path, vec![7; 256 * 4096]).expect("a file");
    let file = direct(&path);
    file.sync_all().expect("a sync");
    let mut block = Block([0; 4096]);

    let ranges = disk.ranges_of(&path).expect("where the file is");
    assert_eq!(ranges.iter().map(|r| r.end - r.start).sum::<u64>(), 256 * 4096);
    let first = ranges[0].start..ranges[0].start + 4096;
    let bad = disk.faults().add(Requests::ALL, first, Effect::Fail(libc::EIO));
    let error = file.read_exact_at(&mut block.0, 0).expect_err("a read of a bad block");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let error = file.write_all_at(&block.0, 0).expect_err("a write of a bad block");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    file.read_exact_at(&mut block.0, 4096).expect("the block beside it is good");
    assert!(disk.faults().hits(bad) >= 2);
    disk.faults().remove(bad);
    file.read_exact_at(&mut block.0, 0).expect("the block is good again");
    assert_eq!(block.0, [7; 4096]);

    for (requests, what) in [(Requests::WRITES, "a write"), (Requests::FLUSHES, "a flush")] {
        let hang = disk.faults().everywhere(requests, Effect::Hang);
        let doing = std::thread::spawn({
            let file = file.try_clone().expect("a second handle");
            move || {
                file.write_all_at(&Block([7; 4096]).0, 0)?;
                file.sync_data()
            }
        });
        assert!(disk.faults().await_hits(hang, 1, SOON), "{what} arrives");
        if requests.writes {
            file.read_exact_at(&mut block.0, 4096).expect("reads go on while a write hangs");
        }
        assert!(!doing.is_finished(), "{what} hangs");
        disk.faults().remove(hang);
        doing.join().expect("the thread").expect("it is done once it is let go");
    }

    disk.faults().everywhere(Requests::WRITES, Effect::Throttle(1 << 20));
    let began = Instant::now();
    for n in 0..64 {
        file.write_all_at(&block.0, n * 4096).expect("a slow write");
    }
    assert!(began.elapsed() >= Duration::from_millis(200), "256 KiB at 1 MiB/s");
    disk.faults().clear();

    let late = disk.faults().everywhere(Requests::READS, Effect::Delay(Duration::from_millis(300)));
    let began = Instant::now();
    file.read_exact_at(&mut block.0, 0).expect("a late read");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(disk.faults().hits(late), 1);
    let mut other = File::create(disk.mount.join("other")).expect("a file");
    other.write_all(b"x").expect("a write into the page cache");
}
