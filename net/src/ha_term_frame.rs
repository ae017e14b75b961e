//! The HA stream with terms: the frames of RocketMQ 5's HA protocol (stock 5.5.0) and ours beside them.
//!
//! Two RingMQ nodes speak it. The slave opens with [`HELLO`], a number that no offset report of the 4.x
//! protocol can be, and its handshake. Everything is big endian.
//!
//! ```text
//!  slave -> master
//!   hello      8        A0 'R' 'i' 'n' 'g' 'M' 'Q' 01
//!   handshake  16       i32 1 | i16 flags | i16 flags | i64 slave id
//!   report     12       i32 2 | i64 end of the slave's log, at the level that it acknowledges
//!   CRC query  16       i32 16 | u32 n | i64 offset: what is the CRC-32C of [offset - n, offset)?
//!  master -> slave: always i32 kind | i32 size first
//!   handshake  20+12k   i32 1 | i32 12k | i64 log end | i32 last term | k x (i32 term | i64 start)
//!   data       36+n     i32 2 | i32 n | i64 offset | i32 term | i64 start of it | i64 confirmed | n log bytes
//!   welcome    24       i32 16 | i32 16 | u32 capabilities granted | u32 body limit | i64 log start
//!   term ids   8+16k    i32 17 | i32 16k | k x id; 0 is unknown. Ids of the handshake's terms, before it
//!   CRC answer 28       i32 18 | i32 20 | i64 offset | u32 n | u32 known (0/1) | u32 CRC-32C
//!   metadata   8+n      i32 19 | i32 n | n bytes that the brokers understand
//!   frame CRC  12       i32 20 | i32 4 | u32 CRC-32C of the next data frame, header and body
//!   refusal    20       i32 21 | i32 12 | u32 reason | i64 offset: then nothing more but the close
//! ```
//! A data frame never crosses the start of a term or the end of a segment, and names the term that its
//! bytes belong to (0 for bytes older than the first term). Stock 5.x names the next term in the last
//! frame of one; a reader must not lean on that. A slave takes a kind from 16 on that it does not know
//! for one to skip.
//!
//! Bit 0 of the two handshake flags is stock's (`syncFromLastFile`, `asyncLearner`). The others are ours:
//! see [`Capabilities`].

use thiserror::Error;

/// The 8 bytes that open a RingMQ connection, read as a report of the 4.x protocol: negative.
pub const HELLO: i64 = i64::from_be_bytes(*b"\xA0RingMQ\x01");

/// Bytes of a slave's handshake.
pub const SLAVE_HANDSHAKE_BYTES: usize = 16;
/// Bytes of a report.
pub const REPORT_BYTES: usize = 12;
/// Bytes of a CRC query.
pub const CRC_QUERY_BYTES: usize = 16;
/// Bytes of a data frame before its body.
pub const DATA_HEADER_BYTES: usize = 36;
/// Terms in a handshake at most, as the stock master's buffer allows.
pub const TERMS_MAX: usize = 1000;
/// Bytes of a range whose CRC may be asked for.
pub const CRC_RANGE_MAX: u32 = 64 * 1024;
/// Bytes of a metadata frame's body at most.
pub const METADATA_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What the two ends of a connection can do: bits 1 to 15 of the first handshake flag are bits 1 to 15
/// here, those of the second are bits 17 to 31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u32);

impl Capabilities {
    /// Start at the newest segment (stock `syncFromLastFile`).
    pub const FROM_NEWEST: Self = Self(1);
    /// A CRC-32C before each data frame.
    pub const FRAME_CRC: Self = Self(1 << 1);
    /// Metadata comes with the log.
    pub const METADATA: Self = Self(1 << 2);
    /// Bodies over 32 KiB.
    pub const LARGE_FRAMES: Self = Self(1 << 3);
    /// Never elected, never waited for (stock `asyncLearner`).
    pub const LEARNER: Self = Self(1 << 16);
    /// Only reads the log; its reports never count.
    pub const OBSERVER: Self = Self(1 << 17);
    /// Reports name what is on the slave's device, not only what is written.
    pub const SYNC_ACKS: Self = Self(1 << 18);

