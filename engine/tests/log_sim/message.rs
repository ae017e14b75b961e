//! The simulator's own idea of a record: encoded and read here without the engine's codec, so that the oracle doesn't
//! repeat its mistakes. Layout: stock 4.9's V1 record.

use crate::rng::Rng;

const MAGIC: u32 = 0xDAA3_20A7;
const BLANK: u32 = 0xCBD4_3194;

/// One message as the oracle remembers it.
pub(crate) struct Message {
    pub(crate) offset: u64,
    pub(crate) queue: u32,
    pub(crate) queue_offset: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Encodes a message whose record has `len` bytes, at least [`LEN_MIN`]. `shape` chooses where the length goes.
pub(crate) fn encode(
    queue: u32,
    queue_offset: u64,
    offset: u64,
    len: usize,
    rng: &mut Rng,
) -> Vec<u8> {
    let topic = b"SimTopic";
    let id = rng.next();
    let mut properties = format!("ID\u{1}{id:016x}\u{2}").into_bytes();
    let spare = len - LEN_MIN;
    // Properties may be long: a record torn in them is the one that a body checksum can't see.
    let in_properties = match rng.below(4) {
        0 => spare.min(6000),
        1 => spare.min(rng.below(3000) as usize),
        _ => 0,
    };
    properties.extend(noise(id, in_properties).iter().map(|byte| b'a' + byte % 26));
    let body_len = spare - in_properties;
    // Zero bodies stay zero: a torn zero body is no tear.
    let body = if rng.chance(20) { vec![0; body_len] } else { noise(id, body_len) };
    let mut out = Vec::with_capacity(len);
    out.extend((len as u32).to_be_bytes());
    out.extend(MAGIC.to_be_bytes());
    let crc = if body.is_empty() { 0 } else { crc32fast::hash(&body) & 0x7FFF_FFFF };
    out.extend(crc.to_be_bytes());
    out.extend(queue.to_be_bytes());
    out.extend(0u32.to_be_bytes());
    out.extend(queue_offset.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(0u32.to_be_bytes());
    out.extend(1_700_000_000_000u64.to_be_bytes());
    out.extend([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]);
    out.extend((1_700_000_000_001 + offset).to_be_bytes());
    out.extend([10, 0, 0, 2, 0, 0, 0x2A, 0x9F]);
    out.extend(0u32.to_be_bytes());
    out.extend(0u64.to_be_bytes());
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(&body);
    out.push(topic.len() as u8);
    out.extend(topic);
    out.extend((properties.len() as u16).to_be_bytes());
    out.extend(&properties);
    assert_eq!(out.len(), len, "the record has the length asked for");
    out
}

/// Bytes without a pattern that a tear could preserve.
fn noise(mut seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 64);
    let mut piece = [0; 64];
    while bytes.len() < len {
        for word in piece.chunks_mut(8) {
            seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            word.copy_from_slice(&seed.to_be_bytes());
        }
        bytes.extend_from_slice(&piece);
    }
    bytes.truncate(len);
    bytes
}

/// Fixed fields, topic and the id property.
pub(crate) const LEN_MIN: usize = 91 + 8 + 20;

/// What a reader finds at a position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Message { len: usize, queue: u32, queue_offset: u64, offset: u64 },
    Blank { room: usize },
    Nothing,
}

/// Reads as a stock consumer would: magic and size, then the fields it needs.
pub(crate) fn read(bytes: &[u8]) -> Found {
    let word = |at: usize| {
        bytes.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).unwrap_or(0)
    };
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    match word(4) {
        MAGIC => Found::Message {
            len: word(0) as usize,
            queue: word(12),
            queue_offset: long(20),
            offset: long(28),
        },
        BLANK => Found::Blank { room: word(0) as usize },
        _ => Found::Nothing,
    }
}
