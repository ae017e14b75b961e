//! Log lines about what can happen thousands of times a second: one a second and what, with the count of the others.

use std::cell::RefCell;
use std::fmt::Display;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

const EVERY: Duration = Duration::from_secs(1);

/// Rate-limits log lines by what they are about. One per shard.
#[derive(Default)]
pub(super) struct RareLog {
    last: RefCell<FxHashMap<&'static str, (Instant, u64)>>,
}

impl RareLog {
    pub(super) fn warn(&self, what: &'static str, why: &dyn Display) {
        if let Some(more) = self.admit(what) {
            tracing::warn!(more, "{what}: {why}");
        }
    }

    pub(super) fn error(&self, what: &'static str, why: &dyn Display) {
        if let Some(more) = self.admit(what) {
            tracing::error!(more, "{what}: {why}");
        }
    }

    /// How many lines were left out since the last one; `None` if this one is to be left out.
    pub(super) fn admit(&self, what: &'static str) -> Option<u64> {
        let mut last = self.last.borrow_mut();
        let now = Instant::now();
        match last.get_mut(what) {
            Some((at, left_out)) if now.duration_since(*at) < EVERY => {
                *left_out += 1;
                None
            }
            Some(entry) => {
                let left_out = entry.1;
                *entry = (now, 0);
                Some(left_out)
            }
            None => {
                last.insert(what, (now, 0));
                Some(0)
            }
        }
    }
}
