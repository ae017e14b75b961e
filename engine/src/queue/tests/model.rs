//! The queues over clean stops, crashes and torn files, against a list of records.

use proptest::prelude::*;

use super::*;

const QUEUES: usize = 5;
/// What reaches the device whole or not at all; cuts units apart.
const PAGE_BYTES: u64 = 64;

#[derive(Debug, Clone)]
enum Step {
    /// Records for a queue.
    Append {
        queue: usize,
        count: usize,
    },
    Poll,
    /// Everything so far is durable.
    Checkpoint,
    CleanStop,
    /// What was written since the checkpoint is damaged by `seed`; the log may have lost its last records.
    Crash {
        seed: u64,
        lost_records: usize,
    },
    /// A start that knows nothing of our own checkpoint.
    ForeignStart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..QUEUES, 1usize..40).prop_map(|(queue, count)| Step::Append { queue, count }),
        3 => Just(Step::Poll),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::CleanStop),
        2 => (any::<u64>(), 0usize..30)
            .prop_map(|(seed, lost_records)| Step::Crash { seed, lost_records }),
        1 => Just(Step::ForeignStart),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Record {
    queue: usize,
    queue_offset: i64,
    unit: Unit,
}

struct World {
    config: QueueConfig,
    store: QueueStore,
    log: Vec<Record>,
    log_end: i64,
    /// Derived data of records below is durable, and adds up to `digest`.
    dispatched: i64,
    digest: QueueDigest,
}

impl World {
    fn name(queue: usize) -> (&'static str, i32) {
        [("A", 0), ("A", 1), ("%RETRY%g", 0), ("B", 3), ("B", 12)][queue]
    }

    fn handle(&self, queue: usize) -> QueueRef {
        let (topic, id) = Self::name(queue);
        self.store.open(topic, id)
    }

    fn units(&self, queue: usize) -> Vec<Unit> {
        self.log.iter().filter(|record| record.queue == queue).map(|record| record.unit).collect()
    }

    fn append(&mut self, queue: usize, count: usize) {
        let handle = self.handle(queue);
        for _ in 0..count {
            let size = 91 + (self.log_end * 7 % 200) as i32;
            let unit = Unit { physical_offset: self.log_end, size, tags_code: -self.log_end };
            let record = Record { queue, queue_offset: handle.max_offset(), unit };
            self.log_end = unit.physical_end();
            assert_eq!(self.dispatch(record), Appended::Stored(record.queue_offset));
            self.log.push(record);
        }
    }

    fn dispatch(&self, record: Record) -> Appended {
        let unit = record.unit;
        self.store.append(
            &self.handle(record.queue),
            record.queue_offset,
            unit.physical_offset,
            unit.size,
            unit.tags_code,
        )
    }

    fn checkpoint(&mut self) {
        self.store.flush_blocking().expect("flush");
        self.dispatched = self.log_end;
        self.digest = self.store.digest();
    }

    /// Opens again with `recovery`, redoes from `redo_from`, and compares.
    fn reopen(&mut self, recovery: QueueRecovery, redo_from: i64) {
        let mut loaded = load_queues(&self.config, &recovery).expect("load");
        let (report, kept) = (loaded.report.clone(), std::mem::take(&mut loaded.kept));
        let store = QueueStore::new(self.config.clone(), worker(), loaded);
        assert_eq!((report.redo_from, report.repaired), (None, 0), "{:?}", report.repairs);
        self.store = store;
        let redo: Vec<Record> =
            self.log.iter().filter(|r| r.unit.physical_offset >= redo_from).copied().collect();
        for record in redo {
            let appended = self.dispatch(record);
            assert!(!matches!(appended, Appended::Drifted(_)), "{record:?}");
        }
        self.store.flush_blocking().expect("flush");
        futures_lite::future::block_on(self.store.cut_kept(kept)).expect("cut");
        self.compare();
    }

    fn compare(&self) {
        for queue in 0..QUEUES {
            let expected = self.units(queue);
            let handle = self.handle(queue);
            assert_eq!(handle.max_offset(), expected.len() as i64, "queue {queue}");
            let end = expected.last().map_or(0, Unit::physical_end);
            assert_eq!(handle.end_physical(), end, "queue {queue}");
            let mut recent = Vec::new();
            let first = handle.memory.borrow().first;
            let in_memory = self.store.recent(&handle, first, usize::MAX, |unit| {
                recent.push(unit);
                true
            });
            assert!(in_memory);
            assert_eq!(recent, expected[first as usize..], "queue {queue}");
        }
    }

