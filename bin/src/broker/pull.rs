//! PULL_MESSAGE (11) and its alias LITE_PULL_MESSAGE (361): checks, reads, long polling.
//!
//! ```text
//! on_frame ─ checks ─ filter ─ Shard::get ──found──────────────► reply with slices of hot blocks
//!                        │         │ nothing new, may wait
//!                                  ├──────────► Waiters ──arrived / deadline──► the whole request again
//!                                  │ not in memory
//!                        │         └──────────► a task: Shard::get_cold ──────► the same from here on
//!                        └ gathered, and less there than asked for ► LatePulls ──the turn's write──► Shard::get
//! ```

use std::collections::VecDeque;
use std::rc::Rc;

use ringmq_engine::shard::{GetLimits, GetResult, GetStatus, NewMessage, NewRun, Queue, UnitCode};
use ringmq_engine::state::clients::PullRefused;
use ringmq_engine::state::filter::{FilterError, TagFilter};
use ringmq_engine::state::topic_name::OFFSET_MOVED_EVENT;
use ringmq_engine::state::topics::PERM_READ;
use ringmq_engine::state::waiters::{Hold, HoldRefused};
use ringmq_net::code::response;
use ringmq_net::frame::SerializeType;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{PullHeader, pull_flag};
use ringmq_net::record::{KnownProperties, tags_code};
use ringmq_net::reply::{ExtValue, ReplyHead, encode_reply};
use ringmq_net::server::Conn;

use super::meters::Reason;
use super::{Broker, FAQ, Refusal};

/// Most units that one pull looks at (stock 4.9.8), unless more messages are asked for.
const UNITS_MAX: usize = 800;
/// Most messages a client can ask to be returned at once, whatever the configuration says.
const MESSAGES_MAX: usize = 1024;
/// Released pulls that run before others get their turn.
const WOKEN_A_TURN: usize = 256;
/// Longest subscription of a pull: it is kept as long as the pull waits or reads.
const SUBSCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Bodies up to this many bytes are copied behind the header: cheaper than one more segment to gather.
const COPY_BYTES_MAX: usize = 2048;

/// A pull taken out of its frame, so that it can wait or read from the device.
pub(super) struct OwnedPull {
    conn: Rc<Conn>,
    serialize: SerializeType,
    opaque: i32,
    group: Box<str>,
    topic: Box<str>,
    queue_id: i32,
    offset: i64,
    max_messages: i32,
    sys_flag: i32,
    subscription: Option<Box<str>>,
    sub_version: i64,
    expression_type: Option<Box<str>>,
    suspend_ms: i64,
}

/// A pull after its checks that waits for the write of its turn: see [`LatePulls`](super::late::LatePulls).
pub(super) struct LatePull {
    owned: OwnedPull,
    queue: Rc<Queue>,
    filter: TagFilter,
    limits: GetLimits,
}

/// What a pull needs after its checks, owned or borrowed.
struct Pull<'a> {
    conn: &'a Rc<Conn>,
    serialize: SerializeType,
    opaque: i32,
    header: PullHeader<'a>,
}

impl OwnedPull {
    fn new(pull: &Pull<'_>) -> Self {
        let header = &pull.header;
        OwnedPull {
            conn: Rc::clone(pull.conn),
            serialize: pull.serialize,
            opaque: pull.opaque,
            group: header.consumer_group.into(),
            topic: header.topic.into(),
            queue_id: header.queue_id,
            offset: header.queue_offset,
            max_messages: header.max_msg_nums,
            sys_flag: header.sys_flag,
            // Clients send one with every pull; without the flag nobody reads it.
            subscription: header
                .subscription
                .filter(|_| header.sys_flag & pull_flag::SUBSCRIPTION != 0)
                .map(Into::into),
            sub_version: header.sub_version,
            expression_type: header
                .expression_type
                .filter(|_| header.sys_flag & pull_flag::SUBSCRIPTION != 0)
                .map(Into::into),
            suspend_ms: header.suspend_timeout_millis,
        }
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        let texts = [&self.group, &self.topic].into_iter();
        let texts = texts.chain(&self.subscription).chain(&self.expression_type);
        // A tag of the subscription is two bytes at least, and becomes a code of four.
        size_of::<OwnedPull>() + texts.map(|text| 3 * text.len()).sum::<usize>()
    }

