//! What a running consumer tells about itself. Brokers only relay these; clients write them.

use std::collections::BTreeMap;

use super::{
    Body, BodyError, MessageQueue, SubscriptionData, bodies, boolean, double, int, key_text, long,
    opt_text, pairs, text, write_bodies,
};
use crate::json::{Limits, Value, Writer};

/// One queue of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessQueueInfo {
    /// The stored progress.
    pub commit_offset: i64,
    /// First offset in the client's memory.
    pub cached_msg_min_offset: i64,
    /// Last offset in the client's memory.
    pub cached_msg_max_offset: i64,
    /// Messages in the client's memory.
    pub cached_msg_count: i32,
    /// Their bytes in MiB.
    pub cached_msg_size_in_mib: i32,
    /// First offset being consumed in order.
    pub transaction_msg_min_offset: i64,
    /// Last offset being consumed in order.
    pub transaction_msg_max_offset: i64,
    /// Messages being consumed in order.
    pub transaction_msg_count: i32,
    /// Does the client hold the queue's lock?
    pub locked: bool,
    /// Tries to unlock it.
    pub try_unlock_times: i64,
    /// Milliseconds of the last lock.
    pub last_lock_timestamp: i64,
    /// Given away at a rebalance.
    pub dropped: bool,
    /// Milliseconds of the last pull.
    pub last_pull_timestamp: i64,
    /// Milliseconds of the last consumption.
    pub last_consume_timestamp: i64,
}

impl Body for ProcessQueueInfo {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ProcessQueueInfo {
            commit_offset: long(value, "commitOffset", 0)?,
            cached_msg_min_offset: long(value, "cachedMsgMinOffset", 0)?,
            cached_msg_max_offset: long(value, "cachedMsgMaxOffset", 0)?,
            cached_msg_count: int(value, "cachedMsgCount", 0)?,
            cached_msg_size_in_mib: int(value, "cachedMsgSizeInMiB", 0)?,
            transaction_msg_min_offset: long(value, "transactionMsgMinOffset", 0)?,
            transaction_msg_max_offset: long(value, "transactionMsgMaxOffset", 0)?,
            transaction_msg_count: int(value, "transactionMsgCount", 0)?,
            locked: boolean(value, "locked", false)?,
            try_unlock_times: long(value, "tryUnlockTimes", 0)?,
            last_lock_timestamp: long(value, "lastLockTimestamp", 0)?,
            dropped: boolean(value, "droped", false)?,
            last_pull_timestamp: long(value, "lastPullTimestamp", 0)?,
            last_consume_timestamp: long(value, "lastConsumeTimestamp", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_i64("cachedMsgCount", self.cached_msg_count);
        w.field_i64("cachedMsgMaxOffset", self.cached_msg_max_offset);
        w.field_i64("cachedMsgMinOffset", self.cached_msg_min_offset);
        w.field_i64("cachedMsgSizeInMiB", self.cached_msg_size_in_mib);
        w.field_i64("commitOffset", self.commit_offset);
        w.field_bool("droped", self.dropped);
        w.field_i64("lastConsumeTimestamp", self.last_consume_timestamp);
        w.field_i64("lastLockTimestamp", self.last_lock_timestamp);
        w.field_i64("lastPullTimestamp", self.last_pull_timestamp);
        w.field_bool("locked", self.locked);
        w.field_i64("transactionMsgCount", self.transaction_msg_count);
        w.field_i64("transactionMsgMaxOffset", self.transaction_msg_max_offset);
        w.field_i64("transactionMsgMinOffset", self.transaction_msg_min_offset);
        w.field_i64("tryUnlockTimes", self.try_unlock_times);
        w.end_object();
    }
}

/// Rates of one topic of a consumer; times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConsumeStatus {
    /// Mean time of a pull.
    pub pull_rt: f64,
    /// Messages pulled a second.
    pub pull_tps: f64,
    /// Mean time of a consumption.
    pub consume_rt: f64,
    /// Messages consumed a second.
    pub consume_ok_tps: f64,
    /// Messages failed a second.
    pub consume_failed_tps: f64,
    /// Messages failed over the last hour.
    pub consume_failed_msgs: i64,
}

