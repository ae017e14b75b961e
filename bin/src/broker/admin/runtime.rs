//! GET_BROKER_RUNTIME_INFO (28): what `clusterList` and `brokerStatus` show, under stock's keys and some of our own.

use std::collections::BTreeMap;
use std::rc::Rc;

use ringmq_engine::state::delay::{SCHEDULE_TOPIC, level_to_queue};
use ringmq_net::body::{Body, KvTable};
use ringmq_net::header::HeaderView;
use ringmq_net::language::{VERSION, version_text};
use ringmq_net::server::Conn;

use crate::broker::{Broker, Refusal};

impl Broker {
    pub(super) fn runtime_info(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let mut table = broker.runtime_table();
            broker.add_disk(&mut table).await;
            answer.body(&KvTable { table }.to_json());
        })
    }

    fn runtime_table(&self) -> BTreeMap<String, String> {
        let mut table: BTreeMap<String, String> = self
            .stats
            .store
            .runtime(self.clock.now_ms())
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let mut put = |key: &str, value: String| {
            table.insert(key.to_owned(), value);
        };
        put("brokerVersion", VERSION.to_string());
        put("brokerVersionDesc", version_text(VERSION).into_owned());
        let log = self.shard.log();
        put("commitLogMinOffset", log.min_offset().to_string());
        put("commitLogMaxOffset", log.visible().to_string());
        let behind = log.visible().saturating_sub(self.shard.dispatched());
        put("dispatchBehindBytes", behind.to_string());
        put("pageCacheLockTimeMills", "0".to_owned());
        put(
            "remainHowManyDataToFlush",
            human_bytes(log.written() - log.durable().min(log.written())),
        );
        put("remainTransientStoreBufferNumbs", i32::MAX.to_string());
        put("startAcceptSendRequestTimeStamp", "0".to_owned());
        // There are no pools of threads here: what a tool reads as a queue is what waits in this shard.
        for (name, size, capacity) in [
            ("sendThreadPoolQueue", self.acks.waiting(), 10_000),
            ("pullThreadPoolQueue", 0, 100_000),
            ("queryThreadPoolQueue", self.slow_tasks.get(), 20_000),
        ] {
            put(&format!("{name}Size"), size.to_string());
            put(&format!("{name}Capacity"), capacity.to_string());
            put(&format!("{name}HeadWaitTimeMills"), "0".to_owned());
        }
        put("EndTransactionQueueSize", "0".to_owned());
        put("EndTransactionThreadPoolQueueCapacity", "100000".to_owned());
        for (level, offset) in self.delay_offsets.borrow().iter() {
            let queue = self.shard.existing_queue(SCHEDULE_TOPIC, level_to_queue(level));
            let max = queue.map_or(0, |queue| queue.max_offset());
            put(&format!("scheduleMessageOffset_{level}"), format!("{offset},{max}"));
        }
        put("ringmqLevel", self.config.level.name().to_owned());
        put("ringmqWrittenOffset", log.written().to_string());
        put("ringmqDurableOffset", log.durable().to_string());
        put("ringmqUnwrittenBytes", log.unwritten_bytes().to_string());
        put("ringmqWaitingPulls", self.waiters.borrow().len().to_string());
        put("ringmqBusyAnswers", self.stats.busy().to_string());
        let conflicts = self.clients.borrow().subscription_conflicts();
        put("ringmqSubscriptionConflicts", conflicts.to_string());
        let stats = log.stats();
        put("ringmqLogWrites", stats.writes.to_string());
        put("ringmqLogFlushes", stats.flushes.to_string());
        put("ringmqHotBytes", stats.hot_bytes.to_string());
        if let Some(server) = self.server() {
            let stats = server.stats();
            put("ringmqConnections", stats.connections.to_string());
            put("ringmqReceiveCalls", stats.recv_calls.to_string());
            put("ringmqSendCalls", stats.send_calls.to_string());
        }
        if let Some(failure) = log.failed() {
            put("ringmqLogFailure", failure.to_string());
        }
        table.extend(self.ha_table());
        table
    }

    async fn add_disk(&self, table: &mut BTreeMap<String, String>) {
        let path = self.shard.layout().commit_log().display().to_string();
        let (ratio, capacity) = match self.shard.log().disk_space().await {
            Ok(space) => {
                let (total, free) = (human_bytes(space.total), human_bytes(space.available));
                let ratio = f64::from(space.used_percent()) / 100.0;
                (ratio, format!("Total : {total}, Free : {free}."))
            }
            Err(_) => (-1.0, String::new()),
        };
        table.insert("commitLogDiskRatio".to_owned(), ratio.to_string());
        table.insert(format!("commitLogDiskRatio_{path}"), ratio.to_string());
        table.insert("consumeQueueDiskRatio".to_owned(), ratio.to_string());
        table.insert("commitLogDirCapacity".to_owned(), capacity);
        let earliest = self.shard.earliest_store_time().await.unwrap_or(-1);
        table.insert("earliestMessageTimeStamp".to_owned(), earliest.to_string());
    }
}

/// `0 B`, `1.5 KiB`, `252.0 GiB`, as stock writes them.
fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in UNITS.iter().skip(1) {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::human_bytes;

    #[test]
    fn bytes_are_written_as_stock_writes_them() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(252 << 30), "252.0 GiB");
    }
}
