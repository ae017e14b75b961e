//! Keeping a shard's store: batches of derived data, checkpoints, deletion, the clean stop.

use std::rc::Rc;
use std::time::Duration;

use super::{PutError, Shard, ShardError};
use crate::log::SegmentInfo;
use crate::store::{CheckpointInput, CutOrder, write_checkpoint};

/// How often a checkpoint that has to wait for another looks for its end.
const CHECKPOINT_POLL: Duration = Duration::from_millis(5);

impl Shard {
    /// Moves batches of derived data to their files. Call it every 100 ms or so. Never blocks.
    pub fn poll(&self) {
        self.queues.poll();
        let mut unwritten = self.queues.unwritten_bytes();
        if let Some(index) = &self.index {
            index.poll();
            unwritten += index.stats().unwritten_bytes;
        }
        let behind = (unwritten > self.config.derived_unwritten_bytes_max).then_some(unwritten);
        let before = self.derived_behind.replace(behind);
        match (before, behind) {
            (None, Some(bytes)) => tracing::error!(
                "{bytes} bytes of queues and index wait to be written to {}, new messages are refused until it is less: free space or check the disk{}",
                self.layout.root().display(),
                self.derived_failure().map(|why| format!(" ({why})")).unwrap_or_default()
            ),
            (Some(_), None) => tracing::info!(
                "queues and index of {} are written again: new messages are taken again",
                self.layout.root().display()
            ),
            _ => {}
        }
    }

    /// Why queues or index can't be written, while they can't.
    fn derived_failure(&self) -> Option<String> {
        let index = || Some(self.index.as_ref()?.failure()?.to_string());
        self.queues.failure().map(|error| error.to_string()).or_else(index)
    }

    /// Refuses a put while too much of what was derived from earlier ones is only in memory.
    pub(super) fn check_derived(&self) -> Result<(), PutError> {
        match self.derived_behind.get() {
            None => Ok(()),
            Some(bytes) => Err(PutError::DerivedBehind {
                bytes,
                max: self.config.derived_unwritten_bytes_max,
                why: self.derived_failure(),
            }),
        }
    }

    /// Makes derived data durable and says so in `checkpoint`. One at a time: a call while another runs waits for it, and then
    /// covers what has happened since that one began.
    ///
    /// # Errors
    /// [`ShardError`]; the older checkpoint still holds then.
    pub async fn checkpoint(&self) -> Result<(), ShardError> {
        while self.checkpointing.get() {
            glommio::timer::sleep(CHECKPOINT_POLL).await;
        }
        self.checkpointing.set(true);
        let result = self.checkpoint_now().await;
        self.checkpointing.set(false);
        result
    }

    async fn checkpoint_now(&self) -> Result<(), ShardError> {
        let input = self.checkpoint_input();
        // A stock broker that takes over believes the times: what they cover must be durable in the log first.
        self.log.flushed(input.dispatched).await?;
        self.write_checkpoint(input).await
    }

    /// What can be claimed now: all of it belongs to one moment.
    fn checkpoint_input(&self) -> CheckpointInput {
        let timestamp = self.dispatched_timestamp.get();
        CheckpointInput {
            dispatched: self.dispatched.get(),
            queues: self.queues.digest(),
            log_min: self.log.min_offset(),
            physic_timestamp: timestamp,
            logics_timestamp: timestamp,
            lock: self.stamp,
        }
    }

    async fn write_checkpoint(&self, input: CheckpointInput) -> Result<(), ShardError> {
        let index = self.index.as_ref();
        let (worker, file_system) = (&self.worker, &self.file_system);
        write_checkpoint(&self.layout, worker, file_system, &self.queues, index, input).await?;
        Ok(())
    }

    /// Deletes the oldest segment, and what of queues and index pointed into it.
    ///
    /// # Errors
    /// [`ShardError`]; the segment is still there if the log refused.
    pub async fn delete_oldest(&self) -> Result<SegmentInfo, ShardError> {
        let gone = self.log.delete_oldest().await?;
        let log_min = self.log.min_offset();
        self.queues.trim(log_min).await?;
        if let Some(index) = &self.index {
            index.trim(log_min).await?;
        }
        Ok(gone)
    }

    /// Deletes files of queues of which every message is gone from the log; how many. A queue's last file stays: it says at which
    /// offset the queue goes on.
    ///
    /// # Errors
    /// [`ShardError`]; what was deleted before it is gone.
    pub async fn trim_queues(&self) -> Result<usize, ShardError> {
        Ok(self.queues.trim(self.log.min_offset()).await?.deleted_files)
    }

    /// Forgets a topic's queues and removes their files. The topic starts over at queue offset 0 when it comes back.
    ///
    /// # Errors
    /// [`ShardError`] if files cannot be removed; the queues are forgotten all the same.
    pub async fn remove_topic(&self, topic: &str) -> Result<(), ShardError> {
        self.table.remove(topic);
        self.queues.remove_topic(topic).await?;
        // A mark that still counts the queues would have them made again after a crash.
        self.checkpoint().await
    }

    /// Orders the log to be cut at `at`, where a record ends, when this store is opened next: what lies beyond is kept in a file of its
    /// own then ([`super::OpenReport::cut`]). The order is durable when this returns.
    ///
    /// # Errors
    /// [`ShardError`]: there is no order.
    pub async fn order_cut(&self, at: u64) -> Result<(), ShardError> {
        let layout = self.layout.clone();
        self.off_reactor(move || CutOrder::give(&layout, at)).await??;
        Ok(())
    }

    /// What follows a cut is done, and durable: the order is gone. To be called before anything is appended.
    ///
    /// # Errors
    /// [`ShardError`]: the next opening cuts again.
    pub async fn settle_cut(&self) -> Result<(), ShardError> {
        let layout = self.layout.clone();
        self.off_reactor(move || CutOrder::settle(&layout)).await??;
        Ok(())
    }

    /// What a stock broker's visit ([`crate::log::Opened::stock_was_here`]) made worthless is durably so: until then each opening tells of
    /// it.
    ///
    /// # Errors
    /// [`ShardError`]: the next opening tells of it again.
    pub async fn settle_visit(&self) -> Result<(), ShardError> {
        Ok(self.log().settle_visit().await?)
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.config.segment_bytes
    }

    /// Names of all topics that have a queue here.
    pub fn topics_with_queues(&self) -> Vec<Rc<str>> {
        self.queues.topics().iter().map(|topic| Rc::from(&**topic)).collect()
    }

    /// The clean stop: everything written and flushed, dispatched to the end, derived data durable, `abort` removed, and the store free
    /// for whoever opens it next.
    ///
    /// # Errors
    /// [`ShardError`]; `abort` stays then, and the next start recovers.
    pub async fn close(&self) -> Result<(), ShardError> {
        self.log.clone().close().await?;
        self.dispatch_visible(self.log.visible());
        self.write_checkpoint(self.checkpoint_input()).await?;
        if let Some(index) = &self.index {
            index.close().await?;
        }
        let abort = self.abort.clone();
        self.worker.run(move || abort.clear()).await??;
        *self.lock.borrow_mut() = None;
        Ok(())
    }
}
