//! The worker's side of writing: batches into files, through a bounded set of descriptors. Everything here blocks.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::QueueError;
use super::unit::{UNIT_BYTES, Unit};
use crate::log::{FileOp, guard, guarded_sync};
use crate::store::{FileSystem, numbered_name};

/// Up to this many new files are synced one by one before they appear; more share one sync of the file system.
const SINGLE_SYNCS_MAX: usize = 8;

/// The units of one queue in a batch.
#[derive(Debug)]
pub(super) struct BatchPart {
    pub(super) uid: u32,
    pub(super) topic: Arc<str>,
    pub(super) queue_id: i32,
    /// Queue offset of the first unit.
    pub(super) first: i64,
    /// Blank units go from this offset up to `first`; -1 = none.
    pub(super) blank_from: i64,
    pub(super) count: usize,
}

/// Units of many queues, to be written together. Reused from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) parts: Vec<BatchPart>,
    /// The units of all parts, one after another.
    pub(super) bytes: Vec<u8>,
}

/// Writes batches. Owned by the worker thread between jobs.
#[derive(Debug)]
pub(super) struct QueueWriter {
    dir: PathBuf,
    prepare: PathBuf,
    file_bytes: u64,
    descriptors_max: usize,
    open: HashMap<(u32, u64), OpenFile>,
    clock: u64,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    used: u64,
}

/// A file that is complete in the prepare directory.
struct Prepared {
    temporary: PathBuf,
    path: PathBuf,
    key: (u32, u64),
    /// `None` if it is one of many: a batch with thousands of new queues must not hold a descriptor for each.
    file: Option<File>,
}

/// The new files of one batch, between made and visible.
#[derive(Default)]
struct NewFiles {
    files: Vec<Prepared>,
    /// Opened before the first of them is written, so that it hears of each write that fails.
    file_system: Option<FileSystem>,
}

impl NewFiles {
    fn begin(&mut self, prepare: &Path) -> Result<(), QueueError> {
        if self.file_system.is_none() {
            let opened = FileSystem::of(prepare);
            self.file_system =
                Some(opened.map_err(|error| QueueError::io("open", prepare, &error))?);
        }
        Ok(())
    }

    fn add(&mut self, mut one: Prepared) {
        if self.files.len() >= SINGLE_SYNCS_MAX {
            one.file = None;
        }
        self.files.push(one);
    }

    /// Makes all of them durable.
    fn sync(&self) -> Result<(), QueueError> {
        let Some(first) = self.files.first() else { return Ok(()) };
        if let Some(file_system) =
            self.file_system.as_ref().filter(|_| self.files.len() > SINGLE_SYNCS_MAX)
        {
            return file_system.sync().map_err(|error| {
                QueueError::io("sync the file system of", &first.temporary, &error)
            });
        }
        for one in &self.files {
            if let Some(file) = &one.file {
                guarded_sync(file, &one.temporary)
                    .map_err(|error| QueueError::io("fsync", &one.temporary, &error))?;
            }
        }
        Ok(())
    }
}

impl QueueWriter {
    pub(super) fn new(
        dir: PathBuf,
        prepare: PathBuf,
        file_bytes: u64,
        descriptors_max: usize,
    ) -> Self {
        let open = HashMap::new();
        Self { dir, prepare, file_bytes, descriptors_max: descriptors_max.max(1), open, clock: 0 }
    }

    pub(super) fn queue_dir(&self, topic: &str, queue_id: i32) -> PathBuf {
        queue_dir(&self.dir, topic, queue_id)
    }

    /// Writes the batch. Doing it again after a failure is harmless: the same units go to the same places. A new file
    /// appears only when its first units are durable, so that no crash leaves one that is all zero.
    pub(super) fn write(&mut self, batch: &Batch) -> Result<(), QueueError> {
        let mut new = NewFiles::default();
        let mut at = 0;
        for part in &batch.parts {
            let end = at + part.count * UNIT_BYTES;
            let bytes = batch.bytes.get(at..end).unwrap_or_default();
            at = end;
            self.write_part(part, bytes, &mut new)?;
        }
        self.publish(new)
    }

