//! The block cache of cold reads. Direct I/O bypasses the page cache, so without it every reader would pay the device.
//!
//! The log is cut into aligned blocks of 128 KiB (aligned inside their segment). One device read brings an *extent* of
//! one to eight blocks; the extent is what is kept, shared and evicted (CLOCK, by bytes). Two readers that miss the same
//! block share one read: the first leads, the others wait. Knows no file and no executor; lives on one reactor.

use super::block::Slice;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use std::{
    cell::{Cell, RefCell},
    collections::{VecDeque, hash_map::Entry},
    future::Future,
    ops::Range,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// Bytes of a cache block.
pub const CACHE_BLOCK_BYTES: u64 = 128 * 1024;
/// Most bytes one device read brings.
pub const CACHE_READ_BYTES_MAX: u64 = 1024 * 1024;

/// How far ahead of a steady reader the log is read.
const ORDER_BYTES: u64 = 2 * CACHE_READ_BYTES_MAX;
/// Reads in advance that may be under way at once, and so the most that they can take of the cache.
const ORDERS_MAX: usize = 8;

/// How far ahead of the asked range a read may go. See [`ReadRun`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadHint {
    /// Bytes worth reading from the start of the range; 0 = the exact range, kept out of the cache.
    pub ahead_bytes: u32,
}

impl ReadHint {
    /// Only what is asked (a look-up by offset).
    pub const EXACT: ReadHint = ReadHint { ahead_bytes: 0 };
    /// A reader that is known to read on (a slave that catches up).
    pub const STREAM: ReadHint = ReadHint { ahead_bytes: CACHE_READ_BYTES_MAX as u32 };
}

/// Remembers how one reader (a pull of one group on one queue, a slave) moves through the log, and turns it into hints:
/// its first read is exact; reads that continue near the last one grow to 128 KiB, then double up to 1 MiB. From then on what comes next is
/// read before it is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadRun {
    next: u64,
    ahead: u32,
    /// Up to where reads have been ordered in advance.
    ordered: u64,
}

impl ReadRun {
    /// A reader that is known to read on from `offset`.
    pub fn steady(offset: u64) -> Self {
        ReadRun { next: offset, ahead: CACHE_READ_BYTES_MAX as u32, ordered: 0 }
    }

    /// The hint for reading `[offset, offset + len)`, and remembers the read.
    pub fn hint(&mut self, offset: u64, len: usize) -> ReadHint {
        let near =
            self.next > 0 && offset >= self.next && offset - self.next <= 2 * CACHE_READ_BYTES_MAX;
        if !near {
            self.ordered = 0;
        }
        self.ahead = match (near, self.ahead) {
            (false, _) => 0,
            (true, 0) => CACHE_BLOCK_BYTES as u32,
            (true, ahead) => ahead.saturating_mul(2).min(CACHE_READ_BYTES_MAX as u32),
        };
        self.next = offset + len as u64;
        ReadHint { ahead_bytes: self.ahead }
    }

    /// What to order now, so that a reader that is steadily on its way finds it there: from where to where, if anything.
    pub(super) fn order(&mut self) -> Option<Range<u64>> {
        let (from, to) = (self.ordered.max(self.next), self.next + ORDER_BYTES);
        // Half of it at a time, not a look-up for every record.
        if u64::from(self.ahead) < CACHE_READ_BYTES_MAX || from + ORDER_BYTES / 2 > to {
            return None;
        }
        self.ordered = to;
        Some(from..to)
    }
}

struct Extent {
    start: u64,
    len: u64,
    data: Rc<dyn AsRef<[u8]>>,
    referenced: Cell<bool>,
}

impl Extent {
    /// The starts of the blocks it covers. An extent never crosses a segment, so they are equally spaced.
    fn block_starts(&self) -> impl Iterator<Item = u64> + use<> {
        (self.start..self.start + self.len).step_by(CACHE_BLOCK_BYTES as usize)
    }
}

/// A read in flight: its readers wait here.
#[derive(Default)]
struct Flight {
    landed: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

#[derive(Default)]
struct Inner {
    blocks: FxHashMap<u64, Rc<Extent>>,
    clock: VecDeque<Rc<Extent>>,
    bytes: u64,
    flights: FxHashMap<u64, Rc<Flight>>,
    /// Reads in advance that are under way.
    orders: usize,
    hits: u64,
    misses: u64,
}

/// Counters of the cache, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Bytes kept now.
    pub bytes: u64,
    /// Look-ups served from memory.
    pub hits: u64,
    /// Look-ups that went to the device.
    pub misses: u64,
}

