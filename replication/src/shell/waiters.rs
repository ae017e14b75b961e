//! Who waits for something to get on: one waker each, which goes with whoever waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[derive(Default)]
pub(super) struct Waiters {
    next: Cell<u64>,
    wakers: RefCell<BTreeMap<u64, Waker>>,
}

/// One that waits, until it is dropped.
struct Waiter<'a> {
    all: &'a Waiters,
    id: u64,
}

impl Waiters {
    /// Lets everyone look again.
    pub(super) fn wake(&self) {
        let wakers: Vec<Waker> = self.wakers.borrow().values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends when `is_due`, which is looked at now and at each [`Waiters::wake`].
    pub(super) async fn wait_until(&self, is_due: impl Fn() -> bool) {
        let waiter = Waiter { all: self, id: self.next.get() };
        self.next.set(waiter.id + 1);
        poll_fn(|cx| {
            if is_due() {
                return Poll::Ready(());
            }
            let former = self.wakers.borrow_mut().insert(waiter.id, cx.waker().clone());
            drop(former);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let waker = self.all.wakers.borrow_mut().remove(&self.id);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_is_woken_and_leaves_nothing_behind_however_often_it_looks() {
        let waiters = Waiters::default();
        let due = Cell::new(false);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        {
            let mut waits = pin!(waiters.wait_until(|| due.get()));
            for _ in 0..3 {
                assert!(waits.as_mut().poll(&mut cx).is_pending());
            }
            assert_eq!(waiters.wakers.borrow().len(), 1);
            waiters.wake();
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
            due.set(true);
            assert!(waits.as_mut().poll(&mut cx).is_ready());
            assert!(waiters.wakers.borrow().is_empty());
        }
        due.set(false);
        for _ in 0..100 {
            // Who gives up, as when its time is over.
            let mut waits = pin!(waiters.wait_until(|| due.get()));
            assert!(waits.as_mut().poll(&mut cx).is_pending());
        }
        assert!(waiters.wakers.borrow().is_empty());
        waiters.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
