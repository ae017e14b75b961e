//! The HA port of a master: one task per slave, which sends what becomes visible and hears what is held.
//!
//! A frame is one slice of the log, from a block in memory or an aligned read, and goes to the socket by one `sendmsg` with its head.
//! The next slice is taken when the former is sent. Of what is not in memory any more, one read is under way meanwhile: a slow or stopped
//! slave holds two of them, and delays nobody.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_lite::FutureExt;
use futures_lite::io::AsyncRead;
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::{Timer, sleep};
use ringmq_engine::log::{Log, LogError};
use ringmq_net::ha_term_frame::Capabilities;
use socket2::{Domain, Protocol, Socket, Type};

use super::crc_of;
use super::feed::Feed;
use super::socket::Outgoing;
use super::waiters::Waiters;
use crate::gate::{PeerId, SyncGate};
use crate::pair::{MasterAction, MasterClose, MasterLog, MasterSession};
use crate::stock::{LogRange, Timing};
use crate::term_store::TermStore;
use crate::terms::TermList;

pub use crate::pair::PeerState;

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Connections that may be open at once; further ones are closed. Slaves are few.
const PEERS_MAX: usize = 64;
/// Pieces of metadata that wait for a slave that does not take them, beside those of all of it.
const METADATA_WAITING_MAX: usize = 256;
/// Frames that leave at once for a slave; a write brings one or two.
const PUSHED_FRAMES_MAX: usize = 4;
/// Room for reports: what a slave sends while one frame is on its way to it.
const REPORTS_BYTES: usize = 4096;

/// What a master is told.
#[derive(Debug, Clone)]
pub struct MasterConfig {
    /// Where slaves connect.
    pub listen: SocketAddr,
    /// When what is sent and expected.
    pub timing: Timing,
    /// Most bytes of a frame's body to a stock slave, which takes up to 4 MiB less 12 (stock default: 32 KiB).
    pub batch_bytes: u32,
    /// Whether its broker [tells](Master::tell) metadata.
    pub metadata: bool,
}

/// What a master asks of its broker, and tells it.
pub trait Downstream {
    /// More is replicated, or a slave has come or gone.
    fn acked(&self);
    /// All metadata, in pieces: what a slave that takes it gets first, and again when it has missed something.
    fn metadata(&self) -> Vec<Vec<u8>>;
}

/// One connected slave.
pub struct Peer {
    id: PeerId,
    fd: Cell<RawFd>,
    addr: SocketAddr,
    state: RefCell<PeerState>,
    sent: Cell<u64>,
    acked: Cell<u64>,
    /// When it held everything that was visible, the last time that this was so.
    caught_up: Cell<Instant>,
    reports: Cell<u64>,
    slave: Cell<Option<i64>>,
    granted: Cell<Option<Capabilities>>,
    /// Metadata that its session has no room for yet.
    metadata: RefCell<VecDeque<Rc<[u8]>>>,
    /// How many of these, the first ones, are of all metadata.
    whole: Cell<usize>,
    /// It has to get all metadata.
    missed: Cell<bool>,
    /// Of what was [told](Master::tell), how much is sent to it.
    passed: Cell<u64>,
    /// While something that was told is not sent to it: since when it has taken no frame.
    stuck: Cell<Option<Instant>>,
    /// It was told more than may wait for it, and has not caught up since.
    overrun: Cell<bool>,
    /// Since when it reports although another connection of its slave has its place.
    replaced: Cell<Option<Instant>>,
    /// It is a slave of its own, with the id of another one.
    second: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// While its task waits.
    line: Cell<Option<Line>>,
    /// There is something new for its task.
    stirred: Cell<bool>,
}

/// What goes over a connection.
struct Line {
    session: MasterSession,
    out: Outgoing,
    feed: Feed,
    began: Instant,
    /// The list of terms that the session is for.
    terms: u64,
}

impl Peer {
    /// Where it connects from.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What it is doing.
    pub fn state(&self) -> PeerState {
        self.state.borrow().clone()
    }

    /// End of what was sent.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// End of what it reported to hold.
    pub fn acked(&self) -> u64 {
        self.acked.get()
    }

    /// Reports received.
    pub fn reports(&self) -> u64 {
        self.reports.get()
    }

    /// The slave's id in its group; a stock slave does not tell it.
    pub fn slave(&self) -> Option<i64> {
        self.slave.get()
    }

    /// What was granted to a RingMQ slave; `None` for one that speaks the 4.x protocol.
    pub fn granted(&self) -> Option<Capabilities> {
        self.granted.get()
    }

