//! Blocks: the memory that records are encoded into, that goes to the device, and that readers read.
//!
//! ```text
//!   log      ...|record|record|rec.....ord|record|
//!   block k     [-------- sealed --------|0000]          written whole, immutable, read by consumers
//!   block k+1                        [copy|ord|rec...     the open tail; `copy` is the last partial unit of block k
//!                                    ^ unit boundary
//! ```

use std::{ops::Range, rc::Rc};

use ringmq_net::prefetch::prefetch;

/// What the log writes in, in bytes, whatever alignment a device reports.
pub const UNIT: usize = 4096;

/// The unit as an offset.
pub(super) const UNIT_U64: u64 = UNIT as u64;

/// Start of the unit that holds `offset`.
pub(super) fn unit_floor(offset: u64) -> u64 {
    offset - offset % UNIT_U64
}

/// End of the last unit that holds a byte below `offset`.
pub(super) fn unit_ceil(offset: u64) -> u64 {
    unit_floor(offset + UNIT_U64 - 1)
}

/// Memory for one block. The shell's is aligned for direct I/O; the simulator's is a `Vec`.
pub trait BlockBuf: AsRef<[u8]> + 'static {
    /// Memory of exactly `size` bytes, a multiple of [`UNIT`], with any content.
    fn alloc(size: usize) -> Self;
    /// All of it, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Shortens it to its first `len` bytes (a multiple of [`UNIT`], at most the present length), for good.
    fn trim(&mut self, len: usize);
}

/// Bytes of the log in shared memory. They never change; whoever holds the slice keeps them alive.
#[derive(Clone)]
pub struct Slice {
    /// The memory.
    pub owner: Rc<dyn AsRef<[u8]>>,
    /// Where in it the bytes are.
    pub range: Range<usize>,
}

impl Slice {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or(&[])
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slice").field("range", &self.range).finish_non_exhaustive()
    }
}

/// The open block at the end of the log: the only memory that changes.
pub(super) struct Tail<B> {
    buf: B,
    /// Physical offset of the first byte; a multiple of [`UNIT`].
    base: u64,
    /// Physical offset of the first byte that no earlier block holds.
    fresh: u64,
    /// Bytes used, from `base`.
    used: usize,
    /// Start of the newest append, a boundary between records.
    append_start: u64,
}

impl<B: BlockBuf> Tail<B> {
    /// An open block of `size` bytes whose first bytes are `copy`, the last partial unit before `fresh`.
    pub(super) fn open(fresh: u64, copy: &[u8], size: usize) -> Self {
        let base = unit_floor(fresh);
        assert_eq!(base + copy.len() as u64, fresh, "a block starts with the whole partial unit");
        let mut buf = B::alloc(size);
        assert_eq!(buf.as_ref().len(), size, "a block buffer has the size asked for");
        buf.bytes_mut()[..copy.len()].copy_from_slice(copy);
        Self { buf, base, fresh, used: copy.len(), append_start: fresh }
    }

    /// Physical offset of the first byte.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Physical offset of the next free byte.
    pub(super) fn end(&self) -> u64 {
        self.base + self.used as u64
    }

    /// Free bytes.
    pub(super) fn room(&self) -> usize {
        self.buf.as_ref().len() - self.used
    }

    /// Whether it holds bytes that no earlier block holds.
    pub(super) fn is_dirty(&self) -> bool {
        self.end() > self.fresh
    }

    /// Reserves the next `len` bytes; the caller has checked the room.
    pub(super) fn take(&mut self, len: usize) -> (&mut [u8], u64) {
        let start = self.end();
        let from = self.used;
        self.used += len;
        self.append_start = start;
        let (taken, free) = self.buf.bytes_mut()[from..].split_at_mut(len);
        // Memory that was last used long ago: without this, the next append waits for it. What comes next is likely as long as this.
        prefetch(&free[..free.len().min(len)]);
        (taken, start)
    }

    /// The next `len` bytes at most, to be filled before [`Tail::took`].
    pub(super) fn spare(&mut self, len: usize) -> &mut [u8] {
        let from = self.used;
        let to = from.saturating_add(len).min(self.buf.as_ref().len());
        &mut self.buf.bytes_mut()[from..to]
    }

    /// The first `len` of the spare bytes are used. `boundary` is the last boundary between records at or before their end.
    pub(super) fn took(&mut self, len: usize, boundary: u64) {
        self.used += len;
        self.append_start = boundary;
    }

    /// Pads with zeros to the unit and makes it immutable. `end` is where the log goes on: the end of the last
    /// record, or the next segment's start if that record is BLANK.
    pub(super) fn seal(mut self, end: u64) -> Block<B> {
        let capacity = self.buf.as_ref().len();
        let padded = self.used.next_multiple_of(UNIT);
        self.buf.bytes_mut()[self.used..padded].fill(0);
        if padded < capacity {
            self.buf.trim(padded);
        }
        Block {
            base: self.base,
            fresh: self.fresh,
            end,
            used: self.used,
            append_start: self.append_start,
            capacity,
            buf: Rc::new(self.buf),
        }
    }
}

/// A sealed block: padded to the unit, immutable, on its way to the device or there.
pub(super) struct Block<B> {
    /// Physical offset of the first byte; a multiple of [`UNIT`].
    pub(super) base: u64,
    /// Physical offset of the first byte that no earlier block holds.
    pub(super) fresh: u64,
    /// Where the log goes on after it.
    pub(super) end: u64,
    /// Bytes of records, from `base`; the rest is padding.
    pub(super) used: usize,
    /// Start of the newest append in it.
    pub(super) append_start: u64,
    /// Bytes of memory it holds.
    pub(super) capacity: usize,
    /// The memory.
    pub(super) buf: Rc<B>,
}

impl<B: BlockBuf> Block<B> {
    /// Bytes that go to the device.
    pub(super) fn padded(&self) -> usize {
        self.buf.as_ref().as_ref().len()
    }

    /// Physical offset behind the last byte that goes to the device.
    pub(super) fn padded_end(&self) -> u64 {
        self.base + self.padded() as u64
    }

    /// The last partial unit, which the next block begins with; empty if the block ends at a unit boundary or its
    /// segment.
    pub(super) fn partial_unit(&self) -> &[u8] {
        if self.end != self.base + self.used as u64 {
            return &[];
        }
        &self.buf.as_ref().as_ref()[self.used - self.used % UNIT..self.used]
    }

    /// Bytes `[offset, offset + len)` if all of them are records (or BLANK) in this block.
    pub(super) fn slice(&self, offset: u64, len: usize) -> Option<Slice> {
        let from = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.used)
            .then(|| Slice { owner: Rc::clone(&self.buf) as Rc<dyn AsRef<[u8]>>, range: from..to })
    }
}
