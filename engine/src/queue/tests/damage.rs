//! Damaged files are repaired from the log, and the redo is told where to begin.

use super::*;

/// 70 units of 100 bytes each in one queue, in four files, and 10 in another.
fn filled() -> (tempfile::TempDir, QueueConfig) {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let (store, _) = open(&config, clean(0));
    redo(&store, 0);
    store.flush_blocking().expect("flush");
    (dir, config)
}

fn redo(store: &QueueStore, from: i64) {
    let (a, b) = (store.open("A", 0), store.open("B", 0));
    for n in 0..80 {
        if n * 100 < from {
            continue;
        }
        let appended = if n % 8 == 7 {
            store.append(&b, n / 8, n * 100, 100, n)
        } else {
            store.append(&a, n - n / 8, n * 100, 100, n)
        };
        assert!(!matches!(appended, Appended::Drifted(_)), "{n}");
    }
}

fn everything(config: &QueueConfig) -> Vec<Vec<u8>> {
    let starts = [0, 400, 800, 1200];
    let mut files: Vec<_> = starts.iter().map(|start| read_file(config, "A", 0, *start)).collect();
    files.push(read_file(config, "B", 0, 0));
    files
}

fn repaired_after(damage: impl Fn(&QueueConfig)) -> LoadReport {
    let (_dir, config) = filled();
    let before = everything(&config);
    damage(&config);
    let (store, report) = open(&config, clean(8000));
    let redo_from = report.redo_from.expect("a redo");
    redo(&store, redo_from as i64);
    store.flush_blocking().expect("flush");
    assert_eq!(everything(&config), before);
    assert!(report.repaired > 0 && !report.repairs.is_empty());
    // Repaired for good.
    assert_eq!(open(&config, clean(8000)).1.repaired, 0);
    report
}

#[test]
fn a_short_last_file_is_rebuilt() {
    let report = repaired_after(|config| {
        let file = std::fs::OpenOptions::new().write(true).open(file(config, "A", 0, 1200));
        file.expect("open").set_len(100).expect("truncate");
    });
    // Unit 59 is message 67.
    assert_eq!(report.redo_from, Some(6800));
    assert!(report.repairs[0].contains("00000000000000001200 has 100 bytes instead of 400"));
}

#[test]
fn a_missing_middle_file_is_rebuilt_with_all_that_follow() {
    let report = repaired_after(|config| {
        std::fs::remove_file(file(config, "A", 0, 400)).expect("remove");
    });
    assert_eq!(report.redo_from, Some(2200));
}

/// What is missing without a trace in what is left: a zeroed stretch, a whole queue, all queues.
#[test]
fn units_that_disappeared_are_missed() {
    let zeroed = |config: &QueueConfig| {
        let path = file(config, "A", 0, 1200);
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[..100].fill(0);
        std::fs::write(path, bytes).expect("write");
    };
    let queue = |config: &QueueConfig| {
        std::fs::remove_dir_all(config.dir.join("B")).expect("remove");
    };
    let first_file = |config: &QueueConfig| {
        std::fs::remove_file(file(config, "A", 0, 0)).expect("remove");
    };
    // The offset in the last unit: it is in order, and leads elsewhere.
    let last_unit = |config: &QueueConfig| {
        let path = file(config, "A", 0, 1200);
        let mut bytes = std::fs::read(&path).expect("read");
        let last = bytes.chunks(20).rposition(|unit| unit[11] != 0).expect("a unit");
        bytes[last * 20 + 7] ^= 1;
        std::fs::write(path, bytes).expect("write");
    };
    let all = |config: &QueueConfig| std::fs::remove_dir_all(&config.dir).expect("remove");
    let damages: [&dyn Fn(&QueueConfig); 5] = [&zeroed, &queue, &first_file, &last_unit, &all];
    for damage in damages {
        let (_dir, config) = filled();
        let before = everything(&config);
        let digest = open(&config, clean(8000)).0.digest();
        let checked = QueueRecovery { digest: Some(digest), ..clean(8000) };
        assert_eq!(open(&config, checked).1.redo_from, None);
        damage(&config);
        let (store, report) = open(&config, checked);
        assert_eq!((report.redo_from, report.repaired), (Some(0), 1));
        redo(&store, 0);
        store.flush_blocking().expect("flush");
        assert_eq!(everything(&config), before);
    }
}

#[test]
fn records_that_the_log_no_longer_has_are_not_counted_on() {
    let (_dir, config) = filled();
    std::fs::remove_file(file(&config, "A", 0, 400)).expect("remove");
    // The log begins behind the part before the gap: the queue must begin anew, at its own first offset.
    let recovery = QueueRecovery { log_min: 5000, ..clean(8000) };
    let (store, report) = open(&config, recovery);
    assert_eq!(report.redo_from, Some(5000));
    redo(&store, 5000);
    let queue = store.open("A", 0);
    assert_eq!((queue.min_offset(), queue.max_offset()), (44, 70));
    assert_eq!(queue.end_physical(), 7900);
}

#[test]
fn stray_entries_are_removed_without_a_redo() {
    let (_dir, config) = filled();
    let before = everything(&config);
    let stray = config.dir.join("A/0/backup.txt");
    std::fs::write(&stray, b"x").expect("write");
    let (_, report) = open(&config, clean(8000));
    assert_eq!((report.redo_from, report.repaired), (None, 1));
    assert!(!stray.exists());
    assert_eq!(everything(&config), before);
}

#[test]
fn an_empty_trailing_file_is_removed() {
    let (_dir, config) = filled();
    let before = everything(&config);
    std::fs::write(file(&config, "A", 0, 1600), vec![0; 400]).expect("write");
    for trusted in [true, false] {
        let (_, report) = open(&config, QueueRecovery { trusted, clean: false, ..clean(8000) });
        assert_eq!(report.redo_from, None);
        assert!(!file(&config, "A", 0, 1600).exists());
    }
    assert_eq!(everything(&config), before);
}

