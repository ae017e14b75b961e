//! Waiting pulls: requests that found nothing and asked to be held (long polling).
//!
//! ```text
//!   queue q:  head -> w3 -> w7 -> w9     wake(q, ..) walks one queue's list, in order of arrival
//!   conn  c:  head -> w3 -> w8           close_conn(c) walks one connection's list
//!   heap   :  (deadline, w8) (deadline, w3) ..   expire(now) pops; entries of released waiters
//!                                                are stale and skipped, and swept when too many
//! ```
//!
//! All three point into one slab. Holding and releasing allocate nothing once the slab has grown to
//! its high-water mark, and waking a queue on which nobody waits is one load and one comparison.
//!
//! Who is answered when:
//! - a message that **matches** the filter answers the request at once, with no scan delay;
//! - a message that does not match leaves the request held, but its offset must still advance, so
//!   [`Waiters::scan`] (each 5 s, as stock 4.9.8) releases whoever is behind its queue;
//! - the hold time releases the request exactly then, not at the next scan: stock 4.9.8 may be up to
//!   5 s late, which brings some clients close to their 30 s request timeout.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::ConnId;
use super::filter::TagFilter;

/// How often [`Waiters::scan`] should run, in ms (stock 4.9.8).
pub const SCAN_INTERVAL_MS: i64 = 5_000;

/// Bytes of a waiter's payload, on the average, for which there is always room. A pull with a common subscription has a quarter of it.
pub const BYTES_A_WAITER: usize = 1_024;

const NONE: u32 = u32::MAX;

/// The list of one queue's waiting pulls, made by [`Waiters::add_queue`]; keep it beside the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitQueue(u32);

impl WaitQueue {
    /// A dense index from 0, in order of [`Waiters::add_queue`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What to hold: see [`Waiters::hold`].
#[derive(Debug)]
pub struct Hold<P> {
    /// The connection that asked; its close drops the waiter.
    pub conn: ConnId,
    /// The queue offset that the pull asked for.
    pub offset: i64,
    /// Which messages answer it at once.
    pub filter: TagFilter,
    /// When to give up, ms, on the clock of [`Waiters::expire`].
    pub deadline_ms: i64,
    /// Bytes of memory behind `payload`: all together may be [`BYTES_A_WAITER`] times as many as there may be waiters.
    pub bytes: usize,
    /// What the caller needs to run the request again.
    pub payload: P,
}

/// Why a pull was not held; the payload comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum HoldRefused<P> {
    /// As many pulls are held as the bound allows: answer now.
    Full(P),
    /// The queue already holds messages at or after the offset (they became visible while the
    /// caller was reading): run the request again now.
    Behind(P),
}

#[derive(Debug)]
struct Waiter<P> {
    conn: ConnId,
    queue: u32,
    offset: i64,
    filter: TagFilter,
    bytes: usize,
    payload: P,
    by_queue: Link,
    by_conn: Link,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

const EMPTY: Ends = Ends { head: NONE, tail: NONE };

#[derive(Debug)]
struct Slot<P> {
    /// Counts the waiters that lived here, so that a stale heap entry is told from a live one.
    generation: u32,
    waiter: Option<Waiter<P>>,
}

/// Which of the two lists of a waiter.
#[derive(Clone, Copy)]
enum List {
    Queue,
    Conn,
}

/// The waiting pulls of one shard. Owned by its reactor; bounded by `waiters_max` in number and memory.
#[derive(Debug)]
pub struct Waiters<P> {
    queues: Vec<Ends>,
    conns: FxHashMap<ConnId, Ends>,
    slots: Vec<Slot<P>>,
    free: Vec<u32>,
    heap: BinaryHeap<Reverse<(i64, u32, u32)>>,
    len: usize,
    bytes: usize,
    waiters_max: usize,
    stopping: bool,
}

impl<P> Waiters<P> {
    /// An empty table that holds at most `waiters_max` pulls (at most 2^32 - 2).
    pub fn new(waiters_max: usize) -> Self {
        Self {
            queues: Vec::new(),
            conns: FxHashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            heap: BinaryHeap::new(),
            len: 0,
            bytes: 0,
            waiters_max: waiters_max.min(NONE as usize - 1),
            stopping: false,
        }
    }

    /// Makes the list of a queue. Lists are eight bytes and never reused, so that the handle of a
    /// deleted queue can do no harm.
    pub fn add_queue(&mut self) -> WaitQueue {
        let id = self.queues.len() as u32;
        self.queues.push(EMPTY);
        WaitQueue(id)
    }

