//! The bytes of one connection that have not left yet, gathered into as few `sendmsg` calls as possible.
//!
//! ```text
//!   pieces:  [ Own: reply heads, acks ][ Shared: pull body in a hot block ][ Own: the next heads ] ...
//!             ^ head_sent
//! ```
//!
//! glommio writes only the first slice of a vectored write, so this calls `sendmsg` on the descriptor.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::Rc;

use bytes::BytesMut;

use super::stats::{Counters, add};

/// Slices per `sendmsg`; far below the kernel's 1,024, and on the stack.
const IOV_MAX: usize = 64;
/// An own piece that reached this size is followed by a new one, so that growing it never copies much.
const OWN_PIECE_BYTES: usize = 128 * 1024;
/// A shared slice up to this size is copied: a copy is cheaper than a slice of its own.
const SHARED_COPY_BYTES: usize = 512;
/// Memory that the shared slices of one connection may keep alive. A slice keeps its whole block: beyond this it is copied
/// instead, so that a peer that takes nothing cannot hold a block with every small reply.
pub(crate) const PINNED_BYTES_MAX: usize = 16 << 20;
/// Reply buffers kept for reuse per server, and the largest that is kept.
const POOL_BUFFERS: usize = 64;
const POOL_BUFFER_BYTES: usize = 2 * OWN_PIECE_BYTES;

/// Reply buffers between uses. In steady state a reply costs no allocation, and an idle connection holds none.
#[derive(Default)]
pub(crate) struct BufPool {
    free: RefCell<Vec<BytesMut>>,
}

impl BufPool {
    fn take(&self) -> BytesMut {
        self.free.borrow_mut().pop().unwrap_or_else(|| BytesMut::with_capacity(4096))
    }

    fn put(&self, mut buf: BytesMut) {
        let mut free = self.free.borrow_mut();
        if free.len() < POOL_BUFFERS && buf.capacity() <= POOL_BUFFER_BYTES {
            buf.clear();
            free.push(buf);
        }
    }
}

enum Piece {
    Own(BytesMut),
    Shared {
        owner: Rc<dyn AsRef<[u8]>>,
        range: Range<usize>,
        /// Bytes of the owner, if no slice before this one counts them.
        pinned: usize,
    },
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(buf) => buf,
            // The range was checked against the owner when it was pushed.
            Piece::Shared { owner, range, .. } => {
                (**owner).as_ref().get(range.clone()).unwrap_or_default()
            }
        }
    }
}

/// What waits to be sent on one connection, in order.
#[derive(Default)]
pub(crate) struct OutQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have left.
    head_sent: usize,
    /// Bytes that have not left, over all pieces.
    bytes: usize,
    /// Bytes of the blocks that shared slices keep alive.
    pinned: usize,
    /// The socket took less than it was given; nothing is sent until it is writable again.
    blocked: bool,
}

impl OutQueue {
    /// Unsent bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory that is held for what is unsent.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.pinned
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Appends what `f` writes.
    pub(crate) fn push(&mut self, pool: &BufPool, f: impl FnOnce(&mut BytesMut)) {
        if !matches!(self.pieces.back(), Some(Piece::Own(buf)) if buf.len() < OWN_PIECE_BYTES) {
            self.pieces.push_back(Piece::Own(pool.take()));
        }
        if let Some(Piece::Own(buf)) = self.pieces.back_mut() {
            let before = buf.len();
            f(buf);
            assert!(buf.len() >= before, "a reply encoder removed bytes of earlier replies");
            self.bytes += buf.len() - before;
        }
    }

    /// Appends a slice of shared memory; it stays alive until it has left. It is copied if it is small, or if this queue would
    /// keep more than `pinned_max` bytes of blocks alive.
    pub(crate) fn push_shared(
        &mut self,
        pool: &BufPool,
        owner: Rc<dyn AsRef<[u8]>>,
        range: Range<usize>,
        pinned_max: usize,
    ) {
        let whole = (*owner).as_ref();
        let slice = &whole[range.clone()];
        let pinned = if self.last_owner_is(&owner) { 0 } else { whole.len() };
        if slice.len() <= SHARED_COPY_BYTES || self.pinned + pinned > pinned_max {
            self.push(pool, |buf| buf.extend_from_slice(slice));
        } else {
            self.bytes += slice.len();
            self.pinned += pinned;
            self.pieces.push_back(Piece::Shared { owner, range, pinned });
        }
    }

