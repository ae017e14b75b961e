//! Starting reactors and waiting for them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, PoolPlacement};
use thiserror::Error;
use tracing::error;

use super::beat::Beat;
use super::metronome::{Metronome, ReactorWatch, StallCounters};
use super::stop::{Stop, Stopping};

/// Memory that glommio registers for I/O, at its smallest: blocks and caches come from the heap, under the broker's own budget.
pub const IO_MEMORY_BYTES: usize = 64 << 10;

/// Locked memory that one reactor needs: glommio registers its I/O memory with each of its three rings.
pub const LOCKED_BYTES_PER_REACTOR: u64 = 3 * IO_MEMORY_BYTES as u64;

/// Time between two turns of the heartbeat; the order to stop is noticed within it. Each turn of an idle reactor costs about 0.1 ms of
/// processor time, the metronome's signal as much: together under 1 % of a core.
const HEARTBEAT_PERIOD: Duration = Duration::from_millis(50);

/// Time after which a turn is over while tasks can still run: completions and timers are looked at between two turns. glommio asks the task
/// queues that wait for theirs, and takes this if there is none but the one that runs: its own 100 ms would keep timers, the heartbeat and
/// finished writes waiting for so long beside connections that always have something.
const TURN_MAX: Duration = Duration::from_millis(5);

/// Time between two looks at whether the other reactors have ended.
const OTHERS_LOOK: Duration = Duration::from_millis(10);

/// Why reactors could not start or ended badly.
#[derive(Debug, Error)]
pub enum ReactorError {
    /// A thread or the metronome could not be started.
    #[error(
        "reactor {name}: {error}: check the limits on threads and locked memory with `ringmq check`"
    )]
    Start {
        /// The reactor's name.
        name: String,
        /// Why.
        error: String,
    },
    /// The reactor's own work failed.
    #[error("{name}: {error}")]
    Body {
        /// The reactor's name.
        name: String,
        /// What its body returned.
        error: String,
    },
}

/// How reactors are run.
#[derive(Debug, Clone)]
pub struct ReactorOptions {
    /// Processors to pin to, in order; with more reactors than processors several share one. With fewer none is pinned: which ones are
    /// free then depends on what else runs, another broker of this machine that would pin to the same ones among it.
    pub cpus: Vec<usize>,
    /// Silence after which a reactor is logged as stalled.
    pub stall: Duration,
}

/// One reactor to start: a name for its thread and log lines, and what its body is given.
pub struct Seat<T> {
    /// Name.
    pub name: String,
    /// Moved to the reactor's thread and into its body.
    pub load: T,
}

/// A reactor as its own body sees it. Stays on its thread.
pub struct Reactor {
    /// Place in the list given to [`spawn_reactors`].
    pub index: usize,
    /// Name.
    pub name: String,
    /// Ends when the process has been asked to stop.
    pub stopping: Stopping,
    /// The process-wide flag: a body may raise it too, and other threads may hold it.
    pub stop: Stop,
    alive: Arc<AtomicUsize>,
}

impl Reactor {
    /// Ends when every other reactor's body has ended, or after `limit`: for what the others need until their last moment.
    pub async fn others_ended(&self, limit: Duration) {
        let mut waited = Duration::ZERO;
        while self.alive.load(Ordering::Acquire) > 1 && waited < limit {
            Timer::new(OTHERS_LOOK).await;
            waited += OTHERS_LOOK;
        }
    }
}

/// Reactors that run.
pub struct Reactors {
    threads: Vec<(String, JoinHandle<Result<(), String>>)>,
    metronome: Arc<Metronome>,
    metronome_thread: JoinHandle<()>,
}

/// Starts one thread with one executor per seat and runs `body` on each. A body that ends with an error asks all others to
/// stop: half a process is not kept running. An executor that cannot start does the same.
pub fn spawn_reactors<T, F, Fut>(
    seats: Vec<Seat<T>>,
    options: &ReactorOptions,
    stop: &Stop,
    body: F,
) -> Result<Reactors, ReactorError>
where
    T: Send + 'static,
    F: Fn(Reactor, T) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<(), String>> + 'static,
{
    warm_up_membarrier();
    let start_error = |name: &str, error: std::io::Error| ReactorError::Start {
        name: name.to_owned(),
        error: error.to_string(),
    };
    let (metronome, metronome_thread) =
        Metronome::start(options.stall).map_err(|error| start_error("metronome", error))?;
    let mut reactors = Reactors { threads: Vec::new(), metronome, metronome_thread };
    let alive = Arc::new(AtomicUsize::new(seats.len()));
    let pinned = seats.len() >= options.cpus.len();
    for (index, seat) in seats.into_iter().enumerate() {
        let name = seat.name.clone();
        let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
        let cpu = cpu.filter(|_| pinned);
        let start = Start {
            index,
            name: name.clone(),
            cpu,
            metronome: Arc::clone(&reactors.metronome),
            stop: stop.clone(),
            alive: Arc::clone(&alive),
        };
        let body = body.clone();
        let thread = std::thread::Builder::new()
            .name(format!("reactor-{index}"))
            .spawn(move || start.run(move |reactor| body(reactor, seat.load)));
        match thread {
            Ok(thread) => reactors.threads.push((name, thread)),
            Err(error) => {
                // Those that run already must not be left behind.
                stop.request();
                let _ = reactors.join();
                return Err(start_error(&name, error));
            }
        }
    }
    Ok(reactors)
}

