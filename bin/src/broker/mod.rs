//! One shard's broker: everything between a client's connection and the store.
//!
//! A broker lives on one reactor and owns all of its parts; nothing here is shared between threads. Requests are handled
//! synchronously in `service`: a send is appended and left in `ack` until a write covers it, a pull is answered from
//! memory, waits, or goes to the device in a task. Work that is not a request runs in a few long-lived tasks started by
//! `lifecycle`: delivery of delayed messages, registration at name servers, saving of configuration, retention.
//!
//! | module | requests |
//! |---|---|
//! | `send`, `send_back` | 10, 310, 320, 36 |
//! | `pull` | 11, 361 |
//! | `offsets` | 14, 15, 29, 30, 31, 32 |
//! | `clients` | 34, 35, 38, 41, 42, 46 and what the broker sends to clients |
//! | `query` | 12, 33 |
//! | `admin` | everything else |

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use ringmq_engine::log::{DiskSpace, Slice};
use ringmq_engine::shard::{Queue, Shard, ShardError};
use ringmq_engine::state::clients::Clients;
use ringmq_engine::state::delay::{DelayLevels, DelayOffsets, SCHEDULE_TOPIC};
use ringmq_engine::state::groups::GroupTable;
use ringmq_engine::state::locks::QueueLocks;
use ringmq_engine::state::offsets::OffsetTable;
use ringmq_engine::state::saver::{ConfigSaver, SaveTicket};
use ringmq_engine::state::topics::{PERM_READ, PERM_WRITE, Topic, TopicTable};
use ringmq_engine::state::waiters::{WaitQueue, Waiters};
use ringmq_net::body::SubscriptionGroupConfig;
use ringmq_net::code::response;
use ringmq_net::record::{BatchTexts, PropertiesRewriter};
use ringmq_net::server::Server;

mod ack;
mod admin;
mod answer;
mod checkpoints;
mod clients;
mod clock;
mod config;
mod crowds;
mod cut;
mod delay;
mod files;
mod ha;
mod lag;
mod late;
mod lifecycle;
mod masters_groups;
mod metadata;
mod meters;
mod observe;
mod offsets;
mod pull;
mod query;
mod rare_log;
mod refusal;
mod registration;
mod relay;
mod retention;
mod saving;
mod send;
mod send_back;
mod service;
mod signal;
mod slow;
mod stats;
mod steps;
mod stream_metadata;
mod terms;
#[cfg(test)]
mod tests;
mod tunables;
mod untold;

pub use ack::Level;
pub use lifecycle::run_shard;
pub use refusal::Refusal;

use ack::Acks;
use clock::Clock;
use config::BrokerConfig;
use crowds::Crowds;
use files::Paths;
use ha::Ha;
use lag::Lags;
use late::LatePulls;
use meters::Reason;
use observe::Opening;
use pull::{LatePull, OwnedPull};
use rare_log::RareLog;
use registration::Registrations;
use relay::Calls;
use saving::Promised;
use signal::Signal;
use stats::Stats;
use steps::Steps;
use tunables::Tunables;

/// What stock adds to the remark of refusals that a newcomer meets.
const FAQ: &str = "\nSee http://rocketmq.apache.org/docs/faq/ for further details.";

/// Both permissions.
const PERM_READ_WRITE: i32 = PERM_READ | PERM_WRITE;

/// How far the broker is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Everything is served.
    Serving,
    /// New sends are refused, waiting pulls released, the rest is served.
    Refusing,
    /// Tasks end.
    Stopped,
}

/// What a topic carries with it: handles of its queues, by queue id, so that a send finds its queue without hashing.
#[derive(Default)]
struct TopicSlot {
    /// The save that its entry in the topics' file waits for, until that is durable.
    unsaved: Cell<Option<SaveTicket>>,
    /// What a put counts on.
    put: OnceCell<stats::TopicItems>,
    queues: RefCell<Vec<Option<Rc<Queue>>>>,
}

type TopicHandle = Rc<Topic<TopicSlot>>;

/// One shard's broker. See the module's text.
struct Broker {
    config: BrokerConfig,
    tunables: RefCell<Tunables>,
    clock: Clock,
    shard: Rc<Shard>,
    /// Held by the shard's life, which ends it.
    server: OnceCell<Weak<Server>>,
    phase: Cell<Phase>,

