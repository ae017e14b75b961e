//! A reactor's heartbeat: a counter that a task turns, and a label of what the thread is doing. Written by its reactor with plain
//! stores, read by the metronome's thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// A name for a piece of work, in a `static`, so that another thread can read it through one pointer:
/// `static PULL: Label = Label("pull");`
pub struct Label(pub &'static str);

static IDLE: Label = Label("between tasks");

/// One reactor's heartbeat. It is never freed: there are as many as reactors, and readers need no lifetime.
pub(super) struct Beat {
    turns: AtomicU64,
    /// How much later than due the heartbeat's timer ran, all together and at most.
    late_us: AtomicU64,
    late_us_max: AtomicU64,
    doing: AtomicPtr<Label>,
}

thread_local! {
    static CURRENT: Cell<Option<&'static Beat>> = const { Cell::new(None) };
}

impl Beat {
    /// A new heartbeat that lives as long as the process.
    pub(super) fn leak() -> &'static Beat {
        Box::leak(Box::new(Beat {
            turns: AtomicU64::new(0),
            late_us: AtomicU64::new(0),
            late_us_max: AtomicU64::new(0),
            doing: AtomicPtr::new(std::ptr::from_ref(&IDLE).cast_mut()),
        }))
    }

    /// Makes this the heartbeat of the calling thread.
    pub(super) fn enter(&'static self) {
        CURRENT.set(Some(self));
    }

    /// The reactor has turned once more.
    pub(super) fn turn(&self) {
        // Only this thread writes, so a load and a store are enough.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The heartbeat's timer ran this much later than it was due: what waits for the reactor waits about as long.
    pub(super) fn late(&self, by: Duration) {
        let us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        let sum = self.late_us.load(Ordering::Relaxed).saturating_add(us);
        self.late_us.store(sum, Ordering::Relaxed);
        self.late_us_max.fetch_max(us, Ordering::Relaxed);
    }

    /// Microseconds that the heartbeat was late, all together and at most.
    pub(super) fn lateness_us(&self) -> (u64, u64) {
        (self.late_us.load(Ordering::Relaxed), self.late_us_max.load(Ordering::Relaxed))
    }

    /// Turns so far.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// What the reactor is doing.
    pub(super) fn doing(&self) -> &'static str {
        // SAFETY: only pointers made from `&'static Label` are ever stored.
        unsafe { &*self.doing.load(Ordering::Relaxed) }.0
    }
}

/// Says what this thread is doing until the guard is dropped; the previous label returns then. For a synchronous stretch only: a
/// guard kept across an `.await` would put its label on whatever runs meanwhile. Off a reactor it does nothing.
pub fn doing(label: &'static Label) -> Doing {
    let before = CURRENT.get().map(|beat| {
        let before = beat.doing.load(Ordering::Relaxed);
        beat.doing.store(std::ptr::from_ref(label).cast_mut(), Ordering::Relaxed);
        (beat, before)
    });
    Doing { before }
}

/// Guard of [`doing`].
#[must_use = "the label is gone when the guard is dropped"]
pub struct Doing {
    before: Option<(&'static Beat, *mut Label)>,
}

impl Drop for Doing {
    fn drop(&mut self) {
        if let Some((beat, before)) = self.before {
            beat.doing.store(before, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static OUTER: Label = Label("outer");
    static INNER: Label = Label("inner");

    #[test]
    fn labels_nest_and_return() {
        let beat = Beat::leak();
        beat.enter();
        assert_eq!(beat.doing(), "between tasks");
        {
            let _outer = doing(&OUTER);
            {
                let _inner = doing(&INNER);
                assert_eq!(beat.doing(), "inner");
            }
            assert_eq!(beat.doing(), "outer");
        }
        assert_eq!(beat.doing(), "between tasks");
    }

    #[test]
    fn a_label_off_a_reactor_does_nothing() {
        let _guard = doing(&OUTER);
    }

    #[test]
    fn turns_are_counted() {
        let beat = Beat::leak();
        beat.turn();
        beat.turn();
        assert_eq!(beat.turns(), 2);
    }
}
