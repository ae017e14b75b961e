//! Whether requests are gathered, decided by what it brings. Pure: samples of counters go in, a decision comes out.
//!
//! A reactor that handles each request when it comes is as fast as it can be, and pays for every one of them with a turn, a write
//! and a wake-up. A reactor that looks at its connections once in an interval pays for all of them once, and each
//! waits half of the interval on average. For senders who do not wait for answers that costs nothing but this wait; those who send
//! the next request when they have the answer to the last one would send less. A server cannot see which it has, so it tries:
//!
//! ```text
//!   Direct ──busy, many requests──► Trial ──as much work, for much less processor time──►──── Gathering
//!     ▲                               │                                                        │    ▲
//!     └───────── it did not pay ──────┘        few requests ──► Direct   now and then ──► Probe┘    │
//!     ▲                                                                                    │        │
//!     └──────────────────────── more work was done without ────────────────────────────────┴─ not ──┘
//! ```
//!
//! What did not pay is not tried again for a while, each time for twice as long; a load that is another one is not kept waiting for it.

/// Windows are compared when so many requests were counted, so that chance is small ...
const WINDOW_REQUESTS: f64 = 3_600.0;
/// ... or they took this long; and looked at in steps of this.
const WINDOW_US_MAX: u64 = 400_000;
const WINDOW_US: u64 = 50_000;
/// A trial that is plainly worse ends after this.
const EARLY_US: u64 = 8_000;
/// What is under way when the way of working changes belongs to neither.
const SETTLE_US: u64 = 4_000;
/// Share of a processor below which there is nothing worth saving.
const BUSY: f64 = 0.3;
/// Requests of one interval from which gathering is tried, and below which it ends.
const ENTER_REQUESTS: f64 = 8.0;
const LEAVE_REQUESTS: f64 = 3.0;
/// Requests of one interval below which a trial has lost its load: it says nothing.
const GONE_REQUESTS: f64 = 0.5;
/// Requests that a receive brings by itself from which there is nothing to gain.
const FULL_RECEIVES: f64 = 4.0;
/// Share of the work that a trial must keep ...
const KEEP: f64 = 0.93;
/// ... and with which it ends early.
const KEEP_EARLY: f64 = 0.6;
/// Processor time for the same work, as a share of what it was, that a trial must reach.
const WORTH: f64 = 0.75;
/// First and longest pause after something that did not pay.
const PAUSE_US: u64 = 1_000_000;
const PAUSE_US_MAX: u64 = 60_000_000;
/// Two loads are different ones if the work of one is more than so many times the other's, or the requests.
const OTHER_LOAD: f64 = 1.25;
/// First and longest time between two probes.
const PROBE_AFTER_US: u64 = 500_000;
const PROBE_AFTER_US_MAX: u64 = 8_000_000;

/// Counters at one moment; all only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at_us: u64,
    /// Requests handled.
    pub(crate) requests: u64,
    /// What clients came for: see [`Service::work_done`](super::Service::work_done).
    pub(crate) work: u64,
    /// Receives that brought them.
    pub(crate) receives: u64,
    /// Processor time of the reactor's thread.
    pub(crate) cpu_us: u64,
}

/// What a window between two samples was like.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    requests: f64,
    requests_per_us: f64,
    work_per_us: f64,
    per_receive: f64,
    busy: f64,
    cpu_per_work: f64,
}

impl Window {
    fn between(from: &Sample, to: &Sample) -> Window {
        let grown = |from: u64, to: u64| to.saturating_sub(from) as f64;
        let time = grown(from.at_us, to.at_us).max(1.0);
        let requests = grown(from.requests, to.requests);
        let work = grown(from.work, to.work);
        let cpu = grown(from.cpu_us, to.cpu_us);
        Window {
            requests,
            requests_per_us: requests / time,
            work_per_us: work / time,
            per_receive: requests / grown(from.receives, to.receives).max(1.0),
            busy: cpu / time,
            cpu_per_work: cpu / work.max(1.0),
        }
    }

    /// Whether this may well be the load that `other` was.
    fn is_like(&self, other: &Window) -> bool {
        let like = |a: f64, b: f64| a <= OTHER_LOAD * b && b <= OTHER_LOAD * a;
        like(self.work_per_us, other.work_per_us)
            && like(self.requests_per_us, other.requests_per_us)
    }

