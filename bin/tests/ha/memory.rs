//! What slaves that take nothing cost their master: nothing, however much is sent meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::ha::{Pair, await_text, number};
use crate::support::wire::{Conn, code, send_ext};
use crate::support::{Broker, Options, exclusive, tempdir};
use crate::{QUEUES, TOPIC};

/// Nobody is given up here: silence is what is looked at.
const PATIENT: &str =
    "heartbeat_ms = 300\nhousekeeping_ms = 600000\nmetadata_ms = 300\nstart = \"oldest\"\n";
/// What the broker may keep by itself: blocks and cache.
const BUDGETS: &str = "[limits]\nblock_budget_bytes = 16777216\ncache_budget_bytes = 16777216\nunwritten_bytes = 8388608\n";
/// Fills all of that.
const WARM: u64 = 96 << 20;
/// A frame for each slave, and what an allocator does not give back.
const GROWTH_MAX_KIB: u64 = 16 << 10;
const BODY_BYTES: usize = 128 << 10;

/// Bytes sent while slaves take nothing: `RINGMQ_TEST_MEMORY_MIB`, else 64 MiB.
fn new_data() -> u64 {
    let mib = std::env::var("RINGMQ_TEST_MEMORY_MIB").map_or(64, |mib| mib.parse().expect("MiB"));
    mib << 20
}

/// Sends until the log has grown by `bytes`. Oneway in the middle: what counts is how much there is.
fn grow(master: &Broker, bytes: u64) {
    let mut conn = Conn::open(master.address(0)).expect("a connection");
    let body = vec![b'm'; BODY_BYTES];
    let mut sent = 0;
    for queue in (0..QUEUES).cycle() {
        let queue = queue.to_string();
        let ext = send_ext("g", TOPIC, &queue, "", false);
        let reply = conn.call(code::SEND_MESSAGE_V2, &ext, &body).expect("a reply");
        assert_eq!(reply.code, 0, "{reply:?}");
        sent += BODY_BYTES as u64;
        if sent >= bytes {
            return;
        }
    }
}

/// A stock slave that reports once, from the first byte on, and then reads little or nothing.
struct Lazy {
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Lazy {
    fn connect(master: &Broker, bytes_a_tick: usize) -> Lazy {
        let mut ha_port = master.address(0);
        ha_port.set_port(ha_port.port() + 1);
        let mut stream = TcpStream::connect(ha_port).expect("the HA port");
        stream.write_all(&1u64.to_be_bytes()).expect("a report");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let reader = std::thread::spawn(move || {
            let mut taken = vec![0; bytes_a_tick];
            while !stopped.load(Ordering::SeqCst) {
                if bytes_a_tick > 0 && stream.read(&mut taken).unwrap_or(0) == 0 {
                    break;
                }
                // The pace of a slow reader.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Lazy { stop, reader: Some(reader) }
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.reader.take().map(JoinHandle::join);
    }
}

#[test]
fn slaves_that_take_nothing_or_little_cost_their_master_no_memory() {
    let _alone = exclusive();
    let dir = tempdir("ha-master-memory");
    let options = Options { config: BUDGETS.to_owned(), ..Options::default() };
    let mut pair = Pair::start(dir.path(), "async-master", PATIENT, options);
    pair.master.create_topic(TOPIC, QUEUES);
    await_text(pair.slave.address(0), "ringmqHaState", |state| state == "following");
    grow(&pair.master, WARM);
    pair.await_caught_up();
    let before = pair.master.process().memory_kib("VmRSS");
    pair.slave.process().signal(libc::SIGSTOP);
    let _deaf = Lazy::connect(&pair.master, 0);
    let _slow = Lazy::connect(&pair.master, 4 << 10);
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "3");
    let start = number(pair.master.address(0), "commitLogMaxOffset").expect("the log's end");
    let mut most = 0;
    for _ in 0..8 {
        grow(&pair.master, new_data() / 8);
        most = most.max(pair.master.process().memory_kib("VmRSS"));
    }
    let end = number(pair.master.address(0), "commitLogMaxOffset").expect("the log's end");
    assert!(end - start >= new_data());
    println!("{} MiB sent, memory {before} KiB before, {most} KiB at most", new_data() >> 20);
    assert!(most < before + GROWTH_MAX_KIB, "from {before} to {most} KiB");
    await_text(pair.master.address(0), "ringmqHaSlaves", |slaves| slaves == "3");
    pair.slave.process().signal(libc::SIGCONT);
    pair.await_caught_up();
    pair.compare_logs();
}
