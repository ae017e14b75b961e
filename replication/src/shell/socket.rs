//! One `sendmsg` for a frame's head and its slices, without a copy; what the socket does not take waits for room.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::io::AsyncWrite;
use glommio::net::TcpStream;
use ringmq_engine::log::Slice;

/// Head of a frame, or a report: short and copied.
const HEAD_BYTES_MAX: usize = 64;

/// What is being sent: one head, then one slice of the log. Nothing more is queued, so a slow peer holds at most one slice.
pub(super) struct Outgoing {
    head: [u8; HEAD_BYTES_MAX],
    head_len: usize,
    body: Option<Slice>,
    /// Bytes of both that are sent.
    sent: usize,
}

impl Default for Outgoing {
    fn default() -> Self {
        Outgoing { head: [0; HEAD_BYTES_MAX], head_len: 0, body: None, sent: 0 }
    }
}

impl Outgoing {
    /// Nothing is left to send.
    pub(super) fn is_done(&self) -> bool {
        self.sent == self.len()
    }

    fn len(&self) -> usize {
        self.head_len + self.body.as_ref().map_or(0, |body| body.bytes().len())
    }

    /// Begins to send. What was before must be done.
    pub(super) fn put(&mut self, head: &[u8], body: Option<Slice>) {
        let len = head.len().min(HEAD_BYTES_MAX);
        if let (Some(to), Some(from)) = (self.head.get_mut(..len), head.get(..len)) {
            to.copy_from_slice(from);
        }
        self.head_len = len;
        self.body = body;
        self.sent = 0;
    }

    /// What is left of head and body.
    fn rest(&self) -> [&[u8]; 2] {
        let head = self.head.get(self.sent.min(self.head_len)..self.head_len).unwrap_or_default();
        let body = self.body.as_ref().map_or(&[][..], Slice::bytes);
        [head, body.get(self.sent.saturating_sub(self.head_len)..).unwrap_or_default()]
    }

    /// Sends as much as the socket takes. Ready when all of it is sent.
    pub(super) fn poll_send(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_done() {
            let sent = match send_now(stream.as_raw_fd(), self.rest()) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Tries the first part again, and arms the wait for room.
                    let [head, body] = self.rest();
                    let first = if head.is_empty() { body } else { head };
                    match Pin::new(&mut *stream).poll_write(cx, first) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(sent) => sent?,
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
            };
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        // The memory of a block is not kept for longer than it is sent.
        self.body = None;
        self.head_len = 0;
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

fn send_now(fd: i32, parts: [&[u8]; 2]) -> io::Result<usize> {
    let mut vectors =
        parts.map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
    // SAFETY: an all-zero msghdr is valid; its vectors point to memory that outlives the call and is only read.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len() as _;
        libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