    /// Whether the last shared slice is of this block.
    fn last_owner_is(&self, owner: &Rc<dyn AsRef<[u8]>>) -> bool {
        // A reply is a head and its slices: the last one is near the end.
        let last = self.pieces.iter().rev().find_map(|piece| match piece {
            Piece::Shared { owner, .. } => Some(owner),
            Piece::Own(_) => None,
        });
        last.is_some_and(|last| Rc::ptr_eq(last, owner))
    }

    /// A slice has left; the next one of the same block counts it from now on.
    fn unpin(&mut self, gone: &Rc<dyn AsRef<[u8]>>, bytes: usize) {
        let next = self.pieces.iter_mut().find_map(|piece| match piece {
            Piece::Shared { owner, pinned, .. } => Some((owner, pinned)),
            Piece::Own(_) => None,
        });
        match next {
            Some((owner, pinned)) if *pinned == 0 && Rc::ptr_eq(owner, gone) => *pinned = bytes,
            _ => self.pinned -= bytes,
        }
    }

    /// The first unsent slice; empty if there is none.
    pub(crate) fn first(&self) -> &[u8] {
        match self.pieces.front() {
            Some(piece) => piece.bytes().get(self.head_sent..).unwrap_or_default(),
            None => &[],
        }
    }

    /// The socket is writable again and took `n` bytes of [`first`](Self::first).
    pub(crate) fn unblock(&mut self, n: usize, pool: &BufPool) {
        self.blocked = false;
        self.advance(n, pool);
    }

    /// Sends until nothing is left or the socket takes no more.
    ///
    /// # Errors
    /// What `sendmsg` failed with; the connection is then of no use.
    pub(crate) fn send(&mut self, fd: RawFd, pool: &BufPool, count: &Counters) -> io::Result<()> {
        while self.bytes > 0 && !self.blocked {
            let (sent, wanted) = self.send_once(fd)?;
            add(&count.send_calls, 1);
            add(&count.bytes_out, sent as u64);
            self.advance(sent, pool);
            if sent < wanted {
                self.blocked = true;
                add(&count.send_blocked, 1);
            }
        }
        Ok(())
    }

