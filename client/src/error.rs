//! What can go wrong, each with who refused, with which code, and what to do.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringmq_net::code::{request, response};
use thiserror::Error;

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Codes that the client itself gives, with the numbers of stock clients.
pub mod client_code {
    /// A broker could not be connected to.
    pub const CONNECT_BROKER: i32 = 10001;
    /// A broker did not answer in time.
    pub const ACCESS_BROKER_TIMEOUT: i32 = 10002;
    /// A broker group has no master.
    pub const BROKER_NOT_EXIST: i32 = 10003;
    /// No name server is known.
    pub const NO_NAME_SERVER: i32 = 10004;
    /// A topic has no route.
    pub const NOT_FOUND_TOPIC: i32 = 10005;
    /// A request got no reply in time.
    pub const REQUEST_TIMEOUT: i32 = 10006;
    /// A reply cannot be made of this message.
    pub const CREATE_REPLY_MESSAGE: i32 = 10007;
}

/// Why an operation failed. It is cheap to clone, so that all who waited for the same thing get it. `Debug` gives the same sentence as `Display`: it is
/// what a `main` that returns the error, or an `unwrap`, prints.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// What was given cannot be used; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// No name server address was given.
    #[error(
        "no name server is known: give one with ClientBuilder::name_server, or in NAMESRV_ADDR"
    )]
    NoNameServer,
    /// [`crate::ClientBuilder::build`] was called outside a tokio runtime.
    #[error("a client needs a running tokio runtime: build it inside one")]
    NoRuntime,
    /// No connection.
    #[error(
        "no connection to {addr}: {cause}; check that it runs and that this address is reachable from here"
    )]
    Connect {
        /// Where to.
        addr: Arc<str>,
        /// What the system said.
        cause: Arc<io::Error>,
    },
    /// The connection ended while a request waited. The peer may or may not have carried it out.
    #[error(
        "the connection to {addr} ended while a request waited ({why}); it may have been carried out"
    )]
    Lost {
        /// Where to.
        addr: Arc<str>,
        /// Why it ended.
        why: Arc<str>,
    },
    /// No answer in time. The peer may or may not have carried the request out.
    #[error("{addr} did not answer in {waited:?}; it may have carried the request out")]
    Timeout {
        /// Who was asked.
        addr: Arc<str>,
        /// How long was waited.
        waited: Duration,
    },
    /// A local bound was reached, and stayed reached for as long as the call may take.
    #[error("{what}: send less at once, raise the bound, or allow more time")]
    Busy {
        /// Which bound.
        what: String,
    },
    /// The peer refused.
    #[error("{addr} refused {} with {code} {}: {remark}{}", request_name(*.request), code_name(*.code), advice(*.code))]
    Refused {
        /// Who refused.
        addr: Arc<str>,
        /// Request code.
        request: i32,
        /// Response code, see [`ringmq_net::code::response`].
        code: i32,
        /// What the peer said.
        remark: String,
    },
    /// The peer's answer cannot be read.
    #[error("the answer of {addr} to {} is not readable: {what}", request_name(*.request))]
    Malformed {
        /// Who answered.
        addr: Arc<str>,
        /// Request code.
        request: i32,
        /// What is wrong with it.
        what: String,
    },
    /// No name server answered.
    #[error("no name server answered: {}", list(.0))]
    NameServers(
        /// Each with its cause, in the order they were tried.
        Vec<Error>,
    ),
    /// The name servers know no queue of this topic that could be used.
    #[error("topic {topic} has no route: {why}")]
    NoRoute {
        /// Topic.
        topic: String,
        /// What was found instead.
        why: &'static str,
    },
    /// A broker group without a master.
    #[error(
        "broker group {broker} has no master in the route; it takes no writes until one registers"
    )]
    NoMaster {
        /// Name of the group.
        broker: String,
    },
    /// A message was not sent, with all that was tried.
    #[error("{0}")]
    Send(Arc<SendFailure>),
    /// A part of a batch was not sent.
    #[error("{0}")]
    Batch(Arc<BatchFailure>),
    /// The request was sent, but no reply came.
    #[error(
        "the request to topic {topic} was sent, but no reply came within {waited:?}; is a replier running?"
    )]
    NoReply {
        /// Topic of the request.
        topic: String,
        /// How long was waited, sending included.
        waited: Duration,
    },
    /// A reply cannot be made.
    #[error(
        "no reply can be made to this message: it lacks property {property}, so it is no request or was not stored by a broker"
    )]
    CannotReply {
        /// What is missing.
        property: &'static str,
    },
    /// The group is in use in this client.
    #[error(
        "this client already has a {kind} of group {group}: share it (handles are cheap to clone), or use another client"
    )]
    GroupTaken {
        /// `producer` or `consumer`.
        kind: &'static str,
        /// Group.
        group: String,
    },
    /// A consumer's file of offsets cannot be used.
    #[error(
        "offsets in {path}: {cause}; check that the directory can be written and is nobody else's"
    )]
    Offsets {
        /// The directory.
        path: String,
        /// What is wrong.
        cause: Arc<io::Error>,
    },
    /// The producer, consumer or client was shut down.
    #[error("{0} is shut down")]
    Closed(
        /// Which.
        &'static str,
    ),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn invalid(what: impl Into<String>) -> Error {
        Error::Invalid(what.into())
    }

    /// RocketMQ's number for it: a broker's response code, or one of [`client_code`]. `None` where stock has none.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Refused { code, .. } => Some(*code),
            Error::Connect { .. } | Error::Lost { .. } => Some(client_code::CONNECT_BROKER),
            Error::Timeout { .. } => Some(client_code::ACCESS_BROKER_TIMEOUT),
            Error::NoMaster { .. } => Some(client_code::BROKER_NOT_EXIST),
            Error::NoNameServer => Some(client_code::NO_NAME_SERVER),
            Error::NoRoute { .. } => Some(client_code::NOT_FOUND_TOPIC),
            Error::NoReply { .. } => Some(client_code::REQUEST_TIMEOUT),
            Error::CannotReply { .. } => Some(client_code::CREATE_REPLY_MESSAGE),
            Error::Send(failure) => failure.attempts.last().and_then(|last| last.error.code()),
            Error::Batch(failure) => failure.cause.code(),
            _ => None,
        }
    }

    /// The address of the peer that is to blame, if it is one.
    #[must_use]
    pub fn addr(&self) -> Option<&str> {
        match self {
            Error::Connect { addr, .. }
            | Error::Lost { addr, .. }
            | Error::Timeout { addr, .. }
            | Error::Refused { addr, .. }
            | Error::Malformed { addr, .. } => Some(addr),
            Error::Send(failure) => failure.attempts.last().and_then(|last| last.error.addr()),
            Error::Batch(failure) => failure.cause.addr(),
            _ => None,
        }
    }

    /// Did the network fail, rather than a peer refuse or a check?
    #[must_use]
    pub fn is_network(&self) -> bool {
        matches!(
            self,
            Error::Connect { .. }
                | Error::Lost { .. }
                | Error::Timeout { .. }
                | Error::NameServers(_)
        )
    }

    /// Is this the peer's refusal with that code?
    #[must_use]
    pub fn is_refusal(&self, wanted: i32) -> bool {
        matches!(self, Error::Refused { code, .. } if *code == wanted)
    }
}

