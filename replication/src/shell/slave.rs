//! A slave's connection to its master: bodies are received straight into the log's tail, and what is held is reported.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_lite::io::AsyncRead;
use glommio::net::TcpStream;
use glommio::timer::{Timer, sleep};
use ringmq_engine::log::{AppendError, FollowError, LogError};
use ringmq_engine::shard::Shard;
use ringmq_net::client::{ClientError, resolve};
use ringmq_net::ha_frame::{HA_HEADER_BYTES, HaFrameError, encode_report, peek_header};

use super::socket::Outgoing;
use crate::stock::{Mismatch, Place, Timing, place};

/// Most bytes of a frame's body that are believed in; none is held in memory, so this only tells nonsense.
const BODY_BYTES_MAX: usize = 256 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Before it connects again: doubled each time, up to the second.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Which history an empty slave asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// All that the master has.
    Oldest,
    /// Its last segment, as a stock slave.
    Newest,
}

/// What a slave's reports mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckLevel {
    /// Written to the device.
    Write,
    /// Flushed.
    Sync,
}

/// What a slave is told.
#[derive(Debug, Clone)]
pub struct SlaveConfig {
    /// When what is sent and expected.
    pub timing: Timing,
    /// For an empty store.
    pub start: Start,
    /// What a report means.
    pub ack: AckLevel,
}

/// What a slave needs to know of its master.
pub trait Upstream {
    /// `HOST:PORT` of the HA port, once it is known.
    fn ha_addr(&self) -> Option<String>;
    /// First and last physical offset of its log, asked by RocketMQ's ordinary requests.
    fn log_range(&self) -> impl Future<Output = Result<(u64, u64), String>>;
}

/// How a slave is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlaveState {
    /// No name server has told of a master, and none is configured.
    NoMaster,
    /// A connection is being made; why the last one ended.
    Connecting(Option<String>),
    /// The master's log comes in.
    Following,
    /// It goes on no further by itself: why.
    Halted(String),
}