    fn write_part(
        &mut self,
        part: &BatchPart,
        mut bytes: &[u8],
        new: &mut NewFiles,
    ) -> Result<(), QueueError> {
        let mut position = part.first.max(0) as u64 * UNIT_BYTES as u64;
        let mut blank_from = part.blank_from;
        while !bytes.is_empty() {
            let file_start = position - position % self.file_bytes;
            let room = file_start + self.file_bytes - position;
            let (now, rest) =
                bytes.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len()));
            let within = position - file_start;
            let key = (part.uid, file_start);
            let path = self.queue_dir(&part.topic, part.queue_id).join(numbered_name(file_start));
            match self.existing(key, &path) {
                Ok(file) => guard(FileOp::Write, &path, || file.write_all_at(now, within))
                    .map_err(|error| QueueError::io("write", &path, &error))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let blanks = if blank_from < 0 { 0 } else { within };
                    new.begin(&self.prepare)?;
                    new.add(self.prepare(key, path, blanks, now, within)?);
                }
                Err(error) => return Err(QueueError::io("open", &path, &error)),
            }
            blank_from = -1;
            position += now.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Makes a file of full length with units at `within`, and blank units in the `blanks` bytes before.
    fn prepare(
        &self,
        key: (u32, u64),
        path: PathBuf,
        blanks: u64,
        units: &[u8],
        within: u64,
    ) -> Result<Prepared, QueueError> {
        let temporary = self.prepare.join(format!("queue-{}-{}", key.0, key.1));
        let make = || -> io::Result<File> {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&temporary)?;
            file.set_len(self.file_bytes)?;
            write_blanks(&file, blanks)?;
            file.write_all_at(units, within)?;
            Ok(file)
        };
        let file = make().map_err(|error| QueueError::io("make", &temporary, &error))?;
        Ok(Prepared { temporary, path, key, file: Some(file) })
    }

    fn publish(&mut self, new: NewFiles) -> Result<(), QueueError> {
        new.sync()?;
        for one in new.files {
            let mut renamed = fs::rename(&one.temporary, &one.path);
            if renamed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
                && let Some(dir) = one.path.parent()
            {
                renamed =
                    fs::create_dir_all(dir).and_then(|()| fs::rename(&one.temporary, &one.path));
            }
            renamed.map_err(|error| QueueError::io("rename into place", &one.path, &error))?;
            if let Some(file) = one.file {
                self.keep(one.key, file);
            }
        }
        Ok(())
    }

    fn existing(&mut self, key: (u32, u64), path: &Path) -> io::Result<&File> {
        self.clock += 1;
        if !self.open.contains_key(&key) {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            self.keep(key, file);
        }
        match self.open.get_mut(&key) {
            Some(open) => {
                open.used = self.clock;
                Ok(&open.file)
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Keeps a descriptor; when there are too many, half of them are closed, the longest unused first.
    fn keep(&mut self, key: (u32, u64), file: File) {
        if self.open.len() >= self.descriptors_max {
            let mut used: Vec<u64> = self.open.values().map(|open| open.used).collect();
            used.sort_unstable();
            let limit = used.get(used.len() / 2).copied().unwrap_or(u64::MAX);
            self.open.retain(|_, open| open.used > limit);
        }
        self.open.insert(key, OpenFile { file, used: self.clock });
    }

    #[cfg(test)]
    pub(super) fn descriptors(&self) -> usize {
        self.open.len()
    }

    /// Closes all descriptors.
    pub(super) fn forget_all(&mut self) {
        self.open.clear();
    }

    /// Closes descriptors of a queue's files, all or those that start below `below`.
    pub(super) fn forget(&mut self, uid: u32, below: Option<u64>) {
        self.open.retain(|key, _| key.0 != uid || below.is_some_and(|below| key.1 >= below));
    }

    /// Removes the directory of a topic with all its queues.
    pub(super) fn remove_topic(&mut self, topic: &str, uids: &[u32]) -> Result<(), QueueError> {
        for uid in uids {
            self.forget(*uid, None);
        }
        remove_dir(&self.dir.join(topic))
    }

    /// Removes the directory of a queue.
    pub(super) fn remove_queue(
        &mut self,
        topic: &str,
        queue_id: i32,
        uid: u32,
    ) -> Result<(), QueueError> {
        self.forget(uid, None);
        remove_dir(&self.queue_dir(topic, queue_id))
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

/// Removes a directory with all in it; one that is not there is no error.
pub(super) fn remove_dir(path: &Path) -> Result<(), QueueError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(QueueError::io("remove the directory of", path, &error))
        }
        _ => Ok(()),
    }
}

/// The directory of a queue.
pub(super) fn queue_dir(dir: &Path, topic: &str, queue_id: i32) -> PathBuf {
    let mut path = dir.join(topic);
    path.push(queue_id.to_string());
    path
}

fn write_blanks(file: &File, bytes: u64) -> io::Result<()> {
    const CHUNK_UNITS: usize = 3000;
    if bytes == 0 {
        return Ok(());
    }
    let chunk = Unit::BLANK.encode().repeat(CHUNK_UNITS);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(chunk.len() as u64) as usize;
        file.write_all_at(chunk.get(..len).unwrap_or_default(), at)?;
        at += len as u64;
    }
    Ok(())
}
