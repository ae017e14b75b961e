//! Cutting a log below its end: what a slave does whose log has more than its master's, on an order that outlives a crash.
//!
//! ```text
//!   order durable ─ what lies beyond into a side file, durable ─ zeros behind the cut, durable ─ later segments removed, from the last one
//!     ─ state says durable up to the cut ─ the ordinary recovery, which redoes queues and index ─ what refers to the log is mended
//!     ─ order settled
//! ```
//!
//! The order stands until all is done, so a crash anywhere leads back here at the next opening; nothing is appended before. What was
//! saved is not saved again: its file has its name once it is whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{
    StoreError, StoreLayout, list_numbered, numbered_name, sync_directory, write_replacing,
};
use crate::log::StateFile;

/// Bytes copied or zeroed at a time.
const STEP_BYTES: u64 = 1 << 20;
const ORDER_FILE: &str = "cut-order";
const ORDER_MAGIC: &str = "ringmq-cut-1";
/// What a device writes at least.
const UNIT_BYTES: u64 = 4096;

/// An order to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutOrder {
    /// Where the log is to end: a boundary between records.
    pub at: u64,
    /// Tells one cut at a place from another: milliseconds since 1970.
    pub id: u64,
}

/// What a cut did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutDone {
    /// Where the log ends now.
    pub at: u64,
    /// Bytes that were beyond, without trailing zeros.
    pub bytes: u64,
    /// Where they are.
    pub saved: PathBuf,
    /// Segments removed.
    pub removed_segments: usize,
}

