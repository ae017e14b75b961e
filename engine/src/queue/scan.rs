//! Blocking reads over the files of one queue, for load and trim.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::unit::{UNIT_BYTES, Unit};
use crate::store::numbered_name;

/// Units read at a time by [`UnitFiles::walk`].
const CHUNK_UNITS: usize = 3200;

/// Random access to the units of a queue. Keeps the file used last open.
pub(super) struct UnitFiles {
    dir: PathBuf,
    file_units: i64,
    open: Option<(i64, File)>,
}

impl UnitFiles {
    pub(super) fn new(dir: PathBuf, file_units: i64) -> Self {
        Self { dir, file_units, open: None }
    }

    /// First queue offset of the file that holds `offset`.
    pub(super) fn file_first(&self, offset: i64) -> i64 {
        offset - offset % self.file_units
    }

    /// Path of the file that begins with `first`.
    pub(super) fn path(&self, first: i64) -> PathBuf {
        self.dir.join(numbered_name(first.max(0) as u64 * UNIT_BYTES as u64))
    }

    fn file(&mut self, first: i64) -> io::Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != first) {
            self.open = Some((first, File::open(self.path(first))?));
        }
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn unit(&mut self, offset: i64) -> io::Result<Unit> {
        let first = self.file_first(offset);
        let mut raw = [0; UNIT_BYTES];
        self.file(first)?.read_exact_at(&mut raw, position(offset - first))?;
        Ok(Unit::decode(&raw))
    }

    /// A queue offset in the file that begins with `first`, from which on nothing was ever written there: files are made with their
    /// whole length and no content, so the file system knows what a search would take many reads to find.
    pub(super) fn written_end(&mut self, first: i64) -> io::Result<i64> {
        let units = self.file_units;
        let file = self.file(first)?;
        // SAFETY: lseek takes a descriptor, open over the call, and plain numbers.
        let hole = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
        if hole < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(first + (hole as u64).div_ceil(UNIT_BYTES as u64).min(units as u64) as i64)
    }

    /// Whether everything in the file of `offset` from there on is zero. False without reading it all if much is there.
    pub(super) fn is_zero_from(&mut self, offset: i64) -> io::Result<bool> {
        let first = self.file_first(offset);
        let end = self.written_end(first)?;
        let Ok(units) = usize::try_from(end - offset) else { return Ok(false) };
        if units > CHUNK_UNITS || end - first == self.file_units {
            return Ok(false);
        }
        let mut rest = vec![0; units * UNIT_BYTES];
        self.file(first)?.read_exact_at(&mut rest, position(offset - first))?;
        Ok(rest.iter().all(|byte| *byte == 0))
    }

    /// First offset in `low..high` whose unit does not satisfy `holds`, which is true for a first part of them and false for
    /// the rest.
    pub(super) fn partition(
        &mut self,
        mut low: i64,
        mut high: i64,
        holds: impl Fn(&Unit) -> bool,
    ) -> io::Result<i64> {
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(&self.unit(middle)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Where the queue ends between `first` and `limit`, by halving: all units of records below `cut_at` are whole and in order. Behind
    /// them may be units of later records, zeros, and units of which a page was never written. Such a half unit can look like
    /// one below `cut_at`, but then the one before it is zero: so a unit counts only with the one before it.
    pub(super) fn search_end(&mut self, first: i64, limit: i64, cut_at: i64) -> io::Result<i64> {
        let (mut low, mut high) = (first, limit);
        while low < high {
            let middle = low + (high - low) / 2;
            let unit = self.unit(middle)?;
            let mut counts = unit.is_valid() && unit.physical_offset < cut_at;
            if counts && middle > first {
                let before = self.unit(middle - 1)?;
                counts = before.is_blank()
                    || (before.is_valid() && before.physical_end() <= unit.physical_offset);
            }
            if counts {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Whether `holds` is true for all of `from..to`.
    pub(super) fn all(
        &mut self,
        from: i64,
        to: i64,
        holds: impl Fn(&Unit) -> bool,
    ) -> io::Result<bool> {
        let mut buffer = vec![0; CHUNK_UNITS * UNIT_BYTES];
        let mut at = from;
        while at < to {
            let first = self.file_first(at);
            let end = to.min(first + self.file_units).min(at + CHUNK_UNITS as i64);
            let bytes = (end - at) as usize * UNIT_BYTES;
            let chunk = buffer.get_mut(..bytes).unwrap_or_default();
            self.file(first)?.read_exact_at(chunk, position(at - first))?;
            if !chunk.as_chunks::<UNIT_BYTES>().0.iter().all(|raw| holds(&Unit::decode(raw))) {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// Goes through `from..to` while units are valid, begin below `cut_at`, and lie in log order. Returns where it
    /// stopped.
    pub(super) fn walk(&mut self, from: i64, to: i64, cut_at: i64) -> io::Result<i64> {
        let units = usize::try_from(to - from).unwrap_or(0).min(CHUNK_UNITS);
        let mut buffer = vec![0; units * UNIT_BYTES];
        let mut at = from;
        let mut end_physical = 0;
        while at < to {
            let first = self.file_first(at);
            let end = to.min(first + self.file_units).min(at + CHUNK_UNITS as i64);
            let bytes = (end - at) as usize * UNIT_BYTES;
            let chunk = buffer.get_mut(..bytes).unwrap_or_default();
            self.file(first)?.read_exact_at(chunk, position(at - first))?;
            for raw in chunk.as_chunks::<UNIT_BYTES>().0 {
                let unit = Unit::decode(raw);
                if !unit.is_valid() || unit.physical_offset >= cut_at {
                    return Ok(at);
                }
                if !unit.is_blank() {
                    if unit.physical_offset < end_physical {
                        return Ok(at);
                    }
                    end_physical = unit.physical_end();
                }
                at += 1;
            }
        }
        Ok(at)
    }
}

fn position(units: i64) -> u64 {
    units.max(0) as u64 * UNIT_BYTES as u64
}
