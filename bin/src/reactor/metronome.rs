//! The metronome and the stall recorder: one plain thread for all reactors.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::account::{Account, Accounts, Cause};
use super::beat::Beat;

/// Time between two signals to a reactor. It bounds how long glommio's lost wake-up can last.
pub const METRONOME_PERIOD: Duration = Duration::from_millis(20);

/// Counts of stalls, readable from any thread.
#[derive(Debug, Default)]
pub struct StallCounters {
    /// Stalls that passed the threshold.
    pub stalls: AtomicU64,
    /// Those of them that are over and were starvation: the reactor was runnable and had no processor.
    pub starved: AtomicU64,
    /// Milliseconds of the longest.
    pub longest_ms: AtomicU64,
    /// Milliseconds of all together.
    pub stalled_ms: AtomicU64,
}

/// What the thread needs of one reactor.
struct Watched {
    index: usize,
    name: String,
    tid: libc::pid_t,
    beat: &'static Beat,
    turns: u64,
    turned_at: Instant,
    accounts: Accounts,
    /// At the last turn that was seen.
    account: Option<Account>,
    /// Metronome ticks since the last turn. Time that the metronome itself was not running counts as one tick, so that a paused
    /// machine is not blamed on the reactor.
    silent_ticks: u32,
    warned_at_tick: u32,
    /// What it was doing when the running stall was noticed, or that it had no processor.
    cause: &'static str,
}

/// A reactor as the stall recorder sees it.
#[derive(Debug, Clone)]
pub struct ReactorState {
    /// Place among the reactors of the process.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Turns of its heartbeat since the start.
    pub turns: u64,
    /// How long it has not turned, by the metronome's ticks: a process that was stopped as a whole is not blamed on its reactors.
    pub silent: Duration,
    /// What it is doing.
    pub doing: &'static str,
    /// How much later than due its heartbeat ran, since the start.
    pub late: Duration,
    /// The most of that at once.
    pub late_max: Duration,
}

/// All stalls of one reactor with one cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// How many.
    pub count: u64,
    /// How long all together.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

/// Lets other threads see what the stall recorder sees; also after the reactors have ended.
#[derive(Clone)]
pub struct ReactorWatch(Arc<Metronome>);

impl ReactorWatch {
    pub(super) fn new(metronome: Arc<Metronome>) -> ReactorWatch {
        ReactorWatch(metronome)
    }

    /// The reactors that run.
    pub fn reactors(&self) -> Vec<ReactorState> {
        let state = |watched: &Watched| {
            let (late_us, late_us_max) = watched.beat.lateness_us();
            ReactorState {
                index: watched.index,
                name: watched.name.clone(),
                turns: watched.beat.turns(),
                silent: METRONOME_PERIOD * watched.silent_ticks,
                doing: watched.beat.doing(),
                late: Duration::from_micros(late_us),
                late_max: Duration::from_micros(late_us_max),
            }
        };
        self.0.lock().iter().map(state).collect()
    }

    /// Stalls that passed the threshold, by the reactor's place and by what it was doing.
    pub fn stalls(&self) -> BTreeMap<(usize, &'static str), Stall> {
        self.0.stalls().clone()
    }
}

impl Watched {
    /// What became of the time since its last turn, and what to call it.
    fn spent(&self, stall: Duration) -> (Account, Cause) {
        match (self.accounts.read(), self.account) {
            (Some(now), Some(before)) => {
                let spent = now.since(before);
                (spent, spent.cause(self.turned_at.elapsed(), stall))
            }
            _ => (Account::default(), Cause::Unknown),
        }
    }
}

/// State shared by the metronome's thread and the reactors that come and go.
pub(super) struct Metronome {
    watched: Mutex<Vec<Watched>>,
    ending: AtomicBool,
    stall: Duration,
    counters: Arc<StallCounters>,
    /// By reactor and cause. Causes are labels in the code, so there are few.
    stalls: Mutex<BTreeMap<(usize, &'static str), Stall>>,
}

impl Metronome {
    /// Installs the signal's handler and starts the thread.
    pub(super) fn start(stall: Duration) -> std::io::Result<(Arc<Metronome>, JoinHandle<()>)> {
        install_handler()?;
        let metronome = Arc::new(Metronome {
            watched: Mutex::new(Vec::new()),
            ending: AtomicBool::new(false),
            stall: stall.max(METRONOME_PERIOD),
            counters: Arc::default(),
            stalls: Mutex::default(),
        });
        let own = Arc::clone(&metronome);
        let thread =
            thread::Builder::new().name("metronome".to_owned()).spawn(move || own.run())?;
        Ok((metronome, thread))
    }

    pub(super) fn counters(&self) -> Arc<StallCounters> {
        Arc::clone(&self.counters)
    }

    /// Signals the calling thread from now until the guard is dropped.
    pub(super) fn watch(
        self: &Arc<Self>,
        index: usize,
        name: &str,
        beat: &'static Beat,
    ) -> WatchGuard {
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        let accounts = Accounts::of(tid);
        let watched = Watched {
            index,
            name: name.to_owned(),
            tid,
            beat,
            turns: beat.turns(),
            turned_at: Instant::now(),
            account: accounts.read(),
            accounts,
            silent_ticks: 0,
            warned_at_tick: 0,
            cause: "",
        };
        self.lock().push(watched);
        WatchGuard { metronome: Arc::clone(self), tid }
    }

