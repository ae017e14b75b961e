//! Remoting frames: where one command ends and the next begins.
//!
//! ```text
//!  offset  size  field
//!  0       4     total: the bytes after this word = 4 + header + body
//!  4       1     serialize type: 0 JSON, 1 binary
//!  5       3     header length, unsigned
//!  8       H     header
//!  8+H     B     body, may be empty
//! ```
//! All integers are big endian. The rules are those of stock 4.9.8: a frame that breaks one of them
//! costs the peer its connection, without a reply.

use thiserror::Error;

/// Longest frame, its own length word included, in bytes (the stock default of both ends).
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest header that a frame can describe: 24 bits.
pub const HEADER_BYTES_MAX: usize = 0xFF_FFFF;

/// Bytes before the header: the length word and the header word.
pub const FRAME_PREFIX_BYTES: usize = 8;

/// How a header is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SerializeType {
    /// One JSON object. What stock peers use unless told otherwise.
    #[default]
    Json = 0,
    /// The compact binary layout, called ROCKETMQ by stock peers.
    Binary = 1,
}

/// A whole frame inside a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef<'a> {
    /// How `header` is written.
    pub serialize: SerializeType,
    /// The header's bytes, not yet looked at.
    pub header: &'a [u8],
    /// The body's bytes; empty means "no body".
    pub body: &'a [u8],
    /// The whole frame's length: what to consume from the buffer.
    pub len: usize,
}

/// What the start of a receive buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek<'a> {
    /// Not yet a frame. The bytes that are needed, counted from the start of the buffer: more than it
    /// holds now, and exact as soon as the length word is there (4 before that).
    Need(usize),
    /// A frame.
    Frame(FrameRef<'a>),
}

/// Why the bytes cannot be a frame. There is no way to find the next frame: close the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The length word is negative or leaves no room for the header word.
    #[error(
        "frame length {total} is not at least 4; the peer does not speak the remoting protocol"
    )]
    TooShort {
        /// The length word.
        total: i32,
    },
    /// The frame is over the limit.
    #[error("frame of {len} bytes is longer than {max}; raise the limit on both ends or send less")]
    TooLong {
        /// The whole frame's length in bytes.
        len: u64,
        /// The limit in bytes.
        max: usize,
    },
    /// The header would not fit into the frame.
    #[error("header of {header} bytes does not fit into a frame whose length word is {total}")]
    HeaderTooLong {
        /// The header's length in bytes.
        header: usize,
        /// The length word.
        total: i32,
    },
    /// Neither JSON nor binary.
    #[error("serialize type {0} is neither 0 (JSON) nor 1 (binary)")]
    SerializeType(u8),
}

/// Looks at the start of `buf` without copying or allocating.
///
/// `frame_bytes_max` is usually [`FRAME_BYTES_MAX`]. Rules are checked as soon as the bytes they concern
/// are there, so that a hopeless peer is not waited for.
///
/// # Errors
/// See [`FrameError`]: the stream is lost, close it.
pub fn peek(buf: &[u8], frame_bytes_max: usize) -> Result<Peek<'_>, FrameError> {
    let Some((word, rest)) = buf.split_first_chunk::<4>() else { return Ok(Peek::Need(4)) };
    let total = i32::from_be_bytes(*word);
    if total < 4 {
        return Err(FrameError::TooShort { total });
    }
    // At least 4 and at most i32::MAX: the casts are exact, the sum needs one bit more than i32.
    let len = total as u64 + 4;
    if len > frame_bytes_max as u64 {
        return Err(FrameError::TooLong { len, max: frame_bytes_max });
    }
    let len = len as usize;
    let Some((word, rest)) = rest.split_first_chunk::<4>() else { return Ok(Peek::Need(len)) };
    let serialize = match word[0] {
        0 => SerializeType::Json,
        1 => SerializeType::Binary,
        other => return Err(FrameError::SerializeType(other)),
    };
    let header = u32::from_be_bytes([0, word[1], word[2], word[3]]) as usize;
    if header > len - FRAME_PREFIX_BYTES {
        return Err(FrameError::HeaderTooLong { header, total });
    }
    let Some(payload) = rest.get(..len - FRAME_PREFIX_BYTES) else { return Ok(Peek::Need(len)) };
    let (header, body) = payload.split_at(header);
    Ok(Peek::Frame(FrameRef { serialize, header, body, len }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(total: i32, kind: u8, header: u32, payload: usize) -> Vec<u8> {
        let mut out = total.to_be_bytes().to_vec();
        out.extend_from_slice(&(u32::from(kind) << 24 | header).to_be_bytes());
        out.resize(out.len() + payload, b'x');
        out
    }

    #[test]
    fn need_is_exact_once_the_length_word_is_there() {
        let whole = frame(4 + 3 + 2, 0, 3, 5);
        for cut in 0..whole.len() {
            let need = if cut < 4 { 4 } else { whole.len() };
            assert_eq!(peek(&whole[..cut], FRAME_BYTES_MAX), Ok(Peek::Need(need)), "cut at {cut}");
        }
        let Ok(Peek::Frame(got)) = peek(&whole, FRAME_BYTES_MAX) else { panic!("no frame") };
        assert_eq!((got.header.len(), got.body.len(), got.len), (3, 2, whole.len()));
    }

    #[test]
    fn bytes_after_the_frame_are_left_alone() {
        let mut two = frame(4 + 1, 1, 1, 1);
        let first = two.len();
        two.extend_from_slice(&[0xFF; 9]);
        let Ok(Peek::Frame(got)) = peek(&two, FRAME_BYTES_MAX) else { panic!("no frame") };
        assert_eq!((got.serialize, got.len), (SerializeType::Binary, first));
    }

    #[test]
    fn limits_of_stock_hold_exactly() {
        let most = (FRAME_BYTES_MAX - 4) as i32;
        let ok = frame(most, 0, 1, 0);
        assert_eq!(peek(&ok, FRAME_BYTES_MAX), Ok(Peek::Need(FRAME_BYTES_MAX)));
        let over = frame(most + 1, 0, 1, 0);
        assert!(matches!(peek(&over, FRAME_BYTES_MAX), Err(FrameError::TooLong { .. })));
        assert!(matches!(
            peek(&i32::MAX.to_be_bytes(), usize::MAX),
            Ok(Peek::Need(n)) if n == i32::MAX as usize + 4
        ));
        for total in [3, 0, -1, i32::MIN] {
            assert_eq!(peek(&total.to_be_bytes(), 1 << 20), Err(FrameError::TooShort { total }));
        }
        assert_eq!(
            peek(&frame(8, 0, 5, 0), 1 << 20),
            Err(FrameError::HeaderTooLong { header: 5, total: 8 })
        );
        assert_eq!(peek(&frame(8, 2, 0, 0), 1 << 20), Err(FrameError::SerializeType(2)));
        assert!(matches!(peek(&frame(4, 0, 0, 0), 1 << 20), Ok(Peek::Frame(f)) if f.len == 8));
    }
}
