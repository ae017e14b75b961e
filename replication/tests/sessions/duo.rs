//! A master's and a slave's session tied together by memory.

use crc32c::crc32c;
use ringmq_net::ha_term_frame::Capabilities;
use ringmq_replication::pair::{
    Body, MasterAction, MasterConfig, MasterLog, MasterSession, Parsed, SlaveAction, SlaveConfig,
    SlaveLog, SlaveSession, Speech, Start, Trouble,
};
use ringmq_replication::stock::{LogRange, Timing};
use ringmq_replication::terms::{Term, TermId, TermList};

/// Bytes of a segment.
pub(crate) const SEGMENT: u64 = 512;

/// A log and who wrote it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Side {
    pub(crate) min: u64,
    /// From `min` on.
    pub(crate) bytes: Vec<u8>,
    pub(crate) terms: TermList,
    pub(crate) bound: u64,
}

impl Side {
    pub(crate) fn new(bytes: Vec<u8>, terms: &[(u32, u64, u128)]) -> Self {
        Side { bytes, terms: list(terms), ..Side::default() }
    }

    pub(crate) fn end(&self) -> u64 {
        self.min + self.bytes.len() as u64
    }

    pub(crate) fn range(&self, from: u64, to: u64) -> Option<&[u8]> {
        self.bytes.get(from.checked_sub(self.min)? as usize..to.checked_sub(self.min)? as usize)
    }

    fn crc(&self, offset: u64, len: u32) -> Option<u32> {
        self.range(offset.checked_sub(u64::from(len))?, offset).map(crc32c)
    }

    pub(crate) fn master(&self) -> MasterLog<'_> {
        let range = LogRange { min: self.min, max: self.end(), segment: SEGMENT };
        MasterLog { range, whole: self.end(), confirmed: self.bound, terms: &self.terms }
    }

    pub(crate) fn slave(&self) -> SlaveLog<'_> {
        SlaveLog {
            min: self.min,
            end: self.end(),
            held: self.end(),
            segment: SEGMENT,
            bound: self.bound,
            terms: &self.terms,
        }
    }
}

pub(crate) fn list(terms: &[(u32, u64, u128)]) -> TermList {
    let terms = terms.iter().map(|&(number, start, id)| Term { number, start, id: TermId(id) });
    TermList::new(terms).expect("terms that ascend")
}

/// Bytes that tell where they are and in which history.
pub(crate) fn history(seed: u8, from: u64, to: u64) -> Vec<u8> {
    (from..to).map(|at| (at * 31 % 253) as u8 ^ seed).collect()
}

pub(crate) fn master_config() -> MasterConfig {
    MasterConfig { timing: Timing::default(), stock_batch_bytes: 128, metadata: true }
}

pub(crate) fn slave_config() -> SlaveConfig {
    SlaveConfig {
        timing: Timing::default(),
        slave_id: 3,
        start: Start::Oldest,
        capabilities: Capabilities::FRAME_CRC.with(Capabilities::LARGE_FRAMES),
    }
}

/// What became of a slave's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It has all that its master has.
    CaughtUp,
    Cut(u64),
    Trouble(Trouble),
}

/// Both ends, and what the master's gate was told.
pub(crate) struct Duo {
    pub(crate) master: Side,
    pub(crate) slave: Side,
    pub(crate) config: SlaveConfig,
    pub(crate) acked: Vec<u64>,
    pub(crate) admitted: Vec<i64>,
    pub(crate) withheld: usize,
    pub(crate) confirmed: u64,
    pub(crate) frames: usize,
    wanted: Option<Body>,
}

impl Duo {
    pub(crate) fn new(master: Side, slave: Side) -> Self {
        Duo {
            master,
            slave,
            config: slave_config(),
            acked: Vec::new(),
            admitted: Vec::new(),
            withheld: 0,
            confirmed: 0,
            frames: 0,
            wanted: None,
        }
    }

