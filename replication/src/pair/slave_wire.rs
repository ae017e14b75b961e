//! How a slave reads what its master sends.

use ringmq_net::ha_frame::{HA_HEADER_BYTES, peek_header};
use ringmq_net::ha_term_frame::{
    self as wire, Capabilities, DATA_HEADER_BYTES, DataHeader, MasterFrame, MasterHandshake, Peeked,
};

use super::slave::{Phase, SlaveLog, SlaveSession, Speech, Trouble};
use crate::stock::{Mismatch, Place, place};
use crate::terms::{Term, TermId, TermList};

/// Most bytes of a stock frame's body that are believed in; none is held in memory, so this only tells nonsense.
const STOCK_BODY_BYTES_MAX: usize = 256 << 20;
/// The same of a frame with terms, which is held in memory until its CRC is seen.
const TERM_BODY_BYTES_MAX: usize = 4 << 20;

/// Log bytes that follow their header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body {
    /// Physical offset of the first one: the log's end, or where an empty log is to begin.
    pub at: u64,
    /// The log is empty and must begin there first.
    pub begins: bool,
    /// Bytes.
    pub len: usize,
    /// A term that begins here: to be appended to the list, durably, before the bytes.
    pub term: Option<Term>,
    /// What the CRC-32C of header and body must be, and what that of the header is.
    pub crc: Option<(u32, u32)>,
    /// What its header says is acknowledged.
    pub(super) confirmed: u64,
}

impl Body {
    /// Whether `bytes` are the whole body as it was sent.
    pub fn is_intact(&self, bytes: &[u8]) -> bool {
        let crc = |head| crc32c::crc32c_append(head, bytes);
        bytes.len() == self.len && self.crc.is_none_or(|(want, head)| crc(head) == want)
    }
}

/// What the start of the receive buffer is.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// This many bytes are needed from its start.
    Need(usize),
    /// A frame of this many bytes, dealt with.
    Consumed(usize),
    /// Metadata, and the bytes of its frame.
    Metadata(&'a [u8], usize),
    /// A header of this many bytes; the body follows it and goes to its place, then [`SlaveSession::body`].
    Body(Body, usize),
    /// Nothing is read now: something else comes first.
    Wait,
}