    topics: RefCell<TopicTable<TopicSlot>>,
    groups: RefCell<GroupTable>,
    offsets: RefCell<OffsetTable>,
    clients: RefCell<Clients>,
    locks: RefCell<QueueLocks>,
    delay_levels: DelayLevels,
    delay_offsets: RefCell<DelayOffsets>,
    waiters: RefCell<Waiters<Box<OwnedPull>>>,
    /// Pulls that were released just now.
    #[expect(clippy::vec_box, reason = "as the table of waiting pulls hands them out")]
    woken: RefCell<Vec<Box<OwnedPull>>>,
    /// Those that have not run again yet, in order.
    released: RefCell<VecDeque<Box<OwnedPull>>>,
    /// Raised when there are more of them than one turn runs.
    many_released: Signal,
    /// Pulls that wait for the write of the gathered turn that brought them.
    late: RefCell<LatePulls<LatePull>>,
    /// Groups with many members whose members are to be told of a change.
    crowds: Crowds,
    acks: Acks,
    stats: Stats,

    /// Pulls that were served in the turn that runs.
    turn_pulls: Cell<u32>,

    rewriter: RefCell<PropertiesRewriter>,
    batch_texts: RefCell<BatchTexts>,
    slow_tasks: Cell<usize>,
    /// Commits that are answered when slaves are told.
    commits_waiting: Cell<usize>,
    next_random: Cell<u64>,
    next_opaque: Cell<i32>,
    /// What was asked of clients and is not answered yet.
    calls: Calls,
    rare_log: RareLog,
    lags: Lags,
    opening: Opening,
    /// As last looked at.
    disk: Cell<Option<DiskSpace>>,

    /// Raised when a pull begins to wait whose deadline is before [`Broker::waiters_due_ms`].
    waiters_changed: Signal,
    /// When waiting pulls are looked at by themselves, on the clock of their deadlines.
    waiters_due_ms: Cell<i64>,
    /// The list that the delay topic's queues are tied to; no pull waits on it.
    delay_list: WaitQueue,
    /// Raised when a message for the delay topic is visible.
    delay_arrived: Signal,
    /// Raised when the store is to be opened anew, because its log is to be cut.
    reopening: Signal,
    /// Raised when the log has made progress.
    progressed: Signal,
    /// Raised when an administrator asks for expired segments to go.
    retention_asked: Signal,
    /// Steps of the wall clock, which age no segment.
    steps: RefCell<Steps>,
    /// Rounds for which that holds.
    manual_rounds: Cell<u32>,
    registrations: Registrations,
    ha: Ha,
    /// Counts changes of the tunables, and the text that tools are told as the configuration's version.
    config_changes: Cell<u64>,
    config_version: RefCell<String>,
    /// The name servers are being left.
    leaving: Cell<bool>,
    /// The log has failed, and that has been said.
    log_failed: Cell<bool>,
    saver: ConfigSaver,
    paths: Paths,
    promised: Promised,
}

impl Broker {
    /// The address stock shows in "the broker[...]" remarks.
    fn ip(&self) -> std::net::IpAddr {
        self.config.store_host.ip()
    }

    fn server(&self) -> Option<Rc<Server>> {
        self.server.get()?.upgrade()
    }

    fn readable(&self) -> bool {
        self.tunables.borrow().permission & PERM_READ != 0
    }

    fn writable(&self) -> bool {
        self.tunables.borrow().permission & PERM_WRITE != 0
    }

    fn stopped(&self) -> bool {
        self.phase.get() == Phase::Stopped
    }

    /// Refuses new messages on the way out, while the disk is too full, and after the disk has failed.
    fn check_accepting(&self) -> Result<(), Refusal> {
        let log = self.shard.log();
        if self.phase.get() == Phase::Serving
            && !self.shard.disk_full()
            && log.failed().is_none()
            && !self.is_slave()
        {
            return Ok(());
        }
        self.stats.meters.refused(if self.phase.get() != Phase::Serving {
            Reason::Stopping
        } else if log.failed().is_some() {
            Reason::LogFailed
        } else if self.is_slave() {
            Reason::Slave
        } else {
            Reason::DiskFull
        });
        Err(self.not_writable())
    }

    /// SERVICE_NOT_AVAILABLE with stock's text: a producer takes another broker. Behind it our reason, if the store knows one.
    fn not_writable(&self) -> Refusal {
        let log = self.shard.log();
        let why = match (log.failed(), log.segment_error()) {
            (Some(failure), _) => format!(" The log has stopped: {failure}"),
            (None, Some(error)) => format!(" The next segment can't be made: {error}"),
            (None, None) => String::new(),
        };
        self.not_writable_for(&why)
    }

    fn not_writable_for(&self, why: &str) -> Refusal {
        let used = f64::from(self.shard.disk_used_percent()) / 100.0;
        Refusal::new(
            response::SERVICE_NOT_AVAILABLE,
            format!(
                "service not available now. It may be caused by one of the following reasons: the broker's disk is full [CL: {used:5.2} CQ: {used:5.2} INDEX: {used:5.2}], messages are put to the slave, message store has been shut down, etc.{why}"
            ),
        )
    }

