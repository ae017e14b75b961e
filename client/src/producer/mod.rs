//! Producers: one message, batches, ordered sends, sends without an answer, requests, transactions.

mod builder;
mod fault;
mod prepare;
mod receipt;
mod request;
mod select;
mod send;
#[cfg(test)]
mod tests;
mod transaction;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ringmq_net::body::MessageQueue;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

pub use builder::ProducerBuilder;
pub(crate) use builder::Settings;
pub use fault::LatencyFault;
pub use receipt::{SendReceipt, SendStatus};
pub(crate) use request::Replies;
pub use transaction::{
    TransactionProducer, TransactionProducerBuilder, TransactionReceipt, TransactionState,
};

use crate::client::Client;
use crate::deadline::{deadline, left};
use crate::endpoint::{BoxFuture, ProducerEndpoint, Registration, TransactionCheck};
use crate::error::{BatchFailure, Error, Result};
use crate::instance::Instance;
use crate::message::Message;
use fault::Faults;
use prepare::{Form, Prepared};
use send::{Limit, Target};
use transaction::Checker;

/// Unit in which bytes in flight are counted.
const UNIT_BYTES: usize = 1024;

/// Sends messages. Cheap to clone and shared by any number of tasks; each send is a future of its own, and as many as the bound allows run at
/// once.
///
/// Dropping the future of a send takes it out of all queues and bounds; the message may have been stored all the same. When the last
/// handle is dropped, the brokers are told that the producer left, by a task of the client's; [`Producer::shutdown`] waits for
/// messages on their way first.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<Shared>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("group", &self.group()).finish_non_exhaustive()
    }
}

/// What all handles of a producer share.
pub(crate) struct Shared {
    settings: Settings,
    // Before the client, so that leaving can still be told.
    registration: Mutex<Option<Registration>>,
    client: Client,
    faults: Option<Faults>,
    sends: Semaphore,
    units: Semaphore,
    closed: AtomicBool,
    checker: Option<Checker>,
}

impl Shared {
    fn new(client: Client, settings: Settings, checker: Option<Checker>) -> Arc<Shared> {
        let units = settings.in_flight_bytes_max.div_ceil(UNIT_BYTES).min(u32::MAX as usize / 2);
        let sends = settings.in_flight_max.min(u32::MAX as usize / 2);
        Arc::new(Shared {
            faults: settings.latency_fault.clone().map(Faults::new),
            sends: Semaphore::new(sends),
            units: Semaphore::new(units),
            registration: Mutex::new(None),
            closed: AtomicBool::new(false),
            settings: Settings {
                in_flight_max: sends,
                in_flight_bytes_max: units * UNIT_BYTES,
                ..settings
            },
            checker,
            client,
        })
    }

    fn start(client: Client, settings: Settings, checker: Option<Checker>) -> Result<Arc<Shared>> {
        let shared = Shared::new(client, settings, checker);
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        let registration =
            shared.instance().register_producer(&shared.settings.group, weak.clone())?;
        *shared.registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(registration);
        if let Some(faults) = &shared.faults {
            let period = faults.settings.probe_interval;
            shared.instance().spawn(send::probe_in_turn(weak, period));
        }
        Ok(shared)
    }

    fn instance(&self) -> &Arc<Instance> {
        self.client.instance()
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Error::Closed("the producer")) } else { Ok(()) }
    }

    /// Runs `work` within the bounds of what may be on its way at once.
    async fn bounded<T>(
        &self,
        bytes: usize,
        deadline: Instant,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let units = bytes.min(self.settings.in_flight_bytes_max).div_ceil(UNIT_BYTES) as u32;
        let full = |what: String| Error::Busy { what };
        let Ok(Ok(_send)) = timeout_at(deadline, self.sends.acquire()).await else {
            return Err(full(format!(
                "{} sends were on their way all the time",
                self.settings.in_flight_max
            )));
        };
        // Looked at behind the permit, which a shutdown takes away.
        self.check_open()?;
        let Ok(Ok(_units)) = timeout_at(deadline, self.units.acquire_many(units)).await else {
            let max = self.settings.in_flight_bytes_max;
            return Err(full(format!("{max} bytes of bodies were on their way all the time")));
        };
        work.await
    }

    /// Lets nobody begin, and waits for who has begun.
    async fn close(&self, deadline: Instant) {
        self.closed.store(true, Ordering::SeqCst);
        let all = self.sends.acquire_many(self.settings.in_flight_max as u32);
        if timeout_at(deadline, all).await.is_err() {
            tracing::warn!(
                group = self.settings.group,
                "messages are still on their way at the end of a producer"
            );
        }
    }
}