#[test]
fn another_file_size_is_refused_before_anything_changes() {
    let (_dir, config) = filled();
    let before = everything(&config);
    let other = QueueConfig { file_bytes: 6000, ..config.clone() };
    let error = load_queues(&other, &clean(8000)).expect_err("refused");
    assert!(error.to_string().contains("have 400 bytes but 6000 are configured"), "{error}");
    assert_eq!(everything(&config), before);
}

#[test]
fn a_failed_batch_is_written_later() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let (store, _) = open(&config, clean(0));
    // A file where the topic's directory should be.
    std::fs::create_dir_all(&config.dir).expect("mkdir");
    std::fs::write(config.dir.join("A"), b"").expect("write");
    let queue = store.open("A", 0);
    store.append(&queue, 0, 0, 100, 7);
    store.append(&store.open("B", 0), 0, 100, 100, 7);
    assert!(store.flush_blocking().is_err());
    assert!(store.failure().is_some());
    assert_eq!(store.stats().unwritten_bytes, 2 * UNIT_BYTES);
    assert!(store.recent(&queue, 0, 1, |unit| unit.tags_code == 7));
    std::fs::remove_file(config.dir.join("A")).expect("remove");
    store.flush_blocking().expect("flush");
    assert!(store.failure().is_none());
    assert_eq!(store.stats().unwritten_bytes, 0);
    assert_eq!(read_file(&config, "A", 0, 0)[11], 100);
}

#[test]
fn many_queues_need_few_descriptors() {
    let dir = tempfile::tempdir().expect("directory");
    let config = QueueConfig {
        descriptors_max: 16,
        batch_queues_max: 500,
        memory_bytes_max: 1 << 20,
        ..config(dir.path())
    };
    let (store, _) = open(&config, clean(0));
    let queues: Vec<_> = (0..2000).map(|n| store.open(&format!("topic{}", n / 8), n % 8)).collect();
    for round in 0..3 {
        for (n, queue) in queues.iter().enumerate() {
            let physical = (round * queues.len() + n) as i64 * 100;
            assert_eq!(
                store.append(queue, round as i64, physical, 100, 0),
                Appended::Stored(round as i64)
            );
        }
        store.flush_blocking().expect("flush");
        assert!(crate::queue::store::lock_writer(&store.inner.writer).descriptors() <= 16);
    }
    let loaded = load_queues(&config, &clean(u64::MAX >> 1)).expect("load");
    assert_eq!(loaded.queues.len(), 2000);
    assert!(loaded.queues.iter().all(|queue| queue.max_offset == 3));
}

/// A page that was never written ends inside a unit; what is left of the unit's offset looks like one below the cut, and
/// stands where a search by halves looks first.
#[test]
fn half_a_unit_does_not_mislead_the_search() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let mut bytes = Vec::new();
    for n in 0..20 {
        let physical_offset = if n < 5 { n * 100 } else { 0x1_0000_0000 + n };
        bytes.extend(Unit { physical_offset, size: 100, tags_code: 7 }.encode());
    }
    bytes[100..206].fill(0);
    assert_eq!(Unit::decode(bytes[200..220].first_chunk().expect("unit")).physical_offset, 10);
    let path = file(&config, "A", 0, 0);
    std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
    std::fs::write(&path, bytes).expect("write");
    let recovery = QueueRecovery { clean: false, ..clean(0x1_0000_0000) };
    let (store, report) = open(&config, recovery);
    assert_eq!(report.repaired, 0, "{:?}", report.repairs);
    assert_eq!(store.open("A", 0).max_offset(), 5);
    assert!(read_file(&config, "A", 0, 0)[100..].iter().all(|byte| *byte == 0));
}

/// What was written since the last checkpoint stays where it is for the redo, and not one unit more than the redo writes again.
#[test]
fn units_that_are_redone_stay_in_their_files_and_others_do_not() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    for cut_at in [0, 4000] {
        let (_dir, config) = filled();
        let before = everything(&config);
        let inode = |start| std::fs::metadata(file(&config, "A", 0, start)).expect("file").ino();
        let inodes = [0, 400, 800, 1200].map(inode);
        // A unit that looks right and belongs to no record: behind the last of the queue, and as the only one of another.
        let stray = Unit { physical_offset: 8000, size: 40, tags_code: 1 }.encode();
        let open_file = |path| std::fs::OpenOptions::new().write(true).open(path).expect("open");
        open_file(file(&config, "B", 0, 0)).write_all_at(&stray, 200).expect("write");
        let other = file(&config, "C", 5, 0);
        std::fs::create_dir_all(other.parent().expect("directory")).expect("create");
        std::fs::write(&other, [&stray[..], &[0; 380]].concat()).expect("write");
        let recovery = QueueRecovery { clean: false, log_end: 8100, ..clean(cut_at) };
        let mut loaded = load_queues(&config, &recovery).expect("load");
        let kept = std::mem::take(&mut loaded.kept);
        let store = QueueStore::new(config.clone(), worker(), loaded);
        redo(&store, cut_at as i64);
        let reactor = glommio::LocalExecutor::default();
        let cut = reactor.run(store.cut_kept(kept)).expect("cut");
        store.flush_blocking().expect("flush");
        assert_eq!(cut, 2);
        assert_eq!(everything(&config), before);
        assert_eq!([0, 400, 800, 1200].map(inode), inodes, "files were made anew");
        assert!(!other.exists(), "a queue without a record has a file");
    }
}
