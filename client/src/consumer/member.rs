//! One member of a consumer group: its queues, and the tasks that work on them.
//!
//! ```text
//!   rebalance ──gives and takes──► table of queues          one task each
//!   (20 s, or as soon as          ┌────────────────────────────────────────────┐
//!    something happens)           │ pull ──► process queue ──► listener, poll  │
//!   progress (5 s) ──committed──► │                └──────── done, put back    │
//!   locks (20 s, orderly)         └────────────────────────────────────────────┘
//! ```
//!
//! A queue's task ends only when the queue is given up. A panic in it is logged and it begins again, so that no queue can stop without
//! anybody's notice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringmq_net::body::MessageQueue;
use tokio::sync::{Notify, RwLock, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::gauge::{Gauge, UnderWay};
use super::listener::Listener;
use super::places::Places;
use super::queue::{Leave, Queue, Total};
use super::settings::Settings;
use super::stats::Stats;
use super::store::Store;
use super::subscription::{Filter, Subscription};
use super::{concurrent, orderly, pull, rebalance};
use crate::error::{Error, Result};
use crate::id::now_ms;
use crate::instance::Instance;
use crate::producer::Producer;

/// Writes of progress that are under way at once.
const WRITES_AT_ONCE: usize = 16;
/// What ends after its deadline gets this much more to tell the brokers.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Pause before a task begins again that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// What is done with messages.
pub(crate) enum Kind {
    /// A listener is called, for many at once.
    Concurrent(Listener),
    /// A listener is called, for one batch of a queue at a time.
    Orderly(Listener),
    /// The application takes them.
    Pull,
}

/// What is assigned, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By the members of the group.
    Subscribed,
    /// By the application.
    Assigned,
}

/// See the module.
pub(crate) struct Member {
    pub(crate) settings: Settings,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) instance: Arc<Instance>,
    pub(crate) store: Store,
    pub(crate) stats: Stats,
    pub(crate) started_ms: i64,
    subscriptions: Mutex<BTreeMap<String, Subscription>>,
    queues: Mutex<BTreeMap<MessageQueue, Arc<Queue>>>,
    /// What the application assigned.
    assigned: Mutex<BTreeMap<String, Vec<MessageQueue>>>,
    /// Told of each change of the table.
    pub(crate) assignment: watch::Sender<Arc<[MessageQueue]>>,
    /// Told when a queue has messages to take.
    pub(crate) ready: watch::Sender<()>,
    /// For listener calls.
    pub(crate) places: Places,
    pub(crate) total: Arc<Total>,
    paused: watch::Sender<bool>,
    ending: watch::Sender<bool>,
    /// The time to finish is over.
    hurry: watch::Sender<bool>,
    wake: Notify,
    tasks: Gauge,
    /// Held to renew locks, shared to give them back: what is given back shall not be renewed behind that.
    pub(super) locking: RwLock<()>,
    /// Carries failed messages when a broker does not take them back.
    pub(crate) sender: Mutex<Option<Producer>>,
}

impl Member {
    pub(crate) fn new(
        settings: Settings,
        kind: Kind,
        mode: Mode,
        instance: Arc<Instance>,
        store: Store,
        sender: Option<Producer>,
    ) -> Result<Arc<Member>> {
        let mut subscriptions = BTreeMap::new();
        for (topic, filter) in &settings.subscriptions {
            subscriptions.insert(topic.clone(), Subscription::new(topic, filter)?);
        }
        let retries = !matches!(kind, Kind::Pull) && !settings.is_broadcasting();
        let member = Member {
            places: Places::new(settings.concurrency),
            settings,
            kind,
            mode,
            instance,
            store,
            stats: Stats::default(),
            started_ms: now_ms(),
            subscriptions: Mutex::new(subscriptions),
            queues: Mutex::default(),
            assigned: Mutex::default(),
            assignment: watch::Sender::new(Arc::from([])),
            ready: watch::Sender::default(),
            total: Arc::default(),
            paused: watch::Sender::default(),
            ending: watch::Sender::default(),
            hurry: watch::Sender::default(),
            wake: Notify::new(),
            tasks: Gauge::default(),
            locking: RwLock::default(),
            sender: Mutex::new(sender),
        };
        if retries {
            let topic = member.retry_topic();
            let all = Subscription::new(&topic, &Filter::from("*"))?;
            member.subscriptions().insert(topic, all);
        }
        Ok(Arc::new(member))
    }

