//! Requests to addresses: one connection each, opened when it is needed, opened again when it was lost.
//!
//! An address that does not take connections is not tried again before a pause that doubles up to half a second; calls within the
//! pause fail at once, so that a sender turns to another broker without waiting. Host names are resolved anew at each connect.

mod connection;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ringmq_net::command::Command;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::deadline::deadline;
use crate::error::{Error, Result};
use crate::signing::Credentials;
use connection::{Connection, Stream};

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Connections that a call tries: one that ended between the look at it and the first byte costs another look, not the call.
const LOOKS: usize = 3;

/// The answer to a request of a broker; `None` when there is none to give.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Option<Command>> + Send>>;

/// What is told of connections, and serves the requests that brokers send over them.
pub(crate) trait Handler: Send + Sync {
    /// A connection was opened. Must not block.
    fn connected(&self, addr: &Arc<str>);
    /// A broker asks.
    fn handle(self: Arc<Self>, addr: Arc<str>, command: Command) -> Answer;
}

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest wait for a connection.
    pub(crate) connect: Duration,
    /// A connection that was not used for this long is closed.
    pub(crate) idle: Duration,
    /// Most requests on one connection that wait for answers.
    pub(crate) window: usize,
}

/// What is known of an address.
struct Slot {
    addr: Arc<str>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Held while a connection is being opened.
    dial: tokio::sync::Mutex<Backoff>,
}

#[derive(Default)]
struct Backoff {
    failures: u32,
    until: Option<(Instant, Error)>,
}

impl Backoff {
    fn failed(&mut self, error: &Error) {
        let pause = BACKOFF_MIN.saturating_mul(1 << self.failures.min(8)).min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.until = Some((Instant::now() + pause, error.clone()));
    }
}

fn ended_at_once(addr: &str) -> Error {
    let why = io::Error::new(
        io::ErrorKind::ConnectionReset,
        "connections end right after they are opened",
    );
    Error::Connect { addr: addr.into(), cause: Arc::new(why) }
}

/// All connections of a client.
pub(crate) struct Remoting {
    limits: Limits,
    /// `None` once it is closed.
    slots: Mutex<Option<HashMap<String, Arc<Slot>>>>,
    handler: Weak<dyn Handler>,
    credentials: Option<Arc<Credentials>>,
    #[cfg(feature = "tls")]
    tls: Option<tls::Connector>,
}

impl Remoting {
    pub(crate) fn new(limits: Limits, handler: Weak<dyn Handler>) -> Remoting {
        Remoting {
            limits,
            slots: Mutex::new(Some(HashMap::new())),
            handler,
            credentials: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// With a signature on every request.
    pub(crate) fn with_credentials(mut self, credentials: Option<Credentials>) -> Remoting {
        self.credentials = credentials.map(Arc::new);
        self
    }

    /// With TLS on every connection.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(mut self, tls: Option<tls::Connector>) -> Remoting {
        self.tls = tls;
        self
    }

    fn slots(&self) -> MutexGuard<'_, Option<HashMap<String, Arc<Slot>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, addr: &str) -> Result<Arc<Slot>> {
        let mut slots = self.slots();
        let slots = slots.as_mut().ok_or(Error::Closed("the client"))?;
        if let Some(slot) = slots.get(addr) {
            return Ok(slot.clone());
        }
        let slot = Arc::new(Slot {
            addr: addr.into(),
            connection: Mutex::new(None),
            dial: tokio::sync::Mutex::default(),
        });
        slots.insert(addr.to_owned(), slot.clone());
        Ok(slot)
    }

    /// Sends a request and waits for its answer, whatever its code.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Lost`], [`Error::Timeout`], [`Error::Busy`], [`Error::Closed`].
    pub(crate) async fn call(
        &self,
        addr: &str,
        command: &Command,
        timeout: Duration,
    ) -> Result<Command> {
        let deadline = deadline(timeout);
        for _ in 0..LOOKS {
            let connection = self.connection(addr, deadline).await?;
            if let Some(reply) = connection.call(command, deadline).await? {
                return Ok(reply);
            }
        }
        Err(ended_at_once(addr))
    }

    /// Sends a request that is not answered.
    ///
    /// # Errors
    /// As [`Remoting::call`]; that it left is all that is known.
    pub(crate) async fn oneway(
        &self,
        addr: &str,
        command: &Command,
        timeout: Duration,
    ) -> Result<()> {
        let deadline = deadline(timeout);
        for _ in 0..LOOKS {
            if self.connection(addr, deadline).await?.oneway(command, deadline).await? {
                return Ok(());
            }
        }
        Err(ended_at_once(addr))
    }

