//! The index against stock bytes, and against a model over rolls, stops and crashes.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use futures_lite::future::poll_once;
use glommio::LocalExecutorBuilder;
use proptest::prelude::*;
use ringmq_net::record::{Properties, TopicKeyHasher, sys_flag};

use super::query::{Wanted, query_files};
use super::*;
use crate::store::vectors::{records, vector};
use crate::store::{StoreLayout, Worker};

fn config(root: &Path, slots: u32, entries: u32) -> IndexConfig {
    IndexConfig { slots, entries, ..IndexConfig::new(&StoreLayout::new(root)) }
}

fn open(config: &IndexConfig, recovery: IndexRecovery) -> (Index, IndexReport) {
    let loaded = load_index(config, &recovery).expect("load");
    let report = loaded.report.clone();
    let worker = Rc::new(Worker::start("test-index").expect("worker"));
    (Index::new(config.clone(), worker, loaded), report)
}

fn clean(log_end: u64) -> IndexRecovery {
    IndexRecovery { log_min: 0, log_end, clean: true, files: None }
}

fn files(config: &IndexConfig) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(&config.dir)
        .map(|entries| entries.map(|entry| entry.expect("entry").path()).collect())
        .unwrap_or_default();
    files.sort();
    files
}

/// Puts all keys of the records of a stock log, as stock's dispatch does.
fn put_log(index: &Index, log: &[u8]) {
    for record in records(log) {
        if !sys_flag::is_indexed(record.sys_flag()) {
            continue;
        }
        let text = record.properties_text();
        let hasher = TopicKeyHasher::new(record.topic());
        for key in Properties::new(&text).known().index_keys() {
            index.put(hasher.hash(key), record.physical_offset(), record.store_timestamp());
        }
    }
}

#[test]
fn an_index_file_is_that_of_stock() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), 7, 12);
    let (index, _) = open(&config, clean(0));
    put_log(&index, &vector("seg_file0"));
    put_log(&index, &vector("seg_file1"));
    index.close_blocking().expect("close");
    let files = files(&config);
    assert_eq!(files.len(), 1);
    assert_eq!(std::fs::read(&files[0]).expect("read"), vector("index_small"));
    let name = files[0].file_name().and_then(|name| name.to_str()).expect("name");
    assert!(super::name::is_index_name(name), "{name}");
}

#[test]
fn index_files_roll_as_in_stock() {
    for close_between in [false, true] {
        let dir = tempfile::tempdir().expect("directory");
        let config = config(dir.path(), 5, 6);
        let (mut index, _) = open(&config, clean(0));
        let log = vector("index_roll_commitlog");
        if close_between {
            // A stop after each record changes nothing.
            for record in records(&log) {
                put_log(&index, record.bytes());
                index.close_blocking().expect("close");
                index = open(&config, clean(u64::MAX >> 1)).0;
            }
        } else {
            put_log(&index, &log);
        }
        index.close_blocking().expect("close");
        let files = files(&config);
        assert_eq!(files.len(), 4);
        for (n, file) in files.iter().enumerate() {
            let stock = vector(&format!("index_roll_{}", n + 1));
            assert_eq!(std::fs::read(file).expect("read"), stock, "file {}", n + 1);
        }
    }
}

