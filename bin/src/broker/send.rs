//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): checks in stock's order, the append, and
//! the answer now or when the level is reached.

use std::rc::Rc;

use ringmq_engine::shard::{NewMessage, NewRun, PutError, Queue, Stored, UnitCode};
use ringmq_engine::state::topic_name::RETRY_PREFIX;
use ringmq_engine::state::topics::SendTemplate;
use ringmq_net::body::TopicFilterType;
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::SendHeader;
use ringmq_net::record::{
    BatchBody, KnownProperties, MESSAGE_ID_CHARS_MAX, OffsetMessageId, Properties, sys_flag,
    tags_code,
};
use ringmq_net::server::Conn;

use super::ack::{Ack, AckOf, Level, Sent};
use super::meters::Reason;
use super::{Broker, FAQ, Refusal, TopicHandle};
use crate::config::Role;

/// First protocol version whose `maxReconsumeTimes` counts (3.4.9).
const VERSION_MAX_RECONSUME: i32 = 121;

/// Where a send goes after its checks.
struct Target {
    topic: TopicHandle,
    queue: Rc<Queue>,
    /// The queue id that the answer tells.
    queue_id: i32,
    /// It goes to the dead letters: at once, whatever delay it asks for.
    dead: bool,
}

/// Whom to answer, and how.
pub(super) struct Asker<'a> {
    pub(super) conn: &'a Rc<Conn>,
    pub(super) view: &'a HeaderView<'a>,
}

impl Broker {
    /// Serves one send. Checks that fail are answered with MSG_REGION and TRACE_ON, as stock does.
    pub(super) fn send(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        v2: bool,
        body: &[u8],
    ) -> Result<(), Refusal> {
        // What was just made is read where it stands, here and below: to copy it on would wait for its writing.
        let header = if v2 { SendHeader::v2(view) } else { SendHeader::v1(view) };
        let header = header.as_ref().map_err(|error| Refusal::from(error.clone()))?;
        self.check_accepting()?;
        let target = &self.check_send(conn, view, header)?;
        let asker = Asker { conn, view };
        if header.batch {
            self.send_batch(&asker, header, target, body)
        } else {
            self.send_one(&asker, header, target, body)
        }
    }

