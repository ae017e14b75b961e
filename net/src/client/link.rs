//! One connection of a [`Client`](super::Client): its task, its unsent bytes, its calls in flight.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_lite::future::poll_fn;
use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use rustc_hash::FxHashMap;

use super::ClientError;
use crate::command::Command;
use crate::frame::{Peek, peek};
use crate::header::HeaderDecoder;
use crate::server::out::{BufPool, OutQueue};
use crate::server::recv::{LargePool, RecvBuf};
use crate::server::stats::Counters;

/// Receive room of a connection; larger replies grow it while they arrive.
const RECV_BYTES: usize = 16 * 1024;

/// A call in flight.
enum Call {
    /// Nobody polled for the reply yet.
    Sent,
    Waiting(Waker),
    Replied(Command),
}

/// What handles requests that the server sends.
pub(super) type OnRequest = Box<dyn Fn(Command)>;

pub(super) struct Link {
    pub(super) peer: SocketAddr,
    pub(super) local: Option<SocketAddr>,
    frame_bytes_max: usize,
    fd: Cell<RawFd>,
    out: RefCell<OutQueue>,
    bufs: BufPool,
    large: LargePool,
    count: Counters,
    calls: RefCell<FxHashMap<i32, Call>>,
    next_opaque: Cell<i32>,
    /// Why it ended; `None` while it lives.
    ended: RefCell<Option<String>>,
    waker: RefCell<Option<Waker>>,
    waiters: RefCell<Vec<Waker>>,
    pub(super) on_request: RefCell<Option<OnRequest>>,
}

impl Link {
    /// Takes a connected stream and starts its task.
    pub(super) fn start(stream: TcpStream, peer: SocketAddr, frame_bytes_max: usize) -> Rc<Link> {
        let link = Rc::new(Link {
            peer,
            local: stream.local_addr().ok(),
            frame_bytes_max,
            fd: Cell::new(stream.as_raw_fd()),
            out: RefCell::default(),
            bufs: BufPool::default(),
            large: LargePool::default(),
            count: Counters::default(),
            calls: RefCell::default(),
            next_opaque: Cell::new(1),
            ended: RefCell::new(None),
            waker: RefCell::new(None),
            waiters: RefCell::default(),
            on_request: RefCell::new(None),
        });
        glommio::spawn_local(serve(link.clone(), stream)).detach();
        link
    }

    pub(super) fn why_ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Sends a command with a fresh opaque, which is returned; a reply is waited for if `call`.
    pub(super) fn send(&self, mut command: Command, call: bool) -> Result<i32, ClientError> {
        if let Some(why) = self.why_ended() {
            return Err(ClientError::Closed { peer: self.peer, why });
        }
        command.opaque = self.next_opaque.get();
        self.next_opaque.set(command.opaque.wrapping_add(1));
        let mut framed = true;
        self.out.borrow_mut().push(&self.bufs, |buf| framed = command.try_encode(buf));
        if !framed {
            return Err(ClientError::TooLong { peer: self.peer });
        }
        if call {
            self.calls.borrow_mut().insert(command.opaque, Call::Sent);
        }
        self.flush();
        Ok(command.opaque)
    }

    /// The reply to the call `opaque`, once it is there.
    pub(super) fn poll_reply(
        &self,
        opaque: i32,
        cx: &Context<'_>,
    ) -> Poll<Result<Command, ClientError>> {
        let mut calls = self.calls.borrow_mut();
        match calls.remove(&opaque) {
            Some(Call::Replied(reply)) => Poll::Ready(Ok(reply)),
            _ => match self.why_ended() {
                Some(why) => Poll::Ready(Err(ClientError::Closed { peer: self.peer, why })),
                None => {
                    calls.insert(opaque, Call::Waiting(cx.waker().clone()));
                    Poll::Pending
                }
            },
        }
    }

    /// Nobody waits for `opaque` any more; its reply will be dropped.
    pub(super) fn forget(&self, opaque: i32) {
        self.calls.borrow_mut().remove(&opaque);
    }

