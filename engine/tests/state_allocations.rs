//! What a send or a pull asks of the broker's state allocates nothing once it is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringmq_engine::state::clients::{ClientConn, Clients};
use ringmq_engine::state::filter::TagFilter;
use ringmq_engine::state::locks::QueueLocks;
use ringmq_engine::state::offsets::OffsetTable;
use ringmq_engine::state::stats::StoreStats;
use ringmq_engine::state::topics::{SendTemplate, TopicRules, TopicTable};
use ringmq_engine::state::waiters::{Hold, Waiters};
use ringmq_net::body::{ConsumerData, MessageQueue, SubscriptionData};
use ringmq_net::language::Language;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting per thread.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counter allocates nothing, being a
// const-initialised thread local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of 1,000 runs of `work`, after 100 to warm up.
fn allocations(mut work: impl FnMut(i64)) -> u64 {
    (0..100).for_each(&mut work);
    let before = ALLOCATIONS.with(Cell::get);
    (100..1_100).for_each(&mut work);
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|n| drop(Box::new(n))), 1_000);
}

#[test]
fn offsets_commit_and_query_without_allocating() {
    let mut offsets = OffsetTable::default();
    let count = allocations(|n| {
        offsets.commit("group", "topic", (n % 8) as i32, n).unwrap();
        assert!(offsets.get("group", "topic", (n % 8) as i32).is_some());
    });
    assert_eq!(count, 0);
}

#[test]
fn topic_and_subscription_are_found_without_allocating() {
    let mut topics: TopicTable<Cell<i64>> = TopicTable::new(TopicRules::new("c", "b"), 0);
    let template = SendTemplate { default_topic: "TBW102", queues: 4, unit: false };
    topics.create_for_send("topic", template, 0).unwrap();
    let mut clients = Clients::new();
    let addr = ([127, 0, 0, 1], 9).into();
    let client =
        ClientConn { conn: 1, client_id: "c", language: Language::JAVA, version: 409, addr };
    let data = ConsumerData {
        group_name: "group".into(),
        consume_type: None,
        message_model: None,
        consume_from: None,
        subscriptions: vec![SubscriptionData::all("topic", 5)],
        unit_mode: false,
    };
    clients.register_consumer(&client, &data, true, 0).unwrap();
    let count = allocations(|n| {
        topics.get_for_send("topic").unwrap().unwrap().slot().set(n);
        let found = clients.subscription_for_pull("group", "topic", 5, false).unwrap();
        assert!(found.filter().matches(n));
        let asked = TagFilter::from_expression(Some("A || B || C"), Some("TAG")).unwrap();
        assert!(!asked.matches(0));
    });
    assert_eq!(count, 0);
}

#[test]
fn a_pull_waits_and_wakes_without_allocating() {
    let mut waiters = Waiters::new(100);
    let (busy, quiet) = (waiters.add_queue(), waiters.add_queue());
    let mut woken = Vec::with_capacity(8);
    let count = allocations(|n| {
        waiters.wake(quiet, n, 0, &mut woken);
        let filter = TagFilter::from_expression(Some("A"), None).unwrap();
        let hold =
            Hold { conn: n as u64 % 4, offset: n, filter, deadline_ms: n, bytes: 0, payload: n };
        waiters.hold(busy, n, hold).unwrap();
        waiters.wake(busy, n + 1, 65, &mut woken);
        assert_eq!(woken.pop(), Some(n));
        waiters.expire(n, &mut woken);
    });
    assert_eq!(count, 0);
}

#[test]
fn counting_and_refreshing_a_lock_allocate_nothing() {
    let stats = StoreStats::new(0);
    let mut locks = QueueLocks::default();
    let queue = MessageQueue::new("topic", "broker", 1);
    let count = allocations(|n| {
        stats.put(1, 1_024);
        stats.put_took_us(n as u64);
        stats.get(n as u64 % 2);
        assert!(locks.lock("group", "client", &queue, n));
    });
    assert_eq!(count, 0);
}
