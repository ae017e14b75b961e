//! The knee: the highest rate that a broker bears before latencies leave the ground.
//!
//! A rate that is borne is doubled; between one that was borne and one that was not, the middle is tried, until the two are near. A rate that
//! fails is tried once more before it counts: one stall of the machine must not decide.

use serde::Serialize;

use crate::cli::{CommonOptions, SendOptions};
use crate::error::LoadError;
use crate::report::{Latency, Report, thousands};

/// The first rate unless another is given.
const RATE_FIRST: f64 = 1_000.0;
/// Rates below this are not tried.
const RATE_LEAST: f64 = 10.0;
/// Highest rate that is tried.
const RATE_MOST: f64 = 1e8;
/// Most tries: a search that takes longer is of no use.
const TRIES_MAX: usize = 60;
const STEP_SECONDS: f64 = 5.0;
const STEP_WARMUP_SECONDS: f64 = 1.0;
/// Below this part of the rate asked for, it was not borne.
const RATE_PART_MIN: f64 = 0.99;

/// What the search came to.
#[derive(Clone, Debug, Serialize)]
pub struct Knee {
    /// The bound on the 99th percentile.
    pub p99_bound_ms: f64,
    /// The highest rate that was borne, if one was.
    pub rate: Option<f64>,
    /// Every try in its order.
    pub tries: Vec<Try>,
}

/// One rate that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Try {
    /// Messages a second asked for.
    pub rate: f64,
    /// Messages a second that were sent.
    pub achieved: f64,
    /// Percentiles of the latency that is bounded.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Whether it was borne.
    pub borne: bool,
    /// Why not.
    pub reason: &'static str,
}

/// The search itself: told how each rate went, it says which one to try next.
#[derive(Clone, Debug)]
pub struct Search {
    precision: f64,
    next: f64,
    borne: Option<f64>,
    failed: Option<f64>,
    /// The rate to try failed once.
    doubted: bool,
}

impl Search {
    /// Begins at `first`; ends when the borne and the failed rate differ by no more than this part.
    #[must_use]
    pub fn new(first: f64, precision: f64) -> Self {
        let next = first.clamp(RATE_LEAST, RATE_MOST);
        Search { precision: precision.max(1e-3), next, borne: None, failed: None, doubted: false }
    }

    /// The next rate to try; `None` at the end.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        let near = match (self.borne, self.failed) {
            (Some(borne), Some(failed)) => failed <= borne * (1.0 + self.precision),
            (Some(borne), None) => borne >= RATE_MOST,
            (None, Some(failed)) => failed <= RATE_LEAST,
            (None, None) => false,
        };
        (!near).then_some(self.next)
    }

    /// How the rate went that was asked for.
    pub fn tell(&mut self, borne: bool) {
        if !borne && !std::mem::replace(&mut self.doubted, true) {
            return;
        }
        self.doubted = false;
        if borne {
            self.borne = Some(self.next);
        } else {
            self.failed = Some(self.next);
        }
        self.next = match (self.borne, self.failed) {
            // The middle by ratio.
            (Some(borne), Some(failed)) => (borne * failed).sqrt(),
            (Some(borne), None) => (borne * 2.0).min(RATE_MOST),
            (None, Some(failed)) => (failed / 2.0).max(RATE_LEAST),
            (None, None) => self.next,
        };
    }

    /// The highest rate that was borne.
    #[must_use]
    pub fn borne(&self) -> Option<f64> {
        self.borne
    }
}

