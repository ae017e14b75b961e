//! The master's side of one connection.

use std::collections::VecDeque;
use std::fmt;

use ringmq_net::ha_frame::{self, HA_REPORT_BYTES, last_report};
use ringmq_net::ha_term_frame::{
    self as wire, Capabilities, CrcAnswer, DATA_HEADER_BYTES, DataHeader, SlaveFrame,
    TermFrameError, Welcome, WireTerm,
};
use thiserror::Error;

use super::{TERM_BATCH_BYTES, ms};
use crate::stock::{LogRange, MasterSide, Refused, Report, Timing};
use crate::terms::TermList;

/// Questions for CRCs that wait; a slave asks one at a time.
const QUERIES_MAX: usize = 16;
/// Pieces of metadata that wait in a session; more stay with the shell.
const METADATA_WAITING_MAX: usize = 4;
/// Bytes of a frame's CRC before its head.
const FRAME_CRC_BYTES: usize = 12;

/// What a session is told.
#[derive(Debug, Clone, Copy)]
pub struct MasterConfig {
    /// When what is sent and expected.
    pub timing: Timing,
    /// Most bytes of a body toward a stock slave, which takes up to 4 MiB less 12 (stock default: 32 KiB).
    pub stock_batch_bytes: u32,
    /// Whether there is metadata for slaves that take it.
    pub metadata: bool,
}

impl MasterConfig {
    /// What is granted to a slave that can all of it.
    fn grants(&self) -> Capabilities {
        let all = wire::KNOWN;
        if self.metadata { all } else { all.without(Capabilities::METADATA) }
    }
}

/// The master's log as it is now.
#[derive(Debug, Clone, Copy)]
pub struct MasterLog<'a> {
    /// What may be sent.
    pub range: LogRange,
    /// The last boundary between records in it.
    pub whole: u64,
    /// Up to here messages were acknowledged because slaves hold them: where one of them ends.
    pub confirmed: u64,
    /// Who wrote it.
    pub terms: &'a TermList,
}

/// What a slave's connection is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerState {
    /// It has not reported yet.
    Waiting,
    /// A RingMQ slave, which looks how far both logs are the same.
    Aligning,
    /// It gets the log.
    Streaming,
    /// It gets nothing: why.
    Refused(Refused),
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerState::Waiting => f.write_str("waiting"),
            PeerState::Aligning => f.write_str("aligning"),
            PeerState::Streaming => f.write_str("streaming"),
            PeerState::Refused(why) => write!(f, "refused: {why}"),
        }
    }
}

/// Why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MasterClose {
    /// Nothing came.
    #[error("the slave was silent for {0} ms")]
    Silent(u64),
    /// It was refused, and kept for a while so that it does not come back at once, again and again.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// What it sent is no frame.
    #[error("{0}")]
    Frame(#[from] TermFrameError),
}

/// What the shell does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterAction {
    /// Write these bytes, then [`MasterSession::sent`].
    Send(Vec<u8>),
    /// Take up to `max` bytes of the log at `from`, give them to [`MasterSession::frame`], write head and bytes, then
    /// [`MasterSession::sent`].
    Data {
        /// Physical offset.
        from: u64,
        /// Bytes.
        max: u32,
    },
    /// Tell the CRC-32C of `[offset - len, offset)` by [`MasterSession::crc`]: the range is in the log.
    Crc {
        /// Its end.
        offset: u64,
        /// Its length.
        len: u32,
    },
    /// It does not count as a slave until it is admitted.
    Withhold,
    /// It is this slave, and counts.
    Admit(i64),
    /// It holds the log up to here: only ever more, and only what was sent.
    Acked(u64),
    /// Its state has changed.
    State(PeerState),
    /// Drop the connection.
    Close(MasterClose),
}

/// The bytes before a frame's body.
#[derive(Debug, Clone, Copy)]
pub struct FrameHead {
    bytes: [u8; FRAME_CRC_BYTES + DATA_HEADER_BYTES],
    len: usize,
}