    fn borrow(&self) -> Pull<'_> {
        Pull {
            conn: &self.conn,
            serialize: self.serialize,
            opaque: self.opaque,
            header: PullHeader {
                consumer_group: &self.group,
                topic: &self.topic,
                queue_id: self.queue_id,
                queue_offset: self.offset,
                max_msg_nums: self.max_messages,
                sys_flag: self.sys_flag,
                commit_offset: 0,
                suspend_timeout_millis: self.suspend_ms,
                subscription: self.subscription.as_deref(),
                sub_version: self.sub_version,
                expression_type: self.expression_type.as_deref(),
            },
        }
    }
}

impl Broker {
    /// Serves a pull that just arrived.
    pub(super) fn pull(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = PullHeader::decode(view)?;
        let pull = Pull { conn, serialize: view.serialize(), opaque: view.opaque(), header };
        if view.is_oneway() {
            // Nobody hears the answer; the progress that such a pull brings is all there is to it.
            self.check_pull(&pull)?;
            self.pull_filter(&pull.header)?;
            self.note_progress(&pull.header);
            return Ok(());
        }
        self.run_pull(&pull, true)
    }

    /// Runs pulls again that a message, their deadline or a scan has released, in the order in which they were: all checks again,
    /// no waiting. At most [`WOKEN_A_TURN`]: one message can release a hundred thousand, and everybody else would wait for
    /// their replies. The rest is left to [`Broker::run_many_released`].
    pub(super) fn run_released(self: &Rc<Self>) {
        for _ in 0..WOKEN_A_TURN {
            let Some(owned) = self.next_released() else { return };
            if owned.conn.is_closed() {
                continue;
            }
            let pull = owned.borrow();
            if let Err(refusal) = self.run_pull(&pull, false) {
                self.stats.meters.refusal(refusal.code());
                refusal.reply(&owned.conn, owned.serialize, owned.opaque);
            }
        }
        self.many_released.raise();
    }

    fn next_released(&self) -> Option<Box<OwnedPull>> {
        let mut released = self.released.borrow_mut();
        released.extend(self.woken.borrow_mut().drain(..));
        let next = released.pop_front();
        if next.is_none() && released.capacity() > WOKEN_A_TURN {
            *released = VecDeque::new();
        }
        next
    }

    /// Runs what [`Broker::run_released`] left, turn by turn, until the broker stops.
    pub(super) async fn run_many_released(self: Rc<Self>) {
        while !self.stopped() {
            self.many_released.wait().await;
            while !self.released.borrow().is_empty() {
                self.run_released();
                self.flush_replies();
                glommio::executor().yield_task_queue_now().await;
            }
        }
    }

    fn run_pull(self: &Rc<Self>, pull: &Pull<'_>, first: bool) -> Result<(), Refusal> {
        let queue = self.check_pull(pull)?;
        let filter = self.pull_filter(&pull.header)?;
        let limits = self.pull_limits(pull.header.max_msg_nums);
        if !first {
            return self.read_pull(pull, queue, filter, limits, false);
        }
        if self.may_gain(pull, &queue, limits) {
            let late = LatePull { owned: OwnedPull::new(pull), queue, filter, limits };
            self.wait_for_turn(late)?;
        } else {
            self.clock.turn();
            self.turn_pulls.set(self.turn_pulls.get() + 1);
            self.read_pull(pull, queue, filter, limits, true)?;
        }
        self.note_progress(&pull.header);
        Ok(())
    }

    /// Reads from memory, or has a task read from the device.
    fn read_pull(
        self: &Rc<Self>,
        pull: &Pull<'_>,
        queue: Rc<Queue>,
        filter: TagFilter,
        limits: GetLimits,
        first: bool,
    ) -> Result<(), Refusal> {
        let offset = pull.header.queue_offset;
        match self.shard.get(&queue, offset, limits, |code| filter.matches(code)) {
            Some(result) => {
                self.finish_pull(pull, &queue, filter, result, first);
                Ok(())
            }
            None => self.pull_cold(pull, queue, filter, limits, first),
        }
    }