/// The cache. One per log.
pub(crate) struct BlockCache {
    budget: u64,
    inner: Rc<RefCell<Inner>>,
}

/// What a reader that missed must do.
pub(crate) enum Join {
    /// Read the block; dropping the lead (done or given up) lets the others go on.
    Lead(Lead),
    /// Somebody reads it: wait, then look again.
    Follow(Follow),
}

pub(crate) struct Lead {
    inner: Rc<RefCell<Inner>>,
    flight: Rc<Flight>,
    /// The blocks that are being read.
    blocks: SmallVec<[u64; 8]>,
    /// Whether it is one of those ordered in advance.
    ordered: bool,
}

pub(crate) struct Follow(Rc<Flight>);

impl BlockCache {
    /// A cache of at most `budget` bytes (0: nothing is kept, reads are still shared).
    pub(crate) fn new(budget: u64) -> Self {
        BlockCache { budget, inner: Rc::default() }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let inner = self.inner.borrow();
        CacheStats { bytes: inner.bytes, hits: inner.hits, misses: inner.misses }
    }

    /// The bytes from `offset` that one extent holds: at least one, at most `len`. `block` is the start of its block.
    pub(crate) fn get(&self, block: u64, offset: u64, len: usize) -> Option<Slice> {
        let mut inner = self.inner.borrow_mut();
        let found = inner.blocks.get(&block).and_then(|extent| {
            let from = offset.checked_sub(extent.start)?;
            let n = extent.len.checked_sub(from)?.min(len as u64);
            if n == 0 {
                return None;
            }
            extent.referenced.set(true);
            Some(Slice { owner: extent.data.clone(), range: from as usize..(from + n) as usize })
        });
        match found {
            Some(_) => inner.hits += 1,
            None => inner.misses += 1,
        }
        found
    }

    /// Becomes the reader of `block`, or waits for who already is.
    pub(crate) fn join(&self, block: u64) -> Join {
        let mut inner = self.inner.borrow_mut();
        if let Some(flight) = inner.flights.get(&block) {
            return Join::Follow(Follow(flight.clone()));
        }
        Join::Lead(self.lead(&mut inner, block, false))
    }

    /// Becomes the reader of `block` before anybody asks for it; `None` if it is there, or being read, or if there are enough of these.
    pub(crate) fn order(&self, block: u64) -> Option<Lead> {
        let mut inner = self.inner.borrow_mut();
        let enough = inner.orders == ORDERS_MAX
            || self.budget < 2 * ORDERS_MAX as u64 * CACHE_READ_BYTES_MAX;
        if enough || inner.blocks.contains_key(&block) || inner.flights.contains_key(&block) {
            return None;
        }
        inner.orders += 1;
        Some(self.lead(&mut inner, block, true))
    }

    fn lead(&self, inner: &mut Inner, block: u64, ordered: bool) -> Lead {
        let flight = Rc::<Flight>::default();
        inner.flights.insert(block, flight.clone());
        Lead { inner: self.inner.clone(), flight, blocks: smallvec![block], ordered }
    }

    /// Keeps `data`, the log's bytes from `start` (a block start), all of one segment.
    pub(crate) fn insert(&self, start: u64, data: Rc<dyn AsRef<[u8]>>) {
        let len = (*data).as_ref().len() as u64;
        if len == 0 || len > self.budget {
            return;
        }
        let mut inner = self.inner.borrow_mut();
        // Room is made first: the newcomer, not yet referenced, must not be the one to go.
        Self::evict(&mut inner, self.budget - len);
        let extent = Rc::new(Extent { start, len, data, referenced: Cell::new(false) });
        for block in extent.block_starts() {
            inner.blocks.insert(block, extent.clone());
        }
        inner.bytes += len;
        inner.clock.push_back(extent);
    }

    fn evict(inner: &mut Inner, bytes_max: u64) {
        // Ends: each round either drops an extent or takes away its second chance.
        while inner.bytes > bytes_max {
            let Some(extent) = inner.clock.pop_front() else {
                return;
            };
            if extent.referenced.take() {
                inner.clock.push_back(extent);
                continue;
            }
            inner.bytes -= extent.len;
            for block in extent.block_starts() {
                // A block that a later read brought again belongs to that read's extent.
                if let Entry::Occupied(e) = inner.blocks.entry(block)
                    && Rc::ptr_eq(e.get(), &extent)
                {
                    e.remove();
                }
            }
        }
    }

