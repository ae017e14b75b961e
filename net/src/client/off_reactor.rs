//! Work that blocks, done on a thread of its own.
//!
//! The result's arrival is told through a socket pair, which the reactor watches like any other socket. So no
//! waker crosses threads (glommio 0.9 has a history of trouble with that), and glommio's single helper thread,
//! which file operations need, is never held up by a name server lookup.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex};

use futures_lite::AsyncReadExt;
use glommio::net::UnixStream;

/// Runs `work` on a new thread and waits for its result. If the future is dropped, the work goes on and its
/// result is lost.
///
/// # Errors
/// If the thread or the socket pair can't be made, or the work panicked.
pub async fn off_reactor<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (ours, theirs) = StdUnixStream::pair()?;
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let value = work();
        if let Ok(mut slot) = slot.lock() {
            *slot = Some(value);
        }
        // Closing this end is the signal; it comes after the value is in place.
        drop(theirs);
    })?;
    // SAFETY: the descriptor is open and its ownership passes to the glommio stream.
    let mut ours = unsafe { UnixStream::from_raw_fd(ours.into_raw_fd()) };
    let mut byte = [0];
    ours.read(&mut byte).await?;
    let value = result.lock().ok().and_then(|mut slot| slot.take());
    value.ok_or_else(|| io::Error::other(format!("the helper thread {name} panicked")))
}
