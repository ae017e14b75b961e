//! One non-blocking connection to a broker, with what arrived and is not yet handled. It comes back after a break.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use ringmq_net::frame::{FRAME_BYTES_MAX, FrameError, FrameRef, Peek, peek};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::clock::SECOND_NS;
use crate::raw::poller::Poller;

/// Wait before a broken connection is tried again.
const RETRY_NS: u64 = SECOND_NS / 4;
/// Longest wait for a connection.
const CONNECT_NS: u64 = 3 * SECOND_NS;

/// Whether a link can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Given up at this time.
    Connecting(u64),
    /// Tried again at this time.
    Down(u64),
}

/// A connection. Lives on its worker's thread.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    token: usize,
    stream: Option<TcpStream>,
    state: State,
    watches_write: bool,
    /// What arrived.
    pub input: Input,
}

impl Link {
    /// Takes over a connected stream and has `poller` watch it under `token`. `input_bytes` is what it reads at a time.
    ///
    /// # Errors
    /// The stream can't be made non-blocking or watched.
    pub fn open(
        stream: TcpStream,
        poller: &Poller,
        token: usize,
        input_bytes: usize,
    ) -> io::Result<Self> {
        let address = stream.peer_addr()?;
        stream.set_nonblocking(true)?;
        poller.add(stream.as_fd(), token, false)?;
        let input = Input::new(input_bytes);
        let stream = Some(stream);
        Ok(Link { address, token, stream, state: State::Open, watches_write: false, input })
    }

    /// Whether requests can be written.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// When [`Self::tend`] wants to be called, if the link is not open.
    #[must_use]
    pub fn wakes_at(&self) -> Option<u64> {
        match self.state {
            State::Open => None,
            State::Connecting(at) | State::Down(at) => Some(at),
        }
    }

    /// Gives the connection up; it is tried again a little later.
    pub fn break_off(&mut self, now: u64) {
        self.stream = None;
        self.input.clear();
        self.watches_write = false;
        self.state = State::Down(now + RETRY_NS);
    }

    /// Closes the connection; it is made anew at once.
    pub fn renew(&mut self, now: u64) {
        self.break_off(now);
        self.state = State::Down(now);
    }

    /// Connects anew if it is time. Returns whether the link is open.
    pub fn tend(&mut self, poller: &Poller, now: u64) -> bool {
        match self.state {
            State::Open => true,
            State::Connecting(until) if until <= now => {
                self.break_off(now);
                false
            }
            State::Down(at) if at <= now => {
                if self.connect(poller, now).is_err() {
                    self.break_off(now);
                }
                self.is_open()
            }
            State::Connecting(_) | State::Down(_) => false,
        }
    }

    fn connect(&mut self, poller: &Poller, now: u64) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&SockAddr::from(self.address)) {
            Ok(()) => self.state = State::Open,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                self.state = State::Connecting(now + CONNECT_NS);
            }
            Err(error) => return Err(error),
        }
        let stream = TcpStream::from(socket);
        self.watches_write = self.state != State::Open;
        poller.add(stream.as_fd(), self.token, self.watches_write)?;
        self.stream = Some(stream);
        Ok(())
    }

    /// Tells a connecting link that its socket is writable: it is connected, or never will be. Returns whether it became
    /// open by this.
    pub fn on_writable(&mut self, poller: &Poller, now: u64) -> bool {
        if !matches!(self.state, State::Connecting(_)) {
            return false;
        }
        let connected = match &self.stream {
            Some(stream) => matches!(stream.take_error(), Ok(None)) && stream.peer_addr().is_ok(),
            None => false,
        };
        if !connected {
            self.break_off(now);
            return false;
        }
        self.state = State::Open;
        self.watch_write(poller, false).is_ok()
    }

    /// Has the poller report when writing is possible again, or stops that.
    ///
    /// # Errors
    /// None that is foreseen.
    pub fn watch_write(&mut self, poller: &Poller, write: bool) -> io::Result<()> {
        if let Some(stream) = &self.stream
            && self.watches_write != write
        {
            poller.modify(stream.as_fd(), self.token, write)?;
            self.watches_write = write;
        }
        Ok(())
    }

    /// Writes what goes without blocking; returns the bytes written.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        none_if_blocking(stream.write_vectored(parts))
    }

    /// Reads once what is there into [`Self::input`]; returns false when nothing was.
    ///
    /// # Errors
    /// The connection is broken or closed.
    pub fn read(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        match stream.read(self.input.room()) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                let read = none_if_blocking(read)?;
                self.input.end += read;
                Ok(read > 0)
            }
        }
    }
}

/// Nothing could be done without blocking, or a signal came: 0 bytes.
fn none_if_blocking(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Ok(0)
        }
        other => other,
    }
}

/// Received bytes, cut into frames.
#[derive(Debug)]
pub struct Input {
    buf: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes that the next frame has, as far as known.
    need: usize,
}

impl Input {
    fn new(bytes: usize) -> Self {
        Input { buf: vec![0; bytes], start: 0, end: 0, need: 0 }
    }

    fn clear(&mut self) {
        (self.start, self.end, self.need) = (0, 0, 0);
    }

    /// The next frame, if it is whole.
    ///
    /// # Errors
    /// The bytes are no frame: the connection can't be used any more.
    pub fn frame(&mut self) -> Result<Option<FrameRef<'_>>, FrameError> {
        match peek(&self.buf[self.start..self.end], FRAME_BYTES_MAX)? {
            Peek::Frame(frame) => Ok(Some(frame)),
            Peek::Need(need) => {
                self.need = need;
                Ok(None)
            }
        }
    }

    /// Forgets the frame of `len` bytes that [`Self::frame`] gave.
    pub fn consume(&mut self, len: usize) {
        self.start = self.end.min(self.start + len);
        if self.start == self.end {
            self.clear();
        }
    }

    /// Room for the rest of the next frame, and for a good deal more.
    fn room(&mut self) -> &mut [u8] {
        let half_used = self.start >= self.buf.len() / 2;
        let too_short = self.start + self.need > self.buf.len() || self.end == self.buf.len();
        if half_used || too_short {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.need > self.buf.len() || self.end == self.buf.len() {
            self.buf.resize(self.need.max(self.buf.len() * 2).max(4096), 0);
        }
        &mut self.buf[self.end..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: usize, fill: u8) -> Vec<u8> {
        let mut out = ((4 + 2 + body) as u32).to_be_bytes().to_vec();
        out.extend_from_slice(&2u32.to_be_bytes());
        out.extend_from_slice(b"{}");
        out.resize(out.len() + body, fill);
        out
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let sizes = [0, 1, 50, 5_000, 3, 70_000, 2];
        let stream: Vec<u8> = sizes.iter().zip(1..).flat_map(|(size, n)| frame(*size, n)).collect();
        for step in [1, 7, 4_096, 50_000, stream.len()] {
            let mut input = Input::new(64);
            let (mut rest, mut got) = (&stream[..], Vec::new());
            while !rest.is_empty() {
                let room = input.room();
                let read = room.len().min(step).min(rest.len());
                room[..read].copy_from_slice(&rest[..read]);
                input.end += read;
                rest = &rest[read..];
                while let Some(frame) = input.frame().unwrap() {
                    let fill = got.len() as u8 + 1;
                    assert!(frame.body.iter().all(|byte| *byte == fill));
                    got.push(frame.body.len());
                    let len = frame.len;
                    input.consume(len);
                }
            }
            assert_eq!(got, sizes, "step {step}");
        }
    }
}
