//! Consume queues against the log, offline: fed with every record of a walk, in log order.
//!
//! A queue lags its log in an ordinary way (a crash, a broker that runs): missing units are a problem only after a clean stop. A unit that
//! points elsewhere than to the record with its queue offset always is one: consumers would be refused that message.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use ringmq_net::record::{Properties, RecordView, sys_flag, tags_code};
use rustc_hash::FxHashMap;

use crate::{
    queue::{UNIT_BYTES, Unit},
    state::delay::SCHEDULE_TOPIC,
    store::{StoreLayout, list_numbered},
};

/// Bytes of a queue that are read at once.
const WINDOW_UNITS: u64 = 200;
/// Findings that are kept of one queue; further ones are only counted.
const FINDINGS_A_QUEUE: usize = 10;

/// Something wrong with a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue {topic}/{queue_id}: {what}; remove its directory, it is made again at the next start"
)]
pub struct QueueFinding {
    /// Topic.
    pub topic: String,
    /// Queue.
    pub queue_id: i32,
    /// What.
    pub what: QueueProblem,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueProblem {
    /// A unit that points to another place than its record.
    #[error(
        "unit {queue_offset} points to {found_offset}+{found_size}, its record is at {offset}+{size}"
    )]
    WrongUnit {
        /// Its offset in the queue.
        queue_offset: i64,
        /// Where the record is.
        offset: i64,
        /// Its length.
        size: i32,
        /// Where the unit says it is.
        found_offset: i64,
        /// The length the unit says.
        found_size: i32,
    },
    /// A unit with another hash than that of its record's tags: consumers with tags would not get the message.
    #[error("unit {queue_offset} has the tags code {found}, its record has {expected}")]
    WrongTags {
        /// Its offset in the queue.
        queue_offset: i64,
        /// In the unit.
        found: i64,
        /// By the record.
        expected: i64,
    },
    /// Records without a unit.
    #[error("{count} records have no unit, the first is number {first}")]
    Missing {
        /// How many.
        count: u64,
        /// Queue offset of the first.
        first: i64,
    },
    /// A unit behind that of the last record.
    #[error("unit {queue_offset} points to {found_offset}, but the log has no such record")]
    Beyond {
        /// Its offset in the queue.
        queue_offset: i64,
        /// Where it points to.
        found_offset: i64,
    },
}

/// What a comparison saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueSummary {
    /// Queues with records in the log.
    pub queues: u64,
    /// Units that are right.
    pub right: u64,
    /// Records without a unit: not dispatched yet, or a file is missing. They are made at the next start.
    pub missing: u64,
    /// Units that are wrong.
    pub wrong: u64,
}

/// Compares units with records. Blocks: not for a reactor.
pub struct QueueCheck {
    root: PathBuf,
    queues: FxHashMap<(String, i32), Queue>,
}

struct Queue {
    dir: PathBuf,
    /// (first byte in the queue, length), in order.
    files: Vec<(u64, u64)>,
    window_at: u64,
    window: Vec<u8>,
    seen: Seen,
}

/// What was seen of a queue since it began (anew).
#[derive(Default)]
struct Seen {
    records: u64,
    right: u64,
    wrong: u64,
    missing: u64,
    first_missing: i64,
    /// One past the last record's queue offset.
    end: i64,
    problems: Vec<QueueProblem>,
}

impl QueueCheck {
    /// For the store in `dir`.
    pub fn new(dir: &Path) -> Self {
        QueueCheck { root: StoreLayout::new(dir).consume_queues(), queues: FxHashMap::default() }
    }

    /// Looks up the record's unit. A file that can't be read counts as missing.
    pub fn record(&mut self, record: &RecordView<'_>) {
        if !sys_flag::takes_queue_offset(record.sys_flag()) {
            return;
        }
        let key = (record.topic().to_owned(), record.queue_id());
        let root = &self.root;
        let queue = self.queues.entry(key).or_insert_with_key(|(topic, queue_id)| {
            Queue::load(root.join(topic).join(queue_id.to_string()))
        });
        queue.record(record);
    }

