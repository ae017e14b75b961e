//! `<store>/ringmq/state`: what only RingMQ knows of its log, and a stock broker neither reads nor keeps.
//!
//! A small text file, replaced atomically (temporary file, fsync, rename, fsync of the directory):
//!
//! ```text
//! ringmq-state 1.0
//! shards 4
//! ...
//! crc32c 1a2b3c4d
//! ```
//!
//! The version's first number changes when an older program would be wrong about the store: it then refuses the file
//! by name. The second changes when keys are added: an older program ignores keys it doesn't know. Every key known
//! to version 1.0 must be there. The last line is the CRC-32C of all bytes before it.

use super::{error::LogError, state::LogState};
use crate::store::LockStamp;
use std::{fmt::Write as _, path::Path};

/// Longest state file that is read.
pub(crate) const STATE_BYTES_MAX: u64 = 64 * 1024;
const MAJOR: u32 = 1;
const VERSION: &str = "1.0";

/// The content of the state file. All offsets are physical offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFile {
    /// Shards the store was made for.
    pub shards: u32,
    /// What the log's core keeps.
    pub log: LogState,
    /// The store's `lock` file as this process left it: every broker that starts writes into it, so any other stamp at the
    /// next start means that a stock broker ran here since (or that the store was copied). `None`: not known.
    pub lock: Option<LockStamp>,
}

impl StateFile {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("ringmq-state {VERSION}\n");
        for (key, value) in self.pairs() {
            // Writing into a String can't fail.
            let _ = writeln!(text, "{key} {value}");
        }
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {crc:08x}");
        text.into_bytes()
    }

    fn pairs(&self) -> [(&'static str, u64); 10] {
        [
            ("shards", u64::from(self.shards)),
            ("segment_size", self.log.segment_size),
            ("scan_from", self.log.scan_from),
            ("durable", self.log.durable),
            ("write_bound", self.log.write_bound),
            ("zeroed_from", self.log.zeroed_from),
            ("zeroed_to", self.log.zeroed_to),
            ("clean", u64::from(self.log.clean)),
            ("lock_inode", self.lock.map_or(0, |l| l.inode)),
            ("lock_modified_ns", self.lock.map_or(0, |l| l.modified_ns.unsigned_abs())),
        ]
    }

    /// Reads the file's bytes; `path` only names it in errors.
    ///
    /// # Errors
    /// [`LogError::StateVersion`] for a newer major version, [`LogError::StateCorrupt`] for anything that isn't a whole
    /// state file.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self, LogError> {
        let corrupt =
            |what: &str| LogError::StateCorrupt { path: path.to_path_buf(), what: what.to_owned() };
        let text = std::str::from_utf8(bytes).map_err(|_| corrupt("not text"))?;
        // The version comes before the checksum: a newer program may have changed how the file is protected.
        let version = text
            .lines()
            .next()
            .and_then(|l| l.strip_prefix("ringmq-state "))
            .ok_or_else(|| corrupt("no version line"))?;
        let major: u32 = version
            .split('.')
            .next()
            .and_then(|m| m.parse().ok())
            .ok_or_else(|| corrupt("unreadable version"))?;
        if major > MAJOR {
            return Err(LogError::StateVersion {
                path: path.to_path_buf(),
                found: version.to_owned(),
                known: VERSION,
            });
        }
        let end = text
            .rfind("crc32c ")
            .filter(|&at| at > 0 && text.as_bytes().get(at - 1) == Some(&b'\n'))
            .ok_or_else(|| corrupt("no checksum"))?;
        let (body, last) = text.split_at(end);
        let stored = last
            .strip_prefix("crc32c ")
            .and_then(|l| l.strip_suffix('\n'))
            .and_then(|hex| u32::from_str_radix(hex, 16).ok())
            .ok_or_else(|| corrupt("unreadable checksum"))?;
        if crc32c::crc32c(body.as_bytes()) != stored {
            return Err(corrupt("wrong checksum"));
        }
        let get = |key: &'static str| -> Result<u64, LogError> {
            body.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
                .and_then(|value| value.parse().ok())
                .ok_or_else(|| corrupt(&format!("{key} is missing or not a number")))
        };
        let get32 = |key: &'static str| -> Result<u32, LogError> {
            u32::try_from(get(key)?).map_err(|_| corrupt(&format!("{key} is too large")))
        };
        Ok(StateFile {
            shards: get32("shards")?,
            log: LogState {
                segment_size: get("segment_size")?,
                scan_from: get("scan_from")?,
                durable: get("durable")?,
                write_bound: get("write_bound")?,
                zeroed_from: get("zeroed_from")?,
                zeroed_to: get("zeroed_to")?,
                clean: get("clean")? != 0,
            },
            lock: match (get("lock_inode")?, get("lock_modified_ns")?) {
                (0, _) => None,
                (inode, ns) => Some(LockStamp {
                    inode,
                    modified_ns: i64::try_from(ns)
                        .map_err(|_| corrupt("lock_modified_ns is too large"))?,
                }),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StateFile {
        StateFile {
            shards: 3,
            log: LogState {
                segment_size: 1 << 30,
                scan_from: 123_456_788_000,
                durable: 123_456_789_012,
                write_bound: 123_456_800_000,
                zeroed_from: 5,
                zeroed_to: u64::MAX,
                clean: true,
            },
            lock: Some(LockStamp { inode: 12, modified_ns: 1_700_000_000_123_456_789 }),
        }
    }

    fn reseal(mut text: String) -> Vec<u8> {
        let at = text.rfind("crc32c ").unwrap();
        text.truncate(at);
        let crc = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("crc32c {crc:08x}\n"));
        text.into_bytes()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let bytes = sample().encode();
        assert_eq!(StateFile::decode(&bytes, Path::new("state")).unwrap(), sample());
    }

    #[test]
    fn every_single_bit_flip_and_every_cut_is_refused() {
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                let read = StateFile::decode(&bad, Path::new("state"));
                // Hex digits may be read in either case: the same number, not a damage.
                let case_only = bit == 5 && bytes[at].is_ascii_alphabetic();
                assert!(
                    read.is_err() || (case_only && read.unwrap() == sample()),
                    "byte {at} bit {bit} went unnoticed"
                );
            }
            assert!(StateFile::decode(&bytes[..at], Path::new("state")).is_err());
        }
    }

    #[test]
    fn a_newer_major_version_is_refused_by_name_and_a_newer_minor_is_read() {
        let text = String::from_utf8(sample().encode()).unwrap();
        let newer = text.replace("ringmq-state 1.0", "ringmq-state 2.0");
        match StateFile::decode(newer.as_bytes(), Path::new("/s/ringmq/state")) {
            Err(e @ LogError::StateVersion { .. }) => {
                assert!(e.to_string().contains("/s/ringmq/state has version 2.0"));
            }
            other => panic!("{other:?}"),
        }
        let minor = text.replace("ringmq-state 1.0\n", "ringmq-state 1.7\nmoon_phase 3\n");
        let read = StateFile::decode(&reseal(minor), Path::new("state")).unwrap();
        assert_eq!(read, sample());
    }

    #[test]
    fn a_missing_key_is_named() {
        let text = String::from_utf8(sample().encode()).unwrap();
        let without = reseal(text.replace("write_bound", "wrote_bound"));
        let error = StateFile::decode(&without, Path::new("state")).unwrap_err();
        assert!(error.to_string().contains("write_bound"), "{error}");
    }
}
