//! The glommio server: listeners, connections, and the replies' way out.
//!
//! ```text
//!   listener task --accept--> connection task ---turn---+
//!                                                       |  recv into the shared scratch buffer
//!                                                       |  peek frame, decode header, Service::on_frame ... (all frames)
//!                                                       |  Service::on_turn_end   (the log writer is kicked here)
//!                                                       |  one sendmsg with all replies that are ready
//!   log write completed --> Conn::push ... --> Server::flush_dirty: one sendmsg per connection
//! ```
//!
//! One task per connection and none per request. Everything lives on one reactor. Run the server in a task queue
//! with `Latency::Matters`: then readiness of a socket preempts a task that runs long, instead of waiting for
//! glommio's 100 ms preemption timer.
//!
//! Bounds: connections (`conns_max`, answered by a close), unsent reply bytes per connection (`out_bytes_max`,
//! answered by not reading; `out_bytes_cap`, answered by a close), what all connections hold (`held_bytes_max`, answered by
//! closing those that hold the most), frame length (a close), silence (`idle`, a close).

mod config;
mod conn;
mod gather;
mod governor;
mod hub;
mod listener;
mod memory;
pub(crate) mod out;
pub(crate) mod recv;
pub(crate) mod stats;
mod turn;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_lite::future::{or, poll_fn};
use glommio::timer::sleep;
use rustc_hash::FxHashMap;

pub use config::{Gathering, Listen, PortKind, ServerConfig};
pub use conn::Conn;
use gather::Gather;
use hub::Hub;
pub use stats::{CLOSE_REASONS, CloseReason, ServerStats};

use crate::header::{HeaderDecoder, HeaderView};
use stats::add;

/// How long a drain waits for peers to close after all replies have left.
const DRAIN_LINGER: Duration = Duration::from_millis(200);
/// Upper bound between two looks for idle connections.
const IDLE_SCAN: Duration = Duration::from_secs(5);
/// A connection without traffic this long gives its buffers back.
const SHRINK_AFTER_MS: u64 = 5_000;

/// What handles requests. All calls come from the server's reactor, synchronously; they must not block.
pub trait Service: 'static {
    /// A whole frame; those of one connection come in the order they were sent. Answer through `conn`, now or
    /// later, or never.
    fn on_frame(&self, conn: &Rc<Conn>, header: &HeaderView<'_>, body: &[u8]);
    /// All frames of a turn have been handled: those that one receive brought, or, where requests are gathered, those of many connections.
    fn on_turn_end(&self) {}
    /// The connections whose requests are gathered are about to be looked at, or are not gathered any more: what was put off since the
    /// last look has waited as long as it may.
    fn on_look(&self) {}
    /// How much has been done for clients since the start, in whatever they came for (messages, say). It tells whether clients get less
    /// while requests are gathered, which the number of requests does not where they carry more then. `None`: as many as requests.
    fn work_done(&self) -> Option<u64> {
        None
    }
    /// A connection was accepted.
    fn on_open(&self, _conn: &Rc<Conn>) {}
    /// A connection ended; comes exactly once for each [`on_open`](Self::on_open).
    fn on_close(&self, _conn: &Rc<Conn>) {}
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address is taken or not this host's.
    #[error(
        "cannot listen on {addr}: {source}; stop the program that uses the port or choose another"
    )]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// No new connections; the rest goes on.
    NotAccepting,
    /// Requests are thrown away, replies still leave.
    Draining,
    Closed,
}

/// The listening side of a broker or name server on one reactor.
pub struct Server {
    hub: Rc<Hub>,
    service: Rc<dyn Service>,
    state: Cell<State>,
    decoder: RefCell<HeaderDecoder>,
    conns: RefCell<FxHashMap<u64, Rc<Conn>>>,
    /// Descriptors of listeners whose accept task runs.
    listening: RefCell<Vec<RawFd>>,
    addrs: Vec<(PortKind, SocketAddr)>,
    waiters: RefCell<Vec<Waker>>,
    helpers: RefCell<Vec<glommio::Task<()>>>,
    gather: Gather,
}

