//! The recent blocks: first those that wait to be written, then, within a byte budget, those that were, because tail
//! consumers and HA read them without a copy.

use std::{collections::VecDeque, rc::Rc};

use super::block::{Block, BlockBuf, Slice};

/// Sealed blocks in log order. The last `queued` of them aren't written yet; the rest are hot.
pub(super) struct HotBlocks<B> {
    blocks: VecDeque<Block<B>>,
    queued: usize,
    /// Bytes of memory held by the written blocks.
    hot_bytes: usize,
    hot_bytes_max: usize,
}

impl<B: BlockBuf> HotBlocks<B> {
    pub(super) fn new(hot_bytes_max: usize) -> Self {
        Self { blocks: VecDeque::new(), queued: 0, hot_bytes: 0, hot_bytes_max }
    }

    /// Adds a sealed block behind all others.
    pub(super) fn push(&mut self, block: Block<B>) {
        self.blocks.push_back(block);
        self.queued += 1;
    }

    /// The newest sealed block.
    pub(super) fn last(&self) -> Option<&Block<B>> {
        self.blocks.back()
    }

    /// The block to write next.
    pub(super) fn first_queued(&self) -> Option<&Block<B>> {
        self.blocks.get(self.blocks.len() - self.queued)
    }

    /// The first queued block is on the device. A written block before it that starts at the same unit holds nothing
    /// that this one doesn't, so it goes.
    pub(super) fn first_queued_written(&mut self) {
        let at = self.blocks.len() - self.queued;
        let Some(block) = self.blocks.get(at) else { return };
        let base = block.base;
        self.hot_bytes += block.capacity;
        self.queued -= 1;
        let mut before = at;
        while before > 0 && self.blocks[before - 1].base == base {
            before -= 1;
            if let Some(superseded) = self.blocks.remove(before) {
                self.hot_bytes -= superseded.capacity;
            }
        }
        // The newest written block stays in any case: the next tail begins with its last partial unit.
        while self.hot_bytes > self.hot_bytes_max && self.blocks.len() - self.queued > 1 {
            if let Some(oldest) = self.blocks.pop_front() {
                self.hot_bytes -= oldest.capacity;
            }
        }
    }

    /// Bytes of memory held by written blocks.
    pub(super) fn hot_bytes(&self) -> usize {
        self.hot_bytes
    }

    /// Physical offset of the first byte in memory, if any.
    pub(super) fn first_offset(&self) -> Option<u64> {
        self.blocks.front().map(|block| block.base)
    }

    /// The block that holds the record at `offset` whole: the last one that starts at or before it, since a record in a
    /// unit that was written twice is whole in the later block as well.
    fn holder(&self, offset: u64) -> Option<&Block<B>> {
        let written = self.blocks.len() - self.queued;
        let after = self.blocks.partition_point(|block| block.base <= offset);
        self.blocks.get(after.min(written).checked_sub(1)?)
    }

    /// `[offset, offset + len)` if a written block holds all of it.
    pub(super) fn slice(&self, offset: u64, len: usize) -> Option<Slice> {
        self.holder(offset)?.slice(offset, len)
    }

    /// The bytes from `offset` on, at most `len_max`, as far as one written block goes; never empty.
    pub(super) fn slice_from(&self, offset: u64, len_max: usize) -> Option<Slice> {
        let block = self.holder(offset)?;
        let from = usize::try_from(offset.checked_sub(block.base)?).ok()?;
        let to = block.used.min(from.saturating_add(len_max));
        (from < to)
            .then(|| Slice { owner: Rc::clone(&block.buf) as Rc<dyn AsRef<[u8]>>, range: from..to })
    }
}
