//! Reactors keep turning beside busy neighbours, stalls are recorded with their cause, and stops reach every reactor.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use glommio::timer::Timer;
use glommio::{Latency, Shares};
use ringmq::reactor::{
    Label, Reactor, ReactorError, ReactorOptions, Seat, Stop, doing, spawn_reactors,
};
use tracing_subscriber::fmt::MakeWriter;

/// Tests that measure time run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> ReactorOptions {
    ReactorOptions { cpus: vec![0], stall: Duration::from_millis(100) }
}

fn seats<T>(loads: impl IntoIterator<Item = T>) -> Vec<Seat<T>> {
    loads
        .into_iter()
        .enumerate()
        .map(|(index, load)| Seat { name: format!("shard-{index}"), load })
        .collect()
}

/// Log lines of this test binary, kept in memory.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;
    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

/// Lowers the calling thread's priority as `nice -n 5` would.
fn be_nice() {
    // SAFETY: setpriority takes numbers only; 0 is the calling thread on Linux.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
}

/// Short timers beside a neighbour that keeps the queue busy, which is what the lost wake-up needs; ends when told to stop.
async fn turn_until_stopped(
    reactor: Reactor,
    worst_us: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
) -> Result<(), String> {
    let neighbour = glommio::spawn_local(async {
        loop {
            for _ in 0..50 {
                glommio::executor().yield_task_queue_now().await;
            }
            Timer::new(Duration::from_millis(1)).await;
        }
    });
    while !reactor.stopping.is_raised() {
        let before = Instant::now();
        Timer::new(Duration::from_millis(3)).await;
        worst_us.fetch_max(before.elapsed().as_micros() as u64, Ordering::Relaxed);
        turns.fetch_add(1, Ordering::Relaxed);
    }
    neighbour.cancel().await;
    Ok(())
}