    /// Whether a pull that just arrived may bring more if it waits for the write of its turn: something is there, but less than it may
    /// take. One that finds nothing waits for messages anyhow.
    fn may_gain(&self, pull: &Pull<'_>, queue: &Queue, limits: GetLimits) -> bool {
        let (offset, min, max) = (pull.header.queue_offset, queue.min_offset(), queue.max_offset());
        pull.conn.is_gathered()
            && offset >= min
            && offset < max
            && usize::try_from(max - offset).is_ok_and(|there| there < limits.messages)
            && self.late.borrow().waits()
    }

    fn wait_for_turn(self: &Rc<Self>, late: LatePull) -> Result<(), Refusal> {
        let (conn, bytes) = (late.owned.conn.id(), late.owned.bytes());
        let refused = self.late.borrow_mut().wait(conn, bytes, late);
        match refused {
            Ok(()) => Ok(()),
            Err(late) => self.run_late(late),
        }
    }

    fn run_late(self: &Rc<Self>, late: LatePull) -> Result<(), Refusal> {
        self.read_pull(&late.owned.borrow(), late.queue, late.filter, late.limits, true)
    }

    /// A turn has ended: the pulls that it brought wait for its write if that is for their queue.
    pub(super) fn end_turn_of_late(self: &Rc<Self>) {
        let end = self.shard.log().appended();
        self.late
            .borrow_mut()
            .end_turn(end, |late| late.queue.next_offset() > late.queue.max_offset());
        self.answer_late();
    }

    /// More of the log is visible: the pulls that waited for that are answered. Whether there were some.
    pub(super) fn reach_late(self: &Rc<Self>) -> bool {
        self.late.borrow_mut().reach(self.shard.log().visible());
        self.answer_late()
    }

    /// Answers the pulls that have waited for the write of their turn, or long enough. Whether there were some.
    pub(super) fn answer_late(self: &Rc<Self>) -> bool {
        let mut answered = false;
        while let Some(late) = self.next_late() {
            answered = true;
            let (conn, serialize, opaque) =
                (Rc::clone(&late.owned.conn), late.owned.serialize, late.owned.opaque);
            if let Err(refusal) = self.run_late(late) {
                self.stats.meters.refusal(refusal.code());
                refusal.reply(&conn, serialize, opaque);
            }
        }
        answered
    }

    fn next_late(&self) -> Option<LatePull> {
        self.late.borrow_mut().next_ready()
    }

    /// Stores the progress that a pull brings, if it brings one.
    fn note_progress(&self, header: &PullHeader<'_>) {
        // A slave takes progress by its own request alone (stock 4.9.8).
        if header.sys_flag & pull_flag::COMMIT_OFFSET != 0 && !self.is_slave() {
            self.commit_offset(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
            );
        }
    }

    fn pull_limits(&self, max_messages: i32) -> GetLimits {
        let asked = usize::try_from(max_messages).unwrap_or(0).min(MESSAGES_MAX);
        GetLimits {
            messages: asked.min(self.config.pull_messages_max),
            bytes: self.config.pull_bytes_max,
            units: asked.max(UNITS_MAX),
        }
    }

