//! Small wake-ups between tasks of one reactor. No task is ever woken from another thread.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    task::{Context, Poll, Waker},
};

/// Holds at most one piece of work for one long-lived task.
pub(crate) struct Slot<T> {
    item: RefCell<Option<T>>,
    waker: Cell<Option<Waker>>,
    closed: Cell<bool>,
}

impl<T> Slot<T> {
    pub(crate) fn new() -> Self {
        Slot { item: RefCell::new(None), waker: Cell::new(None), closed: Cell::new(false) }
    }

    /// Gives the task its work. The slot must be empty: the core has one of a kind in flight.
    pub(crate) fn put(&self, item: T) {
        let old = self.item.borrow_mut().replace(item);
        assert!(old.is_none(), "one piece of work at a time");
        self.wake();
    }

    /// Ends the task after its present work.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The next piece of work; `None` when closed.
    pub(crate) fn take(&self) -> impl Future<Output = Option<T>> {
        poll_fn(|cx| {
            if let Some(item) = self.item.borrow_mut().take() {
                return Poll::Ready(Some(item));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            self.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
    }
}

/// Wakes everybody who waits for something to have changed.
#[derive(Default)]
pub(crate) struct Changed {
    round: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Changed {
    pub(crate) fn notify(&self) {
        self.round.set(self.round.get() + 1);
        if self.waiters.borrow().is_empty() {
            return;
        }
        for waker in self.waiters.take() {
            waker.wake();
        }
    }

    /// Resolves at the first [`Changed::notify`] after this call.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> {
        let round = self.round();
        poll_fn(move |cx| self.poll_since(round, cx))
    }

    /// Counts the calls of [`Changed::notify`].
    pub(crate) fn round(&self) -> u64 {
        self.round.get()
    }

    /// Whether there was one since `round`.
    pub(crate) fn poll_since(&self, round: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.round.get() != round {
            return Poll::Ready(());
        }
        self.waiters.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }
}
