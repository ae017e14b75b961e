//! What was written to a disk, and when it was flushed: all that is needed to say what a power cut could have left.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// One step in the life of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A write that was completed. `at` is where its bytes are in the record's own file; `None`: zeros.
    Write { offset: u64, len: u32, at: Option<u64> },
    /// A flush of the device's cache that was completed: all writes before it are on the medium.
    Flush,
}

/// The steps of a disk since it was opened, their bytes in a file beside it.
///
/// A position in the record is a number of steps. A write is recorded before it is answered, and so is a flush: what a program knows to
/// be flushed when it looks at [`Record::position`] is covered by a flush below that position.
///
/// It holds no open file: it is shared with threads that have another table of open files.
pub struct Record {
    path: PathBuf,
    steps: Mutex<Steps>,
    position: AtomicU64,
}

#[derive(Default)]
struct Steps {
    list: Vec<Step>,
    end: u64,
}

impl Record {
    pub fn create(path: &Path) -> io::Result<Record> {
        File::create(path)?;
        Ok(Record { path: path.to_owned(), steps: Mutex::default(), position: AtomicU64::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many steps there are.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).list.clone()
    }

    pub(super) fn add_write(&self, file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        // A zeroed frontier is long: its bytes need no room.
        let at = if data.iter().all(|b| *b == 0) {
            None
        } else {
            let at = steps.end;
            file.write_all_at(data, at)?;
            steps.end += data.len() as u64;
            Some(at)
        };
        self.push(&mut steps, Step::Write { offset, len: data.len() as u32, at });
        Ok(())
    }

    pub(super) fn add_flush(&self) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        self.push(&mut steps, Step::Flush);
    }

    fn push(&self, steps: &mut Steps, step: Step) {
        steps.list.push(step);
        self.position.store(steps.list.len() as u64, Ordering::Release);
    }
}
