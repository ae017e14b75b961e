//! Following another log: where its records begin and end, in bytes that come cut anywhere.
//!
//! A slave copies its master's log byte for byte. What arrives may end inside a record; what this node says of itself across a
//! restart may not. So the walk along the records' lengths goes beside the bytes: it tells the last boundary between records, and
//! it refuses bytes that cannot be a log before they become part of one.

use ringmq_net::record::{MAGIC_BLANK, MAGIC_MESSAGE, RECORD_FIXED_BYTES};

use super::failure::AppendError;
use super::recovery::RECORD_BYTES_MAX;

/// Bytes of a record that say how long it is.
const HEAD_BYTES: usize = 8;

/// Why bytes of another log were not taken. Nothing was stored then.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The log does not take them now.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// They could not be had.
    #[error(transparent)]
    Source(#[from] std::io::Error),
    /// They are no records.
    #[error(
        "what the other log has at physical offset {offset} is no record (size {size}, magic {magic:#010x}): nothing of it was stored; run `ringmq log verify` on its store"
    )]
    Form {
        /// Where.
        offset: u64,
        /// The size field.
        size: u32,
        /// The magic.
        magic: u32,
    },
    /// The log does not end where they begin.
    #[error("bytes of physical offset {from} do not follow the log, which ends at {end}")]
    Gap {
        /// Where they begin.
        from: u64,
        /// Where the log ends.
        end: u64,
    },
}

/// Walks along records. Cheap to copy, so that a walk can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walk {
    /// Start of the record under way, or where the next one begins.
    boundary: u64,
    /// Next byte to come.
    at: u64,
    head: [u8; HEAD_BYTES],
    /// Bytes of the record under way, once its head is there.
    size: Option<u64>,
}

impl Walk {
    /// A walk that begins between two records.
    pub(super) fn new(boundary: u64) -> Self {
        Walk { boundary, at: boundary, head: [0; HEAD_BYTES], size: None }
    }

    /// The last boundary between records at or before what has come.
    pub(super) fn boundary(&self) -> u64 {
        self.boundary
    }

    /// Goes on over `bytes`, all of them in the segment that ends at `segment_end`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], segment_end: u64) -> Result<(), FollowError> {
        while !bytes.is_empty() {
            let size = match self.size {
                Some(size) => size,
                None => {
                    let have = (self.at - self.boundary) as usize;
                    let take = (HEAD_BYTES - have).min(bytes.len());
                    let (part, rest) = bytes.split_at(take);
                    self.head[have..have + take].copy_from_slice(part);
                    self.at += take as u64;
                    bytes = rest;
                    if have + take < HEAD_BYTES {
                        return Ok(());
                    }
                    let size = self.size_of(segment_end)?;
                    *self.size.insert(size)
                }
            };
            let end = self.boundary + size;
            let take = (end - self.at).min(bytes.len() as u64);
            self.at += take;
            bytes = bytes.get(take as usize..).unwrap_or_default();
            if self.at == end {
                *self = Walk::new(end);
            }
        }
        Ok(())
    }

    /// What the head says, if it can be.
    fn size_of(&self, segment_end: u64) -> Result<u64, FollowError> {
        let [a, b, c, d, e, f, g, h] = self.head;
        let size = u32::from_be_bytes([a, b, c, d]);
        let magic = u32::from_be_bytes([e, f, g, h]);
        let room = segment_end - self.boundary;
        let long = u64::from(size);
        let fits = match magic {
            MAGIC_BLANK => long == room,
            MAGIC_MESSAGE => {
                long >= RECORD_FIXED_BYTES as u64
                    && long <= RECORD_BYTES_MAX as u64
                    && long + HEAD_BYTES as u64 <= room
            }
            _ => false,
        };
        if fits { Ok(long) } else { Err(FollowError::Form { offset: self.boundary, size, magic }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(size: u32) -> Vec<u8> {
        let mut bytes = vec![7; size as usize];
        bytes[..4].copy_from_slice(&size.to_be_bytes());
        bytes[4..8].copy_from_slice(&MAGIC_MESSAGE.to_be_bytes());
        bytes
    }

    #[test]
    fn the_boundary_is_right_wherever_the_bytes_are_cut() {
        let mut log = record(100);
        log.extend(record(333));
        let blank = 4096 - 433u32;
        log.extend(blank.to_be_bytes());
        log.extend(MAGIC_BLANK.to_be_bytes());
        log.resize(4096, 9);
        for step in [1, 2, 3, 7, 8, 91, 100, 500, 4096] {
            let mut walk = Walk::new(0);
            let mut at = 0;
            for part in log.chunks(step) {
                walk.feed(part, 4096).unwrap();
                at += part.len() as u64;
                let want = [0, 100, 433, 4096].into_iter().filter(|end| *end <= at).max();
                assert_eq!(Some(walk.boundary()), want, "cut every {step} bytes, at {at}");
            }
        }
    }

    #[test]
    fn what_cannot_be_a_record_is_refused() {
        let refused = |bytes: &[u8]| Walk::new(0).feed(bytes, 4096).is_err();
        assert!(refused(&[0; 8]), "zeros");
        assert!(refused(&record(100)[..8].iter().rev().copied().collect::<Vec<_>>()));
        let sized = |size: u32, magic: u32| {
            let mut head = size.to_be_bytes().to_vec();
            head.extend(magic.to_be_bytes());
            head
        };
        assert!(refused(&sized(4089, MAGIC_MESSAGE)), "no room for the end of segment mark");
        assert!(refused(&sized(u32::MAX, MAGIC_MESSAGE)));
        assert!(refused(&sized(10, MAGIC_MESSAGE)), "shorter than any record");
        assert!(refused(&sized(100, MAGIC_BLANK)), "a mark that does not end the segment");
        assert!(!refused(&sized(4096, MAGIC_BLANK)));
        assert!(!refused(&sized(4088, MAGIC_MESSAGE)));
    }
}