impl SlaveSession {
    /// Looks at the start of the receive buffer, one frame per call.
    ///
    /// # Errors
    /// [`Trouble`]: bytes that are no frame, or one that may not come now.
    pub fn parse<'a>(
        &mut self,
        now_ms: u64,
        buffer: &'a [u8],
        log: &SlaveLog<'_>,
    ) -> Result<Parsed<'a>, Trouble> {
        if self.body.is_some() || matches!(self.phase, Phase::Storing | Phase::Over) {
            return Ok(Parsed::Wait);
        }
        if !buffer.is_empty() {
            // Even a part of a frame is a sign of life.
            self.heard_ms = now_ms;
            self.answered = true;
        }
        if self.speaks_terms() {
            self.parse_terms(now_ms, buffer, log)
        } else {
            Ok(self.parse_stock(buffer, log)?)
        }
    }

    fn parse_stock(
        &mut self,
        buffer: &[u8],
        log: &SlaveLog<'_>,
    ) -> Result<Parsed<'static>, Trouble> {
        let Some(head) = peek_header(buffer, STOCK_BODY_BYTES_MAX)? else {
            return Ok(Parsed::Need(HA_HEADER_BYTES));
        };
        let offset = u64::try_from(head.physical_offset).unwrap_or(u64::MAX);
        let place = place(offset, head.body_len, log.end, log.is_empty(), log.segment)?;
        self.master_end = self.master_end.max(offset.saturating_add(head.body_len as u64));
        let body = Body {
            at: offset,
            begins: matches!(place, Place::BeginAt(_)),
            len: head.body_len,
            term: self.unknown_term(offset, head.body_len, log),
            crc: None,
            confirmed: 0,
        };
        let shows_nothing = !matches!(self.speech, Speech::Stock { compared: true, .. });
        if body.len == 0 && shows_nothing && !log.is_empty() {
            return Ok(Parsed::Consumed(HA_HEADER_BYTES));
        }
        Ok(self.take(body, HA_HEADER_BYTES))
    }

    /// What a stock master writes belongs to no term: from its first byte on a term without an id keeps it out of the last one.
    fn unknown_term(&self, at: u64, len: usize, log: &SlaveLog<'_>) -> Option<Term> {
        let last = log.terms.last().filter(|last| len > 0 && last.id != TermId::default())?;
        Some(Term { number: last.number + 1, start: at, id: TermId::default() })
    }

    fn take(&mut self, body: Body, header: usize) -> Parsed<'static> {
        self.follow();
        if body.len == 0 {
            return Parsed::Consumed(header);
        }
        self.body = Some(body);
        Parsed::Body(body, header)
    }

    fn parse_terms<'a>(
        &mut self,
        now_ms: u64,
        buffer: &'a [u8],
        log: &SlaveLog<'_>,
    ) -> Result<Parsed<'a>, Trouble> {
        let (frame, len) = match wire::peek_master(buffer, TERM_BODY_BYTES_MAX)? {
            Peeked::Need(need) => return Ok(Parsed::Need(need)),
            Peeked::Frame(frame, len) => (frame, len),
        };
        match frame {
            MasterFrame::Data(header) => {
                let head = crc32c::crc32c(buffer.get(..DATA_HEADER_BYTES).unwrap_or_default());
                return self.data(&header, head, log);
            }
            MasterFrame::Metadata(body) if self.phase == Phase::Following => {
                return Ok(Parsed::Metadata(body, len));
            }
            MasterFrame::Metadata(_) => return Err(Trouble::OutOfOrder("metadata")),
            MasterFrame::Refusal { reason, offset } => {
                return Err(Trouble::Refused { reason, offset });
            }
            MasterFrame::Welcome(welcome) if self.phase == Phase::Greeting => {
                self.welcomed = true;
                self.granted = welcome.capabilities;
                self.compare.master_min = welcome.log_start;
            }
            MasterFrame::TermIds(ids) if self.phase == Phase::Greeting => self.ids = ids.to_vec(),
            MasterFrame::Handshake(handshake) if self.phase == Phase::Greeting => {
                self.handshake(&handshake)?;
                self.start_to_compare(now_ms, log)?;
            }
            MasterFrame::Crc(answer) if self.phase == Phase::Comparing => {
                let open = self.compare.open.front();
                let asked = open.is_some_and(|open| open.point == answer.offset);
                if !asked || answer.len != self.compare.window {
                    return Err(Trouble::OutOfOrder("the CRC of another range"));
                }
                self.compare.theirs = Some(answer.crc);
                self.compare_crcs(now_ms, log)?;
            }
            MasterFrame::FrameCrc(crc) if self.phase == Phase::Following => {
                self.frame_crc = Some(crc);
            }
            MasterFrame::Unknown(_) => {}
            MasterFrame::Welcome(_) | MasterFrame::TermIds(_) => {
                return Err(Trouble::OutOfOrder("its welcome"));
            }
            MasterFrame::Handshake(_) => return Err(Trouble::OutOfOrder("a second handshake")),
            MasterFrame::Crc(_) => return Err(Trouble::OutOfOrder("a CRC that nobody asked for")),
            MasterFrame::FrameCrc(_) => return Err(Trouble::OutOfOrder("the CRC of a frame")),
        }
        Ok(Parsed::Consumed(len))
    }

    fn handshake(&mut self, handshake: &MasterHandshake<'_>) -> Result<(), Trouble> {
        let terms = handshake.terms().enumerate().map(|(n, term)| Term {
            number: term.number.unsigned_abs(),
            start: term.start.unsigned_abs(),
            id: TermId(self.ids.get(n).map_or(0, |id| u128::from_be_bytes(*id))),
        });
        let terms = TermList::new(terms).map_err(|_| Trouble::OutOfOrder("terms that go back"))?;
        self.compare.master = terms;
        self.compare.master_end = handshake.log_end;
        self.master_end = self.master_end.max(handshake.log_end);
        Ok(())
    }

    fn data(
        &mut self,
        header: &DataHeader,
        head_crc: u32,
        log: &SlaveLog<'_>,
    ) -> Result<Parsed<'static>, Trouble> {
        if self.phase != Phase::Following {
            return Err(Trouble::OutOfOrder("log bytes"));
        }
        let len = header.body_len as usize;
        // Only an empty stock 5.x master has none.
        let Ok(offset) = u64::try_from(header.offset) else {
            return Err(Trouble::OutOfOrder("a heartbeat without an offset"));
        };
        let expected = self.frame_crc.take();
        if len == 0 && expected.is_some_and(|crc| crc != head_crc) {
            return Err(Trouble::Damaged(offset));
        }
        let place = place(offset, len, log.end, log.is_empty(), log.segment)?;
        if len as u64 > log.segment - offset % log.segment.max(1) {
            return Err(Mismatch::Crosses { master: offset, len }.into());
        }
        let proven = expected.is_some() || !self.granted.has(Capabilities::FRAME_CRC);
        if len > 0 && !proven {
            return Err(Trouble::OutOfOrder("a frame without its CRC"));
        }
        self.master_end = self.master_end.max(offset + len as u64);
        let confirmed = u64::try_from(header.confirmed).unwrap_or(0);
        if len == 0 && proven {
            self.promise(confirmed);
        }
        let body = Body {
            at: offset,
            begins: matches!(place, Place::BeginAt(_)),
            len,
            term: if len > 0 { self.new_term(header, offset, log)? } else { None },
            crc: expected.map(|crc| (crc, head_crc)),
            confirmed,
        };
        let head = DATA_HEADER_BYTES;
        Ok(self.take(body, head))
    }

    /// The term that begins with a frame, if one does.
    fn new_term(
        &self,
        header: &DataHeader,
        at: u64,
        log: &SlaveLog<'_>,
    ) -> Result<Option<Term>, Trouble> {
        let (number, start) = (header.term.number.unsigned_abs(), header.term.start.unsigned_abs());
        let bad = Trouble::Term { number: header.term.number, start: header.term.start, at };
        if self.config.capabilities.has(Capabilities::OBSERVER) || number == 0 {
            // Bytes older than the first term, or nobody's log.
            return if log.terms.is_empty() || number > 0 { Ok(None) } else { Err(bad) };
        }
        match log.terms.last() {
            Some(last) if last.number == number && last.start == start => Ok(None),
            Some(last) if number <= last.number || start < last.start || start != at => Err(bad),
            // The first one that an empty log hears of may have begun before the first byte that it gets.
            _ if start > at => Err(bad),
            _ => Ok(Some(self.term(number, start))),
        }
    }
}
