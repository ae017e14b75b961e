use ringmq_net::record::{Properties, sys_flag, tags_code};

use super::*;
use crate::store::vectors::{records, vector};

#[test]
fn units_are_those_of_stock() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let (store, _) = open(&config, clean(0));
    let mut log = vector("seg_file0");
    let second = vector("seg_file1");
    let mut all = records(&log);
    all.extend(records(&second));
    assert_eq!(all.len(), 14);
    for record in all {
        if !sys_flag::takes_queue_offset(record.sys_flag()) {
            continue;
        }
        let text = record.properties_text();
        let queue = store.open(record.topic(), record.queue_id());
        store.append(
            &queue,
            record.queue_offset(),
            record.physical_offset(),
            record.total_size() as i32,
            tags_code(Properties::new(&text).known().tags),
        );
    }
    log.clear();
    store.flush_blocking().expect("flush");
    for (name, topic, queue_id) in
        [("cq_TopicTest_3", "TopicTest", 3), ("cq_BatchT_1", "BatchT", 1)]
    {
        let stock = vector(name);
        let ours = read_file(&config, topic, queue_id, 0);
        assert_eq!(ours.len() as u64, FILE_BYTES);
        assert_eq!(ours[..stock.len()], stock, "{name}");
        assert!(ours[stock.len()..].iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn a_queue_that_begins_late_is_pre_blanked_as_stock_does() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let (store, _) = open(&config, clean(0));
    let queue = store.open("T", 0);
    assert_eq!(store.append(&queue, 25, 5000, 321, 2_598_919), Appended::Stored(25));
    assert_eq!((queue.min_offset(), queue.max_offset()), (25, 26));
    assert_eq!(store.append(&queue, 26, 5321, 99, -5), Appended::Stored(26));
    // Stock stores a unit that follows lost ones at the end of the queue, with a warning.
    assert_eq!(store.append(&queue, 30, 6000, 99, -5), Appended::Drifted(27));
    store.flush_blocking().expect("flush");
    assert_eq!(read_file(&config, "T", 0, 400), vector("cq_preblank_file400"));
    assert!(!file(&config, "T", 0, 0).exists());

    // Every form of load finds it again, and its first offset is that of the first message.
    for (trusted, clean) in [(true, true), (true, false), (false, true), (false, false)] {
        let recovery = QueueRecovery {
            log_min: 0,
            cut_at: 7000,
            log_end: 7000,
            trusted,
            clean,
            digest: None,
            same_beginning: false,
        };
        let loaded = load_queues(&config, &recovery).expect("load");
        let expected = LoadedQueue {
            topic: "T".to_owned(),
            queue_id: 0,
            min_offset: 25,
            max_offset: 28,
            end_physical: 6099,
            min_physical: 5000,
        };
        assert_eq!(loaded.queues, [expected]);
    }
    // Cut below its first message nothing but blank units is left: stock would stop dispatching, so the file goes.
    let (store, report) = open(&config, QueueRecovery { clean: false, ..clean(4000) });
    assert_eq!((report.removed_files, report.max_end_physical), (1, 0));
    assert_eq!(store.open("T", 0).max_offset(), 0);
    assert!(!file(&config, "T", 0, 400).exists());
}

#[test]
fn a_redo_changes_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let (store, _) = open(&config, clean(0));
    let queue = store.open("T", 0);
    for n in 0..30 {
        assert_eq!(store.append(&queue, n, n * 100, 100, n), Appended::Stored(n));
    }
    for n in 0..30 {
        assert_eq!(store.append(&queue, n, n * 100, 100, n), Appended::Skipped);
    }
    // Queue offset 0 with a new physical offset: stock would append it again.
    assert_eq!(store.append(&queue, 0, 9000, 100, 0), Appended::Skipped);
    assert_eq!(queue.max_offset(), 30);
}

#[test]
fn entries_that_are_no_queues_are_ignored() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    std::fs::create_dir_all(config.dir.join("T/notanumber")).expect("mkdir");
    std::fs::write(config.dir.join("plainfile"), b"x").expect("write");
    let loaded = load_queues(&config, &clean(0)).expect("load");
    assert!(loaded.queues.is_empty());
    assert_eq!(loaded.report, LoadReport::default());
}

#[test]
fn a_redo_over_a_drifted_unit_changes_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path());
    let (store, _) = open(&config, clean(0));
    let queue = store.open("T", 0);
    store.append(&queue, 0, 0, 100, 0);
    assert_eq!(store.append(&queue, 9, 100, 100, 0), Appended::Drifted(1));
    assert_eq!(store.append(&queue, 9, 100, 100, 0), Appended::Skipped);
    assert_eq!(store.append(&queue, 2, 200, 100, 0), Appended::Stored(2));
    assert_eq!(store.stats().drifted_units, 1);
}