impl CutOrder {
    /// Gives the order, durably. It is carried out when the store is opened next. The caller holds the store's lock and has made sure
    /// that a record ends at `at`.
    ///
    /// # Errors
    /// [`StoreError::Io`]; then there is none.
    pub fn give(layout: &StoreLayout, at: u64) -> Result<CutOrder, StoreError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let order = CutOrder { at, id: u64::try_from(now.as_millis()).unwrap_or(0) };
        let text = format!("{ORDER_MAGIC} {} {}", order.at, order.id);
        let whole = format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()));
        write_replacing(&path_of(layout), whole.as_bytes())?;
        Ok(order)
    }

    /// The order that waits, if one does.
    ///
    /// # Errors
    /// [`StoreError::Io`] if there is one that can't be read or is damaged: nothing may be served then.
    pub fn load(layout: &StoreLayout) -> Result<Option<CutOrder>, StoreError> {
        let path = path_of(layout);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("read", &path, error)),
        };
        match parse(&text) {
            Some(order) => Ok(Some(order)),
            None => {
                let why = io::Error::other("it is damaged: remove it, and order the cut again");
                Err(StoreError::io("carry out the order to cut the log", &path, why))
            }
        }
    }

    /// Carries it out. Blocks. `segment_bytes` as the store has them.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the order stands, and the next opening goes on.
    pub fn carry_out(
        self,
        layout: &StoreLayout,
        segment_bytes: u64,
    ) -> Result<CutDone, StoreError> {
        let dir = layout.commit_log();
        let listed = list_numbered(dir).map_err(|error| StoreError::io("read", dir, error))?;
        let starts: Vec<u64> = listed.into_iter().filter_map(|file| file.start).collect();
        let own = self.at - self.at % segment_bytes;
        let saved = layout.ringmq().join(format!("cut-{}-{}", numbered_name(self.at), self.id));
        let io_at = |what, path: &Path| {
            let path = path.to_owned();
            move |error| StoreError::io(what, &path, error)
        };
        let after: Vec<u64> = starts.iter().copied().filter(|start| *start > own).collect();
        if !saved.exists() {
            self.save_beyond(dir, &saved, segment_bytes, own, &after)
                .map_err(io_at("save what lies behind the cut in", &saved))?;
        }
        let bytes = fs::metadata(&saved).map_err(io_at("look at", &saved))?.len();
        if starts.contains(&own) {
            let path = dir.join(numbered_name(own));
            zero_from(&path, self.at - own, segment_bytes).map_err(io_at("zero", &path))?;
        }
        for start in after.iter().rev() {
            let path = dir.join(numbered_name(*start));
            fs::remove_file(&path).map_err(io_at("remove", &path))?;
            sync_directory(dir).map_err(io_at("fsync", dir))?;
        }
        self.rewrite_state(layout)?;
        Ok(CutDone { at: self.at, bytes, saved, removed_segments: after.len() })
    }

    /// All that the cut is followed by is done: the order is gone. The log must not be appended to before. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the next opening carries it out again.
    pub fn settle(layout: &StoreLayout) -> Result<(), StoreError> {
        let path = path_of(layout);
        fs::remove_file(&path).map_err(|error| StoreError::io("remove", &path, error))?;
        let dir = layout.ringmq();
        sync_directory(&dir).map_err(|error| StoreError::io("fsync", &dir, error))
    }

    /// Everything from the cut on up to the last byte that is not zero.
    fn save_beyond(
        self,
        dir: &Path,
        saved: &Path,
        segment_bytes: u64,
        own: u64,
        after: &[u64],
    ) -> io::Result<()> {
        let part = saved.with_extension("part");
        let to = File::create(&part)?;
        let mut end = 0;
        let mut bytes = vec![0; STEP_BYTES as usize];
        for start in std::iter::once(own).chain(after.iter().copied()) {
            let from = match File::open(dir.join(numbered_name(start))) {
                Ok(file) => file,
                // Removed before the crash that led here, or never made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let mut at = self.at.max(start);
            while at < start + segment_bytes {
                let step = (start + segment_bytes - at).min(STEP_BYTES) as usize;
                let piece = bytes.get_mut(..step).unwrap_or_default();
                from.read_exact_at(piece, at - start)?;
                if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
                    let place = at - self.at;
                    to.write_all_at(piece.get(..=last).unwrap_or_default(), place)?;
                    end = place + last as u64 + 1;
                }
                at += step as u64;
            }
        }
        to.set_len(end)?;
        to.sync_all()?;
        fs::rename(&part, saved)?;
        saved.parent().map_or(Ok(()), sync_directory)
    }

    /// The state must not call durable what is gone.
    fn rewrite_state(self, layout: &StoreLayout) -> Result<(), StoreError> {
        let path = layout.ringmq().join("state");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            // A stock broker's store: its rules find the end.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StoreError::io("read", &path, error)),
        };
        let decoded = StateFile::decode(&bytes, &path);
        let mut state =
            decoded.map_err(|error| StoreError::io("read", &path, io::Error::other(error)))?;
        let unit = self.at - self.at % UNIT_BYTES;
        state.log.scan_from = self.at;
        state.log.durable = self.at;
        state.log.write_bound = self.at.next_multiple_of(UNIT_BYTES);
        state.log.zeroed_from = unit;
        state.log.zeroed_to = state.log.write_bound;
        state.log.clean = false;
        write_replacing(&path, &state.encode())
    }
}

fn path_of(layout: &StoreLayout) -> PathBuf {
    layout.ringmq().join(ORDER_FILE)
}

fn parse(text: &str) -> Option<CutOrder> {
    let (text, crc) = text.trim_end().rsplit_once(' ')?;
    if u32::from_str_radix(crc, 16).ok()? != crc32fast::hash(text.as_bytes()) {
        return None;
    }
    let mut words = text.split(' ');
    (words.next()? == ORDER_MAGIC).then_some(())?;
    Some(CutOrder { at: words.next()?.parse().ok()?, id: words.next()?.parse().ok()? })
}

