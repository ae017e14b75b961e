//! One request, one answer, blocking: what has to be known before a run.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::BytesMut;
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};

use crate::error::{CallError, LoadError};

/// Longest wait for a connection or an answer: stock clients wait as long.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Connects with a bound on the wait.
///
/// # Errors
/// Nobody answers.
pub fn connect(address: SocketAddr) -> Result<TcpStream, LoadError> {
    let connected = TcpStream::connect_timeout(&address, TIMEOUT).and_then(|stream| {
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    connected.map_err(|source| LoadError::Connect { address, source })
}

/// Asks `address` over a connection of its own. `what` names the request in errors. The answer may have any code.
///
/// # Errors
/// No connection, or no answer that can be read.
pub fn call(
    address: SocketAddr,
    what: &'static str,
    request: &Command,
) -> Result<Command, LoadError> {
    let mut stream = connect(address)?;
    exchange(&mut stream, request).map_err(|source| LoadError::Call { what, address, source })
}

fn exchange(stream: &mut TcpStream, request: &Command) -> Result<Command, CallError> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut out = BytesMut::new();
    if !request.try_encode(&mut out) {
        return Err(CallError::Request);
    }
    stream.write_all(&out)?;
    let mut input = Vec::new();
    loop {
        if let Peek::Frame(frame) = peek(&input, FRAME_BYTES_MAX)? {
            return Ok(Command::decode(&frame)?);
        }
        let mut chunk = [0; 16 * 1024];
        match stream.read(&mut chunk)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            n => input.extend_from_slice(&chunk[..n]),
        }
    }
}
