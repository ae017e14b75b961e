//! The slave's side of one connection: what both logs have in common, and then following.

use std::collections::VecDeque;
use std::time::Duration;

use ringmq_net::ha_frame::{self, HaFrameError};
use ringmq_net::ha_term_frame::{self as wire, Capabilities, TermFrameError};
use thiserror::Error;

use super::ms;
use super::slave_wire::Body;
use crate::stock::{Mismatch, Timing};
use crate::terms::{Candidate, Term, TermId, TermList, candidates};

/// How long a hello waits for its answer if nobody knows whether the master is a RingMQ node: a stock one takes it for an offset and is
/// silent.
const HELLO_PATIENCE_MS: u64 = 1_000;
/// Before a connection is tried again: doubled each time, up to what is configured.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// So many times longer are the waits where the next try will most likely end as the last one did.
const HOPELESS: u32 = 3;
const HOPELESS_MIN: Duration = Duration::from_secs(1);

/// Which history an empty slave asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// All that the master has.
    Oldest,
    /// Its last segment, as a stock slave.
    Newest,
}

/// What a session is told.
#[derive(Debug, Clone, Copy)]
pub struct SlaveConfig {
    /// When what is sent and expected.
    pub timing: Timing,
    /// Its id in its group.
    pub slave_id: i64,
    /// For an empty log.
    pub start: Start,
    /// What it can. [`Capabilities::FROM_NEWEST`] comes from `start`.
    pub capabilities: Capabilities,
}

/// How the slave speaks on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// The 4.x protocol, and this is the first report.
    Stock {
        /// Where the master is to begin.
        first: u64,
        /// Its log is known to go as far as this one, by what it told itself. Otherwise only bytes of it show that: a stock master's
        /// heartbeat repeats what was reported to it, whatever it has.
        compared: bool,
    },
    /// The hello, and frames with terms.
    Terms {
        /// The master is known to be a RingMQ node: silence is no sign of a stock one.
        known: bool,
    },
}

/// The slave's log as it is now.
#[derive(Debug, Clone, Copy)]
pub struct SlaveLog<'a> {
    /// Its first byte.
    pub min: u64,
    /// End of what was received into it: where the next body goes.
    pub end: u64,
    /// What a report may say: written, or flushed.
    pub held: u64,
    /// Bytes of a segment, the same on both sides.
    pub segment: u64,
    /// Up to here it was acknowledged because slaves held it: it is never cut below.
    pub bound: u64,
    /// Who wrote it.
    pub terms: &'a TermList,
}

impl SlaveLog<'_> {
    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.min == self.end
    }
}