impl fmt::Display for SlaveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlaveState::NoMaster => f.write_str("no master is known"),
            SlaveState::Connecting(None) => f.write_str("connecting"),
            SlaveState::Connecting(Some(why)) => write!(f, "connecting: {why}"),
            SlaveState::Following => f.write_str("following"),
            SlaveState::Halted(why) => write!(f, "halted: {why}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the master closed it")]
    Closed,
    #[error("the master was silent for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Frame(#[from] HaFrameError),
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Connect(#[from] ClientError),
    #[error("{0}")]
    Follow(#[from] FollowError),
    #[error("{0}")]
    Log(#[from] LogError),
    #[error("the master did not tell where its log begins: {0}")]
    Range(String),
    #[error("{0}")]
    Halted(String),
}

/// The slave's side of one shard. Lives on its reactor.
pub struct Slave {
    config: SlaveConfig,
    shard: Rc<Shard>,
    state: RefCell<SlaveState>,
    master: RefCell<Option<SocketAddr>>,
    reported: Cell<u64>,
    /// Where the master is, as far as frames told.
    master_end: Cell<u64>,
    received: Cell<u64>,
}

/// Where the next byte of the stream belongs.
enum Next {
    Head { bytes: [u8; HA_HEADER_BYTES], have: usize },
    Body { at: u64, left: usize },
}

impl Next {
    fn head() -> Next {
        Next::Head { bytes: [0; HA_HEADER_BYTES], have: 0 }
    }
}

enum Woke {
    Received(usize),
    Sent,
    Changed,
    Tick,
}

impl Slave {
    /// A slave that has not connected yet.
    pub fn new(config: SlaveConfig, shard: Rc<Shard>) -> Rc<Slave> {
        Rc::new(Slave {
            config,
            shard,
            state: RefCell::new(SlaveState::NoMaster),
            master: RefCell::new(None),
            reported: Cell::new(0),
            master_end: Cell::new(0),
            received: Cell::new(0),
        })
    }

    /// How it is.
    pub fn state(&self) -> SlaveState {
        self.state.borrow().clone()
    }

    /// Whom it follows.
    pub fn master(&self) -> Option<SocketAddr> {
        *self.master.borrow()
    }

    /// What it last reported to hold.
    pub fn reported(&self) -> u64 {
        self.reported.get()
    }

    /// End of what the master has sent or announced.
    pub fn master_end(&self) -> u64 {
        self.master_end.get()
    }

    /// Bytes of the log received since the start.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    fn note(&self, state: SlaveState) {
        if *self.state.borrow() == state || self.halted().is_some() {
            return;
        }
        match &state {
            SlaveState::Halted(why) => tracing::error!("this slave has stopped following: {why}"),
            SlaveState::Connecting(Some(why)) => {
                tracing::warn!("the connection to the master has ended, trying on: {why}");
            }
            SlaveState::Following => {
                let master = self.master().map(|addr| addr.to_string()).unwrap_or_default();
                tracing::info!(master, from = self.shard.log().appended(), "following the master");
            }
            SlaveState::NoMaster | SlaveState::Connecting(None) => tracing::info!("slave: {state}"),
        }
        *self.state.borrow_mut() = state;
    }

    fn halted(&self) -> Option<String> {
        match &*self.state.borrow() {
            SlaveState::Halted(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Dispatches what came, until it is dropped or a record is damaged.
    pub async fn dispatch(self: Rc<Self>) {
        loop {
            let changed = self.shard.log().changed();
            match self.shard.dispatch_followed().await {
                Ok(0) => changed.await,
                Ok(_) => glommio::executor().yield_if_needed().await,
                Err(error) => return self.note(SlaveState::Halted(error.to_string())),
            }
        }
    }

    /// Follows the master, whoever it is at the time, until it is dropped or has to halt.
    pub async fn run(self: Rc<Self>, upstream: impl Upstream) {
        let mut retry = RETRY_MIN;
        while self.halted().is_none() {
            let Some(addr) = upstream.ha_addr() else {
                self.note(SlaveState::NoMaster);
                sleep(RETRY_MIN).await;
                continue;
            };
            let began = Instant::now();
            let outcome = self.follow(&addr, &upstream).await;
            *self.master.borrow_mut() = None;
            match outcome {
                Ok(()) => {}
                Err(End::Follow(error @ FollowError::Form { .. })) => {
                    return self.note(SlaveState::Halted(error.to_string()));
                }
                Err(End::Halted(_)) => return,
                Err(why) => self.note(SlaveState::Connecting(Some(format!("{addr}: {why}")))),
            }
            retry =
                if began.elapsed() > RETRY_MAX { RETRY_MIN } else { (retry * 2).min(RETRY_MAX) };
            sleep(retry).await;
        }
    }

    async fn follow(&self, addr: &str, upstream: &impl Upstream) -> Result<(), End> {
        let mut last = End::Closed;
        for addr in resolve(addr, CONNECT_TIMEOUT).await? {
            match TcpStream::connect_timeout(addr, CONNECT_TIMEOUT).await {
                Ok(mut stream) => {
                    *self.master.borrow_mut() = Some(addr);
                    // A delayed report would delay sends; not worth more than a slow connection.
                    let _ = stream.set_nodelay(true);
                    return self.talk(&mut stream, upstream).await;
                }
                Err(glommio::GlommioError::IoError(error)) => last = error.into(),
                Err(other) => last = io::Error::other(other.to_string()).into(),
            }
        }
        Err(last)
    }

    /// What is held as far as a report says.
    fn held(&self) -> u64 {
        let log = self.shard.log();
        match self.config.ack {
            AckLevel::Write => log.written(),
            AckLevel::Sync => log.durable(),
        }
    }

    fn is_empty(&self) -> bool {
        let log = self.shard.log();
        log.appended() == log.min_offset()
    }

    /// Where an empty slave asks its master to begin.
    async fn beginning(&self, upstream: &impl Upstream) -> Result<u64, End> {
        let log = self.shard.log();
        if !self.is_empty() || self.config.start == Start::Newest {
            // What the last connection brought goes on where it ends, and is held before that is said.
            let end = log.appended();
            while log.written() < end && log.failed().is_none() {
                let changed = log.changed();
                log.kick();
                changed.await;
            }
            if self.config.ack == AckLevel::Sync {
                log.flushed(end).await?;
            }
            return Ok(end);
        }
        let (min, max) = upstream.log_range().await.map_err(End::Range)?;
        if min > 0 || max == 0 {
            return Ok(min);
        }
        // 0 would be answered with the last segment. The first byte of a log is the high byte of a size, and always 0: with it here,
        // the master is asked for what follows.
        loop {
            let changed = log.changed();
            let taken = log.follow(0, 1, |place| {
                place.fill(0);
                Ok(place.len())
            });
            match taken {
                Ok(_) => break,
                Err(FollowError::Append(AppendError::NotReady { .. })) => changed.await,
                Err(error) => return Err(error.into()),
            }
        }
        log.kick();
        Ok(1)
    }

    async fn talk(&self, stream: &mut TcpStream, upstream: &impl Upstream) -> Result<(), End> {
        let timing = self.config.timing;
        let log = self.shard.log();
        let mut out = Outgoing::default();
        let first = self.beginning(upstream).await?;
        out.put(&encode_report(first), None);
        self.reported.set(first);
        let (mut heard, mut sent) = (Instant::now(), Instant::now());
        let mut next = Next::head();
        let mut tick = Timer::new(timing.tick());
        loop {
            if let Some(why) = self.halted() {
                return Err(End::Halted(why));
            }
            if heard.elapsed() > timing.housekeeping {
                return Err(End::Silent(timing.housekeeping));
            }
            let mut changed = pin!(log.changed());
            let held = self.held();
            if self.config.ack == AckLevel::Sync && log.durable() < log.written() {
                log.request_flush();
            }
            let due = held > self.reported.get() || sent.elapsed() >= timing.heartbeat;
            if out.is_done() && due {
                let report = held.max(self.reported.get());
                out.put(&encode_report(report), None);
                self.reported.set(report);
                sent = Instant::now();
            }
            let mut full = false;
            let woke = poll_fn(|cx| {
                if !out.is_done()
                    && let Poll::Ready(result) = out.poll_send(stream, cx)
                {
                    return Poll::Ready(result.map(|()| Woke::Sent).map_err(End::from));
                }
                let received = match &mut next {
                    Next::Head { bytes, have } => {
                        let room = bytes.get_mut(*have..).unwrap_or_default();
                        Pin::new(&mut *stream).poll_read(cx, room).map_err(End::from)
                    }
                    Next::Body { .. } if full => Poll::Pending,
                    Next::Body { at, left } => {
                        let mut nothing = false;
                        let taken = log.follow(*at, *left, |place| {
                            match Pin::new(&mut *stream).poll_read(cx, place) {
                                Poll::Ready(result) => result,
                                Poll::Pending => {
                                    nothing = true;
                                    Ok(0)
                                }
                            }
                        });
                        match taken {
                            Ok(_) if nothing => Poll::Pending,
                            Ok(len) => Poll::Ready(Ok(len)),
                            Err(FollowError::Append(
                                AppendError::Busy { .. }
                                | AppendError::NotReady { .. }
                                | AppendError::NoSpace { .. },
                            )) => {
                                full = true;
                                Poll::Pending
                            }
                            Err(error) => Poll::Ready(Err(error.into())),
                        }
                    }
                };
                match received {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(End::Closed)),
                    Poll::Ready(result) => return Poll::Ready(result.map(Woke::Received)),
                    Poll::Pending => {}
                }
                if changed.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(Woke::Changed));
                }
                Pin::new(&mut tick).poll(cx).map(|_| Ok(Woke::Tick))
            })
            .await?;
            match woke {
                Woke::Received(len) => {
                    heard = Instant::now();
                    next = self.received_bytes(next, len).await?;
                }
                Woke::Sent | Woke::Changed => {}
                Woke::Tick => {
                    tick = Timer::new(timing.tick());
                    // A log without room is not a master that is silent.
                    if full {
                        heard = Instant::now();
                    }
                }
            }
        }
    }

    /// `len` bytes have come to where they belong: where does the next one?
    async fn received_bytes(&self, next: Next, len: usize) -> Result<Next, End> {
        match next {
            Next::Head { bytes, have } if have + len < HA_HEADER_BYTES => {
                Ok(Next::Head { bytes, have: have + len })
            }
            Next::Head { bytes, .. } => {
                let Some(head) = peek_header(&bytes, BODY_BYTES_MAX)? else {
                    return Ok(Next::head());
                };
                let offset = u64::try_from(head.physical_offset).unwrap_or(u64::MAX);
                self.make_room(offset, head.body_len).await?;
                self.note(SlaveState::Following);
                let end = offset.saturating_add(head.body_len as u64);
                self.master_end.set(end.max(self.master_end.get()));
                Ok(match head.body_len {
                    0 => Next::head(),
                    left => Next::Body { at: offset, left },
                })
            }
            Next::Body { at, left } => {
                self.received.set(self.received.get() + len as u64);
                self.shard.kick();
                glommio::executor().yield_if_needed().await;
                Ok(match left.saturating_sub(len) {
                    0 => Next::head(),
                    left => Next::Body { at: at + len as u64, left },
                })
            }
        }
    }

    /// Checks a frame's offset; an empty log goes to where it begins.
    async fn make_room(&self, offset: u64, size: usize) -> Result<(), End> {
        let own = self.shard.log().appended();
        let segment = self.shard.segment_bytes();
        if let Place::BeginAt(start) = place(offset, size, own, self.is_empty(), segment)? {
            tracing::info!(start, "the master's log reaches this slave from a later segment on");
            self.shard.begin_at(start).await?;
        }
        Ok(())
    }
}
