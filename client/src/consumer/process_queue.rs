//! What a consumer has of one queue: messages that were pulled and are not done, and how far it is.
//!
//! ```text
//!   committed          next_pull
//!       ▼                  ▼
//!  ─────┬──┬──┬──┬──┬──┬───┬─────────► offsets
//!  done │R │  │r │R │  │r  │ not pulled
//!       └──┴──┴──┴──┴──┴───┘            R running, r ready, blank done
//! ```
//!
//! Everything below `committed` is done, so a restart from there loses nothing. An epoch ends with each [`ProcessQueue::reset`]: what was
//! pulled or begun before it changes nothing any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::message::ReceivedMessage;

/// How much of a queue may be in memory before pulls wait. One pull may go beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// Messages.
    pub(crate) messages: usize,
    /// Bytes of bodies.
    pub(crate) bytes: usize,
    /// Distance of the first and the last offset; the first one may be slow. `None` for orderly consumers.
    pub(crate) span: Option<i64>,
}

/// Messages that were taken to be consumed.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) epoch: u64,
    pub(crate) messages: Vec<Arc<ReceivedMessage>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ProcessQueue {
    epoch: u64,
    cached: BTreeMap<i64, Arc<ReceivedMessage>>,
    /// Offsets of those that nobody works on.
    ready: BTreeSet<i64>,
    bytes: usize,
    next_pull: i64,
}

