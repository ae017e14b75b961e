//! The broker's configuration files: read once at start, saved when they have changed.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::FutureExt;
use ringmq_engine::log::LogError;
use ringmq_engine::state::delay::DelayOffsets;
use ringmq_engine::state::groups::{self, GroupRules, GroupTable};
use ringmq_engine::state::json_file::{ConfigFileError, load_to_serve};
use ringmq_engine::state::offsets::{ENTRIES_MAX, OffsetTable};
use ringmq_engine::state::saver::{SaveStatus, SaveTicket};
use ringmq_engine::state::topics::{self, TopicRules, TopicTable};
use ringmq_engine::state::{DELAY_FILE, GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE};
use ringmq_engine::store::StoreLayout;
use ringmq_net::code::response;

use super::{Broker, BrokerConfig, Refusal, TopicHandle, TopicSlot};

/// How often changed files are saved. Stock saves offsets every 5 s and topics at once; all of ours are cheap and coalesced.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(1);
/// How often a save that somebody waits for is looked at: the saver is a thread without a way to wake a reactor.
const SAVED_POLL: Duration = Duration::from_millis(2);
/// The same while it fails, and is tried again each second.
const FAILING_POLL: Duration = Duration::from_millis(100);
/// Saves of offsets: every so many rounds of [`SAVE_EVERY`] (5 s, as stock).
const OFFSET_ROUNDS: u64 = 5;
/// How often the progress of delayed delivery is saved (as stock).
const DELAY_SAVE_EVERY: Duration = Duration::from_secs(10);
/// How long a stopping broker waits for its files.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the files are.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    topics: PathBuf,
    groups: PathBuf,
    offsets: PathBuf,
    delay: PathBuf,
}

impl Paths {
    pub(super) fn new(layout: &StoreLayout) -> Self {
        let dir = layout.config();
        Paths {
            topics: dir.join(TOPICS_FILE),
            groups: dir.join(GROUPS_FILE),
            offsets: dir.join(OFFSETS_FILE),
            delay: dir.join(DELAY_FILE),
        }
    }
}

/// What the files held.
pub(super) struct Tables {
    pub(super) topics: TopicTable<TopicSlot>,
    pub(super) groups: GroupTable,
    pub(super) offsets: OffsetTable,
    pub(super) delay: DelayOffsets,
    /// Files that are not there, nor their backups.
    pub(super) absent: Vec<PathBuf>,
}

impl Tables {
    /// Reads all files. Blocks; the broker does not serve yet.
    ///
    /// # Errors
    /// One line for a file that is there and cannot be used, nor its backup: an offset is never forgotten in silence.
    pub(super) fn load(paths: &Paths, config: &BrokerConfig, now_ms: i64) -> Result<Self, String> {
        let mut topics: TopicTable<TopicSlot> = TopicTable::new(
            TopicRules {
                auto_create: config.auto_create_topics,
                auto_create_queues: config.topic_queues,
                trace_topic: config.trace_topic,
                ..TopicRules::new(&config.cluster, &config.name)
            },
            now_ms,
        );
        let mut groups = GroupTable::new(
            GroupRules { auto_create: config.auto_create_groups, ..GroupRules::default() },
            now_ms,
        );
        let mut absent = Vec::new();
        if let Some(table) = load(&paths.topics, topics::parse_file, &mut absent)? {
            topics.load(&table);
        }
        if let Some(table) = load(&paths.groups, groups::parse_file, &mut absent)? {
            groups.load(table);
        }
        let parse_offsets = |bytes: &[u8]| OffsetTable::from_json(bytes, ENTRIES_MAX);
        let offsets = load(&paths.offsets, parse_offsets, &mut absent)?.unwrap_or_default();
        let delay = load(&paths.delay, DelayOffsets::from_json, &mut absent)?.unwrap_or_default();
        Ok(Tables { topics, groups, offsets, delay, absent })
    }
}

/// One file's content; notes it in `absent` if there is none.
fn load<T, E: Display>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, E>,
    absent: &mut Vec<PathBuf>,
) -> Result<Option<T>, String> {
    let loaded = load_to_serve(path, parse).map_err(|error: ConfigFileError| error.to_string())?;
    let value = loaded.into_value();
    if value.is_none() {
        absent.push(path.to_path_buf());
    }
    Ok(value)
}

impl Broker {
    /// Hands the files that have changed to the saver.
    pub(super) fn save_changed(self: &Rc<Self>) {
        let round = self.save_rounds.get() + 1;
        self.save_rounds.set(round);
        self.save(round.is_multiple_of(OFFSET_ROUNDS));
    }

    /// Saves the progress of delayed delivery, once the log is durable as far as that progress: a crash that took a delivered message
    /// and left the progress beyond it would lose it.
    ///
    /// # Errors
    /// The log has stopped. What is saved stays as it is, and delivery will begin again there.
    pub(super) async fn save_delivery(&self) -> Result<(), LogError> {
        if !self.delay_offsets.borrow_mut().take_dirty() {
            return Ok(());
        }
        let (progress, log) = (self.delay_offsets.borrow().to_file(), self.shard.log());
        log.flushed(log.appended()).await?;
        self.saver.save(&self.paths.delay, progress);
        Ok(())
    }