/// Two loops that keep both cores busy until dropped.
struct BusyLoops {
    busy: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl BusyLoops {
    fn start() -> BusyLoops {
        let busy = Arc::new(AtomicBool::new(true));
        let spin = |busy: Arc<AtomicBool>| {
            be_nice();
            let mut spins = 0u64;
            while busy.load(Ordering::Relaxed) {
                spins = std::hint::black_box(spins + 1);
            }
        };
        let threads =
            [Arc::clone(&busy), Arc::clone(&busy)].map(|busy| thread::spawn(move || spin(busy)));
        BusyLoops { busy, threads: threads.into() }
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What the metronome does, by itself: `pause` returns only when a signal has been handled, as a park without a wake-up would.
#[test]
fn a_parked_system_call_returns_within_a_beat() {
    let _alone = alone();
    let (tell, told) = std::sync::mpsc::channel();
    let stop = Stop::new();
    let reactors = spawn_reactors(
        seats([tell]),
        &options(),
        &stop,
        |_, tell: std::sync::mpsc::Sender<Duration>| async move {
            for _ in 0..3 {
                let parked = Instant::now();
                // SAFETY: pause has no arguments and touches no memory.
                unsafe { libc::pause() };
                tell.send(parked.elapsed()).map_err(|error| error.to_string())?;
            }
            Ok(())
        },
    )
    .expect("start");
    for _ in 0..3 {
        let parked =
            told.recv_timeout(Duration::from_secs(10)).expect("no signal interrupts the reactor");
        assert!(parked < Duration::from_secs(1), "parked for {parked:?}");
    }
    reactors.join().expect("the reactor ends");
}

/// A start is when the lost wake-up is most likely, so many starts are a sharper test than a long run.
#[test]
fn reactors_that_start_beside_busy_loops_turn() {
    let _alone = alone();
    let rounds: u32 =
        std::env::var("RINGMQ_STARVE_STARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let _loops = BusyLoops::start();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for round in 0..rounds {
            let stop = Stop::new();
            let reactors = spawn_reactors(seats([(), ()]), &options(), &stop, |_, ()| async move {
                for _ in 0..3 {
                    Timer::new(Duration::from_millis(3)).await;
                    glommio::executor().yield_task_queue_now().await;
                }
                Ok(())
            });
            reactors.expect("start").join().expect("both reactors end");
            tell.send(round).expect("the test listens");
        }
    });
    for round in 0..rounds {
        let begun = Instant::now();
        told.recv_timeout(Duration::from_secs(10))
            .unwrap_or_else(|_| panic!("the reactors of start {round} do not turn"));
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "start {round} took {:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn no_reactor_stops_turning_beside_two_busy_loops() {
    let _alone = alone();
    let seconds: u64 =
        std::env::var("RINGMQ_STARVE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let loops = BusyLoops::start();
    let worst_us = Arc::new(AtomicU64::new(0));
    let turns = Arc::new(AtomicU64::new(0));
    let gauges = (Arc::clone(&worst_us), Arc::clone(&turns));
    let stop = Stop::new();
    let reactors = spawn_reactors(
        seats([gauges.clone(), gauges]),
        &options(),
        &stop,
        |reactor, (worst_us, turns)| turn_until_stopped(reactor, worst_us, turns),
    )
    .expect("start");
    // The time of the measurement itself, not a wait for an event.
    thread::sleep(Duration::from_secs(seconds));
    stop.request();
    reactors.join().expect("both reactors end");
    drop(loops);
    let (worst, turns) = (worst_us.load(Ordering::Relaxed), turns.load(Ordering::Relaxed));
    eprintln!("{turns} turns in {seconds} s, longest wait for a 3 ms timer {worst} us");
    assert!(worst < 2_000_000, "a reactor did not turn for {worst} us");
    assert!(turns > seconds * 20, "only {turns} turns in {seconds} s");
}

/// Processor time of the calling thread.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a live timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Connections that always have something, in a task queue of their own, do not keep timers waiting: counted in the reactor's own processor
/// time, so that other load on the machine decides nothing.
#[test]
fn a_task_queue_that_always_has_work_leaves_others_their_turns() {
    const TIMERS: u32 = 20;
    let _alone = alone();
    let stop = Stop::default();
    let reactors = spawn_reactors(seats([()]), &options(), &stop, async |reactor: Reactor, ()| {
        let latency = Latency::Matters(Duration::from_millis(5));
        let busy = glommio::executor().create_task_queue(Shares::default(), latency, "busy");
        let done = Rc::new(Cell::new(false));
        // A task of another queue that is woken all the time: glommio then forgets the latency of the queue that runs.
        let sleeper = Rc::new(RefCell::new(None::<Waker>));
        let mut tasks = vec![glommio::spawn_local({
            let (done, sleeper) = (Rc::clone(&done), Rc::clone(&sleeper));
            poll_fn(move |context| {
                *sleeper.borrow_mut() = Some(context.waker().clone());
                if done.get() { Poll::Ready(()) } else { Poll::Pending }
            })
        })];
        for _ in 0..4 {
            let (done, sleeper) = (Rc::clone(&done), Rc::clone(&sleeper));
            let work = async move {
                while !done.get() {
                    if let Some(waker) = sleeper.take() {
                        waker.wake();
                    }
                    futures_lite::future::yield_now().await;
                }
            };
            tasks.push(glommio::spawn_local_into(work, busy).expect("the queue is there"));
        }
        let began = thread_cpu();
        for _ in 0..TIMERS {
            Timer::new(Duration::from_millis(1)).await;
        }
        let spent = thread_cpu() - began;
        done.set(true);
        if let Some(waker) = sleeper.take() {
            waker.wake();
        }
        for task in tasks {
            task.await;
        }
        reactor.stop.request();
        let most = Duration::from_millis(25) * TIMERS;
        if spent < most {
            Ok(())
        } else {
            Err(format!("{TIMERS} timers of 1 ms came after {spent:?} of work"))
        }
    });
    reactors.expect("the reactor starts").join().expect("timers come between");
}

#[test]
fn a_stall_is_recorded_with_what_the_reactor_was_doing() {
    static LOOPING: Label = Label("sleeping on purpose");
    let _alone = alone();
    let lines = Lines::default();
    tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).init();
    let stop = Stop::new();
    let reactors =
        spawn_reactors(seats([()]), &options(), &stop, |reactor: Reactor, ()| async move {
            Timer::new(Duration::from_millis(120)).await;
            {
                let _label = doing(&LOOPING);
                thread::sleep(Duration::from_millis(400));
            }
            Timer::new(Duration::from_millis(120)).await;
            reactor.stop.request();
            Ok(())
        })
        .expect("start");
    let counters = reactors.stall_counters();
    reactors.join().expect("reactor ends");
    let text = String::from_utf8(lines.0.lock().expect("lock").clone()).expect("utf-8");
    assert!(counters.stalls.load(Ordering::Relaxed) >= 1, "{counters:?}");
    assert!(counters.longest_ms.load(Ordering::Relaxed) >= 300, "{counters:?}");
    assert!(
        text.contains("reactor has not turned")
            && text.contains("sleeping on purpose")
            && text.contains("shard-0"),
        "{text}"
    );
    assert!(text.contains("reactor turns again"), "{text}");
}

#[test]
fn the_order_to_stop_reaches_every_waiting_task() {
    let _alone = alone();
    let stop = Stop::new();
    let reactors =
        spawn_reactors(seats([(), (), ()]), &options(), &stop, |reactor: Reactor, ()| async move {
            let stopping = reactor.stopping.clone();
            let other = glommio::spawn_local(async move { stopping.raised().await });
            reactor.stopping.raised().await;
            other.await;
            Ok(())
        })
        .expect("start");
    stop.request();
    reactors.join().expect("all end");
}

#[test]
fn one_failed_reactor_stops_the_others_and_is_named() {
    let _alone = alone();
    let stop = Stop::new();
    let reactors = spawn_reactors(
        seats([false, true]),
        &options(),
        &stop,
        |reactor: Reactor, fail| async move {
            if fail {
                return Err("the disk is gone".to_owned());
            }
            reactor.stopping.raised().await;
            Ok(())
        },
    )
    .expect("start");
    let error = reactors.join().expect_err("one failed");
    assert!(matches!(&error, ReactorError::Body { name, .. } if name == "shard-1"), "{error}");
    assert_eq!(error.to_string(), "shard-1: the disk is gone");
    assert!(stop.requested());
}

#[test]
fn a_reactor_can_outlive_all_others() {
    let _alone = alone();
    let stop = Stop::new();
    let ended = Arc::new(AtomicU64::new(0));
    let reactors = spawn_reactors(
        seats([(); 3].map(|()| Arc::clone(&ended))),
        &options(),
        &stop,
        |reactor: Reactor, ended: Arc<AtomicU64>| async move {
            if reactor.index == 0 {
                reactor.others_ended(Duration::from_secs(60)).await;
                return match ended.load(Ordering::SeqCst) {
                    2 => Ok(()),
                    count => Err(format!("{count} of 2 had ended")),
                };
            }
            Timer::new(Duration::from_millis(60 * reactor.index as u64)).await;
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(())
        },
    );
    reactors.expect("start").join().expect("the first ends last");
}
