//! The worker's side of the index. Everything here blocks.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::IndexError;
use super::header::{HEADER_BYTES, Header, SLOT_BYTES, Shape};
use crate::log::{FileOp, guard, guarded_sync};
use crate::store::sync_directory;

/// A piece of work on one file. Self-contained: after a failure it is done again as it is.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) path: PathBuf,
    /// Where the file is made if it is not there, and the header it gets.
    pub(super) prepare: PathBuf,
    pub(super) initial: Header,
    pub(super) shape: Shape,
    /// Number of the first entry in `entries`.
    pub(super) first: u32,
    pub(super) entries: Vec<u8>,
    /// With the last entries of a file: its header and slots, to be durable when the job is done.
    pub(super) finish: Option<(Header, Vec<u32>)>,
}

impl Job {
    pub(super) fn run(&self) -> Result<(), IndexError> {
        let file = match OpenOptions::new().write(true).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create()?,
            Err(error) => return Err(IndexError::io("open", &self.path, &error)),
        };
        let failed = |error: io::Error| IndexError::io("write", &self.path, &error);
        let entries_at = self.shape.entry_at(self.first);
        guard(FileOp::Write, &self.path, || file.write_all_at(&self.entries, entries_at))
            .map_err(failed)?;
        if let Some((header, slots)) = &self.finish {
            write_slots(&file, self.shape, slots).map_err(failed)?;
            // The entries and slots before the header that vouches for them.
            guarded_sync(&file, &self.path).map_err(failed)?;
            file.write_all_at(&header.encode(), 0).map_err(failed)?;
            guarded_sync(&file, &self.path).map_err(failed)?;
        }
        Ok(())
    }

    fn create(&self) -> Result<File, IndexError> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.prepare.join(format!("index-{name}"));
        let make = || -> io::Result<File> {
            fs::create_dir_all(&self.prepare)?;
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&temporary)?;
            file.set_len(self.shape.file_bytes())?;
            file.write_all_at(&self.initial.encode(), 0)?;
            guarded_sync(&file, &temporary)?;
            if let Some(dir) = self.path.parent() {
                fs::create_dir_all(dir)?;
                fs::rename(&temporary, &self.path)?;
                sync_directory(dir)?;
            }
            Ok(file)
        };
        make().map_err(|error| IndexError::io("make", &self.path, &error))
    }
}

fn write_slots(file: &File, shape: Shape, slots: &[u32]) -> io::Result<()> {
    const CHUNK_SLOTS: usize = 64 * 1024;
    let mut bytes = Vec::with_capacity(CHUNK_SLOTS * SLOT_BYTES);
    let mut at = shape.slot_at(0);
    for chunk in slots.chunks(CHUNK_SLOTS) {
        bytes.clear();
        for slot in chunk {
            bytes.extend_from_slice(&slot.to_be_bytes());
        }
        file.write_all_at(&bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// A header that may be written once the entries it counts are durable.
#[derive(Debug, Clone)]
pub struct HeaderSave {
    pub(super) path: PathBuf,
    pub(super) header: Header,
}

impl HeaderSave {
    /// Writes and syncs the header, unless the file has a later one by now (it was finished in between). Blocks.
    ///
    /// # Errors
    /// [`IndexError::Io`].
    pub fn save(&self) -> Result<(), IndexError> {
        let save = || -> io::Result<()> {
            let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
            let mut now = [0; HEADER_BYTES];
            file.read_exact_at(&mut now, 0)?;
            if Header::decode(&now).next_entry >= self.header.next_entry {
                return Ok(());
            }
            guard(FileOp::Write, &self.path, || file.write_all_at(&self.header.encode(), 0))?;
            guard(FileOp::Sync, &self.path, || file.sync_data())
        };
        match save() {
            // Trimmed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|error| IndexError::io("write", &self.path, &error)),
        }
    }
}

/// Overwrites header and slots of a file that was repaired, durably.
pub(super) fn write_whole(
    path: &Path,
    shape: Shape,
    header: &Header,
    slots: Option<&[u32]>,
) -> Result<(), IndexError> {
    let write = || -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        if let Some(slots) = slots {
            write_slots(&file, shape, slots)?;
        }
        file.write_all_at(&header.encode(), 0)?;
        guarded_sync(&file, path)
    };
    write().map_err(|error| IndexError::io("repair", path, &error))
}
