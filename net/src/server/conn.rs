//! One client connection as the service sees it: who it is, and where replies go.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use bytes::BytesMut;

use super::config::PortKind;
use super::hub::Hub;
use super::out::OutQueue;
use super::recv::RecvBuf;
use super::stats::CloseReason;

/// Queued bytes at which a push sends by itself instead of waiting for the end of the turn.
const SEND_EARLY_BYTES: usize = 256 * 1024;

/// A connection of the server. It belongs to the server's reactor; handlers keep an `Rc` as long as they owe a
/// reply, and a reply to a connection that ended meanwhile is dropped.
pub struct Conn {
    id: u64,
    peer: SocketAddr,
    port: PortKind,
    pub(super) hub: Rc<Hub>,
    /// -1 once the descriptor is closed, so that a late reply can't reach a stranger's socket.
    pub(super) fd: Cell<RawFd>,
    pub(super) out: RefCell<OutQueue>,
    pub(super) rx: RefCell<RecvBuf>,
    /// See [`Conn::mark`].
    mark: Cell<u64>,
    /// Set once; the connection's task then sends what it can, closes and tells the service.
    pub(super) closing: Cell<Option<CloseReason>>,
    /// Frames of this connection are being handled: the end of the turn sends.
    pub(super) in_turn: Cell<bool>,
    /// In the hub's dirty list.
    pub(super) dirty: Cell<bool>,
    pub(super) last_io_ms: Cell<u64>,
    /// Memory in its buffers as the hub knows it, and since when it is not 0.
    held_bytes: Cell<usize>,
    pub(super) held_since_ms: Cell<u64>,
    /// Frames handled.
    pub(super) frames: Cell<u64>,
    /// While draining: all replies have left and the peer was told so.
    pub(super) finished: Cell<bool>,
    pub(super) waker: RefCell<Option<Waker>>,
    /// Its requests are gathered: its own task does not receive.
    pub(super) held: Cell<bool>,
    /// Its last receive filled the buffer: it is not held back.
    pub(super) fast: Cell<bool>,
    /// Looks in a row that brought nothing.
    pub(super) silent_looks: Cell<u8>,
}