    pub(crate) fn group(&self) -> &str {
        &self.settings.group
    }

    pub(crate) fn retry_topic(&self) -> String {
        format!("{}{}", super::start::RETRY_PREFIX, self.settings.group)
    }

    pub(crate) fn is_orderly(&self) -> bool {
        matches!(self.kind, Kind::Orderly(_))
    }

    /// Do its queues need a broker's lock?
    pub(crate) fn locks(&self) -> bool {
        self.is_orderly() && !self.settings.is_broadcasting()
    }

    // Subscriptions.

    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, BTreeMap<String, Subscription>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscription(&self, topic: &str) -> Option<Subscription> {
        self.subscriptions().get(topic).cloned()
    }

    pub(crate) fn topics(&self) -> BTreeSet<String> {
        self.subscriptions().keys().cloned().collect()
    }

    /// Subscribes, or replaces the expression; brokers have heard of it when this is done.
    pub(crate) async fn subscribe(&self, topic: &str, filter: &Filter) -> Result<()> {
        self.check_running()?;
        let mut subscription = Subscription::new(topic, filter)?;
        {
            let mut all = self.subscriptions();
            if let Some(before) = all.get(topic) {
                // Brokers keep the one with the greatest version.
                let version = &mut subscription.data.sub_version;
                *version = (*version).max(before.data.sub_version + 1);
            }
            all.insert(topic.to_owned(), subscription);
        }
        self.find_routes([topic.to_owned()]).await;
        self.tell_brokers().await;
        self.wake();
        Ok(())
    }

    pub(crate) async fn unsubscribe(&self, topic: &str) -> Result<()> {
        self.check_running()?;
        self.subscriptions().remove(topic);
        self.wake();
        self.tell_brokers().await;
        Ok(())
    }

    /// Takes exactly these queues. Waits for it as long as a call may take; what lacks then comes by and by.
    pub(crate) async fn assign(&self, queues: Vec<MessageQueue>, filter: &Filter) -> Result<()> {
        let wanted: BTreeSet<MessageQueue> = queues.iter().cloned().collect();
        let mut by_topic: BTreeMap<String, Vec<MessageQueue>> = BTreeMap::new();
        for queue in queues {
            by_topic.entry(queue.topic.clone()).or_default().push(queue);
        }
        let mut subscriptions = BTreeMap::new();
        for topic in by_topic.keys() {
            subscriptions.insert(topic.clone(), Subscription::new(topic, filter)?);
        }
        *self.subscriptions() = subscriptions;
        let mut assignment = self.assignment.subscribe();
        *self.assigned.lock().unwrap_or_else(PoisonError::into_inner) = by_topic;
        self.wake();
        // Exactly these: one that was given up a moment ago may still be on its way out, and in again.
        let all = assignment.wait_for(|have| have.iter().eq(&wanted));
        let deadline = crate::deadline::deadline(self.instance.config.call_timeout);
        tokio::select! {
            () = self.ended() => Err(Error::Closed("the consumer")),
            taken = timeout_at(deadline, all) => {
                if taken.is_err() {
                    tracing::warn!(group = self.group(), "not all assigned queues could be taken yet");
                }
                Ok(())
            }
        }
    }

    pub(crate) fn assigned(&self) -> BTreeMap<String, Vec<MessageQueue>> {
        self.assigned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn tell_brokers(&self) {
        self.instance.changed();
        self.instance.heartbeat_all().await;
    }

    /// Looks up what is not known yet. A topic that does not exist may come later.
    pub(crate) async fn find_routes(&self, topics: impl IntoIterator<Item = String>) {
        for topic in topics {
            if let Err(error) = self.instance.consuming(&topic).await {
                tracing::debug!(topic, %error, "no route for a subscribed topic yet");
            }
        }
    }

    // Queues.

    pub(crate) fn table(&self) -> MutexGuard<'_, BTreeMap<MessageQueue, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queues(&self) -> Vec<Arc<Queue>> {
        self.table().values().cloned().collect()
    }

    pub(crate) fn queue(&self, id: &MessageQueue) -> Option<Arc<Queue>> {
        self.table().get(id).cloned()
    }