impl ProducerEndpoint for Shared {
    fn check_transaction(self: Arc<Self>, check: TransactionCheck) {
        transaction::check(self, check);
    }

    fn drain(self: Arc<Self>, deadline: Instant) -> BoxFuture<()> {
        Box::pin(async move { self.close(deadline).await })
    }
}

impl Producer {
    /// Its group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.shared.settings.group
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Resolves the declared topics and tells their brokers.
    async fn announce(&self) -> Result<()> {
        let topics = &self.shared.settings.topics;
        self.shared.instance().declare(topics);
        for topic in topics {
            crate::validate::topic(topic)?;
            let timeout = self.shared.settings.send_timeout;
            self.tell_brokers(topic, timeout, deadline(timeout)).await?;
        }
        Ok(())
    }

    /// Sees to it that the masters of a topic know this client over its present connections, and waits for that `until` then. A broker
    /// that fails is logged.
    async fn tell_brokers(&self, topic: &str, timeout: Duration, until: Instant) -> Result<()> {
        let instance = self.shared.instance();
        let route = instance.publishing(topic, timeout).await?.route;
        let mut calls = JoinSet::new();
        for addr in route.brokers().filter_map(|(_, addrs)| addrs.get(&0)) {
            let (instance, addr) = (instance.clone(), addr.clone());
            calls.spawn(async move {
                if let Err(error) = instance.ensure_told(&addr).await {
                    tracing::info!(%error, "a broker could not be told of this client");
                }
            });
        }
        let all = async { while calls.join_next().await.is_some() {} };
        if timeout_at(until, all).await.is_err() {
            tracing::info!(
                topic,
                "not all brokers of a topic could be told of this client in time"
            );
            calls.detach_all();
        }
        Ok(())
    }

    /// Sends a message to the next queue in turn and waits until a broker has stored it, trying other brokers when one fails.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::NoRoute`], [`Error::NameServers`]; [`Error::Send`] with every try; [`Error::Busy`] when the
    /// bounds stayed full; [`Error::Closed`].
    pub async fn send(&self, message: Message) -> Result<SendReceipt> {
        self.send_within(message, self.shared.settings.send_timeout).await
    }

