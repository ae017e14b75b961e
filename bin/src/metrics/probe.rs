//! One shard, or the name server, as the metrics thread sees it: how far its start is, and where its reactor is asked.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::oneshot;

use super::ShardSnapshot;
use crate::reactor::Inbox;

/// How far a shard's life is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Its reactor is being started.
    Starting,
    /// The store is opened and, if need be, recovered.
    Recovering,
    /// It listens.
    Serving,
    /// It was asked to stop.
    Stopping,
    /// It is closed.
    Ended,
}

impl Stage {
    const ALL: [Stage; 5] =
        [Stage::Starting, Stage::Recovering, Stage::Serving, Stage::Stopping, Stage::Ended];

    /// What `/readyz` says of it.
    pub fn text(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Recovering => "opening its store",
            Stage::Serving => "serving",
            Stage::Stopping => "stopping",
            Stage::Ended => "ended",
        }
    }
}

/// A question to a shard's reactor.
pub enum Ask {
    /// What keeps it from taking messages; nothing if it is ready.
    Readiness(oneshot::Sender<Vec<String>>),
    /// All counters.
    Snapshot(oneshot::Sender<Box<ShardSnapshot>>),
}

/// See the module. Shared by the reactor and the metrics thread.
pub struct Probe {
    /// Index of the shard.
    pub shard: u32,
    /// Its broker name.
    pub name: String,
    stage: AtomicU8,
    inbox: Option<Inbox<Ask>>,
}

impl Probe {
    /// For a shard that is watched.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(shard: u32, name: &str) -> io::Result<Probe> {
        Ok(Probe { inbox: Some(Inbox::new()?), ..Probe::unwatched(shard, name) })
    }

    /// For one that nobody watches: it costs nothing and cannot be asked.
    pub fn unwatched(shard: u32, name: &str) -> Probe {
        let stage = AtomicU8::new(Stage::Starting as u8);
        Probe { shard, name: name.to_owned(), stage, inbox: None }
    }

    /// Says how far the shard is.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    /// How far the shard is.
    pub fn stage(&self) -> Stage {
        let stage = usize::from(self.stage.load(Ordering::Acquire));
        Stage::ALL.get(stage).copied().unwrap_or(Stage::Ended)
    }

    /// Where its reactor is asked; `None` if nobody watches.
    pub fn inbox(&self) -> Option<&Inbox<Ask>> {
        self.inbox.as_ref()
    }
}
