//! The 20 bytes of one consume queue unit.

/// Length of a unit.
pub const UNIT_BYTES: usize = 20;

/// The size field of a unit that only fills room before a queue's first message (stock 4.9.8 "pre-blank").
pub const BLANK_UNIT_SIZE: i32 = 0x7FFF_FFFF;

/// A unit as it stands in a file.
pub type RawUnit = [u8; UNIT_BYTES];

/// Where one message is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Where its record begins in the log.
    pub physical_offset: i64,
    /// Length of its record.
    pub size: i32,
    /// Hash of its tags; the deliver time in the delay topic; an address if a stock broker used the consume queue extension
    /// (see [`Unit::is_extension_address`]).
    pub tags_code: i64,
}

impl Unit {
    /// Fills room before a queue's first message.
    pub const BLANK: Unit = Unit { physical_offset: 0, size: BLANK_UNIT_SIZE, tags_code: 0 };

    /// The file form, big endian.
    pub fn encode(&self) -> RawUnit {
        let mut raw = [0; UNIT_BYTES];
        raw[..8].copy_from_slice(&self.physical_offset.to_be_bytes());
        raw[8..12].copy_from_slice(&self.size.to_be_bytes());
        raw[12..].copy_from_slice(&self.tags_code.to_be_bytes());
        raw
    }

    /// Reads the file form; any 20 bytes are some unit.
    pub fn decode(raw: &RawUnit) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = *raw;
        Self {
            physical_offset: i64::from_be_bytes([a, b, c, d, e, f, g, h]),
            size: i32::from_be_bytes([i, j, k, l]),
            tags_code: i64::from_be_bytes([m, n, o, p, q, r, s, t]),
        }
    }

    /// Stock's test for a unit that was written: an offset and a size. Blank units pass.
    pub fn is_valid(&self) -> bool {
        self.physical_offset >= 0 && self.size > 0
    }

    /// Whether this unit stands for no message.
    pub fn is_blank(&self) -> bool {
        self.size == BLANK_UNIT_SIZE && self.physical_offset == 0
    }

    /// Where its record ends in the log.
    pub fn physical_end(&self) -> i64 {
        self.physical_offset.saturating_add(i64::from(self.size))
    }

    /// Whether `tags_code` is an address in a stock broker's extension file instead of a hash: the tags are unknown.
    pub fn is_extension_address(&self) -> bool {
        self.tags_code < i64::from(i32::MIN)
    }
}
