//! The memory of log blocks: aligned for direct I/O, and used again.
//!
//! A busy shard fills blocks of a megabyte. From the allocator each would come as fresh pages, and 256 page faults a
//! megabyte cost more than the copies into it; so the last few full-size buffers of a reactor wait here for the next block.

use super::block::BlockBuf;
use glommio::io::DmaBuffer;
use std::{cell::RefCell, rc::Rc};

/// Smaller blocks are left to the allocator, which keeps their pages anyway.
const POOLED_BYTES_MIN: usize = 64 << 10;
/// Most memory that waits in one reactor's pool.
const POOL_BYTES_MAX: usize = 8 << 20;

thread_local! {
    static POOL: RefCell<Vec<DmaBuffer>> = const { RefCell::new(Vec::new()) };
}

/// One block's buffer. Heap memory under the log's own budget: glommio's registered pool stays at its minimum.
pub(crate) struct PooledBuf {
    /// Unique until the block is sealed; then shared with the write in flight. `None` only while it is dropped.
    buf: Option<Rc<DmaBuffer>>,
    trimmed: bool,
}

impl PooledBuf {
    /// What a device write takes.
    pub(crate) fn shared(&self) -> Option<Rc<DmaBuffer>> {
        self.buf.clone()
    }

    fn unique(&mut self) -> &mut DmaBuffer {
        match self.buf.as_mut().and_then(Rc::get_mut) {
            Some(buf) => buf,
            None => panic!("a block is changed only before it is sealed"),
        }
    }
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| buf.as_bytes())
    }
}

impl BlockBuf for PooledBuf {
    fn alloc(size: usize) -> Self {
        let pooled = POOL.with_borrow_mut(|pool| {
            let at = pool.iter().position(|buf| buf.len() == size)?;
            Some(pool.swap_remove(at))
        });
        let buf = pooled.unwrap_or_else(|| glommio::allocate_dma_buffer_global(size));
        PooledBuf { buf: Some(Rc::new(buf)), trimmed: false }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.unique().as_bytes_mut()
    }

    fn trim(&mut self, len: usize) {
        self.trimmed = true;
        self.unique().trim_to_size(len);
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        // A trimmed buffer can't grow back. If the device still holds it, whoever lets go last frees it.
        let whole = self.buf.take().filter(|_| !self.trimmed).and_then(Rc::into_inner);
        let Some(buf) = whole.filter(|buf| buf.len() >= POOLED_BYTES_MIN) else { return };
        // The pool may be gone when a thread ends.
        let _ = POOL.try_with(|pool| {
            let Ok(mut pool) = pool.try_borrow_mut() else { return };
            let held: usize = pool.iter().map(DmaBuffer::len).sum();
            if held + buf.len() <= POOL_BYTES_MAX {
                pool.push(buf);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 128 << 10;

    #[test]
    fn a_full_block_is_used_again_and_a_trimmed_or_shared_one_is_not() {
        POOL.with_borrow_mut(Vec::clear);
        let address = |buf: &PooledBuf| buf.as_ref().as_ptr() as usize;
        let first = PooledBuf::alloc(SIZE);
        let place = address(&first);
        drop(first);
        let mut again = PooledBuf::alloc(SIZE);
        assert_eq!(address(&again), place);
        again.trim(4096);
        drop(again);
        assert!(POOL.with_borrow(Vec::is_empty), "it can't grow back");

        let shared = PooledBuf::alloc(SIZE);
        let device = shared.shared();
        drop(shared);
        assert!(POOL.with_borrow(Vec::is_empty), "the device still reads it");
        drop(device);
    }

    #[test]
    fn the_pool_is_bounded() {
        POOL.with_borrow_mut(Vec::clear);
        let many: Vec<_> = (0..100).map(|_| PooledBuf::alloc(1 << 20)).collect();
        drop(many);
        assert_eq!(POOL.with_borrow(Vec::len), POOL_BYTES_MAX >> 20);
        POOL.with_borrow_mut(Vec::clear);
    }
}
