//! The task of one connection. Each poll is a *turn*: go on sending what the socket did not take, receive once,
//! hand every whole frame to the service, then send all replies with one `sendmsg`.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_lite::future::{poll_fn, yield_now};
use futures_lite::io::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;

use super::conn::Conn;
use super::hub::RECEIVE_BYTES;
use super::listener::reset_when_closed;
use super::stats::{CloseReason, add};
use super::{Server, State};
use crate::frame::{FrameRef, Peek, peek};

/// First byte of a TLS record that carries a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// How a turn ended.
pub(super) enum Turn {
    /// There may be more at once; others first if they wait.
    More,
    /// The receive filled its buffer: this peer sends faster than it is served. Others first.
    Full,
    End,
}

/// What became of the bytes handed to [`Server::handle`].
pub(super) struct Handled {
    pub(super) consumed: usize,
    /// Bytes that the frame behind the consumed ones needs; 0 if there are none.
    pub(super) need: usize,
    /// Stopped early because too many reply bytes wait.
    pub(super) paused: bool,
}

/// Serves `conn` until it ends. `stream` owns the descriptor and is dropped here, exactly once.
pub(super) async fn serve(server: Rc<Server>, conn: Rc<Conn>, mut stream: TcpStream) {
    server.service.on_open(&conn);
    loop {
        match poll_fn(|cx| server.turn(&conn, &mut stream, cx)).await {
            Turn::More => glommio::executor().yield_if_needed().await,
            Turn::Full => yield_now().await,
            Turn::End => break,
        }
    }
    // The last replies (also those to frames before a malformed one) get one chance; the peer is told the end
    // by shutdown at once, while close alone would wait for the ring to let go of the socket.
    conn.flush();
    reset_when_closed(conn.fd.get(), false);
    let _ = stream.shutdown(std::net::Shutdown::Both).await;
    conn.fd.set(-1);
    drop(stream);
    conn.waker.borrow_mut().take();
    conn.drop_buffers();
    let reason = conn.closing.get().unwrap_or(CloseReason::Peer);
    server.gone(&conn, reason);
    server.service.on_close(&conn);
}

impl Server {
    fn turn(&self, conn: &Rc<Conn>, stream: &mut TcpStream, cx: &mut Context<'_>) -> Poll<Turn> {
        remember_waker(conn, cx);
        if conn.out_bytes() > self.hub.out_bytes_max() {
            // Reading pauses below; unless the socket is found full now, nothing would wake the task.
            conn.flush();
        }
        if let Err(error) = self.resume_send(conn, stream, cx) {
            tracing::debug!(conn = conn.id(), %error, "sending failed");
            conn.end(CloseReason::Error);
        }
        if conn.is_closed() {
            return Poll::Ready(Turn::End);
        }
        if self.state.get() == State::Draining {
            return self.drain_turn(conn, stream, cx);
        }
        if conn.out_bytes() > self.hub.out_bytes_max() {
            // Not read until the peer has taken replies: the send side holds the wake-up.
            return Poll::Pending;
        }
        let turn = if conn.rx.borrow().unhandled {
            Poll::Ready(self.handle_kept(conn))
        } else if conn.rx.borrow().wants_scratch() {
            if self.hold(conn) {
                return Poll::Pending;
            }
            self.receive_scratch(conn, stream, cx)
        } else {
            self.receive_in_place(conn, stream, cx)
        };
        conn.account();
        self.reclaim_if_over();
        if conn.is_closed() {
            return Poll::Ready(Turn::End);
        }
        turn
    }

