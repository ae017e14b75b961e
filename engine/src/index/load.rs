//! Finding the index at start, and making the newest file's slots again where the last stop was not clean. Blocks.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::core::CurrentFile;
use super::header::{ENTRY_BYTES, Entry, HEADER_BYTES, Header, SLOT_BYTES, Shape};
use super::name::is_index_name;
use super::writer::write_whole;
use super::{IndexConfig, IndexError};

/// Entries or slots read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// What the log's recovery tells the index.
#[derive(Debug, Clone, Default)]
pub struct IndexRecovery {
    /// Where the log begins.
    pub log_min: u64,
    /// Entries of records from here on are dropped: the log's end.
    pub log_end: u64,
    /// The last stop was clean: slots that look right are believed.
    pub clean: bool,
    /// The files that were durable, if that is known (our own mark): what is missing of them is made again.
    pub files: Option<Vec<IndexFileMark>>,
}

/// What a mark says of one index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFileMark {
    /// Its name.
    pub name: String,
    /// Number of its next entry.
    pub next_entry: u32,
    /// Physical offset of its last entry's record.
    pub end_physical: i64,
}

/// A file that takes no more entries.
#[derive(Debug, Clone)]
pub(super) struct FullFile {
    pub(super) path: PathBuf,
    pub(super) header: Header,
}

impl FullFile {
    pub(super) fn mark(&self) -> IndexFileMark {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Header { next_entry, end_physical, .. } = self.header;
        IndexFileMark { name, next_entry, end_physical }
    }
}

/// The index as found, ready for [`super::Index::new`]. May cross threads.
#[derive(Debug)]
pub struct LoadedIndex {
    pub(super) full: Vec<FullFile>,
    pub(super) current: Option<(PathBuf, CurrentFile)>,
    /// What was found and done.
    pub report: IndexReport,
}

/// What loading found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexReport {
    /// Files.
    pub files: usize,
    /// Entries from which slots were made again.
    pub rebuilt_entries: u32,
    /// Where the redo from the log must begin because entries were lost, if lower than where it would anyway.
    pub redo_from: Option<u64>,
    /// One line for each repair.
    pub repairs: Vec<String>,
}

impl IndexReport {
    fn repaired(&mut self, path: &Path, what: &str, redo_from: Option<u64>) {
        tracing::warn!(file = %path.display(), "index file {what}");
        self.repairs.push(format!("index file {}: {what}", path.display()));
        if let Some(redo_from) = redo_from {
            self.redo_from = Some(self.redo_from.map_or(redo_from, |old| old.min(redo_from)));
        }
    }
}

/// Finds the index files and makes the newest one ready to take entries.
///
/// # Errors
/// [`IndexError::FileSize`] before anything is changed if the store was made with other table sizes; else the I/O error.
pub fn load_index(
    config: &IndexConfig,
    recovery: &IndexRecovery,
) -> Result<LoadedIndex, IndexError> {
    clear_prepared(&config.prepare)?;
    let shape = config.shape();
    let mut report = IndexReport::default();
    let mut full = usable_files(config, shape, &mut report)?;
    drop_unmarked(&mut full, recovery, &mut report)?;
    let mut current = None;
    while let Some(newest) = full.pop() {
        if let Some(file) = load_newest(shape, recovery, &newest, &mut report)? {
            if file.is_full() {
                full.push(FullFile { path: newest.path, header: file.header });
            } else {
                current = Some((newest.path, file));
            }
            break;
        }
        // All its entries are of records that are gone, or none is whole: the file before takes its place.
        remove(&newest.path)?;
    }
    if report.redo_from.is_some() {
        let newest = current.as_ref().map(|(_, file)| file.header);
        let newest = newest.or(full.last().map(|file| file.header));
        let end = newest.map_or(0, |header| header.end_physical.max(0) as u64);
        report.redo_from = Some(end.max(recovery.log_min));
    }
    report.files = full.len() + usize::from(current.is_some());
    Ok(LoadedIndex { full, current, report })
}