    /// How far chance alone may take the ratio of two rates.
    fn noise(&self, other: &Window) -> f64 {
        2.0 / self.requests.min(other.requests).max(1.0).sqrt()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Direct,
    /// Gathering begins; what comes out of it is not counted yet.
    TrialSettles,
    /// `early`: the first look.
    Trial {
        early: bool,
    },
    Gathering,
    ProbeSettles,
    Probe,
}

/// Decides, sample by sample.
#[derive(Debug)]
pub(crate) struct Governor {
    interval_us: u64,
    phase: Phase,
    /// Where the running window began.
    from: Sample,
    next_us: u64,
    /// The last windows without gathering and with it.
    direct: Window,
    gathered: Window,
    /// What gathering did not pay for, without gathering, and when that was found.
    failed: Window,
    failed_us: u64,
    pause_us: u64,
    probe_after_us: u64,
    probe_us: u64,
}

impl Governor {
    /// `interval_us`: time between two looks at the connections while requests are gathered.
    pub(crate) fn new(interval_us: u64) -> Self {
        Governor {
            interval_us,
            phase: Phase::Direct,
            from: Sample::default(),
            next_us: WINDOW_US,
            direct: Window::default(),
            gathered: Window::default(),
            failed: Window::default(),
            failed_us: 0,
            pause_us: 0,
            probe_after_us: PROBE_AFTER_US,
            probe_us: 0,
        }
    }

    /// Decides nothing: gathers for ever, or never.
    pub(crate) fn fixed(gathers: bool) -> Self {
        let phase = if gathers { Phase::Gathering } else { Phase::Direct };
        Governor { phase, next_us: u64::MAX, ..Governor::new(0) }
    }

    /// Whether requests are to be gathered now.
    pub(crate) fn gathers(&self) -> bool {
        matches!(self.phase, Phase::TrialSettles | Phase::Trial { .. } | Phase::Gathering)
    }

    /// Whether [`step`](Self::step) waits for a sample.
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.next_us
    }

    /// Takes a sample and decides anew.
    pub(crate) fn step(&mut self, now: Sample) {
        let window = Window::between(&self.from, &now);
        let settles = matches!(self.phase, Phase::TrialSettles | Phase::ProbeSettles);
        let early = self.phase == Phase::Trial { early: true };
        if !settles && !early && !self.is_full(&window, now) {
            self.next_us = now.at_us + WINDOW_US;
            return;
        }
        match self.phase {
            Phase::Direct => {
                if self.is_worth_a_trial(&window) && now.at_us >= self.retry_us(&window) {
                    self.direct = window;
                    self.enter(Phase::TrialSettles, now, SETTLE_US);
                } else {
                    self.enter(Phase::Direct, now, WINDOW_US);
                }
            }
            Phase::TrialSettles => self.enter(Phase::Trial { early: true }, now, EARLY_US),
            Phase::Trial { .. } if self.per_interval(&window) < GONE_REQUESTS => {
                self.enter(Phase::Direct, now, WINDOW_US);
            }
            Phase::Trial { early: true } => {
                let least = KEEP_EARLY - window.noise(&self.direct);
                if window.work_per_us < least * self.direct.work_per_us {
                    self.fail(self.direct, now);
                } else {
                    self.phase = Phase::Trial { early: false };
                    self.next_us = now.at_us + WINDOW_US;
                }
            }
            Phase::Trial { early: false } => {
                if self.pays(&window) {
                    self.pause_us = 0;
                    self.probe_after_us = PROBE_AFTER_US;
                    self.gather_on(window, now);
                } else {
                    self.fail(self.direct, now);
                }
            }
            Phase::Gathering => {
                if self.per_interval(&window) < LEAVE_REQUESTS {
                    self.enter(Phase::Direct, now, WINDOW_US);
                } else if now.at_us >= self.probe_us {
                    self.gathered = window;
                    self.enter(Phase::ProbeSettles, now, SETTLE_US);
                } else {
                    self.enter(Phase::Gathering, now, WINDOW_US);
                }
            }
            Phase::ProbeSettles => self.enter(Phase::Probe, now, WINDOW_US),
            Phase::Probe => {
                let more = 2.0 - KEEP + window.noise(&self.gathered);
                if self.per_interval(&window) < ENTER_REQUESTS {
                    self.enter(Phase::Direct, now, WINDOW_US);
                } else if window.work_per_us > more * self.gathered.work_per_us {
                    self.fail(window, now);
                } else {
                    self.probe_after_us = (2 * self.probe_after_us).min(PROBE_AFTER_US_MAX);
                    let gathered = self.gathered;
                    self.gather_on(gathered, now);
                }
            }
        }
    }

