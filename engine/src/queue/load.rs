//! Finding the queues of a store at start, and putting right what a crash, a disk or another broker left. Blocks: run it
//! before the reactor serves, or on a plain thread.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::scan::UnitFiles;
use super::unit::{UNIT_BYTES, Unit};
use super::writer::{queue_dir, remove_dir};
use super::{QueueConfig, QueueDigest, QueueError};
use crate::store::{NumberedFile, list_numbered};

/// How many units before the end are looked at to believe a search (a bit more than a page of the page cache).
const VERIFY_UNITS: i64 = 256;
/// Up to so many units are zeroed by writing them.
const ZERO_WRITE_UNITS_MAX: i64 = 3200;
/// Most repairs that a report spells out; all are logged.
const REPAIR_LINES_MAX: usize = 100;

/// What the log's recovery tells the queues.
#[derive(Debug, Clone, Copy)]
pub struct QueueRecovery {
    /// Where the log begins.
    pub log_min: u64,
    /// Units of records from here on are dropped: the log's end, or where the redo begins if that is lower.
    pub cut_at: u64,
    /// All units of records below `cut_at` are known to be durable (our own mark, or a clean stop of ours): the end of a queue is
    /// searched instead of walked to.
    pub trusted: bool,
    /// The last stop was clean: nothing is expected behind a queue's end.
    pub clean: bool,
    /// Where the log ends: what lies between `cut_at` and here is redone.
    pub log_end: u64,
    /// From the mark that `cut_at` comes from, if it does: what the queues must add up to.
    pub digest: Option<QueueDigest>,
    /// The log begins where it did when the mark was made: then the queues begin where they did.
    pub same_beginning: bool,
}

/// One queue as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedQueue {
    /// Topic, the name of the directory.
    pub topic: String,
    /// Queue id.
    pub queue_id: i32,
    /// First queue offset whose record is in the log.
    pub min_offset: i64,
    /// One past the last queue offset.
    pub max_offset: i64,
    /// End of the last unit's record.
    pub end_physical: i64,
    /// Physical offset of the first unit, -1 if none is in the log.
    pub min_physical: i64,
}

/// Units that were left in their files behind a queue's end, since the redo is to write the same ones there. Removing files and making
/// them again would take minutes where tens of thousands of queues were written since the last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptUnits {
    /// Topic.
    pub topic: String,
    /// Queue id.
    pub queue_id: i32,
    /// One past the last of them.
    pub end: i64,
}

/// All queues, ready for [`super::QueueStore::new`]. May cross threads.
#[derive(Debug, Clone, Default)]
pub struct LoadedQueues {
    /// The queues that have a unit.
    pub queues: Vec<LoadedQueue>,
    /// For [`super::QueueStore::cut_kept`] after the redo.
    pub kept: Vec<KeptUnits>,
    /// What was found and done.
    pub report: LoadReport,
}

/// What loading found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Where the redo from the log must begin because of a repair, if lower than where it would anyway.
    pub redo_from: Option<u64>,
    /// Largest record end over all queues; stock starts its dispatch there after a clean stop.
    pub max_end_physical: i64,
    /// One line for each repair, at most 100.
    pub repairs: Vec<String>,
    /// Number of repairs.
    pub repaired: usize,
    /// Files removed behind the queues' ends.
    pub removed_files: usize,
    /// Queues whose files had units of records that the log no longer has, found by the redo.
    pub cut_queues: usize,
}

struct Found {
    topic: String,
    queue_id: i32,
    files: Vec<NumberedFile>,
}