    /// Pulls held now.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bound given to [`Waiters::new`].
    pub fn waiters_max(&self) -> usize {
        self.waiters_max
    }

    /// Whether anybody waits on this queue.
    #[inline]
    pub fn has_waiters(&self, queue: WaitQueue) -> bool {
        self.ends(queue).head != NONE
    }

    /// Holds a pull until a matching message, its deadline, a scan or the connection's close.
    ///
    /// `max_offset` is the queue's visible max offset *now*: if it is beyond the pull's offset the
    /// wake-up has already happened, and the pull is refused rather than left to sleep over it.
    pub fn hold(
        &mut self,
        queue: WaitQueue,
        max_offset: i64,
        hold: Hold<P>,
    ) -> Result<(), HoldRefused<P>> {
        if hold.offset < max_offset {
            return Err(HoldRefused::Behind(hold.payload));
        }
        let bytes_max = self.waiters_max.saturating_mul(BYTES_A_WAITER);
        let full = self.len >= self.waiters_max || self.bytes + hold.bytes > bytes_max;
        if self.stopping || full || queue.index() >= self.queues.len() {
            return Err(HoldRefused::Full(hold.payload));
        }
        let none = Link { prev: NONE, next: NONE };
        let (conn, deadline_ms) = (hold.conn, hold.deadline_ms);
        let waiter = Waiter {
            conn,
            queue: queue.0,
            offset: hold.offset,
            filter: hold.filter,
            bytes: hold.bytes,
            payload: hold.payload,
            by_queue: none,
            by_conn: none,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize].waiter = Some(waiter);
                id
            }
            None => {
                self.slots.push(Slot { generation: 0, waiter: Some(waiter) });
                (self.slots.len() - 1) as u32
            }
        };
        self.len += 1;
        self.bytes += hold.bytes;
        let ends = self.attach(List::Queue, self.queues[queue.index()], id);
        self.queues[queue.index()] = ends;
        let ends = self.conns.get(&conn).copied().unwrap_or(EMPTY);
        let ends = self.attach(List::Conn, ends, id);
        self.conns.insert(conn, ends);
        self.heap.push(Reverse((deadline_ms, id, self.slots[id as usize].generation)));
        self.sweep_heap();
        Ok(())
    }

    /// A message became visible in `queue`, whose max offset is now `max_offset`: appends to `woken`
    /// the payloads of the pulls that it answers, in order of arrival.
    #[inline]
    pub fn wake(&mut self, queue: WaitQueue, max_offset: i64, tags_code: i64, woken: &mut Vec<P>) {
        if self.ends(queue).head != NONE {
            self.release_from(queue, woken, |w| {
                w.offset < max_offset && w.filter.matches(tags_code)
            });
        }
    }

    /// Releases everybody who waits on `queue` (its topic is deleted, or what it holds changed).
    pub fn wake_all(&mut self, queue: WaitQueue, woken: &mut Vec<P>) {
        self.release_from(queue, woken, |_| true);
    }

    /// Releases every pull that is behind its queue although no message matched its filter, so that
    /// it can be answered "nothing matched, go on at a later offset". `max_offset` tells the visible
    /// max offset of the queue; it also gets a payload of one of its waiters. Run it each
    /// [`SCAN_INTERVAL_MS`].
    pub fn scan(&mut self, mut max_offset: impl FnMut(WaitQueue, &P) -> i64, woken: &mut Vec<P>) {
        let mut last: Option<(u32, i64)> = None;
        for id in 0..self.slots.len() as u32 {
            let Some(w) = &self.slots[id as usize].waiter else { continue };
            let max = match last {
                Some((queue, max)) if queue == w.queue => max,
                _ => max_offset(WaitQueue(w.queue), &w.payload),
            };
            last = Some((w.queue, max));
            if w.offset < max {
                woken.extend(self.release(id));
            }
        }
    }

    /// Releases every pull whose deadline is at or before `now_ms`, earliest first.
    pub fn expire(&mut self, now_ms: i64, woken: &mut Vec<P>) {
        while let Some(Reverse((deadline, id, generation))) = self.heap.peek().copied() {
            if deadline > now_ms {
                return;
            }
            self.heap.pop();
            if self.is_live(id, generation) {
                woken.extend(self.release(id));
            }
        }
    }

    /// The earliest deadline of anyone held: when to call [`Waiters::expire`] next.
    pub fn next_deadline_ms(&mut self) -> Option<i64> {
        while let Some(Reverse((deadline, id, generation))) = self.heap.peek().copied() {
            if self.is_live(id, generation) {
                return Some(deadline);
            }
            self.heap.pop();
        }
        None
    }

    /// Drops every pull of a closed connection; returns how many.
    pub fn close_conn(&mut self, conn: ConnId) -> usize {
        let mut dropped = 0;
        while let Some(ends) = self.conns.get(&conn).copied() {
            if self.release(ends.head).is_none() {
                self.conns.remove(&conn); // cannot happen: a list in the map has a live head
            }
            dropped += 1;
        }
        dropped
    }

    /// Shutdown: releases everybody and refuses to hold from now on.
    pub fn release_all(&mut self, woken: &mut Vec<P>) {
        self.stopping = true;
        for id in 0..self.slots.len() as u32 {
            woken.extend(self.release(id));
        }
        self.heap.clear();
    }

    fn release_from(
        &mut self,
        queue: WaitQueue,
        woken: &mut Vec<P>,
        mut picks: impl FnMut(&Waiter<P>) -> bool,
    ) {
        let mut id = self.ends(queue).head;
        while id != NONE {
            let Some(w) = self.slots[id as usize].waiter.as_ref() else { return };
            let next = w.by_queue.next;
            if picks(w) {
                woken.extend(self.release(id));
            }
            id = next;
        }
    }

    #[inline]
    fn ends(&self, queue: WaitQueue) -> Ends {
        self.queues.get(queue.index()).copied().unwrap_or(EMPTY)
    }

    fn is_live(&self, id: u32, generation: u32) -> bool {
        let slot = &self.slots[id as usize];
        slot.generation == generation && slot.waiter.is_some()
    }

    /// Takes a waiter out of the slab and of both lists; its heap entry stays behind, stale.
    fn release(&mut self, id: u32) -> Option<P> {
        let slot = self.slots.get_mut(id as usize)?;
        let waiter = slot.waiter.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id);
        self.len -= 1;
        self.bytes -= waiter.bytes;
        let queue = waiter.queue as usize;
        let ends = self.detach(List::Queue, self.queues[queue], waiter.by_queue);
        self.queues[queue] = ends;
        if let Some(ends) = self.conns.get(&waiter.conn).copied() {
            let ends = self.detach(List::Conn, ends, waiter.by_conn);
            if ends.head == NONE {
                self.conns.remove(&waiter.conn);
            } else {
                self.conns.insert(waiter.conn, ends);
            }
        }
        Some(waiter.payload)
    }

    fn link(&mut self, list: List, id: u32) -> Option<&mut Link> {
        let waiter = self.slots.get_mut(id as usize)?.waiter.as_mut()?;
        Some(match list {
            List::Queue => &mut waiter.by_queue,
            List::Conn => &mut waiter.by_conn,
        })
    }

    fn attach(&mut self, list: List, mut ends: Ends, id: u32) -> Ends {
        if let Some(link) = self.link(list, id) {
            link.prev = ends.tail;
        }
        match self.link(list, ends.tail) {
            Some(link) => link.next = id,
            None => ends.head = id,
        }
        ends.tail = id;
        ends
    }

    fn detach(&mut self, list: List, mut ends: Ends, link: Link) -> Ends {
        match self.link(list, link.prev) {
            Some(prev) => prev.next = link.next,
            None => ends.head = link.next,
        }
        match self.link(list, link.next) {
            Some(next) => next.prev = link.prev,
            None => ends.tail = link.prev,
        }
        ends
    }

    /// Keeps the heap within twice the live waiters: at a high rate of holds and wake-ups the stale
    /// entries of a whole hold time would otherwise pile up. Amortised, it costs O(1) a hold.
    fn sweep_heap(&mut self) {
        if self.heap.len() > 2 * self.len + 1_024 {
            let mut heap = std::mem::take(&mut self.heap);
            heap.retain(|Reverse((_, id, generation))| self.is_live(*id, *generation));
            self.heap = heap;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hold(conn: ConnId, offset: i64, deadline_ms: i64, payload: u32) -> Hold<u32> {
        Hold { conn, offset, filter: TagFilter::All, deadline_ms, bytes: 0, payload }
    }

    fn tag(tag: &str) -> TagFilter {
        TagFilter::from_expression(Some(tag), None).unwrap()
    }

    fn code(tag: &str) -> i64 {
        ringmq_net::record::tags_code(Some(tag))
    }

    #[test]
    fn a_matching_message_answers_at_once_and_another_leaves_it_held() {
        let mut w = Waiters::new(10);
        let q = w.add_queue();
        w.hold(q, 5, Hold { filter: tag("A"), ..hold(1, 5, 100, 1) }).unwrap();
        w.hold(q, 5, Hold { filter: tag("B"), ..hold(1, 5, 100, 2) }).unwrap();
        w.hold(q, 5, hold(1, 5, 100, 3)).unwrap();
        let mut woken = vec![];
        w.wake(q, 6, code("B"), &mut woken);
        assert_eq!(woken, [2, 3]);
        assert!(w.has_waiters(q));
    }

    #[test]
    fn the_scan_releases_who_is_behind_although_nothing_matched() {
        let mut w = Waiters::new(10);
        let (a, b) = (w.add_queue(), w.add_queue());
        w.hold(a, 5, Hold { filter: tag("A"), ..hold(1, 5, 100, 1) }).unwrap();
        w.hold(b, 7, hold(1, 7, 100, 2)).unwrap();
        let mut woken = vec![];
        w.wake(a, 9, code("B"), &mut woken);
        assert!(woken.is_empty());
        w.scan(|q, _| if q == a { 9 } else { 7 }, &mut woken);
        assert_eq!(woken, [1]);
    }

    #[test]
    fn a_pull_that_is_already_behind_is_not_held() {
        let mut w = Waiters::new(10);
        let q = w.add_queue();
        assert_eq!(w.hold(q, 6, hold(1, 5, 100, 1)), Err(HoldRefused::Behind(1)));
        assert!(w.is_empty());
    }

    #[test]
    fn few_pulls_that_carry_much_are_as_many_as_there_may_be() {
        let mut w = Waiters::new(10);
        let q = w.add_queue();
        w.hold(q, 0, Hold { bytes: 9 * BYTES_A_WAITER, ..hold(1, 0, 100, 1) }).unwrap();
        let large = Hold { bytes: BYTES_A_WAITER + 1, ..hold(2, 0, 100, 2) };
        assert_eq!(w.hold(q, 0, large), Err(HoldRefused::Full(2)));
        w.hold(q, 0, Hold { bytes: BYTES_A_WAITER, ..hold(2, 0, 100, 3) }).unwrap();
        w.close_conn(1);
        w.hold(q, 0, Hold { bytes: 9 * BYTES_A_WAITER, ..hold(1, 0, 100, 4) }).unwrap();
    }

    #[test]
    fn the_bound_refuses_and_gives_the_payload_back() {
        let mut w = Waiters::new(1);
        let q = w.add_queue();
        w.hold(q, 0, hold(1, 0, 100, 1)).unwrap();
        assert_eq!(w.hold(q, 0, hold(1, 0, 100, 2)), Err(HoldRefused::Full(2)));
        assert_eq!(w.close_conn(1), 1);
        w.hold(q, 0, hold(1, 0, 100, 3)).unwrap();
    }

    #[test]
    fn a_hold_ends_exactly_at_its_deadline() {
        let mut w = Waiters::new(10);
        let q = w.add_queue();
        w.hold(q, 0, hold(1, 0, 200, 1)).unwrap();
        w.hold(q, 0, hold(2, 0, 100, 2)).unwrap();
        let mut woken = vec![];
        w.expire(99, &mut woken);
        assert!(woken.is_empty());
        assert_eq!(w.next_deadline_ms(), Some(100));
        w.expire(100, &mut woken);
        assert_eq!(woken, [2]);
        assert_eq!(w.next_deadline_ms(), Some(200));
    }

    #[test]
    fn shutdown_releases_all_and_holds_no_more() {
        let mut w = Waiters::new(10);
        let q = w.add_queue();
        w.hold(q, 0, hold(1, 0, 100, 1)).unwrap();
        let mut woken = vec![];
        w.release_all(&mut woken);
        assert_eq!(woken, [1]);
        assert_eq!(w.hold(q, 0, hold(1, 0, 100, 2)), Err(HoldRefused::Full(2)));
        assert_eq!(w.next_deadline_ms(), None);
    }

    #[test]
    fn stale_deadlines_do_not_pile_up() {
        let mut w = Waiters::new(10);
        let q = w.add_queue();
        let mut woken = vec![];
        for n in 0..100_000 {
            w.hold(q, n, hold(1, n, 1_000_000 + n, 0)).unwrap();
            w.wake(q, n + 1, 0, &mut woken);
            woken.clear();
        }
        assert!(w.heap.len() <= 1_025, "{} heap entries for no waiter", w.heap.len());
        assert_eq!(w.slots.len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Hold { queue: usize, conn: u64, lag: i64, tag: usize, ttl: i64 },
        Message { queue: usize, tag: usize },
        Scan,
        Advance(i64),
        Close(u64),
        WakeAll(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0..3usize, 0..4u64, -1..2i64, 0..3usize, 1..50i64)
                .prop_map(|(queue, conn, lag, tag, ttl)| Op::Hold { queue, conn, lag, tag, ttl }),
            4 => (0..3usize, 0..3usize).prop_map(|(queue, tag)| Op::Message { queue, tag }),
            1 => Just(Op::Scan),
            3 => (0..30i64).prop_map(Op::Advance),
            1 => (0..4u64).prop_map(Op::Close),
            1 => (0..3usize).prop_map(Op::WakeAll),
        ]
    }

    #[derive(Clone, Debug)]
    struct Model {
        queue: usize,
        conn: u64,
        offset: i64,
        tag: usize,
        deadline: i64,
        payload: u32,
    }

    /// Takes what `picks` says out of the model, in order of arrival.
    fn take(model: &mut Vec<Model>, picks: impl Fn(&Model) -> bool) -> Vec<u32> {
        let gone = model.iter().filter(|m| picks(m)).map(|m| m.payload).collect();
        model.retain(|m| !picks(m));
        gone
    }

    proptest! {
        #[test]
        fn waiters_behave_as_a_plain_list(ops in prop::collection::vec(op(), 1..200)) {
            const TAGS: [&str; 3] = ["*", "A", "B"];
            let mut w = Waiters::new(20);
            let queues = [w.add_queue(), w.add_queue(), w.add_queue()];
            let mut max = [0i64; 3];
            let mut now = 0;
            let mut model: Vec<Model> = vec![];
            let mut serial = 0u32;
            for op in ops {
                let mut woken = vec![];
                let mut expected = vec![];
                let mut ordered = true;
                match op {
                    Op::Hold { queue, conn, lag, tag: t, ttl } => {
                        serial += 1;
                        let offset = max[queue] + lag;
                        let deadline = now + ttl;
                        let got = w.hold(queues[queue], max[queue], Hold {
                            filter: tag(TAGS[t]), ..hold(conn, offset, deadline, serial) });
                        if lag < 0 {
                            prop_assert_eq!(got, Err(HoldRefused::Behind(serial)));
                        } else if model.len() == 20 {
                            prop_assert_eq!(got, Err(HoldRefused::Full(serial)));
                        } else {
                            prop_assert_eq!(got, Ok(()));
                            model.push(
                                Model { queue, conn, offset, tag: t, deadline, payload: serial });
                        }
                    }
                    Op::Message { queue, tag: t } => {
                        max[queue] += 1;
                        let tags_code = if t == 0 { 0 } else { code(TAGS[t]) };
                        w.wake(queues[queue], max[queue], tags_code, &mut woken);
                        expected = take(&mut model, |m| {
                            m.queue == queue && m.offset < max[queue] && (m.tag == 0 || m.tag == t)
                        });
                    }
                    Op::Scan => {
                        w.scan(|q, _| max[q.index()], &mut woken);
                        expected = take(&mut model, |m| m.offset < max[m.queue]);
                        ordered = false;
                    }
                    Op::Advance(ms) => {
                        now += ms;
                        w.expire(now, &mut woken);
                        expected = take(&mut model, |m| m.deadline <= now);
                        ordered = false;
                    }
                    Op::Close(conn) => {
                        let gone = take(&mut model, |m| m.conn == conn);
                        prop_assert_eq!(w.close_conn(conn), gone.len());
                    }
                    Op::WakeAll(queue) => {
                        w.wake_all(queues[queue], &mut woken);
                        expected = take(&mut model, |m| m.queue == queue);
                    }
                }
                if !ordered {
                    woken.sort();
                    expected.sort();
                }
                prop_assert_eq!(woken, expected);
                prop_assert_eq!(w.len(), model.len());
                prop_assert_eq!(w.next_deadline_ms(), model.iter().map(|m| m.deadline).min());
            }
        }
    }
}
