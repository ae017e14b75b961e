//! Opening shards and putting and getting messages, for the other modules.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use ringmq_engine::log::LogConfig;
use ringmq_engine::shard::{
    DERIVED_UNWRITTEN_BYTES_MAX, GetLimits, GetResult, NewMessage, NewRun, OpenReport, Queue,
    Shard, ShardConfig, ShardListener, Stored, UnitCode,
};
use ringmq_engine::state::delay::DelayLevels;
use ringmq_engine::state::waiters::WaitQueue;
use ringmq_net::record::{Properties, RecordView, decode, tags_code};

use crate::support::{MIB, config};

pub(crate) const HOST: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10911);

/// Small files, so that a test rolls several in no time.
pub(crate) fn shard_config(store: &Path) -> ShardConfig {
    ShardConfig {
        store: store.to_owned(),
        shards: 1,
        log: LogConfig { ..config(store) },
        segment_bytes: MIB,
        queue_file_bytes: 2000,
        index: true,
        index_slots: 100,
        index_entries: 400,
        message_bytes_max: 64 << 10,
        derived_unwritten_bytes_max: DERIVED_UNWRITTEN_BYTES_MAX,
        delay_levels: DelayLevels::default(),
    }
}

pub(crate) async fn open(store: &Path) -> (Rc<Shard>, OpenReport) {
    open_with(shard_config(store)).await
}

pub(crate) async fn open_with(config: ShardConfig) -> (Rc<Shard>, OpenReport) {
    Shard::open(config).await.expect("the shard opens")
}

/// Puts a run of messages; bodies and properties as given.
pub(crate) fn put_run(
    shard: &Shard,
    queue: &Rc<Queue>,
    now_ms: i64,
    messages: &[(Vec<u8>, String)],
) -> Stored {
    let run = NewRun {
        queue,
        sys_flag: 0,
        born_timestamp: now_ms,
        born_host: HOST,
        store_host: HOST,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
    };
    let known: Vec<_> = messages.iter().map(|(_, text)| Properties::new(text).known()).collect();
    let messages = messages.iter().zip(&known).map(|((body, properties), known)| NewMessage {
        flag: 0,
        body,
        properties: properties.as_bytes(),
        known,
        code: UnitCode::Tags(tags_code(known.tags)),
    });
    shard.put(now_ms, &run, messages, |_| {}).expect("a put")
}

pub(crate) fn put(shard: &Shard, queue: &Rc<Queue>, now_ms: i64, body: &[u8]) -> Stored {
    put_run(shard, queue, now_ms, &[(body.to_vec(), format!("UNIQ_KEY\u{1}key-{now_ms}"))])
}

/// Writes everything that was appended, and waits until it is visible.
pub(crate) async fn settle(shard: &Rc<Shard>) {
    let end = shard.log().appended();
    shard.kick();
    shard.log().flushed(end).await.expect("a flush");
    assert_eq!(shard.dispatched(), end.max(shard.dispatched()), "what is visible is dispatched");
}

pub(crate) const ALL: GetLimits = GetLimits { messages: 32, bytes: 256 << 10, units: 800 };

/// Reads from memory if it can, else from the device, as a pull does.
pub(crate) async fn get(shard: &Shard, queue: &Queue, offset: i64, limits: GetLimits) -> GetResult {
    match shard.get(queue, offset, limits, |_| true) {
        Some(result) => result,
        None => shard.get_cold(queue, offset, limits, |_| true).await.expect("a cold read"),
    }
}

/// All bodies of a queue from an offset on; checks that queue offsets follow one another.
pub(crate) async fn bodies(shard: &Shard, queue: &Queue, mut offset: i64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while offset < queue.max_offset() {
        let result = get(shard, queue, offset, ALL).await;
        assert!(
            result.messages > 0,
            "nothing at {offset} of {}: {:?}",
            queue.max_offset(),
            result.status
        );
        for_each_record(&result, |record| {
            assert_eq!(record.queue_offset(), offset);
            assert_eq!(record.topic(), &**queue.topic());
            found.push(record.body().to_vec());
            offset += 1;
        });
        assert_eq!(result.next_offset, offset);
    }
    found
}

pub(crate) fn for_each_record(result: &GetResult, mut each: impl FnMut(&RecordView<'_>)) {
    let mut count = 0;
    for slice in &result.slices {
        let mut rest = slice.bytes();
        while !rest.is_empty() {
            let record = decode(rest).expect("whole records");
            each(&record);
            count += 1;
            rest = &rest[record.total_size()..];
        }
    }
    assert_eq!(count, result.messages);
}

/// Notes what a shard tells its broker.
#[derive(Default)]
pub(crate) struct Noted {
    pub(crate) arrived: RefCell<Vec<(i64, i64)>>,
    pub(crate) progressed: std::cell::Cell<u32>,
}

impl ShardListener for Noted {
    fn arrived(&self, _: WaitQueue, max_offset: i64, tags_code: i64) {
        self.arrived.borrow_mut().push((max_offset, tags_code));
    }

    fn progressed(&self) {
        self.progressed.set(self.progressed.get() + 1);
    }
}

const STORE: &str = "RINGMQ_SHARD_STORE";

/// The store of the process that is to die, if this is one.
pub(crate) fn store_of_the_dying() -> Option<std::path::PathBuf> {
    std::env::var_os(STORE).map(Into::into)
}

/// Runs the ignored test `name` in a process of its own on `store`, with further variables; it must end by [`die`].
pub(crate) fn run_until_death(name: &str, store: &Path, variables: &[(&str, String)]) {
    use std::os::unix::process::ExitStatusExt;
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(STORE, store)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{name} ended otherwise: {said}");
}

/// Ends this process as SIGKILL does: at once, with every thread.
pub(crate) fn die() -> ! {
    // SAFETY: plain system calls; the signal cannot be caught.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("a killed process does not go on")
}