/// Why a connection is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Trouble {
    /// Nothing came.
    #[error("the master was silent for {0} ms")]
    Silent(u64),
    /// Nobody answered the hello.
    #[error("the master does not answer as a RingMQ node")]
    NotRingMq,
    /// Not a frame of the 4.x protocol.
    #[error("{0}")]
    StockFrame(#[from] HaFrameError),
    /// Not a frame.
    #[error("{0}")]
    Frame(#[from] TermFrameError),
    /// A frame that may not come now.
    #[error("the master sent {0} where it must not")]
    OutOfOrder(&'static str),
    /// A frame for another place of the log.
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
    /// A body that is not what was sent.
    #[error(
        "the frame for physical offset {0} came damaged: nothing of it was stored, and it is asked for again"
    )]
    Damaged(u64),
    /// A term that cannot follow.
    #[error(
        "the master sends term {number} from {start} for physical offset {at}, which does not follow this log's terms"
    )]
    Term {
        /// Its number.
        number: i32,
        /// Its start.
        start: i64,
        /// Where the bytes go.
        at: u64,
    },
    /// Nothing shows that both logs begin alike.
    #[error(
        "this log [{min}, {end}) and the master's [{master_min}, {master_end}) share no term and no bytes that show where they part: decide whose log goes, move that store away, let it join empty"
    )]
    NothingCommon {
        /// Our first byte.
        min: u64,
        /// Our end.
        end: u64,
        /// The master's first byte.
        master_min: u64,
        /// Its end.
        master_end: u64,
    },
    /// The terms say that the bytes are the same, and they are not.
    #[error(
        "this log and the master's were written by the same masters up to {0}, but the bytes before it differ: one of them is damaged; run `ringmq log verify` on both stores, move the damaged one away, let it join empty"
    )]
    Differs(u64),
    /// To follow would lose what was promised.
    #[error(
        "this log [{min}, {end}) parts from the master's [{master_min}, {master_end}) at {point}, below {bound}, up to which messages were acknowledged because slaves held them, and the master lacks those: make this node the master instead, or give them up: move this store away and let it join empty"
    )]
    BelowAcknowledged {
        /// Where they part.
        point: u64,
        /// What was acknowledged.
        bound: u64,
        /// Our first byte.
        min: u64,
        /// Our end.
        end: u64,
        /// The master's first byte.
        master_min: u64,
        /// Its end.
        master_end: u64,
    },
    /// The master has another number of shards: some of its logs would have no slave, or some slaves no master.
    #[error(
        "the master has {master} shards and this slave {own}: give this slave as many by shards.count, on an empty store"
    )]
    Shards {
        /// Ours.
        own: usize,
        /// Its.
        master: usize,
    },
    /// A stock master's log ends before this one does.
    #[error(
        "the master's log [{min}, {max}) ends before this one, at {own}: one of them lost or gained messages; decide whose log goes, move that store away, let it join empty"
    )]
    Shorter {
        /// Our end.
        own: u64,
        /// Its first byte.
        min: u64,
        /// Its end.
        max: u64,
    },
    /// A stock master's log begins after this one ends.
    #[error(
        "the master's log [{min}, {max}) begins after this one ends, at {own}: what comes next here is deleted there; move this store away and let it join empty"
    )]
    Behind {
        /// Our end.
        own: u64,
        /// Its first byte.
        min: u64,
        /// Its end.
        max: u64,
    },
    /// A stock master has something else where our last message is.
    #[error(
        "the master does not have the message that this log has at physical offset {0}: the logs are not of one history; decide whose log goes, move that store away, let it join empty"
    )]
    OtherMessage(u64),
    /// The master refuses.
    #[error("{}", refusal(*reason, *offset))]
    Refused {
        /// Its number: see [`crate::stock::Refused::code`].
        reason: u32,
        /// The offset that it is about.
        offset: i64,
    },
}

fn refusal(reason: u32, offset: i64) -> String {
    match reason {
        1 => format!("the master refuses this log, which goes beyond its own end {offset}"),
        2 => format!(
            "the master refuses this log: it has nothing before {offset} any more; move this store away and let it join empty"
        ),
        _ => format!("the master refuses this slave (reason {reason}, {offset}); its log says why"),
    }
}

impl Trouble {
    /// Whether both logs are known to differ, so that an operator has to decide: a new connection to the same master changes nothing.
    pub fn is_divergence(&self) -> bool {
        matches!(
            self,
            Trouble::Mismatch(_)
                | Trouble::Term { .. }
                | Trouble::NothingCommon { .. }
                | Trouble::Differs(_)
                | Trouble::BelowAcknowledged { .. }
                | Trouble::Shards { .. }
                | Trouble::Shorter { .. }
                | Trouble::Behind { .. }
                | Trouble::OtherMessage(_)
                | Trouble::Refused { .. }
        )
    }
}

/// When the next connection is tried.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    wait: Duration,
    max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry::new(RETRY_MAX)
    }
}

impl Retry {
    /// The first one waits least, none longer than `max`, or after a divergence three times that.
    pub fn new(max: Duration) -> Self {
        Retry { wait: Duration::ZERO, max }
    }

    /// How long to wait after a connection that was followed for `lasted`, or one that ended in a divergence.
    pub fn after(&mut self, lasted: Duration, divergence: bool) -> Duration {
        let (min, max) = match divergence {
            true => (HOPELESS_MIN, self.max * HOPELESS),
            false => (RETRY_MIN, self.max),
        };
        let good = self.max.min(RETRY_MAX);
        let fresh = lasted > good && !divergence;
        self.wait = if fresh { min } else { (self.wait * 2).max(min) }.min(max);
        self.wait
    }
}