    /// The files hold exactly the units, then zeros, and no file is without a unit.
    fn compare_files(&self) {
        for queue in 0..QUEUES {
            let (topic, id) = Self::name(queue);
            let mut expected: Vec<u8> =
                self.units(queue).iter().flat_map(|unit| unit.encode()).collect();
            expected.resize(expected.len().next_multiple_of(FILE_BYTES as usize), 0);
            let files =
                crate::store::list_numbered(&self.config.dir.join(topic).join(id.to_string()))
                    .expect("list");
            let found: Vec<u8> = files
                .iter()
                .flat_map(|file| {
                    read_file(&self.config, topic, id, file.start.expect("only numbered files"))
                })
                .collect();
            assert_eq!(found, expected, "queue {queue}");
        }
    }

    /// Damages everything behind the units of records below `dispatched`: pages that were never written and cut units apart,
    /// files that disappear, and (where the log lost its end) whole units of lost records.
    fn damage(&self, seed: u64) {
        let mut random = seed | 1;
        let mut next = move |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        for queue in 0..QUEUES {
            let (topic, id) = Self::name(queue);
            let kept = self
                .units(queue)
                .iter()
                .filter(|unit| unit.physical_offset < self.dispatched)
                .count();
            let safe = (kept * UNIT_BYTES) as u64;
            let dir = self.config.dir.join(topic).join(id.to_string());
            for file in crate::store::list_numbered(&dir).expect("list") {
                let start = file.start.expect("number");
                let path = dir.join(&file.name);
                if start >= safe && next(4) == 0 {
                    std::fs::remove_file(&path).expect("remove");
                    continue;
                }
                let mut bytes = std::fs::read(&path).expect("read");
                let from = safe.saturating_sub(start).min(bytes.len() as u64);
                for _ in 0..next(4) {
                    let page = next(FILE_BYTES.div_ceil(PAGE_BYTES)) * PAGE_BYTES;
                    for at in page.max(from)..(page + PAGE_BYTES).min(FILE_BYTES) {
                        bytes[at as usize] = 0;
                    }
                }
                std::fs::write(&path, bytes).expect("write");
            }
            // Files must stay contiguous for this test: a gap is damage of another kind.
            let mut expected = None;
            for file in crate::store::list_numbered(&dir).expect("list") {
                let start = file.start.expect("number");
                if expected.is_some_and(|expected| expected != start) {
                    std::fs::remove_file(dir.join(&file.name)).expect("remove");
                } else {
                    expected = Some(start + FILE_BYTES);
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append { queue, count } => self.append(*queue, *count),
            Step::Poll => self.store.poll(),
            Step::Checkpoint => self.checkpoint(),
            Step::CleanStop => {
                self.checkpoint();
                let digest = Some(self.digest);
                let recovery = QueueRecovery { digest, ..clean(self.log_end as u64) };
                self.reopen(recovery, self.log_end);
            }
            Step::Crash { seed, lost_records } => {
                // A worker that is dropped finishes its jobs; what was never handed over is lost.
                self.store = open_empty(&self.config);
                self.damage(*seed);
                for _ in 0..*lost_records {
                    match self.log.last() {
                        Some(last) if last.unit.physical_offset >= self.dispatched => {
                            self.log_end = last.unit.physical_offset;
                            self.log.pop();
                        }
                        _ => break,
                    }
                }
                let cut_at = self.dispatched as u64;
                let recovery = QueueRecovery {
                    clean: false,
                    digest: Some(self.digest),
                    log_end: self.log_end as u64,
                    ..clean(cut_at)
                };
                self.reopen(recovery, self.dispatched);
            }
            Step::ForeignStart => {
                self.checkpoint();
                let cut_at = self.log_end as u64;
                let recovery = QueueRecovery { trusted: false, ..clean(cut_at) };
                self.reopen(recovery, self.log_end / 2);
            }
        }
    }
}

/// A store over an empty directory: replaces one that is to end.
fn open_empty(config: &QueueConfig) -> QueueStore {
    QueueStore::new(config.clone(), worker(), LoadedQueues::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn queues_hold_exactly_the_logs_records_over_stops_and_crashes(
        steps in prop::collection::vec(step(), 1..25)
    ) {
        let dir = tempfile::tempdir().expect("directory");
        let config = config(dir.path());
        let store = open(&config, clean(0)).0;
        let mut world = World { config, store, log: Vec::new(), log_end: 0, dispatched: 0, digest: QueueDigest::default() };
        for step in &steps {
            world.step(step);
        }
        world.compare();
        world.checkpoint();
        world.compare_files();
        let unwritten = world.store.stats().unwritten_bytes;
        prop_assert_eq!(unwritten, 0);
        world.store.poll();
        prop_assert!(world.store.stats().memory_bytes <= world.config.memory_bytes_max);
    }
}
