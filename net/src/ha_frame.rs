//! The 4.x HA stream: frames from master to slave, offset reports from slave to master.
//!
//! ```text
//!  master -> slave   8 physical offset | 4 body bytes n (0 = heartbeat) | n raw commit log bytes
//!  slave  -> master  8 end of the slave's commit log
//! ```
//! Big endian, no handshake, no checksum, cuts anywhere inside records (stock 4.9.8).

use thiserror::Error;

/// Bytes before a frame's body.
pub const HA_HEADER_BYTES: usize = 12;

/// Bytes of an offset report.
pub const HA_REPORT_BYTES: usize = 8;

/// A frame inside a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaFrameRef<'a> {
    /// Physical offset of the body's first byte; of a heartbeat, the next one that will be sent.
    pub physical_offset: i64,
    /// Commit log bytes; empty in a heartbeat.
    pub body: &'a [u8],
    /// The whole frame's length: what to consume from the buffer.
    pub len: usize,
}

/// A frame's header when its body is perhaps not there yet. A slave checks the offset at once and may
/// receive the body straight into its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaHeader {
    /// Physical offset of the body's first byte.
    pub physical_offset: i64,
    /// Bytes of the body.
    pub body_len: usize,
}

/// What the start of a receive buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaPeek<'a> {
    /// Not yet a frame: the bytes needed, counted from the start of the buffer.
    Need(usize),
    /// A frame.
    Frame(HaFrameRef<'a>),
}

/// Why the bytes cannot be an HA frame: close the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HaFrameError {
    /// A physical offset is never negative.
    #[error("HA frame offset {0} is negative; the peer is not a master of the 4.x HA protocol")]
    Offset(i64),
    /// The body is over the limit, or its size is negative.
    #[error(
        "HA frame body of {size} bytes is outside 0..={max}; check haTransferBatchSize of the master"
    )]
    Size {
        /// The size word.
        size: i32,
        /// The limit in bytes.
        max: usize,
    },
}

/// Reads a frame's header, or `None` when fewer than [`HA_HEADER_BYTES`] are there.
///
/// # Errors
/// A negative offset, or a body outside `0..=body_bytes_max`.
pub fn peek_header(buf: &[u8], body_bytes_max: usize) -> Result<Option<HaHeader>, HaFrameError> {
    let Some((offset, rest)) = buf.split_first_chunk::<8>() else { return Ok(None) };
    let Some((size, _)) = rest.split_first_chunk::<4>() else { return Ok(None) };
    let physical_offset = i64::from_be_bytes(*offset);
    if physical_offset < 0 {
        return Err(HaFrameError::Offset(physical_offset));
    }
    let size = i32::from_be_bytes(*size);
    match usize::try_from(size) {
        Ok(body_len) if body_len <= body_bytes_max => {
            Ok(Some(HaHeader { physical_offset, body_len }))
        }
        _ => Err(HaFrameError::Size { size, max: body_bytes_max }),
    }
}

/// Looks at the start of `buf` without copying or allocating.
///
/// # Errors
/// As [`peek_header`].
pub fn peek(buf: &[u8], body_bytes_max: usize) -> Result<HaPeek<'_>, HaFrameError> {
    let Some(head) = peek_header(buf, body_bytes_max)? else {
        return Ok(HaPeek::Need(HA_HEADER_BYTES));
    };
    let len = HA_HEADER_BYTES + head.body_len;
    Ok(match buf.get(HA_HEADER_BYTES..len) {
        Some(body) => {
            HaPeek::Frame(HaFrameRef { physical_offset: head.physical_offset, body, len })
        }
        None => HaPeek::Need(len),
    })
}

/// The 12 bytes before a body of `body_len` bytes (0 makes a heartbeat).
#[must_use]
pub fn encode_header(physical_offset: u64, body_len: u32) -> [u8; HA_HEADER_BYTES] {
    let mut out = [0; HA_HEADER_BYTES];
    out[..8].copy_from_slice(&physical_offset.to_be_bytes());
    out[8..].copy_from_slice(&body_len.to_be_bytes());
    out
}

/// The last complete report in `buf` and the bytes that complete reports take; `None` while there is
/// none. Earlier ones in the buffer are superseded, as in the stock master. The value is not judged: a
/// stock slave may send anything, the HA state machine decides.
#[must_use]
pub fn last_report(buf: &[u8]) -> Option<(i64, usize)> {
    let (reports, _) = buf.as_chunks::<HA_REPORT_BYTES>();
    let last = reports.last()?;
    Some((i64::from_be_bytes(*last), reports.len() * HA_REPORT_BYTES))
}

/// An offset report.
#[must_use]
pub fn encode_report(offset: u64) -> [u8; HA_REPORT_BYTES] {
    offset.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_need_is_exact() {
        let mut wire = encode_header(4096, 5).to_vec();
        wire.extend_from_slice(b"hello");
        for cut in 0..wire.len() {
            let need = if cut < HA_HEADER_BYTES { HA_HEADER_BYTES } else { wire.len() };
            assert_eq!(peek(&wire[..cut], 1024), Ok(HaPeek::Need(need)));
        }
        let want = HaFrameRef { physical_offset: 4096, body: b"hello", len: wire.len() };
        assert_eq!(peek(&wire, 1024), Ok(HaPeek::Frame(want)));
        assert!(matches!(peek(&encode_header(9, 0), 0), Ok(HaPeek::Frame(f)) if f.body.is_empty()));
    }

    #[test]
    fn impossible_sizes_and_offsets_are_refused() {
        assert!(matches!(peek(&encode_header(0, 1025), 1024), Err(HaFrameError::Size { .. })));
        assert!(matches!(peek(&encode_header(0, u32::MAX), 1024), Err(HaFrameError::Size { .. })));
        assert_eq!(peek(&encode_header(u64::MAX, 0), 1024), Err(HaFrameError::Offset(-1)));
    }

    #[test]
    fn the_last_complete_report_counts() {
        assert_eq!(last_report(&[0; 7]), None);
        let mut wire = encode_report(7).to_vec();
        wire.extend_from_slice(&encode_report(9));
        wire.extend_from_slice(&[1, 2, 3]);
        assert_eq!(last_report(&wire), Some((9, 16)));
    }
}
