//! Looking at a log from outside, with plain file I/O and no reactor: what `ringmq log dump` and `ringmq log verify` do.
//!
//! Works on any store, a stock broker's included, of any segment size. Nothing is changed. Best on a stopped broker: of
//! a running one the last records may be half written.

use std::{
    fs::File,
    io,
    ops::ControlFlow,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
};

use ringmq_net::record::{CheckResult, CheckRule, RecordView, check};

use crate::store::{LockStamp, StoreLayout};

use super::{
    segments::{Layout, parse_segment_name},
    sidecar::{CRC_BLOCK_BYTES, Sidecar, sidecar_path},
    state_file::{STATE_BYTES_MAX, StateFile},
};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// Longest record that is believed: above stock's limit (4 MiB and 64 KiB).
const RECORD_BYTES_MAX: usize = 8 << 20;

/// Something found on the way through a log.
#[derive(Debug)]
pub enum Item<'a> {
    /// A segment begins.
    Segment {
        /// Its start offset.
        start: u64,
        /// The file.
        path: &'a Path,
    },
    /// A whole record.
    Record(RecordView<'a>),
    /// The end of segment mark.
    Blank {
        /// Its physical offset.
        offset: u64,
        /// Bytes left in the segment.
        room: u64,
    },
    /// The log ends here: zeros follow.
    End {
        /// Physical offset.
        offset: u64,
    },
    /// Something is wrong.
    Problem(Problem),
}

/// Something wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Bytes that are no whole record, where one must be. Below the durable offset it is damage; behind it, what a crash
    /// left, and a recovery cuts there.
    #[error("{offset}: {why}{}", if *.durable { " (below the durable offset: damage)" } else { "" })]
    BadRecord {
        /// Physical offset.
        offset: u64,
        /// What is wrong.
        why: String,
        /// It is known to have been flushed.
        durable: bool,
    },
    /// Zeros inside the log: records follow in a later segment.
    #[error("{offset}: the segment ends without an end mark, but {next} has records")]
    Hole {
        /// Physical offset of the first zero.
        offset: u64,
        /// Start of the next segment with records.
        next: u64,
    },
    /// Bytes other than zero behind the end: what a crash left, or a stock broker's cut.
    #[error("{offset}: bytes other than zero behind the end of the log")]
    DirtyTail {
        /// Physical offset of the first such byte.
        offset: u64,
    },
    /// The durable offset lies behind the end that was found.
    #[error("{end}: the log ends here, but was durable up to {durable}")]
    Missing {
        /// Physical offset of the end.
        end: u64,
        /// The durable offset.
        durable: u64,
    },
    /// A block isn't what it was when it was written.
    #[error("{offset}: the block of 65536 bytes has CRC-32C {computed:08x}, it had {stored:08x}")]
    Block {
        /// Physical offset of the block.
        offset: u64,
        /// When it was written.
        stored: u32,
        /// Now.
        computed: u32,
    },
    /// An entry of the commit log directory that isn't a segment, or a segment of another length, or a missing one.
    #[error("{}: {what}", path.display())]
    Entry {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// What a walk saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalkSummary {
    /// Segment files.
    pub segments: u64,
    /// Bytes of each.
    pub segment_bytes: u64,
    /// Whole records.
    pub records: u64,
    /// Bytes of them.
    pub record_bytes: u64,
    /// Physical offset of the first byte.
    pub start: u64,
    /// Physical offset behind the last whole record.
    pub end: u64,
    /// What RingMQ's state says was flushed, if there is one.
    pub durable: Option<u64>,
    /// Blocks compared with their stored CRC-32C.
    pub blocks_compared: u64,
    /// Store timestamps of the first and last record, in milliseconds since 1970.
    pub first_stored_ms: i64,
    /// See `first_stored_ms`.
    pub last_stored_ms: i64,
    /// Problems reported.
    pub problems: u64,
    /// The visitor stopped the walk.
    pub stopped: bool,
}

