//! A request/response connection to a name server or broker, on a glommio reactor.
//!
//! One task per connection; calls share it and are told apart by their opaque. A connection that ended stays
//! ended: make a new [`Client`].

mod link;
mod off_reactor;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::future::{or, poll_fn};
use glommio::net::TcpStream;
use glommio::timer::sleep;

pub use off_reactor::off_reactor;

use crate::command::Command;
use crate::frame::FRAME_BYTES_MAX;
use crate::header::FLAG_ONEWAY;
use link::Link;

/// Why a call did not bring a reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The name has no address, or asking failed.
    #[error("cannot resolve {name}: {source}; check the name and the resolver of this host")]
    Resolve {
        /// `host:port` as given.
        name: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// No address of the name took the connection in time.
    #[error("cannot connect to {peer}: {why}")]
    Connect {
        /// The last address tried, or the name.
        peer: String,
        /// What the last attempt failed with.
        why: String,
    },
    /// The reply did not come in time. The connection stays usable; a late reply is dropped.
    #[error("no reply from {peer} to request {code} within {timeout:?}")]
    Timeout {
        /// Whom was asked.
        peer: SocketAddr,
        /// The request code.
        code: i32,
        /// How long was waited.
        timeout: Duration,
    },
    /// The connection ended before the reply came; whether the request was handled is unknown.
    #[error("the connection to {peer} is closed: {why}")]
    Closed {
        /// The other side.
        peer: SocketAddr,
        /// Who ended it, or how it failed.
        why: String,
    },
    /// The command's header is longer than the frame format can say.
    #[error("the request to {peer} is too long to be framed; shorten its fields")]
    TooLong {
        /// Whom it was meant for.
        peer: SocketAddr,
    },
}

/// A connection that calls are made on. Belongs to the reactor that made it. Dropping it closes the
/// connection; calls in flight fail.
pub struct Client {
    link: Rc<Link>,
}

impl Client {
    /// Resolves `name` (`host:port`, off the reactor) and connects to the first address that answers, all
    /// within `timeout`.
    ///
    /// # Errors
    /// [`ClientError::Resolve`] and [`ClientError::Connect`].
    pub async fn connect(name: &str, timeout: Duration) -> Result<Client, ClientError> {
        let started = Instant::now();
        let mut why = format!("no answer within {timeout:?}");
        for addr in resolve(name, timeout).await? {
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            match Self::connect_addr(addr, left).await {
                Ok(client) => return Ok(client),
                Err(error) => why = error.to_string(),
            }
        }
        Err(ClientError::Connect { peer: name.to_owned(), why })
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub async fn connect_addr(addr: SocketAddr, timeout: Duration) -> Result<Client, ClientError> {
        let failed = |why: String| ClientError::Connect { peer: addr.to_string(), why };
        let timeout = timeout.max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(addr, timeout).await.map_err(|e| match e {
            glommio::GlommioError::IoError(e) => failed(e.to_string()),
            other => failed(other.to_string()),
        })?;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%addr, %error, "TCP_NODELAY could not be set");
        }
        Ok(Client { link: Link::start(stream, addr, FRAME_BYTES_MAX) })
    }

    /// The other side.
    pub fn peer(&self) -> SocketAddr {
        self.link.peer
    }

    /// This side's address, which tells the interface that reaches the peer.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.link.local
    }

    /// Sends a request and waits for its reply. Its opaque is overwritten. Dropping the future forgets the
    /// call; the request is not taken back.
    ///
    /// # Errors
    /// [`ClientError::Timeout`], [`ClientError::Closed`], [`ClientError::TooLong`].
    pub async fn call(&self, command: Command, timeout: Duration) -> Result<Command, ClientError> {
        let code = command.code;
        let flag = command.flag & !FLAG_ONEWAY;
        let opaque = self.link.send(Command { flag, ..command }, true)?;
        let _forget = Forget { link: &self.link, opaque };
        let reply = poll_fn(|cx| self.link.poll_reply(opaque, cx));
        let late = async {
            sleep(timeout).await;
            Err(ClientError::Timeout { peer: self.link.peer, code, timeout })
        };
        or(reply, late).await
    }

    /// Sends a request that is not answered. Success means it was queued on a connection that seemed alive.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::TooLong`].
    pub fn oneway(&self, command: Command) -> Result<(), ClientError> {
        let flag = command.flag | FLAG_ONEWAY;
        self.link.send(Command { flag, ..command }, false).map(|_| ())
    }

    /// Sets what handles requests that the other side sends; without it they are dropped. `handle` must not
    /// replace itself.
    pub fn on_request(&self, handle: impl Fn(Command) + 'static) {
        *self.link.on_request.borrow_mut() = Some(Box::new(handle));
    }

    /// Ends the connection; calls in flight fail.
    pub fn close(&self) {
        self.link.end("closed by this side");
    }

    /// Whether the connection has ended, from either side.
    pub fn is_closed(&self) -> bool {
        self.link.is_ended()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        poll_fn(|cx| self.link.poll_ended(cx)).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

/// Forgets a call when its future ends or is dropped.
struct Forget<'a> {
    link: &'a Link,
    opaque: i32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.forget(self.opaque);
    }
}

/// The addresses of `host:port`; a literal address costs nothing, a name is looked up on its own thread.
///
/// # Errors
/// [`ClientError::Resolve`].
pub async fn resolve(name: &str, timeout: Duration) -> Result<Vec<SocketAddr>, ClientError> {
    if let Ok(addr) = name.parse() {
        return Ok(vec![addr]);
    }
    let failed = |source| ClientError::Resolve { name: name.to_owned(), source };
    let asked = name.to_owned();
    let look_up = off_reactor("ringmq-dns", move || {
        asked.to_socket_addrs().map(|addrs| addrs.collect::<Vec<_>>())
    });
    let late = async {
        sleep(timeout).await;
        Err(io::Error::new(io::ErrorKind::TimedOut, "the resolver did not answer in time"))
    };
    let addrs = or(look_up, late).await.and_then(|r| r).map_err(failed)?;
    if addrs.is_empty() {
        return Err(failed(io::Error::other("the name has no address")));
    }
    Ok(addrs)
}
