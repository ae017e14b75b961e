//! A reactor with a metronome, a directory on a real disk, and records to append and to check.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use ringmq_engine::log::{AppendError, CoreConfig, Log, LogConfig, LogError, ReadHint};
use ringmq_net::record::{CheckResult, CheckRule, RecordFields, check};

use self::image::LoopFs;

#[path = "../../../bin/tests/support/image.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "written for the tests of the broker, which use more of it"
)]
mod image;

pub(crate) const MIB: u64 = 1 << 20;

/// A fresh directory under the build's own: on a disk, not in memory.
pub(crate) fn disk_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the test")
}

/// An ext4 in a file of its own, mounted; unmounted when dropped.
pub(crate) struct SmallDisk {
    // Before the directory that its file is in: unmounted first.
    fs: LoopFs,
    _dir: tempfile::TempDir,
}

impl SmallDisk {
    /// `None`, with the reason printed, where one may not mount.
    pub(crate) fn new(mib: u64) -> Option<Self> {
        let dir = disk_dir();
        match LoopFs::create(dir.path(), "disk", mib << 20) {
            Ok(fs) => Some(SmallDisk { fs, _dir: dir }),
            Err(why) => {
                println!("skipped: {why}");
                None
            }
        }
    }

    pub(crate) fn mount(&self) -> &Path {
        &self.fs.mount
    }

    /// The disk as a kernel that crashes now would leave it: what completed is there, what was only in memory is not.
    pub(crate) fn crashed_copy(&self) -> Result<Self, String> {
        let dir = disk_dir();
        let image = dir.path().join("disk.img");
        self.fs.copy_at_rest(&image)?;
        Ok(SmallDisk { fs: LoopFs::attach(dir.path(), "disk", image)?, _dir: dir })
    }
}

/// Small segments and small steps, so that a test rolls several in no time.
pub(crate) fn config(store: &Path) -> LogConfig {
    LogConfig {
        core: CoreConfig {
            segment_size: MIB,
            write_bound_step: 256 << 10,
            zero_step_bytes_min: 64 << 10,
            zero_step_bytes_max: MIB,
            hot_bytes_max: 256 << 10,
            ..CoreConfig::default()
        },
        cache_bytes: MIB,
        ..LogConfig::new(store)
    }
}

/// Runs a future on a reactor of its own, with a metronome beside it (an executor of glommio 0.9.0 may park for ever with
/// work to do), and gives up after a minute.
pub(crate) fn on_reactor<T: Send + 'static, F>(body: impl FnOnce() -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
{
    install_handler();
    let (send, receive) = std::sync::mpsc::channel();
    let done = Arc::new(AtomicBool::new(false));
    let (metronome_done, sent) = (done.clone(), send);
    let thread = std::thread::Builder::new()
        .name("reactor".to_owned())
        .spawn(move || {
            // SAFETY: returns the calling thread's handle.
            let me = unsafe { libc::pthread_self() };
            let beat = std::thread::spawn(move || {
                while !metronome_done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                    // SAFETY: the reactor's thread joins this one before it ends.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR2) };
                }
            });
            let executor = LocalExecutorBuilder::new(Placement::Unbound)
                .io_memory(64 << 10)
                .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
                .make()
                .expect("an executor");
            let value = executor.run(body());
            done.store(true, Ordering::Relaxed);
            beat.join().expect("the metronome");
            let _ = sent.send(value);
        })
        .expect("a thread");
    match receive.recv_timeout(Duration::from_secs(60)) {
        Ok(value) => {
            thread.join().expect("the reactor");
            value
        }
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the reactor hangs"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(cause) => std::panic::resume_unwind(cause),
            Ok(()) => panic!("the reactor gave no result"),
        },
    }
}

fn install_handler() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; an all-zero sigaction is valid, without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
}

/// The body of message `n`: told from every other, and compressible by nobody.
pub(crate) fn body(n: u64, len: usize) -> Vec<u8> {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

fn fields<'a>(n: u64, body: &'a [u8]) -> RecordFields<'a> {
    let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 10911));
    RecordFields {
        queue_id: 0,
        flag: 0,
        queue_offset: n as i64,
        physical_offset: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: host,
        store_timestamp: 1_700_000_000_000 + n as i64,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        topic: "TopicTest",
        properties: b"UNIQ_KEY\x01k\x02",
    }
}

/// A message as appended: where it lies and how long its record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) n: u64,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) body: usize,
}

/// Encodes record `n` for a place in the log.
pub(crate) fn record(n: u64, body_len: usize, offset: u64) -> Vec<u8> {
    let body = body(n, body_len);
    let record = RecordFields { physical_offset: offset as i64, ..fields(n, &body) };
    let mut out = vec![0; record.encoded_len()];
    record.encode(&mut out);
    out
}

/// Appends message `n`.
pub(crate) fn append(log: &Log, n: u64, body_len: usize) -> Result<Sent, AppendError> {
    let body = body(n, body_len);
    let record = fields(n, &body);
    let len = record.encoded_len();
    let offset = log.append(len, |out, offset| {
        RecordFields { physical_offset: offset as i64, ..record }.encode(out);
    })?;
    Ok(Sent { n, offset, len, body: body_len })
}

/// Appends message `n`, and waits and tries again while the log is only busy.
pub(crate) async fn append_patiently(log: &Log, n: u64, body_len: usize) -> Sent {
    loop {
        match append(log, n, body_len) {
            Ok(sent) => return sent,
            Err(AppendError::Busy { .. } | AppendError::NotReady { .. }) => {
                log.kick();
                glommio::timer::sleep(Duration::from_millis(1)).await;
            }
            Err(e) => panic!("append {n}: {e}"),
        }
    }
}

/// Waits until everything appended is visible.
pub(crate) async fn settle(log: &Log) {
    log.kick();
    while log.visible() < log.appended() {
        assert!(log.failed().is_none(), "{:?}", log.failed());
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
}

/// Checks that the bytes are exactly message `n` at its place.
pub(crate) fn is_message(bytes: &[u8], sent: &Sent) {
    match check(bytes, sent.offset, CheckRule::Exact) {
        CheckResult::Good(view) => {
            assert_eq!(view.queue_offset(), sent.n as i64);
            assert_eq!(view.body(), body(sent.n, sent.body));
        }
        other => panic!("message {} at {}: {other:?}", sent.n, sent.offset),
    }
}

/// Reads message `n` back and checks it.
pub(crate) async fn read_back(log: &Log, sent: &Sent, hint: ReadHint) -> Result<(), LogError> {
    let slice = log.read(sent.offset, sent.len, hint).await?;
    is_message(slice.bytes(), sent);
    Ok(())
}

pub(crate) fn segment_path(store: &Path, start: u64) -> PathBuf {
    store.join("commitlog").join(format!("{start:020}"))
}
