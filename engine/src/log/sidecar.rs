//! `<store>/ringmq/crc/<segment>`: CRC-32C of whole 64 KiB blocks of the log, for scrubbing and for transfers between
//! RingMQ nodes. A stock record protects only its body; these cover every byte.
//!
//! One file a segment, one 8-byte entry a block: the CRC and a check word that ties it to its block number, so that an
//! entry that was never written, or was torn, reads as *absent* and not as a mismatch. Absent entries are rebuilt. The
//! sidecar never decides what recovery keeps.

use std::path::{Path, PathBuf};

use ringmq_net::record::{BLANK_BYTES_MIN, encode_blank};

/// Bytes of log that one entry covers.
pub const CRC_BLOCK_BYTES: u64 = 64 * 1024;
/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 8;
/// Bytes before the first entry.
pub(crate) const HEADER_BYTES: usize = 16;
const MAGIC: &[u8; 8] = b"RMQCRC\x01\n";

/// The sidecar of the segment that starts at `base`.
pub(crate) fn sidecar_path(crc_dir: &Path, base: u64) -> PathBuf {
    crc_dir.join(format!("{base:020}"))
}

/// The file's first bytes: magic with version, and the segment's start offset.
pub(crate) fn header(base: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..].copy_from_slice(&base.to_be_bytes());
    out
}

fn check_word(crc: u32, block: u64) -> u32 {
    // Any fixed mixing will do: it only has to make zeros, and entries of other blocks, invalid.
    let salt = (block as u32).wrapping_mul(0x9e37_79b9) ^ 0x5247_4d51;
    crc.rotate_left(13) ^ salt
}

/// Encodes the entry of block number `block` (counted from its segment's start).
pub(crate) fn encode_entry(crc: u32, block: u64) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    out[..4].copy_from_slice(&crc.to_be_bytes());
    out[4..].copy_from_slice(&check_word(crc, block).to_be_bytes());
    out
}

/// The CRC stored for `block`, if the entry is valid.
pub(crate) fn decode_entry(bytes: &[u8; ENTRY_BYTES], block: u64) -> Option<u32> {
    let [a, b, c, d, e, f, g, h] = *bytes;
    let crc = u32::from_be_bytes([a, b, c, d]);
    (u32::from_be_bytes([e, f, g, h]) == check_word(crc, block)).then_some(crc)
}

/// A sidecar file read into memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sidecar {
    entries: Vec<Option<u32>>,
}

impl Sidecar {
    /// Reads a file's bytes. A wrong header (another version, another segment) is an empty sidecar: it is rebuilt.
    pub fn decode(bytes: &[u8], base: u64) -> Self {
        let Some((head, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Sidecar::default();
        };
        if head != header(base) {
            return Sidecar::default();
        }
        let entries = rest
            .as_chunks::<ENTRY_BYTES>()
            .0
            .iter()
            .enumerate()
            .map(|(i, e)| decode_entry(e, i as u64))
            .collect();
        Sidecar { entries }
    }

    /// The stored CRC of a block, if known.
    pub fn get(&self, block: u64) -> Option<u32> {
        self.entries.get(block as usize).copied().flatten()
    }

    /// Blocks whose CRC is known.
    pub fn known(&self) -> u64 {
        self.entries.iter().flatten().count() as u64
    }
}

/// Where entries start that may describe bytes at or after `offset` of their segment: the file keeps what is before.
pub(crate) fn bytes_kept_below(offset_in_segment: u64) -> u64 {
    HEADER_BYTES as u64 + offset_in_segment / CRC_BLOCK_BYTES * ENTRY_BYTES as u64
}

/// Entries of consecutive blocks of one segment, ready to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CrcBatch {
    pub(crate) base: u64,
    pub(crate) first_block: u64,
    pub(crate) crcs: Vec<u32>,
}

/// Folds the log's bytes, in order, into block CRCs. Pure; fed by the shell with what each write brought.
#[derive(Debug)]
pub(crate) struct Folder {
    segment_bytes: u64,
    /// Next byte to fold.
    at: u64,
    crc: u32,
    /// The block in progress was not seen from its start: its CRC is unknown and left to the rebuild.
    partial: bool,
    /// Finished blocks: (block start, CRC), oldest first.
    done: std::collections::VecDeque<(u64, u32)>,
}