/// What the shell does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlaveAction {
    /// Write these bytes, in order.
    Send(Vec<u8>),
    /// Tell the CRC-32C of `[offset - len, offset)` of the own log by [`SlaveSession::crc`].
    Crc {
        /// Its end.
        offset: u64,
        /// Its length.
        len: u32,
    },
    /// Make these the log's terms, durably, then [`SlaveSession::terms_stored`].
    StoreTerms(TermList),
    /// Order the log to be cut there, and open the store anew: the session is over. The cut is durable before the next report.
    Cut(u64),
    /// Both logs agree as far as the shorter one goes.
    Follows,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The hello is sent.
    Greeting,
    /// It is looked for how far both logs are the same.
    Comparing,
    /// The terms are being stored.
    Storing,
    /// The first report comes next.
    Reporting,
    /// The log comes.
    Following,
    /// The log is to be cut: nothing more.
    Over,
}

/// What is known while both logs are compared.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) master: TermList,
    pub(super) master_min: u64,
    pub(super) master_end: u64,
    pub(super) open: VecDeque<Candidate>,
    pub(super) window: u32,
    pub(super) theirs: Option<Option<u32>>,
    ours: Option<Option<u32>>,
}

/// One connection to a master. See the module for how it is driven.
#[derive(Debug)]
pub struct SlaveSession {
    pub(super) config: SlaveConfig,
    pub(super) speech: Speech,
    pub(super) phase: Phase,
    pub(super) granted: Capabilities,
    pub(super) ids: Vec<[u8; 16]>,
    pub(super) frame_crc: Option<u32>,
    pub(super) body: Option<Body>,
    pub(super) compare: Comparison,
    confirmed: u64,
    /// The same, of which not all is held yet.
    promised: u64,
    pub(super) master_end: u64,
    pub(super) heard_ms: u64,
    pub(super) answered: bool,
    /// A frame of a RingMQ master's has come, and was one.
    pub(super) welcomed: bool,
    actions: VecDeque<SlaveAction>,
    follows: bool,
    reported: u64,
    sent_ms: u64,
}

impl SlaveSession {
    /// A connection that was made at `now_ms`.
    pub fn new(config: SlaveConfig, speech: Speech, now_ms: u64) -> Self {
        let mut session = SlaveSession {
            config,
            speech,
            phase: Phase::Greeting,
            granted: Capabilities::none(),
            ids: Vec::new(),
            frame_crc: None,
            body: None,
            compare: Comparison::default(),
            confirmed: 0,
            promised: 0,
            master_end: 0,
            heard_ms: now_ms,
            answered: false,
            welcomed: false,
            actions: VecDeque::new(),
            follows: false,
            reported: 0,
            sent_ms: now_ms,
        };
        match speech {
            Speech::Stock { first, .. } => {
                session.phase = Phase::Following;
                session.report(now_ms, first);
            }
            Speech::Terms { .. } => {
                // In one write: a stock 5.x master looks at a handshake before all of it is there.
                let mut opening = wire::HELLO.to_be_bytes().to_vec();
                let handshake = wire::encode_slave_handshake(session.wanted(), config.slave_id);
                opening.extend_from_slice(&handshake);
                session.actions.push_back(SlaveAction::Send(opening));
            }
        }
        session
    }

    fn wanted(&self) -> Capabilities {
        match self.config.start {
            Start::Newest => self.config.capabilities.with(Capabilities::FROM_NEWEST),
            Start::Oldest => self.config.capabilities,
        }
    }

    pub(super) fn speaks_terms(&self) -> bool {
        matches!(self.speech, Speech::Terms { .. })
    }

    /// How it speaks.
    pub fn speech(&self) -> Speech {
        self.speech
    }

    /// What the master granted.
    pub fn granted(&self) -> Capabilities {
        self.granted
    }

    /// Whether the master has welcomed this slave: it is a RingMQ node, whatever comes later.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// What was last reported.
    pub fn reported(&self) -> u64 {
        self.reported
    }

    /// Where the master's log ends, as far as it told.
    pub fn master_end(&self) -> u64 {
        self.master_end
    }

