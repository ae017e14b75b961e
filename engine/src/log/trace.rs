//! When the log's recent writes and flushes began and ended, so that it can be told where a slow send spent its time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Instant;

use crate::times::{Times, TimesSnapshot};

/// Writes, and flushes, that are remembered.
const REMEMBERED: usize = 64;

/// One write or flush that succeeded.
#[derive(Debug, Clone, Copy)]
struct Done {
    /// Physical offset up to which it brought the log.
    upto: u64,
    began: Instant,
    ended: Instant,
}

/// Writes or flushes: one in flight, the recent ones, and how long all took.
#[derive(Debug, Default)]
struct Track {
    /// Began then; it brings the log up to this offset at least.
    running: Cell<Option<(u64, Instant)>>,
    done: RefCell<VecDeque<Done>>,
    times: Times,
}

impl Track {
    fn begin(&self, upto: u64) {
        self.running.set(Some((upto, Instant::now())));
    }

    /// It ended; `upto` if it succeeded.
    fn end(&self, upto: Option<u64>) {
        let (Some((_, began)), Some(upto)) = (self.running.take(), upto) else { return };
        let ended = Instant::now();
        self.times.add(u64::try_from((ended - began).as_micros()).unwrap_or(u64::MAX));
        let mut done = self.done.borrow_mut();
        if done.len() >= REMEMBERED {
            done.pop_front();
        }
        done.push_back(Done { upto, began, ended });
    }

    /// When what covers everything below `offset` began and, if it did, ended.
    fn of(&self, offset: u64) -> (Option<Instant>, Option<Instant>) {
        let done = self.done.borrow();
        let at = done.partition_point(|done| done.upto < offset);
        match done.get(at) {
            // The oldest that is remembered may not be the one that covered it first.
            Some(_) if at == 0 && done.len() >= REMEMBERED => (None, None),
            Some(found) => (Some(found.began), Some(found.ended)),
            None => {
                let running = self.running.get().filter(|(upto, _)| *upto >= offset);
                (running.map(|(_, began)| began), None)
            }
        }
    }
}

/// The stages of what lies below one physical offset; `None` for a stage that has not come, or is too long ago to be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// The write that covers it was handed to the device.
    pub write_began: Option<Instant>,
    /// That write completed.
    pub written: Option<Instant>,
    /// The flush that covers it completed.
    pub flushed: Option<Instant>,
}

/// How long the log's device operations took since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogTimes {
    /// Writes that succeeded, each from its hand-over until its completion.
    pub writes: TimesSnapshot,
    /// Flushes that succeeded.
    pub flushes: TimesSnapshot,
}

/// The trace of one log.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    writes: Track,
    flushes: Track,
}

impl Trace {
    pub(crate) fn write_begins(&self, upto: u64) {
        self.writes.begin(upto);
    }

    pub(crate) fn write_ends(&self, upto: Option<u64>) {
        self.writes.end(upto);
    }

    pub(crate) fn flush_begins(&self, upto: u64) {
        self.flushes.begin(upto);
    }

    pub(crate) fn flush_ends(&self, upto: Option<u64>) {
        self.flushes.end(upto);
    }

    pub(crate) fn stages(&self, offset: u64) -> Stages {
        let (write_began, written) = self.writes.of(offset);
        Stages { write_began, written, flushed: self.flushes.of(offset).1 }
    }

    pub(crate) fn times(&self) -> LogTimes {
        LogTimes { writes: self.writes.times.snapshot(), flushes: self.flushes.times.snapshot() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_told_by_the_first_write_that_covers_it() {
        let trace = Trace::default();
        for upto in [100, 200] {
            trace.write_begins(upto);
            trace.write_ends(Some(upto));
        }
        let (first, second) = (trace.stages(100), trace.stages(101));
        assert!(first.written <= second.write_began && second.write_began.is_some());
        assert_eq!(trace.stages(201), Stages::default());
        trace.write_begins(4096);
        let running = trace.stages(201);
        assert!(running.write_began.is_some() && running.written.is_none());
        trace.flush_begins(200);
        assert_eq!(trace.stages(50).flushed, None);
        trace.flush_ends(Some(200));
        assert!(trace.stages(50).flushed >= trace.stages(50).written);
        assert_eq!((trace.times().writes.count(), trace.times().flushes.count()), (2, 1));
    }

    #[test]
    fn a_failed_operation_covers_nothing() {
        let trace = Trace::default();
        trace.write_begins(100);
        trace.write_ends(None);
        assert_eq!(trace.stages(50), Stages::default());
        assert_eq!(trace.times().writes.count(), 0);
    }

    #[test]
    fn what_is_too_long_ago_is_not_guessed() {
        let trace = Trace::default();
        for upto in 1..=REMEMBERED as u64 * 2 {
            trace.write_begins(upto);
            trace.write_ends(Some(upto));
        }
        assert_eq!(trace.stages(3), Stages::default());
        assert!(trace.stages(REMEMBERED as u64 * 2).written.is_some());
        assert_eq!(trace.writes.done.borrow().len(), REMEMBERED);
    }
}
