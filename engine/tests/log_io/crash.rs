//! SIGKILL at any moment: what was acknowledged is there, nothing is invented, and the log goes on.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use ringmq_engine::log::{Log, ReadHint};
use ringmq_net::record::{CheckResult, CheckRule, check};

use crate::support::{
    Sent, SmallDisk, append_patiently, config, disk_dir, is_message, on_reactor, read_back,
};

const STORE: &str = "RINGMQ_LOG_IO_STORE";
const FROM: &str = "RINGMQ_LOG_IO_FROM";
const LEVEL: &str = "RINGMQ_LOG_IO_LEVEL";

/// Not a test by itself: the process that is killed. It prints each message after it became visible.
#[test]
#[ignore = "run by the crash tests"]
fn child() {
    let Some(store) = std::env::var_os(STORE).map(PathBuf::from) else { return };
    let from: u64 = std::env::var(FROM).unwrap().parse().unwrap();
    let sync = std::env::var(LEVEL).unwrap() == "sync";
    on_reactor(move || async move {
        let mut config = config(&store);
        config.core.sync = sync;
        let (log, _) = Log::open(config).await.unwrap();
        let mut unseen: std::collections::VecDeque<Sent> = Default::default();
        for n in from.. {
            unseen.push_back(append_patiently(&log, n, 50 + (n * 613 % 3000) as usize).await);
            if n % 5 == 0 {
                log.kick();
                glommio::executor().yield_now().await;
            }
            if unseen.len() > 50 {
                glommio::timer::sleep(std::time::Duration::from_micros(100)).await;
            }
            let visible = log.visible();
            let mut out = String::new();
            while let Some(sent) = unseen.front()
                && sent.offset + sent.len as u64 <= visible
            {
                out += &format!("ack {} {} {} {}\n", sent.n, sent.offset, sent.len, sent.body);
                unseen.pop_front();
            }
            std::io::stdout().write_all(out.as_bytes()).unwrap();
        }
    });
}

/// Runs the child until it acknowledged `count` messages, stops it, calls `while_stopped`, and kills it.
fn run_and_kill<T>(
    store: &Path,
    from: u64,
    level: &str,
    count: usize,
    while_stopped: impl FnOnce() -> T,
) -> (Vec<Sent>, T) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored", "--nocapture"])
        .env(STORE, store)
        .env(FROM, from.to_string())
        .env(LEVEL, level)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acked = Vec::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while acked.len() < count {
        let line = lines.next().expect("the child ended early").unwrap();
        acked.extend(parse(&line));
    }
    // SAFETY: a plain system call on a child that wasn't waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) };
    let value = while_stopped();
    child.kill().unwrap();
    child.wait().unwrap();
    // What it had printed before it died counts too, except a torn last line.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    acked.extend(rest.iter().take(rest.len().saturating_sub(1)).filter_map(|l| parse(l)));
    (acked, value)
}

fn parse(line: &str) -> Option<Sent> {
    let mut words = line.split_once("ack ")?.1.split(' ');
    let mut next = || words.next()?.parse::<u64>().ok();
    let (n, offset, len, body) = (next()?, next()?, next()?, next()?);
    Some(Sent { n, offset, len: len as usize, body: body as usize })
}

/// Opens the store, checks every acknowledged message and the whole log, and returns the next message number.
fn check_store(store: &Path, level: &'static str, acked: Vec<Sent>) -> u64 {
    let store = store.to_path_buf();
    on_reactor(move || async move {
        let mut config = config(&store);
        config.core.sync = level == "sync";
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(!opened.recovered.clean);
        for sent in &acked {
            read_back(&log, sent, ReadHint::STREAM).await.unwrap();
        }
        // Every record up to the end is whole, and numbers follow one another: nothing invented.
        let (mut at, mut expected) = (0, 0);
        let end = opened.recovered.end;
        let segment = opened.recovered.state.segment_size;
        while at < end {
            let room = (segment - at % segment).min(end - at).min(8192) as usize;
            let slice = log.read(at, room, ReadHint::STREAM).await.unwrap();
            match check(slice.bytes(), at, CheckRule::Exact) {
                CheckResult::Good(view) => {
                    assert_eq!(view.queue_offset(), expected);
                    let sent = Sent {
                        n: expected as u64,
                        offset: at,
                        len: view.total_size(),
                        body: view.body().len(),
                    };
                    is_message(slice.bytes(), &sent);
                    expected += 1;
                    at += sent.len as u64;
                }
                CheckResult::Blank { .. } => at = at - at % segment + segment,
                other => panic!("at {at} of {end}: {other:?}"),
            }
        }
        log.close().await.unwrap();
        expected as u64
    })
}

fn kills_lose_nothing_acknowledged(level: &'static str) {
    let dir = disk_dir();
    let (mut from, mut acked) = (0, Vec::new());
    for count in [1, 700, 40, 1500] {
        acked.extend(run_and_kill(dir.path(), from, level, count, || ()).0);
        from = check_store(dir.path(), level, acked.clone());
    }
    assert!(from as usize >= acked.len());
}

#[test]
fn a_killed_process_loses_nothing_acknowledged_at_write() {
    kills_lose_nothing_acknowledged("write");
}

#[test]
fn a_killed_process_loses_nothing_acknowledged_at_sync() {
    kills_lose_nothing_acknowledged("sync");
}

/// The store on a disk of its own; the image, copied while the process stands still, is what a kernel crash would leave.
/// Without the zeroed frontier nearly all of it would be unreadable.
fn kernel_crashes_lose_nothing_acknowledged(level: &'static str) {
    let Some(disk) = SmallDisk::new(96) else { return };
    let store = disk.mount().join("store");
    let (mut from, mut acked) = (0, Vec::new());
    for count in [1, 900, 30, 2000] {
        let copy = || disk.crashed_copy().unwrap();
        let (more, copy) = run_and_kill(&store, from, level, count, copy);
        acked.extend(more);
        check_store(&copy.mount().join("store"), level, acked.clone());
        from = check_store(&store, level, acked.clone());
    }
}

#[test]
fn a_kernel_crash_loses_nothing_acknowledged_at_write() {
    kernel_crashes_lose_nothing_acknowledged("write");
}

#[test]
fn a_kernel_crash_loses_nothing_acknowledged_at_sync() {
    kernel_crashes_lose_nothing_acknowledged("sync");
}