    /// Forgets everything that isn't wholly inside `[min, max)`: after a deletion or a cut.
    pub(crate) fn keep_only(&self, min: u64, max: u64) {
        let mut inner = self.inner.borrow_mut();
        let outside = |e: &Extent| e.start < min || e.start + e.len > max;
        inner.blocks.retain(|_, e| !outside(e));
        let mut freed = 0;
        inner.clock.retain(|e| {
            let drop = outside(e);
            if drop {
                freed += e.len;
            }
            !drop
        });
        inner.bytes -= freed;
    }
}

impl Lead {
    /// The read goes up to `end`: readers of those blocks, too, wait for it.
    pub(crate) fn cover(&mut self, end: u64) {
        let mut inner = self.inner.borrow_mut();
        let first = self.blocks.first().copied().unwrap_or(end);
        for block in (first..end).step_by(CACHE_BLOCK_BYTES as usize).skip(1) {
            if let Entry::Vacant(vacant) = inner.flights.entry(block) {
                vacant.insert(self.flight.clone());
                self.blocks.push(block);
            }
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        {
            let mut inner = self.inner.borrow_mut();
            for block in &self.blocks {
                inner.flights.remove(block);
            }
            inner.orders -= usize::from(self.ordered);
        }
        self.flight.landed.set(true);
        for waker in self.flight.waiters.take() {
            waker.wake();
        }
    }
}

impl Future for Follow {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.landed.get() {
            return Poll::Ready(());
        }
        self.0.waiters.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: u64, byte: u8) -> Rc<dyn AsRef<[u8]>> {
        Rc::new(vec![byte; len as usize])
    }

    #[test]
    fn a_hit_shares_the_memory_and_a_miss_is_none() {
        let cache = BlockCache::new(1 << 20);
        let owner = data(2 * CACHE_BLOCK_BYTES, 7);
        cache.insert(0, owner.clone());
        let slice = cache.get(CACHE_BLOCK_BYTES, CACHE_BLOCK_BYTES + 10, 100).unwrap();
        assert_eq!(slice.bytes().len(), 100);
        assert!(std::ptr::eq(
            slice.bytes().as_ptr(),
            &(*owner).as_ref()[CACHE_BLOCK_BYTES as usize + 10]
        ));
        assert!(cache.get(2 * CACHE_BLOCK_BYTES, 2 * CACHE_BLOCK_BYTES, 1).is_none());
        // Past the extent's end only what it holds is given.
        let tail = cache.get(CACHE_BLOCK_BYTES, 2 * CACHE_BLOCK_BYTES - 5, 100).unwrap();
        assert_eq!(tail.bytes().len(), 5);
        assert_eq!(cache.stats().hits, 2);
        assert_eq!(cache.stats().misses, 1);
    }

    #[test]
    fn the_budget_holds_and_what_was_used_stays_longer() {
        let cache = BlockCache::new(4 * CACHE_BLOCK_BYTES);
        let mut start = 0;
        for round in 0..100u64 {
            cache.insert(start, data(CACHE_BLOCK_BYTES, round as u8));
            assert!(cache.stats().bytes <= 4 * CACHE_BLOCK_BYTES);
            // Block 0 is read all the time.
            if round < 50 {
                assert_eq!(cache.get(0, 0, 1).unwrap().bytes(), [0]);
            }
            start += CACHE_BLOCK_BYTES;
        }
        assert!(cache.get(0, 0, 1).is_none(), "unused, it went");
        assert!(cache.inner.borrow().blocks.len() <= 4);
    }

    #[test]
    fn a_slice_outlives_its_eviction() {
        let cache = BlockCache::new(CACHE_BLOCK_BYTES);
        cache.insert(0, data(CACHE_BLOCK_BYTES, 1));
        let slice = cache.get(0, 0, 10).unwrap();
        cache.insert(CACHE_BLOCK_BYTES, data(CACHE_BLOCK_BYTES, 2));
        assert!(cache.get(0, 0, 10).is_none());
        assert_eq!(slice.bytes(), [1; 10]);
    }

    #[test]
    fn a_replaced_extent_does_not_take_its_successor_with_it() {
        let cache = BlockCache::new(3 * CACHE_BLOCK_BYTES);
        cache.insert(0, data(100, 1));
        cache.insert(0, data(CACHE_BLOCK_BYTES, 2));
        cache.insert(CACHE_BLOCK_BYTES, data(2 * CACHE_BLOCK_BYTES, 3));
        assert_eq!(cache.get(0, 50, 1).unwrap().bytes(), [2]);
    }

