//! The order to stop: one flag for the process, and on each reactor a future that ends when it is raised.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// The process-wide flag. Raised by a signal, or by a reactor that cannot go on; never lowered.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What reactors read.
    raised: AtomicBool,
    /// What plain threads wait on.
    gate: Mutex<()>,
    opened: Condvar,
}

impl Stop {
    /// A flag that is not raised.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks every reactor to stop. They notice within one heartbeat.
    pub fn request(&self) {
        let _gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.raised.store(true, Ordering::Release);
        self.shared.opened.notify_all();
    }

    /// Whether somebody asked.
    pub fn requested(&self) -> bool {
        self.shared.raised.load(Ordering::Acquire)
    }

    /// Blocks the calling thread until somebody asks. Never on a reactor.
    pub fn wait(&self) {
        let mut gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.requested() {
            gate = self.shared.opened.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One reactor's view of the flag. Lives on that reactor, cheap to clone.
#[derive(Clone, Default)]
pub struct Stopping {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    raised: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Stopping {
    /// Whether the order to stop has reached this reactor.
    pub fn is_raised(&self) -> bool {
        self.inner.raised.get()
    }

    /// Ends when the order to stop reaches this reactor; at once if it has. Any number of tasks may wait.
    pub async fn raised(&self) {
        poll_fn(|context| {
            if self.inner.raised.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.inner.waiting.borrow_mut();
            // A task polled again for another reason must not be listed twice.
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Called by the heartbeat when it sees the process-wide flag.
    pub(super) fn raise(&self) {
        self.inner.raised.set(true);
        for waker in self.inner.waiting.take() {
            waker.wake();
        }
    }
}
