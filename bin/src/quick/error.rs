//! What goes wrong in `send`, `tail` and `admin`.

use std::io;

use ringmq_net::header::HeaderError;

/// Why a command ended; the message is what the user reads.
#[derive(Debug, thiserror::Error)]
pub enum QuickError {
    /// No connection.
    #[error("cannot connect to {addr}: {source}: is it running, and is the address right?")]
    Connect {
        /// The address.
        addr: String,
        /// Why not.
        source: io::Error,
    },
    /// The connection broke, or no answer came in time.
    #[error("no answer from {addr}: {source}")]
    Link {
        /// The peer.
        addr: String,
        /// Why not.
        source: io::Error,
    },
    /// The peer does not speak the protocol.
    #[error("{addr} sent what is not a RocketMQ frame: {why}")]
    Protocol {
        /// The peer.
        addr: String,
        /// What was wrong.
        why: String,
    },
    /// The peer refused.
    #[error("{addr} answered {code}: {remark}")]
    Refused {
        /// The peer.
        addr: String,
        /// The response code.
        code: i32,
        /// Its text.
        remark: String,
    },
    /// The topic has no queue that can be used.
    #[error("topic {0} has no queue that can be used: is a broker registered at this name server?")]
    NoQueue(String),
    /// An argument that no broker would take.
    #[error("{0}")]
    Argument(String),
    /// Standard input or output.
    #[error("standard input or output: {0}")]
    Terminal(io::Error),
}

impl QuickError {
    pub(super) fn header(addr: &str, error: &HeaderError) -> Self {
        QuickError::Protocol { addr: addr.to_owned(), why: error.to_string() }
    }
}