impl Server {
    /// Opens the ports and starts to serve. Call it on the reactor, in the task queue that shall serve.
    ///
    /// # Errors
    /// [`ServerError::Bind`] for the first address that can't be opened; nothing stays open then.
    pub fn bind(config: ServerConfig, service: Rc<dyn Service>) -> Result<Rc<Server>, ServerError> {
        let mut bound = Vec::with_capacity(config.listen.len());
        for listen in &config.listen {
            bound.push(listener::bind(listen, config.backlog)?);
        }
        let gather = Gather::new(config.gather);
        let server = Rc::new(Server {
            hub: Hub::new(config),
            service,
            state: Cell::new(State::Running),
            decoder: RefCell::new(HeaderDecoder::new()),
            conns: RefCell::default(),
            listening: RefCell::new(bound.iter().map(|b| b.fd).collect()),
            addrs: bound.iter().map(|b| (b.port, b.addr)).collect(),
            waiters: RefCell::default(),
            helpers: RefCell::default(),
            gather,
        });
        for one in bound {
            glommio::spawn_local(listener::accept(server.clone(), one)).detach();
        }
        let idle = glommio::spawn_local(watch_idle(Rc::downgrade(&server)));
        let flusher = glommio::spawn_local(flush_forgotten(server.hub.clone()));
        let ticker = glommio::spawn_local(gather::tick(Rc::downgrade(&server)));
        server.helpers.borrow_mut().extend([idle, flusher, ticker]);
        Ok(server)
    }

    /// The address of the first listener of a kind, with the port that the kernel chose.
    pub fn local_addr(&self, port: PortKind) -> Option<SocketAddr> {
        self.addrs.iter().find(|(kind, _)| *kind == port).map(|(_, addr)| *addr)
    }

    /// Sends what was pushed outside read turns: one `sendmsg` per connection with something unsent. Call it
    /// after a batch of acknowledgements; if nobody does, a task does it when the reactor gets to it.
    pub fn flush_dirty(&self) {
        self.hub.flush_dirty();
        self.reclaim_if_over();
    }

    /// The counters now.
    pub fn stats(&self) -> ServerStats {
        self.hub.count.snapshot()
    }

    /// The open connections, in no order.
    pub fn conns(&self) -> Vec<Rc<Conn>> {
        self.conns.borrow().values().cloned().collect()
    }

    /// An open connection by its id.
    pub fn conn(&self, id: u64) -> Option<Rc<Conn>> {
        self.conns.borrow().get(&id).cloned()
    }

    /// Bytes of memory that all connections hold: receive buffers, unsent replies and the blocks that these keep alive.
    pub fn held_bytes(&self) -> usize {
        self.hub.held()
    }

    /// Bytes of memory in the connections' receive buffers, and unsent reply bytes. Walks all connections.
    pub fn buffered_bytes(&self) -> (usize, usize) {
        let conns = self.conns.borrow();
        let received = conns.values().map(|c| c.rx.borrow().memory()).sum();
        (received, conns.values().map(|c| c.out_bytes()).sum())
    }

    /// Closes the ports to new connections; those that are open go on. The sockets are closed when the accept
    /// tasks have seen it, an instant later.
    pub fn stop_accepting(&self) {
        if self.state.get() == State::Running {
            self.state.set(State::NotAccepting);
        }
        for fd in self.listening.borrow().iter() {
            // SAFETY: the descriptor is open: its accept task removes it from the list before it closes it.
            unsafe { libc::shutdown(*fd, libc::SHUT_RDWR) };
        }
    }

