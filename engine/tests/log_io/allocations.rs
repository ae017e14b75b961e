//! Appending allocates nothing per message.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use ringmq_engine::log::Log;

use crate::support::{append, config, disk_dir, on_reactor, settle};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; the counter is a plain thread-local cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

#[test]
fn an_append_allocates_only_its_share_of_a_block() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let mut config = config(&store);
        config.core.segment_size = 64 << 20;
        let (log, _) = Log::open(config).await.unwrap();
        let fill = |out: &mut [u8], _: u64| out.fill(1);
        log.append(100, fill).unwrap();
        let before = allocations();
        for _ in 0..10 {
            log.append(100, fill).unwrap();
        }
        assert_eq!(allocations(), before, "inside a block");
        log.kick();
        settle(&log).await;

        let before = allocations();
        let count = 20_000u64;
        for _ in 0..count {
            log.append(1000, fill).unwrap();
        }
        let per_message = (allocations() - before) as f64 / count as f64;
        assert!(per_message < 0.05, "{per_message} allocations per append");
        settle(&log).await;

        let before = allocations();
        for _ in 0..100 {
            log.kick();
        }
        assert_eq!(allocations(), before, "a kick with nothing to do");
        let _ = append(&log, 1, 10);
        log.close().await.unwrap();
    });
}
