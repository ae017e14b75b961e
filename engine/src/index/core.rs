//! The newest index file in memory: slots, header, and the entries that are not written. Does no I/O.

use super::header::{ENTRY_BYTES, Entry, Header, Shape};

/// What became of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Stored,
    /// The file is past this record already: a redo.
    Skipped,
    /// No entry is left: the next file takes it.
    Full,
}

/// See the module.
#[derive(Debug)]
pub(super) struct CurrentFile {
    shape: Shape,
    pub(super) header: Header,
    pub(super) slots: Vec<u32>,
    /// Number of the first entry in `pending`.
    pub(super) pending_first: u32,
    /// Entries not yet handed to the writer, as they stand in the file.
    pub(super) pending: Vec<u8>,
}

impl CurrentFile {
    /// An empty file after `last`, if there is one. The slot table is allocated zeroed, so its pages cost nothing until used.
    pub(super) fn following(shape: Shape, last: Option<&Header>) -> Self {
        let header = last.map_or_else(Header::default, Header::following);
        Self::with_slots(shape, header, vec![0; shape.slots as usize])
    }

    /// A file as loaded.
    pub(super) fn with_slots(shape: Shape, header: Header, slots: Vec<u32>) -> Self {
        Self { shape, header, slots, pending_first: header.next_entry, pending: Vec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.header.next_entry >= self.shape.entries
    }

    /// Takes a key of the record at `physical`, by stock's rules (4.9.8): keys of a record before the file's last one are
    /// skipped; the time of the very first entry counts from the begin that was inherited.
    pub(super) fn put(&mut self, hash: i32, physical: i64, store_timestamp: i64) -> Put {
        if physical < self.header.end_physical {
            return Put::Skipped;
        }
        if self.is_full() {
            return Put::Full;
        }
        let header = &mut self.header;
        let slot = self.shape.slot_of(hash) as usize;
        let Some(slot) = self.slots.get_mut(slot) else { return Put::Skipped };
        let entry = Entry {
            hash,
            physical,
            seconds: seconds_since(header.begin_timestamp, store_timestamp),
            previous: *slot,
        };
        self.pending.extend_from_slice(&entry.encode());
        if *slot == 0 {
            header.slot_count += 1;
        }
        *slot = header.next_entry;
        if header.next_entry <= 1 {
            header.begin_timestamp = store_timestamp;
            header.begin_physical = physical;
        }
        header.next_entry += 1;
        header.end_timestamp = store_timestamp;
        header.end_physical = physical;
        Put::Stored
    }

    /// The newest entry of the chain that holds `hash`.
    pub(super) fn head(&self, hash: i32) -> u32 {
        self.slots.get(self.shape.slot_of(hash) as usize).copied().unwrap_or(0)
    }

    /// Takes what is not handed to the writer yet: number of the first entry, and the bytes. `spare` becomes the new buffer.
    pub(super) fn take_pending(&mut self, mut spare: Vec<u8>) -> (u32, Vec<u8>) {
        spare.clear();
        let pending = std::mem::replace(&mut self.pending, spare);
        let first = self.pending_first;
        self.pending_first = first + (pending.len() / ENTRY_BYTES) as u32;
        (first, pending)
    }
}

fn seconds_since(begin: i64, timestamp: i64) -> i32 {
    if begin <= 0 {
        return 0;
    }
    let seconds = timestamp.saturating_sub(begin) / 1000;
    i32::try_from(seconds.max(0)).unwrap_or(i32::MAX)
}
