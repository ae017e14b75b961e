//! The workers of a run and the thread that watches them: progress, samples of the processes, the end.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use crate::clock::{Clock, SECOND_NS, Span};
use crate::error::LoadError;
use crate::hdr_log::HdrLog;
use crate::lag::LagWatch;
use crate::progress::{Second, SideSecond, clear_bar};
use crate::tally::{Live, Tally};
use crate::usage::{ProcessUsage, own_cpu_seconds, processes};

/// What a worker does for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends.
    Producer,
    /// Receives.
    Consumer,
}

/// What a worker is to do.
pub struct Job {
    /// Its role.
    pub role: Role,
    /// The work itself.
    pub work: Box<dyn FnOnce() -> Result<Tally, LoadError> + Send>,
}

/// Counters of the run that workers add to.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    /// Of the producers, if there are any.
    pub send: Option<Arc<Live>>,
    /// Of the consumers, if there are any.
    pub receive: Option<Arc<Live>>,
}

/// CPU time and memory at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// On the run's clock.
    pub at: u64,
    /// CPU seconds of the harness.
    pub own_cpu_seconds: f64,
    /// The broker.
    pub broker: Option<ProcessUsage>,
}

/// What the watch saw.
#[derive(Debug)]
pub struct Watched {
    /// All producers together.
    pub send: Tally,
    /// All consumers together.
    pub receive: Tally,
    /// At the start of the measured span, and at its end or when all were done.
    pub samples: (Sample, Sample),
    /// When all were done.
    pub finished: u64,
    /// Second by second.
    pub series: Vec<Second>,
}

/// How to watch.
pub struct Watch<'a> {
    /// The run's clock.
    pub clock: Clock,
    /// The run's times.
    pub span: Span,
    /// The broker's processes.
    pub pids: &'a [i32],
    /// Print a line every second, and on a terminal a bar.
    pub progress: bool,
    /// Messages after which the run is over, if a count ends it.
    pub goal: Option<u64>,
    /// Counters of the workers.
    pub lives: Lives,
    /// Called once when the last producer is done, with what all of them saw.
    pub sent: &'a dyn Fn(&Tally),
    /// Where the latencies of each second go.
    pub hdr: Option<HdrLog>,
    /// How far slaves are behind.
    pub lag: Option<LagWatch>,
}

/// Starts the workers and watches them to the end.
///
/// # Errors
/// A worker's; the others are stopped.
pub fn work(jobs: Vec<Job>, watch: &Watch<'_>) -> Result<Watched, LoadError> {
    let (done, results) = channel();
    let mut producers = 0;
    let mut workers = 0;
    for job in jobs {
        producers += usize::from(job.role == Role::Producer);
        workers += 1;
        start(job, done.clone())?;
    }
    drop(done);
    let mut watcher = Watcher {
        watch,
        results,
        workers,
        producers,
        send: Tally::default(),
        receive: Tally::default(),
        begun: None,
        ended: None,
        shown: (SideSecond::default(), SideSecond::default()),
        series: Vec::new(),
        shown_at: watch.span.start,
        bar: std::io::stderr().is_terminal(),
    };
    let watched = watcher.run();
    if watched.is_err() {
        for live in [&watch.lives.send, &watch.lives.receive].into_iter().flatten() {
            live.stop.store(true, Relaxed);
        }
    }
    watched
}

fn start(job: Job, done: Sender<(Role, Result<Tally, LoadError>)>) -> Result<(), LoadError> {
    let Job { role, work } = job;
    let run = move || {
        // Nobody listens any more when another worker failed first.
        let _ = done.send((role, work()));
    };
    let builder = std::thread::Builder::new().name(format!("load-{role:?}").to_lowercase());
    let spawned = builder.spawn(run);
    spawned.map(drop).map_err(|source| LoadError::System { what: "starting a thread", source })
}

