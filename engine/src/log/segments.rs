//! Segment files: their names and directories, and what a store directory looks like before recovery.

use super::{
    error::LogError,
    faults::FileOp,
    files::{Files, UNIT_BYTES},
    recovery_input::CheckpointTimes,
    state_file::{STATE_BYTES_MAX, StateFile},
};
use std::{
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

/// The directories and files of a store that the log uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) store: PathBuf,
    pub(crate) commitlog: PathBuf,
    pub(crate) ringmq: PathBuf,
    pub(crate) prepare: PathBuf,
    pub(crate) crc: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) probe: PathBuf,
    /// Says that a stock broker was here, until all that has to know does.
    pub(crate) visited: PathBuf,
}

impl Layout {
    pub(crate) fn new(store: &Path) -> Self {
        let ringmq = store.join("ringmq");
        Layout {
            store: store.to_path_buf(),
            commitlog: store.join("commitlog"),
            prepare: ringmq.join("prepare"),
            crc: ringmq.join("crc"),
            state: ringmq.join("state"),
            probe: ringmq.join("probe"),
            visited: ringmq.join("visited"),
            ringmq,
        }
    }

    pub(crate) fn segment(&self, start: u64) -> PathBuf {
        self.commitlog.join(segment_name(start))
    }
}

/// A segment's file name: its start offset as 20 decimal digits (stock 4.9.8).
pub(crate) fn segment_name(start: u64) -> String {
    format!("{start:020}")
}

/// The start offset a file name stands for, if it is a segment's.
pub(crate) fn parse_segment_name(name: &str) -> Option<u64> {
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit()))
        .then(|| name.parse().ok())
        .flatten()
}

/// A segment as the log knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Physical offset of its first byte.
    pub start: u64,
    /// Length of the file: the segment size.
    pub bytes: u64,
    /// When it was last written, in milliseconds since 1970: what expiry goes by.
    pub modified_ms: i64,
}

/// A store directory before recovery.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// In order, without gaps, each of the segment size.
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) state: Option<StateFile>,
    /// The times in `<store>/checkpoint`; zeros if there is none.
    pub(crate) checkpoint: CheckpointTimes,
    /// `<store>/abort` is there: the last stop was not clean.
    pub(crate) abort: bool,
    /// A stock broker was here, and not all that has to know of it did when the last process ended.
    pub(crate) visited: bool,
    /// The file system lives in memory or knows no direct I/O.
    pub(crate) buffered: bool,
    /// Files removed or left-overs found, one line each.
    pub(crate) repairs: Vec<String>,
    /// Large left-overs to be removed in steps.
    pub(crate) trash: Vec<PathBuf>,
}

/// The three times at the start of a `checkpoint` file (stock 4.9.8).
fn checkpoint_times(bytes: &[u8]) -> CheckpointTimes {
    let time = |at: usize| {
        bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, i64::from_be_bytes)
    };
    CheckpointTimes { physic: time(0), logics: time(8), index: time(16) }
}

/// How far the times of a checkpoint may lie after the file was written: a clock may have been set in between.
const CHECKPOINT_AHEAD_MS: i64 = 24 * 3600 * 1000;

/// The checkpoint's times; zeros, which cost a longer scan, if there is none, or if it cannot be one.
fn read_checkpoint(
    files: &Files,
    path: &Path,
    repairs: &mut Vec<String>,
) -> Result<CheckpointTimes, LogError> {
    let Some(bytes) = files.read_small(path, UNIT_BYTES)? else {
        return Ok(CheckpointTimes::default());
    };
    let times = checkpoint_times(&bytes);
    let written = std::fs::metadata(path).map_or(i64::MAX, |meta| modified_ms(&meta));
    let possible = 0..=written.saturating_add(CHECKPOINT_AHEAD_MS);
    if [times.physic, times.logics, times.index].iter().all(|time| possible.contains(time)) {
        return Ok(times);
    }
    repairs.push(format!("{} tells impossible times and is not believed", path.display()));
    Ok(CheckpointTimes::default())
}

