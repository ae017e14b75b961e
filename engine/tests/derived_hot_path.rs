//! The hot path of derived data allocates nothing that is not amortised, and is short: `cargo test --release` prints the time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::index::{Index, IndexConfig, IndexRecovery, load_index};
use ringmq_engine::queue::{Appended, QueueConfig, QueueRecovery, QueueStore, load_queues};
use ringmq_engine::store::{StoreLayout, Worker};
use ringmq_net::record::{
    CheckResult, CheckRule, PropertiesRewriter, RecordFields, TopicKeyHasher, check, tags_code,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it is; counting touches a thread-local number only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer lives over the call, which writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Prints CPU nanoseconds and returns allocations of this thread, each per call.
fn measure(what: &str, calls: i64, mut call: impl FnMut(i64)) -> f64 {
    let before = ALLOCATIONS.with(Cell::get);
    let start = cpu_time();
    for n in 0..calls {
        call(n);
    }
    let ns = (cpu_time() - start).as_nanos() as f64 / calls as f64;
    let allocations = (ALLOCATIONS.with(Cell::get) - before) as f64 / calls as f64;
    println!("{what}: {ns:.1} ns, {allocations:.6} allocations a call");
    allocations
}

#[test]
fn queue_appends_and_index_puts_are_allocation_free() {
    const CALLS: i64 = 400_000;
    let dir = tempfile::tempdir().expect("directory");
    let layout = StoreLayout::new(dir.path());
    layout.create().expect("create");
    let worker = Rc::new(Worker::start("test-hot-path").expect("worker"));
    let config = QueueConfig::new(&layout);
    let recovery = QueueRecovery {
        log_min: 0,
        cut_at: 0,
        log_end: 0,
        trusted: true,
        clean: true,
        digest: None,
        same_beginning: false,
    };
    let loaded = load_queues(&config, &recovery).expect("load");
    let store = QueueStore::new(config, Rc::clone(&worker), loaded);
    let queues: Vec<_> = (0..64).map(|n| store.open(&format!("topic{}", n / 8), n % 8)).collect();
    let appends = measure("queue append", CALLS, |n| {
        let queue = &queues[(n % 64) as usize];
        let appended = store.append(queue, n / 64, n * 1200, 1200, n);
        assert!(matches!(appended, Appended::Stored(_)));
    });
    assert!(appends < 0.01);
    let mut seen = 0i64;
    let recent = measure("32 recent units", CALLS / 32, |n| {
        store.recent(&queues[(n % 64) as usize], n % 1000, 32, |unit| {
            seen += unit.tags_code;
            true
        });
    });
    assert!(seen > 0 && recent == 0.0);

    let config = IndexConfig::new(&layout);
    let recovery = IndexRecovery { log_min: 0, log_end: 0, clean: true, files: None };
    let loaded = load_index(&config, &recovery).expect("load");
    let index = Index::new(config, worker, loaded);
    index.put(1, 0, 1_700_000_000_000);
    let hasher = TopicKeyHasher::new("TopicTest");
    // As stock clients make them: sixteen clients, each counting up at the end of its keys.
    let keys: Vec<String> = (0..CALLS)
        .map(|n| format!("C0A8010A00002A9F{:08X}{:08X}", n % 16 * 77_777, n / 16))
        .collect();
    let puts = measure("index hash and put, keys of 16 clients", CALLS, |n| {
        let hash = hasher.hash(&keys[n as usize]);
        index.put(hash, n * 1200, 1_700_000_000_000 + n / 100);
    });
    let scattered = measure("index put, scattered over 20 MB of slots", CALLS, |n| {
        let hash = (n as i32).wrapping_mul(0x9E37_79B1_u32 as i32) & i32::MAX;
        index.put(hash, (CALLS + n) * 1200, 1_700_000_010_000 + n / 100);
    });
    assert!(scattered < 0.01);
    assert!(puts < 0.01);
    index.flush_blocking().expect("flush");
    store.flush_blocking().expect("flush");
}

#[test]
fn a_record_is_made_without_allocation() {
    let body = vec![7u8; 1024];
    let mut rewriter = PropertiesRewriter::new();
    let mut out = vec![0; 4096];
    let text = "KEYS\u{1}order-1\u{2}UNIQ_KEY\u{1}C0A8010A00002A9F0000000000000000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
    let host = "10.0.0.5:10911".parse().expect("address");
    let made = measure("1 KiB record made and checked", 20_000, |n| {
        let known = rewriter.for_send(text, "DefaultCluster").expect("properties");
        black_box(tags_code(known.tags));
        let record = RecordFields {
            queue_id: 1,
            flag: 0,
            queue_offset: n,
            physical_offset: n,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: host,
            store_timestamp: 2,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            topic: "TopicTest",
            properties: rewriter.text(),
        };
        let len = record.encoded_len();
        record.encode(&mut out[..len]);
        assert!(matches!(check(&out, n as u64, CheckRule::Exact), CheckResult::Good(_)));
    });
    assert_eq!(made, 0.0);
}
