//! One `sendmsg` for a frame's head and its slices, without a copy; what the socket does not take waits for room.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::io::AsyncWrite;
use glommio::net::TcpStream;
use ringmq_engine::log::Slice;

/// What is being sent: a head, then one slice of the log. Nothing more is queued, so a slow peer holds at most one slice.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Head of a frame, or what has no body: copied.
    head: Vec<u8>,
    body: Option<Slice>,
    /// Bytes of both that are sent.
    sent: usize,
}

impl Outgoing {
    /// Nothing is left to send.
    pub(super) fn is_done(&self) -> bool {
        self.sent == self.len()
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |body| body.bytes().len())
    }

    /// Begins to send. What was before must be done.
    pub(super) fn put(&mut self, head: &[u8], body: Option<Slice>) {
        self.head.clear();
        self.head.extend_from_slice(head);
        self.body = body;
        self.sent = 0;
    }

    /// Sends this after what is being sent, which has no body. Bytes that wait now.
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        self.head.extend_from_slice(bytes);
        self.len() - self.sent
    }

    /// What is left of head and body.
    fn rest(&self) -> [&[u8]; 2] {
        let head_len = self.head.len();
        let head = self.head.get(self.sent.min(head_len)..).unwrap_or_default();
        let body = self.body.as_ref().map_or(&[][..], Slice::bytes);
        [head, body.get(self.sent.saturating_sub(head_len)..).unwrap_or_default()]
    }

    /// Sends as much as the socket takes at once. Whether that is all; what it is not, and why, [`Outgoing::poll_send`] finds out.
    pub(super) fn send_at_once(&mut self, fd: RawFd) -> bool {
        if let Ok(sent) = send_now(fd, self.rest()) {
            self.sent += sent;
        }
        let done = self.is_done();
        if done {
            self.let_go();
        }
        done
    }

    /// The memory of a block is not kept for longer than it is sent.
    fn let_go(&mut self) {
        self.body = None;
        self.head.clear();
        self.sent = 0;
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
        self.let_go();
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
