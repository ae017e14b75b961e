//! Calls from the reactor to the housekeeping thread that somebody awaits, and the task that brings its reports back.

use super::{
    error::LogError,
    housekeeper::{Housekeeper, Job, Outcome, Report},
};
use glommio::io::BufferedFile;
use rustc_hash::FxHashMap;
use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    os::fd::{FromRawFd, IntoRawFd},
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

/// Calls that may be waiting at once.
const CALLS_MAX: usize = 64;

enum Call {
    Waiting(Option<Waker>),
    Answered(Result<Outcome, LogError>),
}

/// Who gets the reports that nobody awaits.
type Sink = Rc<dyn Fn(Report)>;

/// The reactor's end of the housekeeping thread.
pub(crate) struct Calls {
    pub(crate) house: Housekeeper,
    calls: RefCell<FxHashMap<u64, Call>>,
    next: Cell<u64>,
    sink: RefCell<Option<Sink>>,
    stopping: Cell<bool>,
}

impl Calls {
    pub(crate) fn new(house: Housekeeper) -> Rc<Self> {
        Rc::new(Calls {
            house,
            calls: RefCell::default(),
            next: Cell::new(1),
            sink: RefCell::default(),
            stopping: Cell::new(false),
        })
    }

    /// Sends the job that `make` builds around an id, and waits for its answer.
    pub(crate) async fn call(&self, make: impl FnOnce(u64) -> Job) -> Result<Outcome, LogError> {
        let id = self.next.get();
        self.next.set(id + 1);
        let job = make(id);
        if self.calls.borrow().len() >= CALLS_MAX {
            return Err(self.house.busy());
        }
        self.house.send(job)?;
        self.calls.borrow_mut().insert(id, Call::Waiting(None));
        // A caller that goes away leaves nothing behind.
        let _guard = Forget { calls: self, id };
        poll_fn(|cx| {
            let mut calls = self.calls.borrow_mut();
            match calls.remove(&id) {
                Some(Call::Answered(result)) => Poll::Ready(result),
                Some(Call::Waiting(_)) => {
                    calls.insert(id, Call::Waiting(Some(cx.waker().clone())));
                    Poll::Pending
                }
                None => Poll::Ready(Err(LogError::Closed)),
            }
        })
        .await
    }

    pub(crate) fn set_sink(&self, sink: Sink) {
        *self.sink.borrow_mut() = Some(sink);
    }

    /// Reads the mailbox until [`Calls::stop`].
    pub(crate) async fn run(self: Rc<Self>) {
        let Ok(event) = self.house.mailbox.event().try_clone_to_owned() else {
            // Out of descriptors at start: every call would hang, so none may be made.
            self.stopping.set(true);
            return;
        };
        // SAFETY: the descriptor was just duplicated and is owned by nobody else.
        let event = unsafe { BufferedFile::from_raw_fd(event.into_raw_fd()) };
        while !self.stopping.get() {
            // An eventfd's read ends when somebody rang; its position has no meaning.
            if event.read_at(0, 8).await.is_err() {
                // Not expected; look into the mailbox all the same, but never in a hot loop.
                glommio::timer::sleep(Duration::from_millis(10)).await;
            }
            while let Some(report) = self.house.mailbox.take() {
                self.deliver(report);
            }
        }
        let _ = event.close().await;
    }

    fn deliver(&self, report: Report) {
        let Report::Done { id, result } = report else {
            let sink = self.sink.borrow().clone();
            if let Some(sink) = sink {
                sink(report);
            }
            return;
        };
        let waiting = {
            let mut calls = self.calls.borrow_mut();
            match calls.get_mut(&id) {
                Some(call) => std::mem::replace(call, Call::Answered(result)),
                None => return,
            }
        };
        if let Call::Waiting(Some(waker)) = waiting {
            waker.wake();
        }
    }

    /// Ends [`Calls::run`] and the sink's hold on the log.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
        *self.sink.borrow_mut() = None;
        self.house.mailbox.ring();
    }
}

struct Forget<'a> {
    calls: &'a Calls,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.calls.calls.borrow_mut().remove(&self.id);
    }
}
