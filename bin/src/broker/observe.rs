//! What a shard tells those who watch it: its numbers, and what keeps it from taking messages. Runs when somebody asks, and never
//! on the way of a request.

use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::state::delay::{SCHEDULE_TOPIC, level_to_queue};

use super::lag::SURVEY_WAIT;
use super::{Broker, Phase};
use crate::metrics::{Ask, ConnectionCounts, DelayBacklog, ShardSnapshot, TopicCounts};

/// What opening the store told, kept for those who ask.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Opening {
    pub(super) took: Duration,
    pub(super) scanned_bytes: u64,
    pub(super) unclean: bool,
}

impl Broker {
    /// Answers one question of the metrics thread.
    pub(super) async fn tell(self: &Rc<Self>, ask: Ask) {
        match ask {
            Ask::Readiness(to) => drop(to.send(self.unready())),
            // Whoever asked may have given up while this reactor did not turn.
            Ask::Snapshot(to) if to.is_closed() => {}
            Ask::Snapshot(to) => {
                self.lags.freshen(SURVEY_WAIT).await;
                drop(to.send(Box::new(self.snapshot())));
            }
        }
    }

    /// Why this shard takes no messages now, or is not found by clients; nothing if it does and is.
    fn unready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.phase.get() != Phase::Serving || self.leaving.get() {
            reasons.push("stopping".to_owned());
        }
        let namesrvs = self.registrations.registered();
        if !namesrvs.is_empty() && namesrvs.iter().all(|(_, registered)| !registered) {
            let tried: Vec<String> = namesrvs.into_iter().map(|(addr, _)| addr).collect();
            reasons.push(format!("registered at no name server, tried {}", tried.join(", ")));
        }
        if let Some(failure) = self.shard.log().failed() {
            reasons.push(format!("takes no messages: {failure}"));
        }
        if self.shard.disk_full() {
            let used = self.shard.disk_used_percent();
            reasons.push(format!("takes no messages: the disk is too full ({used} % used)"));
        }
        if !self.writable() {
            reasons.push("takes no messages: brokerPermission does not allow writing".to_owned());
        }
        reasons
    }

    /// A copy of every counter.
    fn snapshot(&self) -> ShardSnapshot {
        let mut snapshot = ShardSnapshot {
            now_ms: self.clock.now_ms(),
            topics_known: self.topics.borrow().len() as u64,
            waiting_sends: self.acks.waiting() as u64,
            waiting_pulls: self.waiters.borrow().len() as u64,
            slow_requests: self.slow_tasks.get() as u64,
            slow_sends: self.acks.slow_count(),
            send_answers: self.acks.answers().map(|(l, code, n)| (l.name(), code, n)).collect(),
            connections: self.connection_counts(),
            namesrvs: self.registrations.registered(),
            lags: self.lags.told(),
            lags_left_out: self.lags.left_out(),
            delays: self.delay_backlogs(),
            open_seconds: self.opening.took.as_secs_f64(),
            scanned_bytes: self.opening.scanned_bytes,
            unclean: self.opening.unclean,
            ..ShardSnapshot::default()
        };
        self.add_ha(&mut snapshot);
        self.add_meters(&mut snapshot);
        self.add_log(&mut snapshot);
        snapshot
    }

    fn add_meters(&self, snapshot: &mut ShardSnapshot) {
        let counters = self.stats.store.counters();
        (snapshot.pulls_found, snapshot.pulls_empty) = (counters.gets_found, counters.gets_missed);
        let meters = &self.stats.meters;
        meters.each_topic(|topic, meter| {
            snapshot.topics.push(TopicCounts {
                topic: topic.map(str::to_owned),
                messages_in: meter.messages_in.get(),
                bytes_in: meter.bytes_in.get(),
                messages_out: meter.messages_out.get(),
                bytes_out: meter.bytes_out.get(),
            });
        });
        snapshot.send_times = meters.send_times.snapshot();
        snapshot.cold_pull_times = meters.cold_pull_times.snapshot();
        (snapshot.requests, snapshot.requests_other) = meters.requests();
        snapshot.refusals = meters.refusals();
        snapshot.refused = meters.refused_by_reason();
    }

    fn add_log(&self, snapshot: &mut ShardSnapshot) {
        let log = self.shard.log();
        let (stats, offsets) = (log.stats(), log.offsets());
        snapshot.log_times = log.times();
        snapshot.log_written_bytes = stats.written_bytes;
        snapshot.unwritten_bytes = log.unwritten_bytes();
        snapshot.unflushed_bytes = offsets.written.saturating_sub(offsets.durable);
        snapshot.frontier_bytes = log.zeroed_ahead_bytes();
        snapshot.log_min_offset = log.min_offset();
        snapshot.log_max_offset = offsets.visible;
        let dispatched = self.shard.dispatched();
        snapshot.dispatch_behind_bytes = offsets.visible.saturating_sub(dispatched);
        snapshot.segments = log.segments().len() as u64;
        snapshot.log_failed = log.failed().is_some();
        snapshot.disk = self.disk.get().map(|disk| (disk.available, disk.total));
        snapshot.disk_full = self.shard.disk_full();
        snapshot.hot_bytes = stats.hot_bytes;
        snapshot.cache_bytes = stats.cache.bytes;
        snapshot.cache_hits = stats.cache.hits;
        snapshot.cache_misses = stats.cache.misses;
        snapshot.block_budget_bytes = self.config.block_budget_bytes;
        snapshot.cache_budget_bytes = self.config.cache_budget_bytes;
        snapshot.unwritten_budget_bytes = self.config.unwritten_budget_bytes;
    }

    fn connection_counts(&self) -> ConnectionCounts {
        let clients = self.clients.borrow();
        ConnectionCounts {
            server: self.server().map(|server| server.stats()).unwrap_or_default(),
            consumer_groups: clients.consumers().count() as u64,
            producer_groups: clients.producers().count() as u64,
        }
    }

    fn delay_backlogs(&self) -> Vec<DelayBacklog> {
        let offsets = self.delay_offsets.borrow();
        let levels = 1..=self.delay_levels.level_max();
        let backlog = |level| {
            let queue = self.shard.existing_queue(SCHEDULE_TOPIC, level_to_queue(level))?;
            let from = offsets.get(level).max(queue.min_offset());
            let messages = u64::try_from(queue.max_offset() - from).unwrap_or(0);
            Some(DelayBacklog { level, messages })
        };
        levels.filter_map(backlog).collect()
    }
}