    /// The last [`Broker::save_delivery`], which a disk that does not answer must not turn into a stop without end.
    pub(super) async fn save_delivery_at_the_end(&self) {
        let saved = async { self.save_delivery().await.map_err(|error| error.to_string()) };
        let late = async {
            glommio::timer::sleep(FLUSH_TIMEOUT).await;
            Err(format!("the log is not durable after {FLUSH_TIMEOUT:?}"))
        };
        if let Err(why) = saved.or(late).await {
            self.rare_log.error("saving the progress of delayed delivery", &why);
        }
    }

    /// [`Broker::save_delivery`] every now and then. One task, so that a later progress is never followed by an earlier one.
    pub(super) async fn save_delivery_again_and_again(self: Rc<Self>) {
        while !self.stopped() {
            glommio::timer::sleep(DELAY_SAVE_EVERY).await;
            if let Err(error) = self.save_delivery().await {
                self.rare_log.error("saving the progress of delayed delivery", &error);
            }
        }
    }

    /// Hands the topics to the saver if they have changed; the ticket tells when they are durable.
    pub(super) fn save_topics(&self) -> Option<SaveTicket> {
        let dirty = self.topics.borrow_mut().take_dirty();
        dirty.then(|| self.saver.save(&self.paths.topics, self.topics.borrow().to_file()))
    }

    /// Waits until what the ticket names is durable; the text says why it is not.
    pub(super) async fn durable(&self, ticket: SaveTicket) -> Result<(), String> {
        loop {
            match self.saver.status(ticket) {
                SaveStatus::Saved => return Ok(()),
                SaveStatus::Failing(why) => return Err(why),
                SaveStatus::Pending => glommio::timer::sleep(SAVED_POLL).await,
            }
        }
    }

    /// Hands the consumer groups to the saver if they have changed.
    pub(super) fn save_groups(&self) -> Option<SaveTicket> {
        let dirty = self.groups.borrow_mut().take_dirty();
        dirty.then(|| self.saver.save(&self.paths.groups, self.groups.borrow().to_file()))
    }

    /// [`Broker::durable`] for what an administrator asked for: a refusal says that `done` is so and not durable.
    pub(super) async fn durable_or_refuse(
        &self,
        ticket: Option<SaveTicket>,
        done: &str,
    ) -> Result<(), Refusal> {
        let Some(ticket) = ticket else { return Ok(()) };
        self.durable(ticket).await.map_err(|why| {
            Refusal::new(response::SYSTEM_ERROR, format!("{done}, but not saved yet: {why}"))
        })
    }

    /// From now on no send to this new topic is answered with success before the state that the ticket names is durable: an
    /// acknowledged message could not be read after a crash that forgets its topic. A few milliseconds; if saving fails, such
    /// sends are answered 10 with the level that they have, until it succeeds. Other topics' sends go on.
    pub(super) fn answer_when_saved(self: &Rc<Self>, topic: &TopicHandle, ticket: SaveTicket) {
        topic.slot().unsaved.set(Some(ticket));
        let (broker, topic) = (Rc::clone(self), Rc::clone(topic));
        glommio::spawn_local(async move {
            let mut pause = SAVED_POLL;
            while !broker.stopped() {
                match broker.saver.status(ticket) {
                    SaveStatus::Saved => break,
                    SaveStatus::Failing(_) => pause = FAILING_POLL,
                    SaveStatus::Pending => {}
                }
                broker.answer_unsaved();
                glommio::timer::sleep(pause).await;
            }
            topic.slot().unsaved.set(None);
            broker.answer_unsaved();
        })
        .detach();
    }

    /// Answers the sends that have their level and wait for their topic's entry in the file no longer.
    pub(super) fn answer_unsaved(&self) {
        let now_us = self.clock.monotonic_us();
        let since_us = now_us - self.config.ack_timeout_ms * 1_000;
        let status = |ticket| self.saver.status(ticket);
        let took = |us, n| self.stats_sends_took(us, n);
        if self.acks.answer_unsaved(since_us, now_us, status, took) > 0 {
            self.flush_replies();
        }
    }

    /// Writes all files once, whether or not anything has changed: from then on one that is missing was lost.
    pub(super) fn save_first(&self) {
        self.saver.save(&self.paths.topics, self.topics.borrow().to_file());
        self.saver.save(&self.paths.groups, self.groups.borrow().to_file());
        self.saver.save(&self.paths.offsets, self.offsets.borrow().to_file());
        self.saver.save(&self.paths.delay, self.delay_offsets.borrow().to_file());
    }

    fn save(&self, offsets: bool) {
        self.save_topics();
        self.save_groups();
        if offsets && self.offsets.borrow_mut().take_dirty() {
            self.saver.save(&self.paths.offsets, self.offsets.borrow().to_file());
        }
    }

    /// The last save, waited for. Blocks briefly; nothing is served any more.
    pub(super) fn save_all(&self) -> Result<(), String> {
        self.save(true);
        self.saver.flush(FLUSH_TIMEOUT).map_err(|error| error.to_string())
    }
}
