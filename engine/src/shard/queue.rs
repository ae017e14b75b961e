//! The queues of one shard as the broker sees them: a consume queue plus the next queue offset to give out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ringmq_net::map::SeededMap;

use crate::log::ReadRun;
use crate::queue::{QueueRef, QueueStore};
use crate::state::waiters::WaitQueue;

/// Queue ids above this are refused before they cost memory (a topic's queue table is a plain vector).
pub const QUEUE_ID_MAX: i32 = 65_535;

/// One topic queue on this shard. Lives on the shard's reactor and is shared by handle.
///
/// `next_offset` runs ahead of the consume queue's maximum: it counts what was appended to the log, the
/// consume queue only what is visible. An offset given out is never given again, even if its record
/// is never seen.
pub struct Queue {
    topic: Rc<str>,
    id: i32,
    units: QueueRef,
    next_offset: Cell<i64>,
    /// The list of pulls that wait on this queue, once one has: lets dispatch skip queues where nobody ever waited.
    wait_list: Cell<Option<WaitQueue>>,
    /// How cold reads of this queue move through the log.
    read_run: Cell<ReadRun>,
}

impl Queue {
    /// The topic this queue belongs to.
    pub fn topic(&self) -> &Rc<str> {
        &self.topic
    }

    /// The queue's id within its topic.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The consume queue behind this queue.
    pub fn units(&self) -> &QueueRef {
        &self.units
    }

    /// The smallest queue offset that can still be read.
    pub fn min_offset(&self) -> i64 {
        self.units.min_offset()
    }

    /// One past the largest visible queue offset.
    pub fn max_offset(&self) -> i64 {
        self.units.max_offset()
    }

    /// The queue offset the next appended message gets.
    pub fn next_offset(&self) -> i64 {
        self.next_offset.get()
    }

    pub(super) fn advance(&self, count: i64) {
        self.next_offset.set(self.next_offset.get() + count);
    }

    /// Units came from a log that is followed: what is given out next goes on behind them.
    pub(super) fn follow_units(&self) {
        self.next_offset.set(self.next_offset.get().max(self.units.max_offset()));
    }

    /// The queue's list in the table of waiting pulls, if a pull ever waited here.
    pub fn wait_list(&self) -> Option<WaitQueue> {
        self.wait_list.get()
    }

    pub(super) fn read_run(&self) -> ReadRun {
        self.read_run.get()
    }

    pub(super) fn set_read_run(&self, run: ReadRun) {
        self.read_run.set(run);
    }

    /// Ties the queue to its list in the table of waiting pulls.
    pub fn set_wait_list(&self, list: WaitQueue) {
        self.wait_list.set(Some(list));
    }
}

/// All queues of one topic that were touched since start, indexed by queue id.
#[derive(Default)]
struct TopicQueues {
    queues: RefCell<Vec<Option<Rc<Queue>>>>,
}

/// The table of topics to queues. A queue object is made on first use and kept: handles to it are cheap.
#[derive(Default)]
pub(super) struct QueueTable {
    topics: RefCell<SeededMap<Rc<str>, Rc<TopicQueues>>>,
}

impl QueueTable {
    /// The queue `id` of `topic`, made if it is not there yet. `None` for an id out of bounds.
    pub(super) fn get(&self, store: &QueueStore, topic: &str, id: i32) -> Option<Rc<Queue>> {
        if !(0..=QUEUE_ID_MAX).contains(&id) {
            return None;
        }
        let slot = id as usize;
        let known = self.topics.borrow().get(topic).cloned();
        let queues = match known {
            Some(queues) => queues,
            None => {
                let queues = Rc::new(TopicQueues::default());
                self.topics.borrow_mut().insert(topic.into(), Rc::clone(&queues));
                queues
            }
        };
        let mut slots = queues.queues.borrow_mut();
        if slots.len() <= slot {
            slots.resize(slot + 1, None);
        }
        let entry = slots.get_mut(slot)?;
        if let Some(queue) = entry {
            return Some(Rc::clone(queue));
        }
        let units = store.open(topic, id);
        let queue = Rc::new(Queue {
            topic: topic.into(),
            id,
            next_offset: Cell::new(units.max_offset()),
            units,
            wait_list: Cell::new(None),
            read_run: Cell::default(),
        });
        *entry = Some(Rc::clone(&queue));
        Some(queue)
    }

    /// The queue if it was touched since start; never makes one.
    pub(super) fn find(&self, topic: &str, id: i32) -> Option<Rc<Queue>> {
        let queues = self.topics.borrow().get(topic).cloned()?;
        let slots = queues.queues.borrow();
        slots.get(usize::try_from(id).ok()?)?.clone()
    }

    /// Forgets a topic's queues, so that the topic starts over at offset 0 when it comes back.
    pub(super) fn remove(&self, topic: &str) {
        self.topics.borrow_mut().remove(topic);
    }
}
