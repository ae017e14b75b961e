//! The one thread of a store on which blocking file work runs.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

type Job = Box<dyn FnOnce() + Send>;

/// The worker thread ended before a job was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store's worker thread has ended: restart the broker")]
pub struct WorkerGone;

/// A plain thread that does jobs in the order they were given. One per store, used by one reactor. Its queue has no
/// bound of its own: each user keeps at most one batch and one request in flight.
///
/// Dropping it finishes the jobs that were given and joins the thread.
#[derive(Debug)]
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. It may run on every CPU that the process may use, wherever the caller is pinned.
    ///
    /// # Errors
    /// The system's refusal of a thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            unpin_this_thread();
            while let Ok(job) = queue.recv() {
                job();
            }
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a job. The ticket tells when it is done and what it gave.
    pub fn submit<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
        let slot = Arc::new(Slot { state: Mutex::new(State::Pending), ready: Condvar::new() });
        let guard = SlotGuard(Arc::clone(&slot));
        let job: Job = Box::new(move || {
            let value = job();
            guard.0.fill(State::Done(value));
        });
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, the job is dropped and its guard says so.
            let _ = jobs.send(job);
        }
        Ticket { slot }
    }

    /// Does a job and waits for it on the reactor without blocking it.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.submit(job).wait().await
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum State<T> {
    Pending,
    Done(T),
    Gone,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

impl<T> Slot<T> {
    fn fill(&self, state: State<T>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.ready.notify_all();
    }

    fn take(state: &mut State<T>) -> Option<Result<T, WorkerGone>> {
        match std::mem::replace(state, State::Gone) {
            State::Pending => {
                *state = State::Pending;
                None
            }
            State::Done(value) => Some(Ok(value)),
            State::Gone => Some(Err(WorkerGone)),
        }
    }
}

/// Marks the slot as gone when its job is dropped undone.
struct SlotGuard<T>(Arc<Slot<T>>);

impl<T> Drop for SlotGuard<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Pending) {
            *state = State::Gone;
            self.0.ready.notify_all();
        }
    }
}

/// The result of a job that may not be there yet. No waker crosses threads: a reactor looks at it from a timer.
pub struct Ticket<T> {
    slot: Arc<Slot<T>>,
}

impl<T> Ticket<T> {
    /// The result, once; `None` while the job is not done. After the result was taken it says [`WorkerGone`].
    pub fn poll(&self) -> Option<Result<T, WorkerGone>> {
        Slot::take(&mut self.slot.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits on a glommio reactor.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub async fn wait(self) -> Result<T, WorkerGone> {
        let mut pause_us = 100;
        loop {
            if let Some(result) = self.poll() {
                return result;
            }
            glommio::timer::sleep(Duration::from_micros(pause_us)).await;
            pause_us = (pause_us * 2).min(5_000);
        }
    }

    /// Blocks the calling thread, which is not a reactor, or is one that has stopped serving.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub fn wait_blocking(self) -> Result<T, WorkerGone> {
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = Slot::take(&mut state) {
                return result;
            }
            state = self.slot.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A thread inherits its parent's CPU set, and the parent may be a pinned reactor. The process's main thread is not pinned.
fn unpin_this_thread() {
    // SAFETY: an all-zero `cpu_set_t` is a valid (empty) set; both calls get its true size and a pointer that lives over
    // the call. A failure leaves the thread where it is.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        let size = std::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(libc::getpid(), size, &mut cpus) == 0 {
            libc::sched_setaffinity(0, size, &cpus);
        }
    }
}