/// One try to send a message.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Name of the broker group.
    pub broker: String,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub error: Error,
}

/// A message that was not sent: every try with its broker, its time and its cause.
#[derive(Clone, Debug)]
pub struct SendFailure {
    /// Topic.
    pub topic: String,
    /// The message's unique id, the same in every try.
    pub message_id: String,
    /// All tries, in order; at least one.
    pub attempts: Vec<Attempt>,
    /// Time since the call.
    pub elapsed: Duration,
    /// What the call was allowed.
    pub timeout: Duration,
}

impl SendFailure {
    /// May the message have been stored all the same? True when a try ended without an answer.
    #[must_use]
    pub fn may_be_stored(&self) -> bool {
        let open = |e: &Error| matches!(e, Error::Timeout { .. } | Error::Lost { .. });
        self.attempts.iter().any(|attempt| open(&attempt.error))
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "message {} to topic {} was not sent in {:?} of {:?}, tries: {}",
            self.message_id,
            self.topic,
            self.elapsed,
            self.timeout,
            self.attempts.len()
        )?;
        for attempt in &self.attempts {
            write!(f, "; {} after {:?}: {}", attempt.broker, attempt.took, attempt.error)?;
        }
        Ok(())
    }
}

/// A batch of which not all was sent.
#[derive(Clone, Debug)]
pub struct BatchFailure {
    /// What was stored: the first messages of the batch, in order.
    pub sent: Vec<crate::SendReceipt>,
    /// How many messages the batch has.
    pub total: usize,
    /// Why the next part was not.
    pub cause: Error,
}