    fn is_full(&self, window: &Window, now: Sample) -> bool {
        window.requests >= WINDOW_REQUESTS || now.at_us >= self.from.at_us + WINDOW_US_MAX
    }

    fn is_worth_a_trial(&self, window: &Window) -> bool {
        window.busy >= BUSY
            && window.per_receive < FULL_RECEIVES
            && window.work_per_us > 0.0
            && self.per_interval(window) >= ENTER_REQUESTS
    }

    fn pays(&self, window: &Window) -> bool {
        window.work_per_us >= (KEEP - window.noise(&self.direct)) * self.direct.work_per_us
            && window.cpu_per_work <= WORTH * self.direct.cpu_per_work
    }

    fn per_interval(&self, window: &Window) -> f64 {
        window.requests_per_us * self.interval_us as f64
    }

    fn enter(&mut self, phase: Phase, now: Sample, time_us: u64) {
        self.phase = phase;
        self.from = now;
        self.next_us = now.at_us + time_us;
    }

    fn gather_on(&mut self, gathered: Window, now: Sample) {
        self.gathered = gathered;
        self.probe_us = now.at_us + self.probe_after_us;
        self.enter(Phase::Gathering, now, WINDOW_US);
    }

    /// When a load may be tried: one that failed waits ever longer.
    fn retry_us(&self, load: &Window) -> u64 {
        let pause_us =
            if load.is_like(&self.failed) { self.pause_us } else { PAUSE_US.min(self.pause_us) };
        self.failed_us + pause_us
    }