/// Finds all queues, cuts them, repairs them.
///
/// # Errors
/// [`QueueError::FileSize`] before anything is changed if the store was made with another file size; else the I/O error.
pub fn load_queues(
    config: &QueueConfig,
    recovery: &QueueRecovery,
) -> Result<LoadedQueues, QueueError> {
    clear_prepared(&config.prepare)?;
    let found = find(&config.dir)?;
    refuse_other_size(&found, config.file_bytes())?;
    let mut loaded = LoadedQueues::default();
    for queue in found {
        let LoadedQueues { kept, report, .. } = &mut loaded;
        let mut load = Load { config, recovery, report, kept, queue: &queue };
        if let Some(queue) = load.queue()? {
            let report = &mut loaded.report;
            report.max_end_physical = report.max_end_physical.max(queue.end_physical);
            loaded.queues.push(queue);
        }
    }
    check_digest(config, recovery, &mut loaded)?;
    Ok(loaded)
}

/// Units or queues may be missing, or units be others than they were, without a trace in the files: then only the whole log will do, and
/// no unit that is there is believed.
fn check_digest(
    config: &QueueConfig,
    recovery: &QueueRecovery,
    loaded: &mut LoadedQueues,
) -> Result<(), QueueError> {
    let Some(mut expected) = recovery.digest else { return Ok(()) };
    let mut found = QueueDigest::default();
    for queue in &loaded.queues {
        found.add(QueueDigest {
            max_offsets: queue.max_offset as u64,
            ends: queue.end_physical as u64,
            min_offsets: queue.min_offset as u64,
        });
    }
    if !recovery.same_beginning {
        expected.min_offsets = found.min_offsets;
    }
    if found == expected {
        return Ok(());
    }
    let what = "consume queues are not what they were: made again from the whole log";
    tracing::warn!("{what}");
    let kept = loaded.kept.drain(..).map(|kept| (kept.topic, kept.queue_id));
    let known = loaded.queues.drain(..).map(|queue| (queue.topic, queue.queue_id));
    for (topic, queue_id) in kept.chain(known) {
        remove_dir(&queue_dir(&config.dir, &topic, queue_id))?;
    }
    loaded.report.redo_from = Some(recovery.log_min);
    loaded.report.repaired += 1;
    loaded.report.repairs.push(what.to_owned());
    Ok(())
}

fn clear_prepared(prepare: &Path) -> Result<(), QueueError> {
    let io = |error: io::Error| QueueError::io("empty the directory of", prepare, &error);
    fs::create_dir_all(prepare).map_err(io)?;
    for entry in fs::read_dir(prepare).map_err(io)? {
        let entry = entry.map_err(io)?;
        if entry.file_name().to_string_lossy().starts_with("queue-") {
            fs::remove_file(entry.path()).map_err(io)?;
        }
    }
    Ok(())
}

/// All queue directories with their entries. Topic entries that are no directories, and queue directories whose name is no
/// number, are ignored, as stock does.
fn find(dir: &Path) -> Result<Vec<Found>, QueueError> {
    let mut found = Vec::new();
    for topic in entries(dir)? {
        let Ok(name) = topic.file_name().into_string() else { continue };
        if !is_dir(&topic) {
            continue;
        }
        for queue in entries(&topic.path())? {
            let id = queue.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(queue_id) = id.filter(|id| *id >= 0) else { continue };
            if is_dir(&queue) {
                let path = queue.path();
                let files = list_numbered(&path)
                    .map_err(|error| QueueError::io("list the directory of", &path, &error))?;
                found.push(Found { topic: name.clone(), queue_id, files });
            }
        }
    }
    Ok(found)
}

/// Follows links, as stock does; the common case asks the file system nothing.
fn is_dir(entry: &fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_dir() => true,
        Ok(kind) if kind.is_file() => false,
        _ => entry.path().is_dir(),
    }
}

fn entries(dir: &Path) -> Result<Vec<fs::DirEntry>, QueueError> {
    let read = || -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(dir)?.collect() };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|error| QueueError::io("list the directory of", dir, &error)),
    }
}