    /// Goes on with what the socket did not take. On return either nothing is unsent, or the socket is full
    /// and the task is woken when it is not.
    fn resume_send(
        &self,
        conn: &Rc<Conn>,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        let mut out = conn.out.borrow_mut();
        while out.is_blocked() {
            match Pin::new(&mut *stream).poll_write(cx, out.first()) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => {
                    let sent = result?;
                    add(&self.hub.count.send_calls, 1);
                    add(&self.hub.count.bytes_out, sent as u64);
                    conn.last_io_ms.set(self.hub.now_ms());
                    out.unblock(sent, &self.hub.bufs);
                    out.send(conn.fd.get(), &self.hub.bufs, &self.hub.count)?;
                }
            }
        }
        Ok(())
    }

    fn receive_scratch(
        &self,
        conn: &Rc<Conn>,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Turn> {
        let (mut scratch, room) = self.scratch_of(conn);
        let turn = match Pin::new(stream).poll_read(cx, &mut scratch[room.clone()]) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => Poll::Ready(self.received(conn, result, |n| {
                let bytes = &scratch[..room.start + n];
                let handled = self.handle(conn, bytes);
                keep_rest(conn, bytes, &handled, room.end);
                self.received_alone(conn);
                if conn.fast.get() { Turn::Full } else { Turn::More }
            })),
        };
        self.hub.put_scratch(scratch);
        turn
    }

    fn receive_in_place(
        &self,
        conn: &Rc<Conn>,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Turn> {
        let mut rx = conn.rx.borrow_mut();
        let room = rx.room(&self.hub.large);
        let result = match Pin::new(stream).poll_read(cx, room) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        if let Ok(n) = result {
            rx.filled(n);
        }
        drop(rx);
        Poll::Ready(self.received(conn, result, |_| {
            let turn = self.handle_kept(conn);
            self.received_alone(conn);
            turn
        }))
    }

    /// The shared buffer with what `conn` has kept, and the room behind it for a receive.
    pub(super) fn scratch_of(&self, conn: &Conn) -> (Vec<u8>, Range<usize>) {
        let mut scratch = self.hub.take_scratch();
        let rx = conn.rx.borrow();
        let kept = rx.bytes().len();
        scratch[..kept].copy_from_slice(rx.bytes());
        let end = (kept + RECEIVE_BYTES).max(rx.need()).min(scratch.len());
        (scratch, kept..end)
    }

    /// Counts a receive and lets `handle` do its work unless the stream ended.
    pub(super) fn received(
        &self,
        conn: &Rc<Conn>,
        result: io::Result<usize>,
        handle: impl FnOnce(usize) -> Turn,
    ) -> Turn {
        match result {
            Ok(0) => {
                conn.end(CloseReason::Peer);
                Turn::End
            }
            Ok(n) => {
                add(&self.hub.count.recv_calls, 1);
                add(&self.hub.count.bytes_in, n as u64);
                conn.last_io_ms.set(self.hub.now_ms());
                handle(n)
            }
            Err(error) => {
                tracing::debug!(conn = conn.id(), %error, "receiving failed");
                conn.end(CloseReason::Error);
                Turn::End
            }
        }
    }

    /// Handles frames out of the connection's own buffer. It is taken out of the connection meanwhile, so a
    /// handler may do anything to the connection.
    fn handle_kept(&self, conn: &Rc<Conn>) -> Turn {
        let mut rx = conn.rx.take();
        let handled = self.handle(conn, rx.bytes());
        rx.consume(handled.consumed, handled.need, &self.hub.large);
        rx.unhandled = handled.paused;
        conn.rx.replace(rx);
        Turn::More
    }

    /// Hands whole frames of `bytes` to the service, ends the turn and sends the replies.
    fn handle(&self, conn: &Rc<Conn>, bytes: &[u8]) -> Handled {
        conn.in_turn.set(true);
        let done = self.handle_frames(conn, bytes);
        self.service.on_turn_end();
        conn.flush();
        conn.in_turn.set(false);
        Handled { consumed: if conn.is_closed() { bytes.len() } else { done.consumed }, ..done }
    }

    /// Hands whole frames of `bytes` to the service.
    pub(super) fn handle_frames(&self, conn: &Rc<Conn>, bytes: &[u8]) -> Handled {
        let mut done = Handled { consumed: 0, need: 0, paused: false };
        while done.consumed < bytes.len() && !conn.is_closed() {
            if conn.out_bytes() > self.hub.out_bytes_max() {
                conn.flush();
                if conn.out_bytes() > self.hub.out_bytes_max() {
                    add(&self.hub.count.read_pauses, 1);
                    done.paused = true;
                    break;
                }
            }
            match peek(&bytes[done.consumed..], self.hub.config.frame_bytes_max) {
                Ok(Peek::Need(need)) => {
                    done.need = need;
                    break;
                }
                Ok(Peek::Frame(frame)) => {
                    done.consumed += frame.len;
                    self.handle_frame(conn, &frame);
                }
                Err(error) => self.refuse(conn, &bytes[done.consumed..], &error),
            }
        }
        if conn.is_closed() {
            done.consumed = bytes.len();
        }
        done
    }

    fn handle_frame(&self, conn: &Rc<Conn>, frame: &FrameRef<'_>) {
        let mut decoder = self.decoder.borrow_mut();
        match decoder.decode(frame.serialize, frame.header) {
            Ok(header) => {
                add(&self.hub.count.frames_in, 1);
                add(&conn.frames, 1);
                self.service.on_frame(conn, &header, frame.body);
            }
            Err(error) => self.refuse(conn, &[], &error),
        }
    }

    /// Ends a connection that sent what is no frame, with one log line.
    fn refuse(&self, conn: &Rc<Conn>, bytes: &[u8], error: &dyn std::fmt::Display) {
        let now_ms = self.hub.now_ms();
        if conn.frames.get() == 0 && bytes.first() == Some(&TLS_HANDSHAKE) {
            if let Some(left_out) = self.hub.tls_lines.allow(now_ms) {
                tracing::warn!(conn = conn.id(), peer = %conn.peer(), left_out,
                    "refused a TLS handshake: this port speaks plain RocketMQ remoting only, so turn TLS off in \
                     the client (tls.enable=false, useTLS=false)");
            }
            conn.end(CloseReason::Tls);
        } else {
            if let Some(left_out) = self.hub.malformed_lines.allow(now_ms) {
                tracing::warn!(conn = conn.id(), peer = %conn.peer(), %error, left_out,
                    "closing a connection that sent a malformed frame");
            }
            conn.end(CloseReason::Malformed);
        }
    }

    /// A turn while the server drains: received bytes are thrown away; when all replies have left, the peer is
    /// told the end, and the socket is closed when the peer has closed too. Closing earlier, with unread
    /// bytes in it, would make the kernel reset the connection and take back replies that the peer has not read.
    fn drain_turn(
        &self,
        conn: &Rc<Conn>,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Turn> {
        conn.flush();
        if conn.out_bytes() == 0 && !conn.finished.replace(true) {
            // SAFETY: the descriptor is open, `stream` owns it.
            unsafe { libc::shutdown(conn.fd.get(), libc::SHUT_WR) };
        }
        let mut scratch = self.hub.take_scratch();
        let result = Pin::new(stream).poll_read(cx, &mut scratch);
        self.hub.put_scratch(scratch);
        match result {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(n)) if n > 0 => Poll::Ready(Turn::Full),
            Poll::Ready(_) => {
                conn.end(CloseReason::Shutdown);
                Poll::Ready(Turn::End)
            }
        }
    }
}

/// Keeps what `handled` left of the bytes in the shared buffer, whose room ended at `room_end`.
pub(super) fn keep_rest(conn: &Conn, bytes: &[u8], handled: &Handled, room_end: usize) {
    let mut rx = conn.rx.borrow_mut();
    rx.keep(&bytes[handled.consumed..], handled.need);
    rx.unhandled = handled.paused;
    conn.fast.set(bytes.len() == room_end);
}

/// Lets `flush` outside a turn wake the task.
fn remember_waker(conn: &Rc<Conn>, cx: &Context<'_>) {
    let mut waker = conn.waker.borrow_mut();
    match &mut *waker {
        Some(known) if known.will_wake(cx.waker()) => {}
        slot => *slot = Some(cx.waker().clone()),
    }
}