/// Makes the log's directories and the probe file, and reads what is there. Blocking.
pub(crate) fn set_up(
    files: &Files,
    layout: &Layout,
    segment_bytes: u64,
    allow_buffered: bool,
) -> Result<Found, LogError> {
    for dir in [&layout.store, &layout.commitlog, &layout.ringmq, &layout.prepare, &layout.crc] {
        files.create_dir_all(dir)?;
    }
    files.sync_dir(&layout.ringmq)?;
    files.sync_dir(&layout.store)?;
    let buffered = write_probe(files, layout)?;
    if buffered && !allow_buffered {
        return Err(LogError::NotDirect { path: layout.store.clone() });
    }
    let mut repairs = Vec::new();
    let trash = left_overs(files, layout)?;
    let segments = list_segments(files, layout, segment_bytes, &mut repairs)?;
    let state = files
        .read_small(&layout.state, STATE_BYTES_MAX)?
        .map(|bytes| StateFile::decode(&bytes, &layout.state))
        .transpose()?;
    let checkpoint = read_checkpoint(files, &layout.store.join("checkpoint"), &mut repairs)?;
    let abort = files.read_small(&layout.store.join("abort"), 1)?.is_some();
    let visited = files.read_small(&layout.visited, 1)?.is_some();
    if let Some(state) = state.filter(|_| abort) {
        for segment in segments.iter().filter(|s| s.start + s.bytes > state.log.durable) {
            files.outlast_writes(&layout.segment(segment.start))?;
        }
    }
    Ok(Found { segments, state, checkpoint, abort, visited, buffered, repairs, trash })
}

/// Writes the probe: the first file that a reactor opens for direct I/O on this device. glommio reads its first block
/// once to decide whether the device can be polled, and that read tells the truth only about written data. Returns
/// whether direct I/O is impossible here.
fn write_probe(files: &Files, layout: &Layout) -> Result<bool, LogError> {
    let mut block = Box::new(ProbeBlock([0; UNIT_BYTES as usize]));
    let text = b"RingMQ probe: the first file opened for direct I/O here. Don't remove it while a broker runs.\n";
    block.0[..text.len()].copy_from_slice(text);
    let mut buffered = files.is_in_memory(&layout.ringmq)?;
    if !buffered {
        drop(files.create(&layout.probe)?);
        let direct = files.open_direct(&layout.probe).and_then(|file| {
            files.seam.run(FileOp::Write, &layout.probe, 0, UNIT_BYTES, || {
                file.write_all_at(&block.0, 0)
            })?;
            files.sync_all(&file, &layout.probe)
        });
        match direct {
            Ok(()) => {}
            Err(LogError::Io { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                buffered = true;
            }
            Err(e) => return Err(e),
        }
    }
    if buffered {
        files.replace(&layout.probe, &block.0)?;
    }
    files.sync_dir(&layout.ringmq)?;
    Ok(buffered)
}

#[repr(align(4096))]
struct ProbeBlock([u8; UNIT_BYTES as usize]);

/// What a crash left in `prepare/`: segments never renamed in, or already taken out. All of it goes.
fn left_overs(files: &Files, layout: &Layout) -> Result<Vec<PathBuf>, LogError> {
    list(files, &layout.prepare)
}

fn list(files: &Files, dir: &Path) -> Result<Vec<PathBuf>, LogError> {
    files.seam.run(FileOp::Read, dir, 0, 0, || {
        let mut paths = std::fs::read_dir(dir)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    })
}

fn list_segments(
    files: &Files,
    layout: &Layout,
    segment_bytes: u64,
    repairs: &mut Vec<String>,
) -> Result<Vec<SegmentInfo>, LogError> {
    let paths = list(files, &layout.commitlog)?;
    let last = paths.len().saturating_sub(1);
    let mut segments: Vec<SegmentInfo> = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        let meta = files.seam.run(FileOp::Read, path, 0, 0, || std::fs::symlink_metadata(path))?;
        let start = path
            .file_name()
            .and_then(|n| n.to_str())
            .and_then(parse_segment_name)
            .filter(|start| meta.is_file() && start.is_multiple_of(segment_bytes));
        let name_is_digits =
            path.file_name().and_then(|n| n.to_str()).and_then(parse_segment_name).is_some();
        let length_error = || LogError::SegmentLength {
            path: path.clone(),
            found: meta.len(),
            expected: segment_bytes,
        };
        let start = match start {
            Some(start) => start,
            // A start that isn't a multiple means another segment size made it.
            None if meta.is_file() && name_is_digits => return Err(length_error()),
            None => return Err(LogError::StrayEntry { path: path.clone() }),
        };
        if meta.len() == 0 && i == last {
            // A broker that was killed between creating a segment and giving it its length. It holds nothing.
            files.unlink(path)?;
            files.sync_dir(&layout.commitlog)?;
            repairs.push(format!("removed the empty segment {}", path.display()));
            continue;
        }
        if meta.len() != segment_bytes {
            return Err(length_error());
        }
        if let Some(previous) = segments.last()
            && previous.start + segment_bytes != start
        {
            return Err(LogError::Gap {
                path: layout.commitlog.clone(),
                missing: previous.start + segment_bytes,
            });
        }
        segments.push(SegmentInfo { start, bytes: meta.len(), modified_ms: modified_ms(&meta) });
    }
    Ok(segments)
}

