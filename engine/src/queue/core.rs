//! One queue: its bounds, its units in memory, and the rules by which a unit is taken. Does no I/O.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::unit::{RawUnit, UNIT_BYTES, Unit};

/// A handle to a queue: cheap to clone, no hashing to use. Stays usable after the queue was removed; it is then empty and
/// takes nothing.
pub type QueueRef = Rc<Queue>;

/// What became of an appended unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Taken at this queue offset, which is the record's own.
    Stored(i64),
    /// The queue has it already (or was removed): a redo met what was not lost.
    Skipped,
    /// Taken at this queue offset although the record says a higher one. Only in a log of a stock broker that had lost units;
    /// it would store the unit at the same place.
    Drifted(i64),
}

/// Sums over all queues, by which a start tells that units or whole queues have disappeared from files that were durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueDigest {
    /// Sum of the max offsets (wrapping).
    pub max_offsets: u64,
    /// Sum of the physical ends of the last units (wrapping).
    pub ends: u64,
    /// Sum of the min offsets (wrapping). They move with the log's beginning.
    pub min_offsets: u64,
}

impl QueueDigest {
    pub(super) fn add(&mut self, other: QueueDigest) {
        self.max_offsets = self.max_offsets.wrapping_add(other.max_offsets);
        self.ends = self.ends.wrapping_add(other.ends);
        self.min_offsets = self.min_offsets.wrapping_add(other.min_offsets);
    }

    pub(super) fn subtract(&mut self, other: QueueDigest) {
        self.max_offsets = self.max_offsets.wrapping_sub(other.max_offsets);
        self.ends = self.ends.wrapping_sub(other.ends);
        self.min_offsets = self.min_offsets.wrapping_sub(other.min_offsets);
    }
}

/// One consume queue. Lives on the reactor of its [`super::QueueStore`]. All offsets but physical ones are in units.
#[derive(Debug)]
pub struct Queue {
    pub(super) uid: u32,
    topic: Arc<str>,
    queue_id: i32,
    min: Cell<i64>,
    max: Cell<i64>,
    /// Where the record of the last unit ends; blank units do not count (in a stock broker they do, and stop its dispatch).
    end_physical: Cell<i64>,
    /// Physical offset of the unit at `min`, or -1 if not known: spares reading the file when the log is trimmed.
    pub(super) min_physical: Cell<i64>,
    /// Blank units go before the next written unit, from this offset; -1 = none.
    pub(super) blank_from: Cell<i64>,
    pub(super) memory: RefCell<Memory>,
    pub(super) dirty: Cell<bool>,
    pub(super) evictable: Cell<bool>,
    pub(super) removed: Cell<bool>,
}

/// The units of a queue that are in memory: `first .. max`, of which those below `written` are in the file too.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) units: VecDeque<RawUnit>,
    pub(super) first: i64,
    pub(super) written: i64,
}

impl Memory {
    /// Forgets up to `count` of the oldest units, but none that is not written. Returns the bytes given back.
    pub(super) fn forget(&mut self, count: usize) -> usize {
        let written = usize::try_from(self.written - self.first).unwrap_or(0);
        let count = count.min(written).min(self.units.len());
        self.units.drain(..count);
        self.first += count as i64;
        if self.units.is_empty() {
            self.units = VecDeque::new();
        }
        count * UNIT_BYTES
    }

    /// Number of units that are written and still here.
    pub(super) fn written_len(&self) -> usize {
        usize::try_from(self.written - self.first).unwrap_or(0).min(self.units.len())
    }
}

impl Queue {
    /// A queue as loaded, or an empty one: `min == max == 0`, `end_physical == 0`.
    pub(super) fn new(
        uid: u32,
        topic: Arc<str>,
        queue_id: i32,
        min: i64,
        max: i64,
        end_physical: i64,
    ) -> Self {
        Self {
            uid,
            topic,
            queue_id,
            min: Cell::new(min),
            max: Cell::new(max),
            end_physical: Cell::new(end_physical),
            min_physical: Cell::new(-1),
            blank_from: Cell::new(-1),
            memory: RefCell::new(Memory { units: VecDeque::new(), first: max, written: max }),
            dirty: Cell::new(false),
            evictable: Cell::new(false),
            removed: Cell::new(false),
        }
    }