/// A whole store of another, consistent file size is a wrong configuration, not damage.
fn refuse_other_size(found: &[Found], configured: u64) -> Result<(), QueueError> {
    let mut other = None;
    for file in found.iter().flat_map(|queue| &queue.files) {
        if file.is_dir || file.start.is_none() {
            continue;
        }
        if file.len == configured {
            return Ok(());
        }
        if file.len > 0 && file.len.is_multiple_of(UNIT_BYTES as u64) {
            other = Some(file.len);
        }
    }
    match other {
        Some(found) => Err(QueueError::FileSize { found, configured }),
        None => Ok(()),
    }
}

struct Load<'a> {
    config: &'a QueueConfig,
    recovery: &'a QueueRecovery,
    report: &'a mut LoadReport,
    kept: &'a mut Vec<KeptUnits>,
    queue: &'a Found,
}

impl Load<'_> {
    fn queue(&mut self) -> Result<Option<LoadedQueue>, QueueError> {
        let file_units = self.config.file_units();
        let dir = queue_dir(&self.config.dir, &self.queue.topic, self.queue.queue_id);
        let (firsts, mut damage) = self.usable_files(&dir);
        let (Some(first), Some(last)) = (firsts.first().copied(), firsts.last().copied()) else {
            return self.drop_queue(&dir, &firsts, damage);
        };
        let mut files = UnitFiles::new(dir.clone(), file_units);
        let failed = |error: io::Error| QueueError::io("read", &dir, &error);
        let end = self.find_end(&mut files, first, last + file_units, &mut damage);
        let end = end.map_err(failed)?;
        let mut kept = end;
        if damage.is_none() && self.recovery.cut_at < self.recovery.log_end {
            kept = self.find_kept(&mut files, end, last).map_err(failed)?;
        }
        if kept > end {
            let (topic, queue_id) = (self.queue.topic.clone(), self.queue.queue_id);
            self.kept.push(KeptUnits { topic, queue_id, end: kept });
        }
        if end == first && kept > end {
            self.cut(&mut files, &firsts, kept)?;
            return Ok(None);
        }
        let last_unit = if end > first { Some(files.unit(end - 1).map_err(failed)?) } else { None };
        let Some(last_unit) = last_unit.filter(|unit| !unit.is_blank()) else {
            return self.drop_queue(&dir, &firsts, damage);
        };
        let end_physical = last_unit.physical_end();
        if let Some(what) = damage {
            // The redo appends at the queue's end, so nothing between may be missing in the log.
            if (end_physical.max(0) as u64) < self.recovery.log_min {
                return self.drop_queue(&dir, &firsts, Some(what));
            }
            self.repaired(&what, end_physical.max(0) as u64);
        }
        self.cut(&mut files, &firsts, kept)?;
        let log_min = self.recovery.log_min as i64;
        let gone = |unit: &Unit| unit.is_blank() || unit.physical_offset < log_min;
        // Where nothing was deleted, one look is enough.
        let whole = !gone(&files.unit(first).map_err(failed)?);
        let min_offset =
            if whole { first } else { files.partition(first, end, gone).map_err(failed)? };
        let verify_from = first.max(min_offset - VERIFY_UNITS);
        if !files.all(verify_from, min_offset, gone).map_err(failed)? {
            // A damaged unit misled the search.
            let what = format!("units before queue offset {min_offset} are not in log order");
            return self.drop_queue(&dir, &firsts_of(first, end, file_units), Some(what));
        }
        let min_physical = if min_offset < end {
            files.unit(min_offset).map_err(failed)?.physical_offset
        } else {
            -1
        };
        Ok(Some(LoadedQueue {
            topic: self.queue.topic.clone(),
            queue_id: self.queue.queue_id,
            min_offset,
            max_offset: end,
            end_physical,
            min_physical,
        }))
    }

    /// First queue offsets of the files that can be used, contiguous, and what is wrong with the others. Those are removed.
    fn usable_files(&mut self, dir: &Path) -> (Vec<i64>, Option<String>) {
        let file_bytes = self.config.file_bytes();
        let mut firsts = Vec::new();
        let mut next = None;
        let mut damage: Option<String> = None;
        for file in &self.queue.files {
            let name = file.name.to_string_lossy();
            let why = match file.start {
                _ if file.is_dir => Some("is a directory".to_owned()),
                None => Some("has no name of 20 digits".to_owned()),
                Some(start) if !start.is_multiple_of(file_bytes) || start > i64::MAX as u64 => {
                    Some(format!("does not start at a multiple of {file_bytes}"))
                }
                Some(_) if file.len != file_bytes => {
                    Some(format!("has {} bytes instead of {file_bytes}", file.len))
                }
                Some(start) if next.is_some_and(|next| next != start) => {
                    Some("follows a missing file".to_owned())
                }
                Some(start) if damage.is_none() => {
                    next = start.checked_add(file_bytes);
                    firsts.push((start / UNIT_BYTES as u64) as i64);
                    continue;
                }
                Some(_) => None,
            };
            // A stray entry harms no unit; a wrong unit file takes all later ones with it.
            if let Some(why) = why {
                let what = format!("file {name} {why}");
                if file.start.is_some() && !file.is_dir {
                    damage.get_or_insert(what);
                } else {
                    self.note(&what);
                }
            }
            if !file.is_dir {
                let _ = fs::remove_file(dir.join(&file.name));
                self.report.removed_files += 1;
            }
        }
        (firsts, damage)
    }

    /// Where the queue ends: one past the last unit that counts.
    fn find_end(
        &self,
        files: &mut UnitFiles,
        first: i64,
        limit: i64,
        damage: &mut Option<String>,
    ) -> io::Result<i64> {
        let cut_at = i64::try_from(self.recovery.cut_at).unwrap_or(i64::MAX);
        if self.recovery.trusted {
            let written = files.written_end(limit - self.config.file_units()).unwrap_or(limit);
            let mut end = files.search_end(first, written, cut_at)?;
            if end == written {
                // As it should be if the last block is full. Else a hole lies among the units.
                end = files.search_end(written, limit, cut_at)?;
            }
            let verify_from = first.max(end - VERIFY_UNITS);
            if files.walk(verify_from, end, cut_at)? == end {
                return Ok(end);
            }
            damage.get_or_insert_with(|| {
                format!("units before queue offset {end} are not in log order")
            });
        }
        // Stock's start: the third last file. Where the log was cut, even that may begin behind it.
        let mut limit = limit;
        loop {
            let walk_from = first.max(limit - 3 * self.config.file_units());
            let end = files.walk(walk_from, limit, cut_at)?;
            if end > walk_from || walk_from == first {
                return Ok(end);
            }
            limit = walk_from;
        }
    }

    /// How far units of records that are redone follow one another behind `end`, up to the end of the file that begins with `last`.
    fn find_kept(&self, files: &mut UnitFiles, end: i64, last: i64) -> io::Result<i64> {
        let limit = files.written_end(last)?.max(end);
        files.walk(end, limit, i64::try_from(self.recovery.log_end).unwrap_or(i64::MAX))
    }

    /// Removes the files behind `end` and zeroes the rest of the file that holds it, so that units of records that are gone
    /// can never be taken for real ones.
    fn cut(&mut self, files: &mut UnitFiles, firsts: &[i64], end: i64) -> Result<(), QueueError> {
        for first in firsts.iter().rev().filter(|first| **first >= end) {
            let path = files.path(*first);
            fs::remove_file(&path).map_err(|error| QueueError::io("remove", &path, &error))?;
            self.report.removed_files += 1;
        }
        let file_first = files.file_first(end);
        if file_first == end {
            return Ok(());
        }
        let path = files.path(file_first);
        let failed = |error: io::Error| QueueError::io("zero the end of", &path, &error);
        if self.recovery.clean && files.unit(end).map_err(failed)? == ZERO_UNIT {
            return Ok(());
        }
        // Most of many queues were quiet before a crash: they are left as they are.
        if files.is_zero_from(end).unwrap_or(false) {
            return Ok(());
        }
        zero_from(files, self.config, file_first, end).map_err(failed)
    }

    /// Removes all of a queue's files: there is no unit that counts.
    fn drop_queue(
        &mut self,
        dir: &Path,
        firsts: &[i64],
        damage: Option<String>,
    ) -> Result<Option<LoadedQueue>, QueueError> {
        let files = UnitFiles::new(dir.to_path_buf(), self.config.file_units());
        for first in firsts {
            let path = files.path(*first);
            fs::remove_file(&path).map_err(|error| QueueError::io("remove", &path, &error))?;
            self.report.removed_files += 1;
        }
        if let Some(what) = damage {
            self.repaired(&what, self.recovery.log_min);
        }
        Ok(None)
    }

    fn repaired(&mut self, what: &str, redo_from: u64) {
        let report = &mut *self.report;
        report.redo_from = Some(report.redo_from.map_or(redo_from, |old| old.min(redo_from)));
        self.note(&format!("{what}: rebuilt from physical offset {redo_from} of the log"));
    }

    fn note(&mut self, what: &str) {
        let (topic, queue_id) = (&self.queue.topic, self.queue.queue_id);
        tracing::warn!(topic = &**topic, queue_id, "consume queue {what}");
        self.report.repaired += 1;
        if self.report.repairs.len() < REPAIR_LINES_MAX {
            self.report.repairs.push(format!("consume queue {topic}/{queue_id}: {what}"));
        }
    }
}