    /// Up to where the master said that messages were acknowledged because slaves hold them, and all of that is held here.
    pub fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// The last term of a master that told its terms.
    pub fn master_term(&self) -> Option<Term> {
        self.compare.master.last().copied()
    }

    /// Both logs were found to agree.
    pub fn is_following(&self) -> bool {
        self.follows
    }

    /// The own CRC; `None` if the range is not there any more.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn crc(
        &mut self,
        now_ms: u64,
        crc: Option<u32>,
        log: &SlaveLog<'_>,
    ) -> Result<(), Trouble> {
        if self.phase != Phase::Comparing {
            return Ok(());
        }
        self.compare.ours = Some(crc);
        self.compare_crcs(now_ms, log)
    }

    /// The terms are as [`SlaveAction::StoreTerms`] said, durably.
    pub fn terms_stored(&mut self, now_ms: u64) {
        if self.phase == Phase::Storing {
            self.heard_ms = now_ms;
            self.phase = Phase::Reporting;
        }
    }

    /// The body of the last [`super::Parsed::Body`] has come, and is what was sent or not.
    ///
    /// # Errors
    /// [`Trouble::Damaged`]: it must not get into the log.
    pub fn body(&mut self, now_ms: u64, intact: bool) -> Result<(), Trouble> {
        self.heard_ms = now_ms;
        match self.body.take() {
            Some(body) if !intact => Err(Trouble::Damaged(body.at)),
            Some(body) => {
                self.promise(body.confirmed);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// An intact frame says that messages are acknowledged up to here.
    pub(super) fn promise(&mut self, confirmed: u64) {
        // One after the other, so that a slave that is always a little behind gets there too.
        if self.promised <= self.confirmed {
            self.promised = self.promised.max(confirmed);
        }
    }

    /// A sign of life: a part of a body has come, or there is no room for it.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// The next thing to do; `None` until something happens or some time has passed.
    ///
    /// # Errors
    /// [`Trouble`]: the connection is over.
    pub fn next(
        &mut self,
        now_ms: u64,
        log: &SlaveLog<'_>,
    ) -> Result<Option<SlaveAction>, Trouble> {
        let patience = ms(self.config.timing.housekeeping);
        let silent = now_ms.saturating_sub(self.heard_ms);
        if self.phase == Phase::Greeting
            && !self.answered
            && self.speech == (Speech::Terms { known: false })
            && silent > HELLO_PATIENCE_MS
        {
            return Err(Trouble::NotRingMq);
        }
        if self.promised <= log.held {
            self.confirmed = self.confirmed.max(self.promised);
        }
        if silent > patience {
            return Err(Trouble::Silent(patience));
        }
        // A log whose end is not held yet is not reported shorter than it is: the master would send again what is there.
        if self.phase == Phase::Reporting && (log.is_empty() || log.held == log.end) {
            self.phase = Phase::Following;
            self.report(now_ms, if log.is_empty() { 0 } else { log.end });
            self.follow();
        }
        if self.phase == Phase::Following && self.actions.is_empty() {
            let idle = now_ms.saturating_sub(self.sent_ms) >= ms(self.config.timing.heartbeat);
            if idle || (log.held > self.reported && !log.is_empty()) {
                self.report(now_ms, log.held.max(self.reported));
            }
        }
        Ok(self.actions.pop_front())
    }

    fn report(&mut self, now_ms: u64, offset: u64) {
        self.reported = offset;
        self.sent_ms = now_ms;
        let bytes = match self.speech {
            Speech::Terms { .. } => wire::encode_report(offset).to_vec(),
            Speech::Stock { .. } => ha_frame::encode_report(offset).to_vec(),
        };
        self.actions.push_back(SlaveAction::Send(bytes));
    }

    pub(super) fn follow(&mut self) {
        if !self.follows {
            self.follows = true;
            self.actions.push_back(SlaveAction::Follows);
        }
    }

    /// The master has told its terms: where do the logs part?
    pub(super) fn start_to_compare(
        &mut self,
        now_ms: u64,
        log: &SlaveLog<'_>,
    ) -> Result<(), Trouble> {
        if self.config.capabilities.has(Capabilities::OBSERVER) {
            // It keeps no log that could differ.
            self.phase = Phase::Reporting;
            return Ok(());
        }
        self.phase = Phase::Comparing;
        if log.is_empty() {
            self.store(TermList::default(), log);
            return Ok(());
        }
        let compare = &mut self.compare;
        let mut open = candidates(log.terms, log.end, &compare.master, compare.master_end);
        open.retain(|candidate| (log.min..=log.end).contains(&candidate.point));
        compare.open = open.into();
        self.ask_for_crc(now_ms, log)
    }

    fn ask_for_crc(&mut self, now_ms: u64, log: &SlaveLog<'_>) -> Result<(), Trouble> {
        let compare = &mut self.compare;
        (compare.theirs, compare.ours) = (None, None);
        while let Some(candidate) = compare.open.front().copied() {
            let comparable = candidate.point.saturating_sub(log.min.max(compare.master_min));
            compare.window = comparable.min(u64::from(wire::CRC_RANGE_MAX)) as u32;
            if compare.window > 0 {
                let (offset, len) = (candidate.point, compare.window);
                let query = wire::encode_crc_query(offset, len);
                self.actions.push_back(SlaveAction::Send(query.to_vec()));
                self.actions.push_back(SlaveAction::Crc { offset, len });
                self.sent_ms = now_ms;
                return Ok(());
            }
            if candidate.proven {
                return self.align(candidate.point, log);
            }
            compare.open.pop_front();
        }
        Err(Trouble::NothingCommon {
            min: log.min,
            end: log.end,
            master_min: compare.master_min,
            master_end: compare.master_end,
        })
    }

    pub(super) fn compare_crcs(&mut self, now_ms: u64, log: &SlaveLog<'_>) -> Result<(), Trouble> {
        let (Some(ours), Some(theirs)) = (self.compare.ours, self.compare.theirs) else {
            return Ok(());
        };
        let Some(candidate) = self.compare.open.front().copied() else { return Ok(()) };
        let same = ours.zip(theirs).map(|(ours, theirs)| ours == theirs);
        match (same, candidate.proven) {
            (Some(true), _) | (None, true) => self.align(candidate.point, log),
            (Some(false), true) => Err(Trouble::Differs(candidate.point)),
            // Perhaps two histories of one number and start, as stock 5.5.0 makes them: go below.
            (Some(false) | None, false) => {
                self.compare.open.pop_front();
                self.ask_for_crc(now_ms, log)
            }
        }
    }

    /// Both logs are the same up to `point`.
    fn align(&mut self, point: u64, log: &SlaveLog<'_>) -> Result<(), Trouble> {
        if point < log.end {
            if point < log.bound {
                return Err(Trouble::BelowAcknowledged {
                    point,
                    bound: log.bound,
                    min: log.min,
                    end: log.end,
                    master_min: self.compare.master_min,
                    master_end: self.compare.master_end,
                });
            }
            if point < self.compare.master_min {
                // It has nothing for what would be left.
                let offset = i64::try_from(self.compare.master_min).unwrap_or(i64::MAX);
                return Err(Trouble::Refused { reason: 2, offset });
            }
            self.phase = Phase::Over;
            self.actions.push_back(SlaveAction::Cut(point));
            return Ok(());
        }
        let mut terms = self.compare.master.up_to(point);
        terms.learn_ids(log.terms);
        self.store(terms, log);
        Ok(())
    }

    fn store(&mut self, terms: TermList, log: &SlaveLog<'_>) {
        if terms == *log.terms {
            self.phase = Phase::Reporting;
        } else {
            self.phase = Phase::Storing;
            self.actions.push_back(SlaveAction::StoreTerms(terms));
        }
    }

    /// The master's term of this number and start, with the id that it told.
    pub(super) fn term(&self, number: u32, start: u64) -> Term {
        let mut known = self.compare.master.as_slice().iter().copied();
        let known = known.find(|term| term.number == number && term.start == start);
        known.unwrap_or(Term { number, start, id: TermId::default() })
    }
}