    /// The topic.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// The queue within the topic.
    pub fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// First queue offset whose record is still in the log; equals `max_offset` if none is.
    pub fn min_offset(&self) -> i64 {
        self.min.get()
    }

    /// One past the last queue offset.
    pub fn max_offset(&self) -> i64 {
        self.max.get()
    }

    /// Where the record of the last unit ends in the log; 0 for an empty queue.
    pub fn end_physical(&self) -> i64 {
        self.end_physical.get()
    }

    /// This queue's part of a [`QueueDigest`].
    pub(super) fn digest(&self) -> QueueDigest {
        QueueDigest {
            max_offsets: self.max.get() as u64,
            ends: self.end_physical.get() as u64,
            min_offsets: self.min.get() as u64,
        }
    }

    /// Raises the first readable queue offset; it never falls and never passes the end.
    pub(super) fn raise_min(&self, min: i64, physical: i64) {
        if min > self.min.get() {
            self.min.set(min.min(self.max.get()));
        }
        self.min_physical.set(if self.min.get() == min { physical } else { -1 });
    }

    /// Takes a unit by stock's rules (4.9.8), with `file_units` units in a file. One deviation: queue offset 0 is protected
    /// against a second append like every other.
    pub(super) fn take(
        &self,
        queue_offset: i64,
        unit: Unit,
        file_units: i64,
        sums: &mut QueueDigest,
    ) -> Appended {
        if self.removed.get() || unit.physical_end() <= self.end_physical.get() {
            return Appended::Skipped;
        }
        let (before, max) = (self.digest(), self.max.get());
        let mut taken = Appended::Stored(queue_offset);
        if queue_offset != max {
            if queue_offset < max {
                return Appended::Skipped;
            }
            if max == 0 {
                self.start_at(queue_offset, file_units);
            } else {
                taken = Appended::Drifted(max);
            }
        }
        let mut memory = self.memory.borrow_mut();
        memory.units.push_back(unit.encode());
        drop(memory);
        if self.max.get() == self.min.get() {
            self.min_physical.set(unit.physical_offset);
        }
        let (max, end) = (self.max.get() + 1, unit.physical_end());
        self.max.set(max);
        self.end_physical.set(end);
        sums.subtract(before);
        // Not read again: that would wait for the writing.
        sums.add(QueueDigest {
            max_offsets: max as u64,
            ends: end as u64,
            min_offsets: self.min.get() as u64,
        });
        taken
    }

    /// An empty queue begins at `queue_offset`; its first file begins with blank units up to there.
    fn start_at(&self, queue_offset: i64, file_units: i64) {
        let file_start = queue_offset - queue_offset % file_units;
        if file_start < queue_offset {
            self.blank_from.set(file_start);
        }
        self.min.set(queue_offset);
        self.max.set(queue_offset);
        let mut memory = self.memory.borrow_mut();
        memory.first = queue_offset;
        memory.written = queue_offset;
    }

    /// Calls `visit` with the units from `from` on, in order, at most `limit`, until it says false. Returns false, without a
    /// call, if the first is not in memory.
    pub(super) fn visit(
        &self,
        from: i64,
        limit: usize,
        mut visit: impl FnMut(Unit) -> bool,
    ) -> bool {
        let memory = self.memory.borrow();
        let Ok(skip) = usize::try_from(from - memory.first) else {
            return false;
        };
        if skip > memory.units.len() {
            return false;
        }
        for raw in memory.units.range(skip..).take(limit) {
            if !visit(Unit::decode(raw)) {
                break;
            }
        }
        true
    }

    /// Forgets everything; the handle takes nothing from now on. Returns the bytes given back and how many of them were
    /// not written.
    pub(super) fn remove(&self) -> (usize, usize) {
        self.removed.set(true);
        let mut memory = self.memory.borrow_mut();
        let units = memory.units.len();
        let unwritten = units - memory.written_len();
        *memory = Memory::default();
        self.min.set(0);
        self.max.set(0);
        self.end_physical.set(0);
        (units * UNIT_BYTES, unwritten * UNIT_BYTES)
    }
}
