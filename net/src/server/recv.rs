//! Received bytes of one connection that make no whole frame yet.
//!
//! Most receives go into the server's shared scratch buffer and their frames are handled right there; only the
//! tail of an incomplete frame is kept here. A frame that does not fit the scratch buffer is received in place,
//! into memory that grows with the bytes that have really arrived: a claimed length alone costs nothing.

use std::cell::RefCell;

use super::hub::SCRATCH_BYTES;

/// A kept tail up to this size is copied in front of the next receive, instead of receiving behind it.
const TAIL_COPY_BYTES: usize = 32 * 1024;
/// The least that is received in place at once.
const GROW_BYTES_MIN: usize = 64 * 1024;
/// Buffers above this size go back to the pool as soon as they are empty.
const KEEP_BYTES: usize = 64 * 1024;

/// Large buffers kept for reuse per server, so that a stream of large frames does not fault in fresh memory.
const LARGE_BUFFERS: usize = 4;
const LARGE_BYTES_MAX: usize = 8 << 20;

/// Large receive buffers between uses.
#[derive(Default)]
pub(crate) struct LargePool {
    free: RefCell<Vec<Vec<u8>>>,
}

impl LargePool {
    /// The smallest kept buffer of at least `bytes`.
    fn take(&self, bytes: usize) -> Option<Vec<u8>> {
        let mut free = self.free.borrow_mut();
        let fits = free.iter().enumerate().filter(|(_, b)| b.len() >= bytes);
        let best = fits.min_by_key(|(_, b)| b.len()).map(|(i, _)| i)?;
        Some(free.swap_remove(best))
    }

    fn put(&self, buf: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if free.len() < LARGE_BUFFERS && buf.len() <= LARGE_BYTES_MAX {
            free.push(buf);
        }
    }
}

/// The kept bytes: `buf[..len]`. `buf[len..]` is initialised room.
#[derive(Default)]
pub(crate) struct RecvBuf {
    buf: Vec<u8>,
    len: usize,
    /// Bytes the frame at the start needs in whole; 0 when nothing is kept.
    need: usize,
    /// Handling stopped before the bytes were used up: there may be whole frames.
    pub(crate) unhandled: bool,
}

impl RecvBuf {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// Bytes the frame at the start needs in whole, as told last.
    pub(crate) fn need(&self) -> usize {
        self.need
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> usize {
        self.buf.capacity()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the next receive should go into the scratch buffer, behind a copy of what is kept.
    pub(crate) fn wants_scratch(&self) -> bool {
        self.len <= TAIL_COPY_BYTES && self.need <= SCRATCH_BYTES
    }

    /// Room for an in-place receive, which never exceeds what the current frame still needs. It doubles with the
    /// bytes that arrived.
    pub(crate) fn room(&mut self, pool: &LargePool) -> &mut [u8] {
        if self.buf.len() == self.len {
            let target = self.need.max(self.len + 1).min((2 * self.len).max(GROW_BYTES_MIN));
            match pool.take(self.need.max(target)) {
                Some(mut larger) => {
                    larger[..self.len].copy_from_slice(&self.buf[..self.len]);
                    self.buf = larger;
                }
                None => self.buf.resize(target, 0),
            }
        }
        let end = self.need.max(self.len + 1).min(self.buf.len());
        &mut self.buf[self.len..end]
    }

    /// `n` bytes were received into [`room`](Self::room).
    pub(crate) fn filled(&mut self, n: usize) {
        self.len += n;
        assert!(self.len <= self.buf.len(), "more bytes received than there was room");
    }

    /// Keeps `tail`, the start of a frame that needs `need` bytes, from a foreign buffer.
    pub(crate) fn keep(&mut self, tail: &[u8], need: usize) {
        if self.buf.len() < tail.len() {
            // Powers of two from 512 bytes: a peer that trickles bytes holds little memory.
            self.buf.resize(tail.len().next_power_of_two().max(512), 0);
        }
        self.buf[..tail.len()].copy_from_slice(tail);
        self.len = tail.len();
        self.need = need;
    }

    /// Drops the first `n` kept bytes; the frame behind them needs `need` bytes.
    pub(crate) fn consume(&mut self, n: usize, need: usize, pool: &LargePool) {
        self.buf.copy_within(n..self.len, 0);
        self.len -= n;
        self.need = need;
        if self.buf.len() > KEEP_BYTES && self.need.max(self.len) <= KEEP_BYTES {
            let large = std::mem::take(&mut self.buf);
            let len = self.len;
            self.keep(&large[..len], need);
            pool.put(large);
        }
    }

    /// Lets an idle connection hold no memory.
    pub(crate) fn shrink(&mut self) {
        if self.len == 0 {
            self.buf = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_arrived_bytes_not_with_the_claim() {
        let pool = LargePool::default();
        let mut rx = RecvBuf::default();
        rx.keep(&[0; 100], 16 << 20);
        assert!(!rx.wants_scratch());
        let mut arrived = 100;
        while arrived < 16 << 20 {
            let room = rx.room(&pool).len();
            assert!(arrived + room <= (2 * arrived).max(GROW_BYTES_MIN));
            assert!(arrived + room <= 16 << 20);
            let n = room.min(5000);
            rx.filled(n);
            arrived += n;
        }
        assert_eq!(rx.bytes().len(), 16 << 20);
        rx.consume(16 << 20, 0, &pool);
        assert!(rx.is_empty() && rx.buf.len() <= KEEP_BYTES);
    }

    #[test]
    fn a_large_buffer_is_reused_and_the_tail_behind_it_kept() {
        let pool = LargePool::default();
        let mut rx = RecvBuf::default();
        rx.keep(&[7; 40_000], 1 << 20);
        while rx.bytes().len() < 1 << 20 {
            let n = rx.room(&pool).len();
            rx.filled(n);
        }
        let at = rx.buf.as_ptr();
        rx.consume((1 << 20) - 10, 4, &pool);
        assert_eq!(rx.bytes().len(), 10);
        assert!(rx.buf.len() <= 512);
        let mut other = RecvBuf::default();
        other.keep(&[7; 40_000], 1 << 20);
        other.keep(&vec![9; other.buf.len()], 1 << 20);
        other.room(&pool);
        assert_eq!(other.buf.as_ptr(), at);
        assert!(other.bytes().iter().all(|b| *b == 9));
    }
}
