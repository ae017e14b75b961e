//! A member as its client, brokers and administrators see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringmq_net::body::{
    ConsumeDirectlyResult, ConsumeType, ConsumerData, ConsumerRunningInfo, MessageModel,
    MessageQueue, ProcessQueueInfo, SubscriptionData,
};
use tokio::time::{Instant, sleep};

use super::allocate::queue_text;
use super::listener::{self, Ran, Stopping};
use super::member::{Kind, Member, Mode};
use super::outcome::Outcome;
use super::queue::Queue;
use super::start::ConsumeFrom;
use crate::endpoint::{BoxFuture, ConsumerEndpoint};
use crate::message::ReceivedMessage;

impl ConsumerEndpoint for Member {
    fn data(&self) -> ConsumerData {
        let pulls = matches!(self.kind, Kind::Pull);
        let model = match self.settings.is_broadcasting() {
            true => MessageModel::Broadcasting,
            false => MessageModel::Clustering,
        };
        let from = if pulls { ConsumeFrom::Last } else { self.settings.from };
        ConsumerData {
            group_name: self.settings.group.clone(),
            consume_type: Some(if pulls { ConsumeType::Actively } else { ConsumeType::Passively }),
            message_model: Some(model),
            consume_from: Some(from.wire()),
            subscriptions: self.subscription_data(),
            unit_mode: false,
        }
    }

    fn rebalance(&self) {
        self.wake();
    }

    fn reset_offsets(&self, topic: &str, offsets: Vec<(MessageQueue, i64)>) {
        for (id, offset) in offsets.into_iter().filter(|(id, _)| id.topic == topic) {
            let Some(queue) = self.queue(&id) else { continue };
            tracing::info!(queue = queue_text(&id), offset, "an administrator resets the offset");
            queue.reset(offset);
            let (store, instance) = (self.store.clone(), self.instance.clone());
            let group = self.settings.group.clone();
            self.instance.spawn(async move {
                let mut stored = queue.stored.lock().await;
                let committed = queue.committed();
                match store.write(&instance, &group, &queue.id, committed).await {
                    Ok(()) => *stored = Some(committed),
                    Err(error) => tracing::warn!(%error, "a reset offset was not stored"),
                }
            });
        }
    }

    fn offsets(&self, topic: &str) -> Vec<(MessageQueue, i64)> {
        let of_topic = |queue: &Arc<Queue>| queue.id.topic == topic;
        let queues = self.queues().into_iter().filter(of_topic);
        queues.map(|queue| (queue.id.clone(), queue.committed())).collect()
    }

    fn running_info(&self) -> BoxFuture<ConsumerRunningInfo> {
        let info = ConsumerRunningInfo {
            properties: self.properties(),
            subscriptions: self.subscription_data(),
            queues: self.queues().iter().map(|q| (q.id.clone(), self.queue_info(q))).collect(),
            status: self.stats.status(),
            jstack: None,
        };
        Box::pin(std::future::ready(info))
    }

    fn consume_directly(&self, message: ReceivedMessage) -> BoxFuture<ConsumeDirectlyResult> {
        let (listener, order) = match &self.kind {
            Kind::Concurrent(listener) => (Some(listener.clone()), false),
            Kind::Orderly(listener) => (Some(listener.clone()), true),
            Kind::Pull => (None, false),
        };
        let limit = self.settings.consume_timeout;
        Box::pin(async move {
            let began = Instant::now();
            let (result, remark) = match listener {
                None => ("CR_THROW_EXCEPTION", Some("a pull consumer has no listener".to_owned())),
                Some(listener) => {
                    let messages = vec![Arc::new(message)];
                    let late = sleep(limit);
                    match listener::run(&listener, messages, None, late, Stopping::LeaveIt).await {
                        Ran::Returned(outcome) if outcome.of(0) == Outcome::Consumed => {
                            ("CR_SUCCESS", None)
                        }
                        Ran::Returned(outcome) => {
                            ("CR_LATER", Some(format!("{:?}", outcome.of(0))))
                        }
                        Ran::Panicked(text) => ("CR_THROW_EXCEPTION", Some(text)),
                        Ran::Stopped => {
                            ("CR_THROW_EXCEPTION", Some(format!("not done in {limit:?}")))
                        }
                    }
                }
            };
            ConsumeDirectlyResult {
                order,
                auto_commit: true,
                consume_result: result.to_owned(),
                remark,
                spent_time_mills: i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX),
            }
        })
    }

    fn drain(self: Arc<Self>, deadline: Instant) -> BoxFuture<()> {
        Box::pin(async move { self.finish(deadline).await })
    }
}