#[test]
fn a_stock_file_is_read_and_continued() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), 7, 12);
    std::fs::create_dir_all(&config.dir).expect("mkdir");
    std::fs::write(config.dir.join("20231114221320123"), vector("index_small")).expect("write");
    let (index, report) = open(&config, clean(5000));
    assert_eq!((report.files, report.rebuilt_entries, report.redo_from), (1, 0, None));
    let hasher = TopicKeyHasher::new("TopicTest");
    index.put(hasher.hash("order-1"), 1330, 1_700_000_000_123);
    assert_eq!(index.stats().entries, 10, "a redo is skipped");
    index.put(hasher.hash("order-1"), 4000, 1_700_000_009_999);
    on_reactor(async move {
        let found = index.query(hasher.hash("order-1"), 32, 0, i64::MAX).await.expect("query");
        assert_eq!(found.offsets, [4000, 0]);
        assert_eq!((found.last_timestamp, found.last_physical), (1_700_000_009_999, 4000));
        // The time range: to the second, rounded down, from the file's begin.
        let begin = 1_700_000_000_123;
        let early = index.query(hasher.hash("order-1"), 32, 0, begin).await.expect("query");
        assert_eq!(early.offsets, [0]);
        let late = index.query(hasher.hash("order-1"), 32, begin + 9000, i64::MAX).await;
        assert_eq!(late.expect("query").offsets, [4000]);
        let one = index.query(hasher.hash("order-1"), 1, 0, i64::MAX).await.expect("query");
        assert_eq!(one.offsets, [4000]);
        let none = index.query(hasher.hash("unknown"), 32, 0, i64::MAX).await.expect("query");
        assert!(none.offsets.is_empty());
    });
}

/// A query waits until what was put is written. Keys of the same chain that are put meanwhile, and files that they fill, hide nothing.
#[test]
fn a_key_is_found_whatever_is_put_meanwhile() {
    for (before, meanwhile, polled) in
        [1, 4, 5].iter().flat_map(|b| (0..8).flat_map(move |m| [(*b, m, false), (*b, m, true)]))
    {
        let dir = tempfile::tempdir().expect("directory");
        let config = config(dir.path(), 7, 6);
        let loaded = load_index(&config, &clean(0)).expect("load");
        let worker = Rc::new(Worker::start("test-index").expect("worker"));
        let index = Index::new(config, Rc::clone(&worker), loaded);
        let found = on_reactor(async move {
            for n in 0..before {
                index.put(7, n * 100, 1_000_000);
            }
            let (go_on, held) = std::sync::mpsc::channel::<()>();
            drop(worker.submit(move || held.recv()));
            let mut query = std::pin::pin!(index.query(7, 32, 0, i64::MAX));
            assert!(poll_once(&mut query).await.is_none(), "nothing is written yet");
            for n in before..before + meanwhile {
                index.put(14, n * 100, 1_000_000);
                if polled {
                    index.poll();
                }
            }
            drop(go_on);
            query.await.expect("query").offsets
        });
        let expected: Vec<i64> = (0..before).rev().map(|n| n * 100).collect();
        assert_eq!(found, expected, "{before} before, {meanwhile} meanwhile, polled {polled}");
    }
}

fn on_reactor<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    LocalExecutorBuilder::default().io_memory(1 << 20).make().expect("reactor").run(test)
}

#[test]
fn a_trim_removes_files_whose_records_are_gone() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), 5, 6);
    let (index, _) = open(&config, clean(0));
    put_log(&index, &vector("index_roll_commitlog"));
    on_reactor(async move {
        index.flush().await.expect("flush");
        assert_eq!(index.rolled_timestamp(), 0x18b_cfe5_8ba3);
        let last_of_second = 0x175;
        assert_eq!(index.trim(last_of_second).await.expect("trim"), 1);
        assert_eq!(index.trim(u64::MAX >> 1).await.expect("trim"), 2);
        assert_eq!((index.stats().files, files(&config).len()), (1, 1));
    });
}

#[test]
fn other_table_sizes_are_refused_before_anything_changes() {
    let dir = tempfile::tempdir().expect("directory");
    let small = config(dir.path(), 7, 12);
    std::fs::create_dir_all(&small.dir).expect("mkdir");
    let path = small.dir.join("20231114221320123");
    std::fs::write(&path, vector("index_small")).expect("write");
    let error = load_index(&config(dir.path(), 7, 13), &clean(5000)).expect_err("refused");
    assert!(error.to_string().contains("have 308 bytes"), "{error}");
    assert_eq!(std::fs::read(&path).expect("read"), vector("index_small"));
}

