//! What the connections of one server share: limits, counters, buffers, the clock and the list of those with
//! unsent replies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use super::config::ServerConfig;
use super::conn::Conn;
use super::out::{BufPool, PINNED_BYTES_MAX};
use super::recv::LargePool;
use super::stats::{Counters, LineLimit};

/// The receive buffer that connections share. A frame that fits is received into it.
pub(crate) const SCRATCH_BYTES: usize = 256 * 1024;
/// Bytes that one receive brings at most, and so the bytes handled per turn, unless a frame needs more: enough for 64 requests of
/// 1 KiB, and little enough that the round is short when many connections push as fast as they can.
pub(crate) const RECEIVE_BYTES: usize = 96 * 1024;

/// Unsent reply bytes with which a connection is still read while memory is tight.
const TIGHT_OUT_BYTES: usize = 64 * 1024;

pub(crate) struct Hub {
    pub(crate) config: ServerConfig,
    pub(crate) count: Counters,
    pub(crate) bufs: BufPool,
    pub(crate) large: LargePool,
    pub(crate) malformed_lines: LineLimit,
    pub(crate) tls_lines: LineLimit,
    pub(crate) refused_lines: LineLimit,
    pub(crate) accept_lines: LineLimit,
    pub(crate) slow_lines: LineLimit,
    pub(crate) memory_lines: LineLimit,
    /// Memory that connections hold in buffers, over all of them.
    held: Cell<usize>,
    started: Instant,
    /// The receive buffer that all connections share: frames are handled in it before the next receive.
    scratch: Cell<Vec<u8>>,
    dirty: RefCell<Vec<Rc<Conn>>>,
    /// The swapped-out list, kept for its allocation.
    dirty_spare: Cell<Vec<Rc<Conn>>>,
    flusher: RefCell<Option<Waker>>,
}

impl Hub {
    pub(crate) fn new(config: ServerConfig) -> Rc<Self> {
        Rc::new(Hub {
            config,
            count: Counters::default(),
            bufs: BufPool::default(),
            large: LargePool::default(),
            malformed_lines: LineLimit::default(),
            tls_lines: LineLimit::default(),
            refused_lines: LineLimit::default(),
            accept_lines: LineLimit::default(),
            slow_lines: LineLimit::default(),
            memory_lines: LineLimit::default(),
            held: Cell::new(0),
            started: Instant::now(),
            scratch: Cell::default(),
            dirty: RefCell::default(),
            dirty_spare: Cell::default(),
            flusher: RefCell::new(None),
        })
    }

    /// Monotonic milliseconds since the server started.
    pub(crate) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Memory that connections hold in buffers.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    /// A connection that held `before` holds `now`.
    pub(crate) fn hold(&self, before: usize, now: usize) {
        self.held.set((self.held.get() + now).saturating_sub(before));
    }

    /// Whether so much is held that nobody may hold much any more.
    pub(crate) fn is_tight(&self) -> bool {
        self.held.get() > self.config.held_bytes_max / 2
    }

    /// Unsent reply bytes beyond which a connection is not read now.
    pub(crate) fn out_bytes_max(&self) -> usize {
        let max = self.config.out_bytes_max;
        if self.is_tight() { max.min(TIGHT_OUT_BYTES) } else { max }
    }

    /// Memory of blocks that the replies of one connection may keep alive now.
    pub(crate) fn pinned_bytes_max(&self) -> usize {
        if self.is_tight() { 0 } else { PINNED_BYTES_MAX }
    }

    /// The shared receive buffer; give it back with [`put_scratch`](Self::put_scratch).
    pub(crate) fn take_scratch(&self) -> Vec<u8> {
        let mut scratch = self.scratch.take();
        scratch.resize(SCRATCH_BYTES, 0);
        scratch
    }

    pub(crate) fn put_scratch(&self, scratch: Vec<u8>) {
        self.scratch.set(scratch);
    }

    /// Puts a connection on the dirty list. The flusher task is woken for the first one, so that a reply can't
    /// stay for ever when nobody calls `flush_dirty`.
    pub(crate) fn add_dirty(&self, conn: Rc<Conn>) {
        let mut dirty = self.dirty.borrow_mut();
        if dirty.is_empty()
            && let Some(waker) = &*self.flusher.borrow()
        {
            waker.wake_by_ref();
        }
        dirty.push(conn);
    }

    /// Sends what was pushed outside read turns: one `sendmsg` per connection that has something.
    pub(crate) fn flush_dirty(&self) {
        if self.dirty.borrow().is_empty() {
            return;
        }
        let mut list = self.dirty.replace(self.dirty_spare.take());
        for conn in list.drain(..) {
            conn.dirty.set(false);
            conn.flush();
        }
        self.dirty_spare.set(list);
    }

    /// Remembers whom [`add_dirty`](Self::add_dirty) wakes.
    pub(crate) fn set_flusher(&self, waker: Option<Waker>) {
        *self.flusher.borrow_mut() = waker;
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.borrow().is_empty()
    }
}
