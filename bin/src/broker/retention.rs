//! Which segments go, and when: by age in the hours set for it, by how full the disk is, or because an administrator asked.
//!
//! Stock's rules: nothing but age counts below 75 % of the disk, and only in the hours of `delete_when`; above 75 % age counts
//! at any hour; above 85 % the oldest segments go whatever their age; above 90 % new messages are refused until it is less.
//! The last segment never goes, and at most ten go in one round. A clock that is set forward ages nothing: see [`super::steps`].

use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::retention::{Decision, RetentionRules, decide};

use super::Broker;
use super::clock::{boot_ms, local_hour};

/// How often the disk and the oldest segments are looked at (stock 4.9.8).
const ROUND: Duration = Duration::from_secs(10);
/// Rounds in which an administrator's request to delete expired segments holds (stock 4.9.8).
pub(super) const MANUAL_ROUNDS: u32 = 20;

impl Broker {
    /// Watches the disk until the broker stops.
    pub(super) async fn retain(self: Rc<Self>) {
        while !self.stopped() {
            self.retain_once().await;
            self.retention_asked.wait_at_most(ROUND).await;
        }
    }

    async fn retain_once(self: &Rc<Self>) {
        let disk = match self.shard.log().disk_space().await {
            Ok(disk) => disk,
            Err(error) => {
                self.rare_log.error("reading the disk's free space", &error);
                return;
            }
        };
        self.disk.set(Some(disk));
        let used_percent = disk.used_percent();
        let rules = self.tunables.borrow().retention.clone();
        self.note_disk(used_percent, &rules);
        let manual = self.manual_rounds.get();
        self.manual_rounds.set(manual.saturating_sub(1));
        let now_ms = self.clock.now_ms();
        let forward_ms = self.steps.borrow_mut().look(now_ms, boot_ms());
        if forward_ms > 0 {
            tracing::warn!(
                forward_ms,
                "the clock was set forward: until the next start, segments written before are taken to be younger by as much"
            );
        }
        let steps = self.steps.borrow().clone();
        for _ in 0..rules.segments_a_round {
            let mut segments = self.shard.log().segments();
            for segment in &mut segments {
                segment.modified_ms = steps.age_from(segment.modified_ms);
            }
            let decision =
                decide(&rules, &segments, used_percent, now_ms, local_hour(now_ms), manual > 0);
            let Decision::Delete { start, why } = decision else { return };
            tracing::info!(segment = start, why, used_percent, "deleting the oldest segment");
            if let Err(error) = self.shard.delete_oldest().await {
                self.rare_log.error("deleting a segment", &error);
                return;
            }
        }
    }

    /// Says once per change that the disk is too full, or no longer is.
    fn note_disk(&self, used_percent: u8, rules: &RetentionRules) {
        let full = used_percent > rules.full_percent;
        let before = self.shard.set_disk_used(used_percent, full);
        if full && !before {
            tracing::error!(
                used_percent,
                limit = rules.full_percent,
                "the disk is too full: new messages are refused until space is freed, reads go on"
            );
        } else if before && !full {
            tracing::info!(used_percent, "the disk has room again: new messages are taken");
        }
    }
}