    /// One `sendmsg`: bytes taken (0 when the socket is full) and bytes offered.
    fn send_once(&self, fd: RawFd) -> io::Result<(usize, usize)> {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut slices = [empty; IOV_MAX];
        let mut used = 0;
        let mut wanted = 0;
        for (i, piece) in self.pieces.iter().enumerate() {
            if used == IOV_MAX {
                break;
            }
            let skip = if i == 0 { self.head_sent } else { 0 };
            let bytes = piece.bytes().get(skip..).unwrap_or_default();
            if bytes.is_empty() {
                continue;
            }
            slices[used] =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            used += 1;
            wanted += bytes.len();
        }
        loop {
            // SAFETY: an all-zero msghdr is valid; the slices point into pieces that `self` keeps alive and
            // unchanged during the call, and sendmsg only reads them.
            let sent = unsafe {
                let mut msg: libc::msghdr = std::mem::zeroed();
                msg.msg_iov = slices.as_mut_ptr();
                msg.msg_iovlen = used as _;
                libc::sendmsg(fd, &msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            };
            if sent >= 0 {
                return Ok((sent as usize, wanted));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok((0, wanted)),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }

    fn advance(&mut self, mut n: usize, pool: &BufPool) {
        assert!(n <= self.bytes, "the kernel took more bytes than were queued");
        self.bytes -= n;
        while let Some(front) = self.pieces.front() {
            let left = front.bytes().len() - self.head_sent;
            if n < left {
                self.head_sent += n;
                break;
            }
            n -= left;
            self.head_sent = 0;
            match self.pieces.pop_front() {
                Some(Piece::Own(buf)) => pool.put(buf),
                Some(Piece::Shared { owner, pinned, .. }) if pinned > 0 => {
                    self.unpin(&owner, pinned);
                }
                _ => {}
            }
        }
    }

    /// Drops what is unsent and gives buffers back.
    pub(crate) fn clear(&mut self, pool: &BufPool) {
        for piece in self.pieces.drain(..) {
            if let Piece::Own(buf) = piece {
                pool.put(buf);
            }
        }
        *self = OutQueue::default();
    }

    /// Lets an idle connection hold no memory.
    pub(crate) fn shrink(&mut self) {
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn pieces_leave_whole_and_in_order_whatever_the_socket_takes() {
        let (tx, mut rx) = UnixStream::pair().unwrap();
        tx.set_nonblocking(true).unwrap();
        let pool = BufPool::default();
        let count = Counters::default();
        let mut queue = OutQueue::default();
        let mut expected = Vec::new();
        let block: Rc<dyn AsRef<[u8]>> =
            Rc::new((0..2_000_000u32).map(|i| (i % 251) as u8).collect::<Vec<u8>>());
        for i in 0..300usize {
            let head = vec![i as u8; 1 + i * 37 % 3000];
            queue.push(&pool, |buf| buf.extend_from_slice(&head));
            expected.extend_from_slice(&head);
            let range = i * 11..i * 11 + (i * 7919) % 20_000;
            queue.push_shared(&pool, block.clone(), range.clone(), PINNED_BYTES_MAX);
            expected.extend_from_slice(&(*block).as_ref()[range]);
        }
        assert_eq!(queue.bytes(), expected.len());
        let mut got = Vec::new();
        let mut chunk = vec![0; 100_000];
        let mut blocked = 0;
        while got.len() < expected.len() {
            queue.send(tx.as_raw_fd(), &pool, &count).unwrap();
            if queue.is_blocked() {
                blocked += 1;
                queue.unblock(0, &pool);
            }
            let n = rx.read(&mut chunk).unwrap();
            got.extend_from_slice(&chunk[..n]);
        }
        assert!(got == expected);
        assert!(blocked > 0, "the test did not fill the socket");
        assert_eq!(queue.bytes(), 0);
        assert!(queue.pieces.is_empty());
        assert_eq!(queue.memory(), 0);
        assert_eq!(count.bytes_out.get(), expected.len() as u64);
    }

    #[test]
    fn a_peer_that_takes_nothing_keeps_few_blocks_alive() {
        let pool = BufPool::default();
        let mut queue = OutQueue::default();
        let blocks: Vec<Rc<dyn AsRef<[u8]>>> =
            (0..100).map(|_| Rc::new(vec![7u8; 1 << 20]) as Rc<dyn AsRef<[u8]>>).collect();
        let mut bytes = 0;
        for block in &blocks {
            for at in [0, 4_000] {
                queue.push(&pool, |buf| buf.extend_from_slice(b"head"));
                queue.push_shared(&pool, block.clone(), at..at + 3_000, PINNED_BYTES_MAX);
                bytes += 3_004;
            }
        }
        let kept = |blocks: &[Rc<dyn AsRef<[u8]>>]| {
            blocks.iter().filter(|block| Rc::strong_count(block) > 1).count()
        };
        assert_eq!(kept(&blocks), 16);
        assert_eq!((queue.bytes(), queue.memory()), (bytes, bytes + (16 << 20)));
        // The first slice of the first block leaves: the second one keeps it, and counts it.
        queue.advance(3_004, &pool);
        assert_eq!((kept(&blocks), queue.memory() - queue.bytes()), (16, 16 << 20));
        queue.advance(3_004, &pool);
        assert_eq!((kept(&blocks), queue.memory() - queue.bytes()), (15, 15 << 20));
        queue.clear(&pool);
        assert_eq!((kept(&blocks), queue.memory()), (0, 0));
    }

    #[test]
    fn reply_buffers_are_reused() {
        let (tx, mut rx) = UnixStream::pair().unwrap();
        let pool = BufPool::default();
        let count = Counters::default();
        let mut queue = OutQueue::default();
        let mut addresses = Vec::new();
        let mut chunk = [0; 64];
        for _ in 0..10 {
            queue.push(&pool, |buf| {
                addresses.push(buf.as_ptr() as usize);
                buf.extend_from_slice(b"reply");
            });
            queue.send(tx.as_raw_fd(), &pool, &count).unwrap();
            assert_eq!(rx.read(&mut chunk).unwrap(), 5);
        }
        assert!(addresses.iter().all(|a| *a == addresses[0]));
        assert_eq!(count.send_calls.get(), 10);
    }
}