    /// Whether it only reads along: no slave.
    pub fn is_observer(&self) -> bool {
        self.granted.get().is_some_and(|all| all.has(Capabilities::OBSERVER))
    }

    /// Whether another slave has its id: of both, one counts.
    pub fn is_second(&self) -> bool {
        self.second.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn has_metadata(&self) -> bool {
        self.missed.get() || !self.metadata.borrow().is_empty()
    }

    fn takes_metadata(&self) -> bool {
        let granted = self.granted.get().is_some_and(|all| all.has(Capabilities::METADATA));
        granted && *self.state.borrow() == PeerState::Streaming
    }

    /// Whether it takes what it is told, a frame at least each `at_most`.
    fn gets_on(&self, at_most: Duration) -> bool {
        !self.overrun.get() && self.stuck.get().is_none_or(|since| since.elapsed() < at_most)
    }

    /// How long it has not held all that was visible; zero while it does.
    pub fn lag(&self, visible: u64) -> Duration {
        if self.acked.get() >= visible { Duration::ZERO } else { self.caught_up.get().elapsed() }
    }
}

/// The slaves of one shard. Lives on its reactor.
pub struct Master {
    config: MasterConfig,
    log: Log,
    segment: u64,
    gate: RefCell<SyncGate>,
    terms: Rc<TermStore>,
    peers: RefCell<Vec<Rc<Peer>>>,
    listener: Cell<RawFd>,
    stopping: Cell<bool>,
    /// Which slave's connection ended last, and why.
    last_ended: RefCell<Option<String>>,
    /// Pieces of metadata told.
    told: Cell<u64>,
    /// Who waits for them to be sent.
    waiting: Waiters,
    broker: Box<dyn Downstream>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the slave closed it")]
    Closed,
    #[error("{0}")]
    Session(#[from] MasterClose),
    #[error("this log's terms have changed: it comes back and hears of them")]
    Terms,
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Log(#[from] LogError),
}

impl Line {
    fn poll(
        &mut self,
        peer: &Peer,
        stream: &mut TcpStream,
        reports: &mut [u8],
        tick: &mut Timer,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Woke, End>> {
        *peer.waker.borrow_mut() = Some(cx.waker().clone());
        if peer.has_metadata() && self.session.has_room_for_metadata() {
            return Poll::Ready(Ok(Woke::Changed));
        }
        match Pin::new(&mut *stream).poll_read(cx, reports) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(End::Closed)),
            Poll::Ready(Ok(len)) => return Poll::Ready(Ok(Woke::Received(len))),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
            Poll::Pending => {}
        }
        if !self.out.is_done()
            && let Poll::Ready(result) = self.out.poll_send(stream, cx)
        {
            return Poll::Ready(result.map(|()| Woke::Sent).map_err(End::from));
        }
        if self.out.is_done() && peer.stirred.take() {
            return Poll::Ready(Ok(Woke::Changed));
        }
        Pin::new(tick).poll(cx).map(|_| Ok(Woke::Tick))
    }
}

/// What a connection woke for.
enum Woke {
    Received(usize),
    Sent,
    Changed,
    Tick,
}

impl Master {
    /// Opens the HA port.
    ///
    /// # Errors
    /// The operating system's reason for not listening there.
    pub fn bind(
        config: MasterConfig,
        log: Log,
        segment: u64,
        gate: SyncGate,
        terms: Rc<TermStore>,
        broker: impl Downstream + 'static,
    ) -> io::Result<Rc<Master>> {
        let domain = if config.listen.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if config.listen.is_ipv6() && config.listen.ip().is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&config.listen.into())?;
        socket.listen(16)?;
        let master = Rc::new(Master {
            config,
            log,
            segment,
            gate: RefCell::new(gate),
            terms,
            peers: RefCell::default(),
            listener: Cell::new(socket.as_raw_fd()),
            stopping: Cell::new(false),
            last_ended: RefCell::new(None),
            told: Cell::new(0),
            waiting: Waiters::default(),
            broker: Box::new(broker),
        });
        // SAFETY: the descriptor is open and ownership passes to the listener.
        let listener = unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) };
        glommio::spawn_local(Rc::clone(&master).accept(listener)).detach();
        let weak = Rc::downgrade(&master);
        master.log.on_visible(move || {
            if let Some(master) = weak.upgrade() {
                master.push();
            }
        });
        Ok(master)
    }

    /// Closes the port and every connection.
    pub fn stop(&self) {
        self.stopping.set(true);
        let listener = self.listener.replace(-1);
        let peers = self.peers.borrow();
        for fd in peers.iter().map(|peer| peer.fd.get()).chain([listener]).filter(|fd| *fd >= 0) {
            // SAFETY: a plain system call on a descriptor that its task still owns; it wakes that task.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
    }

    /// How far the slaves are.
    pub fn gate(&self) -> &RefCell<SyncGate> {
        &self.gate
    }

    /// Whether a slave is there that takes metadata with the log.
    pub fn metadata_is_taken(&self) -> bool {
        self.peers.borrow().iter().any(|peer| peer.takes_metadata())
    }

    /// Sends metadata to every slave that takes it with the log. One that is too far behind is told to ask for all of it instead.
    pub fn tell(&self, body: &[u8]) {
        let body: Rc<[u8]> = body.into();
        self.told.set(self.told.get() + 1);
        for peer in self.peers.borrow().iter().filter(|peer| peer.takes_metadata()) {
            let mut waiting = peer.metadata.borrow_mut();
            let whole = peer.whole.get();
            if waiting.len() >= METADATA_WAITING_MAX.saturating_add(whole) {
                // One after the other is too much for it: all of it once, when it takes something again. If it is getting that now, it
                // gets on with it, and gets it again then: a table of many pieces would never come to its end otherwise.
                waiting.truncate(whole);
                peer.missed.set(true);
                peer.overrun.set(true);
            } else if !peer.missed.get() {
                waiting.push_back(Rc::clone(&body));
            }
            if peer.stuck.get().is_none() {
                peer.stuck.set(Some(Instant::now()));
            }
            peer.wake();
        }
    }

    /// Ends when all that was told until now is sent to every slave that takes it, or after `at_most`. A slave that is gone, or has not
    /// taken anything for so long, is not waited for.
    pub async fn told_is_sent(&self, at_most: Duration) {
        let told = self.told.get();
        let is_due = || {
            let waits = |peer: &Rc<Peer>| {
                peer.takes_metadata() && peer.passed.get() < told && peer.gets_on(at_most)
            };
            !self.peers.borrow().iter().any(waits)
        };
        if is_due() {
            return;
        }
        let late = async {
            Timer::new(at_most).await;
        };
        self.waiting.wait_until(is_due).or(late).await;
    }

    /// The slave whose connection ended last, and why it did.
    pub fn last_ended(&self) -> Option<String> {
        self.last_ended.borrow().clone()
    }

    /// The connected slaves.
    pub fn peers(&self) -> Vec<Rc<Peer>> {
        self.peers.borrow().clone()
    }

    /// One task that nothing cancels: a cancelled accept of glommio 0.9 loses its connection.
    async fn accept(self: Rc<Self>, listener: TcpListener) {
        while !self.stopping.get() {
            match listener.accept().await {
                Ok(stream) => self.opened(stream),
                Err(_) if self.stopping.get() => break,
                Err(error) => {
                    tracing::warn!(listen = %self.config.listen, %error, "accepting a slave failed, trying on");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
        self.listener.set(-1);
    }

    fn opened(self: &Rc<Self>, stream: TcpStream) {
        // An error means that it was reset meanwhile.
        let Ok(addr) = stream.peer_addr() else { return };
        if self.stopping.get() || self.peers.borrow().len() >= PEERS_MAX {
            tracing::warn!(slave = %addr, most = PEERS_MAX, "a slave's connection is refused: too many are open");
            return;
        }
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(slave = %addr, %error, "TCP_NODELAY could not be set");
        }
        let peer = Rc::new(Peer {
            id: self.gate.borrow_mut().join(),
            fd: Cell::new(stream.as_raw_fd()),
            addr,
            state: RefCell::new(PeerState::Waiting),
            sent: Cell::new(0),
            acked: Cell::new(0),
            caught_up: Cell::new(Instant::now()),
            reports: Cell::new(0),
            slave: Cell::new(None),
            granted: Cell::new(None),
            metadata: RefCell::default(),
            whole: Cell::new(0),
            missed: Cell::new(false),
            passed: Cell::new(0),
            stuck: Cell::new(None),
            overrun: Cell::new(false),
            replaced: Cell::new(None),
            second: Cell::new(false),
            waker: RefCell::default(),
            line: Cell::default(),
            stirred: Cell::new(false),
        });
        self.peers.borrow_mut().push(Rc::clone(&peer));
        tracing::info!(slave = %addr, "a slave has connected");
        glommio::spawn_local(Rc::clone(self).serve(stream, peer)).detach();
    }

    async fn serve(self: Rc<Self>, mut stream: TcpStream, peer: Rc<Peer>) {
        let outcome = self.talk(&mut stream, &peer).await;
        peer.fd.set(-1);
        self.gate.borrow_mut().leave(peer.id);
        self.peers.borrow_mut().retain(|other| !Rc::ptr_eq(other, &peer));
        self.waiting.wake();
        if let Err(why) = outcome
            && !self.stopping.get()
        {
            tracing::warn!(slave = %peer.addr, acked = peer.acked(), "a slave's connection has ended: {why}");
            *self.last_ended.borrow_mut() = Some(format!("{}: {why}", peer.addr));
        }
        self.broker.acked();
    }

    async fn talk(&self, stream: &mut TcpStream, peer: &Peer) -> Result<(), End> {
        let timing = self.config.timing;
        let config = crate::pair::MasterConfig {
            timing,
            stock_batch_bytes: self.config.batch_bytes,
            metadata: self.config.metadata,
        };
        let mut line = Line {
            session: MasterSession::new(config, 0),
            out: Outgoing::default(),
            feed: Feed::default(),
            began: Instant::now(),
            terms: self.terms.changes(),
        };
        let mut reports = [0; REPORTS_BYTES];
        let mut tick = Timer::new(timing.tick());
        loop {
            if self.terms.changes() != line.terms {
                return Err(End::Terms);
            }
            self.act(&mut line, peer).await?;
            if self.pass_metadata(&mut line.session, peer) {
                continue;
            }
            peer.line.set(Some(line));
            let woke = poll_fn(|cx| {
                let Some(mut line) = peer.line.take() else { return Poll::Ready(Err(End::Closed)) };
                let woke = line.poll(peer, stream, &mut reports, &mut tick, cx);
                peer.line.set(Some(line));
                woke
            })
            .await?;
            let Some(taken) = peer.line.take() else { return Err(End::Closed) };
            line = taken;
            let session = &mut line.session;
            match woke {
                Woke::Received(len) => {
                    let bytes = reports.get(..len).unwrap_or_default();
                    session.received(since(line.began), bytes, &self.view(&self.terms.list()));
                    peer.reports.set(session.reports());
                    peer.slave.set(session.slave());
                    peer.granted.set(session.speaks_terms().then(|| session.granted()));
                }
                Woke::Sent => self.sent(session, peer, since(line.began)),
                Woke::Changed => {}
                Woke::Tick => tick = Timer::new(timing.tick()),
            }
            // Neither one that takes all at once nor one that reports without end keeps the reactor from the others.
            glommio::executor().yield_if_needed().await;
        }
    }

    /// Something has become visible: whoever waits for it gets it at once, before it is dispatched and answered here and before whatever
    /// else waits for the reactor. What that does not do is left to the slave's task.
    fn push(&self) {
        let peers = self.peers.borrow();
        for peer in peers.iter() {
            // Its task is at it and finds what is new, or goes on when the socket takes more.
            let Some(mut line) = peer.line.take() else { continue };
            let left = line.out.is_done() && !self.push_to(peer, &mut line);
            peer.line.set(Some(line));
            if left {
                peer.stirred.set(true);
                peer.wake();
            }
        }
    }

    /// Whether nothing is left to do for its task.
    fn push_to(&self, peer: &Peer, line: &mut Line) -> bool {
        let terms = self.terms.list();
        let mut frames = 0;
        loop {
            let view = self.view(&terms);
            if line.session.next_offset().is_none_or(|next| next >= view.range.max) {
                return true;
            }
            if frames == PUSHED_FRAMES_MAX
                || peer.has_metadata()
                || self.terms.changes() != line.terms
            {
                return false;
            }
            let due = line.session.due(&view);
            let bytes = due.and_then(|(from, max)| self.log.hot_from(from, max as usize));
            let Some(slice) = bytes else { return false };
            let head = line.session.frame(slice.bytes(), &view);
            line.out.put(head.bytes(), Some(slice));
            peer.sent.set(line.session.next_offset().unwrap_or(0));
            if !line.out.send_at_once(peer.fd.get()) {
                return false;
            }
            self.sent(&mut line.session, peer, since(line.began));
            frames += 1;
        }
    }

    /// What was being sent is sent.
    fn sent(&self, session: &mut MasterSession, peer: &Peer, now_ms: u64) {
        session.sent(now_ms);
        if !peer.has_metadata() && !session.has_metadata_waiting() {
            peer.passed.set(self.told.get());
            peer.stuck.set(None);
            peer.overrun.set(false);
            self.waiting.wake();
        } else {
            peer.stuck.set(Some(Instant::now()));
        }
    }

    /// Gives the session what metadata it has room for. Whether that was some.
    fn pass_metadata(&self, session: &mut MasterSession, peer: &Peer) -> bool {
        let mut some = false;
        while session.has_room_for_metadata() {
            let mut waiting = peer.metadata.borrow_mut();
            if waiting.is_empty() && peer.missed.take() {
                waiting.extend(self.broker.metadata().into_iter().map(Rc::from));
                peer.whole.set(waiting.len());
            }
            let Some(body) = waiting.pop_front() else { break };
            peer.whole.set(peer.whole.get().saturating_sub(1));
            session.metadata(&body);
            some = true;
        }
        some
    }

    /// Does what the session wants, until it wants nothing more.
    async fn act(&self, line: &mut Line, peer: &Peer) -> Result<(), End> {
        let Line { session, out, feed, began, .. } = line;
        loop {
            let action = session.next(since(*began), &self.view(&self.terms.list()));
            match action {
                None => return Ok(()),
                Some(MasterAction::Send(bytes)) => out.put(&bytes, None),
                Some(MasterAction::Data { from, max }) => {
                    let slice = match feed.take(&self.log, from, max as usize).await {
                        Ok(Some(slice)) => slice,
                        Ok(None) => return Ok(()),
                        // Deleted meanwhile: the session sees that, and says so.
                        Err(LogError::OutOfRange { min, .. }) if from < min => continue,
                        Err(error) => return Err(error.into()),
                    };
                    let head = session.frame(slice.bytes(), &self.view(&self.terms.list()));
                    out.put(head.bytes(), Some(slice));
                    peer.sent.set(session.next_offset().unwrap_or(from));
                }
                Some(MasterAction::Crc { offset, len }) => {
                    let crc = crc_of(&self.log, offset, len).await?;
                    session.crc(offset, len, crc);
                }
                Some(MasterAction::Withhold) => {
                    self.gate.borrow_mut().withhold(peer.id);
                    self.broker.acked();
                }
                Some(MasterAction::Admit(slave)) => {
                    self.gate.borrow_mut().admit(peer.id, slave);
                    self.broker.acked();
                }
                Some(MasterAction::Acked(offset)) => self.acked(peer, offset),
                Some(MasterAction::State(state)) => self.note(peer, session, state),
                Some(MasterAction::Close(why)) => return Err(why.into()),
            }
        }
    }

    /// The log as a session may see it.
    fn view<'a>(&self, terms: &'a TermList) -> MasterLog<'a> {
        let max = self.log.visible();
        MasterLog {
            range: LogRange { min: self.log.min_offset(), max, segment: self.segment },
            whole: self.log.visible_whole(),
            confirmed: self.terms.bound(),
            terms,
        }
    }

    fn acked(&self, peer: &Peer, offset: u64) {
        peer.acked.set(offset);
        if offset >= self.log.visible() {
            peer.caught_up.set(Instant::now());
        }
        if self.gate.borrow_mut().acked(peer.id, offset) {
            self.broker.acked();
        }
        self.look_for_a_second(peer);
    }

    /// A slave that lost its connection leaves it silent, or with what was on its way. One whose place was taken and that reports on and
    /// on is another slave with the same id.
    fn look_for_a_second(&self, peer: &Peer) {
        if !self.gate.borrow().is_replaced(peer.id) {
            peer.replaced.set(None);
            return peer.second.set(false);
        }
        let Some(since) = peer.replaced.get() else {
            return peer.replaced.set(Some(Instant::now()));
        };
        if since.elapsed() < self.config.timing.heartbeat || peer.second.replace(true) {
            return;
        }
        let peers = self.peers.borrow();
        let same = |other: &&Rc<Peer>| other.id != peer.id && other.slave() == peer.slave();
        let other = peers.iter().rev().find(same).map(|other| other.addr.to_string());
        tracing::error!(
            slave = %peer.addr,
            other,
            id = peer.slave(),
            "two slaves have the same id, and count as one: give each a --broker-id of its own"
        );
    }

    fn note(&self, peer: &Peer, session: &MasterSession, state: PeerState) {
        if *peer.state.borrow() == state {
            return;
        }
        let slave = peer.addr;
        match &state {
            PeerState::Refused(why) => tracing::error!(%slave, "a slave gets nothing: {why}"),
            PeerState::Streaming => {
                let from = session.next_offset().unwrap_or(0);
                let behind = self.log.visible().saturating_sub(from);
                peer.sent.set(from);
                let id = session.slave();
                tracing::info!(%slave, id, from, behind, "a slave gets the log");
            }
            PeerState::Waiting | PeerState::Aligning => {}
        }
        let begins = state == PeerState::Streaming;
        *peer.state.borrow_mut() = state;
        if begins && session.takes_metadata() {
            peer.missed.set(true);
        }
    }
}

/// Milliseconds since `began`.
fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