#[test]
fn a_damaged_entry_cuts_the_file_there_and_asks_for_a_redo() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), 7, 12);
    std::fs::create_dir_all(&config.dir).expect("mkdir");
    let path = config.dir.join("20231114221320123");
    let stock = vector("index_small");
    let mut bytes = stock.clone();
    // The link of entry 5.
    bytes[40 + 28 + 5 * 20 + 19] ^= 1;
    std::fs::write(&path, bytes).expect("write");
    let (index, report) = open(&config, IndexRecovery { clean: false, ..clean(5000) });
    assert_eq!(report.redo_from, Some(0x30d), "{report:?}");
    put_log(&index, &vector("seg_file0"));
    put_log(&index, &vector("seg_file1"));
    index.close_blocking().expect("close");
    // The last record before the damage is indexed again, as after any redo in stock; then all is there.
    assert_eq!(std::fs::read(&path).expect("read")[40 + 28 + 20..][..80], stock[88..168]);
}

#[derive(Debug, Clone)]
enum Step {
    Put { key: u8, keys: usize },
    Poll,
    Checkpoint,
    CleanStop,
    Crash { seed: u64, lost_records: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u8..12, 1usize..5).prop_map(|(key, keys)| Step::Put { key, keys }),
        2 => Just(Step::Poll),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::CleanStop),
        2 => (any::<u64>(), 0usize..6)
            .prop_map(|(seed, lost_records)| Step::Crash { seed, lost_records }),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Put {
    hash: i32,
    physical: i64,
    time: i64,
}

struct World {
    config: IndexConfig,
    index: Index,
    log: Vec<Put>,
    log_end: i64,
    dispatched: i64,
}

impl World {
    fn put(&mut self, key: u8, keys: usize) {
        for n in 0..keys {
            let hash = i32::from(key) + 13 * n as i32;
            let put = Put { hash, physical: self.log_end, time: 1_000_000 + self.log_end * 7 };
            self.index.put(put.hash, put.physical, put.time);
            self.log.push(put);
        }
        self.log_end += 100;
    }

    fn checkpoint(&mut self) {
        if let Some(header) = self.index.flush_blocking().expect("flush") {
            header.save().expect("save");
        }
        self.dispatched = self.log_end;
    }

    fn reopen(&mut self, clean: bool) {
        let recovery =
            IndexRecovery { log_min: 0, log_end: self.log_end as u64, clean, files: None };
        let (index, report) = open(&self.config, recovery);
        assert_eq!(report.redo_from, None, "{report:?}");
        self.index = index;
        for put in self.log.iter().filter(|put| put.physical >= self.dispatched) {
            self.index.put(put.hash, put.physical, put.time);
        }
        self.compare();
    }

    /// Every key is found with all its records, newest first. A record may be there twice after a redo, as in stock.
    fn compare(&self) {
        self.index.flush_blocking().expect("flush");
        for hash in 0..64 {
            let mut expected: Vec<i64> =
                self.log.iter().filter(|put| put.hash == hash).map(|put| put.physical).collect();
            expected.reverse();
            let mut found = self.query(hash);
            found.dedup();
            assert_eq!(found, expected, "hash {hash}");
        }
    }

    /// Reads the files as a stock broker would after a clean stop.
    fn query(&self, hash: i32) -> Vec<i64> {
        let queries = self.index.file_queries(hash);
        let wanted = Wanted { hash, max: usize::MAX, begin: 0, end: i64::MAX };
        query_files(&queries, self.config.shape(), wanted).expect("query")
    }

