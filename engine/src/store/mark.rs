//! How far derived data is durable: our own, exact counterpart of the checkpoint's times.

use std::io;
use std::path::Path;

use super::{LockStamp, StoreError, write_replacing};
use crate::index::IndexFileMark;
use crate::queue::QueueDigest;
use crc32c::crc32c;

const VERSION: &str = "ringmq-derived 2";

/// Consume queue units and index entries of every record below `dispatched` are durable. With it, recovery cuts all queues
/// there and redoes the rest from the log, so it never has to trust a unit that may be torn.
///
/// The file is text: a version line, then `dispatched`, `queue-offsets`, `queue-ends`, `queue-begins`, `log-min`, `lock-inode`, `lock-modified-ns`, one line
/// `index <name> <next entry> <physical offset of the last entry's record>` for each index file, and the CRC-32C of the lines
/// before. Another version, a wrong CRC or another lock stamp than the one read at start means: not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedMark {
    /// A physical offset between two records.
    pub dispatched: u64,
    /// What the consume queues add up to at `dispatched`.
    pub queues: QueueDigest,
    /// Where the log began at the same moment.
    pub log_min: u64,
    /// The lock file as our own process left it: tells whether another broker changed the store since.
    pub lock: LockStamp,
    /// The index files, oldest first: what is missing at the next start is made again.
    pub index: Vec<IndexFileMark>,
}

impl DerivedMark {
    /// The mark, if it is whole and no other broker started on the store since it was written. `lock` is the stamp read
    /// before the lock was taken.
    ///
    /// # Errors
    /// [`StoreError::Io`] except for a missing file.
    pub fn load(path: &Path, lock: Option<LockStamp>) -> Result<Option<Self>, StoreError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
            Err(error) => return Err(StoreError::io("read", path, error)),
        };
        Ok(Self::parse(&text).filter(|mark| Some(mark.lock) == lock))
    }

    /// Replaces the mark, durably. What it claims must be durable before.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), StoreError> {
        write_replacing(path, self.text().as_bytes())
    }

    fn text(&self) -> String {
        let mut lines = format!(
            "{VERSION}\ndispatched {}\nqueue-offsets {}\nqueue-ends {}\nqueue-begins {}\nlog-min {}\nlock-inode {}\nlock-modified-ns {}\n",
            self.dispatched,
            self.queues.max_offsets,
            self.queues.ends,
            self.queues.min_offsets,
            self.log_min,
            self.lock.inode,
            self.lock.modified_ns
        );
        for file in &self.index {
            lines.push_str(&format!(
                "index {} {} {}\n",
                file.name, file.next_entry, file.end_physical
            ));
        }
        format!("{lines}crc32c {:08x}\n", crc32c(lines.as_bytes()))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let version = lines.next()?;
        let dispatched = lines.next()?.strip_prefix("dispatched ")?.parse().ok()?;
        let max_offsets = lines.next()?.strip_prefix("queue-offsets ")?.parse().ok()?;
        let ends = lines.next()?.strip_prefix("queue-ends ")?.parse().ok()?;
        let min_offsets = lines.next()?.strip_prefix("queue-begins ")?.parse().ok()?;
        let log_min = lines.next()?.strip_prefix("log-min ")?.parse().ok()?;
        let inode = lines.next()?.strip_prefix("lock-inode ")?.parse().ok()?;
        let modified_ns = lines.next()?.strip_prefix("lock-modified-ns ")?.parse().ok()?;
        let mut index = Vec::new();
        for line in lines.map_while(|line| line.strip_prefix("index ")) {
            let mut words = line.split(' ');
            index.push(IndexFileMark {
                name: words.next()?.to_owned(),
                next_entry: words.next()?.parse().ok()?,
                end_physical: words.next()?.parse().ok()?,
            });
        }
        let mark = Self {
            dispatched,
            queues: QueueDigest { max_offsets, ends, min_offsets },
            log_min,
            lock: LockStamp { inode, modified_ns },
            index,
        };
        (version == VERSION && mark.text() == text).then_some(mark)
    }
}
