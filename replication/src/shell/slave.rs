//! A slave's connection to its master: bodies are received straight into the log's tail, and what is held is reported.
//!
//! Of a RingMQ master a body is received whole first, and gets into the log when its CRC is seen to be right.

mod stock;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::discriminant;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_lite::future::yield_now;
use futures_lite::io::AsyncRead;
use glommio::net::TcpStream;
use glommio::timer::{Timer, sleep};
use ringmq_engine::log::{AppendError, FollowError, Log, LogError};
use ringmq_engine::shard::{Shard, ShardError};
use ringmq_engine::store::{StoreError, WorkerGone};
use ringmq_net::client::{ClientError, resolve};
use ringmq_net::ha_term_frame::Capabilities;

use super::acquaintance::{Acquaintance, Manner};
use super::buffer::Buffer;
use super::crc_of;
use super::socket::Outgoing;
use crate::pair::{Body, Parsed, Retry, SlaveAction, SlaveLog, SlaveSession, Speech, Trouble};
use crate::stock::Timing;
use crate::term_store::TermStore;
use crate::terms::{Term, TermError, TermList};

pub use crate::pair::Start;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Before it is asked again who the master is.
const NO_MASTER: Duration = Duration::from_millis(250);
/// Room that a frame without a body gets at a time: what claims to be long gets more as it comes.
const FRAME_STEP: usize = 64 << 10;
/// What is read beyond a frame where bodies are held in memory first: a small frame and its checksum come by one call.
const AHEAD: usize = 8 << 10;
/// The same for a body.
const BODY_STEP: usize = 256 << 10;
/// A log that is so far behind is written in bulk, until it is nearly there.
const BULK_FROM_BYTES: u64 = 32 << 20;
const BULK_TO_BYTES: u64 = 4 << 20;
/// Reports that a master does not take.
const UNSENT_BYTES_MAX: usize = 64 << 10;

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
    /// Its id in its group.
    pub slave_id: i64,
    /// For an empty store.
    pub start: Start,
    /// What a report means.
    pub ack: AckLevel,
    /// Longest wait before a connection is tried again; three times that while the logs differ.
    pub retry_max: Duration,
}

/// What a master is known to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasterKind {
    /// It answers the hello.
    RingMq,
    /// It does, with another number of shards than this slave has.
    OtherShards {
        /// Ours.
        own: usize,
        /// Its.
        master: usize,
    },
    /// It speaks the 4.x protocol alone.
    Stock,
    /// It could not be asked.
    Unknown,
}

/// What a slave needs to know of its master, and asks of its broker.
pub trait Upstream {
    /// `HOST:PORT` of the HA port, once it is known.
    fn ha_addr(&self) -> Option<String>;
    /// The master is not to be had, or is none to follow: perhaps another one is known by now.
    fn look_again(&self);
    /// What the master at this HA port is, asked by RocketMQ's ordinary requests.
    fn kind(&self, ha_addr: &str) -> impl Future<Output = MasterKind>;
    /// First and last physical offset of the log of the master that is connected to, asked the same way; `None` if
    /// nobody knows where that one can be asked.
    fn log_range(&self) -> impl Future<Output = Result<Option<(u64, u64)>, String>>;
    /// Its record at a physical offset, asked the same way; `None` if it has no record there.
    fn record(&self, offset: u64) -> impl Future<Output = Result<Option<Vec<u8>>, String>>;
    /// Metadata came with the master's log.
    fn metadata(&self, body: &[u8]);
    /// The log is to be cut when the store is opened next: open it anew, soon.
    fn reopen(&self);
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
    /// It goes on as soon as there is room for the log: why there is none.
    Waiting(String),
    /// Its log and the master's differ, and somebody has to decide; it tries on.
    Diverged(Trouble),
    /// Its log goes beyond what it has in common with the master's, and is about to be cut there.
    Cutting(u64),
    /// It goes on no further by itself: why.
    Halted(String),
}