fn clear_prepared(prepare: &Path) -> Result<(), IndexError> {
    let io = |error: io::Error| IndexError::io("empty the prepare directory of", prepare, &error);
    fs::create_dir_all(prepare).map_err(io)?;
    for entry in fs::read_dir(prepare).map_err(io)? {
        let entry = entry.map_err(io)?;
        if entry.file_name().to_string_lossy().starts_with("index-") {
            fs::remove_file(entry.path()).map_err(io)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), IndexError> {
    fs::remove_file(path).map_err(|error| IndexError::io("remove", path, &error))
}

/// All files of the right name and length, oldest first. From the first one of another length on they are removed: entries are made
/// again in log order, so nothing can be put between two files.
fn usable_files(
    config: &IndexConfig,
    shape: Shape,
    report: &mut IndexReport,
) -> Result<Vec<FullFile>, IndexError> {
    let io = |error: io::Error| IndexError::io("list the directory of", &config.dir, &error);
    let mut files = Vec::new();
    match fs::read_dir(&config.dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(io)?;
                let meta = entry.metadata().map_err(io)?;
                if meta.is_file() && entry.file_name().to_str().is_some_and(is_index_name) {
                    files.push((entry.path(), meta.len()));
                }
            }
        }
    }
    files.sort();
    let configured = shape.file_bytes();
    let wrong = files.iter().filter(|(_, len)| *len != configured).count();
    if wrong == files.len()
        && let Some((_, found)) = files.last().filter(|(_, len)| *len > HEADER_BYTES as u64)
    {
        return Err(IndexError::FileSize { found: *found, configured });
    }
    let mut usable = Vec::new();
    for (path, len) in files {
        if len != configured {
            let what = format!("has {len} bytes instead of {configured}: made again from there on");
            report.repaired(&path, &what, Some(0));
        }
        if !report.repairs.is_empty() {
            remove(&path)?;
            continue;
        }
        let header = read_header(&path).map_err(|error| IndexError::io("read", &path, &error))?;
        usable.push(FullFile { path, header });
    }
    Ok(usable)
}

/// Compares with what the mark says, and removes the files from the first one on that is gone or not what it was.
fn drop_unmarked(
    found: &mut Vec<FullFile>,
    recovery: &IndexRecovery,
    report: &mut IndexReport,
) -> Result<(), IndexError> {
    let marks = recovery.files.as_deref().unwrap_or_default();
    let log_min = i64::try_from(recovery.log_min).unwrap_or(i64::MAX);
    for (i, mark) in marks.iter().enumerate() {
        let is_last = i + 1 == marks.len();
        let file = found.iter().map(FullFile::mark).find(|file| file.name == mark.name);
        let why = match file {
            // Deleted with its records.
            None if mark.end_physical < log_min => continue,
            None => "is missing",
            Some(file) if file == *mark => continue,
            // The newest may have grown since.
            Some(file) if is_last && file.next_entry > mark.next_entry => continue,
            Some(_) => "has another header than it had",
        };
        let path = match found.first().and_then(|file| file.path.parent()) {
            Some(dir) => dir.join(&mark.name),
            None => PathBuf::from(&mark.name),
        };
        // Said already of what was removed for its length.
        if report.repairs.is_empty() {
            report.repaired(&path, &format!("{why}: made again from there on"), Some(0));
        }
        let keep = found.partition_point(|file| file.mark().name < mark.name);
        for file in found.drain(keep..) {
            remove(&file.path)?;
        }
        return Ok(());
    }
    Ok(())
}

fn read_header(path: &Path) -> io::Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Ok(Header::decode(&bytes))
}