/// Why a store can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// A file or directory can't be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The state file is unreadable.
    #[error(transparent)]
    State(#[from] super::LogError),
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> WalkError + '_ {
    move |source| WalkError::Io { path: path.to_path_buf(), source }
}

/// Walks all records of the store in `dir` in log order, from `from` on (0: all; else rounded down to its segment), and
/// hands everything to `visit`, which may stop the walk.
///
/// # Errors
/// [`WalkError`] if files can't be read; everything wrong *in* them is an [`Item::Problem`].
pub fn walk_log(
    dir: &Path,
    from: u64,
    visit: &mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
) -> Result<WalkSummary, WalkError> {
    let layout = Layout::new(dir);
    let state = read_state(&layout)?;
    let mut walk = Walk {
        visit,
        summary: WalkSummary { durable: state.map(|s| s.log.durable), ..WalkSummary::default() },
        layout,
        state,
        ended: None,
        stop: false,
    };
    walk.run(from)?;
    walk.summary.stopped = walk.stop;
    Ok(walk.summary)
}

fn read_state(layout: &Layout) -> Result<Option<StateFile>, WalkError> {
    let files = super::files::Files::default();
    match files.read_small(&layout.state, STATE_BYTES_MAX)? {
        Some(bytes) => {
            let state = StateFile::decode(&bytes, &layout.state)?;
            // After a stock broker's visit neither our offsets nor our checksums say anything about the log.
            let lock = LockStamp::read(&StoreLayout::new(&layout.store)).unwrap_or(None);
            Ok(Some(state).filter(|s| s.lock.is_none() || s.lock == lock))
        }
        None => Ok(None),
    }
}

struct Walk<'a> {
    visit: &'a mut dyn FnMut(Item<'_>) -> ControlFlow<()>,
    summary: WalkSummary,
    layout: Layout,
    state: Option<StateFile>,
    /// Where zeros were found instead of a record.
    ended: Option<u64>,
    stop: bool,
}

/// What stands where a record was looked for, without the bytes.
enum Step {
    Record { len: usize },
    Blank,
    End,
    More { len: usize },
    Bad { why: String, skip: Option<usize> },
}

