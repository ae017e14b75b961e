//! From the log to what is derived from it: consume queue units, index entries, waiting pulls.

use std::collections::VecDeque;
use std::rc::Rc;

use super::{Queue, Shard};

/// A record that is in the log and not yet visible, with what its unit and index entries need, so that nothing is
/// parsed a second time.
pub(super) struct Pending {
    pub(super) queue: Rc<Queue>,
    /// Whether it gets a unit at all.
    pub(super) queued: bool,
    pub(super) physical_offset: u64,
    pub(super) size: u32,
    /// How many hashes of [`Dispatch::keys`] are this record's.
    pub(super) keys: u32,
    pub(super) queue_offset: i64,
    pub(super) code: i64,
    pub(super) store_timestamp: i64,
}

impl Pending {
    fn end(&self) -> u64 {
        self.physical_offset + u64::from(self.size)
    }
}

/// Records between append and visibility, in log order.
#[derive(Default)]
pub(super) struct Dispatch {
    pub(super) pending: VecDeque<Pending>,
    pub(super) keys: VecDeque<i32>,
}

impl Shard {
    /// Dispatches every record that has become visible. Called on the reactor after each completed write or flush.
    pub(super) fn dispatch_visible(&self, visible: u64) {
        let listener = self.listener.borrow().clone();
        loop {
            let mut dispatch = self.dispatch.borrow_mut();
            match dispatch.pending.front() {
                Some(next) if next.end() <= visible => {}
                _ => return,
            }
            let Some(record) = dispatch.pending.pop_front() else { return };
            for _ in 0..record.keys {
                if let Some(hash) = dispatch.keys.pop_front() {
                    self.put_index(hash, record.physical_offset, record.store_timestamp);
                }
            }
            drop(dispatch);
            self.dispatched.set(record.end());
            self.dispatched_timestamp.set(record.store_timestamp);
            self.dispatched_records.set(self.dispatched_records.get() + 1);
            if !record.queued {
                continue;
            }
            let queue = &record.queue;
            self.queues.append(
                queue.units(),
                record.queue_offset,
                record.physical_offset as i64,
                record.size as i32,
                record.code,
            );
            if let (Some(list), Some(listener)) = (queue.wait_list(), &listener) {
                listener.arrived(list, record.queue_offset + 1, record.code);
            }
        }
    }

    fn put_index(&self, hash: i32, physical_offset: u64, store_timestamp: i64) {
        if let Some(index) = &self.index {
            index.put(hash, physical_offset as i64, store_timestamp);
        }
    }
}