    /// No capability.
    #[must_use]
    pub const fn none() -> Self {
        Self(0)
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in here and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// What both sets have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn flags(self) -> [u8; 4] {
        let [b3, b2, b1, b0] = self.0.to_be_bytes();
        [b1, b0, b3, b2]
    }

    fn from_flags(flags: [u8; 4]) -> Self {
        let [b1, b0, b3, b2] = flags;
        Self(u32::from_be_bytes([b3, b2, b1, b0]))
    }
}

/// Every capability that this version knows.
pub const KNOWN: Capabilities = Capabilities::FROM_NEWEST
    .with(Capabilities::FRAME_CRC)
    .with(Capabilities::METADATA)
    .with(Capabilities::LARGE_FRAMES)
    .with(Capabilities::LEARNER)
    .with(Capabilities::OBSERVER)
    .with(Capabilities::SYNC_ACKS);

/// A term: what one master wrote between its start and the next term's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireTerm {
    /// Its number, growing; stock calls it epoch.
    pub number: i32,
    /// The physical offset of its first byte.
    pub start: i64,
}

/// Why bytes are not a frame: the connection is of no use any more.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TermFrameError {
    /// A kind that cannot be skipped.
    #[error("HA frame of unknown kind {0}; the peer does not speak this protocol")]
    Kind(i32),
    /// A size outside what the kind allows.
    #[error(
        "HA frame of kind {kind} with a size of {size} bytes, outside its bounds; close and compare the versions"
    )]
    Size {
        /// The kind.
        kind: i32,
        /// The size word.
        size: i32,
    },
    /// A negative offset where none can be.
    #[error("HA frame of kind {kind} with the impossible offset {offset}")]
    Offset {
        /// The kind.
        kind: i32,
        /// The offset.
        offset: i64,
    },
    /// Terms that do not ascend.
    #[error("HA handshake with term {number} from {start} out of order")]
    Terms {
        /// The term's number.
        number: i32,
        /// Its start.
        start: i64,
    },
}

/// What a slave sends after its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlaveFrame {
    /// Its flags and id.
    Handshake {
        /// What it can and wants.
        capabilities: Capabilities,
        /// Its id in the broker group.
        slave_id: i64,
    },
    /// The end of its log. Not judged here.
    Report(i64),
    /// Asks for the CRC-32C of `[offset - len, offset)`.
    CrcQuery {
        /// End of the range.
        offset: u64,
        /// Its length, `1..=`[`CRC_RANGE_MAX`].
        len: u32,
    },
}

/// The first frame in `buf` and its length; `None` while it is not complete.
///
/// # Errors
/// A kind that no slave sends, a CRC range outside its bounds.
pub fn peek_slave(buf: &[u8]) -> Result<Option<(SlaveFrame, usize)>, TermFrameError> {
    let Some(kind) = i32_at(buf, 0) else { return Ok(None) };
    match kind {
        1 => Ok(peek_slave_handshake(buf)),
        2 => Ok(i64_at(buf, 4).map(|end| (SlaveFrame::Report(end), REPORT_BYTES))),
        16 => {
            let (Some(size), Some(offset)) = (i32_at(buf, 4), i64_at(buf, 8)) else {
                return Ok(None);
            };
            let len = u32::try_from(size).ok().filter(|n| (1..=CRC_RANGE_MAX).contains(n));
            let len = len.ok_or(TermFrameError::Size { kind, size })?;
            match u64::try_from(offset) {
                Ok(end) if end >= u64::from(len) => {
                    Ok(Some((SlaveFrame::CrcQuery { offset: end, len }, CRC_QUERY_BYTES)))
                }
                _ => Err(TermFrameError::Offset { kind, offset }),
            }
        }
        _ => Err(TermFrameError::Kind(kind)),
    }
}

fn peek_slave_handshake(buf: &[u8]) -> Option<(SlaveFrame, usize)> {
    // Not before all 16 bytes are there: stock's master looks at 12 and reads stale ones for the rest.
    let slave_id = i64_at(buf, 8)?;
    let flags = *buf.get(4..)?.first_chunk::<4>()?;
    let capabilities = Capabilities::from_flags(flags);
    Some((SlaveFrame::Handshake { capabilities, slave_id }, SLAVE_HANDSHAKE_BYTES))
}