impl Member {
    /// What heartbeats say: nothing for queues that the application assigned, as in stock.
    fn subscription_data(&self) -> Vec<SubscriptionData> {
        match self.mode {
            Mode::Subscribed => self.subscriptions().values().map(|one| one.data.clone()).collect(),
            Mode::Assigned => Vec::new(),
        }
    }

    /// Settings under the names that tools look for.
    fn properties(&self) -> BTreeMap<String, String> {
        let settings = &self.settings;
        let kind =
            if matches!(self.kind, Kind::Pull) { "CONSUME_ACTIVELY" } else { "CONSUME_PASSIVELY" };
        let servers: String =
            self.instance.routes.servers.addrs().iter().map(|addr| format!("{addr};")).collect();
        let model = if settings.is_broadcasting() { "BROADCASTING" } else { "CLUSTERING" };
        let pairs = [
            ("PROP_CONSUMEORDERLY", self.is_orderly().to_string()),
            ("PROP_THREADPOOL_CORE_SIZE", self.places.count().to_string()),
            ("PROP_CONSUMER_START_TIMESTAMP", self.started_ms.to_string()),
            ("PROP_NAMESERVER_ADDR", servers),
            ("PROP_CONSUME_TYPE", kind.to_owned()),
            ("PROP_CLIENT_VERSION", "V4_9_8".to_owned()),
            ("client", format!("ringmq-client {}", env!("CARGO_PKG_VERSION"))),
            ("consumerGroup", settings.group.clone()),
            ("messageModel", model.to_owned()),
            ("consumeFromWhere", settings.from.wire().name().to_owned()),
            ("allocateMessageQueueStrategy", settings.allocate.name()),
            ("consumeMessageBatchMaxSize", settings.batch.to_string()),
            ("pullBatchSize", settings.pull_batch.to_string()),
            ("pullThresholdForQueue", settings.cache.messages.to_string()),
            ("consumeTimeoutSeconds", settings.consume_timeout.as_secs().to_string()),
            ("paused", self.is_paused().to_string()),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn queue_info(&self, queue: &Queue) -> ProcessQueueInfo {
        let [last_pull_timestamp, last_consume_timestamp, last_lock_timestamp] = queue.times();
        let (committed, bytes, [ready, running]) =
            queue.look(|state| (state.committed(), state.bytes(), state.ranges()));
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        // For concurrent consumers stock counts those that run as cached, too.
        let order = self.is_orderly();
        let first = [ready, running].iter().filter(|r| r.0 > 0).map(|r| r.1).min().unwrap_or(0);
        let (count, min, max) = match order {
            true => ready,
            false => (ready.0 + running.0, first, ready.2.max(running.2)),
        };
        let (consuming, consuming_min, consuming_max) = if order { running } else { (0, 0, 0) };
        ProcessQueueInfo {
            commit_offset: committed,
            cached_msg_min_offset: min,
            cached_msg_max_offset: max,
            cached_msg_count: number(count),
            cached_msg_size_in_mib: number(bytes >> 20),
            transaction_msg_min_offset: consuming_min,
            transaction_msg_max_offset: consuming_max,
            transaction_msg_count: number(consuming),
            locked: self.locks() && queue.may_consume(),
            try_unlock_times: 0,
            last_lock_timestamp,
            dropped: queue.is_leaving(),
            last_pull_timestamp,
            last_consume_timestamp,
        }
    }
}