    /// One connection, over which bytes come `step` at a time, all at the same moment: nothing waits for a clock.
    pub(crate) fn talk(&mut self, step: usize) -> End {
        let mut upper = MasterSession::new(master_config(), 0);
        let mut lower = SlaveSession::new(self.config, Speech::Terms { known: true }, 0);
        let (mut up, mut down, mut frame) = (Vec::new(), Vec::new(), Vec::new());
        self.wanted = None;
        loop {
            let mut moved = match self.slave_turn(&mut lower, &mut up, &mut frame) {
                Ok(None) => false,
                Ok(Some(SlaveAction::Cut(at))) => return End::Cut(at),
                Ok(Some(_)) => true,
                Err(trouble) => return End::Trouble(trouble),
            };
            self.confirmed = lower.confirmed();
            let taken: Vec<u8> = up.drain(..step.min(up.len())).collect();
            if !taken.is_empty() {
                upper.received(0, &taken, &self.master.master());
                moved = true;
            }
            moved |= self.master_turn(&mut upper, &mut down);
            let taken = down.drain(..step.min(down.len()));
            moved |= taken.len() > 0;
            frame.extend(taken);
            if !moved {
                assert_eq!(self.slave.end(), self.master.end(), "they wait for each other");
                return End::CaughtUp;
            }
        }
    }

    fn master_turn(&mut self, session: &mut MasterSession, down: &mut Vec<u8>) -> bool {
        let mut moved = false;
        loop {
            let due = session.due(&self.master.master());
            let Some(action) = session.next(0, &self.master.master()) else {
                assert_eq!(due, None, "nothing is due");
                return moved;
            };
            let data = match &action {
                MasterAction::Data { from, max } => Some((*from, *max)),
                _ => None,
            };
            assert_eq!(due, data, "log bytes are due when they come next, and only then");
            moved = true;
            match action {
                MasterAction::Send(bytes) => {
                    down.extend(bytes);
                    session.sent(0);
                }
                MasterAction::Data { from, max } => {
                    let to = self.master.end().min(from + u64::from(max));
                    let body = self.master.range(from, to).expect("bytes of the log").to_vec();
                    let head = session.frame(&body, &self.master.master());
                    down.extend_from_slice(head.bytes());
                    down.extend(body);
                    session.sent(0);
                    self.frames += 1;
                }
                MasterAction::Crc { offset, len } => {
                    session.crc(offset, len, self.master.crc(offset, len));
                }
                MasterAction::Withhold => self.withheld += 1,
                MasterAction::Admit(slave) => self.admitted.push(slave),
                MasterAction::Acked(offset) => self.acked.push(offset),
                MasterAction::State(_) | MasterAction::Close(_) => {}
            }
        }
    }

    /// One thing that the slave does; `Cut` ends the connection.
    fn slave_turn(
        &mut self,
        session: &mut SlaveSession,
        up: &mut Vec<u8>,
        frame: &mut Vec<u8>,
    ) -> Result<Option<SlaveAction>, Trouble> {
        let action = session.next(0, &self.slave.slave())?;
        match &action {
            Some(SlaveAction::Send(bytes)) => up.extend_from_slice(bytes),
            Some(SlaveAction::Crc { offset, len }) => {
                let crc = self.slave.crc(*offset, *len);
                session.crc(0, crc, &self.slave.slave())?;
            }
            Some(SlaveAction::StoreTerms(terms)) => {
                self.slave.terms = terms.clone();
                session.terms_stored(0);
            }
            Some(SlaveAction::Cut(_) | SlaveAction::Follows) => {}
            None => return Ok(self.slave_reads(session, frame)?.then_some(SlaveAction::Follows)),
        }
        Ok(action)
    }

    fn slave_reads(
        &mut self,
        session: &mut SlaveSession,
        frame: &mut Vec<u8>,
    ) -> Result<bool, Trouble> {
        if let Some(body) = self.wanted {
            if frame.len() < body.len {
                return Ok(false);
            }
            self.wanted = None;
            let bytes: Vec<u8> = frame.drain(..body.len).collect();
            session.body(0, body.is_intact(&bytes))?;
            self.slave.bytes.extend(bytes);
            return Ok(true);
        }
        match session.parse(0, frame, &self.slave.slave())? {
            Parsed::Need(_) | Parsed::Wait => Ok(false),
            Parsed::Consumed(len) | Parsed::Metadata(_, len) => {
                frame.drain(..len);
                Ok(true)
            }
            Parsed::Body(body, head) => {
                frame.drain(..head);
                if body.begins {
                    self.slave.min = body.at;
                }
                if let Some(term) = body.term {
                    self.slave.terms.append(term).expect("a term that follows");
                }
                self.wanted = Some(body);
                Ok(true)
            }
        }
    }
}