/// Runs `run` at one rate after the other, from that of `send` on. The report is that of the highest rate that was borne, with the search in it.
///
/// # Errors
/// Those of a run.
pub fn find(
    common: &CommonOptions,
    send: &SendOptions,
    p99_bound_ms: f64,
    precision: f64,
    run: impl Fn(CommonOptions, SendOptions) -> Result<(Option<Latency>, Report), LoadError>,
) -> Result<Report, LoadError> {
    let mut search = Search::new(send.rate.unwrap_or(RATE_FIRST), precision);
    let step = CommonOptions {
        seconds: Some(common.seconds.unwrap_or(STEP_SECONDS)),
        warmup: Some(common.warmup.unwrap_or(STEP_WARMUP_SECONDS)),
        quiet: true,
        hdr_log: None,
        ..common.clone()
    };
    let (mut tries, mut best): (Vec<Try>, Option<Report>) = (Vec::new(), None);
    while let Some(rate) = search.next()
        && tries.len() < TRIES_MAX
    {
        let rate = rate.round();
        let send = SendOptions { rate: Some(rate), ..send.clone() };
        let (latency, report) = run(step.clone(), send)?;
        let tried = judge(rate, p99_bound_ms, latency, &report);
        if !common.quiet {
            eprintln!("{}", tried.line());
        }
        if tried.borne || best.is_none() {
            best = Some(report);
        }
        search.tell(tried.borne);
        tries.push(tried);
    }
    let mut report = best.ok_or(LoadError::Worker)?;
    report.set_knee(Knee { p99_bound_ms, rate: search.borne(), tries });
    Ok(report)
}

/// Why a rate is not the broker's failure.
pub(crate) const HARNESS: &str = "the harness was saturated";

fn judge(rate: f64, p99_bound_ms: f64, latency: Option<Latency>, report: &Report) -> Try {
    let achieved = report.send.as_ref().map_or(0.0, |side| side.messages_per_second);
    let (p50_us, p99_us) = latency.map_or((0.0, 0.0), |latency| (latency.p50_us, latency.p99_us));
    let reason = if report.saturated() {
        HARNESS
    } else if achieved < rate * RATE_PART_MIN {
        "the rate was not reached"
    } else if p99_us > p99_bound_ms * 1e3 {
        "p99 was above the bound"
    } else if !report.clean {
        "not all was acknowledged and received"
    } else {
        ""
    };
    Try { rate, achieved, p50_us, p99_us, borne: reason.is_empty(), reason }
}

impl Try {
    /// For people.
    #[must_use]
    pub fn line(&self) -> String {
        let verdict = if self.borne { "borne" } else { self.reason };
        format!(
            "{:>11} msg/s asked, {:>11} sent  p50 {:.2} p99 {:.2} ms  {verdict}",
            thousands(self.rate as u64),
            thousands(self.achieved.round() as u64),
            self.p50_us / 1e3,
            self.p99_us / 1e3,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a broker that bears rates up to `knee`, and fails by chance every so manieth try.
    fn search(first: f64, knee: f64, chance: usize) -> (Option<f64>, usize) {
        let (mut search, mut tries) = (Search::new(first, 0.05), 0);
        while let Some(rate) = search.next() {
            tries += 1;
            assert!(tries < TRIES_MAX, "no end");
            search.tell(rate <= knee && !(chance > 0 && tries % chance == 0));
        }
        (search.borne(), tries)
    }

    #[test]
    fn the_knee_is_found_from_below_and_from_above() {
        for knee in [1_234.0, 77_000.0, 900_000.0] {
            for first in [100.0, 1_000.0, 5_000_000.0] {
                let (found, tries) = search(first, knee, 0);
                let found = found.unwrap();
                assert!(found <= knee && found * 1.05 >= knee, "{found} for {knee}");
                assert!(tries < 40, "{tries}");
            }
        }
    }

    #[test]
    fn a_single_failure_by_chance_decides_nothing() {
        let (found, _) = search(1_000.0, 50_000.0, 5);
        assert!(found.is_some_and(|found| found * 1.05 >= 50_000.0), "{found:?}");
    }

    #[test]
    fn a_broker_that_bears_nothing_or_everything_ends_the_search() {
        assert_eq!(search(1_000.0, 1.0, 0).0, None);
        assert_eq!(search(1_000.0, 1e12, 0).0, Some(RATE_MOST));
    }
}