impl Walk<'_> {
    fn tell(&mut self, item: Item<'_>) {
        if (self.visit)(item).is_break() {
            self.stop = true;
        }
    }

    fn problem(&mut self, problem: Problem) {
        self.summary.problems += 1;
        self.tell(Item::Problem(problem));
    }

    fn run(&mut self, from: u64) -> Result<(), WalkError> {
        let segments = self.list()?;
        let size = self.summary.segment_bytes;
        self.summary.start = segments.first().map_or(0, |s| s.0);
        self.summary.end = self.summary.start;
        for (start, path) in &segments {
            if start + size <= from || self.stop {
                continue;
            }
            self.tell(Item::Segment { start: *start, path });
            self.segment(*start, path)?;
        }
        if let Some(durable) = self.summary.durable
            && !self.stop
            && durable > self.summary.end
            && !segments.is_empty()
        {
            let end = self.summary.end;
            self.problem(Problem::Missing { end, durable });
        }
        if let Some(offset) = self.ended
            && !self.stop
        {
            self.tell(Item::End { offset });
        }
        Ok(())
    }

    /// Segments in order; everything else in the directory is a problem.
    fn list(&mut self) -> Result<Vec<(u64, PathBuf)>, WalkError> {
        let dir = self.layout.commitlog.clone();
        let mut paths = std::fs::read_dir(&dir)
            .and_then(|entries| entries.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>())
            .map_err(io_error(&dir))?;
        paths.sort();
        let mut segments: Vec<(u64, PathBuf)> = Vec::new();
        for path in paths {
            let meta = path.metadata().map_err(io_error(&path))?;
            let start = path.file_name().and_then(|n| n.to_str()).and_then(parse_segment_name);
            let Some(start) = start.filter(|_| meta.is_file()) else {
                self.problem(Problem::Entry { path, what: "not a segment".to_owned() });
                continue;
            };
            let size = self.summary.segment_bytes;
            if size == 0 {
                self.summary.segment_bytes = meta.len();
            } else if meta.len() != size {
                let what = format!("{} bytes long, the first segment has {size}", meta.len());
                self.problem(Problem::Entry { path, what });
                continue;
            }
            if let Some((last, _)) = segments.last()
                && last + self.summary.segment_bytes != start
            {
                let what = format!("the segment before it must start at {last}+{size}");
                self.problem(Problem::Entry { path: path.clone(), what });
            }
            segments.push((start, path));
        }
        self.summary.segments = segments.len() as u64;
        Ok(segments)
    }

    fn segment(&mut self, start: u64, path: &Path) -> Result<(), WalkError> {
        let file = File::open(path).map_err(io_error(path))?;
        let mut window = Window::new(&file, path, self.summary.segment_bytes);
        if self.state.is_some() {
            let bytes = std::fs::read(sidecar_path(&self.layout.crc, start)).unwrap_or_default();
            window.sidecar = Sidecar::decode(&bytes, start);
        }
        let outcome = self.records(start, &mut window);
        if !self.stop {
            window.read_to_end()?;
        }
        self.summary.blocks_compared += window.compared;
        for (at, stored, computed) in std::mem::take(&mut window.mismatches) {
            self.problem(Problem::Block { offset: start + at, stored, computed });
        }
        // What was read for this alone need not stay in the page cache.
        // SAFETY: a plain system call on an open descriptor.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        outcome
    }

    fn records(&mut self, start: u64, window: &mut Window<'_>) -> Result<(), WalkError> {
        let size = self.summary.segment_bytes;
        let mut at = 0u64;
        let mut need = 8;
        while at < size && !self.stop {
            let offset = start + at;
            let step = {
                let bytes = window.bytes(at, need)?;
                look(bytes, offset, size - at)
            };
            need = 8;
            match step {
                Step::Record { len } => {
                    self.found_record(offset);
                    self.record(window.bytes(at, len)?, offset);
                    at += len as u64;
                }
                Step::More { len } => need = len,
                Step::Blank => {
                    self.found_record(offset);
                    self.summary.end = start + size;
                    self.tell(Item::Blank { offset, room: size - at });
                    return Ok(());
                }
                Step::End => {
                    self.ended.get_or_insert(offset);
                    if let Some(dirty) = window.first_nonzero(at)? {
                        self.problem(Problem::DirtyTail { offset: start + dirty });
                    }
                    return Ok(());
                }
                Step::Bad { why, skip } => {
                    let durable = self.summary.durable.is_some_and(|d| offset < d);
                    self.problem(Problem::BadRecord { offset, why, durable });
                    match skip {
                        Some(len) => at += len as u64,
                        // As a stock broker does: the rest of the segment can't be parsed.
                        None => return Ok(()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Zeros that were taken for the end were none if a record follows.
    fn found_record(&mut self, offset: u64) {
        if let Some(hole) = self.ended.take() {
            self.problem(Problem::Hole { offset: hole, next: offset });
        }
    }

    fn record(&mut self, bytes: &[u8], offset: u64) {
        if let CheckResult::Good(view) = check(bytes, offset, CheckRule::Stock) {
            self.summary.records += 1;
            self.summary.record_bytes += view.total_size() as u64;
            self.summary.end = offset + view.total_size() as u64;
            if self.summary.records == 1 {
                self.summary.first_stored_ms = view.store_timestamp();
            }
            self.summary.last_stored_ms = view.store_timestamp();
            self.tell(Item::Record(view));
        }
    }
}

fn look(bytes: &[u8], offset: u64, room: u64) -> Step {
    match check(bytes, offset, CheckRule::Stock) {
        CheckResult::Good(view) => Step::Record { len: view.total_size() },
        CheckResult::Blank { .. } => Step::Blank,
        CheckResult::End => Step::End,
        CheckResult::Need { len } if len as u64 > room || len > RECORD_BYTES_MAX => {
            Step::Bad { why: format!("a record of {len} bytes where {room} are left"), skip: None }
        }
        CheckResult::Need { len } => Step::More { len },
        CheckResult::Bad { why, size } => {
            let skip = size.filter(|size| *size > 0 && *size as u64 + 8 <= room);
            Step::Bad { why: why.to_string(), skip }
        }
    }
}

/// The part of a segment that is in memory. Reads forward only, and compares block CRCs on the way.
struct Window<'a> {
    file: &'a File,
    path: &'a Path,
    segment_bytes: u64,
    /// Position of `buf`'s first byte.
    base: u64,
    buf: Vec<u8>,
    sidecar: Sidecar,
    crc: u32,
    compared: u64,
    /// (position, stored, computed)
    mismatches: Vec<(u64, u32, u32)>,
}

impl<'a> Window<'a> {
    fn new(file: &'a File, path: &'a Path, segment_bytes: u64) -> Self {
        Window {
            file,
            path,
            segment_bytes,
            base: 0,
            buf: Vec::new(),
            sidecar: Sidecar::default(),
            crc: 0,
            compared: 0,
            mismatches: Vec::new(),
        }
    }

    fn end(&self) -> u64 {
        self.base + self.buf.len() as u64
    }

    /// At least `need` bytes from `at` (fewer at the segment's end), and whatever else is there.
    fn bytes(&mut self, at: u64, need: usize) -> Result<&[u8], WalkError> {
        while self.end() < (at + need as u64).min(self.segment_bytes) {
            let keep = (at - self.base).min(self.buf.len() as u64) as usize;
            self.buf.drain(..keep);
            self.base += keep as u64;
            self.more()?;
        }
        Ok(self.buf.get((at - self.base) as usize..).unwrap_or_default())
    }

    fn more(&mut self) -> Result<(), WalkError> {
        let at = self.end();
        let len = (self.segment_bytes - at).min(READ_BYTES as u64) as usize;
        let old = self.buf.len();
        self.buf.resize(old + len, 0);
        let new = &mut self.buf[old..];
        self.file.read_exact_at(new, at).map_err(io_error(self.path))?;
        self.compare(at, old);
        Ok(())
    }

    /// Folds the bytes from `buf[old..]`, which stand at `at`, into block CRCs.
    fn compare(&mut self, mut at: u64, old: usize) {
        let mut rest = &self.buf[old..];
        while !rest.is_empty() {
            let block = at / CRC_BLOCK_BYTES;
            let end = ((block + 1) * CRC_BLOCK_BYTES).min(self.segment_bytes);
            let (now, later) = rest.split_at(rest.len().min((end - at) as usize));
            self.crc = crc32c::crc32c_append(self.crc, now);
            at += now.len() as u64;
            rest = later;
            if at == end {
                let computed = std::mem::take(&mut self.crc);
                if let Some(stored) = self.sidecar.get(block) {
                    self.compared += 1;
                    if stored != computed {
                        self.mismatches.push((block * CRC_BLOCK_BYTES, stored, computed));
                    }
                }
            }
        }
    }

    /// Position of the first byte from `at` on that isn't zero.
    fn first_nonzero(&mut self, mut at: u64) -> Result<Option<u64>, WalkError> {
        while at < self.segment_bytes {
            let bytes = self.bytes(at, 1)?;
            if let Some(found) = bytes.iter().position(|b| *b != 0) {
                return Ok(Some(at + found as u64));
            }
            at += bytes.len() as u64;
        }
        Ok(None)
    }

    /// Reads what is left, for its block CRCs.
    fn read_to_end(&mut self) -> Result<(), WalkError> {
        // Without entries there is nothing to compare.
        while self.sidecar.known() > 0 && self.end() < self.segment_bytes {
            self.base = self.end();
            self.buf.clear();
            self.more()?;
        }
        Ok(())
    }
}