    /// Is there an open connection to that address?
    pub(crate) fn is_connected(&self, addr: &str) -> bool {
        let slots = self.slots();
        slots.as_ref().and_then(|slots| slots.get(addr)).is_some_and(|slot| slot.open().is_some())
    }

    /// Forgets addresses without a connection that nobody is using: brokers come and go, and their addresses with them.
    pub(crate) fn prune(&self) {
        if let Some(slots) = self.slots().as_mut() {
            // Who uses one has taken it under this lock.
            slots.retain(|_, slot| slot.open().is_some() || Arc::strong_count(slot) > 1);
        }
    }

    async fn connection(&self, addr: &str, deadline: Instant) -> Result<Arc<Connection>> {
        let slot = self.slot(addr)?;
        if let Some(open) = slot.open() {
            return Ok(open);
        }
        let Ok(mut backoff) = timeout_at(deadline, slot.dial.lock()).await else {
            // Nothing was sent, so this is no answer that is missing.
            let cause = io::Error::new(io::ErrorKind::TimedOut, "it was being opened all the time");
            return Err(Error::Connect { addr: slot.addr.clone(), cause: Arc::new(cause) });
        };
        if let Some(open) = slot.open() {
            return Ok(open);
        }
        slot.judge_last(&mut backoff);
        if let Some((until, error)) = &backoff.until
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let limit = deadline.min(crate::deadline::deadline(self.limits.connect));
        let stream = match timeout_at(limit, self.open(&slot.addr)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return Err(slot.refuse(&mut backoff, e)),
            Err(_) => {
                let e = io::Error::new(io::ErrorKind::TimedOut, "no answer to the connect");
                return Err(slot.refuse(&mut backoff, e));
            }
        };
        self.adopt(&slot, stream, &mut backoff)
    }

    async fn open(&self, addr: &str) -> io::Result<Stream> {
        let stream = TcpStream::connect(addr).await?;
        let _ = stream.set_nodelay(true);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.open(addr, stream).await;
        }
        let (read, write) = stream.into_split();
        Ok(Stream { read: Box::new(read), write: Box::new(write) })
    }

    fn adopt(
        &self,
        slot: &Arc<Slot>,
        stream: Stream,
        backoff: &mut Backoff,
    ) -> Result<Arc<Connection>> {
        let Limits { window, idle, .. } = self.limits;
        let handler = self.handler.clone();
        let connection = Connection::start(
            slot.addr.clone(),
            stream,
            (window, idle),
            handler,
            self.credentials.clone(),
        );
        backoff.until = None;
        *slot.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        // The client may have been closed meanwhile; then nobody would end this one.
        if self.slots().is_none() {
            connection.end("the client is shut down");
            return Err(Error::Closed("the client"));
        }
        if let Some(handler) = self.handler.upgrade() {
            handler.connected(&slot.addr);
        }
        Ok(connection)
    }

    /// Ends the connection to an address, and forgets it.
    pub(crate) fn forget(&self, addr: &str) {
        let slot = self.slots().as_mut().and_then(|slots| slots.remove(addr));
        if let Some(slot) = slot {
            slot.end("the address is no longer used");
        }
    }

    /// Ends all connections; every later call fails.
    pub(crate) fn close(&self) {
        let slots = self.slots().take();
        for slot in slots.into_iter().flatten().map(|(_, slot)| slot) {
            slot.end("the client is shut down");
        }
    }
}

impl Drop for Remoting {
    fn drop(&mut self) {
        self.close();
    }
}

impl Slot {
    fn open(&self) -> Option<Arc<Connection>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|connection| connection.is_open()).cloned()
    }

    /// A connection that ended without a word of the peer counts as one that was not opened.
    fn judge_last(&self, backoff: &mut Backoff) {
        let last = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        match last {
            Some(last) if !last.has_served() => {
                let why =
                    io::Error::new(io::ErrorKind::ConnectionReset, "it closes connections at once");
                backoff.failed(&Error::Connect { addr: self.addr.clone(), cause: Arc::new(why) });
            }
            Some(_) => *backoff = Backoff::default(),
            None => {}
        }
    }

    fn refuse(&self, backoff: &mut Backoff, cause: io::Error) -> Error {
        let error = Error::Connect { addr: self.addr.clone(), cause: Arc::new(cause) };
        backoff.failed(&error);
        tracing::debug!(addr = %self.addr, failures = backoff.failures, %error, "connect failed");
        error
    }

    fn end(&self, why: &str) {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = connection {
            connection.end(why);
        }
    }
}

#[cfg(test)]
mod tests;