    pub(super) fn poll_ended(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_ended() {
            return Poll::Ready(());
        }
        self.waiters.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the connection; calls in flight fail with `why`.
    pub(super) fn end(&self, why: &str) {
        if self.ended.borrow().is_some() {
            return;
        }
        *self.ended.borrow_mut() = Some(why.to_owned());
        for call in self.calls.borrow_mut().values_mut() {
            if let Call::Waiting(waker) = call {
                waker.wake_by_ref();
            }
        }
        for waker in self.waiters.borrow_mut().drain(..) {
            waker.wake();
        }
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn flush(&self) {
        let mut out = self.out.borrow_mut();
        let result = out.send(self.fd.get(), &self.bufs, &self.count);
        let blocked = out.is_blocked();
        drop(out);
        if let Err(error) = result {
            self.end(&format!("sending failed: {error}"));
        } else if blocked && let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn resume_send(&self, stream: &mut TcpStream, cx: &mut Context<'_>) -> io::Result<()> {
        let mut out = self.out.borrow_mut();
        while out.is_blocked() {
            match Pin::new(&mut *stream).poll_write(cx, out.first()) {
                Poll::Pending => break,
                Poll::Ready(sent) => {
                    out.unblock(sent?, &self.bufs);
                    out.send(self.fd.get(), &self.bufs, &self.count)?;
                }
            }
        }
        Ok(())
    }

    /// Sends and receives; `Ready` when the connection has ended.
    fn turn(&self, stream: &mut TcpStream, rx: &mut Receiver, cx: &mut Context<'_>) -> Poll<()> {
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        if let Err(error) = self.resume_send(stream, cx) {
            self.end(&format!("sending failed: {error}"));
        }
        while !self.is_ended() {
            let received = match rx.poll(self, stream, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(received) => received,
            };
            match received {
                Ok(0) => self.end("the peer closed the connection"),
                Ok(_) => self.take_frames(rx),
                Err(error) => self.end(&format!("receiving failed: {error}")),
            }
        }
        Poll::Ready(())
    }

    fn take_frames(&self, rx: &mut Receiver) {
        let mut at = 0;
        let mut need = 0;
        while at < rx.buf.bytes().len() && !self.is_ended() {
            match peek(&rx.buf.bytes()[at..], self.frame_bytes_max) {
                Ok(Peek::Need(bytes)) => {
                    need = bytes;
                    break;
                }
                Ok(Peek::Frame(frame)) => {
                    at += frame.len;
                    match rx.decoder.decode(frame.serialize, frame.header) {
                        Ok(header) => {
                            let body = Bytes::copy_from_slice(frame.body);
                            self.arrived(Command::from_view(&header, body));
                        }
                        Err(error) => self.end(&format!("malformed header: {error}")),
                    }
                }
                Err(error) => self.end(&format!("malformed frame: {error}")),
            }
        }
        rx.buf.consume(at, need, &self.large);
    }

    fn arrived(&self, command: Command) {
        if command.is_response() {
            // A reply that nobody waits for came too late: dropped.
            if let Some(call) = self.calls.borrow_mut().get_mut(&command.opaque)
                && let Call::Waiting(waker) = std::mem::replace(call, Call::Replied(command))
            {
                waker.wake();
            }
        } else if let Some(handle) = &*self.on_request.borrow() {
            handle(command);
        }
    }
}

/// The receiving half's state, owned by the task.
struct Receiver {
    buf: RecvBuf,
    decoder: HeaderDecoder,
    chunk: Vec<u8>,
}

impl Receiver {
    /// Receives once behind what is kept.
    fn poll(
        &mut self,
        link: &Link,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(stream);
        let kept = self.buf.bytes().len();
        if kept + 1 < self.chunk.len() / 2 && self.buf.need() <= self.chunk.len() {
            self.chunk[..kept].copy_from_slice(self.buf.bytes());
            let result = stream.poll_read(cx, &mut self.chunk[kept..]);
            if let Poll::Ready(Ok(n)) = result {
                self.buf.keep(&self.chunk[..kept + n], 0);
            }
            result
        } else {
            let result = stream.poll_read(cx, self.buf.room(&link.large));
            if let Poll::Ready(Ok(n)) = result {
                self.buf.filled(n);
            }
            result
        }
    }
}

async fn serve(link: Rc<Link>, mut stream: TcpStream) {
    let mut rx = Receiver {
        buf: RecvBuf::default(),
        decoder: HeaderDecoder::new(),
        chunk: vec![0; RECV_BYTES],
    };
    poll_fn(|cx| link.turn(&mut stream, &mut rx, cx)).await;
    let _ = stream.shutdown(std::net::Shutdown::Both).await;
    link.fd.set(-1);
    drop(stream);
    link.waker.borrow_mut().take();
    link.out.borrow_mut().clear(&link.bufs);
}