/// The newest file with its slots, cut at the log's end; `None` if nothing of it is left.
fn load_newest(
    shape: Shape,
    recovery: &IndexRecovery,
    found: &FullFile,
    report: &mut IndexReport,
) -> Result<Option<CurrentFile>, IndexError> {
    let path = &found.path;
    let failed = |error: io::Error| IndexError::io("read", path, &error);
    let file = File::open(path).map_err(failed)?;
    let mut header = found.header;
    header.next_entry = header.next_entry.min(shape.entries);
    if header.next_entry <= 1 {
        return Ok(None);
    }
    let log_end = i64::try_from(recovery.log_end).unwrap_or(i64::MAX);
    if recovery.clean && header.end_physical < log_end {
        let slots = read_slots(&file, shape).map_err(failed)?;
        if slots_fit(&slots, &header) {
            return Ok(Some(CurrentFile::with_slots(shape, header, slots)));
        }
    }
    let had = header.next_entry;
    let rebuilt = Rebuild::run(&file, shape, had, log_end).map_err(failed)?;
    report.rebuilt_entries += rebuilt.next_entry - 1;
    if rebuilt.next_entry == had {
        header.slot_count = rebuilt.slot_count;
    } else {
        if rebuilt.damaged {
            let what = format!(
                "is damaged at entry {}: what follows is indexed again",
                rebuilt.next_entry
            );
            report.repaired(path, &what, Some(0));
        }
        if rebuilt.next_entry <= 1 {
            return Ok(None);
        }
        header.next_entry = rebuilt.next_entry;
        header.slot_count = rebuilt.slot_count;
        // The end time stays what it was: an upper bound.
        header.end_physical = rebuilt.last_physical;
        // Before new entries overwrite those that the old header still counts.
        write_whole(path, shape, &header, None)?;
    }
    if header.next_entry >= shape.entries {
        write_whole(path, shape, &header, Some(&rebuilt.slots))?;
    }
    Ok(Some(CurrentFile::with_slots(shape, header, rebuilt.slots)))
}

fn read_slots(file: &File, shape: Shape) -> io::Result<Vec<u32>> {
    let mut slots = Vec::with_capacity(shape.slots as usize);
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = shape.slot_at(0);
    let end = shape.slot_at(shape.slots);
    while at < end {
        let len = (end - at).min(CHUNK_BYTES as u64) as usize;
        let chunk = buffer.get_mut(..len).unwrap_or_default();
        file.read_exact_at(chunk, at)?;
        slots
            .extend(chunk.as_chunks::<SLOT_BYTES>().0.iter().map(|slot| u32::from_be_bytes(*slot)));
        at += len as u64;
    }
    Ok(slots)
}

fn slots_fit(slots: &[u32], header: &Header) -> bool {
    let used = slots.iter().filter(|slot| **slot != 0).count();
    let newest = slots.iter().copied().max().unwrap_or(0);
    used == header.slot_count as usize && newest + 1 == header.next_entry
}

/// Slots made from entries.
struct Rebuild {
    slots: Vec<u32>,
    slot_count: u32,
    next_entry: u32,
    last_physical: i64,
    /// Stopped at an entry that cannot follow the ones before.
    damaged: bool,
}

impl Rebuild {
    /// Reads the entries below `next_entry`, up to the first that is of a record from `log_end` on, or that does not fit: records
    /// come in log order, and each entry names its chain's entry before.
    fn run(file: &File, shape: Shape, next_entry: u32, log_end: i64) -> io::Result<Self> {
        let mut rebuild = Self {
            slots: vec![0; shape.slots as usize],
            slot_count: 0,
            next_entry: 1,
            last_physical: 0,
            damaged: false,
        };
        let mut buffer = vec![0; CHUNK_BYTES / ENTRY_BYTES * ENTRY_BYTES];
        while rebuild.next_entry < next_entry {
            let left = (next_entry - rebuild.next_entry) as usize * ENTRY_BYTES;
            let len = left.min(buffer.len());
            let chunk = buffer.get_mut(..len).unwrap_or_default();
            file.read_exact_at(chunk, shape.entry_at(rebuild.next_entry))?;
            for entry in chunk.as_chunks::<ENTRY_BYTES>().0 {
                if !rebuild.take(shape, Entry::decode(entry), log_end) {
                    return Ok(rebuild);
                }
            }
        }
        Ok(rebuild)
    }

    fn take(&mut self, shape: Shape, entry: Entry, log_end: i64) -> bool {
        let Some(slot) = self.slots.get_mut(shape.slot_of(entry.hash) as usize) else {
            return false;
        };
        if entry.physical < self.last_physical
            || entry.previous != *slot
            || entry.hash < 0
            || entry.seconds < 0
        {
            self.damaged = true;
            return false;
        }
        if entry.physical >= log_end {
            return false;
        }
        if *slot == 0 {
            self.slot_count += 1;
        }
        *slot = self.next_entry;
        self.next_entry += 1;
        self.last_physical = entry.physical;
        true
    }
}