    /// [`Producer::send`] with a time limit of its own.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_within(&self, message: Message, timeout: Duration) -> Result<SendReceipt> {
        let prepared = self.prepare(message, Form::Plain)?;
        self.run(&prepared, Target::Next, timeout).await
    }

    /// Sends a message to that queue, in one try: another queue would not do.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_to(&self, message: Message, queue: &MessageQueue) -> Result<SendReceipt> {
        if message.topic() != queue.topic {
            return Err(Error::invalid(format!(
                "the message is for topic {}, the queue of topic {}",
                message.topic(),
                queue.topic
            )));
        }
        let prepared = self.prepare(message, Form::Plain)?;
        self.run(&prepared, Target::Queue(queue), self.shared.settings.send_timeout).await
    }

    /// Sends a message to the queue of its key: messages of one key, each sent after the one before was stored, are consumed in that order
    /// by orderly consumers, as long as the number of queues stays. In one try: a second one could come late.
    ///
    /// # Errors
    /// As [`Producer::send`].
    pub async fn send_ordered(&self, message: Message, key: &str) -> Result<SendReceipt> {
        let pick = |queues: &[MessageQueue]| select::by_key(queues, key).cloned();
        self.send_picked(message, pick).await
    }

    /// Sends a message to the queue that `select` names by its place in the list, in one try.
    ///
    /// # Errors
    /// As [`Producer::send`]; [`Error::Invalid`] for a place behind the list's end.
    pub async fn send_selected(
        &self,
        message: Message,
        select: impl FnOnce(&[MessageQueue]) -> usize,
    ) -> Result<SendReceipt> {
        self.send_picked(message, |queues| queues.get(select(queues)).cloned()).await
    }

    async fn send_picked(
        &self,
        message: Message,
        pick: impl FnOnce(&[MessageQueue]) -> Option<MessageQueue>,
    ) -> Result<SendReceipt> {
        let timeout = self.shared.settings.send_timeout;
        let deadline = deadline(timeout);
        let prepared = self.prepare(message, Form::Plain)?;
        let queues = self.shared.writable(&prepared.topic, timeout).await?;
        let queue = pick(&queues).ok_or_else(|| {
            Error::invalid(format!(
                "the selector named no queue of the {} that {} has",
                queues.len(),
                prepared.topic
            ))
        })?;
        self.run(&prepared, Target::Queue(&queue), left(deadline)).await
    }

    /// Sends a message and does not wait for an answer: done when it is queued for the connection. It may get lost without anybody's
    /// notice.
    ///
    /// # Errors
    /// As [`Producer::send`], as far as they are known by then.
    pub async fn send_oneway(&self, message: Message) -> Result<()> {
        let prepared = self.prepare(message, Form::Plain)?;
        let timeout = self.shared.settings.send_timeout;
        let deadline = deadline(timeout);
        let work = self.shared.send_oneway(&prepared, deadline);
        self.shared.bounded(prepared.body.len(), deadline, work).await
    }

    /// Sends messages of one topic together: fewer requests, and each part is stored in one queue in order. What is longer than the
    /// body limit is split; each part has the time limit of a send. Receipts are in the order of the messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a message cannot be in the batch, before anything is sent; [`Error::Batch`] with the
    /// receipts of what was stored when a later part failed; else as [`Producer::send`].
    pub async fn send_batch(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<SendReceipt>> {
        self.shared.check_open()?;
        let messages: Vec<Message> = messages.into_iter().collect();
        let total = messages.len();
        let ids = &self.shared.instance().ids;
        let batches = Prepared::batches(&self.shared.settings, ids, messages)?;
        let mut sent = Vec::with_capacity(total);
        for mut batch in batches {
            match self.run(&batch, Target::Next, self.shared.settings.send_timeout).await {
                Ok(receipt) => sent.extend(receipt.split(std::mem::take(&mut batch.member_ids))),
                Err(cause) if sent.is_empty() => return Err(cause),
                Err(cause) => {
                    return Err(Error::Batch(Arc::new(BatchFailure { sent, total, cause })));
                }
            }
        }
        Ok(sent)
    }

    /// The queues of a topic that take messages, as sends see them.
    ///
    /// # Errors
    /// [`Error::NoRoute`], [`Error::NameServers`].
    pub async fn queues(&self, topic: &str) -> Result<Vec<MessageQueue>> {
        crate::validate::topic(topic)?;
        self.shared.writable(topic, self.shared.settings.send_timeout).await
    }

    /// Takes no more messages, waits for those on their way (as long as the client's drain timeout), and tells the brokers.
    /// All handles end.
    ///
    /// # Errors
    /// None so far; what cannot be told to a broker is logged.
    pub async fn shutdown(&self) -> Result<()> {
        let deadline = deadline(self.shared.instance().config.drain_timeout);
        self.shared.close(deadline).await;
        let registration = {
            let mut slot = self.shared.registration.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take()
        };
        match registration {
            Some(registration) => registration.leave().await,
            None => Ok(()),
        }
    }

    fn prepare(&self, message: Message, form: Form) -> Result<Prepared> {
        self.shared.check_open()?;
        Prepared::message(&self.shared.settings, &self.shared.instance().ids, message, form)
    }

    async fn run(
        &self,
        prepared: &Prepared,
        target: Target<'_>,
        timeout: Duration,
    ) -> Result<SendReceipt> {
        let limit = Limit::new(timeout);
        let work = self.shared.send(prepared, target, limit);
        self.shared.bounded(prepared.body.len(), limit.deadline, work).await
    }
}
