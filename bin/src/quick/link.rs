//! One blocking connection: a request, then its answer.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use bytes::BytesMut;
use ringmq_net::code::response;
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};

use super::QuickError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take beyond the time that the request allows the broker to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct Link {
    addr: String,
    stream: TcpStream,
    received: Vec<u8>,
    opaque: i32,
}

impl Link {
    pub(crate) fn connect(addr: &str) -> Result<Link, QuickError> {
        let error = |source| QuickError::Connect { addr: addr.to_owned(), source };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in addr.to_socket_addrs().map_err(error)? {
            match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(error)?;
                    return Ok(Link {
                        addr: addr.to_owned(),
                        stream,
                        received: Vec::new(),
                        opaque: 0,
                    });
                }
                Err(source) => last = source,
            }
        }
        Err(error(last))
    }

    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// Sends a request and waits for its answer; `wait` is how long the broker itself may hold it.
    pub(super) fn call(
        &mut self,
        mut command: Command,
        wait: Duration,
    ) -> Result<Command, QuickError> {
        self.opaque += 1;
        command.opaque = self.opaque;
        let mut frame = BytesMut::new();
        command.encode(&mut frame);
        let error = |source| QuickError::Link { addr: self.addr.clone(), source };
        self.stream.set_read_timeout(Some(wait + ANSWER_TIMEOUT)).map_err(error)?;
        self.stream.write_all(&frame).map_err(error)?;
        loop {
            let answer = self.receive()?;
            // A broker may send requests of its own on the same connection.
            if answer.is_response() && answer.opaque == command.opaque {
                return Ok(answer);
            }
        }
    }

    /// [`Link::call`] for requests that only succeed or fail.
    pub(crate) fn call_ok(&mut self, command: Command) -> Result<Command, QuickError> {
        let answer = self.call(command, Duration::ZERO)?;
        if answer.code == response::SUCCESS { Ok(answer) } else { Err(self.refused(&answer)) }
    }

    pub(super) fn refused(&self, answer: &Command) -> QuickError {
        QuickError::Refused {
            addr: self.addr.clone(),
            code: answer.code,
            remark: answer.remark.clone().unwrap_or_default(),
        }
    }

    fn receive(&mut self) -> Result<Command, QuickError> {
        loop {
            match peek(&self.received, FRAME_BYTES_MAX) {
                Ok(Peek::Frame(frame)) => {
                    let command = Command::decode(&frame)
                        .map_err(|error| QuickError::header(&self.addr, &error))?;
                    let len = frame.len;
                    self.received.drain(..len);
                    return Ok(command);
                }
                Ok(Peek::Need(_)) => self.read_some()?,
                Err(error) => {
                    let why = error.to_string();
                    return Err(QuickError::Protocol { addr: self.addr.clone(), why });
                }
            }
        }
    }

    fn read_some(&mut self) -> Result<(), QuickError> {
        let mut chunk = [0; 64 * 1024];
        let error = |source| QuickError::Link { addr: self.addr.clone(), source };
        let count = self.stream.read(&mut chunk).map_err(error)?;
        if count == 0 {
            let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection");
            return Err(error(closed));
        }
        self.received.extend_from_slice(chunk.get(..count).unwrap_or_default());
        Ok(())
    }
}