    /// Checks 1 to 6 of a pull, in stock's order.
    fn check_pull(&self, pull: &Pull<'_>) -> Result<Rc<Queue>, Refusal> {
        let header = &pull.header;
        if !self.readable() {
            let remark = format!("the broker[{}] pulling message is forbidden", self.ip());
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        let group = header.consumer_group;
        let Some(settings) = self.group(group) else {
            let remark = format!("subscription group [{group}] does not exist, {FAQ}");
            return Err(Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
        };
        if !settings.consume_enable {
            let remark = format!("subscription group no permission, {group}");
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        let topic = header.topic;
        let known = self.topics.borrow().get(topic).cloned();
        let Some(config) = known else {
            let remark = format!("topic[{topic}] not exist, apply first please! {FAQ}");
            return Err(Refusal::new(response::TOPIC_NOT_EXIST, remark));
        };
        let settings = config.settings();
        if settings.perm & PERM_READ == 0 {
            let remark = format!("the topic[{topic}] pulling message is forbidden");
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        let id = header.queue_id;
        if !(0..settings.read_queues).contains(&id) {
            let (queues, peer) = (settings.read_queues, pull.conn.peer());
            let remark = format!(
                "queueId[{id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{queues}] consumer:[/{peer}]"
            );
            return Err(Refusal::new(response::SYSTEM_ERROR, remark));
        }
        self.queue_of(&config, id)
    }

    /// Checks 7 and 8: which messages the puller wants.
    fn pull_filter(&self, header: &PullHeader<'_>) -> Result<TagFilter, Refusal> {
        if header.sys_flag & pull_flag::SUBSCRIPTION != 0 {
            if header.subscription.is_some_and(|text| text.len() > SUBSCRIPTION_BYTES_MAX) {
                return Err(PullRefused::Filter(FilterError::Malformed).into());
            }
            return Ok(TagFilter::from_expression(header.subscription, header.expression_type)
                .map_err(PullRefused::from)?);
        }
        let group = header.consumer_group;
        let broadcast = self.group(group).is_none_or(|settings| settings.consume_broadcast_enable);
        let clients = self.clients.borrow();
        let subscription =
            clients.subscription_for_pull(group, header.topic, header.sub_version, broadcast)?;
        Ok(subscription.filter().clone())
    }

    /// Reads from the device in a task of its own. Bounded: beyond the bound the client is told to try again.
    fn pull_cold(
        self: &Rc<Self>,
        pull: &Pull<'_>,
        queue: Rc<Queue>,
        filter: TagFilter,
        limits: GetLimits,
        first: bool,
    ) -> Result<(), Refusal> {
        let owned = OwnedPull::new(pull);
        self.spawn_slow(async move |broker: Rc<Broker>| {
            let pull = owned.borrow();
            let matches = |code| filter.matches(code);
            let began_us = broker.clock.monotonic_us();
            let read = broker.shard.get_cold(&queue, owned.offset, limits, matches).await;
            broker.stats_read_took(broker.clock.monotonic_us() - began_us);
            match read {
                Ok(result) => broker.finish_pull(&pull, &queue, filter, result, first),
                Err(error) => {
                    let refusal = broker.read_refusal(&error);
                    broker.stats.meters.refusal(refusal.code());
                    refusal.reply(&owned.conn, owned.serialize, owned.opaque);
                }
            }
        })
    }

    /// Waits if nothing is new and the client allows it; answers otherwise.
    fn finish_pull(
        self: &Rc<Self>,
        pull: &Pull<'_>,
        queue: &Rc<Queue>,
        filter: TagFilter,
        result: GetResult,
        first: bool,
    ) {
        let header = &pull.header;
        let code = match result.status {
            GetStatus::Found => response::SUCCESS,
            GetStatus::NoMatchedMessage | GetStatus::MessageWasRemoving => {
                response::PULL_RETRY_IMMEDIATELY
            }
            GetStatus::OffsetFoundNull | GetStatus::OffsetOverflowOne => response::PULL_NOT_FOUND,
            GetStatus::NoMessageInQueue if header.queue_offset == 0 => response::PULL_NOT_FOUND,
            GetStatus::NoMessageInQueue
            | GetStatus::OffsetOverflowBadly
            | GetStatus::OffsetTooSmall => response::PULL_OFFSET_MOVED,
        };
        if code == response::PULL_NOT_FOUND && first && header.sys_flag & pull_flag::SUSPEND != 0 {
            match self.hold_pull(pull, queue, filter) {
                Ok(()) => return,
                Err(HoldRefused::Behind(owned)) => {
                    self.woken.borrow_mut().push(owned);
                    return;
                }
                Err(HoldRefused::Full(_)) => self.stats.meters.refused(Reason::WaitingPullsFull),
            }
        }
        if code == response::PULL_OFFSET_MOVED && self.is_slave() {
            // A slave that is behind resets no consumer: it asks again where the group's broker is (stock 4.9.8).
            let broker_id = self.group(header.consumer_group).map_or(0, |group| group.broker_id);
            let result = GetResult { next_offset: header.queue_offset, ..result };
            self.stats_pulled(header, &result);
            reply_pull(pull, response::PULL_RETRY_IMMEDIATELY, &result, broker_id);
            return;
        }
        if code == response::PULL_OFFSET_MOVED {
            self.note_offset_moved(header, result.next_offset);
        }
        self.stats_pulled(header, &result);
        reply_pull(pull, code, &result, 0);
    }

    /// The visible end of the queue that a waiting pull waits on.
    pub(super) fn max_offset_of(&self, pull: &OwnedPull) -> i64 {
        let queue = self.shard.existing_queue(&pull.topic, pull.queue_id);
        queue.map_or(0, |queue| queue.max_offset())
    }

    /// Tells whoever watches OFFSET_MOVED_EVENT that a consumer asked for an offset that is not there (stock masters do).
    fn note_offset_moved(&self, header: &PullHeader<'_>, offset_new: i64) {
        let Ok(queue) = self.any_queue(OFFSET_MOVED_EVENT, 0) else { return };
        let group = header.consumer_group;
        let event = serde_json::json!({
            "consumerGroup": group,
            "messageQueue": {
                "brokerName": self.config.name,
                "queueId": header.queue_id,
                "topic": header.topic,
            },
            "offsetNew": offset_new,
            "offsetRequest": header.queue_offset,
        });
        let mut rewriter = self.rewriter.borrow_mut();
        let set = [("TAGS", group), ("KEYS", group)];
        if rewriter.rewrite("", &[], &set).is_err() {
            return;
        }
        let known = KnownProperties { tags: Some(group), keys: Some(group), ..Default::default() };
        let body = event.to_string();
        let message = NewMessage {
            flag: 0,
            body: body.as_bytes(),
            properties: rewriter.text(),
            known: &known,
            code: UnitCode::Tags(tags_code(known.tags)),
        };
        let now_ms = self.clock.now_ms();
        let run = NewRun {
            queue: &queue,
            sys_flag: 0,
            born_timestamp: now_ms,
            born_host: self.config.store_host,
            store_host: self.config.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
        };
        if let Err(error) =
            self.shard.put(self.clock.store_ms(), &run, std::iter::once(message), |_| {})
        {
            self.rare_log.warn("noting a moved offset", &error);
        }
        self.shard.kick();
    }

    fn hold_pull(
        &self,
        pull: &Pull<'_>,
        queue: &Rc<Queue>,
        filter: TagFilter,
    ) -> Result<(), HoldRefused<Box<OwnedPull>>> {
        let mut waiters = self.waiters.borrow_mut();
        let list = queue.wait_list().unwrap_or_else(|| {
            let list = waiters.add_queue();
            queue.set_wait_list(list);
            list
        });
        let hold_ms = pull.header.suspend_timeout_millis.clamp(0, self.config.suspend_ms_max);
        let deadline_ms = self.clock.monotonic_ms() + hold_ms;
        let payload = Box::new(OwnedPull::new(pull));
        let hold = Hold {
            conn: pull.conn.id(),
            offset: pull.header.queue_offset,
            filter,
            deadline_ms,
            bytes: payload.bytes(),
            payload,
        };
        let held = waiters.hold(list, queue.max_offset(), hold);
        // A busy shard holds a pull with each answer: its task, and a timer, for each of them would be most of what that costs.
        if deadline_ms < self.waiters_due_ms.get() {
            self.waiters_changed.raise();
        }
        held
    }
}

fn reply_pull(pull: &Pull<'_>, code: i32, result: &GetResult, suggested: i64) {
    let ext = [
        ("suggestWhichBrokerId", ExtValue::I64(suggested)),
        ("nextBeginOffset", ExtValue::I64(result.next_offset)),
        ("minOffset", ExtValue::I64(result.min_offset)),
        ("maxOffset", ExtValue::I64(result.max_offset)),
    ];
    let head = ReplyHead {
        serialize: pull.serialize,
        opaque: pull.opaque,
        code,
        remark: Some(result.status.name()),
        ext: Some(&ext),
    };
    if result.bytes <= COPY_BYTES_MAX {
        pull.conn.push(|out| {
            encode_reply(out, &head, result.bytes);
            for slice in &result.slices {
                out.extend_from_slice(slice.bytes());
            }
        });
        return;
    }
    pull.conn.push(|out| encode_reply(out, &head, result.bytes));
    for slice in &result.slices {
        pull.conn.push_shared(Rc::clone(&slice.owner), slice.range.clone());
    }
}