    /// Checks 2 to 10.
    fn check_send(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        header: &SendHeader<'_>,
    ) -> Result<Target, Refusal> {
        let name = header.topic;
        let known = self.topics.borrow().get_for_send(name)?.cloned();
        let topic = match known {
            Some(topic) => topic,
            None => self.auto_create(header)?,
        };
        let settings = topic.settings();
        if settings.order && !self.writable() {
            let remark = format!("the broker[{}] sending message is forbidden", self.ip());
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        if header.queue_id >= settings.write_queues.max(settings.read_queues) {
            let (id, peer) = (header.queue_id, conn.peer());
            let remark = format!("request queueId[{id}] is illegal, {topic} Producer: {peer}");
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        }
        let queue_id = if header.queue_id < 0 {
            self.random_queue(settings.write_queues).ok_or_else(|| {
                let remark = format!("topic[{name}] has no queue to write to");
                Refusal::new(response::SYSTEM_ERROR, remark)
            })?
        } else {
            header.queue_id
        };
        match name.strip_prefix(RETRY_PREFIX) {
            Some(group) if !header.batch => self.retry_target(view, header, group, topic, queue_id),
            _ => self.target(topic, queue_id),
        }
    }

    fn auto_create(self: &Rc<Self>, header: &SendHeader<'_>) -> Result<TopicHandle, Refusal> {
        let template = SendTemplate {
            default_topic: header.default_topic,
            queues: header.default_topic_queue_nums,
            unit: header.unit_mode,
        };
        let created = self.topics.borrow_mut().create_for_send(
            header.topic,
            template,
            self.clock.now_ms(),
        )?;
        tracing::info!(topic = header.topic, "topic created by a producer's first send");
        self.forget_former_progress(header.topic);
        self.topic_made(&created);
        Ok(created)
    }

    fn target(&self, topic: TopicHandle, queue_id: i32) -> Result<Target, Refusal> {
        let queue = self.queue_of(&topic, queue_id)?;
        Ok(Target { topic, queue, queue_id, dead: false })
    }

    /// A consumer's own retry: past the group's limit it becomes a dead letter.
    fn retry_target(
        self: &Rc<Self>,
        view: &HeaderView<'_>,
        header: &SendHeader<'_>,
        group: &str,
        topic: TopicHandle,
        queue_id: i32,
    ) -> Result<Target, Refusal> {
        let Some(settings) = self.group(group) else {
            let remark = format!("subscription group not exist, {group} {FAQ}");
            return Err(Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
        };
        let mut max = settings.retry_max_times;
        if view.version() >= VERSION_MAX_RECONSUME
            && let Some(asked) = header.max_reconsume_times
        {
            max = asked;
        }
        if header.reconsume_times < max {
            return self.target(topic, queue_id);
        }
        let dead = self.dead_letter_topic(group)?;
        // The answer tells the queue that was asked for all the same.
        Ok(Target { queue_id, dead: true, ..self.target(dead, 0)? })
    }

    fn send_one(
        self: &Rc<Self>,
        asker: &Asker<'_>,
        header: &SendHeader<'_>,
        target: &Target,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let text = header.properties;
        let mut rewriter = self.rewriter.borrow_mut();
        let cluster = self.config.cluster.as_str();
        let asked = rewriter.for_send(text, cluster);
        let half = |known: &KnownProperties<'_>| known.is_half_message();
        if asked.as_ref().map_or_else(|_| half(&Properties::new(text).known()), half) {
            let remark =
                format!("the broker[{}] sending transaction message is forbidden", self.ip());
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        let asked = asked.as_ref().map_err(|_| self.illegal())?;
        let plain = matches!(
            header.sys_flag & sys_flag::TRANSACTION_MASK,
            0 | sys_flag::TRANSACTION_COMMIT
        );
        let route = if plain { self.delay_levels.route(asked.delay_level()) } else { None };
        let (queue, code) = match route {
            None => (Rc::clone(&target.queue), UnitCode::Tags(tags_code(asked.tags))),
            Some(_) if target.dead => {
                // As a message that is sent back: stock means to do so, and then takes the message's own delay again.
                let set = [("CLUSTER", cluster), ("DELAY", "0")];
                rewriter.rewrite(text, &[], &set).map_err(|_| self.illegal())?;
                (Rc::clone(&target.queue), UnitCode::Tags(tags_code(asked.tags)))
            }
            Some(route) => {
                let queue = self.delay_queue(route.queue_id)?;
                let level = route.level.to_string();
                let id = target.queue.id().to_string();
                let set = [
                    ("CLUSTER", cluster),
                    ("DELAY", level.as_str()),
                    ("REAL_TOPIC", target.queue.topic().as_ref()),
                    ("REAL_QID", id.as_str()),
                ];
                rewriter.rewrite(text, &[], &set).map_err(|_| self.illegal())?;
                (queue, UnitCode::DeliverAfterMs(route.delay_ms))
            }
        };
        self.check_share(asker.conn)?;
        let run = self.new_run(asker, header, target, &queue);
        let properties = rewriter.text();
        let message = NewMessage { flag: header.flag, body, properties, known: asked, code };
        let stored =
            self.shard.put(self.clock.turn().store_ms, &run, std::iter::once(message), |_| {});
        let stored = stored.map_err(|error| self.put_refusal(&error))?;
        let bytes = stored.end - stored.physical_offset;
        if Rc::ptr_eq(&queue, &target.queue) {
            self.stats_put_to(&target.topic, 1, bytes);
        } else {
            self.stats_put(&queue, 1, bytes);
        }
        self.acknowledge(asker, target, asked.waits(), &stored, None);
        Ok(())
    }

    fn send_batch(
        self: &Rc<Self>,
        asker: &Asker<'_>,
        header: &SendHeader<'_>,
        target: &Target,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let text = header.properties;
        let asked = Properties::new(text).known();
        let illegal = body.len() > self.config.message_bytes_max
            || header.sys_flag & sys_flag::TRANSACTION_MASK != 0
            || asked.delay_level() > 0;
        if illegal {
            return Err(self.illegal());
        }
        let batch = BatchBody::parse(body)
            .map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
        let mut rewriter = self.rewriter.borrow_mut();
        let of_batch = rewriter
            .rewrite(text, &[], &[("CLUSTER", self.config.cluster.as_str())])
            .map_err(|_| self.illegal())?;
        // The records' texts first, back to back, so that all lengths are known before room is reserved.
        let mut texts = self.batch_texts.borrow_mut();
        texts.begin(rewriter.text());
        let mut items: Vec<(i32, &[u8], usize, KnownProperties<'_>)> =
            Vec::with_capacity(batch.count());
        for message in batch.messages() {
            let inner = std::str::from_utf8(message.properties).map_err(|_| {
                Refusal::new(response::SYSTEM_ERROR, "a batch message's properties are not UTF-8")
            })?;
            let known = texts.push(inner).map_err(|_| self.illegal())?;
            if known.delay_level() > 0 {
                // Stock stores it, delivers it at once, and says nothing.
                return Err(self.illegal());
            }
            items.push((message.flag, message.body, texts.all().len(), as_read(known, of_batch)));
        }
        let messages = items.iter().enumerate().map(|(index, (flag, body, end, known))| {
            let start = index.checked_sub(1).map_or(0, |before| items[before].2);
            NewMessage {
                flag: *flag,
                body,
                properties: texts.all().get(start..*end).unwrap_or_default(),
                known,
                code: UnitCode::Tags(tags_code(known.tags)),
            }
        });
        self.check_share(asker.conn)?;
        let run = self.new_run(asker, header, target, &target.queue);
        let mut ids = String::with_capacity(items.len() * 33);
        let stored =
            self.shard.put(self.clock.turn().store_ms, &run, messages, |physical_offset| {
                if !ids.is_empty() {
                    ids.push(',');
                }
                let id = OffsetMessageId { store_host: self.config.store_host, physical_offset };
                ids.push_str(id.write(&mut [0; MESSAGE_ID_CHARS_MAX]));
            });
        let stored = stored.map_err(|error| self.put_refusal(&error))?;
        self.stats_put_to(&target.topic, items.len() as u64, stored.end - stored.physical_offset);
        let ids = Some(ids.into_boxed_str());
        self.acknowledge(asker, target, asked.waits(), &stored, ids);
        Ok(())
    }

    fn new_run<'a>(
        &self,
        asker: &Asker<'_>,
        header: &SendHeader<'_>,
        target: &Target,
        queue: &'a Rc<Queue>,
    ) -> NewRun<'a> {
        let multi_tag = multi_tag_flag(&target.topic);
        NewRun {
            queue,
            sys_flag: header.sys_flag | multi_tag,
            born_timestamp: header.born_timestamp,
            born_host: asker.conn.peer(),
            store_host: self.config.store_host,
            reconsume_times: header.reconsume_times,
            prepared_transaction_offset: 0,
        }
    }

    /// Answers at once what does not wait for more than memory; keeps the rest until its level is reached.
    fn acknowledge(
        &self,
        asker: &Asker<'_>,
        target: &Target,
        waits: bool,
        stored: &Stored,
        batch_ids: Option<Box<str>>,
    ) {
        asker.conn.set_mark(stored.end);
        if asker.view.is_oneway() {
            self.stats.store.put_took_us(0);
            return;
        }
        let ack = Ack {
            end: stored.end,
            conn: Rc::clone(asker.conn),
            opaque: asker.view.opaque(),
            serialize: asker.view.serialize(),
            received_us: self.clock.turn().monotonic_us,
            unsaved: target.topic.slot().unsaved.get(),
            stored: AckOf::Send(Sent {
                queue_id: target.queue_id,
                queue_offset: stored.queue_offset,
                physical_offset: stored.physical_offset,
                batch_ids,
                queue: Rc::clone(&target.queue),
            }),
        };
        self.answer_at_level(ack, waits);
    }

    /// Answers at once, or when the broker's level is reached.
    pub(super) fn answer_at_level(&self, ack: Ack, waits: bool) {
        let synchronous = self.config.role == Role::SyncMaster;
        if !waits || (self.config.level == Level::Memory && !synchronous) {
            self.acks.answer(&ack, response::SUCCESS, None, Level::Memory);
            self.stats.store.put_took_us(0);
        } else if !synchronous {
            self.acks.wait(ack);
        } else if matches!(ack.stored, AckOf::SendBack) {
            // Stock does not wait for slaves here either.
            self.acks.wait_local(ack, response::SUCCESS);
        } else if self.ha.slaves_reach(ack.end) {
            self.acks.wait(ack);
        } else {
            self.acks.wait_local(ack, response::SLAVE_NOT_AVAILABLE);
        }
    }

    /// Keeps the last quarter of the room for unwritten bytes for connections that have none there: however many push without
    /// waiting for their answers, one that waits is served. A connection's mark is where its last message ends.
    fn check_share(&self, conn: &Conn) -> Result<(), Refusal> {
        let log = self.shard.log();
        let own = conn.mark() > log.written();
        if own && log.unwritten_bytes() > self.config.unwritten_shared {
            self.stats_put_failed();
            return Err(self.busy());
        }
        Ok(())
    }

    /// Too much is unwritten. Code 1 and not 2: a 4.9 producer fails a send on 2 at once, and takes another broker on 1.
    fn busy(&self) -> Refusal {
        self.stats_busy();
        let remark = "[PC_SYNCHRONIZED]broker busy, start flow control for a while";
        Refusal::new(response::SYSTEM_ERROR, remark)
    }

    /// MESSAGE_ILLEGAL with stock's text.
    fn illegal(&self) -> Refusal {
        Refusal::new(
            response::MESSAGE_ILLEGAL,
            format!(
                "the message is illegal, maybe msg body or properties length not matched. msg body length limit {}B, msg properties length limit 32KB.",
                self.config.message_bytes_max
            ),
        )
    }

    /// The answer to a put that the store refused.
    pub(super) fn put_refusal(&self, error: &PutError) -> Refusal {
        self.stats_put_failed();
        use ringmq_engine::log::AppendError;
        self.stats.meters.refused(match error {
            PutError::TooLarge { .. } | PutError::Log(AppendError::TooLarge { .. }) => {
                Reason::TooLarge
            }
            PutError::Log(AppendError::Busy { .. }) => Reason::UnwrittenFull,
            PutError::DerivedBehind { .. } => Reason::DerivedBehind,
            PutError::Log(AppendError::NotReady { .. }) => Reason::SegmentNotReady,
            PutError::Log(AppendError::NoSpace { .. }) => Reason::NoSpace,
            PutError::Log(AppendError::Failed(_)) => Reason::LogFailed,
            PutError::Log(AppendError::Closed | AppendError::Empty) => Reason::Stopping,
        });
        match error {
            PutError::TooLarge { .. } | PutError::Log(AppendError::TooLarge { .. }) => {
                self.illegal()
            }
            PutError::Log(AppendError::Busy { .. } | AppendError::NotReady { .. })
            | PutError::DerivedBehind { why: None, .. } => self.busy(),
            PutError::DerivedBehind { .. } => self.not_writable_for(&format!(" {error}")),
            PutError::Log(_) => self.not_writable(),
        }
    }
}

/// What readers take a batch's message to say: the batch's own values stand behind the message's, and the last holds. The unique key
/// is the exception: a batch's is left out where the message has its own.
fn as_read<'a>(message: KnownProperties<'a>, batch: KnownProperties<'a>) -> KnownProperties<'a> {
    KnownProperties {
        tags: batch.tags.or(message.tags),
        keys: batch.keys.or(message.keys),
        uniq_key: message.uniq_key.or(batch.uniq_key),
        ..message
    }
}

/// The `sysFlag` bit of messages of topics whose messages carry several tags.
pub(super) fn multi_tag_flag(topic: &TopicHandle) -> i32 {
    match topic.settings().filter_type {
        TopicFilterType::MultiTag => sys_flag::MULTI_TAGS,
        TopicFilterType::SingleTag => 0,
    }
}