    #[test]
    fn readers_of_one_block_share_one_read_and_a_dropped_leader_hands_over() {
        let cache = BlockCache::new(1 << 20);
        let Join::Lead(lead) = cache.join(0) else {
            panic!("the first reads");
        };
        let Join::Follow(mut follow) = cache.join(0) else {
            panic!("the second waits");
        };
        assert!(matches!(cache.join(CACHE_BLOCK_BYTES), Join::Lead(_)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut follow).poll(&mut cx).is_pending());
        drop(lead);
        assert!(Pin::new(&mut follow).poll(&mut cx).is_ready());
        assert!(matches!(cache.join(0), Join::Lead(_)), "its turn");
    }

    #[test]
    fn who_misses_a_block_of_a_read_under_way_waits_for_it() {
        let cache = BlockCache::new(1 << 20);
        let Join::Lead(mut lead) = cache.join(0) else { panic!("the first reads") };
        let other = cache.join(2 * CACHE_BLOCK_BYTES);
        lead.cover(4 * CACHE_BLOCK_BYTES - 5);
        assert!(matches!(cache.join(3 * CACHE_BLOCK_BYTES), Join::Follow(_)));
        assert!(matches!(cache.join(4 * CACHE_BLOCK_BYTES), Join::Lead(_)));
        drop(lead);
        assert!(matches!(cache.join(3 * CACHE_BLOCK_BYTES), Join::Lead(_)));
        assert!(matches!(cache.join(2 * CACHE_BLOCK_BYTES), Join::Follow(_)), "its own reader's");
        drop(other);
    }

    #[test]
    fn few_reads_are_ordered_and_none_of_what_is_there() {
        let cache = BlockCache::new(64 << 20);
        cache.insert(0, data(CACHE_BLOCK_BYTES, 1));
        assert!(cache.order(0).is_none());
        let first = cache.order(1 << 20).expect("nobody reads it");
        assert!(cache.order(1 << 20).is_none());
        assert!(matches!(cache.join(1 << 20), Join::Follow(_)));
        let others: Vec<_> = (2..9).map(|at| cache.order(at << 20)).collect();
        assert!(others.iter().all(Option::is_some) && cache.order(9 << 20).is_none());
        drop(first);
        assert!(cache.order(9 << 20).is_some());
        assert!(BlockCache::new(8 << 20).order(0).is_none(), "it would push out what is read now");
    }

    #[test]
    fn only_a_steady_run_orders_and_each_byte_once() {
        let mut run = ReadRun::default();
        let (mut at, mut ordered) = (1_000_000u64, Vec::new());
        for n in 0..400 {
            run.hint(at, 10_000);
            at += 10_000;
            if let Some(range) = run.order() {
                assert!(
                    n >= 4 && range.end <= at + ORDER_BYTES && range.start >= at,
                    "{n} {range:?}"
                );
                ordered.push(range);
            }
        }
        assert!(ordered.windows(2).all(|w| w[0].end == w[1].start), "{ordered:?}");
        assert!(ordered.last().is_some_and(|last| last.end >= at + ORDER_BYTES / 2));
        run.hint(5, 10);
        assert_eq!(run.order(), None);
    }

    #[test]
    fn a_cut_forgets_what_lies_behind_it() {
        let cache = BlockCache::new(1 << 20);
        for i in 0..4 {
            cache.insert(i * CACHE_BLOCK_BYTES, data(CACHE_BLOCK_BYTES, i as u8));
        }
        cache.keep_only(CACHE_BLOCK_BYTES, 3 * CACHE_BLOCK_BYTES - 1);
        let held: Vec<bool> = (0..4)
            .map(|i| cache.get(i * CACHE_BLOCK_BYTES, i * CACHE_BLOCK_BYTES, 1).is_some())
            .collect();
        assert_eq!(held, [false, true, false, false]);
        assert_eq!(cache.stats().bytes, CACHE_BLOCK_BYTES);
    }

    #[test]
    fn a_run_grows_when_sequential_and_falls_back_when_not() {
        let mut run = ReadRun::default();
        let mut at = 1_000_000;
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(run.hint(at, 5000).ahead_bytes);
            at += 20_000;
        }
        assert_eq!(seen, [0, 131_072, 262_144, 524_288, 1_048_576, 1_048_576]);
        assert_eq!(run.hint(10, 5000), ReadHint::EXACT);
    }
}
