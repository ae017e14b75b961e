//! What is shown and kept of each second of a run.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::report::thousands;
use crate::tally::Live;
use crate::usage::ProcessUsage;

/// Cells of the progress bar.
const BAR_CELLS: usize = 40;

/// One second of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Second {
    /// Seconds since the run's start, at its end.
    pub at: f64,
    /// It belongs to the warm-up.
    pub warmup: bool,
    /// What was sent.
    pub send: Option<SideSecond>,
    /// What was received.
    pub receive: Option<SideSecond>,
    /// CPU seconds of the broker since it began.
    pub broker_cpu_seconds: Option<f64>,
    /// Resident bytes of the broker.
    pub broker_rss_bytes: Option<u64>,
    /// CPU seconds of the harness since it began.
    pub harness_cpu_seconds: f64,
    /// Bytes that the slaves were behind.
    pub replication_lag_bytes: Option<u64>,
}

/// What one side did in a second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SideSecond {
    /// How long it was: the last one of a run is shorter.
    pub seconds: f64,
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Error answers.
    pub errors: u64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl SideSecond {
    /// What is new since `total` was brought up to date `length_ns` ago, which happens on the way; and its latencies.
    pub fn read(
        live: &Live,
        total: &mut SideSecond,
        length_ns: u64,
    ) -> (SideSecond, Histogram<u64>) {
        let now = [&live.messages, &live.bytes, &live.errors].map(|counter| counter.load(Relaxed));
        let [messages, bytes, errors] = now;
        let recent = live.take_recent();
        let at = |quantile| recent.value_at_quantile(quantile) as f64 / 1e3;
        let second = SideSecond {
            seconds: length_ns as f64 / 1e9,
            messages: messages - total.messages,
            bytes: bytes - total.bytes,
            errors: errors - total.errors,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: recent.max() as f64 / 1e3,
        };
        (total.messages, total.bytes, total.errors) = (messages, bytes, errors);
        (second, recent)
    }

    fn line(&self) -> String {
        let errors = match self.errors {
            0 => String::new(),
            count => format!("  {} errors", thousands(count)),
        };
        let per_second = |count: u64| count as f64 / self.seconds.max(1e-3);
        format!(
            "{:>11} msg/s {:>7.1} MB/s  p50 {:.2} p99 {:.2} max {:.2} ms{errors}",
            thousands(per_second(self.messages) as u64),
            per_second(self.bytes) / 1e6,
            self.p50_us / 1e3,
            self.p99_us / 1e3,
            self.max_us / 1e3,
        )
    }
}

impl Second {
    /// With what the broker's process used.
    #[must_use]
    pub fn with_broker(self, broker: Option<ProcessUsage>) -> Self {
        Second {
            broker_cpu_seconds: broker.map(|usage| usage.cpu_seconds),
            broker_rss_bytes: broker.map(|usage| usage.rss_bytes),
            ..self
        }
    }

    /// Shows it on the standard error, above a bar if a part of the run is given.
    pub fn print(&self, part: Option<f64>) {
        let line = self.line();
        let mut out = std::io::stderr().lock();
        // A progress line that can't be shown is not worth ending a run.
        let _ = match part {
            Some(part) => write!(out, "\r\x1b[K{line}\n{}", bar(part)),
            None => writeln!(out, "{line}"),
        };
        let _ = out.flush();
    }

    fn line(&self) -> String {
        let sides = [("sent", &self.send), ("received", &self.receive)];
        let both = self.send.is_some() && self.receive.is_some();
        let sides = sides.iter().filter_map(|(name, side)| {
            let line = side.as_ref()?.line();
            Some(if both { format!("{name}{line}") } else { line })
        });
        let sides: Vec<_> = sides.collect();
        let memory = match self.broker_rss_bytes {
            Some(bytes) => format!("  broker {} MiB", bytes >> 20),
            None => String::new(),
        };
        let lag = match self.replication_lag_bytes {
            Some(bytes) => format!("  slaves {:.1} MB behind", bytes as f64 / 1e6),
            None => String::new(),
        };
        let warmup = if self.warmup { "  (warm-up)" } else { "" };
        format!("{:>5.0} s  {}{memory}{lag}{warmup}", self.at, sides.join("  | "))
    }
}

fn bar(part: f64) -> String {
    let part = part.clamp(0.0, 1.0);
    let full = (part * BAR_CELLS as f64) as usize;
    format!("[{}{}] {:>3.0} %", "#".repeat(full), ".".repeat(BAR_CELLS - full), part * 100.0)
}

/// Takes the bar away.
pub fn clear_bar() {
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "\r\x1b[K");
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_from_none_to_all_and_no_further() {
        let cells = |part| bar(part).matches('#').count();
        assert_eq!(
            [-1.0, 0.0, 0.5, 1.0, 7.0].map(cells),
            [0, 0, BAR_CELLS / 2, BAR_CELLS, BAR_CELLS]
        );
    }

    #[test]
    fn the_last_part_of_a_second_is_shown_as_a_rate() {
        let live = Live::default();
        live.messages.store(500, Relaxed);
        let (second, _) = SideSecond::read(&live, &mut SideSecond::default(), 250_000_000);
        assert!(second.line().trim_start().starts_with("2,000 msg/s"), "{}", second.line());
    }
}
