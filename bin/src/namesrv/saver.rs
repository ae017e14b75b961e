//! Writes the name server's files off the reactor, one after the other, and tells when they are durable.
//!
//! Changes that come while a write is under way are gathered: the next write takes the newest content of each file.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};

use futures_lite::future::poll_fn;
use ringmq_engine::state::json_file;
use ringmq_net::client::off_reactor;

/// Called with the outcome of the write that holds the change.
pub type Done = Box<dyn FnOnce(Result<(), String>)>;

/// Changes that wait: the newest content by file name, and who wants to know.
#[derive(Default)]
struct Batch {
    files: BTreeMap<&'static str, Vec<u8>>,
    done: Vec<Done>,
}

/// See the module. Lives on the name server's reactor; [`run`](Self::run) must run on it too.
pub struct Saver {
    dir: PathBuf,
    batch: RefCell<Batch>,
    writing: Cell<bool>,
    worker: RefCell<Option<Waker>>,
    waiters: RefCell<Vec<Waker>>,
}

impl Saver {
    /// Saves into `dir`.
    pub fn new(dir: &Path) -> Rc<Saver> {
        Rc::new(Saver {
            dir: dir.to_owned(),
            batch: RefCell::default(),
            writing: Cell::new(false),
            worker: RefCell::default(),
            waiters: RefCell::default(),
        })
    }

    /// Asks for `content` to be written as the file `name`; `done` is called when it is durable or failed.
    pub fn save(&self, name: &'static str, content: Vec<u8>, done: Done) {
        let mut batch = self.batch.borrow_mut();
        batch.files.insert(name, content);
        batch.done.push(done);
        drop(batch);
        if let Some(waker) = self.worker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The worker; ends only by being cancelled, best when [`idle`](Self::idle).
    pub async fn run(self: Rc<Self>) {
        loop {
            let batch = poll_fn(|cx| {
                let batch = self.batch.take();
                if batch.done.is_empty() {
                    *self.worker.borrow_mut() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(batch)
            })
            .await;
            self.writing.set(true);
            let outcome = write(self.dir.clone(), batch.files).await;
            for done in batch.done {
                done(outcome.clone());
            }
            self.writing.set(false);
            for waker in self.waiters.borrow_mut().drain(..) {
                waker.wake();
            }
        }
    }

    /// Waits until nothing is left to write.
    pub async fn idle(&self) {
        poll_fn(|cx| {
            if !self.writing.get() && self.batch.borrow().done.is_empty() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

async fn write(dir: PathBuf, files: BTreeMap<&'static str, Vec<u8>>) -> Result<(), String> {
    let work = move || {
        files.iter().try_for_each(|(name, content)| {
            json_file::write(&dir.join(name), content).map_err(|e| e.to_string())
        })
    };
    let outcome = off_reactor("ringmq-ns-save", work).await;
    let outcome = outcome.unwrap_or_else(|e| Err(format!("cannot start a thread to save: {e}")));
    if let Err(error) = &outcome {
        tracing::error!(%error, "the name server's configuration could not be saved");
    }
    outcome
}