    /// A consumer group's settings; made on first use where the rules allow.
    fn group(&self, group: &str) -> Option<Rc<SubscriptionGroupConfig>> {
        let mut groups = self.groups.borrow_mut();
        groups.get_or_create(group, self.clock.now_ms())
    }

    /// The queue `id` of a topic, by the handle that the topic carries.
    fn queue_of(&self, topic: &TopicHandle, id: i32) -> Result<Rc<Queue>, Refusal> {
        let illegal = || {
            let remark = format!("request queueId[{id}] is illegal, {topic}");
            Refusal::new(response::SYSTEM_ERROR, remark)
        };
        let at = usize::try_from(id).map_err(|_| illegal())?;
        if let Some(Some(queue)) = topic.slot().queues.borrow().get(at) {
            return Ok(Rc::clone(queue));
        }
        let queue = self.shard.queue(topic.name(), id).ok_or_else(illegal)?;
        let mut queues = topic.slot().queues.borrow_mut();
        if queues.len() <= at {
            queues.resize(at + 1, None);
        }
        if let Some(slot) = queues.get_mut(at) {
            *slot = Some(Rc::clone(&queue));
        }
        Ok(queue)
    }

    /// A queue by name, for records that name where they belong whether or not the topic still exists.
    fn any_queue(&self, topic: &str, id: i32) -> Result<Rc<Queue>, Refusal> {
        self.shard.queue(topic, id).ok_or_else(|| {
            Refusal::new(
                response::SYSTEM_ERROR,
                format!("queueId[{id}] of topic[{topic}] is illegal"),
            )
        })
    }

    /// A queue of the delay topic.
    fn delay_queue(&self, id: i32) -> Result<Rc<Queue>, Refusal> {
        let queue = self.any_queue(SCHEDULE_TOPIC, id)?;
        if queue.wait_list().is_none() {
            // Tied to a list where no pull waits: its arrivals then reach the listener, which wakes the delivery.
            queue.set_wait_list(self.delay_list);
        }
        Ok(queue)
    }

    /// A group's retry topic, made if it is not there.
    fn retry_topic(
        self: &Rc<Self>,
        group: &str,
        queues: i32,
        unit: bool,
    ) -> Result<TopicHandle, Refusal> {
        let now_ms = self.clock.now_ms();
        let ensured = self.topics.borrow_mut().ensure_retry(group, queues, unit, now_ms)?;
        if ensured.created {
            self.topic_made(&ensured.topic);
        }
        Ok(ensured.topic)
    }

    /// A group's dead letter topic, made if it is not there.
    fn dead_letter_topic(self: &Rc<Self>, group: &str) -> Result<TopicHandle, Refusal> {
        let ensured = self.topics.borrow_mut().ensure_dlq(group, self.clock.now_ms())?;
        if ensured.created {
            self.topic_made(&ensured.topic);
        }
        Ok(ensured.topic)
    }

    /// A topic was made for a message: what is acknowledged from now on must not outlive it.
    fn topic_made(self: &Rc<Self>, topic: &TopicHandle) {
        if let Some(ticket) = self.topics_changed() {
            self.answer_when_saved(topic, ticket);
        }
    }

    /// Topics changed: the name servers are told soon, and the file is saved at once: a topic without its entry there
    /// cannot be read after a crash, whatever its log has.
    fn topics_changed(&self) -> Option<SaveTicket> {
        self.registrations.register_soon();
        self.save_topics()
    }

    /// A random queue id below `queues`; `None` if there is none.
    fn random_queue(&self, queues: i32) -> Option<i32> {
        // xorshift64: spreading load needs no better randomness.
        let mut state = self.next_random.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.next_random.set(state);
        let queues = u64::try_from(queues).ok().filter(|queues| *queues > 0)?;
        Some((state % queues) as i32)
    }

    /// The record at a physical offset that a client named; `None` for anything that is not a whole visible record.
    ///
    /// # Errors
    /// The disk did not give it: it may be there all the same.
    async fn read_record(&self, physical_offset: i64) -> Result<Option<Slice>, ShardError> {
        match u64::try_from(physical_offset) {
            Ok(offset) => Ok(self.shard.record_at(offset).await?),
            Err(_) => Ok(None),
        }
    }

    fn report_read_error(&self, error: &ShardError) {
        self.rare_log.error("reading messages: check the disk", error);
    }

    /// The answer to a request whose data cannot be read.
    fn read_refusal(&self, error: &ShardError) -> Refusal {
        self.report_read_error(error);
        Refusal::new(response::SYSTEM_ERROR, error.to_string())
    }

    /// Answers a request that only a response code fits.
    fn next_opaque(&self) -> i32 {
        let opaque = self.next_opaque.get();
        self.next_opaque.set(opaque.wrapping_add(1));
        opaque
    }
}