impl SlaveState {
    /// Whether an operator who saw `self` learns nothing new from `other`.
    fn tells(&self, other: &SlaveState) -> bool {
        match (self, other) {
            (SlaveState::Diverged(a), SlaveState::Diverged(b)) => {
                discriminant(a) == discriminant(b)
            }
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for SlaveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlaveState::NoMaster => f.write_str("no master is known"),
            SlaveState::Connecting(None) => f.write_str("connecting"),
            SlaveState::Connecting(Some(why)) => write!(f, "connecting: {why}"),
            SlaveState::Following => f.write_str("following"),
            SlaveState::Waiting(why) => write!(f, "waiting: {why}"),
            SlaveState::Diverged(why) => write!(f, "diverged: {why}"),
            SlaveState::Cutting(at) => write!(f, "cutting the log at {at}"),
            SlaveState::Halted(why) => write!(f, "halted: {why}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the master closed it")]
    Closed,
    #[error("{0}")]
    Trouble(#[from] Trouble),
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Connect(#[from] ClientError),
    #[error("{0}")]
    Follow(#[from] FollowError),
    #[error("{0}")]
    Log(#[from] LogError),
    #[error("{0}")]
    Shard(#[from] ShardError),
    #[error("the terms cannot be stored: {0}")]
    Store(#[from] StoreError),
    #[error("the terms cannot be stored: {0}")]
    Worker(#[from] WorkerGone),
    #[error("{0}")]
    Term(#[from] TermError),
    #[error("the master did not tell what its log has: {0}")]
    Range(String),
    #[error("the master takes no reports")]
    Stuck,
    #[error("{0}")]
    Halted(String),
    #[error("the log is to be cut")]
    Cut,
}

/// The slave's side of one shard. Lives on its reactor.
pub struct Slave {
    config: SlaveConfig,
    shard: Rc<Shard>,
    terms: Rc<TermStore>,
    state: RefCell<SlaveState>,
    master: RefCell<Option<SocketAddr>>,
    /// The same as the broker called it.
    followed: RefCell<Option<String>>,
    known: RefCell<Acquaintance>,
    /// The present or last connection's master has welcomed this slave.
    welcomed: Cell<bool>,
    /// What the present or last master granted, if it is a RingMQ node.
    granted: Cell<Option<Capabilities>>,
    /// Its last term, if it told its terms.
    master_term: Cell<Option<Term>>,
    reported: Cell<u64>,
    /// Where the master is, as far as frames told.
    master_end: Cell<u64>,
    received: Cell<u64>,
    connections: Cell<u64>,
    /// The present or last connection came to be followed.
    reached: Cell<bool>,
    /// Tries since the last time that the master was followed.
    failures: Cell<u64>,
    /// Why the last connection, or try of one, ended.
    last_error: RefCell<Option<String>>,
}

/// Where the next bytes of the stream belong.
enum Next {
    /// To a frame without a body, or before one: at least `need` bytes from the buffer's start.
    Frame { need: usize },
    /// Nowhere yet.
    Wait,
    /// Into the log's tail.
    Tail { at: u64, left: usize },
    /// Into memory, until the whole body is there.
    Whole(Body),
    /// Nowhere: the body is there and goes into the log as that has room.
    Place { at: u64, from: usize },
}

enum Woke {
    Received(usize),
    Sent,
    Changed,
    Tick,
}

/// One connection.
struct Talk {
    session: SlaveSession,
    began: Instant,
    out: Outgoing,
    /// The frame under way, as far as it has come.
    frame: Buffer,
    /// The body under way, of a master whose bodies are checked.
    body: Buffer,
    next: Next,
    /// The log has no room for what comes next.
    full: bool,
    /// The log is written in bulk.
    bulk: bool,
}

impl Talk {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// What is far behind is written in bulk: nobody waits for a part of it.
    fn hurry(&mut self, log: &Log) {
        let behind = self.session.master_end().saturating_sub(log.appended());
        let bulk = behind >= if self.bulk { BULK_TO_BYTES } else { BULK_FROM_BYTES };
        if bulk != self.bulk {
            self.bulk = bulk;
            log.set_bulk(bulk);
        }
    }
}

impl Slave {
    /// A slave that has not connected yet.
    pub fn new(config: SlaveConfig, shard: Rc<Shard>, terms: Rc<TermStore>) -> Rc<Slave> {
        Rc::new(Slave {
            config,
            shard,
            terms,
            state: RefCell::new(SlaveState::NoMaster),
            master: RefCell::new(None),
            followed: RefCell::new(None),
            known: RefCell::default(),
            welcomed: Cell::new(false),
            granted: Cell::new(None),
            master_term: Cell::new(None),
            reported: Cell::new(0),
            master_end: Cell::new(0),
            received: Cell::new(0),
            connections: Cell::new(0),
            reached: Cell::new(false),
            failures: Cell::new(0),
            last_error: RefCell::new(None),
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

    /// The HA port that it is connected to, as [`Upstream::ha_addr`] told it.
    pub fn followed(&self) -> Option<String> {
        self.followed.borrow().clone()
    }

    /// What a RingMQ master granted; `None` for a stock one.
    pub fn granted(&self) -> Option<Capabilities> {
        self.granted.get()
    }

    /// The last term of the RingMQ master that is followed.
    pub fn master_term(&self) -> Option<Term> {
        self.master_term.get()
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

    /// Tries to follow the master that have failed since it was followed for the last time.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Why the last connection that ended did, or the last try of one.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.borrow().clone()
    }

    /// Connections made since the start.
    pub fn connections(&self) -> u64 {
        self.connections.get()
    }

    fn note(&self, state: SlaveState) {
        if *self.state.borrow() == state || self.halted().is_some() {
            return;
        }
        let known = self.state.borrow().tells(&state);
        match &state {
            _ if known => {}
            SlaveState::Halted(why) => tracing::error!("this slave has stopped following: {why}"),
            SlaveState::Diverged(why) => {
                tracing::error!("this slave does not follow its master, and tries on: {why}");
            }
            SlaveState::Cutting(at) => {
                let end = self.shard.log().appended();
                tracing::warn!(
                    at,
                    end,
                    "the log parts from the master's and is cut: what lies beyond is kept"
                );
            }
            SlaveState::Connecting(Some(why)) => {
                tracing::warn!("the connection to the master has ended, trying on: {why}");
            }
            SlaveState::Waiting(why) => tracing::warn!("this slave waits for room: {why}"),
            SlaveState::Following => {
                let master = self.master().map(|addr| addr.to_string()).unwrap_or_default();
                let terms = self.granted.get().is_some();
                let from = self.shard.log().appended();
                tracing::info!(master, from, terms, "following the master");
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
                Ok(0) => {
                    changed.await;
                    // The report goes first: a producer waits for it.
                    yield_now().await;
                }
                Ok(_) => glommio::executor().yield_if_needed().await,
                Err(error) => return self.note(SlaveState::Halted(error.to_string())),
            }
        }
    }

    /// Follows the master, whoever it is at the time, until it is dropped, has to halt, or its log is to be cut.
    pub async fn run(self: Rc<Self>, upstream: impl Upstream) {
        let mut retry = Retry::new(self.config.retry_max);
        while self.halted().is_none() {
            let Some(addr) = upstream.ha_addr() else {
                self.note(SlaveState::NoMaster);
                sleep(NO_MASTER).await;
                continue;
            };
            let began = Instant::now();
            self.reached.set(false);
            let outcome = self.follow(&addr, &upstream).await;
            *self.master.borrow_mut() = None;
            *self.followed.borrow_mut() = None;
            // Nothing is written any more until the store is opened anew: a slave that goes on to connect is one that is waited for in vain.
            if let Some(why) = self.shard.log().failed() {
                *self.last_error.borrow_mut() = Some(format!("{addr}: {why}"));
                return self.note(SlaveState::Halted(why.to_string()));
            }
            let mut diverged = false;
            if !self.reached.get() {
                self.failures.set(self.failures.get() + 1);
            }
            if let Err(why) = &outcome {
                *self.last_error.borrow_mut() = Some(format!("{addr}: {why}"));
            }
            match outcome {
                Ok(()) => {}
                Err(End::Follow(error @ FollowError::Form { .. })) => {
                    return self.note(SlaveState::Halted(error.to_string()));
                }
                Err(End::Halted(_)) => return,
                Err(End::Cut) => return upstream.reopen(),
                Err(End::Trouble(why)) if why.is_divergence() => {
                    diverged = true;
                    self.note(SlaveState::Diverged(why));
                }
                Err(why) => {
                    if let End::Trouble(why) = &why {
                        self.known.borrow_mut().ended(&addr, why, self.welcomed.get());
                    }
                    self.note(SlaveState::Connecting(Some(format!("{addr}: {why}"))));
                }
            }
            upstream.look_again();
            sleep(retry.after(began.elapsed(), diverged)).await;
        }
    }

    async fn follow(&self, addr: &str, upstream: &impl Upstream) -> Result<(), End> {
        // Asked each time: another broker may be there by now. A stock one never gets a byte that is not stock's, if it can be asked.
        let kind = upstream.kind(addr).await;
        if let MasterKind::OtherShards { own, master } = kind {
            return Err(Trouble::Shards { own, master }.into());
        }
        let manner = self.known.borrow_mut().meet(addr, kind);
        // What the last connection brought is held before that is said.
        self.settle().await?;
        let mut last = End::Closed;
        for peer in resolve(addr, CONNECT_TIMEOUT).await? {
            match TcpStream::connect_timeout(peer, CONNECT_TIMEOUT).await {
                Ok(mut stream) => {
                    *self.master.borrow_mut() = Some(peer);
                    *self.followed.borrow_mut() = Some(addr.to_owned());
                    self.connections.set(self.connections.get() + 1);
                    // A delayed report would delay sends; not worth more than a slow connection.
                    let _ = stream.set_nodelay(true);
                    let speech = match manner {
                        Manner::Stock { asked } => self.stock_speech(asked, upstream).await?,
                        Manner::Hello { known } => Speech::Terms { known },
                    };
                    let ended = self.talk(&mut stream, addr, speech, upstream).await;
                    self.shard.log().set_bulk(false);
                    return ended;
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

    /// The log as a session may see it.
    fn view<'a>(&self, terms: &'a TermList) -> SlaveLog<'a> {
        let log = self.shard.log();
        SlaveLog {
            min: log.min_offset(),
            end: log.appended(),
            held: self.held(),
            segment: self.shard.segment_bytes(),
            bound: self.terms.bound(),
            terms,
        }
    }

    /// What the last connection brought is held, and can be read.
    async fn settle(&self) -> Result<(), End> {
        let log = self.shard.log();
        let end = log.appended();
        while log.written() < end && log.failed().is_none() {
            let changed = log.changed();
            log.kick();
            changed.await;
        }
        if self.config.ack == AckLevel::Sync || log.visible() < end {
            log.flushed(end).await?;
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        let all =
            Capabilities::FRAME_CRC.with(Capabilities::LARGE_FRAMES).with(Capabilities::METADATA);
        match self.config.ack {
            AckLevel::Write => all,
            AckLevel::Sync => all.with(Capabilities::SYNC_ACKS),
        }
    }

    async fn talk(
        &self,
        stream: &mut TcpStream,
        addr: &str,
        speech: Speech,
        upstream: &impl Upstream,
    ) -> Result<(), End> {
        let timing = self.config.timing;
        let config = crate::pair::SlaveConfig {
            timing,
            slave_id: self.config.slave_id,
            start: self.config.start,
            capabilities: self.capabilities(),
        };
        let mut talk = Talk {
            session: SlaveSession::new(config, speech, 0),
            began: Instant::now(),
            out: Outgoing::default(),
            frame: Buffer::default(),
            body: Buffer::default(),
            next: Next::Wait,
            full: false,
            bulk: false,
        };
        self.welcomed.set(false);
        self.granted.set(None);
        self.master_term.set(None);
        self.master_end.set(0);
        let log = self.shard.log();
        let mut tick = Timer::new(timing.tick());
        loop {
            if let Some(why) = self.halted() {
                return Err(End::Halted(why));
            }
            if let Some(why) = log.failed() {
                return Err(End::Halted(why.to_string()));
            }
            let mut changed = pin!(log.changed());
            if self.config.ack == AckLevel::Sync && log.durable() < log.written() {
                log.request_flush();
            }
            self.act(&mut talk, addr, upstream).await?;
            talk.hurry(log);
            let woke = poll_fn(|cx| self.poll(&mut talk, stream, changed.as_mut(), &mut tick, cx));
            match woke.await? {
                Woke::Received(len) => {
                    self.received_bytes(&mut talk, len);
                    glommio::executor().yield_if_needed().await;
                }
                Woke::Sent | Woke::Changed => {}
                Woke::Tick => tick = Timer::new(timing.tick()),
            }
            // A log without room is not a master that is silent.
            if talk.full {
                talk.session.heard(talk.now());
            }
        }
    }

    /// Does what the session wants and reads what has come, until neither leads on.
    async fn act(&self, talk: &mut Talk, addr: &str, upstream: &impl Upstream) -> Result<(), End> {
        loop {
            let now = talk.now();
            let action = talk.session.next(now, &self.view(&self.terms.list()))?;
            match action {
                Some(SlaveAction::Send(bytes)) => {
                    if talk.out.append(&bytes) > UNSENT_BYTES_MAX {
                        return Err(End::Stuck);
                    }
                }
                Some(SlaveAction::Crc { offset, len }) => {
                    let crc = crc_of(self.shard.log(), offset, len).await?;
                    talk.session.crc(now, crc, &self.view(&self.terms.list()))?;
                }
                Some(SlaveAction::StoreTerms(list)) => {
                    self.store_terms(list).await?;
                    talk.session.terms_stored(talk.now());
                }
                Some(SlaveAction::Cut(at)) => {
                    self.shard.order_cut(at).await?;
                    self.note(SlaveState::Cutting(at));
                    return Err(End::Cut);
                }
                Some(SlaveAction::Follows) => {
                    let terms = matches!(talk.session.speech(), Speech::Terms { .. });
                    self.granted.set(terms.then(|| talk.session.granted()));
                    self.master_term.set(talk.session.master_term());
                    self.reached.set(true);
                    self.failures.set(0);
                    if terms {
                        self.known.borrow_mut().is_ringmq(addr);
                    }
                    self.note(SlaveState::Following);
                }
                None => {
                    if !self.read_on(talk, upstream).await? {
                        break;
                    }
                }
            }
        }
        self.reported.set(talk.session.reported());
        self.master_end.set(talk.session.master_end());
        self.terms.raise_bound(talk.session.confirmed());
        Ok(())
    }

    async fn store_terms(&self, list: TermList) -> Result<(), End> {
        let save = self.terms.save(&list);
        self.shard.off_reactor(move || save.run()).await??;
        self.terms.adopt(list);
        Ok(())
    }

    /// Goes on with what has come. Whether that was something.
    async fn read_on(&self, talk: &mut Talk, upstream: &impl Upstream) -> Result<bool, End> {
        match talk.next {
            Next::Whole(body) if talk.body.len() == body.len => {
                // Before it is in the log: what is not what was sent never gets there.
                let intact = body.is_intact(talk.body.bytes());
                talk.session.body(talk.now(), intact)?;
                talk.next = Next::Place { at: body.at, from: 0 };
                Ok(true)
            }
            Next::Place { at, from } => self.place(talk, at, from),
            Next::Tail { left: 0, .. } => {
                talk.session.body(talk.now(), true)?;
                talk.next = Next::Wait;
                Ok(true)
            }
            Next::Wait => self.parse(talk, upstream).await,
            Next::Frame { need } if talk.frame.len() >= need => self.parse(talk, upstream).await,
            Next::Frame { .. } | Next::Tail { .. } | Next::Whole(_) => Ok(false),
        }
    }

    async fn parse(&self, talk: &mut Talk, upstream: &impl Upstream) -> Result<bool, End> {
        let now = talk.now();
        let (body, head) = {
            let terms = self.terms.list();
            self.welcomed.set(talk.session.is_welcomed());
            match talk.session.parse(now, talk.frame.bytes(), &self.view(&terms))? {
                Parsed::Need(need) => {
                    let more = need > talk.frame.len();
                    talk.next = Next::Frame { need: need.max(talk.frame.len()) };
                    return if more { Ok(false) } else { Err(End::Closed) };
                }
                Parsed::Wait => {
                    talk.next = Next::Wait;
                    return Ok(false);
                }
                Parsed::Metadata(body, len) => {
                    upstream.metadata(body);
                    talk.frame.consume(len);
                    talk.next = Next::Wait;
                    return Ok(true);
                }
                Parsed::Consumed(len) => {
                    talk.frame.consume(len);
                    talk.next = Next::Wait;
                    return Ok(true);
                }
                Parsed::Body(body, head) => (body, head),
            }
        };
        talk.frame.consume(head);
        if let Some(term) = body.term {
            let mut list = self.terms.list().clone();
            list.append(term)?;
            self.store_terms(list).await?;
        }
        if body.begins {
            let start = body.at;
            tracing::info!(start, "the master's log reaches this slave from a later segment on");
            self.shard.begin_at(start).await?;
        }
        talk.session.heard(talk.now());
        talk.body.clear();
        talk.next = match body.crc {
            None => Next::Tail { at: body.at, left: body.len },
            Some(_) => {
                let read = body.len.min(talk.frame.len());
                talk.body.extend(talk.frame.bytes().get(..read).unwrap_or_default());
                talk.frame.consume(read);
                Next::Whole(body)
            }
        };
        Ok(true)
    }

    /// Moves what was checked into the log, as far as there is room.
    fn place(&self, talk: &mut Talk, at: u64, from: usize) -> Result<bool, End> {
        let bytes = talk.body.bytes().get(from..).unwrap_or_default();
        let taken = self.take(at, bytes.len(), |place| {
            let len = place.len().min(bytes.len());
            match (place.get_mut(..len), bytes.get(..len)) {
                (Some(to), Some(from)) => to.copy_from_slice(from),
                _ => return Ok(0),
            }
            Ok(len)
        });
        let Some(len) = taken? else {
            talk.full = true;
            return Ok(false);
        };
        talk.full = false;
        self.took(len);
        let from = from + len;
        talk.next = match talk.body.len() - from {
            0 => Next::Wait,
            _ => Next::Place { at: at + len as u64, from },
        };
        Ok(true)
    }

    /// [`ringmq_engine::log::Log::follow`]; `None` while the log has no room.
    fn take(
        &self,
        at: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<Option<usize>, FollowError> {
        match self.shard.log().follow(at, len, fill) {
            Ok(len) => {
                if matches!(*self.state.borrow(), SlaveState::Waiting(_)) {
                    self.note(SlaveState::Following);
                }
                Ok(Some(len))
            }
            Err(FollowError::Append(AppendError::Busy { .. } | AppendError::NotReady { .. })) => {
                Ok(None)
            }
            Err(FollowError::Append(error @ AppendError::NoSpace { .. })) => {
                self.note(SlaveState::Waiting(error.to_string()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn took(&self, len: usize) {
        self.received.set(self.received.get() + len as u64);
        self.shard.kick();
    }

    fn poll(
        &self,
        talk: &mut Talk,
        stream: &mut TcpStream,
        changed: Pin<&mut impl Future<Output = ()>>,
        tick: &mut Timer,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Woke, End>> {
        if !talk.out.is_done()
            && let Poll::Ready(result) = talk.out.poll_send(stream, cx)
        {
            return Poll::Ready(result.map(|()| Woke::Sent).map_err(End::from));
        }
        match self.poll_receive(talk, stream, cx) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(End::Closed)),
            Poll::Ready(result) => return Poll::Ready(result.map(Woke::Received)),
            Poll::Pending => {}
        }
        if changed.poll(cx).is_ready() {
            return Poll::Ready(Ok(Woke::Changed));
        }
        Pin::new(tick).poll(cx).map(|_| Ok(Woke::Tick))
    }

    /// Receives to where the next bytes belong.
    fn poll_receive(
        &self,
        talk: &mut Talk,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, End>> {
        let mut stream = Pin::new(stream);
        match talk.next {
            Next::Wait | Next::Place { .. } => Poll::Pending,
            Next::Frame { need } => {
                let checked = talk.session.granted().has(Capabilities::FRAME_CRC);
                let need = if checked { need.max(talk.frame.len() + AHEAD) } else { need };
                let received = talk
                    .frame
                    .receive(need, FRAME_STEP, |room| stream.as_mut().poll_read(cx, room));
                received.map_err(End::from)
            }
            Next::Whole(body) => {
                let received = talk
                    .body
                    .receive(body.len, BODY_STEP, |room| stream.as_mut().poll_read(cx, room));
                received.map_err(End::from)
            }
            Next::Tail { at, left } => {
                let mut nothing = false;
                let taken =
                    self.take(at, left, |place| match stream.as_mut().poll_read(cx, place) {
                        Poll::Ready(result) => result,
                        Poll::Pending => {
                            nothing = true;
                            Ok(0)
                        }
                    });
                talk.full = matches!(taken, Ok(None));
                match taken {
                    Ok(None) => Poll::Pending,
                    Ok(Some(_)) if nothing => Poll::Pending,
                    Ok(Some(len)) => Poll::Ready(Ok(len)),
                    Err(error) => Poll::Ready(Err(error.into())),
                }
            }
        }
    }

    /// `len` bytes have come to where they belong.
    fn received_bytes(&self, talk: &mut Talk, len: usize) {
        talk.session.heard(talk.now());
        if let Next::Tail { at, left } = &mut talk.next {
            *at += len as u64;
            *left = left.saturating_sub(len);
            self.took(len);
        }
    }
}
