//! Everything that one scrape tells, gathered: the process, its reactors, and each shard that answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::usage::Usage;
use super::{Probe, ShardSnapshot};
use crate::logging::DroppedLines;
use crate::reactor::{ReactorState, ReactorWatch, Stall};

/// What is known of the process before its reactors run.
#[derive(Clone)]
pub struct Process {
    /// The acknowledgement level of ordinary sends.
    pub level: &'static str,
    /// Counts lost log lines.
    pub dropped: DroppedLines,
    /// When it started, seconds since 1970.
    pub started: f64,
    /// `/healthz` fails when a reactor has not turned for this long.
    pub unhealthy: std::time::Duration,
    /// Its shards, in order.
    pub probes: Vec<Arc<Probe>>,
    /// Its name server.
    pub namesrv: Option<Arc<Probe>>,
}

impl Process {
    /// Seconds since 1970, now.
    pub fn now() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }
}

/// One shard in a scrape.
pub(super) struct Shard {
    /// Labels.
    pub(super) index: String,
    pub(super) name: String,
    /// `None` if it is not serving, or its reactor did not answer in time.
    pub(super) numbers: Option<Box<ShardSnapshot>>,
}

/// See the module.
pub(super) struct Scene {
    pub(super) process: Process,
    pub(super) usage: Usage,
    pub(super) reactors: Vec<ReactorState>,
    pub(super) stalls: BTreeMap<(usize, &'static str), Stall>,
    pub(super) shards: Vec<Shard>,
}

impl Scene {
    pub(super) fn new(
        process: &Process,
        watch: Option<&ReactorWatch>,
        shards: Vec<Shard>,
    ) -> Scene {
        Scene {
            process: process.clone(),
            usage: Usage::read(),
            reactors: watch.map(ReactorWatch::reactors).unwrap_or_default(),
            stalls: watch.map(ReactorWatch::stalls).unwrap_or_default(),
            shards,
        }
    }

    /// The shards that answered.
    pub(super) fn answered(&self) -> impl Iterator<Item = (&Shard, &ShardSnapshot)> {
        self.shards.iter().filter_map(|shard| Some((shard, shard.numbers.as_deref()?)))
    }
}

impl std::fmt::Debug for Scene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scene").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}