    /// Zeroes or fills what no checkpoint vouches for in the newest file: slots and the entries behind the header's count.
    fn damage(&self, seed: u64) {
        let Some(path) = files(&self.config).pop() else { return };
        let mut bytes = std::fs::read(&path).expect("read");
        let header = Header::decode(bytes[..HEADER_BYTES].first_chunk().expect("header"));
        let shape = self.config.shape();
        if header.next_entry >= shape.entries {
            return;
        }
        let mut random = seed | 1;
        let entries = shape.entry_at(header.next_entry) as usize;
        let slots = HEADER_BYTES..shape.slot_at(shape.slots) as usize;
        for at in slots.chain(entries..bytes.len()) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            match random % 4 {
                0 => bytes[at] = 0,
                1 => bytes[at] = random as u8 >> 1,
                _ => {}
            }
        }
        std::fs::write(&path, bytes).expect("write");
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put { key, keys } => self.put(*key, *keys),
            Step::Poll => self.index.poll(),
            Step::Checkpoint => self.checkpoint(),
            Step::CleanStop => {
                self.index.close_blocking().expect("close");
                self.dispatched = self.log_end;
                self.reopen(true);
            }
            Step::Crash { seed, lost_records } => {
                let empty =
                    LoadedIndex { full: Vec::new(), current: None, report: IndexReport::default() };
                let worker = Rc::new(Worker::start("test-index").expect("worker"));
                // Replaced, the old one's worker finishes its jobs; what was never handed over is lost.
                self.index = Index::new(self.config.clone(), worker, empty);
                self.damage(*seed);
                for _ in 0..*lost_records {
                    let end = self.log_end - 100;
                    if end < self.dispatched {
                        break;
                    }
                    self.log.retain(|put| put.physical < end);
                    self.log_end = end;
                }
                self.reopen(false);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn every_key_is_found_over_rolls_stops_and_crashes(
        steps in prop::collection::vec(step(), 1..40),
        slots in 1u32..20,
        entries in 3u32..30,
    ) {
        let dir = tempfile::tempdir().expect("directory");
        let config = config(dir.path(), slots, entries);
        let index = open(&config, clean(0)).0;
        let mut world = World { config, index, log: Vec::new(), log_end: 100, dispatched: 0 };
        for step in &steps {
            world.step(step);
        }
        world.compare();
        world.index.close_blocking().expect("close");
        // From the files alone.
        let log_end = world.log_end as u64;
        let (index, report) = open(&world.config, clean(log_end));
        prop_assert_eq!((report.rebuilt_entries, report.redo_from), (0, None));
        world.index = index;
        world.compare();
    }
}

#[test]
fn names_are_local_times_that_never_go_back() {
    let name = super::name::next_name(1_700_000_000_123, None);
    assert!(super::name::is_index_name(&name), "{name}");
    // Every time zone of today is at whole quarters of an hour: seconds and milliseconds are the same everywhere.
    assert_eq!(&name[12..], "20123");
    let next = super::name::next_name(1_600_000_000_000, Some(&name));
    assert_eq!(next.parse::<u64>().expect("number"), name.parse::<u64>().expect("number") + 1);
}

/// The log lost records that a checkpoint of the index counts (it was not synced, the index was).
#[test]
fn entries_of_lost_records_do_not_come_back() {
    let dir = tempfile::tempdir().expect("directory");
    let config = config(dir.path(), 7, 12);
    let (index, _) = open(&config, clean(0));
    for n in 0..5 {
        index.put(7, n * 100, 1_000_000);
    }
    let header = index.flush_blocking().expect("flush").expect("header");
    header.save().expect("save");
    drop(index);
    let crashed = |log_end| IndexRecovery { log_min: 0, log_end, clean: false, files: None };
    let (index, report) = open(&config, crashed(200));
    assert_eq!((report.rebuilt_entries, report.redo_from), (2, None));
    // Other records take their place, and nothing vouches for them yet when the next crash comes.
    index.put(14, 250, 1_000_000);
    index.flush_blocking().expect("flush");
    drop(index);
    let (index, report) = open(&config, crashed(1000));
    assert_eq!((report.rebuilt_entries, report.redo_from), (2, None));
    assert_eq!(index.stats().entries, 2);
}
