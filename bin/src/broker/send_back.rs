//! CONSUMER_SEND_MSG_BACK (36): a consumer returns a message, for a later retry or as a dead letter.

use std::rc::Rc;

use ringmq_engine::shard::{NewMessage, NewRun, UnitCode};
use ringmq_engine::state::saver::SaveTicket;
use ringmq_engine::state::topics::PERM_WRITE;
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::SendBackHeader;
use ringmq_net::record::{MESSAGE_ID_CHARS_MAX, OffsetMessageId, Properties, decode, tags_code};
use ringmq_net::server::Conn;

use super::answer::Answer;
use super::send::multi_tag_flag;
use super::{Broker, FAQ, Refusal, TopicHandle};

/// First protocol version whose `maxReconsumeTimes` counts (3.4.9).
const VERSION_MAX_RECONSUME: i32 = 121;
/// Delay level of the first retry when the broker decides: 10 s.
const FIRST_RETRY_LEVEL: i32 = 3;

/// A send-back that has passed its checks.
struct SendBack {
    group: String,
    physical_offset: i64,
    delay_level: i32,
    reconsume_max: i32,
    retry_queues: i32,
    retry_topic: TopicHandle,
}

impl Broker {
    pub(super) fn send_back(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = SendBackHeader::decode(view)?;
        if self.is_slave() {
            return Err(self.not_writable());
        }
        let group = header.group;
        let Some(settings) = self.group(group) else {
            let remark = format!("subscription group not exist, {group} {FAQ}");
            return Err(Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
        };
        if !self.writable() {
            let remark = format!("the broker[{}] sending message is forbidden", self.ip());
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        if settings.retry_queue_nums <= 0 {
            self.reply_done(conn, view);
            return Ok(());
        }
        let retry_topic = self.retry_topic(group, settings.retry_queue_nums, header.unit_mode)?;
        if retry_topic.settings().perm & PERM_WRITE == 0 {
            let remark = format!("the topic[{}] sending message is forbidden", retry_topic.name());
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        let mut reconsume_max = settings.retry_max_times;
        if view.version() >= VERSION_MAX_RECONSUME
            && let Some(asked) = header.max_reconsume_times
        {
            reconsume_max = asked;
        }
        let back = SendBack {
            group: group.to_owned(),
            physical_offset: header.offset,
            delay_level: header.delay_level,
            reconsume_max,
            retry_queues: settings.retry_queue_nums,
            retry_topic,
        };
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            match broker.store_back(&back).await {
                Ok(stored) => broker.answer_back(answer, stored),
                Err(refusal) => answer.refuse(&refusal),
            }
        })
    }

    /// The answer waits for the broker's level. Stock does not wait here, but what it holds is the kernel's and survives its process; the
    /// consumer goes on for good once it hears of success.
    fn answer_back(&self, answer: &Answer, (end, unsaved): (u64, Option<SaveTicket>)) {
        if let Some(ack) = answer.ack(end, unsaved, self.clock.monotonic_us()) {
            self.answer_at_level(ack, true);
        }
    }

    /// Reads the record and stores its copy; gives the copy's end in the log and, if its topic is new, the save of that. Nothing may come
    /// between this and [`Broker::answer_back`].
    async fn store_back(
        self: &Rc<Self>,
        back: &SendBack,
    ) -> Result<(u64, Option<SaveTicket>), Refusal> {
        let record = self.read_record(back.physical_offset).await;
        let record = record.map_err(|error| self.read_refusal(&error))?.ok_or_else(|| {
            let remark = format!("look message by offset failed, {}", back.physical_offset);
            Refusal::new(response::SYSTEM_ERROR, remark)
        })?;
        let view = decode(record.bytes())
            .map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
        let text = std::str::from_utf8(view.properties()).unwrap_or_default();
        let known = Properties::new(text).known();
        let group = &back.group;
        let dead = view.reconsume_times() >= back.reconsume_max || back.delay_level < 0;
        let (topic, queue_id, level) = if dead {
            (self.dead_letter_topic(group)?, 0, 0)
        } else {
            let queue_id = self.random_queue(back.retry_queues).unwrap_or(0);
            let level = match back.delay_level {
                0 => FIRST_RETRY_LEVEL + view.reconsume_times(),
                asked => asked,
            };
            (Rc::clone(&back.retry_topic), queue_id, level)
        };
        // Stock refuses with the name of what the store says, and not with the code of a send.
        self.check_accepting()
            .map_err(|refusal| Refusal::new(response::SYSTEM_ERROR, refusal.status_name()))?;
        let mut id = [0; MESSAGE_ID_CHARS_MAX];
        let own_id = OffsetMessageId {
            store_host: view.store_host(),
            physical_offset: view.physical_offset() as u64,
        };
        let origin = known.origin_message_id.unwrap_or_else(|| own_id.write(&mut id));
        let real_topic = known.retry_topic.unwrap_or_else(|| view.topic());
        let multi_tag = multi_tag_flag(&back.retry_topic);
        let route = self.delay_levels.route(u32::try_from(level).unwrap_or(0));
        let level = route.map_or(level, |route| route.level).to_string();
        let real_id = queue_id.to_string();
        let mut set = vec![
            ("RETRY_TOPIC", real_topic),
            ("ORIGIN_MESSAGE_ID", origin),
            ("WAIT", "false"),
            ("DELAY", level.as_str()),
        ];
        let (queue, delay_ms) = match route {
            Some(route) => {
                set.push(("REAL_TOPIC", topic.name()));
                set.push(("REAL_QID", real_id.as_str()));
                (self.delay_queue(route.queue_id)?, Some(route.delay_ms))
            }
            None => (self.queue_of(&topic, queue_id)?, None),
        };
        let mut rewriter = self.rewriter.borrow_mut();
        let stored_known = rewriter
            .rewrite(text, &[], &set)
            .map_err(|error| Refusal::new(response::SYSTEM_ERROR, error.to_string()))?;
        let message = NewMessage {
            flag: view.flag(),
            body: view.body(),
            properties: rewriter.text(),
            known: &stored_known,
            code: match delay_ms {
                Some(delay_ms) => UnitCode::DeliverAfterMs(delay_ms),
                None => UnitCode::Tags(tags_code(known.tags)),
            },
        };
        let run = NewRun {
            queue: &queue,
            sys_flag: view.sys_flag() | multi_tag,
            born_timestamp: view.born_timestamp(),
            born_host: view.born_host(),
            store_host: view.store_host(),
            reconsume_times: view.reconsume_times() + 1,
            prepared_transaction_offset: 0,
        };
        let stored = self
            .shard
            .put(self.clock.store_ms(), &run, std::iter::once(message), |_| {})
            .map_err(|error| {
                Refusal::new(response::SYSTEM_ERROR, self.put_refusal(&error).status_name())
            })?;
        self.stats_sent_back(group, view.topic(), &queue, stored.end - stored.physical_offset);
        self.shard.kick();
        Ok((stored.end, topic.slot().unsaved.get()))
    }
}