/// A slave's handshake. It must leave in one write.
#[must_use]
pub fn encode_slave_handshake(
    capabilities: Capabilities,
    slave_id: i64,
) -> [u8; SLAVE_HANDSHAKE_BYTES] {
    let mut out = [0; SLAVE_HANDSHAKE_BYTES];
    out[..4].copy_from_slice(&1_i32.to_be_bytes());
    out[4..8].copy_from_slice(&capabilities.flags());
    out[8..].copy_from_slice(&slave_id.to_be_bytes());
    out
}

/// A report.
#[must_use]
pub fn encode_report(end: u64) -> [u8; REPORT_BYTES] {
    let mut out = [0; REPORT_BYTES];
    out[..4].copy_from_slice(&2_i32.to_be_bytes());
    out[4..].copy_from_slice(&end.to_be_bytes());
    out
}

/// The question for the CRC-32C of `[offset - len, offset)`.
#[must_use]
pub fn encode_crc_query(offset: u64, len: u32) -> [u8; CRC_QUERY_BYTES] {
    let mut out = [0; CRC_QUERY_BYTES];
    out[..4].copy_from_slice(&16_i32.to_be_bytes());
    out[4..8].copy_from_slice(&len.to_be_bytes());
    out[8..].copy_from_slice(&offset.to_be_bytes());
    out
}

/// A data frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Bytes of the body; 0 in a heartbeat.
    pub body_len: u32,
    /// Physical offset of the body's first byte. An empty stock master's heartbeat has -1 here.
    pub offset: i64,
    /// The term of the bytes.
    pub term: WireTerm,
    /// What the master knows to be replicated.
    pub confirmed: i64,
}

impl DataHeader {
    /// The 36 bytes before the body.
    #[must_use]
    pub fn encode(&self) -> [u8; DATA_HEADER_BYTES] {
        let mut out = [0; DATA_HEADER_BYTES];
        out[..4].copy_from_slice(&2_i32.to_be_bytes());
        out[4..8].copy_from_slice(&self.body_len.to_be_bytes());
        out[8..16].copy_from_slice(&self.offset.to_be_bytes());
        out[16..20].copy_from_slice(&self.term.number.to_be_bytes());
        out[20..28].copy_from_slice(&self.term.start.to_be_bytes());
        out[28..].copy_from_slice(&self.confirmed.to_be_bytes());
        out
    }
}

/// What a master sends. Of a data frame only the header: the body is received into its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterFrame<'a> {
    /// Log end and terms.
    Handshake(MasterHandshake<'a>),
    /// Log bytes follow.
    Data(DataHeader),
    /// What the master grants.
    Welcome(Welcome),
    /// Ids of the handshake's terms, 16 bytes each.
    TermIds(&'a [[u8; 16]]),
    /// The answer to a CRC query.
    Crc(CrcAnswer),
    /// Metadata, for the broker.
    Metadata(&'a [u8]),
    /// CRC-32C of the next data frame's header and body.
    FrameCrc(u32),
    /// The master will not serve this slave.
    Refusal {
        /// A number that the state machines give a meaning.
        reason: u32,
        /// The offset that it is about.
        offset: i64,
    },
    /// A kind of a later version.
    Unknown(i32),
}

/// A master's log end and terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterHandshake<'a> {
    /// End of its log.
    pub log_end: u64,
    /// The number of its last term.
    pub last_term: i32,
    entries: &'a [[u8; 12]],
}

impl MasterHandshake<'_> {
    /// Its terms, ascending.
    pub fn terms(&self) -> impl ExactSizeIterator<Item = WireTerm> {
        self.entries.iter().map(|e| WireTerm {
            number: i32_at(e, 0).unwrap_or_default(),
            start: i64_at(e, 4).unwrap_or_default(),
        })
    }
}

/// What a RingMQ master grants before its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Of the capabilities asked for, those in use.
    pub capabilities: Capabilities,
    /// Bytes of a body at most.
    pub body_bytes_max: u32,
    /// The first byte that the master still has.
    pub log_start: u64,
}