/// First queue offsets of the files that hold `first..end`.
fn firsts_of(first: i64, end: i64, file_units: i64) -> Vec<i64> {
    (first..end).step_by(usize::try_from(file_units).unwrap_or(usize::MAX)).collect()
}

const ZERO_UNIT: Unit = Unit { physical_offset: 0, size: 0, tags_code: 0 };

/// Removes from a queue's files what is not below `end`. The whole queue if that is where it begins.
pub(super) fn cut_files(config: &QueueConfig, kept: &KeptUnits, end: i64) -> io::Result<()> {
    let dir = queue_dir(&config.dir, &kept.topic, kept.queue_id);
    let units = config.file_units();
    let mut files = UnitFiles::new(dir.clone(), units);
    for file in list_numbered(&dir)?.iter().rev() {
        let Some(start) = file.start else { continue };
        let first = (start / UNIT_BYTES as u64) as i64;
        if first >= end {
            fs::remove_file(dir.join(&file.name))?;
        } else if end < first + units {
            zero_from(&mut files, config, first, end)?;
        }
    }
    Ok(())
}

/// Zeroes the file that begins with queue offset `first`, from `end` on.
fn zero_from(files: &mut UnitFiles, config: &QueueConfig, first: i64, end: i64) -> io::Result<()> {
    let (path, file_bytes) = (files.path(first), config.file_bytes());
    // Nothing was ever written from there on.
    let written = files.written_end(first).unwrap_or(first + config.file_units());
    let bytes = |offset: i64| ((offset - first).max(0) as u64 * UNIT_BYTES as u64).min(file_bytes);
    if written - end > ZERO_WRITE_UNITS_MAX {
        return zero_range(&path, bytes(end), file_bytes);
    }
    // A hole costs the file system more than a few bytes.
    let zeros = vec![0; bytes(written).saturating_sub(bytes(end)) as usize];
    OpenOptions::new().write(true).open(path)?.write_all_at(&zeros, bytes(end))
}

/// Zeroes `from..to` of a file without changing its length; by a hole where the file system can.
fn zero_range(path: &Path, from: u64, to: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, len) = (from as libc::off_t, to.saturating_sub(from) as libc::off_t);
    // SAFETY: the call takes a descriptor, open over it, and plain numbers.
    if unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } == 0 {
        return Ok(());
    }
    let zeros = [0; 16 * 1024];
    let mut at = from;
    while at < to {
        let len = (to - at).min(zeros.len() as u64) as usize;
        file.write_all_at(zeros.get(..len).unwrap_or_default(), at)?;
        at += len as u64;
    }
    Ok(())
}
