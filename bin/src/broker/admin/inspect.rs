//! Progress, looked at and copied: 303, 308, 314, 317; queues from within: 306, 321.

use std::collections::BTreeMap;
use std::rc::Rc;

use ringmq_net::body::{
    Body, ConsumeQueueBody, ConsumeQueueUnit, ConsumeStats, ConsumeStatsList, ConsumeTimeSpan,
    ConsumeTimeSpans, CorrectionOffsets, MessageQueue,
};
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{
    CloneOffsetHeader, ConsumeQueueHeader, CorrectionOffsetHeader, GroupOnTopicHeader, ext_bool,
};
use ringmq_net::server::Conn;

use crate::broker::{Broker, Refusal, TopicHandle};

/// Most units that one look into a queue shows.
const UNITS_MAX: i64 = 1_024;

impl Broker {
    /// QUERY_CONSUME_TIME_SPAN: queue by queue, from when to when there are messages, and how old a group's next one is.
    pub(super) fn time_spans(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = GroupOnTopicHeader::decode(view)?;
        let name = header.topic;
        let Some(topic) = self.topics.borrow().get(name).cloned() else {
            let remark = format!("topic[{name}] not exist");
            return Err(Refusal::new(response::TOPIC_NOT_EXIST, remark));
        };
        let group = header.group.to_owned();
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let mut body = ConsumeTimeSpans::default();
            for id in 0..topic.settings().write_queues {
                body.spans.push(broker.time_span(&topic, &group, id).await);
            }
            answer.body(&body.to_json());
        })
    }

    async fn time_span(&self, topic: &TopicHandle, group: &str, id: i32) -> ConsumeTimeSpan {
        let queue = MessageQueue::new(topic.name(), self.config.name.as_str(), id);
        let mut span = ConsumeTimeSpan { queue, min_time_stamp: -1, ..ConsumeTimeSpan::default() };
        let committed = self.offsets.borrow().get(group, topic.name(), id).unwrap_or(0);
        let Some(queue) = self.shard.existing_queue(topic.name(), id) else { return span };
        let stored = async |offset| self.shard.store_time(&queue, offset).await;
        span.min_time_stamp = stored(queue.min_offset()).await.unwrap_or(-1);
        span.max_time_stamp = stored(queue.max_offset() - 1).await.unwrap_or(0);
        span.consume_time_stamp = match committed {
            0 => span.min_time_stamp,
            committed => stored(committed - 1).await.unwrap_or(0),
        };
        if committed < queue.max_offset() {
            let next = stored(committed.max(queue.min_offset())).await;
            span.delay_time = next.map_or(0, |next| (self.clock.now_ms() - next).max(0));
        }
        span
    }

    /// QUERY_CORRECTION_OFFSET: the least progress of all groups, and where that of one group is less, none.
    pub(super) fn correction_offsets(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = CorrectionOffsetHeader::decode(view)?;
        let filtered: Vec<&str> = header.filter_groups.unwrap_or_default().split(',').collect();
        let topic = header.topic;
        let table = self.offsets.borrow();
        let mut offsets: BTreeMap<i32, i64> = BTreeMap::new();
        for (group, of, queues) in table.iter() {
            // Stock takes the groups to be left out of its table for good.
            if of != topic || filtered.contains(&group) {
                continue;
            }
            for (id, offset) in queues.iter() {
                let queue = self.shard.existing_queue(topic, id);
                if offset >= queue.map_or(0, |queue| queue.min_offset()) {
                    let least = offsets.entry(id).or_insert(offset);
                    *least = offset.min(*least);
                }
            }
        }
        for (id, compared) in
            table.queues(header.compare_group, topic).into_iter().flat_map(|q| q.iter())
        {
            if let Some(least) = offsets.get_mut(&id)
                && *least > compared
            {
                *least = i64::MAX;
            }
        }
        self.reply_body(conn, view, &CorrectionOffsets { offsets }.to_json());
        Ok(())
    }

    /// CLONE_GROUP_OFFSET: a group begins where another one is.
    pub(super) fn clone_offsets(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = CloneOffsetHeader::decode(view)?;
        let (from, to) = (header.src_group, header.dest_group);
        let topics: Vec<String> = match header.topic {
            Some(topic) => vec![topic.to_owned()],
            None => {
                let offsets = self.offsets.borrow();
                offsets.topics_of_group(from).into_iter().map(str::to_owned).collect()
            }
        };
        for topic in topics {
            let known = self.topics.borrow().get(&topic).is_some();
            if !known || !header.offline && !self.consumes(from, &topic) {
                continue;
            }
            let cloned = self.offsets.borrow_mut().clone_group(from, to, &topic);
            cloned.map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
            self.ha.touched.note(to, &topic);
        }
        self.reply_done(conn, view);
        Ok(())
    }

    /// Whether a group, as far as one can tell, consumes a topic: it does, or it is not online.
    pub(super) fn consumes(&self, group: &str, topic: &str) -> bool {
        self.clients.borrow().consumer(group).is_none_or(|consumers| {
            consumers.subscriptions().next().is_none() || consumers.subscription(topic).is_some()
        })
    }

    /// GET_BROKER_CONSUME_STATS: how far every group is.
    pub(super) fn all_consume_stats(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let ordered_only = ext_bool(view, "isOrder");
        let mut groups: Vec<String> =
            self.groups.borrow().iter().map(|group| group.group_name.clone()).collect();
        groups.sort_unstable();
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let broker_addr = broker.config.told.clone();
            let mut body = ConsumeStatsList { broker_addr, ..ConsumeStatsList::default() };
            for group in groups {
                let list = broker.consume_stats_by_topic(&group, ordered_only).await;
                let rows = list.iter().flat_map(|stats| &stats.queues);
                body.total_diff +=
                    rows.map(|(_, row)| row.broker_offset - row.consumer_offset).sum::<i64>();
                body.groups.push((group, list));
            }
            answer.body(&body.to_json());
        })
    }

    async fn consume_stats_by_topic(&self, group: &str, ordered_only: bool) -> Vec<ConsumeStats> {
        let topics: Vec<TopicHandle> = {
            let (offsets, table) = (self.offsets.borrow(), self.topics.borrow());
            let names = offsets.topics_of_group(group).into_iter();
            names.filter_map(|name| table.get(name).cloned()).collect()
        };
        let mut list = Vec::new();
        for topic in topics {
            let settings = topic.settings();
            if ordered_only && !settings.order {
                continue;
            }
            let mut stats = ConsumeStats::default();
            self.consume_stats_of(group, topic.name(), settings.write_queues, &mut stats).await;
            if !stats.queues.is_empty() {
                list.push(stats);
            }
        }
        list
    }

    /// CLEAN_EXPIRED_CONSUMEQUEUE. A queue keeps its last file, which says where it goes on: stock begins again at 0, and its groups
    /// skip what comes.
    pub(super) fn clean_queues(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let outcome = broker.shard.trim_queues().await;
            answer.outcome(
                outcome
                    .map(|_| ())
                    .map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string())),
            );
        })
    }

    /// QUERY_CONSUME_QUEUE: the units of a queue, and which of them a group's filter takes.
    pub(super) fn queue_units(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = ConsumeQueueHeader::decode(view)?;
        let (topic, id) = (header.topic, header.queue_id);
        let Some(queue) = self.shard.existing_queue(topic, id) else {
            let remark = format!("{id}@{topic} is not exist!");
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        };
        let mut body = ConsumeQueueBody {
            max_queue_index: queue.max_offset(),
            min_queue_index: queue.min_offset(),
            ..ConsumeQueueBody::default()
        };
        let mut filter = None;
        if let Some(group) = header.consumer_group {
            let clients = self.clients.borrow();
            let found = clients.consumer(group).and_then(|consumers| consumers.subscription(topic));
            body.filter_data = Some(match found {
                Some(_) => "null".to_owned(),
                None => format!("{group}@{topic} is not online!"),
            });
            body.subscription = found.map(|subscription| subscription.data().clone());
            filter = found.map(|subscription| subscription.filter().clone());
        }
        let from = header.index.max(0);
        let to = from.saturating_add(i64::from(header.count).clamp(0, UNITS_MAX));
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            for offset in from..to {
                match broker.shard.unit(&queue, offset).await {
                    Ok(Some(unit)) => body.units.push(ConsumeQueueUnit {
                        physic_offset: unit.physical_offset,
                        physic_size: unit.size,
                        tags_code: unit.tags_code,
                        eval: filter.as_ref().is_some_and(|f| f.matches(unit.tags_code)),
                        msg: None,
                    }),
                    Ok(None) => break,
                    Err(error) => {
                        let refusal = Refusal::new(response::SYSTEM_ERROR, error.to_string());
                        return answer.refuse(&refusal);
                    }
                }
            }
            answer.body(&body.to_json());
        })
    }
}