impl Body for ConsumeStatus {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ConsumeStatus {
            pull_rt: double(value, "pullRT")?,
            pull_tps: double(value, "pullTPS")?,
            consume_rt: double(value, "consumeRT")?,
            consume_ok_tps: double(value, "consumeOKTPS")?,
            consume_failed_tps: double(value, "consumeFailedTPS")?,
            consume_failed_msgs: long(value, "consumeFailedMsgs", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_i64("consumeFailedMsgs", self.consume_failed_msgs);
        w.field_f64("consumeFailedTPS", self.consume_failed_tps);
        w.field_f64("consumeOKTPS", self.consume_ok_tps);
        w.field_f64("consumeRT", self.consume_rt);
        w.field_f64("pullRT", self.pull_rt);
        w.field_f64("pullTPS", self.pull_tps);
        w.end_object();
    }
}

/// A client's answer to GET_CONSUMER_RUNNING_INFO (307).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumerRunningInfo {
    /// Settings. Tools need `PROP_CONSUME_TYPE` and `PROP_CONSUMER_START_TIMESTAMP`.
    pub properties: BTreeMap<String, String>,
    /// Subscriptions.
    pub subscriptions: Vec<SubscriptionData>,
    /// State by queue, in the order of topic, broker, id.
    pub queues: BTreeMap<MessageQueue, ProcessQueueInfo>,
    /// Rates by topic.
    pub status: BTreeMap<String, ConsumeStatus>,
    /// Stacks, when asked for.
    pub jstack: Option<String>,
}

impl Body for ConsumerRunningInfo {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut info = ConsumerRunningInfo {
            subscriptions: bodies(value, "subscriptionSet")?,
            jstack: opt_text(value, "jstack")?,
            ..Self::default()
        };
        for (name, text) in pairs(value, "properties")? {
            let text = text.to_text().unwrap_or_default();
            info.properties.insert(key_text(name, "properties")?, text);
        }
        for (queue, state) in pairs(value, "mqTable")? {
            let state = ProcessQueueInfo::read(state)?;
            info.queues.insert(MessageQueue::from_key(queue)?, state);
        }
        for (topic, status) in pairs(value, "statusTable")? {
            info.status.insert(key_text(topic, "statusTable")?, ConsumeStatus::read(status)?);
        }
        Ok(info)
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_opt_str("jstack", self.jstack.as_deref());
        w.key("mqTable");
        w.begin_object();
        for (queue, state) in &self.queues {
            queue.write_key(w);
            state.write(w);
        }
        w.end_object();
        w.key("properties");
        w.begin_object();
        for (name, text) in &self.properties {
            w.field_str(name, text);
        }
        w.end_object();
        w.key("statusTable");
        w.begin_object();
        for (topic, status) in &self.status {
            w.key(topic);
            status.write(w);
        }
        w.end_object();
        write_bodies(w, "subscriptionSet", &self.subscriptions);
        w.end_object();
    }
}

/// A client's answer to CONSUME_MESSAGE_DIRECTLY (309).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumeDirectlyResult {
    /// Is the consumer an orderly one?
    pub order: bool,
    /// Does it commit by itself?
    pub auto_commit: bool,
    /// `CR_SUCCESS`, `CR_LATER`, `CR_ROLLBACK`, `CR_COMMIT`, `CR_THROW_EXCEPTION` or `CR_RETURN_NULL`.
    pub consume_result: String,
    /// Error text.
    pub remark: Option<String>,
    /// Milliseconds it took.
    pub spent_time_mills: i64,
}

impl Body for ConsumeDirectlyResult {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(ConsumeDirectlyResult {
            order: boolean(value, "order", false)?,
            auto_commit: boolean(value, "autoCommit", true)?,
            consume_result: text(value, "consumeResult")?,
            remark: opt_text(value, "remark")?,
            spent_time_mills: long(value, "spentTimeMills", 0)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_bool("autoCommit", self.auto_commit);
        w.field_str("consumeResult", &self.consume_result);
        w.field_bool("order", self.order);
        w.field_opt_str("remark", self.remark.as_deref());
        w.field_i64("spentTimeMills", self.spent_time_mills);
        w.end_object();
    }
}
