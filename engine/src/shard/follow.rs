//! A shard that follows another one's log: dispatching what came, record by record.

use std::rc::Rc;

use super::{Shard, ShardError};
use crate::log::LogError;

impl Shard {
    /// Dispatches every record that has become visible since the last call: each is checked whole, its body's CRC included, enters its
    /// queue and the index, and wakes pulls. A record whose end is still to come waits for it. One call at a time. How many there were.
    ///
    /// # Errors
    /// [`ShardError::Redo`] for a record that is not whole: what is before it is dispatched, it and what follows never is.
    pub async fn dispatch_followed(&self) -> Result<u64, ShardError> {
        let to = self.log().visible_whole();
        // The log may just have been made to begin elsewhere.
        let from = self.dispatched().max(self.log().min_offset());
        if from >= to {
            return Ok(0);
        }
        let redone = self.redo(from, to).await?;
        self.dispatched_records.set(self.dispatched_records.get() + redone.records);
        Ok(redone.records)
    }

    /// Makes an empty log begin at another segment's start; queues and index are empty with it.
    ///
    /// # Errors
    /// As [`crate::log::Log::begin_at`].
    pub async fn begin_at(&self, start: u64) -> Result<(), LogError> {
        self.log.begin_at(start).await?;
        self.dispatched.set(start);
        Ok(())
    }

    /// Progress of [`Shard::redo`]: a checkpoint in between must not say more than what is done.
    pub(super) fn redone_to(&self, end: u64, store_timestamp: i64) {
        if end <= self.dispatched.get() {
            // At a start, `dispatched` is the log's end from the beginning.
            return;
        }
        self.dispatched.set(end);
        self.dispatched_timestamp.set(store_timestamp);
        self.last_store_timestamp.set(self.last_store_timestamp.get().max(store_timestamp));
    }

    /// A unit was appended to a queue that may be in use.
    pub(super) fn queue_grew(&self, topic: &str, id: i32, max_offset: i64, code: i64) {
        // None is in use while a shard is opened.
        let Some(queue) = self.table.find(topic, id) else { return };
        queue.follow_units();
        let listener = self.listener.borrow().as_ref().map(Rc::clone);
        if let (Some(list), Some(listener)) = (queue.wait_list(), listener) {
            listener.arrived(list, max_offset, code);
        }
    }
}
