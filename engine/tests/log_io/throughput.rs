//! Not a test of a number but a look at it: `cargo test --release -p ringmq-engine --test log_io -- --ignored --nocapture`.

use std::{
    cell::Cell,
    future::poll_fn,
    path::PathBuf,
    rc::Rc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ringmq_engine::log::{AppendError, CoreConfig, Log, LogConfig, ReadRun};

use crate::support::{disk_dir, on_reactor};

/// User and system seconds of this thread and of the process.
fn cpu_seconds() -> (f64, f64) {
    let of = |who| {
        // SAFETY: getrusage fills the structure; all-zero is a valid value.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(who, &mut usage);
            usage
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        seconds(usage.ru_utime) + seconds(usage.ru_stime)
    };
    (of(libc::RUSAGE_THREAD), of(libc::RUSAGE_SELF))
}

/// Page faults of this thread.
fn page_faults() -> i64 {
    // SAFETY: getrusage fills the structure; all-zero is a valid value.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt
    }
}

/// Resolves when the log made progress.
struct Turn {
    waker: Cell<Option<Waker>>,
    rounds: Cell<u64>,
}

impl Turn {
    fn of(log: &Log) -> Rc<Turn> {
        let turn = Rc::new(Turn { waker: Cell::new(None), rounds: Cell::new(0) });
        let told = turn.clone();
        log.on_progress(Box::new(move |_| {
            told.rounds.set(told.rounds.get() + 1);
            if let Some(waker) = told.waker.take() {
                waker.wake();
            }
        }));
        turn
    }

    async fn next(&self) {
        let seen = self.rounds.get();
        poll_fn(|cx| {
            if self.rounds.get() != seen {
                return Poll::Ready(());
            }
            self.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

fn config(store: PathBuf, sync: bool) -> LogConfig {
    LogConfig {
        core: CoreConfig { segment_size: 256 << 20, sync, ..CoreConfig::default() },
        ..LogConfig::new(store)
    }
}

async fn closed_loop(log: &Log, turn: &Turn, len: usize, rounds: u32) {
    let mut micros = Vec::new();
    let (cpu, all) = cpu_seconds();
    let began = Instant::now();
    for _ in 0..rounds {
        let one = Instant::now();
        while log.append(len, |out, _| out.fill(7)).is_err() {
            turn.next().await;
        }
        log.kick();
        while log.visible() < log.appended() {
            turn.next().await;
        }
        micros.push(one.elapsed().as_micros());
    }
    let took = began.elapsed().as_secs_f64();
    let (cpu2, all2) = cpu_seconds();
    micros.sort_unstable();
    println!(
        "closed loop of {len} B: {:.0}/s, p50 {} us, p99 {} us, reactor {:.2} cores ({:.1} us each), process {:.2}",
        f64::from(rounds) / took,
        micros[micros.len() / 2],
        micros[micros.len() * 99 / 100],
        (cpu2 - cpu) / took,
        (cpu2 - cpu) / f64::from(rounds) * 1e6,
        (all2 - all) / took,
    );
}

async fn open_throttle(log: &Log, turn: &Turn, len: usize, total: u64) {
    let (cpu, all) = cpu_seconds();
    let before = log.stats();
    let faults = page_faults();
    let began = Instant::now();
    let from = log.appended();
    let mut refused = 0u64;
    while log.appended() < from + total {
        match log.append(len, |out, _| out.fill(7)) {
            Ok(_) => {}
            Err(AppendError::Busy { .. } | AppendError::NotReady { .. }) => {
                refused += 1;
                log.kick();
                turn.next().await;
            }
            Err(e) => panic!("{e}"),
        }
    }
    log.kick();
    while log.visible() < log.appended() {
        turn.next().await;
    }
    let took = began.elapsed().as_secs_f64();
    let (cpu2, all2) = cpu_seconds();
    let stats = log.stats();
    let writes = stats.writes - before.writes;
    println!(
        "{len} B as fast as it goes: {:.0} MB/s, {:.0} records/s, {writes} writes of {} KiB, reactor {:.2} cores ({:.2} us a record), process {:.2}, refused {refused}, {} page faults a MiB",
        total as f64 / took / 1e6,
        total as f64 / len as f64 / took,
        (stats.written_bytes - before.written_bytes) / writes.max(1) / 1024,
        (cpu2 - cpu) / took,
        (cpu2 - cpu) / (total as f64 / len as f64) * 1e6,
        (all2 - all) / took,
        (page_faults() - faults) / (total >> 20) as i64,
    );
}

async fn paced(log: &Log, turn: &Turn, len: usize, rate: u64) {
    let (cpu, all) = cpu_seconds();
    let began = Instant::now();
    let gap = Duration::from_micros(1_000_000 / rate);
    for i in 0..2 * rate {
        let due = gap * i as u32;
        if let Some(wait) = due.checked_sub(began.elapsed()) {
            glommio::timer::sleep(wait).await;
        }
        while log.append(len, |out, _| out.fill(7)).is_err() {
            turn.next().await;
        }
        log.kick();
    }
    let took = began.elapsed().as_secs_f64();
    let (cpu2, all2) = cpu_seconds();
    println!(
        "{rate}/s of {len} B: reactor {:.2} cores, process {:.2}",
        (cpu2 - cpu) / took,
        (all2 - all) / took
    );
}

#[test]
#[ignore = "a measurement"]
fn how_fast_the_log_writes() {
    for sync in [false, true] {
        let dir = disk_dir();
        let store = dir.path().to_path_buf();
        on_reactor(move || async move {
            println!("level {}", if sync { "sync" } else { "write" });
            let (log, _) = Log::open(config(store, sync)).await.unwrap();
            let turn = Turn::of(&log);
            // Let the frontier run ahead first.
            glommio::timer::sleep(Duration::from_secs(3)).await;
            closed_loop(&log, &turn, 1100, 5000).await;
            closed_loop(&log, &turn, 16 << 10, 3000).await;
            closed_loop(&log, &turn, 256 << 10, 500).await;
            paced(&log, &turn, 1100, 1000).await;
            open_throttle(&log, &turn, 1200, 1 << 30).await;
            log.close().await.unwrap();
        });
    }
}

#[test]
#[ignore = "a measurement"]
fn how_fast_a_cold_reader_reads() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(store, false)).await.unwrap();
        let turn = Turn::of(&log);
        open_throttle(&log, &turn, 1200, 1 << 30).await;
        let (mut run, mut at, mut bytes) = (ReadRun::default(), 0u64, 0u64);
        let (cpu, _) = cpu_seconds();
        let began = Instant::now();
        let end = (768 << 20) / 1200 * 1200;
        while at < end {
            let len = (32 * 1200).min((end - at) as usize);
            let hint = run.hint(at, len);
            let slice = log.read(at, len, hint).await.unwrap();
            bytes += slice.bytes().len() as u64;
            at += len as u64;
        }
        let took = began.elapsed().as_secs_f64();
        let stats = log.stats().cache;
        println!(
            "cold sequential read: {:.0} MB/s, reactor {:.2} cores, {} misses",
            bytes as f64 / took / 1e6,
            (cpu_seconds().0 - cpu) / took,
            stats.misses
        );
        log.close().await.unwrap();
    });
}
