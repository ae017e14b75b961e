//! The index against the log, offline: fed with every record of a walk, in log order, which is the order of the entries.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ringmq_net::record::{Properties, RecordView, index_hash, sys_flag};

use super::header::{ENTRY_BYTES, Entry, HEADER_BYTES, Header, SLOT_BYTES, Shape};
use super::name::is_index_name;
use crate::store::StoreLayout;

/// Entries read at a time.
const CHUNK_ENTRIES: u32 = 10_000;
/// Stock's tables have four entries for each slot (5,000,000 and 20,000,000).
const ENTRIES_A_SLOT: u64 = 4;

/// Why an index cannot be compared, or what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum IndexCheckError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is not what it must be. Only keys are affected; a file that is removed is made again at the next start.
    #[error(
        "index file {}: {what}; remove it and all later ones, they are made again at the next start",
        path.display()
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// What a comparison saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexSummary {
    /// Files.
    pub files: u64,
    /// Entries that are a key of their record.
    pub right: u64,
    /// Keys of records without an entry: not dispatched yet, or a file is missing.
    pub missing: u64,
    /// Physical offset of the first record of which a key is missing.
    pub first_missing: Option<i64>,
}

/// Compares entries with the keys of records. Blocks: not for a reactor.
pub struct IndexCheck {
    files: VecDeque<(PathBuf, u64)>,
    open: Option<OpenFile>,
    /// Files after the one that is open are not compared any more: something was wrong.
    given_up: bool,
    /// The stop was clean: slots and header must be those of the entries, in the newest file too.
    clean: bool,
    summary: IndexSummary,
}

struct OpenFile {
    path: PathBuf,
    file: File,
    shape: Shape,
    header: Header,
    /// Slots as the entries so far make them.
    slots: Vec<u32>,
    next: u32,
    chunk: VecDeque<Entry>,
    last_physical: i64,
    is_newest: bool,
}

impl IndexCheck {
    /// For the store in `dir`.
    ///
    /// # Errors
    /// [`IndexCheckError::Io`].
    pub fn new(dir: &Path, clean: bool) -> Result<Self, IndexCheckError> {
        let dir = StoreLayout::new(dir).index();
        let io = |source| IndexCheckError::Io { path: dir.clone(), source };
        let mut files = Vec::new();
        match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(io)?;
                    if entry.file_name().to_str().is_some_and(is_index_name) {
                        files.push((entry.path(), entry.metadata().map_err(io)?.len()));
                    }
                }
            }
        }
        files.sort();
        let summary = IndexSummary { files: files.len() as u64, ..IndexSummary::default() };
        Ok(Self { files: files.into(), open: None, given_up: false, clean, summary })
    }

    /// Looks the record's keys up. After a finding nothing is compared any more: what follows in the files is not to be trusted.
    ///
    /// # Errors
    /// [`IndexCheckError`], once.
    pub fn record(&mut self, record: &RecordView<'_>) -> Result<(), IndexCheckError> {
        if self.given_up
            || record.sys_flag() & sys_flag::TRANSACTION_MASK == sys_flag::TRANSACTION_ROLLBACK
        {
            return Ok(());
        }
        let text = record.properties_text();
        let known = Properties::new(&text).known();
        let mut wanted: Vec<i32> =
            known.index_keys().map(|key| index_hash(record.topic(), key)).collect();
        let found = self.entries_of(record.physical_offset());
        let found = found.inspect_err(|_| self.given_up = true)?;
        for hash in found {
            if let Some(at) = wanted.iter().position(|wanted| *wanted == hash) {
                wanted.swap_remove(at);
                self.summary.right += 1;
            }
        }
        if !wanted.is_empty() {
            self.summary.missing += wanted.len() as u64;
            self.summary.first_missing.get_or_insert(record.physical_offset());
        }
        Ok(())
    }

    /// Compares the rest of the files with themselves. Call it when the log has ended.
    ///
    /// # Errors
    /// [`IndexCheckError`]: the first finding.
    pub fn finish(&mut self) -> Result<IndexSummary, IndexCheckError> {
        if !self.given_up {
            self.entries_of(i64::MAX)?;
        }
        Ok(self.summary)
    }

    /// What was seen so far.
    pub fn summary(&self) -> IndexSummary {
        self.summary
    }

    /// Hashes of the entries of the record at `physical`; those before it are passed by.
    fn entries_of(&mut self, physical: i64) -> Result<Vec<i32>, IndexCheckError> {
        let mut found = Vec::new();
        loop {
            if self.open.is_none() && !self.open_next()? {
                return Ok(found);
            }
            let Some(open) = &mut self.open else { return Ok(found) };
            let next = open.peek()?;
            match next {
                Some(entry) if entry.physical > physical => return Ok(found),
                Some(entry) => {
                    if entry.physical == physical {
                        found.push(entry.hash);
                    }
                    open.chunk.pop_front();
                }
                None => {
                    let clean = self.clean;
                    open.check_end(clean)?;
                    self.open = None;
                }
            }
        }
    }

    fn open_next(&mut self) -> Result<bool, IndexCheckError> {
        let Some((path, len)) = self.files.pop_front() else { return Ok(false) };
        let Some(shape) = shape_of(len) else {
            // Table sizes are not in the file: only those in stock's proportion can be told from its length.
            let what = format!("{len} bytes are no table of stock's proportion: not compared");
            return Err(IndexCheckError::Damaged { path, what });
        };
        let io = |source| IndexCheckError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        let header = Header::decode(&bytes);
        if header.next_entry > shape.entries {
            let what = format!("counts {} entries, more than it can have", header.next_entry - 1);
            return Err(IndexCheckError::Damaged { path, what });
        }
        let slots = vec![0; shape.slots as usize];
        let is_newest = self.files.is_empty();
        self.open = Some(OpenFile {
            path,
            file,
            shape,
            header,
            slots,
            next: 1,
            chunk: VecDeque::new(),
            last_physical: 0,
            is_newest,
        });
        Ok(true)
    }
}

