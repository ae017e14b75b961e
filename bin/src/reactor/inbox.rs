//! Questions from other threads to a reactor: a short list, and an eventfd that a task of the reactor reads. It costs nothing while
//! nobody asks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use glommio::io::BufferedFile;

/// Questions that may wait; a reactor with more of them unanswered is not turning.
const WAITING_MAX: usize = 8;
/// Pause after a failed read of the eventfd, which is not expected: never a hot loop.
const RETRY: Duration = Duration::from_millis(10);

/// Where one reactor is asked.
pub struct Inbox<Q> {
    waiting: Mutex<VecDeque<Q>>,
    event: OwnedFd,
    closed: AtomicBool,
}

impl<Q> Inbox<Q> {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Inbox<Q>> {
        // Blocking on purpose: io_uring then waits for it by polling. A non-blocking one would fail with EAGAIN.
        // SAFETY: a plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fd is open and owned by nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Inbox { waiting: Mutex::default(), event, closed: AtomicBool::new(false) })
    }

    /// Asks; never waits. Gives the question back if the reactor has too many or takes none any more.
    ///
    /// # Errors
    /// The question.
    pub fn put(&self, question: Q) -> Result<(), Q> {
        let mut waiting = self.lock();
        if waiting.len() >= WAITING_MAX || self.closed.load(Ordering::Relaxed) {
            return Err(question);
        }
        waiting.push_back(question);
        drop(waiting);
        self.ring();
        Ok(())
    }

    /// Takes no more questions and ends [`Inbox::serve`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Answers one question after the other until the inbox is closed. On the reactor that is asked.
    pub async fn serve(&self, answer: impl AsyncFn(Q)) {
        let Ok(event) = self.event.try_clone() else {
            // Out of descriptors: whoever asks is told so by the list that fills.
            return;
        };
        // SAFETY: the descriptor was just duplicated and is owned by nobody else.
        let event = unsafe { BufferedFile::from_raw_fd(event.into_raw_fd()) };
        while !self.closed.load(Ordering::Relaxed) {
            // An eventfd's read ends when somebody rang; its position has no meaning.
            if event.read_at(0, 8).await.is_err() {
                glommio::timer::sleep(RETRY).await;
            }
            while let Some(question) = self.take() {
                answer(question).await;
            }
        }
        let _ = event.close().await;
        self.lock().clear();
    }

    fn take(&self) -> Option<Q> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Q>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // A failed write would mean a counter near 2^64; the reader is awake then anyway.
        // SAFETY: the descriptor is open and the buffer has 8 bytes.
        let _ = unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[test]
    fn a_reactor_answers_another_threads_questions_until_it_closes() {
        let inbox = Arc::new(Inbox::<(u32, Sender<u32>)>::new().expect("an eventfd"));
        let own = Arc::clone(&inbox);
        let reactor = std::thread::spawn(move || {
            glommio::LocalExecutorBuilder::default().make().expect("an executor").run(async {
                own.serve(async |(n, to)| {
                    let _ = to.send(n + 1);
                })
                .await
            });
        });
        for n in 0..100 {
            let (to, from) = channel();
            inbox.put((n, to)).map_err(|_| "full").expect("room");
            assert_eq!(from.recv().expect("an answer"), n + 1);
        }
        inbox.close();
        reactor.join().expect("the reactor ends");
        assert!(inbox.put((0, channel().0)).is_err(), "it is closed");
    }

    #[test]
    fn a_reactor_that_does_not_turn_is_not_asked_without_end() {
        let inbox = Inbox::new().expect("an eventfd");
        let taken = (0..1_000).filter(|n| inbox.put(*n).is_ok()).count();
        assert_eq!(taken, WAITING_MAX);
    }
}