    /// Gathering did not pay for `load`.
    fn fail(&mut self, load: Window, now: Sample) {
        let again = load.is_like(&self.failed);
        self.pause_us =
            if again { (2 * self.pause_us).clamp(PAUSE_US, PAUSE_US_MAX) } else { PAUSE_US };
        (self.failed, self.failed_us) = (load, now.at_us);
        self.enter(Phase::Direct, now, WINDOW_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of a millisecond and its cost, gathered or not.
    struct Load {
        direct: (f64, f64),
        gathered: (f64, f64),
        per_receive: f64,
    }

    struct Ran {
        work: f64,
        gathered_ms: u64,
        trials: u32,
    }

    /// Drives a governor of an interval of 1 ms for `ms` milliseconds from `start_ms`.
    fn run(governor: &mut Governor, load: &Load, start_ms: u64, ms: u64) -> Ran {
        let mut ran = Ran { work: 0.0, gathered_ms: 0, trials: 0 };
        let (mut requests, mut work, mut receives, mut cpu) = (0.0, 0.0, 0.0, 0.0);
        let before = governor.from;
        for at_ms in start_ms + 1..=start_ms + ms {
            let gathers = governor.gathers();
            let (rate, cost) = if gathers { load.gathered } else { load.direct };
            ran.gathered_ms += u64::from(gathers);
            work += rate;
            // Pulls that waited bring more messages each.
            requests += if gathers { rate / 1.5 } else { rate };
            receives += rate / load.per_receive;
            cpu += rate * cost;
            let now = Sample {
                at_us: at_ms * 1_000,
                requests: before.requests + requests as u64,
                work: before.work + work as u64,
                receives: before.receives + receives as u64,
                cpu_us: before.cpu_us + cpu as u64,
            };
            if governor.is_due(now.at_us) {
                governor.step(now);
            }
            ran.trials += u32::from(!gathers && governor.gathers());
        }
        ran.work = work;
        ran
    }

    #[test]
    fn senders_that_do_not_wait_are_gathered_and_stay_so() {
        let load = Load { direct: (75.0, 12.0), gathered: (75.0, 4.0), per_receive: 1.2 };
        let mut governor = Governor::new(1_000);
        run(&mut governor, &load, 0, 500);
        assert!(governor.gathers());
        let ran = run(&mut governor, &load, 500, 60_000);
        assert!(ran.gathered_ms > 58_000, "{} of 60,000 ms", ran.gathered_ms);
    }

    #[test]
    fn senders_that_wait_lose_next_to_nothing() {
        // 16 connections with one request each under way: gathered they get one answer in a millisecond.
        let load = Load { direct: (60.0, 16.0), gathered: (15.0, 8.0), per_receive: 1.0 };
        let mut governor = Governor::new(1_000);
        let ran = run(&mut governor, &load, 0, 60_000);
        assert!(ran.work > 0.995 * 60.0 * 60_000.0, "{} messages", ran.work);
        assert!((2..=8).contains(&ran.trials), "{} trials", ran.trials);
    }

    #[test]
    fn a_tenth_of_the_work_is_not_given_for_processor_time() {
        let load = Load { direct: (12.0, 60.0), gathered: (10.0, 20.0), per_receive: 1.0 };
        let mut governor = Governor::new(1_000);
        let ran = run(&mut governor, &load, 0, 600_000);
        assert!(ran.work > 0.99 * 12.0 * 600_000.0, "{} messages", ran.work);
    }

    #[test]
    fn one_load_does_not_wait_for_what_another_did_not_pay_for() {
        let waits = Load { direct: (60.0, 16.0), gathered: (15.0, 8.0), per_receive: 1.0 };
        let open = Load { direct: (80.0, 12.0), gathered: (80.0, 4.0), per_receive: 1.2 };
        let mut governor = Governor::new(1_000);
        run(&mut governor, &waits, 0, 300_000);
        run(&mut governor, &open, 300_000, 1_000);
        assert!(governor.gathers());
    }

    #[test]
    fn bursts_that_end_within_a_trial_cost_later_loads_nothing() {
        let load = Load { direct: (75.0, 12.0), gathered: (75.0, 4.0), per_receive: 1.2 };
        let nothing = Load { direct: (0.0, 0.0), gathered: (0.0, 0.0), per_receive: 1.0 };
        let mut governor = Governor::new(1_000);
        for burst in 0..50 {
            run(&mut governor, &load, burst * 2_000, 55);
            run(&mut governor, &nothing, burst * 2_000 + 55, 1_945);
        }
        run(&mut governor, &load, 100_000, 1_000);
        assert!(governor.gathers());
    }

    #[test]
    fn what_saves_no_processor_time_is_left() {
        let load = Load { direct: (130.0, 7.5), gathered: (130.0, 7.0), per_receive: 1.0 };
        let mut governor = Governor::new(1_000);
        let ran = run(&mut governor, &load, 0, 60_000);
        assert!(ran.gathered_ms < 1_000, "{} ms", ran.gathered_ms);
    }

    #[test]
    fn few_requests_full_receives_and_idle_reactors_are_not_even_tried() {
        let few = Load { direct: (6.7, 80.0), gathered: (1.0, 80.0), per_receive: 1.0 };
        let full = Load { direct: (600.0, 1.6), gathered: (600.0, 1.0), per_receive: 60.0 };
        let idle = Load { direct: (20.0, 10.0), gathered: (20.0, 1.0), per_receive: 1.0 };
        for load in [few, full, idle] {
            let mut governor = Governor::new(1_000);
            let ran = run(&mut governor, &load, 0, 10_000);
            assert_eq!(ran.trials, 0);
        }
    }

    #[test]
    fn a_fixed_one_stays_as_it_is() {
        let load = Load { direct: (75.0, 12.0), gathered: (75.0, 4.0), per_receive: 1.2 };
        assert_eq!(run(&mut Governor::fixed(false), &load, 0, 10_000).gathered_ms, 0);
        let none = Load { direct: (0.0, 0.0), gathered: (0.0, 0.0), per_receive: 1.0 };
        assert_eq!(run(&mut Governor::fixed(true), &none, 0, 10_000).gathered_ms, 10_000);
    }

    #[test]
    fn senders_that_begin_to_wait_are_found_out() {
        let open = Load { direct: (40.0, 15.0), gathered: (40.0, 5.0), per_receive: 1.0 };
        let waits = Load { direct: (60.0, 15.0), gathered: (40.0, 5.0), per_receive: 1.0 };
        let mut governor = Governor::new(1_000);
        run(&mut governor, &open, 0, 20_000);
        assert!(governor.gathers());
        let ran = run(&mut governor, &waits, 20_000, 60_000);
        assert!(ran.gathered_ms < 6_000, "{} ms", ran.gathered_ms);
    }

    #[test]
    fn gathering_ends_with_the_load_and_comes_back_with_it() {
        let load = Load { direct: (75.0, 12.0), gathered: (75.0, 4.0), per_receive: 1.2 };
        let quiet = Load { direct: (0.1, 50.0), gathered: (0.1, 50.0), per_receive: 1.0 };
        let mut governor = Governor::new(1_000);
        for round in 0..5 {
            run(&mut governor, &load, round * 2_000, 1_000);
            assert!(governor.gathers());
            run(&mut governor, &quiet, round * 2_000 + 1_000, 1_000);
            assert!(!governor.gathers());
        }
    }
}
