//! What is shown and kept of each second of a run.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use crate::report::thousands;
use crate::tally::Live;
use crate::usage::ProcessUsage;

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
}

/// What one side did in a second.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SideSecond {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Error answers.
    pub errors: u64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl SideSecond {
    /// What is new since `total` was brought up to date, which happens on the way.
    pub fn read(live: &Live, total: &mut SideSecond) -> SideSecond {
        let now = [&live.messages, &live.bytes, &live.errors].map(|counter| counter.load(Relaxed));
        let [messages, bytes, errors] = now;
        let recent = live.take_recent();
        let micros = |ns: u64| ns as f64 / 1e3;
        let second = SideSecond {
            messages: messages - total.messages,
            bytes: bytes - total.bytes,
            errors: errors - total.errors,
            p50_us: micros(recent.value_at_quantile(0.5)),
            p99_us: micros(recent.value_at_quantile(0.99)),
            max_us: micros(recent.max()),
        };
        (total.messages, total.bytes, total.errors) = (messages, bytes, errors);
        second
    }

    fn line(&self) -> String {
        let errors = match self.errors {
            0 => String::new(),
            count => format!("  {} errors", thousands(count)),
        };
        format!(
            "{:>11} msg/s {:>7.1} MB/s  p50 {:.2} p99 {:.2} max {:.2} ms{errors}",
            thousands(self.messages),
            self.bytes as f64 / 1e6,
            self.p50_us / 1e3,
            self.p99_us / 1e3,
            self.max_us / 1e3,
        )
    }
}

impl Second {
    /// A second that ends `at` nanoseconds after the run's start.
    #[must_use]
    pub fn new(
        at: u64,
        warmup: bool,
        send: Option<SideSecond>,
        receive: Option<SideSecond>,
        broker: Option<ProcessUsage>,
    ) -> Self {
        Second {
            at: (at as f64 / 1e7).round() / 100.0,
            warmup,
            send,
            receive,
            broker_cpu_seconds: broker.map(|usage| usage.cpu_seconds),
            broker_rss_bytes: broker.map(|usage| usage.rss_bytes),
        }
    }

    /// Shows it on the standard error; on a terminal in place of the last one.
    pub fn print(&self, in_place: bool) {
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
        let warmup = if self.warmup { "  (warm-up)" } else { "" };
        let line = format!("{:>4.0} s  {}{memory}{warmup}", self.at, sides.join("  | "));
        let mut out = std::io::stderr().lock();
        // A progress line that can't be shown is not worth ending a run.
        let _ = if in_place { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }
}
