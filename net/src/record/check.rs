//! Is this a whole record? The question of recovery.
//!
//! The device writes sectors of 512 bytes whole or not at all, in any order, and a sector of the zeroed frontier that
//! never arrived reads as zeros. [`check`] accepts bytes only if they are exactly what was encoded, for every subset of
//! the record's sectors that reads as zeros. Why its rules are enough, for a record of which some sectors are zero:
//!
//! - The fixed part (up to and with `bodyLength`) is at most 112 bytes, so it lies in one or two sectors. Let the first
//!   part, in the record's first sector, be zero: if it reaches into the magic, whose bytes are all non-zero, the magic is
//!   wrong; else only size bytes are zero, and the size disagrees with the lengths unless they were zero anyway. (Both
//!   cannot change alike: with `totalSize` cut below its third byte the lengths lie in the sector of the magic,
//!   and above it the difference is more than `propertiesLength` can make up for.)
//! - Let the second part be zero: this sector goes on for at least 400 bytes behind the fixed part. If `bodyLength` reads
//!   as 0, `topicLength` is read right behind it, from the same zeros: refused, a topic has at least one byte. If
//!   `bodyLength` keeps some upper bytes, every field before it is whole, and the CRC of the body decides.
//! - Zeros inside the body: the CRC. This and the case before are the only probabilistic ones (1 in 2^31).
//! - `topicLength` zero: refused. A zero sector that begins inside the topic also holds `propertiesLength`: either the
//!   size disagrees, or there were no properties and the topic's part in this sector is NULs.
//! - `propertiesLength` zero or cut to its upper byte: the size disagrees or the properties' part of the sector is NULs.
//! - Zeros inside the properties: their part of that sector is NULs, and no text that this broker stores has a NUL
//!   ([`super::PropertiesRewriter`] refuses it), so there is no false alarm either. Stock brokers do store NULs: hence
//!   [`CheckRule::Stock`].
//!
//! The physical offset is checked as well: it tells stale bytes of an earlier life of the file from a record.

use super::{MAGIC_BLANK, MAGIC_MESSAGE, RecordError, RecordView, body_crc, decode};

/// What a device writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// How strict [`check`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckRule {
    /// For bytes that this broker wrote and that may be torn.
    Exact,
    /// For bytes that a stock broker wrote, or below a point known to be clean: NULs in texts are allowed.
    Stock,
}

/// What stands at a position of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckResult<'a> {
    /// A whole record, byte for byte what was encoded.
    Good(RecordView<'a>),
    /// A BLANK record: the log goes on in the next segment. `size` should be the room to the segment's end; stock readers
    /// ignore it.
    Blank {
        /// The size field as found.
        size: u32,
    },
    /// The magic is zero: nothing was written here (or its first sector did not arrive).
    End,
    /// It may be a record, but the slice ends before it: read at least `len` bytes from its start, or, if the segment has no
    /// room for them, take it as bad.
    Need {
        /// Bytes needed from the record's start.
        len: usize,
    },
    /// Not a whole record.
    Bad {
        /// What is wrong with it.
        why: TornWhy,
        /// The size field if it is plausible and the magic is right: stock's "bad, but size known".
        size: Option<usize>,
    },
}

/// Why bytes are no whole record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TornWhy {
    /// Magic, sizes or lengths do not fit.
    #[error("{0}")]
    Form(#[from] RecordError),
    /// It claims another position: stale bytes.
    #[error("record says physical offset {claimed} and stands at {position}")]
    PhysicalOffset {
        /// The field.
        claimed: i64,
        /// Where it was found.
        position: u64,
    },
    /// The body is not what was stored.
    #[error("record's body has CRC {computed:#010x}, stored is {stored:#010x}")]
    BodyCrc {
        /// The field.
        stored: u32,
        /// Of the body as read.
        computed: u32,
    },
    /// No topic.
    #[error("record has no topic")]
    NoTopic,
    /// No store timestamp.
    #[error("record has no store timestamp")]
    NoStoreTimestamp,
    /// A device sector inside the topic or the properties is all zero.
    #[error(
        "record's {what} are zero in the sector at physical offset {sector}: it was never written"
    )]
    ZeroSector {
        /// Topic or properties.
        what: &'static str,
        /// Start of the sector in the log.
        sector: u64,
    },
}

/// Checks what stands at the start of `buf`, which is position `physical_offset` of the log. Segments begin at multiples of
/// 512, so that the sectors of the file are those of the log.
pub fn check(buf: &[u8], physical_offset: u64, rule: CheckRule) -> CheckResult<'_> {
    let Some((head, _)) = buf.split_first_chunk::<8>() else {
        return CheckResult::Need { len: 8 };
    };
    let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    match u32::from_be_bytes([head[4], head[5], head[6], head[7]]) {
        0 => CheckResult::End,
        MAGIC_BLANK => CheckResult::Blank { size },
        MAGIC_MESSAGE => check_message(buf, physical_offset, rule),
        other => CheckResult::Bad { why: RecordError::Magic(other).into(), size: None },
    }
}

fn check_message(buf: &[u8], physical_offset: u64, rule: CheckRule) -> CheckResult<'_> {
    let record = match decode(buf) {
        Ok(record) => record,
        Err(RecordError::Short { need, .. }) => return CheckResult::Need { len: need },
        Err(why) => {
            let size = match why {
                RecordError::Size { total, .. } => usize::try_from(total).ok(),
                _ => None,
            };
            return CheckResult::Bad { why: why.into(), size: size.filter(|size| *size > 0) };
        }
    };
    match torn_why(&record, physical_offset, rule) {
        None => CheckResult::Good(record),
        Some(why) => CheckResult::Bad { why, size: Some(record.total_size()) },
    }
}

fn torn_why(record: &RecordView<'_>, position: u64, rule: CheckRule) -> Option<TornWhy> {
    let claimed = record.physical_offset();
    if u64::try_from(claimed) != Ok(position) {
        return Some(TornWhy::PhysicalOffset { claimed, position });
    }
    if record.topic().is_empty() {
        return Some(TornWhy::NoTopic);
    }
    if record.store_timestamp() == 0 {
        return Some(TornWhy::NoStoreTimestamp);
    }
    if rule == CheckRule::Exact {
        let topic = record.topic().as_bytes();
        if let Some(sector) = zero_sector(topic, position + record.topic_at() as u64) {
            return Some(TornWhy::ZeroSector { what: "topic", sector });
        }
        let properties_at = position + record.properties_at() as u64;
        if let Some(sector) = zero_sector(record.properties(), properties_at) {
            return Some(TornWhy::ZeroSector { what: "properties", sector });
        }
    }
    let computed = body_crc(record.body());
    let stored = record.body_crc();
    (computed != stored).then_some(TornWhy::BodyCrc { stored, computed })
}

/// The first sector whose whole part inside `text`, which begins at `position`, is zero.
fn zero_sector(mut text: &[u8], mut position: u64) -> Option<u64> {
    while !text.is_empty() {
        let room = SECTOR_BYTES - (position % SECTOR_BYTES as u64) as usize;
        let (part, rest) = text.split_at(room.min(text.len()));
        if part.iter().all(|byte| *byte == 0) {
            return Some(position - position % SECTOR_BYTES as u64);
        }
        position += part.len() as u64;
        text = rest;
    }
    None
}
