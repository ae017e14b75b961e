//! What a power cut leaves of a disk: everything below the last flush that was completed, and of what was written since then whatever the
//! device happened to have put on its medium, sector by sector, in no particular order.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::image::run;
use super::super::random::Random;
use super::record::{Record, Step};

/// How much of what was not flushed survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// Nothing: a cache that is lost whole.
    Nothing,
    /// All of it.
    Everything,
    /// Each write whole or not at all, this many in a thousand.
    Writes(u64),
    /// Each sector of this many bytes on its own, this many in a thousand.
    Sectors(u64, u64),
    /// The first writes up to one that is torn at a sector of this many bytes.
    Prefix(u64),
}

impl Survives {
    /// One of them.
    pub fn any(random: &mut Random) -> Survives {
        let sector = if random.below(2) == 0 { 512 } else { 4096 };
        let share = 50 + random.below(900);
        match random.below(8) {
            0 => Survives::Nothing,
            1 => Survives::Everything,
            2 => Survives::Writes(share),
            3 => Survives::Prefix(sector),
            _ => Survives::Sectors(sector, share),
        }
    }
}

/// A moment at which the power goes: after so many steps of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub position: u64,
    pub survives: Survives,
    pub seed: u64,
}

/// Makes disks as cuts leave them, from the image that the record began with. The cuts are to be asked for in rising order: the flushed
/// part of the disk is carried on from one to the next.
pub struct Replay {
    /// The bytes of the writes.
    bytes: File,
    steps: Vec<Step>,
    /// The disk as it is on the medium after `done` steps, the last of which is a flush.
    medium: File,
    path: PathBuf,
    done: usize,
}

/// What a cut did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Damage {
    /// Writes since the last flush.
    pub unflushed: u64,
    /// Writes of these that did not survive, or not in all their sectors.
    pub hurt: u64,
}

impl Replay {
    /// `base` becomes the medium: it is changed.
    pub fn new(record: &Record, base: &Path) -> io::Result<Replay> {
        let medium = OpenOptions::new().read(true).write(true).open(base)?;
        let steps = record.steps();
        let bytes = File::open(record.path())?;
        Ok(Replay { bytes, steps, medium, path: base.to_owned(), done: 0 })
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Makes the disk that `cut` leaves in the file `to`.
    pub fn make(&mut self, cut: Cut, to: &Path) -> io::Result<Damage> {
        let end = (cut.position as usize).min(self.steps.len());
        let flushed =
            self.steps[..end].iter().rposition(|s| *s == Step::Flush).map_or(0, |i| i + 1);
        assert!(flushed >= self.done, "cuts of one replay come in rising order");
        for step in &self.steps[self.done..flushed] {
            if let Step::Write { offset, len, at } = *step {
                self.medium.write_all_at(&self.read(at, len)?, offset)?;
            }
        }
        self.done = flushed;
        let mut copy = Command::new("cp");
        run(copy.arg("--sparse=always").arg(&self.path).arg(to)).map_err(io::Error::other)?;
        let disk = OpenOptions::new().write(true).open(to)?;
        self.tear(cut, &self.steps[flushed..end], &disk)
    }

    fn read(&self, at: Option<u64>, len: u32) -> io::Result<Vec<u8>> {
        let mut data = vec![0; len as usize];
        if let Some(at) = at {
            self.bytes.read_exact_at(&mut data, at)?;
        }
        Ok(data)
    }

    /// Applies what survives of the writes since the last flush. When two of them overlap, the later is taken to have come later: a device
    /// keeps the order of writes to one sector, if it keeps both.
    fn tear(&self, cut: Cut, steps: &[Step], disk: &File) -> io::Result<Damage> {
        let mut random = Random::new(cut.seed);
        let mut damage = Damage::default();
        let last = random.below(steps.len() as u64 + 1) as usize;
        for (i, step) in steps.iter().enumerate() {
            let Step::Write { offset, len, at } = *step else { continue };
            let data = self.read(at, len)?;
            let sectors = |sector: u64| (data.len() as u64).div_ceil(sector);
            let mut kept = 0;
            let mut keep = |from: u64, to: u64| -> io::Result<()> {
                let to = to.min(data.len() as u64);
                kept += to - from;
                disk.write_all_at(&data[from as usize..to as usize], offset + from)
            };
            match cut.survives {
                Survives::Nothing => {}
                Survives::Everything => keep(0, data.len() as u64)?,
                Survives::Writes(share) if random.below(1000) < share => {
                    keep(0, data.len() as u64)?
                }
                Survives::Writes(_) => {}
                Survives::Sectors(sector, share) => {
                    for n in 0..sectors(sector) {
                        if random.below(1000) < share {
                            keep(n * sector, (n + 1) * sector)?;
                        }
                    }
                }
                Survives::Prefix(_) if i < last => keep(0, data.len() as u64)?,
                Survives::Prefix(sector) if i == last => {
                    keep(0, random.below(sectors(sector)) * sector)?;
                }
                Survives::Prefix(_) => {}
            }
            damage.unflushed += 1;
            damage.hurt += u64::from(kept < data.len() as u64);
        }
        Ok(damage)
    }
}