    /// Bounds of a queue's cache as things are now.
    pub(crate) fn cache_limits(&self, topic: &str) -> super::process_queue::CacheLimits {
        let queues = match self.settings.topic_messages.or(self.settings.topic_bytes) {
            None => 1,
            Some(_) => self.table().keys().filter(|queue| queue.topic == topic).count(),
        };
        self.settings.cache_of(queues)
    }

    fn publish_assignment(&self) {
        self.assignment.send_if_modified(|before| {
            // Listed in here, so that an older list never replaces a younger one.
            let assigned: Vec<MessageQueue> = {
                let table = self.table();
                table.values().filter(|queue| !queue.is_leaving()).map(|q| q.id.clone()).collect()
            };
            let changed = **before != *assigned;
            *before = assigned.into();
            changed
        });
    }

    /// Takes a queue and begins to work on it, unless it has it already. Gives whether it has it then: not when the member ends.
    pub(crate) fn adopt(self: &Arc<Self>, queue: Arc<Queue>) -> bool {
        let under_way = {
            let mut table = self.table();
            if table.contains_key(&queue.id) {
                return true;
            }
            if self.is_ending() {
                return false;
            }
            // Before anybody can see it: an end that tells it to leave waits for it too.
            let under_way = self.tasks.enter();
            table.insert(queue.id.clone(), queue.clone());
            under_way
        };
        self.publish_assignment();
        tracing::debug!(queue = %super::allocate::queue_text(&queue.id), "taken");
        let member = self.clone();
        self.instance.spawn(async move {
            member.attend(&queue).await;
            member.give_up(&queue).await;
            drop(under_way);
        });
        true
    }

    /// Lets an end wait for what is under way; `None` when it has begun.
    pub(crate) fn enter(&self) -> Option<UnderWay> {
        let under_way = self.tasks.enter();
        (!self.is_ending()).then_some(under_way)
    }

    /// Works on a queue until it is to be given up.
    async fn attend(self: &Arc<Self>, queue: &Arc<Queue>) {
        loop {
            let (member, own) = (self.clone(), queue.clone());
            let work = tokio::spawn(async move {
                tokio::join!(pull::run(&member, &own), member.consume(&own));
            });
            match work.await {
                Err(error) if error.is_panic() => {
                    tracing::error!(queue = %super::allocate::queue_text(&queue.id), "the work on a queue panicked and begins again");
                    // What was taken from it would never come again.
                    queue.reset(queue.committed());
                }
                _ if queue.is_leaving() => return,
                // The runtime ends.
                _ => return,
            }
            tokio::select! {
                _ = queue.left() => return,
                () = sleep(AFTER_PANIC) => {}
            }
        }
    }

    async fn consume(self: &Arc<Self>, queue: &Arc<Queue>) {
        match &self.kind {
            Kind::Concurrent(listener) => concurrent::run(self, queue, listener).await,
            Kind::Orderly(listener) => orderly::run(self, queue, listener).await,
            Kind::Pull => drop(queue.left().await),
        }
    }

    /// Stores how far it is, gives the lock back, and forgets it.
    async fn give_up(&self, queue: &Arc<Queue>) {
        if self.stores(queue) {
            self.persist_now(queue).await;
        }
        // Until it is out of the table.
        let _locking = self.locking.read().await;
        if self.locks() {
            self.unlock(queue).await;
        }
        // What still runs must change nothing any more.
        queue.reset(queue.committed());
        {
            let mut table = self.table();
            if table.get(&queue.id).is_some_and(|present| Arc::ptr_eq(present, queue)) {
                table.remove(&queue.id);
            }
        }
        tracing::debug!(queue = %super::allocate::queue_text(&queue.id), "given up");
        self.publish_assignment();
        self.wake();
    }

    /// Tells queues to go.
    pub(crate) fn release(&self, queues: &[MessageQueue]) {
        for id in queues {
            if let Some(queue) = self.queue(id) {
                queue.leave(Leave::Given);
            }
        }
        self.publish_assignment();
    }

    // Progress.

    /// May its progress be stored now, without the application having asked for it?
    pub(crate) fn stores(&self, queue: &Queue) -> bool {
        let ours = !self.locks() || queue.may_consume();
        // Without automatic commits only the application stores progress.
        let commits = !matches!(self.kind, Kind::Pull) || self.settings.auto_commit.is_some();
        ours && commits
    }

