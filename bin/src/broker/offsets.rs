//! Offsets: consumers' progress (14, 15) and the bounds of queues (29, 30, 31, 32).

use std::rc::Rc;

use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{
    QueryConsumerOffsetHeader, QueueHeader, SearchOffsetHeader, UpdateConsumerOffsetHeader,
};
use ringmq_net::reply::ExtValue;
use ringmq_net::server::Conn;

use super::{Broker, Refusal};

impl Broker {
    pub(super) fn update_consumer_offset(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = UpdateConsumerOffsetHeader::decode(view)?;
        let UpdateConsumerOffsetHeader { consumer_group: group, topic, queue_id, .. } = header;
        self.commit_offset(group, topic, queue_id, header.commit_offset);
        // Who waits for the answer may rely on the commit, even if this is the last that is heard of this broker.
        let waits = !view.is_oneway()
            && self.tell_commit(group, topic, queue_id)
            && self.answer_when_told(conn, view);
        if !waits {
            self.reply_done(conn, view);
        }
        Ok(())
    }

    /// Stores a consumer's progress, as it is: stock validates nothing and lets it go backwards.
    pub(super) fn commit_offset(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        if let Err(error) = self.offsets.borrow_mut().commit(group, topic, queue_id, offset) {
            self.rare_log.warn("consumer offsets", &error);
        }
        self.ha.touched.note(group, topic);
        if self.is_slave() {
            self.ha.untold.commit(group, topic, queue_id, offset);
        }
    }

    /// Forgets progress on a topic that is made now, where it lies beyond the topic's messages: it is that of a former topic of the
    /// name, committed by consumers that outlived it. They would skip what comes.
    pub(super) fn forget_former_progress(&self, topic: &str) {
        let mut offsets = self.offsets.borrow_mut();
        let beyond = |group: &&str| {
            offsets.queues(group, topic).is_some_and(|queues| {
                queues.iter().any(|(id, offset)| {
                    let queue = self.shard.existing_queue(topic, id);
                    offset > queue.map_or(0, |queue| queue.max_offset())
                })
            })
        };
        let former = offsets.groups_of_topic(topic).into_iter().filter(beyond);
        let former: Vec<String> = former.map(str::to_owned).collect();
        for group in former {
            tracing::info!(group, topic, "progress on a former topic of this name is forgotten");
            offsets.remove(&group, topic);
        }
    }

    pub(super) fn query_consumer_offset(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = QueryConsumerOffsetHeader::decode(view)?;
        let stored =
            self.offsets.borrow().get(header.consumer_group, header.topic, header.queue_id);
        let offset = stored.or_else(|| self.start_of_young_queue(header.topic, header.queue_id));
        match offset {
            Some(offset) => {
                self.reply_ext(conn, view, &[("offset", ExtValue::I64(offset))]);
                Ok(())
            }
            // 22 and no other code: 5.x clients start by their own rule on 22 alone.
            None => Err(Refusal::new(
                response::QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )),
        }
    }

    /// A group without progress starts at 0 on a queue whose first message is still there and "in memory" in stock's
    /// sense: less than 40 % of the machine's memory behind the log's end.
    fn start_of_young_queue(&self, topic: &str, queue_id: i32) -> Option<i64> {
        if !self.config.new_groups_at_start {
            return None;
        }
        let Some(queue) = self.shard.existing_queue(topic, queue_id) else { return Some(0) };
        if queue.min_offset() > 0 {
            return None;
        }
        if queue.max_offset() == 0 {
            return Some(0);
        }
        // The first message lies at or after the log's first byte, so this is never less than its true distance: a group
        // may start by its own rule a little earlier than with stock, where much other traffic came before the topic's.
        let log = self.shard.log();
        let behind = log.visible().saturating_sub(log.min_offset());
        (behind <= self.config.in_memory_bytes).then_some(0)
    }

    pub(super) fn max_offset(&self, conn: &Rc<Conn>, view: &HeaderView<'_>) -> Result<(), Refusal> {
        let header = QueueHeader::decode(view)?;
        let queue = self.shard.existing_queue(header.topic, header.queue_id);
        let offset = queue.map_or(0, |queue| queue.max_offset());
        self.reply_ext(conn, view, &[("offset", ExtValue::I64(offset))]);
        Ok(())
    }

    pub(super) fn min_offset(&self, conn: &Rc<Conn>, view: &HeaderView<'_>) -> Result<(), Refusal> {
        let header = QueueHeader::decode(view)?;
        let queue = self.shard.existing_queue(header.topic, header.queue_id);
        let offset = queue.map_or(0, |queue| queue.min_offset());
        self.reply_ext(conn, view, &[("offset", ExtValue::I64(offset))]);
        Ok(())
    }

    pub(super) fn search_offset(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = SearchOffsetHeader::decode(view)?;
        let Some(queue) = self.shard.existing_queue(header.topic, header.queue_id) else {
            self.reply_ext(conn, view, &[("offset", ExtValue::I64(0))]);
            return Ok(());
        };
        let timestamp = header.timestamp;
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            match broker.shard.offset_by_time(&queue, timestamp).await {
                Ok(offset) => answer.ext(&[("offset", ExtValue::I64(offset))]),
                Err(error) => answer.refuse(&broker.read_refusal(&error)),
            }
        })
    }

    pub(super) fn earliest_store_time(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = QueueHeader::decode(view)?;
        let Some(queue) = self.shard.existing_queue(header.topic, header.queue_id) else {
            self.reply_ext(conn, view, &[("timestamp", ExtValue::I64(-1))]);
            return Ok(());
        };
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let offset = queue.min_offset();
            let timestamp = broker.shard.store_time(&queue, offset).await.unwrap_or(-1);
            answer.ext(&[("timestamp", ExtValue::I64(timestamp))]);
        })
    }
}