struct Watcher<'a> {
    watch: &'a Watch<'a>,
    results: Receiver<(Role, Result<Tally, LoadError>)>,
    workers: usize,
    producers: usize,
    send: Tally,
    receive: Tally,
    begun: Option<Sample>,
    ended: Option<Sample>,
    /// Totals at the last progress line.
    shown: (SideSecond, SideSecond),
    shown_at: u64,
    series: Vec<Second>,
    bar: bool,
}

impl Watcher<'_> {
    fn run(&mut self) -> Result<Watched, LoadError> {
        let Watch { clock, span, .. } = *self.watch;
        let mut tick = span.start + SECOND_NS;
        while self.workers > 0 {
            let mut until = tick;
            for (taken, at) in [(self.begun, span.warm), (self.ended, span.end)] {
                if taken.is_none() {
                    until = until.min(at);
                }
            }
            match self.results.recv_timeout(clock.until(until)) {
                Ok((role, tally)) => self.worker_done(role, &tally?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LoadError::Worker),
            }
            let now = clock.now();
            if self.begun.is_none() && now >= span.warm {
                self.begun = Some(self.sample()?);
            }
            if self.ended.is_none() && now >= span.end {
                // A broker that is gone by now has no usage, which is a result too.
                self.ended = Some(self.sample_if_there());
            }
            if now >= tick || (self.workers == 0 && now > self.shown_at) {
                self.show(now);
                tick += SECOND_NS;
            }
        }
        let finished = clock.now();
        let last = self.sample_if_there();
        self.end_line();
        Ok(Watched {
            send: std::mem::take(&mut self.send),
            receive: std::mem::take(&mut self.receive),
            samples: (self.begun.unwrap_or(last), self.ended.unwrap_or(last)),
            finished,
            series: std::mem::take(&mut self.series),
        })
    }

    fn worker_done(&mut self, role: Role, tally: &Tally) {
        self.workers -= 1;
        match role {
            Role::Producer => {
                self.send.merge(tally);
                self.producers -= 1;
                if self.producers == 0 {
                    (self.watch.sent)(&self.send);
                }
            }
            Role::Consumer => self.receive.merge(tally),
        }
    }

    fn sample(&self) -> Result<Sample, LoadError> {
        let broker = processes(self.watch.pids)?;
        Ok(Sample { at: self.watch.clock.now(), own_cpu_seconds: own_cpu_seconds(), broker })
    }

    fn sample_if_there(&self) -> Sample {
        let at = self.watch.clock.now();
        let broker = processes(self.watch.pids).ok().flatten();
        Sample { at, own_cpu_seconds: own_cpu_seconds(), broker }
    }

    fn show(&mut self, now: u64) {
        let Watch { span, pids, ref lives, ref hdr, ref lag, goal, .. } = *self.watch;
        let length = now.saturating_sub(std::mem::replace(&mut self.shown_at, now));
        let sides = [
            ("send", &lives.send, &mut self.shown.0),
            ("receive", &lives.receive, &mut self.shown.1),
        ];
        let [send, receive] = sides.map(|(tag, live, total)| {
            let (side, latencies) = SideSecond::read(live.as_deref()?, total, length);
            if let Some(hdr) = hdr {
                hdr.add(tag, now, length, latencies);
            }
            Some(side)
        });
        let second = Second {
            at: (now.saturating_sub(span.start) as f64 / 1e7).round() / 100.0,
            warmup: now < span.warm,
            send,
            receive,
            broker_cpu_seconds: None,
            broker_rss_bytes: None,
            harness_cpu_seconds: own_cpu_seconds(),
            replication_lag_bytes: lag.as_ref().and_then(LagWatch::latest),
        };
        let second = second.with_broker(processes(pids).ok().flatten());
        if self.watch.progress {
            let done = self.shown.0.messages.max(self.shown.1.messages);
            let part = match goal {
                Some(goal) => Some(done as f64 / goal.max(1) as f64),
                None if span.end == u64::MAX => None,
                None => Some((now - span.start) as f64 / (span.end - span.start).max(1) as f64),
            };
            second.print(if self.bar { part } else { None });
        }
        self.series.push(second);
    }

    fn end_line(&self) {
        if self.watch.progress && self.bar {
            clear_bar();
        }
    }
}