impl FrameHead {
    fn new(crc: &[u8], head: &[u8]) -> Self {
        let mut bytes = [0; FRAME_CRC_BYTES + DATA_HEADER_BYTES];
        let parts = crc.iter().chain(head);
        let len = bytes.iter_mut().zip(parts).map(|(to, from)| *to = *from).count();
        FrameHead { bytes, len }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speech {
    Unknown,
    Stock,
    Terms,
}

/// One connection of a slave. See the module for how it is driven.
#[derive(Debug)]
pub struct MasterSession {
    config: MasterConfig,
    speech: Speech,
    granted: Capabilities,
    slave: Option<i64>,
    state: PeerState,
    side: MasterSide,
    input: Vec<u8>,
    output: VecDeque<Vec<u8>>,
    events: VecDeque<MasterAction>,
    queries: VecDeque<(u64, u32)>,
    metadata: VecDeque<Vec<u8>>,
    /// A CRC is being computed.
    asked: bool,
    writing: bool,
    acked: u64,
    reports: u64,
    heard_ms: u64,
    sent_ms: u64,
    refused_ms: u64,
    closed: bool,
}

impl MasterSession {
    /// A connection that was accepted at `now_ms`.
    pub fn new(config: MasterConfig, now_ms: u64) -> Self {
        MasterSession {
            config,
            speech: Speech::Unknown,
            granted: Capabilities::none(),
            slave: None,
            state: PeerState::Waiting,
            side: MasterSide::default(),
            input: Vec::new(),
            output: VecDeque::new(),
            events: VecDeque::new(),
            queries: VecDeque::new(),
            metadata: VecDeque::new(),
            asked: false,
            writing: false,
            acked: 0,
            reports: 0,
            heard_ms: now_ms,
            sent_ms: now_ms,
            refused_ms: now_ms,
            closed: false,
        }
    }

    /// The slave's id in its group, once a RingMQ node told it.
    pub fn slave(&self) -> Option<i64> {
        self.slave
    }

    /// Whether the peer speaks with terms.
    pub fn speaks_terms(&self) -> bool {
        self.speech == Speech::Terms
    }

    /// What was granted to it.
    pub fn granted(&self) -> Capabilities {
        self.granted
    }

    /// End of what it reported to hold.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// The next byte to send, once that is known.
    pub fn next_offset(&self) -> Option<u64> {
        self.side.next()
    }

    /// Reports received.
    pub fn reports(&self) -> u64 {
        self.reports
    }

    /// Whether it takes metadata at all, now that its log is found to agree.
    pub fn takes_metadata(&self) -> bool {
        self.granted.has(Capabilities::METADATA) && self.state == PeerState::Streaming
    }

    /// Whether it takes metadata now.
    pub fn has_room_for_metadata(&self) -> bool {
        self.takes_metadata() && self.metadata.len() < METADATA_WAITING_MAX
    }

    /// Whether metadata waits that is not being written yet.
    pub fn has_metadata_waiting(&self) -> bool {
        !self.metadata.is_empty()
    }

    /// Metadata for the slave: goes before what is not on its way yet of the log, after what was given before. Without room, or larger
    /// than a frame may be, it is dropped.
    pub fn metadata(&mut self, body: &[u8]) {
        if let Some(frame) = wire::encode_metadata(body).filter(|_| self.has_room_for_metadata()) {
            self.metadata.push_back(frame);
        }
    }

    /// Bytes came from the slave.
    pub fn received(&mut self, now_ms: u64, bytes: &[u8], log: &MasterLog<'_>) {
        self.heard_ms = now_ms;
        if self.closed || matches!(self.state, PeerState::Refused(_)) {
            return;
        }
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        match self.parse(now_ms, &input, log) {
            Ok(used) => self.input.extend_from_slice(input.get(used..).unwrap_or_default()),
            Err(error) => self.close(error.into()),
        }
    }

    /// Gives how many bytes were used.
    fn parse(
        &mut self,
        now_ms: u64,
        input: &[u8],
        log: &MasterLog<'_>,
    ) -> Result<usize, TermFrameError> {
        let mut at = 0;
        if self.speech == Speech::Unknown {
            let Some(first) = input.first_chunk::<HA_REPORT_BYTES>() else { return Ok(0) };
            if i64::from_be_bytes(*first) == wire::HELLO {
                (self.speech, at) = (Speech::Terms, HA_REPORT_BYTES);
                self.events.push_back(MasterAction::Withhold);
            } else {
                self.speech = Speech::Stock;
            }
        }
        if self.speech == Speech::Stock {
            let Some((offset, used)) = last_report(input) else { return Ok(0) };
            self.reported(now_ms, offset, log);
            return Ok(used);
        }
        while let Some((frame, len)) = wire::peek_slave(input.get(at..).unwrap_or_default())? {
            at += len;
            self.frame_came(now_ms, frame, log);
        }
        Ok(at)
    }

    fn frame_came(&mut self, now_ms: u64, frame: SlaveFrame, log: &MasterLog<'_>) {
        match frame {
            SlaveFrame::Handshake { capabilities, slave_id } if self.slave.is_none() => {
                self.slave = Some(slave_id);
                self.granted = capabilities.and(self.config.grants());
                self.answer_handshake(log);
                self.enter(PeerState::Aligning);
            }
            // One answer is enough.
            SlaveFrame::Handshake { .. } => {}
            SlaveFrame::Report(end) if self.slave.is_some() => self.reported(now_ms, end, log),
            SlaveFrame::Report(end) => {
                self.refuse(now_ms, Refused::Forged { slave: end, sent: 0 });
            }
            SlaveFrame::CrcQuery { offset, len } if self.queries.len() < QUERIES_MAX => {
                self.queries.push_back((offset, len));
            }
            SlaveFrame::CrcQuery { .. } => {}
        }
    }

    fn answer_handshake(&mut self, log: &MasterLog<'_>) {
        self.output.push_back(wire::encode_welcome(&Welcome {
            capabilities: self.granted,
            body_bytes_max: self.batch_bytes(),
            log_start: log.range.min,
        }));
        let terms = log.terms.as_slice();
        let ids: Vec<_> = terms.iter().map(|term| term.id.0.to_be_bytes()).collect();
        self.output.push_back(wire::encode_term_ids(&ids));
        let terms: Vec<_> = terms
            .iter()
            .map(|term| WireTerm { number: term.number as i32, start: term.start as i64 })
            .collect();
        self.output.push_back(wire::encode_master_handshake(log.whole, &terms));
    }

    fn batch_bytes(&self) -> u32 {
        match self.speech {
            Speech::Terms if self.granted.has(Capabilities::LARGE_FRAMES) => TERM_BATCH_BYTES,
            _ => self.config.stock_batch_bytes,
        }
    }

    fn reported(&mut self, now_ms: u64, offset: i64, log: &MasterLog<'_>) {
        self.reports += 1;
        let oldest = self.speech == Speech::Terms && !self.granted.has(Capabilities::FROM_NEWEST);
        let acked = match self.side.report(offset, log.range, oldest) {
            Ok(Report::Begin { acked, .. }) => {
                self.enter(PeerState::Streaming);
                if let Some(slave) = self.slave.filter(|_| self.counts()) {
                    self.events.push_back(MasterAction::Admit(slave));
                }
                acked
            }
            Ok(Report::Acked(acked)) => acked,
            Err(why) => return self.refuse(now_ms, why),
        };
        self.acked = self.acked.max(acked);
        if self.counts() {
            self.events.push_back(MasterAction::Acked(self.acked));
        }
    }

    /// Whether it is waited for: no observer and no learner is.
    fn counts(&self) -> bool {
        !self.granted.has(Capabilities::OBSERVER) && !self.granted.has(Capabilities::LEARNER)
    }

    fn refuse(&mut self, now_ms: u64, why: Refused) {
        self.refused_ms = now_ms;
        if self.speech == Speech::Terms {
            self.output.push_back(wire::encode_refusal(why.code(), why.offset()));
        }
        self.input = Vec::new();
        self.queries.clear();
        self.metadata.clear();
        self.events.push_back(MasterAction::Withhold);
        self.enter(PeerState::Refused(why));
    }

    fn close(&mut self, why: MasterClose) {
        self.closed = true;
        self.events.push_back(MasterAction::Close(why));
    }

    fn enter(&mut self, state: PeerState) {
        self.state = state.clone();
        self.events.push_back(MasterAction::State(state));
    }

    /// What was to be written is written.
    pub fn sent(&mut self, now_ms: u64) {
        self.writing = false;
        self.sent_ms = now_ms;
    }

    /// The answer to [`MasterAction::Crc`].
    pub fn crc(&mut self, offset: u64, len: u32, crc: Option<u32>) {
        self.asked = false;
        self.output.push_back(wire::encode_crc_answer(&CrcAnswer { offset, len, crc }));
    }

    /// The next thing to do; `None` until something happens or some time has passed.
    pub fn next(&mut self, now_ms: u64, log: &MasterLog<'_>) -> Option<MasterAction> {
        self.look_at_the_clock(now_ms);
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if self.closed {
            return None;
        }
        if !self.asked
            && self.output.is_empty()
            && let Some((offset, len)) = self.queries.pop_front()
        {
            if offset <= log.range.max && offset - u64::from(len) >= log.range.min {
                self.asked = true;
                return Some(MasterAction::Crc { offset, len });
            }
            self.crc(offset, len, None);
        }
        if self.writing {
            return None;
        }
        if let Some(bytes) = self.output.pop_front().or_else(|| self.metadata.pop_front()) {
            self.writing = true;
            return Some(MasterAction::Send(bytes));
        }
        self.stream(now_ms, log)
    }

    /// The log bytes that [`MasterSession::next`] would ask for, first offset and at most so many, if nothing else comes before them.
    /// Nothing changes.
    pub fn due(&self, log: &MasterLog<'_>) -> Option<(u64, u32)> {
        let waits = self.closed
            || self.writing
            || !(self.events.is_empty() && self.queries.is_empty())
            || !(self.output.is_empty() && self.metadata.is_empty());
        let from = self.side.next().filter(|_| self.state == PeerState::Streaming && !waits)?;
        let there = (log.range.min..log.range.max).contains(&from);
        there.then(|| (from, self.frame_max(from, log)))
    }

    fn look_at_the_clock(&mut self, now_ms: u64) {
        let patience = ms(self.config.timing.housekeeping);
        if self.closed {
            return;
        }
        if let PeerState::Refused(why) = self.state
            && now_ms.saturating_sub(self.refused_ms) > patience
        {
            self.close(why.into());
        } else if now_ms.saturating_sub(self.heard_ms) > patience {
            self.close(MasterClose::Silent(patience));
        }
    }

    fn stream(&mut self, now_ms: u64, log: &MasterLog<'_>) -> Option<MasterAction> {
        if self.state != PeerState::Streaming {
            return None;
        }
        let from = self.side.next()?;
        if from < log.range.min {
            self.refuse(now_ms, Refused::Behind { slave: from, min: log.range.min });
            return self.events.pop_front();
        }
        if from < log.range.max {
            return Some(MasterAction::Data { from, max: self.frame_max(from, log) });
        }
        let idle = now_ms.saturating_sub(self.sent_ms) >= ms(self.config.timing.heartbeat);
        idle.then(|| {
            self.writing = true;
            MasterAction::Send(self.sealed(self.head(from, 0, log), &[]).bytes().to_vec())
        })
    }

    /// Most bytes of the next frame: up to the batch, the segment's end, and the next term.
    fn frame_max(&self, from: u64, log: &MasterLog<'_>) -> u32 {
        let segment = log.range.segment.max(1);
        let mut end = log.range.max.min(from - from % segment + segment);
        if self.speech == Speech::Terms {
            end = log.terms.next_start(from).map_or(end, |start| end.min(start));
        }
        let len = end.saturating_sub(from).min(u64::from(self.batch_bytes()));
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// The head of the frame that [`MasterAction::Data`] asked for, with these bytes of the log as its body. They count as sent.
    pub fn frame(&mut self, body: &[u8], log: &MasterLog<'_>) -> FrameHead {
        let from = self.side.next().unwrap_or(0);
        let head = self.head(from, body.len() as u32, log);
        self.side.sent(body.len() as u64);
        self.writing = true;
        self.sealed(head, body)
    }

    /// A frame's head behind its CRC, if that was granted. A heartbeat has one too, for it tells what is acknowledged.
    fn sealed(&self, head: FrameHead, body: &[u8]) -> FrameHead {
        if !self.granted.has(Capabilities::FRAME_CRC) {
            return head;
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(head.bytes()), body);
        FrameHead::new(&wire::encode_frame_crc(crc), head.bytes())
    }

    fn head(&self, from: u64, len: u32, log: &MasterLog<'_>) -> FrameHead {
        if self.speech != Speech::Terms {
            return FrameHead::new(&[], &ha_frame::encode_header(from, len));
        }
        let term = log.terms.at(from);
        let header = DataHeader {
            body_len: len,
            offset: from as i64,
            term: WireTerm {
                number: term.map_or(0, |term| term.number as i32),
                start: term.map_or(0, |term| term.start as i64),
            },
            // Never more than is there: what was lost is not what will be written in its place.
            confirmed: log.confirmed.min(log.range.max) as i64,
        };
        FrameHead::new(&[], &header.encode())
    }
}
