//! Consume queues against the log, offline: fed with every record of a walk, in log order.
//!
//! A queue lags its log in an ordinary way (a crash, a broker that runs), so missing units are counted, not complained of.
//! A unit that points elsewhere than to the record with its queue offset is a problem: consumers would read the wrong
//! message.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use ringmq_net::record::{RecordView, sys_flag};
use rustc_hash::FxHashMap;

use crate::{
    queue::{UNIT_BYTES, Unit},
    store::{StoreLayout, list_numbered},
};

/// Bytes of a queue that are read at once.
const WINDOW_UNITS: u64 = 200;

/// A unit that points to another place than its record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue {topic}/{queue_id}: unit {queue_offset} points to {found_offset}+{found_size}, its record is at {offset}+{size}"
)]
pub struct WrongUnit {
    /// The record's topic.
    pub topic: String,
    /// Its queue.
    pub queue_id: i32,
    /// Its offset in the queue.
    pub queue_offset: i64,
    /// Where the record is.
    pub offset: i64,
    /// Its length.
    pub size: i32,
    /// Where the unit says it is.
    pub found_offset: i64,
    /// The length the unit says.
    pub found_size: i32,
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
    summary: QueueSummary,
}

struct Queue {
    dir: PathBuf,
    /// (first byte in the queue, length), in order.
    files: Vec<(u64, u64)>,
    window_at: u64,
    window: Vec<u8>,
}

impl QueueCheck {
    /// For the store in `dir`.
    pub fn new(dir: &Path) -> Self {
        QueueCheck {
            root: StoreLayout::new(dir).consume_queues(),
            queues: FxHashMap::default(),
            summary: QueueSummary::default(),
        }
    }

    /// Looks up the record's unit. A file that can't be read counts as missing.
    pub fn record(&mut self, record: &RecordView<'_>) -> Option<WrongUnit> {
        if !sys_flag::takes_queue_offset(record.sys_flag()) {
            return None;
        }
        let key = (record.topic().to_owned(), record.queue_id());
        let root = &self.root;
        let queue = self.queues.entry(key).or_insert_with_key(|(topic, queue_id)| {
            self.summary.queues += 1;
            Queue::load(root.join(topic).join(queue_id.to_string()))
        });
        let unit = u64::try_from(record.queue_offset())
            .ok()
            .and_then(|n| queue.unit(n))
            .filter(|unit| unit.is_valid() && !unit.is_blank());
        let Some(unit) = unit else {
            self.summary.missing += 1;
            return None;
        };
        let (offset, size) = (record.physical_offset(), record.total_size() as i32);
        if (unit.physical_offset, unit.size) == (offset, size) {
            self.summary.right += 1;
            return None;
        }
        self.summary.wrong += 1;
        Some(WrongUnit {
            topic: record.topic().to_owned(),
            queue_id: record.queue_id(),
            queue_offset: record.queue_offset(),
            offset,
            size,
            found_offset: unit.physical_offset,
            found_size: unit.size,
        })
    }

    /// What was seen so far.
    pub fn summary(&self) -> QueueSummary {
        self.summary
    }
}

impl Queue {
    fn load(dir: PathBuf) -> Self {
        let files = list_numbered(&dir)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|file| Some((file.start?, file.len)))
            .collect();
        Queue { dir, files, window_at: 0, window: Vec::new() }
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
        let mut wrong = Vec::new();
        for n in 0..18 {
            let bytes = record(n, n * size, 0);
            wrong.extend(check.record(&decode(&bytes).unwrap()));
        }
        // Prepared messages take no place in a queue.
        let prepared = record(500, 0, 4);
        assert_eq!(check.record(&decode(&prepared).unwrap()), None);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].to_string().contains("T/3: unit 13 points to 7+"), "{}", wrong[0]);
        let expected = QueueSummary { queues: 1, right: 14, missing: 3, wrong: 1 };
        assert_eq!(check.summary(), expected);
    }
}
