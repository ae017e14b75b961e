//! A disk that does everything a real one may do.
//!
//! ```text
//!   a write in flight   any subset of its granules (sectors of 512 or 4096 bytes) may have arrived at a crash
//!   completed           read back by anyone; kept by the device's volatile cache until a flush
//!   flushed             on the medium
//! ```
//!
//! - Process kill: completed writes stay; of one in flight any subset of granules arrives.
//! - Kernel crash: as a kill, and in addition whatever was written into space that was only allocated and not flushed since
//!   (unwritten extents) reads as zeros, block by block.
//! - Power cut: as a kernel crash, and of each granule any version since the last flush may be the one on the medium.

use std::collections::BTreeMap;

use ringmq_engine::log::LogState;

use crate::rng::Rng;

/// Extents are tracked in blocks of this size, as by a file system.
const BLOCK: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crash {
    Kill,
    Kernel,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Allocated; reads as zeros.
    Unwritten,
    /// Written since (at this moment of the disk); not yet in the journal.
    Converting(u64),
    Written,
}

struct Version {
    at: u64,
    bytes: Vec<u8>,
}

pub(crate) struct File {
    /// What a read returns.
    pub(crate) cache: Vec<u8>,
    medium: Vec<u8>,
    /// Granules written since they were flushed, oldest version first.
    versions: BTreeMap<usize, Vec<Version>>,
    extents: Vec<Extent>,
}

pub(crate) struct Disk {
    granule: usize,
    segment_size: usize,
    pub(crate) segments: BTreeMap<u64, File>,
    pub(crate) state: Option<LogState>,
    /// Counts writes.
    now: u64,
}

impl Disk {
    pub(crate) fn new(granule: usize, segment_size: usize) -> Self {
        Self { granule, segment_size, segments: BTreeMap::new(), state: None, now: 0 }
    }

    /// A moment: a flush that begins now covers the writes before it.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// A prepared segment: allocated, its first `zeroed` bytes written as zeros, all of that durable.
    pub(crate) fn create(&mut self, start: u64, zeroed: usize) {
        let mut extents = vec![Extent::Unwritten; self.segment_size / BLOCK];
        extents[..zeroed / BLOCK].fill(Extent::Written);
        let zeros = vec![0; self.segment_size];
        let file = File { cache: zeros.clone(), medium: zeros, versions: BTreeMap::new(), extents };
        assert!(self.segments.insert(start, file).is_none(), "segment {start} exists");
    }

    /// A write: all of it, or those granules that `arrives` says.
    pub(crate) fn write(
        &mut self,
        start: u64,
        position: u64,
        bytes: &[u8],
        mut arrives: impl FnMut() -> bool,
    ) {
        self.now += 1;
        let now = self.now;
        let file = self.segments.get_mut(&start).expect("written segment exists");
        for (index, piece) in bytes.chunks(self.granule).enumerate() {
            if !arrives() {
                continue;
            }
            let at = position as usize + index * self.granule;
            file.cache[at..at + piece.len()].copy_from_slice(piece);
            let version = Version { at: now, bytes: piece.to_vec() };
            file.versions.entry(at / self.granule).or_default().push(version);
            let extent = &mut file.extents[at / BLOCK];
            if *extent == Extent::Unwritten {
                *extent = Extent::Converting(now);
            }
        }
    }

    /// A flush that began at `begun`.
    pub(crate) fn flush(&mut self, start: u64, begun: u64) {
        let granule = self.granule;
        let Some(file) = self.segments.get_mut(&start) else { return };
        for (index, versions) in &mut file.versions {
            let covered = versions.iter().take_while(|version| version.at <= begun).count();
            if let Some(version) = versions.drain(..covered).next_back() {
                let at = index * granule;
                file.medium[at..at + granule].copy_from_slice(&version.bytes);
            }
        }
        file.versions.retain(|_, versions| !versions.is_empty());
        for extent in &mut file.extents {
            if matches!(extent, Extent::Converting(at) if *at <= begun) {
                *extent = Extent::Written;
            }
        }
    }

    /// Zeros that were written and flushed: the flush is taken to cover nothing else.
    pub(crate) fn zero_durably(&mut self, start: u64, from: u64, to: u64) {
        let file = self.segments.get_mut(&start).expect("zeroed segment exists");
        let (from, to) = (from as usize, to as usize);
        file.cache[from..to].fill(0);
        file.medium[from..to].fill(0);
        for granule in from / self.granule..to / self.granule {
            file.versions.remove(&granule);
        }
        file.extents[from / BLOCK..to / BLOCK].fill(Extent::Written);
    }

    /// What the crash leaves of completed writes.
    pub(crate) fn crash(&mut self, kind: Crash, rng: &mut Rng) {
        for file in self.segments.values_mut() {
            if kind != Crash::Kill {
                file.lose_extents(self.granule, rng);
            }
            if kind == Crash::Power {
                file.lose_cache(self.granule, rng);
            }
        }
    }

    /// Bytes `[from, to)` of a segment as any later crash would still find them: `None` if they could change.
    pub(crate) fn settled(&self, start: u64, from: usize, to: usize) -> Option<&[u8]> {
        let file = self.segments.get(&start)?;
        let cached = &file.cache[from..to];
        if file.medium[from..to] != *cached {
            return None;
        }
        let granules = from / self.granule..to.div_ceil(self.granule);
        for (index, versions) in file.versions.range(granules) {
            let at = index * self.granule;
            let (low, high) = (at.max(from), (at + self.granule).min(to));
            let same = |v: &Version| v.bytes[low - at..high - at] == file.cache[low..high];
            if !versions.iter().all(same) {
                return None;
            }
        }
        // Unwritten space reads as zeros whatever was written there.
        let volatile = |block: usize| matches!(file.extents[block], Extent::Converting(_));
        if (from / BLOCK..to.div_ceil(BLOCK)).any(volatile) && !is_zero(cached) {
            return None;
        }
        Some(cached)
    }
}

/// Compared in pieces, since the simulator does little else.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    bytes.chunks(BLOCK).all(|piece| *piece == ZEROS[..piece.len()])
}

impl File {
    fn lose_extents(&mut self, granule: usize, rng: &mut Rng) {
        let lost_percent = rng.pick(&[0, 50, 100]);
        for block in 0..self.extents.len() {
            if !matches!(self.extents[block], Extent::Converting(_)) {
                continue;
            }
            if !rng.chance(lost_percent) {
                self.extents[block] = Extent::Written;
                continue;
            }
            self.extents[block] = Extent::Unwritten;
            let at = block * BLOCK;
            self.cache[at..at + BLOCK].fill(0);
            self.medium[at..at + BLOCK].fill(0);
            for index in at / granule..(at + BLOCK) / granule {
                self.versions.remove(&index);
            }
        }
    }

    fn lose_cache(&mut self, granule: usize, rng: &mut Rng) {
        let lost_percent = rng.pick(&[0, 10, 50, 90, 100]);
        for (index, versions) in std::mem::take(&mut self.versions) {
            let at = index * granule;
            if rng.chance(lost_percent) {
                // The medium has the flushed version, or one between.
                let kept = rng.below(versions.len() as u64) as usize;
                if let Some(version) = kept.checked_sub(1).and_then(|kept| versions.get(kept)) {
                    self.medium[at..at + granule].copy_from_slice(&version.bytes);
                }
            } else if let Some(version) = versions.last() {
                self.medium[at..at + granule].copy_from_slice(&version.bytes);
            }
            self.cache[at..at + granule].copy_from_slice(&self.medium[at..at + granule]);
        }
    }
}