impl OpenFile {
    fn damaged(&self, what: String) -> IndexCheckError {
        IndexCheckError::Damaged { path: self.path.clone(), what }
    }

    /// The next entry, which must follow those before.
    fn peek(&mut self) -> Result<Option<Entry>, IndexCheckError> {
        if self.chunk.is_empty() && self.next < self.header.next_entry {
            let count = (self.header.next_entry - self.next).min(CHUNK_ENTRIES);
            let mut bytes = vec![0; count as usize * ENTRY_BYTES];
            let read = self.file.read_exact_at(&mut bytes, self.shape.entry_at(self.next));
            read.map_err(|source| IndexCheckError::Io { path: self.path.clone(), source })?;
            for raw in bytes.as_chunks::<ENTRY_BYTES>().0 {
                let entry = Entry::decode(raw);
                self.follow(entry)?;
                self.chunk.push_back(entry);
            }
        }
        Ok(self.chunk.front().copied())
    }

    fn follow(&mut self, entry: Entry) -> Result<(), IndexCheckError> {
        let number = self.next;
        let at = self.shape.slot_of(entry.hash) as usize;
        let before = self.slots.get(at).copied().unwrap_or(0);
        if entry.hash < 0
            || entry.seconds < 0
            || entry.physical < self.last_physical
            || entry.previous != before
        {
            return Err(self.damaged(format!("entry {number} does not follow those before it")));
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = number;
        }
        self.last_physical = entry.physical;
        self.next += 1;
        Ok(())
    }

    /// Slots and header, where they must be up to date: everywhere but in the newest file after an unclean stop.
    fn check_end(&self, clean: bool) -> Result<(), IndexCheckError> {
        if self.is_newest && !clean {
            return Ok(());
        }
        let io = |source| IndexCheckError::Io { path: self.path.clone(), source };
        let mut bytes = vec![0; self.slots.len() * SLOT_BYTES];
        self.file.read_exact_at(&mut bytes, self.shape.slot_at(0)).map_err(io)?;
        let stored = bytes.as_chunks::<SLOT_BYTES>().0.iter().map(|slot| u32::from_be_bytes(*slot));
        if let Some(at) = self.slots.iter().zip(stored).position(|(made, stored)| *made != stored) {
            return Err(self.damaged(format!("slot {at} is not the newest of its entries")));
        }
        // Not the slots in use: old stock brokers count entries there.
        let header = &self.header;
        if header.next_entry > 1 && header.end_physical != self.last_physical {
            return Err(self.damaged("its header does not fit its entries".to_owned()));
        }
        Ok(())
    }
}

/// The table sizes of a file of `len` bytes, if they are in stock's proportion.
fn shape_of(len: u64) -> Option<Shape> {
    let a_slot = SLOT_BYTES as u64 + ENTRIES_A_SLOT * ENTRY_BYTES as u64;
    let tables = len.checked_sub(HEADER_BYTES as u64)?;
    let slots = u32::try_from(tables / a_slot).ok().filter(|slots| *slots > 0)?;
    let entries = slots.checked_mul(ENTRIES_A_SLOT as u32)?;
    let shape = Shape { slots, entries };
    (shape.file_bytes() == len).then_some(shape)
}
