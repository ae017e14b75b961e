//! Topics: 17, 21, 202, 215, 300, 305, 316, 351.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ringmq_engine::shard::ShardError;
use ringmq_engine::state::delay::SCHEDULE_TOPIC;
use ringmq_engine::state::saver::SaveTicket;
use ringmq_engine::state::topic_name::TRANS_OP_HALF_TOPIC;
use ringmq_engine::state::topics::{QUEUES_MAX, TopicSettings};
use ringmq_net::body::{
    Body, GroupList, MessageQueue, TopicFilterType, TopicList, TopicOffset, TopicStats,
};
use ringmq_net::client::off_reactor;
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{CreateTopicHeader, TopicHeader};
use ringmq_net::server::Conn;

use crate::broker::{Broker, Refusal, TopicHandle};

/// How long a topic's creation waits for the name servers that answer, so that its route is there when a tool asks next.
const TOLD_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a deletion looks whether the last records before it have been dispatched.
const DISPATCH_POLL: Duration = Duration::from_millis(2);

impl Broker {
    pub(super) fn update_topic(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = CreateTopicHeader::decode(view)?;
        self.topics.borrow().check_admin(header.topic)?;
        let filter_type =
            TopicFilterType::from_name(header.topic_filter_type).ok_or_else(|| {
                let remark = format!("topicFilterType {:?} is unknown", header.topic_filter_type);
                Refusal::new(response::SYSTEM_ERROR, remark)
            })?;
        for (name, count) in
            [("readQueueNums", header.read_queue_nums), ("writeQueueNums", header.write_queue_nums)]
        {
            if !(0..=QUEUES_MAX).contains(&count) {
                let remark = format!("{name}={count} is refused: 0 to {QUEUES_MAX}");
                return Err(Refusal::new(response::SYSTEM_ERROR, remark));
            }
        }
        let settings = TopicSettings {
            read_queues: header.read_queue_nums,
            write_queues: header.write_queue_nums,
            perm: header.perm,
            sys_flag: header.topic_sys_flag,
            filter_type,
            // Order comes from the name server's table alone: stock ignores the request's field.
            order: false,
        };
        let ensured =
            self.topics.borrow_mut().update(header.topic, settings, self.clock.now_ms())?;
        if ensured.created {
            self.forget_former_progress(header.topic);
        }
        tracing::info!(
            topic = header.topic,
            broker = %self.config.name,
            created = ensured.created,
            read_queues = settings.read_queues,
            write_queues = settings.write_queues,
            "topic set on this shard alone; ask each shard, or the cluster, to have it on all"
        );
        let saved = self.topics_changed();
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            broker.registrations.told(TOLD_TIMEOUT).await;
            answer.outcome(broker.durable_or_refuse(saved, "the topic is set").await);
        })
    }

    pub(super) fn delete_topic(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let topic = TopicHeader::decode(view)?.topic.to_owned();
        let deleted = self.topics.borrow_mut().delete(&topic, self.clock.now_ms())?;
        if let Some(deleted) = deleted {
            self.release_waiting(&deleted);
        }
        self.stats.remove_topic(&topic);
        // Stock keeps them: a topic made again under the name begins at 0, and groups would skip its first messages.
        self.offsets.borrow_mut().remove_topic(&topic);
        let saved = self.save_topics();
        tracing::info!(topic, broker = %self.config.name, "topic deleted on this shard");
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            answer.outcome(broker.finish_deletion(saved).await);
        })
    }

    /// Pulls that wait on a topic that is gone are answered so now: a topic that is made again under its name has other queues.
    fn release_waiting(&self, topic: &TopicHandle) {
        let mut woken = self.woken.borrow_mut();
        for queue in topic.slot().queues.borrow().iter().flatten() {
            if let Some(list) = queue.wait_list() {
                self.waiters.borrow_mut().wake_all(list, &mut woken);
            }
        }
    }

    pub(super) fn clean_unused_topics(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            answer.outcome(broker.remove_unused_queues().await);
        })
    }

    /// First the table, then the queues: after a crash in between the topic is gone, and its queues wait for the next request
    /// that removes what is unused.
    async fn finish_deletion(&self, saved: Option<SaveTicket>) -> Result<(), Refusal> {
        self.durable_or_refuse(saved, "the topic is deleted").await?;
        self.remove_unused_queues().await
    }

    /// Removes the queues of every topic that is not in the table, except those that never are. What is removed stays so after a
    /// crash: a checkpoint behind its last record keeps it out of what a start redoes.
    async fn remove_unused_queues(&self) -> Result<(), Refusal> {
        let mut removed = false;
        let failed = |error: ShardError| Refusal::new(response::SYSTEM_ERROR, error.to_string());
        for topic in self.shard.topics_with_queues() {
            let kept = [SCHEDULE_TOPIC, TRANS_OP_HALF_TOPIC].contains(&&*topic)
                || self.topics.borrow().get(&topic).is_some();
            if !kept {
                self.shard.remove_topic(&topic).await.map_err(failed)?;
                removed = true;
            }
        }
        if removed {
            self.dispatched_to(self.shard.log().appended()).await;
            self.shard.checkpoint().await.map_err(failed)?;
        }
        Ok(())
    }

    /// Waits until everything before `end` is visible and dispatched, or the log has failed.
    async fn dispatched_to(&self, end: u64) {
        self.shard.kick();
        while self.shard.dispatched() < end && self.shard.log().failed().is_none() {
            glommio::timer::sleep(DISPATCH_POLL).await;
        }
    }

    pub(super) fn all_topics(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let topics = self.topics.borrow().snapshot();
        self.answer_slowly(conn, view, async move |_, answer| {
            match off_reactor("topics", move || topics.body().to_json()).await {
                Ok(body) => answer.body(&body),
                Err(error) => {
                    let remark = format!("the topics could not be rendered: {error}");
                    answer.refuse(&Refusal::new(response::SYSTEM_ERROR, remark));
                }
            }
        })
    }

    /// Stock 4.9 does not have this request; the tools of 5.x ask it before `topicStatus` and `consumerProgress`.
    pub(super) fn topic_config(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let name = TopicHeader::decode(view)?.topic;
        let Some(topic) = self.topics.borrow().get(name).cloned() else {
            let remark = format!("No topic in this broker. topic: {name}");
            return Err(Refusal::new(response::TOPIC_NOT_EXIST, remark));
        };
        self.reply_body(conn, view, &topic.config().to_json());
        Ok(())
    }

    pub(super) fn system_topics(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let topics = self.topics.borrow().system_topics();
        self.reply_body(conn, view, &TopicList { broker_addr: None, topics }.to_json());
        Ok(())
    }

    /// Groups that are online with the topic, and groups that have an offset on it.
    pub(super) fn topic_consumers(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let topic = TopicHeader::decode(view)?.topic;
        let clients = self.clients.borrow();
        let offsets = self.offsets.borrow();
        let mut groups: BTreeSet<&str> = clients.groups_of_topic(topic).into_iter().collect();
        groups.extend(offsets.groups_of_topic(topic));
        let groups = groups.into_iter().map(str::to_owned).collect();
        self.reply_body(conn, view, &GroupList { groups }.to_json());
        Ok(())
    }

    pub(super) fn topic_stats(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let name = TopicHeader::decode(view)?.topic;
        let Some(topic) = self.topics.borrow().get(name).cloned() else {
            let remark = format!("topic[{name}] not exist");
            return Err(Refusal::new(response::TOPIC_NOT_EXIST, remark));
        };
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let mut stats = TopicStats::default();
            for id in 0..topic.settings().write_queues {
                let key = MessageQueue::new(topic.name(), broker.config.name.as_str(), id);
                let mut row = TopicOffset::default();
                if let Some(queue) = broker.shard.existing_queue(topic.name(), id) {
                    row.min_offset = queue.min_offset();
                    row.max_offset = queue.max_offset();
                    row.last_update_timestamp =
                        broker.shard.store_time(&queue, row.max_offset - 1).await.unwrap_or(0);
                }
                stats.queues.push((key, row));
            }
            answer.body(&stats.to_json());
        })
    }
}