/// The CRC of a range of the master's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcAnswer {
    /// End of the range.
    pub offset: u64,
    /// Its length.
    pub len: u32,
    /// CRC-32C; `None` if the master does not have all of the range.
    pub crc: Option<u32>,
}

/// The first frame in `buf` and how many bytes it takes there (of data: the header's 36), or how many
/// bytes are needed.
///
/// # Errors
/// Sizes and offsets outside their bounds; a data body over `body_bytes_max`.
pub fn peek_master(buf: &[u8], body_bytes_max: usize) -> Result<Peeked<'_>, TermFrameError> {
    let (Some(kind), Some(size)) = (i32_at(buf, 0), i32_at(buf, 4)) else {
        return Ok(Peeked::Need(8));
    };
    let body_len = check_size(kind, size, body_bytes_max)?;
    let len = match kind {
        1 => 20 + body_len,
        2 => DATA_HEADER_BYTES,
        _ => 8 + body_len,
    };
    let Some(frame) = buf.get(..len) else { return Ok(Peeked::Need(len)) };
    let rest = frame.get(8..).unwrap_or_default();
    let decoded = match kind {
        1 => Some(MasterFrame::Handshake(read_handshake(rest)?)),
        2 => Some(MasterFrame::Data(read_data(rest, size.unsigned_abs())?)),
        16 => read_welcome(rest)?,
        17 => Some(MasterFrame::TermIds(rest.as_chunks::<16>().0)),
        18 => read_crc(rest)?,
        19 => Some(MasterFrame::Metadata(rest)),
        20 => i32_at(rest, 0).map(|crc| MasterFrame::FrameCrc(crc as u32)),
        21 => i32_at(rest, 0)
            .zip(i64_at(rest, 4))
            .map(|(reason, offset)| MasterFrame::Refusal { reason: reason as u32, offset }),
        _ => Some(MasterFrame::Unknown(kind)),
    };
    decoded.map(|frame| Peeked::Frame(frame, len)).ok_or(TermFrameError::Size { kind, size })
}

/// What the start of a receive buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peeked<'a> {
    /// Not yet a frame: the bytes needed, from the start of the buffer.
    Need(usize),
    /// A frame and its bytes in the buffer.
    Frame(MasterFrame<'a>, usize),
}

fn check_size(kind: i32, size: i32, body_bytes_max: usize) -> Result<usize, TermFrameError> {
    let error = TermFrameError::Size { kind, size };
    let n = usize::try_from(size).map_err(|_| error)?;
    let fits = match kind {
        1 => n.is_multiple_of(12) && n / 12 <= TERMS_MAX,
        2 => n <= body_bytes_max,
        16 => n == 16,
        17 => n.is_multiple_of(16) && n / 16 <= TERMS_MAX,
        18 => n == 20,
        20 => n == 4,
        21 => n == 12,
        k if k >= 16 => n <= METADATA_BYTES_MAX,
        _ => return Err(TermFrameError::Kind(kind)),
    };
    if fits { Ok(n) } else { Err(error) }
}

fn read_handshake(rest: &[u8]) -> Result<MasterHandshake<'_>, TermFrameError> {
    let end = i64_at(rest, 0).unwrap_or(-1);
    let log_end = offset(1, end)?;
    let last_term = i32_at(rest, 8).unwrap_or_default();
    let entries = rest.get(12..).unwrap_or_default().as_chunks::<12>().0;
    let handshake = MasterHandshake { log_end, last_term, entries };
    let mut last = None::<WireTerm>;
    for term in handshake.terms() {
        let after = last.is_none_or(|l| term.number > l.number && term.start > l.start);
        if !after || term.number < 0 || term.start < 0 {
            return Err(TermFrameError::Terms { number: term.number, start: term.start });
        }
        last = Some(term);
    }
    Ok(handshake)
}