    /// What was seen, and everything wrong. `clean`: the last stop was, so that every record must have its unit, but for those of
    /// topics that are gone, directory and all: `is_topic` tells which are not.
    pub fn finish(
        mut self,
        clean: bool,
        is_topic: impl Fn(&str) -> bool,
    ) -> (QueueSummary, Vec<QueueFinding>) {
        let mut summary = QueueSummary { queues: self.queues.len() as u64, ..Default::default() };
        let mut findings = Vec::new();
        let mut names: Vec<(String, i32)> = self.queues.keys().cloned().collect();
        names.sort();
        for name in names {
            let Some(queue) = self.queues.get_mut(&name) else { continue };
            let expected = is_topic(&name.0) || self.root.join(&name.0).is_dir();
            queue.close(clean && expected);
            let seen = &mut queue.seen;
            summary.right += seen.right;
            summary.missing += seen.missing;
            summary.wrong += seen.wrong;
            let (topic, queue_id) = name;
            findings.extend(seen.problems.drain(..).map(|what| QueueFinding {
                topic: topic.clone(),
                queue_id,
                what,
            }));
        }
        (summary, findings)
    }
}

impl Queue {
    fn load(dir: PathBuf) -> Self {
        let files = list_numbered(&dir)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|file| Some((file.start?, file.len)))
            .collect();
        Queue { dir, files, window_at: 0, window: Vec::new(), seen: Seen::default() }
    }

    fn record(&mut self, record: &RecordView<'_>) {
        let queue_offset = record.queue_offset();
        if queue_offset == 0 && self.seen.records > 0 {
            // The topic was deleted and made again: its former records have no units any more.
            self.seen = Seen::default();
        }
        self.seen.records += 1;
        self.seen.end = queue_offset.saturating_add(1);
        let unit = u64::try_from(queue_offset)
            .ok()
            .and_then(|n| self.unit(n))
            .filter(|unit| unit.is_valid() && !unit.is_blank());
        let Some(unit) = unit else {
            if self.seen.missing == 0 {
                self.seen.first_missing = queue_offset;
            }
            self.seen.missing += 1;
            return;
        };
        match problem_of(&unit, record) {
            None => self.seen.right += 1,
            Some(problem) => {
                self.seen.wrong += 1;
                if self.seen.problems.len() < FINDINGS_A_QUEUE {
                    self.seen.problems.push(problem);
                }
            }
        }
    }

    /// The log has ended.
    fn close(&mut self, whole: bool) {
        if whole && self.seen.missing > 0 {
            let (count, first) = (self.seen.missing, self.seen.first_missing);
            self.seen.problems.push(QueueProblem::Missing { count, first });
        }
        let end = self.seen.end;
        let next = u64::try_from(end).ok().and_then(|n| self.unit(n));
        if let Some(unit) = next.filter(|unit| whole && unit.is_valid()) {
            self.seen.wrong += 1;
            let found_offset = unit.physical_offset;
            self.seen.problems.push(QueueProblem::Beyond { queue_offset: end, found_offset });
        }
    }

    /// Unit `n`, if a file has it.
    fn unit(&mut self, n: u64) -> Option<Unit> {
        let at = n.checked_mul(UNIT_BYTES as u64)?;
        if at < self.window_at || at >= self.window_at + self.window.len() as u64 {
            self.read(at)?;
        }
        let raw = self.window.get((at - self.window_at) as usize..)?.first_chunk()?;
        Some(Unit::decode(raw))
    }

    fn read(&mut self, at: u64) -> Option<()> {
        let (start, len) =
            self.files.iter().copied().find(|(start, len)| (*start..start + len).contains(&at))?;
        // Opened each time: a store may have more queues than a process may have files.
        let file = File::open(self.dir.join(crate::store::numbered_name(start))).ok()?;
        let want = (WINDOW_UNITS * UNIT_BYTES as u64).min(start + len - at);
        self.window.resize(want as usize, 0);
        self.window_at = at;
        if file.read_exact_at(&mut self.window, at - start).is_err() {
            self.window.clear();
            return None;
        }
        Some(())
    }
}