fn modified_ms(meta: &std::fs::Metadata) -> i64 {
    match meta.modified().map(|m| m.duration_since(UNIX_EPOCH)) {
        Ok(Ok(since)) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        _ => meta.mtime().saturating_mul(1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const SEGMENT: u64 = 64 * 1024;

    fn store() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        std::fs::create_dir_all(&layout.commitlog).unwrap();
        (dir, layout)
    }

    fn segment(layout: &Layout, start: u64, len: u64) {
        File::create(layout.segment(start)).unwrap().set_len(len).unwrap();
    }

    fn look(layout: &Layout) -> Result<Found, LogError> {
        set_up(&Files::default(), layout, SEGMENT, true)
    }

    #[test]
    fn names_are_twenty_digits() {
        assert_eq!(segment_name(1_073_741_824), "00000000001073741824");
        assert_eq!(parse_segment_name("00000000001073741824"), Some(1_073_741_824));
        for bad in ["1073741824", "0000000000107374182x", "+0000000001073741824", ""] {
            assert_eq!(parse_segment_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_fresh_directory_becomes_a_store_with_a_written_probe() {
        let (_dir, layout) = store();
        let found = look(&layout).unwrap();
        assert!(found.segments.is_empty() && found.state.is_none());
        assert_eq!(std::fs::metadata(&layout.probe).unwrap().len(), UNIT_BYTES);
        assert!(std::fs::metadata(&layout.probe).unwrap().blocks() > 0);
    }

    #[test]
    fn segments_are_listed_in_order_and_an_empty_last_one_goes() {
        let (_dir, layout) = store();
        for start in [2 * SEGMENT, SEGMENT] {
            segment(&layout, start, SEGMENT);
        }
        segment(&layout, 3 * SEGMENT, 0);
        let found = look(&layout).unwrap();
        let starts: Vec<u64> = found.segments.iter().map(|s| s.start).collect();
        assert_eq!(starts, [SEGMENT, 2 * SEGMENT]);
        assert_eq!(found.repairs.len(), 1);
        assert!(!layout.segment(3 * SEGMENT).exists());
    }

    #[test]
    fn strangers_gaps_and_other_sizes_are_refused_by_name() {
        let (_dir, layout) = store();
        segment(&layout, 0, SEGMENT);
        segment(&layout, 2 * SEGMENT, SEGMENT);
        let error = look(&layout).unwrap_err();
        assert!(matches!(error, LogError::Gap { missing: SEGMENT, .. }), "{error}");

        segment(&layout, SEGMENT, SEGMENT / 2);
        let error = look(&layout).unwrap_err();
        assert!(matches!(error, LogError::SegmentLength { .. }), "{error}");

        segment(&layout, SEGMENT, SEGMENT);
        std::fs::write(layout.commitlog.join("notes.txt"), "x").unwrap();
        let error = look(&layout).unwrap_err();
        assert!(error.to_string().contains("notes.txt"), "{error}");

        std::fs::remove_file(layout.commitlog.join("notes.txt")).unwrap();
        assert_eq!(look(&layout).unwrap().segments.len(), 3);
        segment(&layout, 2 * SEGMENT + 4096, SEGMENT);
        let error = look(&layout).unwrap_err();
        assert!(matches!(error, LogError::SegmentLength { .. }), "{error}");
    }
}