    /// Writes how far a queue is, unless the store has it. Failures are logged: the next write has it too.
    pub(crate) async fn persist_now(&self, queue: &Queue) {
        if let Err(error) = self.persist(queue).await {
            tracing::warn!(queue = %super::allocate::queue_text(&queue.id), %error, "progress was not stored");
        }
    }

    /// As [`Member::persist_now`], with the error.
    pub(crate) async fn persist(&self, queue: &Queue) -> Result<()> {
        let mut stored = queue.stored.lock().await;
        let committed = queue.committed();
        if *stored != Some(committed) {
            queue.sending(committed);
            self.store.write(&self.instance, self.group(), &queue.id, committed).await?;
            *stored = Some(committed);
        }
        Ok(())
    }

    pub(crate) async fn persist_all(self: &Arc<Self>) {
        if let Err(error) = self.persist_all_locally().await {
            tracing::warn!(%error, "progress was not stored");
        }
        let mut writes = JoinSet::new();
        for queue in self.queues() {
            if self.locks() && !queue.may_consume() {
                continue;
            }
            if writes.len() >= WRITES_AT_ONCE {
                writes.join_next().await;
            }
            let member = self.clone();
            writes.spawn(async move {
                // The next round has it too; at the end of a queue a failure is a warning.
                if let Err(error) = member.persist(&queue).await {
                    tracing::debug!(queue = %super::allocate::queue_text(&queue.id), %error, "progress was not stored yet");
                }
            });
        }
        while writes.join_next().await.is_some() {}
    }

    /// Writes a file of offsets once for all queues; what is left for [`Member::persist`] is only what has changed since.
    async fn persist_all_locally(&self) -> Result<()> {
        if !self.settings.is_broadcasting() {
            return Ok(());
        }
        let rows: Vec<_> = self.queues().iter().map(|q| (q.id.clone(), q.committed())).collect();
        self.store.write_locally(rows).await
    }

    // Tasks of the member.

    /// Starts them.
    pub(crate) fn begin(self: &Arc<Self>) {
        let member = self.clone();
        self.instance.spawn(async move { rebalance::run(&member).await });
        // Progress of pull consumers is written when it is committed.
        if !matches!(self.kind, Kind::Pull) {
            self.every(self.settings.timing.persist, |m| async move { m.persist_all().await });
        }
        if self.locks() {
            self.every(self.settings.timing.lock, |m| async move { m.renew_locks().await });
        }
    }

    fn every<F, W>(self: &Arc<Self>, period: Duration, work: W)
    where
        W: Fn(Arc<Member>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let member = self.clone();
        self.instance.spawn(async move {
            loop {
                tokio::select! {
                    () = member.tasks_ended() => return,
                    () = sleep(period) => work(member.clone()).await,
                }
            }
        });
    }

    /// Look at the division of queues now.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
        if !paused {
            self.wake();
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    pub(crate) async fn resumed(&self) {
        let _ = self.paused.subscribe().wait_for(|paused| !*paused).await;
    }

    // The end.

    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    pub(crate) fn check_running(&self) -> Result<()> {
        if self.is_ending() { Err(Error::Closed("the consumer")) } else { Ok(()) }
    }

    pub(crate) async fn ended(&self) {
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }

    /// Done when the member ends and nothing of it works any more.
    async fn tasks_ended(&self) {
        self.ended().await;
        self.tasks.idle().await;
    }

    /// Done when what still runs has to be stopped.
    pub(crate) async fn hurried(&self) {
        let _ = self.hurry.subscribe().wait_for(|hurry| *hurry).await;
    }

    /// Stops pulling, lets listeners finish until `deadline`, stores progress, gives locks back. May be called again, and be dropped.
    pub(crate) async fn finish(&self, deadline: Instant) {
        self.ending.send_replace(true);
        self.queues().iter().for_each(|queue| queue.leave(Leave::Shutdown));
        if timeout_at(deadline, self.tasks.idle()).await.is_err() {
            tracing::warn!(
                group = self.group(),
                "listeners still ran at the end of a consumer; their messages will come again"
            );
            self.hurry.send_replace(true);
            let _ = timeout_at(Instant::now() + LAST_WORDS, self.tasks.idle()).await;
        }
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(sender);
        // Whoever keeps the handle does not keep the directory.
        self.store.close().await;
    }
}
