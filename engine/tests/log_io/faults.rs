//! Devices that fail: every error is typed and named, and a log that failed once never acknowledges again.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ringmq_engine::log::{
    AppendError, DiskFaults, FailedOperation, Fault, FaultSeam, FileOp, Log, LogConfig, LogError,
    ReadHint,
};

use crate::support::{append, append_patiently, config, disk_dir, on_reactor, read_back, settle};

/// Fails one kind of operation while it is armed.
struct Bad {
    op: FileOp,
    fault: Fault,
    armed: AtomicBool,
    hits: AtomicU64,
}

impl Bad {
    fn new(op: FileOp, fault: Fault) -> Arc<Bad> {
        Arc::new(Bad { op, fault, armed: AtomicBool::new(false), hits: AtomicU64::new(0) })
    }
    fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::SeqCst);
    }
}

impl DiskFaults for Bad {
    fn check(&self, op: FileOp, _: &Path, _: u64, _: u64) -> Option<Fault> {
        (op == self.op && self.armed.load(Ordering::SeqCst)).then(|| {
            self.hits.fetch_add(1, Ordering::SeqCst);
            self.fault
        })
    }
}

fn with(store: &Path, bad: &Arc<Bad>) -> LogConfig {
    LogConfig { seam: FaultSeam::new(bad.clone()), ..config(store) }
}

async fn until_failed(log: &Log) {
    while log.failed().is_none() {
        log.kick();
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
}

fn a_failure_is_for_good(op: FileOp, operation: FailedOperation) {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let bad = Bad::new(op, Fault::Errno(libc::EIO));
        let mut config = with(&store, &bad);
        config.core.sync = true;
        let (log, _) = Log::open(config).await.unwrap();
        let told = std::rc::Rc::new(std::cell::Cell::new(false));
        let seen = told.clone();
        log.on_progress(Box::new(move |p| seen.set(p.failed)));
        let before = append(&log, 0, 2000).unwrap();
        settle(&log).await;
        bad.arm(true);
        append(&log, 1, 2000).unwrap();
        until_failed(&log).await;
        assert!(told.get(), "whoever waits is told");
        let failure = log.failed().unwrap();
        assert_eq!(failure.operation, operation);
        assert!(failure.to_string().contains("Input/output error"), "{failure}");
        bad.arm(false);
        log.kick();
        glommio::timer::sleep(Duration::from_millis(50)).await;
        assert_eq!(log.durable(), before.offset + before.len as u64, "never again");
        assert!(matches!(append(&log, 2, 10), Err(AppendError::Failed(_))));
        read_back(&log, &before, ReadHint::EXACT).await.unwrap();
        assert!(matches!(log.close().await, Err(LogError::Failed(_))));

        let (log, opened) = Log::open(crate::support::config(&store)).await.unwrap();
        assert!(!opened.recovered.clean);
        read_back(&log, &before, ReadHint::EXACT).await.unwrap();
        let end = log.appended();
        assert_eq!(append_patiently(&log, 9, 100).await.offset, end);
        settle(&log).await;
        log.close().await.unwrap();
    });
}

#[test]
fn a_failed_write_stops_the_log_for_good_and_reads_go_on() {
    a_failure_is_for_good(FileOp::LogWrite, FailedOperation::Write);
}

#[test]
fn a_failed_flush_stops_the_log_for_good_and_reads_go_on() {
    a_failure_is_for_good(FileOp::LogFlush, FailedOperation::Flush);
}

#[test]
fn no_space_for_the_next_segment_refuses_appends_and_clears_by_itself() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let bad = Bad::new(FileOp::Allocate, Fault::Errno(libc::ENOSPC));
        bad.arm(true);
        // Already the first one.
        let (log, _) = Log::open(with(&store, &bad)).await.unwrap();
        assert!(matches!(append(&log, 0, 10), Err(AppendError::NoSpace { start: 0 })));
        assert!(log.failed().is_none());
        bad.arm(false);
        let sent = loop {
            match append(&log, 0, 10) {
                Ok(sent) => break sent,
                Err(AppendError::NoSpace { .. } | AppendError::NotReady { .. }) => {
                    glommio::timer::sleep(Duration::from_millis(20)).await;
                }
                Err(e) => panic!("{e}"),
            }
        };
        settle(&log).await;
        read_back(&log, &sent, ReadHint::EXACT).await.unwrap();
        log.close().await.unwrap();
    });
}

/// A store with some messages, closed.
async fn filled(store: &Path) -> Vec<crate::support::Sent> {
    let (log, _) = Log::open(config(store)).await.unwrap();
    let mut sent = Vec::new();
    for n in 0..300 {
        sent.push(append_patiently(&log, n, 4000).await);
    }
    settle(&log).await;
    log.close().await.unwrap();
    sent
}

#[test]
fn a_failed_read_names_file_and_place_and_the_next_one_works() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let sent = filled(&store).await;
        let bad = Bad::new(FileOp::LogRead, Fault::Errno(libc::EIO));
        let (log, _) = Log::open(with(&store, &bad)).await.unwrap();
        bad.arm(true);
        for hint in [ReadHint::EXACT, ReadHint::STREAM] {
            let error = log.read(sent[5].offset, sent[5].len, hint).await.unwrap_err();
            let line = error.to_string();
            assert!(
                line.contains("commitlog/00000000000000000000") && line.contains("byte"),
                "{line}"
            );
        }
        bad.arm(false);
        read_back(&log, &sent[5], ReadHint::STREAM).await.unwrap();
        log.close().await.unwrap();
    });
}

#[test]
fn short_reads_are_put_together() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let sent = filled(&store).await;
        // One unit and a bit at a time: the bit has to be read again.
        let bad = Bad::new(FileOp::LogRead, Fault::Short(5000));
        let (log, _) = Log::open(with(&store, &bad)).await.unwrap();
        bad.arm(true);
        for hint in [ReadHint::EXACT, ReadHint::STREAM] {
            for one in sent.iter().step_by(17) {
                read_back(&log, one, hint).await.unwrap();
            }
        }
        assert!(bad.hits.load(Ordering::SeqCst) > 40);
        log.close().await.unwrap();
    });
}

#[test]
fn readers_of_one_block_share_one_device_read() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let sent = filled(&store).await;
        let slow = Bad::new(FileOp::LogRead, Fault::Delay(Duration::from_millis(30)));
        let (log, _) = Log::open(with(&store, &slow)).await.unwrap();
        slow.arm(true);
        let readers: Vec<_> = (0..10)
            .map(|i| {
                let (log, one) = (log.clone(), sent[i]);
                glommio::spawn_local(async move {
                    read_back(&log, &one, ReadHint::STREAM).await.unwrap();
                })
            })
            .collect();
        for reader in readers {
            reader.await;
        }
        assert_eq!(slow.hits.load(Ordering::SeqCst), 1);
        log.close().await.unwrap();
    });
}

#[test]
fn a_state_that_cant_be_saved_delays_nothing_it_need_not_and_is_saved_later() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let bad = Bad::new(FileOp::Write, Fault::Errno(libc::ENOSPC));
        let (log, _) = Log::open(with(&store, &bad)).await.unwrap();
        bad.arm(true);
        // More than the saved write bound allows: the log waits instead of writing beyond it.
        for n in 0..100 {
            append_patiently(&log, n, 4000).await;
        }
        log.kick();
        glommio::timer::sleep(Duration::from_millis(200)).await;
        assert!(log.failed().is_none());
        assert!(log.written() < log.appended(), "it must not write beyond the saved bound");
        bad.arm(false);
        settle(&log).await;
        log.close().await.unwrap();
    });
}
