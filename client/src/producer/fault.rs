//! Latency faults: brokers that failed or were slow get no messages for a while, as long as there are others.
//!
//! The table is that of stock 5.3.3, whose pauses are short. A broker that could not be reached stays out until a probe reaches it:
//! any answer of it does, whatever its code.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Settings of latency faults. Switched on by [`crate::ProducerBuilder::latency_fault`].
#[derive(Clone, Debug)]
pub struct LatencyFault {
    /// From which time of a send on a broker is left out for how long; ascending.
    pub levels: Vec<(Duration, Duration)>,
    /// How slow a failed send counts.
    pub failure_counts_as: Duration,
    /// Time between probes of brokers that could not be reached.
    pub probe_interval: Duration,
    /// Longest wait for a probe's answer.
    pub probe_timeout: Duration,
}

impl Default for LatencyFault {
    /// The numbers of stock 5.3.3.
    fn default() -> Self {
        let ms = Duration::from_millis;
        let level = |from, out| (ms(from), ms(out));
        LatencyFault {
            levels: vec![
                level(50, 0),
                level(100, 0),
                level(550, 2_000),
                level(1_800, 5_000),
                level(3_000, 6_000),
                level(5_000, 10_000),
                level(15_000, 30_000),
            ],
            failure_counts_as: ms(10_000),
            probe_interval: ms(2_000),
            probe_timeout: ms(200),
        }
    }
}

impl LatencyFault {
    fn pause(&self, latency: Duration) -> Duration {
        let level = self.levels.iter().rev().find(|(from, _)| latency >= *from);
        level.map_or(Duration::ZERO, |(_, out)| *out)
    }
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    until: Instant,
    reachable: bool,
}

/// Brokers that are left out, by name. Brokers without a fault are not in it.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) settings: LatencyFault,
    table: Mutex<HashMap<String, Fault>>,
}

impl Faults {
    pub(super) fn new(settings: LatencyFault) -> Faults {
        Faults { settings, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Fault>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A broker answered a send.
    pub(super) fn answered(&self, broker: &str, latency: Duration, now: Instant) {
        self.record(broker, self.settings.pause(latency), true, now);
    }

    /// A send failed: the broker was not reached, or it refused.
    pub(super) fn failed(&self, broker: &str, unreachable: bool, now: Instant) {
        let pause = self.settings.pause(self.settings.failure_counts_as);
        self.record(broker, pause, !unreachable, now);
    }

    /// A pause is only ever made longer.
    fn record(&self, broker: &str, pause: Duration, reachable: bool, now: Instant) {
        let mut table = self.table();
        let until = now + pause;
        match table.get_mut(broker) {
            Some(fault) => {
                fault.until = fault.until.max(until);
                fault.reachable = reachable;
            }
            None if pause.is_zero() && reachable => return,
            None => {
                table.insert(broker.to_owned(), Fault { until, reachable });
            }
        }
        if table.get(broker).is_some_and(|fault| fault.reachable && fault.until <= now) {
            table.remove(broker);
        }
    }

    pub(super) fn is_available(&self, broker: &str, now: Instant) -> bool {
        self.table().get(broker).is_none_or(|fault| fault.reachable && fault.until <= now)
    }

    pub(super) fn is_reachable(&self, broker: &str) -> bool {
        self.table().get(broker).is_none_or(|fault| fault.reachable)
    }

    /// Brokers that nobody has reached since they failed.
    pub(super) fn unreachable(&self) -> Vec<String> {
        let table = self.table();
        table.iter().filter(|(_, fault)| !fault.reachable).map(|(name, _)| name.clone()).collect()
    }

    /// A probe reached it, or it is in no route any more: it has no fault.
    pub(super) fn clear(&self, broker: &str) {
        self.table().remove(broker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_those_of_the_table_and_only_get_longer() {
        let faults = Faults::new(LatencyFault::default());
        let now = Instant::now();
        let at = |secs: f64| now + Duration::from_secs_f64(secs);
        faults.answered("a", Duration::from_millis(549), now);
        assert!(faults.is_available("a", now));
        faults.answered("a", Duration::from_millis(3_100), now);
        assert!(!faults.is_available("a", at(5.9)) && faults.is_available("a", at(6.1)));
        // A fast answer in between does not shorten it.
        faults.answered("a", Duration::from_millis(1), at(1.0));
        assert!(!faults.is_available("a", at(5.9)));
    }

    #[test]
    fn a_refusal_isolates_for_seconds_and_not_for_life() {
        let faults = Faults::new(LatencyFault::default());
        let now = Instant::now();
        faults.failed("a", false, now);
        assert!(faults.is_reachable("a") && !faults.is_available("a", now));
        assert!(faults.is_available("a", now + Duration::from_secs(11)));
        assert!(faults.unreachable().is_empty());
    }

    #[test]
    fn an_unreachable_broker_returns_by_a_probe_or_an_answer() {
        let faults = Faults::new(LatencyFault::default());
        let now = Instant::now();
        let later = now + Duration::from_secs(3600);
        faults.failed("a", true, now);
        assert!(!faults.is_available("a", later));
        assert_eq!(faults.unreachable(), ["a"]);
        faults.clear("a");
        assert!(faults.is_available("a", now));
        faults.failed("a", true, now);
        faults.answered("a", Duration::ZERO, later);
        assert!(faults.is_available("a", later));
    }
}