/// Ids are unique in the process, so that state of several reactors can be told apart in a log.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Conn {
    pub(super) fn new(hub: Rc<Hub>, fd: RawFd, peer: SocketAddr, port: PortKind) -> Rc<Self> {
        let now_ms = hub.now_ms();
        Rc::new(Conn {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            port,
            hub,
            fd: Cell::new(fd),
            out: RefCell::default(),
            rx: RefCell::default(),
            mark: Cell::new(0),
            closing: Cell::new(None),
            in_turn: Cell::new(false),
            dirty: Cell::new(false),
            last_io_ms: Cell::new(now_ms),
            held_bytes: Cell::new(0),
            held_since_ms: Cell::new(now_ms),
            frames: Cell::new(0),
            finished: Cell::new(false),
            waker: RefCell::new(None),
            held: Cell::new(false),
            fast: Cell::new(false),
            silent_looks: Cell::new(0),
        })
    }

    /// Unique in the process, never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The peer's address; an IPv4 peer of an IPv6 socket shows as IPv4.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The port it came in on.
    pub fn port(&self) -> PortKind {
        self.port
    }

    /// A number that the service keeps with the connection; 0 at first.
    pub fn mark(&self) -> u64 {
        self.mark.get()
    }

    /// Sets the [mark](Self::mark).
    pub fn set_mark(&self, mark: u64) {
        self.mark.set(mark);
    }

    /// True from the moment its end is decided; pushes are ignored from then on.
    pub fn is_closed(&self) -> bool {
        self.closing.get().is_some()
    }

    /// Whether its requests are gathered: [`Service::on_frame`](super::Service::on_frame) then runs in a turn of many connections, and
    /// [`Service::on_look`](super::Service::on_look) comes before the next one.
    pub fn is_gathered(&self) -> bool {
        self.held.get()
    }

    /// Reply bytes that have not left. Above `out_bytes_max` the connection isn't read; a handler that wakes
    /// many waiting pulls may look here first.
    pub fn out_bytes(&self) -> usize {
        self.out.borrow().bytes()
    }

    /// Queues the bytes that `f` appends. They leave at the end of the turn in one `sendmsg` with all others,
    /// or, outside a turn, at [`Server::flush_dirty`](super::Server::flush_dirty). `f` must not push itself.
    pub fn push(self: &Rc<Self>, f: impl FnOnce(&mut BytesMut)) {
        if !self.is_closed() {
            self.out.borrow_mut().push(&self.hub.bufs, f);
            self.pushed();
        }
    }

    /// Queues a slice without copying it, after what was pushed before. `owner` is kept until it has left.
    ///
    /// # Panics
    /// If `range` does not lie in `owner`.
    pub fn push_shared(self: &Rc<Self>, owner: Rc<dyn AsRef<[u8]>>, range: Range<usize>) {
        if !self.is_closed() {
            let pinned_max = self.hub.pinned_bytes_max();
            self.out.borrow_mut().push_shared(&self.hub.bufs, owner, range, pinned_max);
            self.pushed();
        }
    }

    /// Ends the connection after what is queued was offered to the socket once.
    pub fn close(&self, why: &str) {
        if !self.is_closed() {
            tracing::info!(conn = self.id, peer = %self.peer, why, "closing a connection");
            self.end(CloseReason::Service);
        }
    }

    /// Memory in this connection's buffers.
    pub(super) fn held(&self) -> usize {
        self.held_bytes.get()
    }

    /// Tells the hub what the buffers hold now.
    pub(super) fn account(&self) {
        let now = self.rx.borrow().memory() + self.out.borrow().memory();
        let before = self.held_bytes.replace(now);
        if now != before {
            self.hub.hold(before, now);
            if before == 0 {
                self.held_since_ms.set(self.hub.now_ms());
            }
        }
    }

    /// Drops what the buffers hold: the connection is at its end.
    pub(super) fn drop_buffers(&self) {
        self.out.borrow_mut().clear(&self.hub.bufs);
        self.rx.take();
        self.account();
    }

    fn pushed(self: &Rc<Self>) {
        self.account();
        let (bytes, blocked) = {
            let out = self.out.borrow();
            (out.bytes(), out.is_blocked())
        };
        if bytes > self.hub.config.out_bytes_cap && blocked {
            if let Some(left_out) = self.hub.slow_lines.allow(self.hub.now_ms()) {
                tracing::warn!(conn = self.id, peer = %self.peer, bytes, left_out,
                    "closing a connection that takes no replies");
            }
            self.end(CloseReason::SlowReader);
        } else if bytes >= SEND_EARLY_BYTES && !blocked {
            self.flush();
        } else if !self.in_turn.get() && !blocked && !self.dirty.replace(true) {
            self.hub.add_dirty(self.clone());
        }
    }

    /// Sends what the socket takes now. The connection's task carries on when the socket was full.
    pub(super) fn flush(&self) {
        let fd = self.fd.get();
        if fd < 0 {
            return;
        }
        let mut out = self.out.borrow_mut();
        if out.bytes() == 0 || out.is_blocked() {
            return;
        }
        let before = out.bytes();
        let result = out.send(fd, &self.hub.bufs, &self.hub.count);
        if out.bytes() < before {
            self.last_io_ms.set(self.hub.now_ms());
        }
        let blocked = out.is_blocked();
        drop(out);
        self.account();
        if result.is_err() {
            self.end(CloseReason::Error);
        } else if blocked && !self.in_turn.get() {
            self.wake();
        }
    }

    /// Decides the end, once; the task does the rest.
    pub(super) fn end(&self, reason: CloseReason) {
        if self.closing.get().is_none() {
            self.closing.set(Some(reason));
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn")
            .field("id", &self.id)
            .field("peer", &self.peer)
            .field("port", &self.port)
            .field("closing", &self.closing.get())
            .finish_non_exhaustive()
    }
}