impl fmt::Display for BatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} messages of the batch were stored, then: {}",
            self.sent.len(),
            self.total,
            self.cause
        )
    }
}

fn list(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")
}

/// What a request is called.
fn request_name(code: i32) -> String {
    let name = match code {
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 => "a message",
        request::SEND_BATCH_MESSAGE => "a batch",
        request::SEND_REPLY_MESSAGE | request::SEND_REPLY_MESSAGE_V2 => "a reply",
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => "a pull",
        request::HEART_BEAT => "a heartbeat",
        request::GET_ROUTEINFO_BY_TOPIC => "a route request",
        _ => return format!("request {code}"),
    };
    name.to_owned()
}

/// The name that RocketMQ's documentation uses for a response code.
fn code_name(code: i32) -> &'static str {
    match code {
        response::SYSTEM_ERROR => "SYSTEM_ERROR",
        response::SYSTEM_BUSY => "SYSTEM_BUSY",
        response::REQUEST_CODE_NOT_SUPPORTED => "REQUEST_CODE_NOT_SUPPORTED",
        response::MESSAGE_ILLEGAL => "MESSAGE_ILLEGAL",
        response::SERVICE_NOT_AVAILABLE => "SERVICE_NOT_AVAILABLE",
        response::NO_PERMISSION => "NO_PERMISSION",
        response::TOPIC_NOT_EXIST => "TOPIC_NOT_EXIST",
        response::QUERY_NOT_FOUND => "QUERY_NOT_FOUND",
        response::SUBSCRIPTION_PARSE_FAILED => "SUBSCRIPTION_PARSE_FAILED",
        response::SUBSCRIPTION_NOT_EXIST => "SUBSCRIPTION_NOT_EXIST",
        response::SUBSCRIPTION_NOT_LATEST => "SUBSCRIPTION_NOT_LATEST",
        response::SUBSCRIPTION_GROUP_NOT_EXIST => "SUBSCRIPTION_GROUP_NOT_EXIST",
        response::NOT_IN_CURRENT_UNIT => "NOT_IN_CURRENT_UNIT",
        response::CONSUMER_NOT_ONLINE => "CONSUMER_NOT_ONLINE",
        response::FLOW_CONTROL => "FLOW_CONTROL",
        _ => "",
    }
}

/// What to do about a response code, as the end of a sentence.
fn advice(code: i32) -> &'static str {
    match code {
        response::SYSTEM_BUSY | response::FLOW_CONTROL => "; it is overloaded, send less or later",
        response::REQUEST_CODE_NOT_SUPPORTED => "; this broker does not have that feature",
        response::MESSAGE_ILLEGAL => "; shorten body, properties or topic",
        response::SERVICE_NOT_AVAILABLE => "; it takes no writes now, look at its disk and role",
        response::NO_PERMISSION => "; ask for the permission of this topic or broker",
        response::TOPIC_NOT_EXIST => "; create the topic, or allow its creation by sends",
        response::SUBSCRIPTION_GROUP_NOT_EXIST => "; create the consumer group",
        response::CONSUMER_NOT_ONLINE => "; start a consumer of that group",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_send_tells_every_broker_its_code_and_what_to_do() {
        let refused = Error::Refused {
            addr: "10.0.0.1:10911".into(),
            request: request::SEND_MESSAGE_V2,
            code: response::SYSTEM_BUSY,
            remark: "[OVERLOAD]system busy".into(),
        };
        let silent =
            Error::Timeout { addr: "10.0.0.2:10911".into(), waited: Duration::from_secs(1) };
        let attempt = |broker: &str, error: &Error| Attempt {
            broker: broker.into(),
            took: Duration::from_millis(7),
            error: error.clone(),
        };
        let failure = SendFailure {
            topic: "orders".into(),
            message_id: "ID".into(),
            attempts: vec![attempt("broker-a", &refused), attempt("broker-b", &silent)],
            elapsed: Duration::from_millis(1007),
            timeout: Duration::from_secs(3),
        };
        assert!(failure.may_be_stored());
        let error = Error::Send(Arc::new(failure));
        assert_eq!(error.code(), Some(client_code::ACCESS_BROKER_TIMEOUT));
        assert_eq!(error.addr(), Some("10.0.0.2:10911"));
        let text = error.to_string();
        for part in [
            "orders",
            "broker-a",
            "10.0.0.1:10911",
            "2 SYSTEM_BUSY",
            "[OVERLOAD]",
            "send less",
            "broker-b",
            "10.0.0.2:10911",
            "1s",
            "of 3s",
            "ID",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
