//! Typed requests to one broker: what producers, consumers and administrators ask of it.

mod consume;
mod manage;
mod messages;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ringmq_net::body::{Body, Heartbeat};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::headers::UnregisterClientHeader;

use crate::error::{Error, Result};
use crate::remoting::Remoting;

pub use consume::{Lock, PullReply, PullRequest, PullStatus, SendBack};
pub use messages::{QueryMessages, ResetOffsets};

/// One broker, by its address. Cheap to clone and to make; a connection is opened with the first request and shared by
/// everything of the client.
///
/// Every request fails with [`Error::Refused`] when the broker answers a code that says so, and with the network's errors; the
/// methods name further errors only. A request whose future is dropped may have been carried out.
#[derive(Clone)]
pub struct Broker {
    remoting: Arc<Remoting>,
    addr: Arc<str>,
    timeout: Duration,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("addr", &self.addr).field("timeout", &self.timeout).finish()
    }
}

impl Broker {
    pub(crate) fn new(remoting: Arc<Remoting>, addr: &str, timeout: Duration) -> Broker {
        Broker { remoting, addr: addr.into(), timeout }
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// The same broker with another time limit for each request.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Broker {
        Broker { timeout, ..self.clone() }
    }

    /// Any request, with the answer whatever its code: for what has no method here.
    ///
    /// # Errors
    /// Those of the network.
    pub async fn request(&self, command: &Command) -> Result<Command> {
        self.remoting.call(&self.addr, command, self.timeout).await
    }

    /// Any request that is not answered; done when it is queued for the connection.
    ///
    /// # Errors
    /// Those of the network, as far as they are known by then.
    pub async fn request_oneway(&self, command: &Command) -> Result<()> {
        self.remoting.oneway(&self.addr, command, self.timeout).await
    }

    /// A request that must be answered 0.
    async fn ask(&self, command: Command) -> Result<Command> {
        let reply = self.request(&command).await?;
        if reply.code == response::SUCCESS {
            Ok(reply)
        } else {
            Err(self.refusal(command.code, reply))
        }
    }

    /// A request whose answer has a body.
    async fn ask_body<B: Body>(&self, command: Command) -> Result<B> {
        let code = command.code;
        let reply = self.ask(command).await?;
        B::from_json(&reply.body).map_err(|e| self.malformed(code, e.to_string()))
    }

    /// A request whose answer is a number in an ext field.
    async fn ask_number(&self, command: Command, field: &str) -> Result<i64> {
        let code = command.code;
        let reply = self.ask(command).await?;
        self.number(code, &reply, field)
    }

    fn number(&self, code: i32, reply: &Command, field: &str) -> Result<i64> {
        let number = reply.ext(field).and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.malformed(code, format!("ext field {field} is no number")))
    }

    fn refusal(&self, request: i32, reply: Command) -> Error {
        let remark = reply.remark.unwrap_or_default();
        Error::Refused { addr: self.addr.clone(), request, code: reply.code, remark }
    }

    fn malformed(&self, request: i32, what: String) -> Error {
        Error::Malformed { addr: self.addr.clone(), request, what }
    }

    /// Tells who a client is and what it consumes. Gives the broker's version number.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<i32> {
        let command = Command::request(request::HEART_BEAT).with_body(heartbeat.to_json());
        self.ask(command).await.map(|reply| reply.version)
    }

    /// Takes a client out of its groups.
    ///
    /// # Errors
    /// See [`Broker`].
    pub async fn unregister(
        &self,
        client_id: &str,
        producer_group: Option<&str>,
        consumer_group: Option<&str>,
    ) -> Result<()> {
        let header = UnregisterClientHeader { client_id, producer_group, consumer_group };
        let command = Command::request(request::UNREGISTER_CLIENT).with_header(&header.ext());
        self.ask(command).await.map(drop)
    }
}