fn read_data(rest: &[u8], body_len: u32) -> Result<DataHeader, TermFrameError> {
    let at = i64_at(rest, 0).unwrap_or(-1);
    // An empty stock master's heartbeat says -1.
    if at < -1 || (at < 0 && body_len > 0) {
        return Err(TermFrameError::Offset { kind: 2, offset: at });
    }
    let term = WireTerm {
        number: i32_at(rest, 8).unwrap_or_default(),
        start: i64_at(rest, 12).unwrap_or_default(),
    };
    if term.start < 0 || term.number < 0 {
        return Err(TermFrameError::Terms { number: term.number, start: term.start });
    }
    Ok(DataHeader { body_len, offset: at, term, confirmed: i64_at(rest, 20).unwrap_or(-1) })
}

fn read_welcome(rest: &[u8]) -> Result<Option<MasterFrame<'_>>, TermFrameError> {
    let Some(((bits, max), start)) = i32_at(rest, 0).zip(i32_at(rest, 4)).zip(i64_at(rest, 8))
    else {
        return Ok(None);
    };
    let log_start = offset(16, start)?;
    Ok(Some(MasterFrame::Welcome(Welcome {
        capabilities: Capabilities(bits as u32),
        body_bytes_max: max as u32,
        log_start,
    })))
}

fn read_crc(rest: &[u8]) -> Result<Option<MasterFrame<'_>>, TermFrameError> {
    let Some((at, len)) = i64_at(rest, 0).zip(i32_at(rest, 8)) else { return Ok(None) };
    let Some((known, crc)) = i32_at(rest, 12).zip(i32_at(rest, 16)) else { return Ok(None) };
    let crc = (known == 1).then_some(crc as u32);
    Ok(Some(MasterFrame::Crc(CrcAnswer { offset: offset(18, at)?, len: len as u32, crc })))
}

fn offset(kind: i32, offset: i64) -> Result<u64, TermFrameError> {
    u64::try_from(offset).map_err(|_| TermFrameError::Offset { kind, offset })
}

fn frame(kind: i32, body_len: usize, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + parts.iter().map(|p| p.len()).sum::<usize>());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(body_len as u32).to_be_bytes());
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

/// A master's handshake. Of more than [`TERMS_MAX`] terms the oldest are left out.
#[must_use]
pub fn encode_master_handshake(log_end: u64, terms: &[WireTerm]) -> Vec<u8> {
    let terms = &terms[terms.len().saturating_sub(TERMS_MAX)..];
    let last = terms.last().map_or(0, |t| t.number);
    let mut body = Vec::with_capacity(12 * terms.len());
    for term in terms {
        body.extend_from_slice(&term.number.to_be_bytes());
        body.extend_from_slice(&term.start.to_be_bytes());
    }
    frame(1, body.len(), &[&log_end.to_be_bytes(), &last.to_be_bytes(), &body])
}

/// What the master grants.
#[must_use]
pub fn encode_welcome(welcome: &Welcome) -> Vec<u8> {
    let bits = welcome.capabilities.0.to_be_bytes();
    frame(16, 16, &[&bits, &welcome.body_bytes_max.to_be_bytes(), &welcome.log_start.to_be_bytes()])
}

/// The ids of the handshake's terms. Of more than [`TERMS_MAX`] the oldest are left out.
#[must_use]
pub fn encode_term_ids(ids: &[[u8; 16]]) -> Vec<u8> {
    let ids = &ids[ids.len().saturating_sub(TERMS_MAX)..];
    frame(17, 16 * ids.len(), &[ids.as_flattened()])
}

/// The answer to a CRC query.
#[must_use]
pub fn encode_crc_answer(answer: &CrcAnswer) -> Vec<u8> {
    let known = u32::from(answer.crc.is_some()).to_be_bytes();
    let crc = answer.crc.unwrap_or_default().to_be_bytes();
    frame(18, 20, &[&answer.offset.to_be_bytes(), &answer.len.to_be_bytes(), &known, &crc])
}

/// A metadata frame, or `None` if `body` is over [`METADATA_BYTES_MAX`].
#[must_use]
pub fn encode_metadata(body: &[u8]) -> Option<Vec<u8>> {
    (body.len() <= METADATA_BYTES_MAX).then(|| frame(19, body.len(), &[body]))
}

