//! A wake-up between tasks of one reactor.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_lite::FutureExt;
use glommio::timer::Timer;

/// Raised by anyone on the reactor, awaited by one task. A raise that nobody awaits yet is kept; several count as one.
#[derive(Default)]
pub(super) struct Signal {
    raised: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

impl Signal {
    /// Wakes the awaiting task, or lets the next wait end at once.
    pub(super) fn raise(&self) {
        self.raised.set(true);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    /// Ends when the signal is raised, and lowers it.
    pub(super) async fn wait(&self) {
        poll_fn(|context| {
            if self.raised.take() {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// [`Signal::wait`], but at most this long. Whether it was raised.
    pub(super) async fn wait_at_most(&self, time: Duration) -> bool {
        let raised = async {
            self.wait().await;
            true
        };
        let late = async {
            Timer::new(time).await;
            false
        };
        raised.or(late).await
    }
}