    /// Ends the thread at its next tick.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stalls(&self) -> MutexGuard<'_, BTreeMap<(usize, &'static str), Stall>> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while !self.ending.load(Ordering::Relaxed) {
            thread::sleep(METRONOME_PERIOD);
            // The lock is held while signalling, so no thread in the list can have ended and had its number given to another.
            for watched in self.lock().iter_mut() {
                send_signal(watched.tid);
                self.examine(watched);
            }
        }
    }

    fn examine(&self, watched: &mut Watched) {
        let turns = watched.beat.turns();
        if turns == watched.turns {
            watched.silent_ticks += 1;
            self.warn_if_stalled(watched);
            return;
        }
        if watched.warned_at_tick > 0 {
            let lasted_ms = watched.turned_at.elapsed().as_millis() as u64;
            let (spent, cause) = watched.spent(self.stall);
            info!(
                reactor = watched.index,
                shard = watched.name,
                lasted_ms,
                cause = cause.name(),
                ran_ms = spent.ran.as_millis() as u64,
                waited_ms = spent.waited.as_millis() as u64,
                "reactor turns again"
            );
            if cause == Cause::Starved {
                self.counters.starved.fetch_add(1, Ordering::Relaxed);
            }
            self.counters.longest_ms.fetch_max(lasted_ms, Ordering::Relaxed);
            self.counters.stalled_ms.fetch_add(lasted_ms, Ordering::Relaxed);
            let lasted = Duration::from_millis(lasted_ms);
            let mut stalls = self.stalls();
            let stall = stalls.entry((watched.index, watched.cause)).or_default();
            stall.total += lasted;
            stall.longest = stall.longest.max(lasted);
        }
        watched.turns = turns;
        watched.turned_at = Instant::now();
        watched.account = watched.accounts.read();
        watched.silent_ticks = 0;
        watched.warned_at_tick = 0;
    }

    /// Warns when the threshold is passed and again at each doubling, so that a stall without end doesn't fill the log.
    fn warn_if_stalled(&self, watched: &mut Watched) {
        let threshold = (self.stall.as_millis() / METRONOME_PERIOD.as_millis()).max(1) as u32;
        let due = if watched.warned_at_tick == 0 {
            threshold
        } else {
            watched.warned_at_tick.saturating_mul(2)
        };
        if watched.silent_ticks < due {
            return;
        }
        let (spent, mut cause) = watched.spent(self.stall);
        let state = thread_state(watched.tid);
        // The kernel adds a wait to the account when it is over.
        if cause == Cause::Waiting && state == RUNNABLE {
            cause = Cause::Starved;
        }
        if watched.warned_at_tick == 0 {
            self.counters.stalls.fetch_add(1, Ordering::Relaxed);
            // Whatever it was at, it was not that which took the time.
            let starved = cause == Cause::Starved;
            watched.cause = if starved { cause.name() } else { watched.beat.doing() };
            self.stalls().entry((watched.index, watched.cause)).or_default().count += 1;
        }
        watched.warned_at_tick = watched.silent_ticks;
        let silent_ms = watched.turned_at.elapsed().as_millis() as u64;
        self.counters.longest_ms.fetch_max(silent_ms, Ordering::Relaxed);
        if let Some(stall) = self.stalls().get_mut(&(watched.index, watched.cause)) {
            stall.longest = stall.longest.max(Duration::from_millis(silent_ms));
        }
        warn!(
            reactor = watched.index,
            shard = watched.name,
            silent_ms,
            cause = cause.name(),
            ran_ms = spent.ran.as_millis() as u64,
            waited_ms = spent.waited.as_millis() as u64,
            doing = watched.beat.doing(),
            thread_state = state,
            "reactor has not turned"
        );
    }
}

/// Ends the signals to a thread when that thread drops it.
pub(super) struct WatchGuard {
    metronome: Arc<Metronome>,
    tid: libc::pid_t,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.metronome.lock().retain(|watched| watched.tid != self.tid);
    }
}

/// See [`thread_state`].
const RUNNABLE: &str = "running or waiting for a processor";

/// What the kernel says of a thread: a stalled one that runs is busy, one in disk sleep waits for a device, one in sleep waits for
/// a system call (or has lost its wake-up).
fn thread_state(tid: libc::pid_t) -> &'static str {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold anything; the state follows its last bracket.
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('R') => RUNNABLE,
        Some('S') => "sleeping in a system call",
        Some('D') => "waiting for a device",
        Some('T' | 't') => "stopped",
        _ => "unknown",
    }
}

fn send_signal(tid: libc::pid_t) {
    // SAFETY: tgkill takes numbers only; the handler is installed and does nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR2) };
}

extern "C" fn do_nothing(_: libc::c_int) {}

/// A handler that does nothing, without SA_RESTART: what matters is that the interrupted system call returns.
fn install_handler() -> std::io::Result<()> {
    // SAFETY: sigaction is a plain structure for which all-zero bytes are a valid value: an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` outlives the call and its handler is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