/// The CRC-32C of the data frame that follows.
#[must_use]
pub fn encode_frame_crc(crc: u32) -> [u8; 12] {
    let mut out = [0; 12];
    out[..4].copy_from_slice(&20_i32.to_be_bytes());
    out[4..8].copy_from_slice(&4_i32.to_be_bytes());
    out[8..].copy_from_slice(&crc.to_be_bytes());
    out
}

/// A refusal.
#[must_use]
pub fn encode_refusal(reason: u32, offset: i64) -> Vec<u8> {
    frame(21, 12, &[&reason.to_be_bytes(), &offset.to_be_bytes()])
}

fn i32_at(buf: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*buf.get(at..)?.first_chunk::<4>()?))
}

fn i64_at(buf: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*buf.get(at..)?.first_chunk::<8>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_keep_stocks_bits_where_stock_looks() {
        let all = [Capabilities::FROM_NEWEST, Capabilities::LEARNER, Capabilities::SYNC_ACKS];
        let wire = encode_slave_handshake(
            all.into_iter().fold(Capabilities::none(), Capabilities::with),
            3,
        );
        assert_eq!(wire[..8], [0, 0, 0, 1, 0, 1, 0, 5]);
        let Ok(Some((SlaveFrame::Handshake { capabilities, slave_id: 3 }, 16))) = peek_slave(&wire)
        else {
            panic!("{wire:?}")
        };
        assert!(
            all.iter().all(|c| capabilities.has(*c)) && !capabilities.has(Capabilities::OBSERVER)
        );
        assert!((0..16).all(|cut| peek_slave(&wire[..cut]) == Ok(None)), "parsed before 16 bytes");
    }

    #[test]
    fn our_frames_come_back_and_need_is_exact() {
        let welcome = Welcome {
            capabilities: Capabilities::FRAME_CRC,
            body_bytes_max: 1 << 20,
            log_start: 7,
        };
        let answer = CrcAnswer { offset: 900, len: 32, crc: Some(5) };
        let ids = [[7; 16], [8; 16]];
        for (wire, want) in [
            (encode_welcome(&welcome), MasterFrame::Welcome(welcome)),
            (encode_crc_answer(&answer), MasterFrame::Crc(answer)),
            (encode_term_ids(&ids), MasterFrame::TermIds(&ids)),
            (encode_metadata(b"{}").unwrap(), MasterFrame::Metadata(b"{}")),
            (encode_frame_crc(9).to_vec(), MasterFrame::FrameCrc(9)),
            (encode_refusal(2, -5), MasterFrame::Refusal { reason: 2, offset: -5 }),
        ] {
            assert_eq!(peek_master(&wire, 0), Ok(Peeked::Frame(want, wire.len())));
            for cut in 0..wire.len() {
                let need = if cut < 8 { 8 } else { wire.len() };
                assert_eq!(peek_master(&wire[..cut], 0), Ok(Peeked::Need(need)));
            }
        }
    }

    #[test]
    fn sizes_offsets_and_order_are_judged_before_anything_is_kept() {
        let size = |kind: i32, size: i32| {
            let wire = [kind.to_be_bytes(), size.to_be_bytes()].concat();
            peek_master(&wire, 1024).err()
        };
        for (kind, n) in
            [(1, 13), (1, 12 * 1001), (2, 1025), (2, -1), (17, 15), (19, i32::MAX), (20, 5)]
        {
            assert_eq!(size(kind, n), Some(TermFrameError::Size { kind, size: n }));
        }
        assert_eq!(size(3, 0), Some(TermFrameError::Kind(3)));
        let terms = [WireTerm { number: 2, start: 5 }, WireTerm { number: 3, start: 5 }];
        let wire = encode_master_handshake(9, &terms);
        assert_eq!(peek_master(&wire, 0), Err(TermFrameError::Terms { number: 3, start: 5 }));
        assert_eq!(peek_slave(&[0, 0, 0, 9]), Err(TermFrameError::Kind(9)));
        assert!(peek_slave(&encode_crc_query(5, 6)).is_err());
        const { assert!(HELLO < -1) };
    }
}