impl ProcessQueue {
    /// A queue that is done up to `start`.
    pub(crate) fn new(start: i64) -> ProcessQueue {
        ProcessQueue {
            epoch: 0,
            cached: BTreeMap::new(),
            ready: BTreeSet::new(),
            bytes: 0,
            next_pull: start,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where the next pull begins.
    pub(crate) fn next_pull(&self) -> i64 {
        self.next_pull
    }

    /// Everything below it is done.
    pub(crate) fn committed(&self) -> i64 {
        self.cached.keys().next().copied().unwrap_or(self.next_pull)
    }

    /// Takes what a pull of that epoch brought: messages, after the filter, and where it ended. Gives whether any are new.
    pub(crate) fn put(
        &mut self,
        epoch: u64,
        messages: Vec<ReceivedMessage>,
        next_offset: i64,
    ) -> bool {
        if epoch != self.epoch {
            return false;
        }
        let mut any = false;
        // Behind the place of the pull there is nothing new, whatever a broker sends.
        for message in messages.into_iter().filter(|message| message.queue_offset >= self.next_pull)
        {
            let (offset, bytes) = (message.queue_offset, message.body.len());
            if self.cached.insert(offset, Arc::new(message)).is_none() {
                self.bytes += bytes;
                self.ready.insert(offset);
                any = true;
            }
        }
        let last = self.cached.keys().next_back().map_or(next_offset, |last| last + 1);
        self.next_pull = self.next_pull.max(next_offset).max(last);
        any
    }

    /// The first ready messages, at most `max`.
    pub(crate) fn take(&mut self, max: usize) -> Option<Batch> {
        let mut messages = Vec::new();
        while messages.len() < max
            && let Some(offset) = self.ready.pop_first()
        {
            messages.extend(self.cached.get(&offset).cloned());
        }
        (!messages.is_empty()).then_some(Batch { epoch: self.epoch, messages })
    }

    /// Are there messages that nobody works on?
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A message is done.
    pub(crate) fn finish(&mut self, epoch: u64, offset: i64) {
        if epoch == self.epoch
            && let Some(message) = self.cached.remove(&offset)
        {
            self.ready.remove(&offset);
            self.bytes -= message.body.len();
        }
    }

    /// A message has to be consumed again, as it is now.
    pub(crate) fn put_back(&mut self, epoch: u64, message: Arc<ReceivedMessage>) {
        let offset = message.queue_offset;
        if epoch == self.epoch
            && let Some(cached) = self.cached.get_mut(&offset)
        {
            // The body is the same, so the bytes are.
            *cached = message;
            self.ready.insert(offset);
        }
    }

    /// A pull of that epoch was outside the queue, which has its next message at `offset`. Further on, what is cached stays; before that, all that
    /// is not done comes again.
    pub(crate) fn moved(&mut self, epoch: u64, offset: i64) {
        if epoch != self.epoch {
            return;
        }
        match offset >= self.next_pull {
            true => self.next_pull = offset,
            false => self.reset(offset.min(self.committed())),
        }
    }

    /// Forgets everything and goes on at `offset`.
    pub(crate) fn reset(&mut self, offset: i64) {
        *self = ProcessQueue { epoch: self.epoch + 1, ..ProcessQueue::new(offset) };
    }

    /// May the next pull go out?
    pub(crate) fn has_room(&self, limits: &CacheLimits) -> bool {
        let span = match (self.cached.keys().next(), self.cached.keys().next_back()) {
            (Some(first), Some(last)) => last - first,
            _ => 0,
        };
        self.cached.len() < limits.messages
            && self.bytes < limits.bytes
            && limits.span.is_none_or(|max| span <= max)
    }

    /// Messages in memory.
    pub(crate) fn len(&self) -> usize {
        self.cached.len()
    }

    /// Bytes of their bodies.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// First and last offset of those that are ready, and of those that are being consumed, each with their number.
    pub(crate) fn ranges(&self) -> [(usize, i64, i64); 2] {
        let running = self.cached.keys().filter(|offset| !self.ready.contains(offset));
        let (mut count, mut first, mut last) = (0, 0, 0);
        for offset in running {
            (count, last) = (count + 1, *offset);
            if count == 1 {
                first = *offset;
            }
        }
        let of = |edge: Option<&i64>| edge.copied().unwrap_or(0);
        let ready = (self.ready.len(), of(self.ready.first()), of(self.ready.last()));
        [ready, (count, first, last)]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::consumer::fixture::message;

    fn some(offsets: impl IntoIterator<Item = i64>) -> Vec<ReceivedMessage> {
        offsets.into_iter().map(|offset| message("T", offset, "")).collect()
    }

    fn offsets(batch: &Batch) -> Vec<i64> {
        batch.messages.iter().map(|message| message.queue_offset).collect()
    }

    const LIMITS: CacheLimits = CacheLimits { messages: 10, bytes: 1000, span: Some(20) };

    #[test]
    fn the_committed_offset_waits_for_the_slowest_message() {
        let mut queue = ProcessQueue::new(5);
        assert_eq!(queue.committed(), 5);
        assert!(queue.put(0, some(5..9), 9));
        let batch = queue.take(4).unwrap();
        for (done, committed) in [(6, 5), (8, 5), (5, 7), (7, 9)] {
            queue.finish(batch.epoch, done);
            assert_eq!(queue.committed(), committed);
        }
    }

    #[test]
    fn what_the_filter_left_out_counts_as_done() {
        let mut queue = ProcessQueue::new(0);
        assert!(!queue.put(0, some([]), 32));
        assert_eq!((queue.committed(), queue.next_pull()), (32, 32));
        assert!(queue.put(0, some([33]), 64));
        assert_eq!((queue.committed(), queue.next_pull()), (33, 64));
        queue.finish(0, 33);
        assert_eq!(queue.committed(), 64);
    }

    #[test]
    fn nothing_from_before_a_reset_has_any_effect() {
        let mut queue = ProcessQueue::new(10);
        queue.put(0, some(10..20), 20);
        let before = queue.take(1).unwrap();
        queue.reset(3);
        assert_eq!(
            (queue.committed(), queue.next_pull(), queue.len(), queue.bytes()),
            (3, 3, 0, 0)
        );
        assert!(!queue.put(before.epoch, some(20..25), 25));
        queue.put(queue.epoch(), some(3..12), 12);
        queue.finish(before.epoch, 10);
        queue.put_back(before.epoch, before.messages[0].clone());
        assert_eq!((queue.committed(), queue.len(), queue.next_pull()), (3, 9, 12));
    }

    #[test]
    fn a_move_forwards_keeps_what_is_cached_and_one_back_loses_nothing() {
        let mut queue = ProcessQueue::new(0);
        queue.put(0, some(0..4), 4);
        let batch = queue.take(2).unwrap();
        queue.moved(0, 9);
        assert_eq!((queue.committed(), queue.next_pull(), queue.len()), (0, 9, 4));
        queue.finish(batch.epoch, 0);
        assert_eq!((queue.committed(), queue.epoch()), (1, 0));
        queue.moved(7, 50);
        assert_eq!(queue.next_pull(), 9, "about another epoch");
        queue.moved(0, 3);
        assert_eq!((queue.committed(), queue.next_pull(), queue.len()), (1, 1, 0));
        queue.moved(queue.epoch(), 0);
        assert_eq!((queue.committed(), queue.next_pull()), (0, 0));
    }

    #[test]
    fn messages_that_were_pulled_already_are_not_taken_twice() {
        let mut queue = ProcessQueue::new(0);
        queue.put(0, some(0..4), 4);
        queue.take(4).unwrap().messages.iter().for_each(|m| queue.finish(0, m.queue_offset));
        assert!(!queue.put(0, some(2..4), 4));
        assert!(queue.put(0, some(2..6), 6));
        assert_eq!(offsets(&queue.take(9).unwrap()), [4, 5]);
    }

    #[test]
    fn what_is_put_back_comes_first_again_as_it_was_changed() {
        let mut queue = ProcessQueue::new(0);
        queue.put(0, some(0..4), 4);
        let batch = queue.take(2).unwrap();
        let mut changed = (*batch.messages[1]).clone();
        changed.reconsume_times = 7;
        queue.put_back(0, Arc::new(changed));
        let again = queue.take(2).unwrap();
        assert_eq!(offsets(&again), [1, 2]);
        assert_eq!(again.messages[0].reconsume_times, 7);
    }

    #[test]
    fn pulls_wait_at_each_of_the_three_bounds() {
        let mut queue = ProcessQueue::new(0);
        queue.put(0, some(0..9), 9);
        assert!(queue.has_room(&LIMITS));
        queue.put(0, some([9]), 10);
        assert!(!queue.has_room(&LIMITS));
        assert!(!queue.has_room(&CacheLimits { messages: 100, bytes: queue.bytes(), span: None }));
        assert!(queue.has_room(&CacheLimits { messages: 100, bytes: 1 << 20, span: None }));
        // One slow message holds the span although nearly all are done.
        queue.put(0, some([21]), 22);
        (1..10).for_each(|offset| queue.finish(0, offset));
        assert!(!queue.has_room(&LIMITS));
        queue.finish(0, 0);
        assert!(queue.has_room(&LIMITS));
    }

    /// Random pulls, takes, ends, returns and resets beside a plain model.
    #[test]
    fn no_sequence_of_events_commits_what_is_not_done() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut queue = ProcessQueue::new(0);
            let mut open: BTreeSet<i64> = BTreeSet::new();
            let mut running: Vec<(u64, Arc<ReceivedMessage>)> = Vec::new();
            for _ in 0..400 {
                match random.u8(..20) {
                    0..6 => {
                        let from = queue.next_pull();
                        let wanted = (from..from + random.i64(0..8)).filter(|_| random.bool());
                        let kept: Vec<i64> = wanted.collect();
                        open.extend(&kept);
                        queue.put(queue.epoch(), some(kept), from + 8);
                    }
                    6..11 => {
                        if let Some(batch) = queue.take(random.usize(1..4)) {
                            running.extend(batch.messages.into_iter().map(|m| (batch.epoch, m)));
                        }
                    }
                    11..19 if !running.is_empty() => {
                        let (epoch, message) = running.swap_remove(random.usize(..running.len()));
                        if random.u8(..4) == 0 {
                            queue.put_back(epoch, message);
                        } else {
                            queue.finish(epoch, message.queue_offset);
                            if epoch == queue.epoch() {
                                open.remove(&message.queue_offset);
                            }
                        }
                    }
                    19 if random.u8(..8) == 0 => {
                        open.clear();
                        queue.reset(random.i64(0..100));
                    }
                    _ => {}
                }
                let first = open.first().copied().unwrap_or(queue.next_pull());
                assert_eq!(queue.committed(), first, "seed {seed}");
                assert_eq!(queue.len(), open.len(), "seed {seed}");
                let bytes: usize = open.iter().map(|o| "body ".len() + o.to_string().len()).sum();
                assert_eq!(queue.bytes(), bytes, "seed {seed}");
            }
        }
    }
}
