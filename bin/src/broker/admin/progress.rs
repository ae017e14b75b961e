//! Progress and rates: 43, 45, 208, 315.

use std::rc::Rc;

use ringmq_engine::state::stats_items::{Snapshot, StatsName};
use ringmq_net::body::{
    Body, BrokerStats, BrokerStatsItem, ConsumeStats, MessageQueue, OffsetPair,
};
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{ConsumeStatsHeader, StatsDataHeader};
use ringmq_net::server::Conn;

use crate::broker::{Broker, Refusal};

impl Broker {
    pub(super) fn consume_stats(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = ConsumeStatsHeader::decode(view)?;
        let group = header.consumer_group.to_owned();
        let topics: Vec<String> = match header.topic {
            Some(topic) => vec![topic.to_owned()],
            None => {
                let offsets = self.offsets.borrow();
                offsets.topics_of_group(&group).into_iter().map(str::to_owned).collect()
            }
        };
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let mut stats = ConsumeStats::default();
            for topic in &topics {
                broker.consume_stats_of(&group, topic, &mut stats).await;
            }
            answer.body(&stats.to_json());
        })
    }

    /// Adds one topic's rows, unless the topic is unknown or the group is online without it.
    async fn consume_stats_of(&self, group: &str, topic: &str, stats: &mut ConsumeStats) {
        let Some(known) = self.topics.borrow().get(topic).cloned() else { return };
        let subscribed = match self.clients.borrow().consumer(group) {
            Some(consumers) => {
                consumers.subscriptions().next().is_none()
                    || consumers.subscription(topic).is_some()
            }
            None => true,
        };
        if !subscribed {
            return;
        }
        for id in 0..known.settings().read_queues {
            let committed = self.offsets.borrow().get(group, topic, id).unwrap_or(0);
            let mut row = OffsetPair { consumer_offset: committed.max(0), ..OffsetPair::default() };
            if let Some(queue) = self.shard.existing_queue(topic, id) {
                row.broker_offset = queue.max_offset();
                let last = row.consumer_offset - 1;
                row.last_timestamp = self.shard.store_time(&queue, last).await.unwrap_or(0);
            }
            stats.queues.push((MessageQueue::new(topic, self.config.name.as_str(), id), row));
        }
        let items = self.stats.items.borrow();
        let item = items.get(StatsName::GroupGetNums, &format!("{topic}@{group}"));
        stats.consume_tps += item.map_or(0.0, |item| item.minute().tps);
    }

    pub(super) fn all_consumer_offsets(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.reply_body(conn, view, &self.offsets.borrow().to_json());
        Ok(())
    }

    pub(super) fn all_delay_offsets(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.reply_body(conn, view, &self.delay_offsets.borrow().to_json());
        Ok(())
    }

    pub(super) fn stats_data(&self, conn: &Rc<Conn>, view: &HeaderView<'_>) -> Result<(), Refusal> {
        let header = StatsDataHeader::decode(view)?;
        let (name, key) = (header.stats_name, header.stats_key);
        let items = self.stats.items.borrow();
        let item = StatsName::from_text(name).and_then(|name| items.get(name, key));
        let Some(item) = item else {
            let remark = format!("The stats <{name}> <{key}> not exist");
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        };
        let body = BrokerStats {
            minute: stats_item(item.minute()),
            hour: stats_item(item.hour()),
            day: stats_item(item.day()),
        };
        self.reply_body(conn, view, &body.to_json());
        Ok(())
    }
}

fn stats_item(snapshot: Snapshot) -> BrokerStatsItem {
    BrokerStatsItem { sum: snapshot.sum, tps: snapshot.tps, avgpt: snapshot.average }
}
