//! Settings of consumers.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringmq_net::body::MessageQueue;

use super::allocate::Allocate;
use super::handle::{Handle, kind};
use super::listener::{self, Listener, Messages};
use super::member::{Kind, Mode};
use super::outcome::{IntoBatchOutcome, IntoOutcome};
use super::pull_consumer::PullConsumer;
use super::push::PushConsumer;
use super::settings::{Model, Settings};
use super::start::ConsumeFrom;
use super::subscription::Filter;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::message::ReceivedMessage;

/// Makes a [`PushConsumer`] or a [`PullConsumer`]. Begin with [`Client::consumer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ConsumerBuilder {
    client: Client,
    settings: Settings,
    /// What was asked for; what is usual depends on the kind of the consumer.
    pull_batch: Option<u16>,
    hold: Option<Duration>,
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client, group: String) -> ConsumerBuilder {
        let settings = Settings::new(&group);
        ConsumerBuilder { client, settings, pull_batch: None, hold: None }
    }

    /// Subscribes to a topic: tags as `TagA || TagB`, `*` for all, or a [`Filter`]. May be called for more topics; for the same topic the last one
    /// counts. All members of a group must have the same subscriptions: brokers keep the last that they were told, so that members that differ
    /// lose messages.
    pub fn subscribe(mut self, topic: impl Into<String>, filter: impl Into<Filter>) -> Self {
        let topic = topic.into();
        self.settings.subscriptions.retain(|(other, _)| *other != topic);
        self.settings.subscriptions.push((topic, filter.into()));
        self
    }

    /// Subscribes to the messages whose properties fulfil an SQL92 expression. The broker has to allow it.
    pub fn subscribe_sql(self, topic: impl Into<String>, expression: impl Into<String>) -> Self {
        self.subscribe(topic, Filter::Sql(expression.into()))
    }

    /// Every member gets every message; failed ones are not repeated. Progress is kept in `<dir>/<group>/offsets.json`, in the
    /// form of the Java client (give `<its directory>/<client id>` to go on where one was). The directory is this consumer's alone: the
    /// start fails when it cannot be written, or another consumer uses it.
    pub fn broadcasting(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.model = Model::Broadcasting(dir.into());
        self
    }

    /// Where the group begins in queues in which it has no progress; at the end.
    pub fn consume_from(mut self, from: ConsumeFrom) -> Self {
        self.settings.from = from;
        self
    }

    /// How queues are divided among the members; [`Allocate::Average`].
    pub fn allocate(mut self, rule: Allocate) -> Self {
        self.settings.allocate = rule;
        self
    }

    /// Listener calls at once, over all queues; 20. Orderly consumers have at most one per queue.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.settings.concurrency = calls;
        self
    }

    /// Most messages of one call, for listeners of batches; 1.
    pub fn batch(mut self, messages: usize) -> Self {
        self.settings.batch = messages;
        self
    }

    /// Most messages of one pull; 32 for push consumers, 10 for pull consumers. Brokers have limits of their own. For pull consumers also the most
    /// messages that one [`PullConsumer::poll`] gives.
    pub fn pull_batch(mut self, messages: u16) -> Self {
        self.pull_batch = Some(messages);
        self
    }

    /// A pause between the pulls of a queue; none.
    pub fn pull_interval(mut self, interval: Duration) -> Self {
        self.settings.pull_interval = interval;
        self
    }

    /// What of one queue may be in memory before its pulls wait: 1000 messages, 100 MiB of bodies, and a distance of 2000 between the first and the
    /// last offset, so that one slow message does not hold too much behind it. One pull may go beyond it.
    pub fn queue_cache(mut self, messages: usize, bytes: usize, span: u16) -> Self {
        self.settings.cache.messages = messages;
        self.settings.cache.bytes = bytes;
        self.settings.cache.span = Some(i64::from(span));
        self
    }

    /// What of all queues of one topic may be in memory, shared equally by those that this consumer has; no bound of its own.
    pub fn topic_cache(mut self, messages: usize, bytes: usize) -> Self {
        self.settings.topic_messages = Some(messages);
        self.settings.topic_bytes = Some(bytes);
        self
    }

    /// How often a failed message is retried before it becomes a dead letter; 16 times for concurrent consumers, for ever for orderly
    /// ones: there the queue waits for it.
    pub fn retries(mut self, retries: u16) -> Self {
        self.settings.retries = Some(i32::from(retries));
        self
    }

    /// How long a call of a concurrent listener may take; 15 minutes. After that its future is dropped and its messages are retried. A
    /// listener that blocks its thread goes on, and its messages are retried all the same.
    pub fn consume_timeout(mut self, timeout: Duration) -> Self {
        self.settings.consume_timeout = timeout;
        self
    }

    /// How long a queue of an orderly consumer waits before a failed message comes again; 1 s.
    pub fn suspend(mut self, pause: Duration) -> Self {
        self.settings.suspend = pause;
        self
    }

    /// Pull consumers only: how often polls store what earlier polls gave; each 5 s.
    pub fn auto_commit(mut self, interval: Duration) -> Self {
        self.settings.auto_commit = Some(interval);
        self
    }

    /// Pull consumers only: nothing is stored but by [`PullConsumer::commit`].
    pub fn manual_commit(mut self) -> Self {
        self.settings.auto_commit = None;
        self
    }

    #[cfg(test)]
    pub(crate) fn timing(mut self, change: impl FnOnce(&mut super::settings::Timing)) -> Self {
        change(&mut self.settings.timing);
        self
    }

    /// How long a broker may hold a pull when there is nothing; 15 s for push consumers, 20 s for pull consumers. At least 1 ms: without it, pulls of
    /// empty queues would follow each other at once.
    pub fn long_poll(mut self, hold: Duration) -> Self {
        self.hold = Some(hold);
        self
    }

    /// A push consumer: `listener` is called for each message, up to [`ConsumerBuilder::concurrency`] at once, in no order. It may return nothing,
    /// a `Result` whose error means a retry, or an [`crate::Outcome`]; a panic means a retry.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::GroupTaken`]; [`Error::Refused`] for an SQL92 expression that does not compile; [`Error::Offsets`]. A topic that
    /// does not exist is no error: it is consumed when it does.
    pub async fn start<L, F>(mut self, listener: L) -> Result<PushConsumer>
    where
        L: Fn(Arc<ReceivedMessage>) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.settings.batch = 1;
        self.push(listener::single(listener), false).await
    }

    /// As [`ConsumerBuilder::start`] for up to [`ConsumerBuilder::batch`] messages of one queue at once. It may also return a
    /// [`crate::BatchOutcome`].
    ///
    /// # Errors
    /// As [`ConsumerBuilder::start`].
    pub async fn start_batches<L, F>(self, listener: L) -> Result<PushConsumer>
    where
        L: Fn(Messages) -> F + Send + Sync + 'static,
        F: Future<Output: IntoBatchOutcome> + Send + 'static,
    {
        self.push(listener::batches(listener), false).await
    }

    /// A push consumer in order: of each queue `listener` is called for one message after the other, and for a failed one again before the next.
    /// No two members of the group work on one queue at once: when a queue is given to another member, the call that runs may finish within
    /// 20 s, and is dropped then. A message may come again, as with any consumer.
    ///
    /// # Errors
    /// As [`ConsumerBuilder::start`].
    pub async fn start_orderly<L, F>(mut self, listener: L) -> Result<PushConsumer>
    where
        L: Fn(Arc<ReceivedMessage>) -> F + Send + Sync + 'static,
        F: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.settings.batch = 1;
        self.push(listener::single(listener), true).await
    }

    /// As [`ConsumerBuilder::start_orderly`] for batches.
    ///
    /// # Errors
    /// As [`ConsumerBuilder::start`].
    pub async fn start_orderly_batches<L, F>(self, listener: L) -> Result<PushConsumer>
    where
        L: Fn(Messages) -> F + Send + Sync + 'static,
        F: Future<Output: IntoBatchOutcome> + Send + 'static,
    {
        self.push(listener::batches(listener), true).await
    }

    async fn push(mut self, listener: Listener, orderly: bool) -> Result<PushConsumer> {
        if orderly {
            // Only the first message is ever slow.
            self.settings.cache.span = None;
        }
        self.choose(Settings::new("").pull_batch, Settings::new("").hold);
        let kind = kind(listener, orderly);
        let handle = Handle::start(self.client, self.settings, kind, Mode::Subscribed).await?;
        Ok(PushConsumer::new(handle))
    }

    /// Settles what was not asked for.
    fn choose(&mut self, pull_batch: u16, hold: Duration) {
        self.settings.pull_batch = self.pull_batch.unwrap_or(pull_batch);
        self.settings.hold = self.hold.unwrap_or(hold);
    }

    /// A pull consumer: a member of the group whose messages are taken with [`PullConsumer::poll`] or from a
    /// [`PullConsumer::stream`]. It has no retries and no dead letters.
    ///
    /// # Errors
    /// As [`ConsumerBuilder::start`].
    pub async fn start_pull(self) -> Result<PullConsumer> {
        self.pull(Mode::Subscribed).await
    }

    /// A pull consumer of exactly these queues, whoever else there is: nothing is divided with the group's other members. The filter of the one
    /// subscription that was given, if any, holds for all. It has the queues when this is done, see [`PullConsumer::assign`].
    ///
    /// # Errors
    /// As [`ConsumerBuilder::start`].
    pub async fn start_assigned(
        mut self,
        queues: impl IntoIterator<Item = MessageQueue>,
    ) -> Result<PullConsumer> {
        let mut filters = std::mem::take(&mut self.settings.subscriptions).into_iter();
        let filter = filters.next().map_or_else(|| Filter::from("*"), |(_, filter)| filter);
        if filters.next().is_some() {
            return Err(Error::invalid("assigned queues have one filter: give one subscription"));
        }
        let consumer = self.pull(Mode::Assigned).await?;
        consumer.set_filter(filter);
        consumer.assign(queues).await?;
        Ok(consumer)
    }

    async fn pull(mut self, mode: Mode) -> Result<PullConsumer> {
        self.choose(10, Duration::from_secs(20));
        let settings = &mut self.settings;
        settings.total_messages = 10_000;
        settings.auto_commit =
            settings.auto_commit.map(|every| every.max(Duration::from_millis(10)));
        let handle = Handle::start(self.client, self.settings, Kind::Pull, mode).await?;
        Ok(PullConsumer::new(handle))
    }
}
