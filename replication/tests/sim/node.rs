//! A node: its disk, which survives it, and what runs while it is up.

use ringmq_net::ha_term_frame::Capabilities;
use ringmq_replication::gate::{PeerId, SyncGate};
use ringmq_replication::pair::{Body, MasterSession, Retry, SlaveSession, Trouble};
use ringmq_replication::terms::TermList;

use crate::log::SimLog;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Master,
    Slave,
}

/// A master's side of a link.
pub(crate) struct Served {
    pub(crate) link: u64,
    pub(crate) peer: PeerId,
    pub(crate) session: MasterSession,
    pub(crate) acked: u64,
    pub(crate) writing: bool,
}

/// A slave's side of a link.
pub(crate) struct Following {
    pub(crate) link: u64,
    pub(crate) session: SlaveSession,
    pub(crate) frame: Vec<u8>,
    pub(crate) body: Vec<u8>,
    pub(crate) wanted: Option<Body>,
    pub(crate) since: u64,
}

/// A message that waits for slaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) from: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Waiting {
    pub(crate) fn end(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }
}

pub(crate) struct Node {
    pub(crate) role: Role,
    pub(crate) up: bool,
    /// Earliest time at which it is started again.
    pub(crate) start_at: u64,

    // On its disk.
    pub(crate) log: SimLog,
    pub(crate) terms: TermList,
    pub(crate) floor: u32,
    pub(crate) bound_saved: u64,
    pub(crate) cut_order: Option<u64>,

    // While it is up.
    pub(crate) bound: u64,
    pub(crate) gate: SyncGate,
    /// Slaves that must hold a message.
    pub(crate) wanted: usize,
    pub(crate) served: Vec<Served>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) following: Option<Following>,
    pub(crate) retry: Retry,
    pub(crate) next_try: u64,
    /// Why it does not follow, as it would tell an operator.
    pub(crate) diverged: Option<Trouble>,
    pub(crate) capabilities: Capabilities,
    pub(crate) sync: bool,
}

impl Node {
    pub(crate) fn new(capabilities: Capabilities, sync: bool, wanted: usize) -> Self {
        Node {
            role: Role::Slave,
            up: false,
            start_at: 0,
            log: SimLog::default(),
            terms: TermList::default(),
            floor: 0,
            bound_saved: 0,
            cut_order: None,
            bound: 0,
            gate: SyncGate::new(wanted, u64::MAX),
            wanted,
            served: Vec::new(),
            waiting: Vec::new(),
            following: None,
            retry: Retry::default(),
            next_try: 0,
            diverged: None,
            capabilities,
            sync,
        }
    }

    /// What it may send, or report.
    pub(crate) fn held(&self) -> u64 {
        if self.sync { self.log.durable } else { self.log.written }
    }

    /// What it was is gone, but for its disk.
    pub(crate) fn stop(&mut self) {
        self.up = false;
        self.gate = SyncGate::new(self.wanted, u64::MAX);
        self.served.clear();
        self.waiting.clear();
        self.following = None;
        self.retry = Retry::default();
        self.diverged = None;
    }
}