    /// Ends in order: no new connections, no new requests, replies that were pushed leave, each connection is
    /// closed when its peer has closed or shortly after the last reply has left. Returns when all tasks have
    /// ended, at the latest a moment after `deadline`, when the rest was closed by force.
    pub async fn drain(self: &Rc<Self>, deadline: Duration) {
        self.stop_accepting();
        if self.state.get() == State::NotAccepting {
            self.state.set(State::Draining);
        }
        self.hub.flush_dirty();
        self.wake_all();
        let replies_left = async {
            loop {
                if self.conns.borrow().values().all(|c| c.finished.get() || c.is_closed()) {
                    break;
                }
                sleep(Duration::from_millis(5)).await;
            }
            or(self.ended(), sleep_until_done(DRAIN_LINGER)).await;
        };
        or(replies_left, sleep_until_done(deadline)).await;
        self.close();
        self.ended().await;
    }

    /// Ends at once: ports and connections close, unsent replies are offered to the sockets once.
    /// [`ended`](Self::ended) tells when it is done.
    pub fn close(&self) {
        self.stop_accepting();
        self.state.set(State::Closed);
        for conn in self.conns() {
            conn.end(CloseReason::Shutdown);
        }
        // Dropping a task cancels it; these hold no descriptor and no accept.
        self.helpers.borrow_mut().clear();
        self.hub.set_flusher(None);
    }

    /// Waits until no task of the server is left. An executor must not end before.
    pub async fn ended(&self) {
        poll_fn(|cx| {
            if self.conns.borrow().is_empty() && self.listening.borrow().is_empty() {
                Poll::Ready(())
            } else {
                self.waiters.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
    }

    fn is_accepting(&self) -> bool {
        self.state.get() == State::Running
    }

    fn wake_all(&self) {
        for conn in self.conns() {
            conn.wake();
        }
    }

    fn opened(&self, conn: &Rc<Conn>) {
        self.conns.borrow_mut().insert(conn.id(), conn.clone());
        add(&self.hub.count.connections, 1);
        if self.state.get() == State::Closed {
            conn.end(CloseReason::Shutdown);
        }
    }

    fn gone(&self, conn: &Rc<Conn>, reason: CloseReason) {
        self.conns.borrow_mut().remove(&conn.id());
        let connections = &self.hub.count.connections;
        connections.set(connections.get() - 1);
        add(&self.hub.count.closed[reason as usize], 1);
        self.wake_waiters();
    }

    fn listener_ended(&self, fd: RawFd) {
        self.listening.borrow_mut().retain(|other| *other != fd);
        self.wake_waiters();
    }

    fn wake_waiters(&self) {
        for waker in self.waiters.borrow_mut().drain(..) {
            waker.wake();
        }
    }

    /// Closes connections that were silent too long and takes buffers from quiet ones.
    fn scan_idle(&self) {
        let now_ms = self.hub.now_ms();
        let idle_ms = self.hub.config.idle.as_millis() as u64;
        for conn in self.conns.borrow().values() {
            let silent_ms = now_ms.saturating_sub(conn.last_io_ms.get());
            if silent_ms >= idle_ms {
                tracing::debug!(conn = conn.id(), peer = %conn.peer(), silent_ms, "closing an idle connection");
                conn.end(CloseReason::Idle);
            } else if silent_ms >= SHRINK_AFTER_MS {
                conn.rx.borrow_mut().shrink();
                conn.out.borrow_mut().shrink();
                conn.account();
            }
        }
    }
}

async fn sleep_until_done(time: Duration) {
    sleep(time).await;
}

/// One scan for all connections instead of a timer for each.
async fn watch_idle(server: Weak<Server>) {
    let Some(pause) = server.upgrade().map(|s| (s.hub.config.idle / 8).min(IDLE_SCAN)) else {
        return;
    };
    loop {
        sleep(pause.max(Duration::from_millis(1))).await;
        match server.upgrade() {
            Some(server) => server.scan_idle(),
            None => return,
        }
    }
}

/// Sends replies whose author did not call `flush_dirty`.
async fn flush_forgotten(hub: Rc<Hub>) {
    poll_fn(|cx| {
        hub.set_flusher(Some(cx.waker().clone()));
        if hub.has_dirty() {
            hub.flush_dirty();
        }
        Poll::<()>::Pending
    })
    .await;
}
