//! What can keep a run from starting or from being judged.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ringmq_net::body::BodyError;
use ringmq_net::frame::FrameError;
use ringmq_net::header::HeaderError;
use ringmq_net::headers::FieldError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The options contradict one another or are out of bounds.
    #[error("{0}")]
    Options(String),
    /// A name or address that leads nowhere.
    #[error("{address}: not an address that resolves ({source}); give HOST:PORT")]
    Resolve {
        /// What was given.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// An address that cannot be served.
    #[error("cannot listen on {address}: {source}; choose another port")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot connect to {address}: {source}; is the broker up, and is this its port?")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A request before the run failed on its connection.
    #[error("{what} from {address} failed: {source}")]
    Call {
        /// What was asked.
        what: &'static str,
        /// Whom.
        address: SocketAddr,
        /// Why.
        source: CallError,
    },
    /// A request before the run was refused.
    #[error("{address} answers {what} with code {code}: {remark}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Whom.
        address: SocketAddr,
        /// The response code.
        code: i32,
        /// Its text.
        remark: String,
    },
    /// The name server knows no queue to use.
    #[error(
        "the route of topic {topic} has no {purpose} queue on a master; create the topic or check its permission"
    )]
    NoQueue {
        /// The topic.
        topic: String,
        /// `writable` or `readable`.
        purpose: &'static str,
    },
    /// A topic or group that can't be told from the placeholders in a frame.
    #[error("cannot make a frame for topic {topic}: {why}; use another topic or group name")]
    Frame {
        /// The topic.
        topic: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The process to be watched is not there.
    #[error("no process {0} to measure; --pid wants the broker's process id")]
    Pid(i32),
    /// The operating system refused something that the harness needs.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The client crate can't do what the run needs.
    #[error("{what}: {source}")]
    Client {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: ringmq_client::Error,
    },
    /// A file that can't be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A trace that is none.
    #[error("{} is no trace, line {line}: {why}", path.display())]
    Trace {
        /// Which file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Why.
        why: String,
    },
    /// A journal that is none.
    #[error("{} is no journal of `produce --journal`: {why}", path.display())]
    Journal {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A scenario that can't be run.
    #[error("{}: {why}", path.display())]
    Scenario {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// An endpoint of a comparison that doesn't do what it should.
    #[error("{endpoint}: {why}")]
    Endpoint {
        /// Its name.
        endpoint: String,
        /// What happened.
        why: String,
    },
    /// The report can't be written.
    #[error("cannot write the report {}: {source}", path.display())]
    Report {
        /// Where to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread of the harness ended without a result: a defect of the harness.
    #[error("a worker of the load harness ended without a result; please report this")]
    Worker,
}

/// Why a blocking request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame whose header is none.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// An answer that lacks a field.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// An answer whose body is not understood.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The request itself is too long.
    #[error("the request does not fit into a frame")]
    Request,
}