fn problem_of(unit: &Unit, record: &RecordView<'_>) -> Option<QueueProblem> {
    let queue_offset = record.queue_offset();
    let (offset, size) = (record.physical_offset(), record.total_size() as i32);
    let (found_offset, found_size) = (unit.physical_offset, unit.size);
    if (found_offset, found_size) != (offset, size) {
        let wrong =
            QueueProblem::WrongUnit { queue_offset, offset, size, found_offset, found_size };
        return Some(wrong);
    }
    let text = record.properties_text();
    let known = Properties::new(&text).known();
    // A deliver time follows from the broker's configuration, an address from a file of its own.
    let delayed = record.topic() == SCHEDULE_TOPIC && known.delay_level() > 0;
    let (found, expected) = (unit.tags_code, tags_code(known.tags));
    (!delayed && !unit.is_extension_address() && found != expected)
        .then_some(QueueProblem::WrongTags { queue_offset, found, expected })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use ringmq_net::record::{RecordFields, decode};

    use super::*;

    fn record(queue_offset: i64, physical_offset: i64, sys_flag: i32) -> Vec<u8> {
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let fields = RecordFields {
            queue_id: 3,
            flag: 0,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp: 1,
            born_host: host,
            store_timestamp: 1,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            topic: "T",
            properties: b"",
        };
        let mut out = vec![0; fields.encoded_len()];
        fields.encode(&mut out);
        out
    }

    #[test]
    fn right_missing_and_wrong_units_are_told_apart_over_several_files() {
        let dir = tempfile::tempdir().unwrap();
        let queue = dir.path().join("consumequeue/T/3");
        std::fs::create_dir_all(&queue).unwrap();
        let size = record(0, 0, 0).len() as i64;
        // Ten units a file, the second one short, unit 13 wrong.
        let mut files = [Vec::new(), Vec::new()];
        for n in 0..15i64 {
            let offset = if n == 13 { 7 } else { n * size };
            let unit = Unit { physical_offset: offset, size: size as i32, tags_code: 0 };
            files[n as usize / 10].extend_from_slice(&unit.encode());
        }
        for (i, bytes) in files.iter().enumerate() {
            std::fs::write(queue.join(format!("{:020}", i * 200)), bytes).unwrap();
        }
        let mut check = QueueCheck::new(dir.path());
        for n in 0..18 {
            let bytes = record(n, n * size, 0);
            check.record(&decode(&bytes).unwrap());
        }
        // Prepared messages take no place in a queue.
        check.record(&decode(&record(500, 0, 4)).unwrap());
        let (summary, findings) = check.finish(true, |_| true);
        assert_eq!(summary, QueueSummary { queues: 1, right: 14, missing: 3, wrong: 1 });
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].contains("T/3: unit 13 points to 7+"), "{texts:?}");
        assert!(texts[1].contains("3 records have no unit, the first is number 15"), "{texts:?}");
    }

    #[test]
    fn a_unit_with_wrong_tags_and_one_without_a_record_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let queue = dir.path().join("consumequeue/T/3");
        std::fs::create_dir_all(&queue).unwrap();
        let size = record(0, 0, 0).len() as i64;
        let unit =
            |n: i64, tags_code| Unit { physical_offset: n * size, size: size as i32, tags_code };
        let bytes: Vec<u8> =
            [unit(0, 0), unit(1, 4), unit(2, 0)].iter().flat_map(Unit::encode).collect();
        std::fs::write(queue.join(format!("{:020}", 0)), bytes).unwrap();
        let feed = |clean| {
            let mut check = QueueCheck::new(dir.path());
            for n in 0..2 {
                check.record(&decode(&record(n, n * size, 0)).unwrap());
            }
            check.finish(clean, |_| true).1
        };
        let what: Vec<QueueProblem> = feed(true).into_iter().map(|f| f.what).collect();
        assert_eq!(
            what,
            [
                QueueProblem::WrongTags { queue_offset: 1, found: 4, expected: 0 },
                QueueProblem::Beyond { queue_offset: 2, found_offset: 2 * size },
            ]
        );
        assert_eq!(feed(false).len(), 1, "a running broker's queue may be ahead of the walk");
    }

    /// The units are those of the topic as it is now.
    #[test]
    fn records_of_a_topic_that_was_deleted_and_made_again_are_no_problem() {
        let dir = tempfile::tempdir().unwrap();
        let queue = dir.path().join("consumequeue/T/3");
        std::fs::create_dir_all(&queue).unwrap();
        let size = record(0, 0, 0).len() as i64;
        let unit = Unit { physical_offset: 5 * size, size: size as i32, tags_code: 0 };
        std::fs::write(queue.join(format!("{:020}", 0)), unit.encode()).unwrap();
        let mut check = QueueCheck::new(dir.path());
        for (n, physical) in [(0, 0), (1, 1), (2, 2), (0, 5)] {
            check.record(&decode(&record(n, physical * size, 0)).unwrap());
        }
        let (summary, findings) = check.finish(true, |_| true);
        assert_eq!((summary.right, summary.wrong, findings), (1, 0, Vec::new()));
    }
}