impl Folder {
    /// Starts at `at` (a physical offset).
    pub(crate) fn new(segment_bytes: u64, at: u64) -> Self {
        let partial = !(at % segment_bytes).is_multiple_of(CRC_BLOCK_BYTES);
        Folder { segment_bytes, at, crc: 0, partial, done: std::collections::VecDeque::new() }
    }

    /// The next byte it needs.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn block_end(&self) -> u64 {
        let base = self.at - self.at % self.segment_bytes;
        let in_segment = self.at - base;
        base + ((in_segment / CRC_BLOCK_BYTES + 1) * CRC_BLOCK_BYTES).min(self.segment_bytes)
    }

    /// Folds a record, or several, that were appended at `start`, while they are still in the processor's caches.
    pub(crate) fn appended(&mut self, start: u64, bytes: &[u8]) {
        if start > self.at {
            self.leave(start);
        }
        if start == self.at {
            self.feed(bytes);
        }
    }

    /// The log goes on at `start`: behind a BLANK record, or behind bytes that were not folded, whose blocks are left to the rebuild.
    fn leave(&mut self, start: u64) {
        let room = start - self.at;
        let segment_end = self.at - self.at % self.segment_bytes + self.segment_bytes;
        if start != segment_end || room < BLANK_BYTES_MIN as u64 {
            self.skip_to(start);
            return;
        }
        let mut blank = [0; BLANK_BYTES_MIN];
        encode_blank(&mut blank);
        blank[..4].copy_from_slice(&(room as u32).to_be_bytes());
        self.feed(&blank);
        self.feed_zeros_to(start);
    }

    /// Folds the bytes that follow [`Folder::at`].
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let end = self.block_end();
            let take = bytes.len().min((end - self.at) as usize);
            let (now, rest) = bytes.split_at(take);
            if !self.partial {
                self.crc = crc32c::crc32c_append(self.crc, now);
            }
            self.at += take as u64;
            if self.at == end {
                let base = (end - 1) - (end - 1) % self.segment_bytes;
                let start = base + (end - 1 - base) / CRC_BLOCK_BYTES * CRC_BLOCK_BYTES;
                if !self.partial {
                    self.done.push_back((start, self.crc));
                }
                self.crc = 0;
                self.partial = false;
            }
            bytes = rest;
        }
    }

    /// Folds zeros up to `offset`: the filler behind a segment's BLANK record.
    pub(crate) fn feed_zeros_to(&mut self, offset: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.at < offset {
            let n = ((offset - self.at) as usize).min(ZEROS.len());
            self.feed(&ZEROS[..n]);
        }
    }

    /// Jumps to `offset` without having seen what lies between.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        self.at = offset;
        self.crc = 0;
        self.partial = !(offset % self.segment_bytes).is_multiple_of(CRC_BLOCK_BYTES);
    }

    /// Finished blocks not yet taken.
    pub(crate) fn waiting(&self) -> u64 {
        self.done.len() as u64
    }

    /// Takes the finished blocks that end at or below `durable`, as runs of consecutive blocks of one segment.
    pub(crate) fn take_below(&mut self, durable: u64) -> Vec<CrcBatch> {
        let mut out: Vec<CrcBatch> = Vec::new();
        while let Some(&(start, crc)) = self.done.front() {
            let base = start - start % self.segment_bytes;
            let end = (start + CRC_BLOCK_BYTES).min(base + self.segment_bytes);
            if end > durable {
                break;
            }
            self.done.pop_front();
            let block = (start - base) / CRC_BLOCK_BYTES;
            match out.last_mut() {
                Some(b) if b.base == base && b.first_block + b.crcs.len() as u64 == block => {
                    b.crcs.push(crc);
                }
                _ => out.push(CrcBatch { base, first_block: block, crcs: vec![crc] }),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn an_entry_of_another_block_or_of_zeros_is_absent() {
        for crc in [0, 1, u32::MAX, 0x1234_5678] {
            let entry = encode_entry(crc, 9);
            assert_eq!(decode_entry(&entry, 9), Some(crc));
            assert_eq!(decode_entry(&entry, 10), None);
        }
        for block in 0..100_000 {
            assert_eq!(decode_entry(&[0; 8], block), None);
        }
    }

    #[test]
    fn folding_in_any_steps_gives_the_crc_of_each_block() {
        let segment = 3 * CRC_BLOCK_BYTES + 4096;
        let data = pattern(2 * segment as usize);
        for step in [1000, 4096, 65_536, 200_000] {
            let mut folder = Folder::new(segment, 0);
            for chunk in data.chunks(step) {
                folder.feed(chunk);
            }
            let batches = folder.take_below(u64::MAX);
            assert_eq!(batches.len(), 2, "one run a segment");
            for batch in batches {
                assert_eq!(batch.crcs.len(), 4, "three whole blocks and the short last");
                for (i, crc) in batch.crcs.iter().enumerate() {
                    let start = batch.base + i as u64 * CRC_BLOCK_BYTES;
                    let end = (start + CRC_BLOCK_BYTES).min(batch.base + segment);
                    assert_eq!(*crc, crc32c::crc32c(&data[start as usize..end as usize]));
                }
            }
        }
    }

    #[test]
    fn only_blocks_below_the_durable_offset_are_given_out() {
        let mut folder = Folder::new(1 << 20, 0);
        folder.feed(&pattern(3 * CRC_BLOCK_BYTES as usize));
        assert!(folder.take_below(CRC_BLOCK_BYTES - 1).is_empty());
        let got = folder.take_below(2 * CRC_BLOCK_BYTES);
        assert_eq!((got[0].first_block, got[0].crcs.len()), (0, 2));
    }

    #[test]
    fn a_block_that_was_not_seen_from_its_start_has_no_crc() {
        let mut folder = Folder::new(1 << 20, 100);
        folder.feed(&pattern(2 * CRC_BLOCK_BYTES as usize - 100));
        let got = folder.take_below(u64::MAX);
        assert_eq!((got[0].first_block, got[0].crcs.len()), (1, 1));
    }

    #[test]
    fn zeros_after_a_blank_count() {
        let mut folder = Folder::new(2 * CRC_BLOCK_BYTES, 0);
        let head = pattern(1000);
        folder.feed(&head);
        folder.feed_zeros_to(2 * CRC_BLOCK_BYTES);
        let mut whole = head;
        whole.resize(2 * CRC_BLOCK_BYTES as usize, 0);
        let got = folder.take_below(u64::MAX);
        assert_eq!(got[0].crcs[0], crc32c::crc32c(&whole[..CRC_BLOCK_BYTES as usize]));
        assert_eq!(got[0].crcs[1], crc32c::crc32c(&whole[CRC_BLOCK_BYTES as usize..]));
    }

    #[test]
    fn records_folded_as_they_are_appended_give_what_their_write_would() {
        let segment = 3 * CRC_BLOCK_BYTES;
        let mut whole = Vec::new();
        let mut folder = Folder::new(segment, 0);
        let mut n = 0;
        while whole.len() < 2 * segment as usize {
            n += 1;
            let record = pattern(700 + n * 37 % 5_000);
            let room = segment as usize - whole.len() % segment as usize;
            if room < record.len() + BLANK_BYTES_MIN {
                // The core leaves a BLANK record without a word to the folder.
                let start = whole.len();
                whole.resize(start + room, 0);
                encode_blank(&mut whole[start..]);
            }
            folder.appended(whole.len() as u64, &record);
            whole.extend_from_slice(&record);
        }
        let mut expected = Folder::new(segment, 0);
        expected.feed(&whole);
        let written = expected.take_below(u64::MAX);
        assert_eq!(written.iter().map(|batch| batch.crcs.len()).sum::<usize>(), 6);
        assert_eq!(folder.take_below(u64::MAX), written);
    }

    #[test]
    fn a_record_behind_bytes_that_were_not_folded_leaves_their_block_unknown() {
        let mut folder = Folder::new(1 << 20, 0);
        folder.appended(0, &pattern(100));
        folder.appended(300, &pattern(2 * CRC_BLOCK_BYTES as usize - 300));
        let got = folder.take_below(u64::MAX);
        assert_eq!((got[0].first_block, got[0].crcs.len()), (1, 1));
        // Seen already: not folded again.
        folder.appended(300, &pattern(100));
        assert_eq!(folder.at(), 2 * CRC_BLOCK_BYTES);
    }

    #[test]
    fn a_sidecar_of_another_segment_is_empty() {
        let mut bytes = header(4096).to_vec();
        bytes.extend_from_slice(&encode_entry(5, 0));
        assert_eq!(Sidecar::decode(&bytes, 4096).get(0), Some(5));
        assert_eq!(Sidecar::decode(&bytes, 8192).get(0), None);
        assert_eq!(Sidecar::decode(&bytes[..10], 4096).known(), 0);
    }
}
