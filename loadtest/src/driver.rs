//! What drives messages: the seam between a run and those who send and receive for it.
//!
//! A driver prepares (connects, looks offsets up) before the run's clock starts, and then gives the jobs of its workers. Whatever it sends and
//! receives by, a worker records in a [`Recorder`](crate::tally::Recorder), stamps bodies by [`crate::stamp`] and checks them with a
//! [`Checker`](crate::ledger::Checker), so that reports of all drivers say the same things.

use std::sync::Arc;

use crate::arrivals::Arrivals;
use crate::cli::{CommonOptions, SendOptions, StartAt};
use crate::client::ThroughClient;
use crate::clock::{Clock, Span};
use crate::crew::Job;
use crate::error::LoadError;
use crate::kind::Kind;
use crate::ledger::Rule;
use crate::raw::crew::Raw;
use crate::sizes::Sizes;
use crate::tally::Live;
use crate::target::Target;
use crate::trace::Trace;

/// What is to be sent.
#[derive(Clone, Debug)]
pub struct SendLoad<'a> {
    /// Where, how long, with how many threads.
    pub common: &'a CommonOptions,
    /// How much at a time.
    pub send: &'a SendOptions,
    /// Brokers and queues.
    pub targets: &'a [Target],
    /// Producer group.
    pub group: &'a str,
    /// Kinds of messages: a trace's, or one for each tag.
    pub kinds: Vec<Kind>,
    /// Sizes of bodies; for a trace, the longest.
    pub sizes: Sizes,
    /// Numbered topics.
    pub topics: usize,
    /// Closed loop: a whole window at a time.
    pub burst: bool,
    /// What to send again, and how many times as fast.
    pub trace: Option<(Arc<Trace>, f64)>,
    /// Names the run.
    pub run_id: u64,
    /// Bodies begin with a [`stamp`](crate::stamp).
    pub stamped: bool,
    /// Keep which messages were acknowledged.
    pub keep: bool,
}

/// What is to be received.
#[derive(Clone, Debug)]
pub struct ReceiveLoad<'a> {
    /// Where, how long, with how many threads.
    pub common: &'a CommonOptions,
    /// Brokers and queues.
    pub targets: &'a [Target],
    /// Consumer groups.
    pub groups: Vec<GroupLoad>,
    /// Where to begin.
    pub from: From,
    /// Connections in all; one for each queue, or for each broker and group, unless given.
    pub connections: Option<usize>,
    /// Messages of a pull, at most.
    pub batch: usize,
    /// Wait for more at the end of a queue.
    pub follow: bool,
    /// Filter expression.
    pub expression: &'a str,
    /// What is measured.
    pub purpose: Purpose,
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct GroupLoad {
    /// Its name.
    pub name: String,
    /// How long it works on a message, nanoseconds.
    pub work_ns: u64,
}

/// Where consumers begin.
#[derive(Clone, Debug)]
pub enum From {
    /// At one place in all queues.
    At(StartAt),
    /// At these queue offsets of the targets, queue by queue.
    Offsets(Vec<Vec<u64>>),
}

/// What is measured of what is received.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// All records count; the latency is that of pulls that found something.
    Drain {
        /// What the records of a run are checked against.
        check: Option<Rule>,
        /// Keep what is needed to send the same again.
        record: bool,
    },
    /// Records with this run's stamp count; the latency is their age.
    EndToEnd {
        /// Names the run.
        run_id: u64,
        /// Where the groups count.
        arrivals: Arc<Arrivals>,
        /// What they are checked against.
        check: Option<Rule>,
    },
}

impl Purpose {
    /// What messages are checked against.
    #[must_use]
    pub fn check(&self) -> Option<&Rule> {
        match self {
            Purpose::Drain { check, .. } | Purpose::EndToEnd { check, .. } => check.as_ref(),
        }
    }
}

/// A run that begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its clock.
    pub clock: Clock,
    /// Its times.
    pub span: Span,
    /// Where the side shows what it does.
    pub live: Arc<Live>,
}

/// One side of a run that is ready to begin.
pub type Prepared = Box<dyn FnOnce(&Start) -> Result<Vec<Job>, LoadError>>;

/// The part of `total` that worker `part` of `of` gets; `u64::MAX` is everybody's.
#[must_use]
pub fn share(total: u64, part: usize, of: usize) -> u64 {
    if total == u64::MAX {
        return total;
    }
    total / of as u64 + u64::from((part as u64) < total % of as u64)
}

/// A way to send and receive.
pub trait Driver {
    /// Prepares to send.
    ///
    /// # Errors
    /// A broker can't be reached, or a request can't be made.
    fn senders(&self, load: &SendLoad<'_>) -> Result<Prepared, LoadError>;

    /// Prepares to receive.
    ///
    /// # Errors
    /// As for [`Self::senders`].
    fn receivers(&self, load: &ReceiveLoad<'_>) -> Result<Prepared, LoadError>;
}

/// The driver that the options ask for.
///
/// # Errors
/// The client crate finds brokers by a name server, and there is none.
pub fn of(common: &CommonOptions) -> Result<Box<dyn Driver>, LoadError> {
    match &common.namesrv {
        _ if common.raw => Ok(Box::new(Raw)),
        Some(name_servers) if common.addr.is_empty() => Ok(Box::new(ThroughClient::new(name_servers))),
        _ => Err(LoadError::Options(
            "a client finds brokers by --namesrv: give that and no --addr, or --raw to drive these addresses by pre-encoded frames".into(),
        )),
    }
}