impl Reactors {
    /// Counts of stalls so far; they stay readable after the end.
    pub fn stall_counters(&self) -> Arc<StallCounters> {
        self.metronome.counters()
    }

    /// What the stall recorder sees, for other threads.
    pub fn watch(&self) -> ReactorWatch {
        ReactorWatch::new(Arc::clone(&self.metronome))
    }

    /// Waits until every body has ended. The first error, in order of the seats, is returned; all are logged.
    pub fn join(self) -> Result<(), ReactorError> {
        let mut first = None;
        for (name, thread) in self.threads {
            let outcome = thread.join().unwrap_or_else(|_| Err("the reactor panicked".to_owned()));
            if let Err(error) = outcome {
                first.get_or_insert(ReactorError::Body { name, error });
            }
        }
        self.metronome.end();
        let _ = self.metronome_thread.join();
        first.map_or(Ok(()), Err)
    }
}

/// What a reactor's thread is started with.
struct Start {
    index: usize,
    name: String,
    cpu: Option<usize>,
    metronome: Arc<Metronome>,
    stop: Stop,
    alive: Arc<AtomicUsize>,
}

impl Start {
    /// The whole life of a reactor's thread.
    fn run<Fut>(self, body: impl FnOnce(Reactor) -> Fut) -> Result<(), String>
    where
        Fut: Future<Output = Result<(), String>> + 'static,
    {
        let beat = Beat::leak();
        beat.enter();
        // Before the executor exists: the wake-up can be lost in its very first turn.
        let watch = self.metronome.watch(self.index, &self.name, beat);
        let outcome = match self.make_executor() {
            Ok(executor) => executor.run(self.with_heartbeat(beat, body)),
            Err(error) => Err(format!("the executor did not start: {error}")),
        };
        drop(watch);
        self.alive.fetch_sub(1, Ordering::Release);
        if let Err(error) = &outcome {
            error!(reactor = self.index, shard = self.name, "{error}");
            self.stop.request();
        }
        outcome
    }

    fn make_executor(&self) -> Result<LocalExecutor, glommio::GlommioError<()>> {
        let placement = self.cpu.map_or(Placement::Unbound, Placement::Fixed);
        LocalExecutorBuilder::new(placement)
            .name(&self.name)
            .io_memory(IO_MEMORY_BYTES)
            .preempt_timer(TURN_MAX)
            // Fixed placement would pin the helper that runs blocking calls to the reactor's own processor.
            .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
            .make()
    }

    /// Runs the body beside the heartbeat, which also carries the order to stop to this reactor.
    async fn with_heartbeat<Fut>(
        &self,
        beat: &'static Beat,
        body: impl FnOnce(Reactor) -> Fut,
    ) -> Result<(), String>
    where
        Fut: Future<Output = Result<(), String>> + 'static,
    {
        let stopping = Stopping::default();
        let heartbeat = glommio::spawn_local({
            let (stop, stopping) = (self.stop.clone(), stopping.clone());
            async move {
                loop {
                    let due = Instant::now() + HEARTBEAT_PERIOD;
                    beat.turn();
                    if stop.requested() && !stopping.is_raised() {
                        stopping.raise();
                    }
                    Timer::new(HEARTBEAT_PERIOD).await;
                    beat.late(due.elapsed());
                }
            }
        });
        let reactor = Reactor {
            index: self.index,
            name: self.name.clone(),
            stopping,
            stop: self.stop.clone(),
            alive: Arc::clone(&self.alive),
        };
        let outcome = body(reactor).await;
        // An executor must not end with a task left in it.
        heartbeat.cancel().await;
        outcome
    }
}

/// Registers this process for membarrier while it has one thread, which takes no time; glommio would do it while its first timer
/// waits (24 ms were measured).
fn warm_up_membarrier() {
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    // SAFETY: membarrier takes numbers only. A kernel without it answers ENOSYS, and glommio then uses mprotect.
    unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) };
}
