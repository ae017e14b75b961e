//! Progress and rates: 43, 45, 208, 315.

use std::rc::Rc;

use ringmq_engine::state::stats_items::{Snapshot, StatsName};
use ringmq_net::body::{
    Body, BrokerStats, BrokerStatsItem, ConsumeStats, MessageModel, MessageQueue, OffsetPair,
};
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{ConsumeStatsHeader, StatsDataHeader};
use ringmq_net::json::Writer;
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
                let Some(known) = broker.topics.borrow().get(topic).cloned() else { continue };
                let queues = known.settings().read_queues;
                broker.consume_stats_of(&group, topic, queues, &mut stats).await;
            }
            answer.body(&stats.to_json());
        })
    }

    /// Adds one topic's rows, unless the group is online without the topic. A group that consumes by broadcast keeps its progress to
    /// itself: it has rows only where it has stored some nevertheless.
    pub(super) async fn consume_stats_of(
        &self,
        group: &str,
        topic: &str,
        queues: i32,
        stats: &mut ConsumeStats,
    ) {
        if !self.consumes(group, topic) {
            return;
        }
        let broadcast =
            self.clients.borrow().consumer(group).is_some_and(|consumers| {
                consumers.mode().model == Some(MessageModel::Broadcasting)
            });
        for id in 0..queues {
            let committed = self.offsets.borrow().get(group, topic, id);
            if committed.is_none() && broadcast {
                continue;
            }
            let mut row = OffsetPair::default();
            if let Some(queue) = self.shard.existing_queue(topic, id) {
                row.broker_offset = queue.max_offset();
                // Progress beyond the end is that of messages that are gone: nothing is left to consume, and not less than nothing.
                row.consumer_offset = committed.unwrap_or(0).clamp(0, row.broker_offset);
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
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            answer.body(&broker.render_offsets(Writer::new()).await);
        })
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
