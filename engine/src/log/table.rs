//! Which segments the log has, and which of them are open. Lives on one reactor.

use super::{
    device::{Device, OpenSegment},
    error::LogError,
    segments::{Layout, SegmentInfo},
};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

/// Most segments that stay open, but for those that are still to be written or flushed.
const OPEN_SEGMENTS_MAX: usize = 64;

struct Entry {
    info: SegmentInfo,
    open: Option<Rc<OpenSegment>>,
    used: u64,
}

/// The segments, in order and without gaps.
pub(crate) struct Table {
    layout: Layout,
    segment_bytes: u64,
    entries: RefCell<VecDeque<Entry>>,
    clock: Cell<u64>,
    /// Segments that end behind this stay open: they are still to be written or flushed.
    flushed_to: Cell<u64>,
}

impl Table {
    pub(crate) fn new(layout: Layout, segment_bytes: u64, segments: Vec<SegmentInfo>) -> Self {
        let entries =
            segments.into_iter().map(|info| Entry { info, open: None, used: 0 }).collect();
        Table {
            layout,
            segment_bytes,
            entries: RefCell::new(entries),
            clock: Cell::new(0),
            flushed_to: Cell::new(u64::MAX),
        }
    }

    pub(crate) fn start_of(&self, offset: u64) -> u64 {
        offset - offset % self.segment_bytes
    }

    pub(crate) fn first_start(&self) -> Option<u64> {
        self.entries.borrow().front().map(|e| e.info.start)
    }

    pub(crate) fn contains(&self, start: u64) -> bool {
        self.index(start).is_some()
    }

    pub(crate) fn infos(&self) -> Vec<SegmentInfo> {
        self.entries.borrow().iter().map(|e| e.info).collect()
    }

    fn index(&self, start: u64) -> Option<usize> {
        let entries = self.entries.borrow();
        let first = entries.front()?.info.start;
        let index = usize::try_from(start.checked_sub(first)? / self.segment_bytes).ok()?;
        (entries.get(index)?.info.start == start).then_some(index)
    }

    /// A segment that is open already: the ones being written always are.
    pub(crate) fn opened(&self, start: u64) -> Option<Rc<OpenSegment>> {
        let index = self.index(start)?;
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(index)?;
        entry.used = self.tick();
        entry.open.clone()
    }

    /// The segment that starts at `start`, opened if need be; `None` if there is none (any more).
    pub(crate) async fn open(
        &self,
        start: u64,
        device: &Device,
    ) -> Result<Option<Rc<OpenSegment>>, LogError> {
        if !self.contains(start) {
            return Ok(None);
        }
        if let Some(open) = self.opened(start) {
            return Ok(Some(open));
        }
        let open = match device.open_segment(self.layout.segment(start)).await {
            Ok(open) => Rc::new(open),
            // Deleted while it was being opened.
            Err(_) if !self.contains(start) => return Ok(None),
            Err(e) => return Err(e),
        };
        self.keep(start, open.clone());
        Ok(Some(open))
    }

    fn keep(&self, start: u64, open: Rc<OpenSegment>) {
        let Some(index) = self.index(start) else {
            return;
        };
        if let Some(entry) = self.entries.borrow_mut().get_mut(index) {
            entry.open = Some(open);
            entry.used = self.tick();
        }
        self.close_coldest();
    }

    /// Everything below is flushed, so that its segments may be closed; what lies behind is only ever written or flushed if it is open.
    pub(crate) fn flushed_to(&self, offset: u64) {
        self.flushed_to.set(offset);
        self.close_coldest();
    }

    /// Closes what was used least recently, as long as too many are open; readers in flight keep what they use alive.
    fn close_coldest(&self) {
        let mut entries = self.entries.borrow_mut();
        let mut open = entries.iter().filter(|e| e.open.is_some()).count();
        while open > OPEN_SEGMENTS_MAX {
            let coldest = entries
                .iter_mut()
                .take_while(|e| e.info.start + self.segment_bytes <= self.flushed_to.get())
                .filter(|e| e.open.is_some())
                .min_by_key(|e| e.used);
            let Some(coldest) = coldest else { return };
            coldest.open = None;
            open -= 1;
        }
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Adds the segment behind the last one.
    pub(crate) fn push(&self, info: SegmentInfo, open: Rc<OpenSegment>) {
        let mut entries = self.entries.borrow_mut();
        if let Some(last) = entries.back() {
            assert_eq!(
                last.info.start + self.segment_bytes,
                info.start,
                "segments follow one another"
            );
        }
        entries.push_back(Entry { info, open: Some(open), used: self.tick() });
    }

    /// Notes when a segment was last written.
    pub(crate) fn touch(&self, start: u64, now_ms: i64) {
        if let Some(index) = self.index(start)
            && let Some(entry) = self.entries.borrow_mut().get_mut(index)
        {
            entry.info.modified_ms = now_ms;
        }
    }

    /// Takes the first segment out.
    pub(crate) fn pop_first(&self) -> Option<SegmentInfo> {
        self.entries.borrow_mut().pop_front().map(|e| e.info)
    }

    /// Takes the last segment out, if it is the one that starts at `start`.
    pub(crate) fn pop_last(&self, start: u64) {
        let mut entries = self.entries.borrow_mut();
        if entries.back().is_some_and(|e| e.info.start == start) {
            entries.pop_back();
        }
    }

    /// Puts a segment back whose removal failed.
    pub(crate) fn push_first(&self, info: SegmentInfo) {
        self.entries.borrow_mut().push_front(Entry { info, open: None, used: 0 });
    }
}