/// Zeros over everything in `[from, to)` that is not zero, durably.
fn zero_from(path: &Path, from: u64, to: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut bytes = vec![0; STEP_BYTES as usize];
    let zeros = vec![0; STEP_BYTES as usize];
    let mut at = from;
    while at < to {
        let step = (to - at).min(STEP_BYTES) as usize;
        let piece = bytes.get_mut(..step).unwrap_or_default();
        file.read_exact_at(piece, at)?;
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(zeros.get(..step).unwrap_or_default(), at)?;
        }
        at += step as u64;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 8192;

    /// Three segments of bytes that tell where they are.
    fn store() -> (tempfile::TempDir, StoreLayout) {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = StoreLayout::new(dir.path());
        layout.create().expect("a store");
        for start in [0, SEGMENT, 2 * SEGMENT] {
            let bytes: Vec<u8> = (start..start + SEGMENT).map(|at| (at % 251) as u8 + 1).collect();
            fs::write(layout.commit_log().join(numbered_name(start)), bytes).expect("a segment");
        }
        (dir, layout)
    }

    fn assert_cut(layout: &StoreLayout, at: u64, done: &CutDone) {
        let log = fs::read(layout.commit_log().join(numbered_name(SEGMENT))).expect("a segment");
        let kept = (at - SEGMENT) as usize;
        assert!((0..kept).all(|i| log[i] == ((SEGMENT as usize + i) % 251) as u8 + 1));
        assert!(log[kept..].iter().all(|byte| *byte == 0), "zeros behind the cut");
        assert!(!layout.commit_log().join(numbered_name(2 * SEGMENT)).exists());
        let saved = fs::read(&done.saved).expect("what was cut");
        assert_eq!(saved.len() as u64, 3 * SEGMENT - at);
        assert!((at..).zip(&saved).all(|(at, byte)| *byte == (at % 251) as u8 + 1));
        assert!(CutOrder::load(layout).expect("readable").is_some(), "not settled yet");
        CutOrder::settle(layout).expect("a settled order");
        assert_eq!(CutOrder::load(layout).expect("readable"), None);
    }

    #[test]
    fn what_lies_beyond_is_saved_and_then_gone() {
        let (_dir, layout) = store();
        let at = SEGMENT + 100;
        let order = CutOrder::give(&layout, at).expect("an order");
        assert_eq!(CutOrder::load(&layout).expect("readable"), Some(order));
        let done = order.carry_out(&layout, SEGMENT).expect("a cut");
        assert_eq!((done.removed_segments, done.bytes), (1, 3 * SEGMENT - at));
        assert_cut(&layout, at, &done);
    }

    #[test]
    fn a_cut_that_was_cut_off_is_finished_and_loses_nothing() {
        let at = SEGMENT + 100;
        for step in 0..4 {
            let (_dir, layout) = store();
            let order = CutOrder::give(&layout, at).expect("an order");
            let last = layout.commit_log().join(numbered_name(2 * SEGMENT));
            let own = layout.commit_log().join(numbered_name(SEGMENT));
            let saved = layout.ringmq().join(format!("cut-{}-{}", numbered_name(at), order.id));
            if step == 0 {
                // Killed while it saved.
                fs::write(saved.with_extension("part"), [9; 50]).expect("half a file");
            } else {
                order
                    .save_beyond(layout.commit_log(), &saved, SEGMENT, SEGMENT, &[2 * SEGMENT])
                    .expect("saved");
            }
            if step >= 2 {
                zero_from(&own, at - SEGMENT, SEGMENT).expect("zeros");
            }
            if step >= 3 {
                fs::remove_file(&last).expect("removed");
            }
            let order = CutOrder::load(&layout).expect("readable").expect("the order stands");
            let done = order.carry_out(&layout, SEGMENT).expect("a cut");
            assert_cut(&layout, at, &done);
        }
    }

    #[test]
    fn a_damaged_order_is_refused_and_not_guessed_at() {
        let (_dir, layout) = store();
        CutOrder::give(&layout, 4_096).expect("an order");
        let text = fs::read_to_string(path_of(&layout)).expect("the order");
        fs::write(path_of(&layout), text.replace("4096", "4095")).expect("another order");
        assert!(CutOrder::load(&layout).is_err());
    }
}
