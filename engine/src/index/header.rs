//! Header and entry of an index file.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 20;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 4;

/// The first 40 bytes of an index file. Times are store timestamps in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Of the first entry's record.
    pub begin_timestamp: i64,
    /// Of the last entry's record.
    pub end_timestamp: i64,
    /// Where the first entry's record is.
    pub begin_physical: i64,
    /// Where the last entry's record is.
    pub end_physical: i64,
    /// Slots in use.
    pub slot_count: u32,
    /// Number of the next entry; starts at 1.
    pub next_entry: u32,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            begin_timestamp: 0,
            end_timestamp: 0,
            begin_physical: 0,
            end_physical: 0,
            slot_count: 0,
            next_entry: 1,
        }
    }
}

impl Header {
    /// The header of the file after this one: times and offsets begin with this one's last (stock 4.9.8).
    pub fn following(&self) -> Self {
        Self {
            begin_timestamp: self.end_timestamp,
            end_timestamp: self.end_timestamp,
            begin_physical: self.end_physical,
            end_physical: self.end_physical,
            slot_count: 0,
            next_entry: 1,
        }
    }

    /// The file form, big endian.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.begin_timestamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.end_timestamp.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.begin_physical.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.end_physical.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.slot_count.to_be_bytes());
        bytes[36..].copy_from_slice(&self.next_entry.to_be_bytes());
        bytes
    }

    /// Reads the file form; an entry number of 0 or below is that of a new file.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let long = |at: usize| {
            i64::from_be_bytes(bytes[at..].first_chunk::<8>().copied().unwrap_or_default())
        };
        let int = |at: usize| {
            let int =
                i32::from_be_bytes(bytes[at..].first_chunk::<4>().copied().unwrap_or_default());
            u32::try_from(int).unwrap_or(0)
        };
        Self {
            begin_timestamp: long(0),
            end_timestamp: long(8),
            begin_physical: long(16),
            end_physical: long(24),
            slot_count: int(32),
            next_entry: int(36).max(1),
        }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) hash: i32,
    pub(super) physical: i64,
    /// Whole seconds since the file's begin.
    pub(super) seconds: i32,
    /// The entry before it in its chain, 0 = none.
    pub(super) previous: u32,
}

impl Entry {
    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.physical.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = *bytes;
        Self {
            hash: i32::from_be_bytes([a, b, c, d]),
            physical: i64::from_be_bytes([e, f, g, h, i, j, k, l]),
            seconds: i32::from_be_bytes([m, n, o, p]),
            previous: u32::from_be_bytes([q, r, s, t]),
        }
    }
}

/// Table sizes of an index: configuration, not stored in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) slots: u32,
    /// A file is full when its next entry number reaches this.
    pub(super) entries: u32,
}

impl Shape {
    pub(super) fn file_bytes(self) -> u64 {
        self.entry_at(self.entries)
    }

    pub(super) fn slot_at(self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(slot) * SLOT_BYTES as u64
    }

    pub(super) fn entry_at(self, entry: u32) -> u64 {
        self.slot_at(self.slots) + u64::from(entry) * ENTRY_BYTES as u64
    }

    pub(super) fn slot_of(self, hash: i32) -> u32 {
        hash.unsigned_abs() % self.slots.max(1)
    }
}
