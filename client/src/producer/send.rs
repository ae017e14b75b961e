//! Sending one prepared message: tries, what each may take, and what follows from how it ends.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ringmq_net::body::MessageQueue;
use ringmq_net::code::request;
use ringmq_net::command::Command;
use ringmq_net::headers::QueueHeader;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::prepare::Prepared;
use super::receipt::{SendReceipt, SendStatus};
use super::{Shared, select};
use crate::deadline::{deadline, left};
use crate::error::{Attempt, Error, Result, SendFailure};
use crate::route::{Publishing, TEMPLATE_TOPIC};

/// Pause before a broker that just failed is asked again because there is no other, times the number of tries.
const SAME_BROKER_PAUSE: Duration = Duration::from_millis(50);

/// Where a message may go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// To the next queue in turn, and to another one if that fails.
    Next,
    /// There and nowhere else.
    Queue(&'a MessageQueue),
}

/// What a call may take, and when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    begun: Instant,
    timeout: Duration,
    pub(super) deadline: Instant,
}

impl Limit {
    pub(super) fn new(timeout: Duration) -> Limit {
        Limit { begun: Instant::now(), timeout, deadline: deadline(timeout) }
    }

    fn left(&self) -> Duration {
        left(self.deadline)
    }
}

/// How a try ended without a receipt.
enum Ended {
    /// Another try may do better.
    Again(Error),
    /// None will.
    For(Error),
}

impl Shared {
    pub(super) async fn writable(
        &self,
        topic: &str,
        timeout: Duration,
    ) -> Result<Vec<MessageQueue>> {
        let found = self.usable(topic, timeout).await?;
        Ok(found.route.writable.clone())
    }

    /// The route with at least one queue to write to. One that is known without any is asked for again.
    async fn usable(&self, topic: &str, timeout: Duration) -> Result<Publishing> {
        let instance = self.instance();
        let deadline = deadline(timeout);
        let found = instance.publishing(topic, timeout).await?;
        if !found.route.writable.is_empty() {
            return Ok(found);
        }
        let found = self.renewed(topic, left(deadline)).await?;
        if found.route.writable.is_empty() {
            let why = "no broker with a master lets it be written to; look at its permissions and brokers";
            return Err(Error::NoRoute { topic: topic.to_owned(), why });
        }
        Ok(found)
    }

    async fn renewed(&self, topic: &str, timeout: Duration) -> Result<Publishing> {
        let instance = self.instance();
        let missing = crate::route::Missing::TakesTemplate(instance.config.default_queues);
        instance.routes.renew(topic, missing, timeout).await.map(|(found, _)| found)
    }

    /// Sends it, with retries if the target allows them.
    pub(super) async fn send(
        &self,
        prepared: &Prepared,
        target: Target<'_>,
        limit: Limit,
    ) -> Result<SendReceipt> {
        let span = tracing::debug_span!("send", topic = prepared.topic, id = prepared.message_id);
        self.send_in_span(prepared, target, limit).instrument(span).await
    }

    async fn send_in_span(
        &self,
        prepared: &Prepared,
        target: Target<'_>,
        limit: Limit,
    ) -> Result<SendReceipt> {
        let tries = match target {
            Target::Next => self.settings.retries.saturating_add(1),
            Target::Queue(_) => 1,
        };
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut stored: Option<SendReceipt> = None;
        for at in 0..tries {
            if limit.left().is_zero() {
                break;
            }
            let queue = match target {
                Target::Queue(queue) => queue.clone(),
                Target::Next => match self.pick(prepared, &attempts, limit.left()).await {
                    Ok(queue) => queue,
                    // What was tried says more than that there is no route any more.
                    Err(_) if !attempts.is_empty() => break,
                    Err(error) => return Err(error),
                },
            };
            self.pause_before(&queue, &attempts, limit.left()).await;
            let began = Instant::now();
            let share = self.settings.share(limit.left(), tries - at);
            match self.attempt(prepared, &queue, share).await {
                Ok(receipt)
                    if receipt.status != SendStatus::Ok && self.settings.retry_not_stored =>
                {
                    stored = Some(receipt);
                }
                Ok(receipt) => return Ok(receipt),
                Err(ended) => {
                    let (error, last) = match ended {
                        Ended::Again(error) => (error, false),
                        Ended::For(error) => (error, true),
                    };
                    tracing::debug!(broker = queue.broker_name, %error, "a try failed");
                    let took = began.elapsed();
                    attempts.push(Attempt { broker: queue.broker_name, took, error });
                    if last {
                        break;
                    }
                }
            }
        }
        match stored {
            Some(receipt) => Ok(receipt),
            None => Err(failure(prepared, attempts, limit)),
        }
    }

    async fn pick(
        &self,
        prepared: &Prepared,
        attempts: &[Attempt],
        left: Duration,
    ) -> Result<MessageQueue> {
        let found = self.usable(&prepared.topic, left).await?;
        let tried: Vec<&str> = attempts.iter().map(|attempt| attempt.broker.as_str()).collect();
        let queues = &found.route.writable;
        let next =
            select::next(queues, &found.cursor, &tried, self.faults.as_ref(), Instant::now());
        let why = "it has no queue to write to";
        next.cloned().ok_or_else(|| Error::NoRoute { topic: prepared.topic.clone(), why })
    }

    /// The broker that just failed is not asked again at once.
    async fn pause_before(&self, queue: &MessageQueue, attempts: &[Attempt], left: Duration) {
        let again = attempts.last().is_some_and(|last| last.broker == queue.broker_name);
        if again {
            sleep((SAME_BROKER_PAUSE * attempts.len() as u32).min(left / 4)).await;
        }
    }

    async fn attempt(
        &self,
        prepared: &Prepared,
        queue: &MessageQueue,
        share: Duration,
    ) -> std::result::Result<SendReceipt, Ended> {
        let began = Instant::now();
        let broker = queue.broker_name.as_str();
        let addr = self.master(prepared, queue, share).await.map_err(Ended::Again)?;
        let queues = self.instance().config.default_queues;
        let command = prepared.command(&self.settings, queue, queues);
        let left = share.saturating_sub(began.elapsed());
        let reply = match self.instance().remoting.call(&addr, &command, left).await {
            Ok(reply) => reply,
            Err(closed @ (Error::Closed(_) | Error::Invalid(_))) => return Err(Ended::For(closed)),
            Err(error) => {
                self.note(|faults, now| faults.failed(broker, error.is_network(), now));
                return Err(Ended::Again(error));
            }
        };
        match SendReceipt::read(&reply, &prepared.message_id, queue) {
            Some(Ok(receipt)) => {
                self.note(|faults, now| faults.answered(broker, began.elapsed(), now));
                // The connection may be older than this producer.
                self.instance().tell_later(&addr);
                Ok(receipt)
            }
            // It is stored: a second try would store it twice.
            Some(Err(what)) => {
                let request = command.code;
                Err(Ended::For(Error::Malformed { addr: addr.as_str().into(), request, what }))
            }
            None => {
                let again = self.settings.retry_codes.contains(&reply.code);
                self.note(|faults, now| match again {
                    true => faults.failed(broker, false, now),
                    // The message is to blame, not the broker.
                    false => faults.answered(broker, began.elapsed(), now),
                });
                let remark = reply.remark.unwrap_or_default();
                let (addr, request) = (addr.as_str().into(), command.code);
                let error = Error::Refused { addr, request, code: reply.code, remark };
                Err(if again { Ended::Again(error) } else { Ended::For(error) })
            }
        }
    }

    fn note(&self, note: impl FnOnce(&super::Faults, Instant)) {
        if let Some(faults) = &self.faults {
            note(faults, Instant::now());
        }
    }

    /// The master of the queue's broker, after a look at the name servers if no route has it.
    async fn master(
        &self,
        prepared: &Prepared,
        queue: &MessageQueue,
        timeout: Duration,
    ) -> Result<String> {
        let routes = &self.instance().routes;
        if let Some(addr) = routes.master(&queue.broker_name) {
            return Ok(addr);
        }
        self.renewed(&prepared.topic, timeout).await?;
        let none = || Error::NoMaster { broker: queue.broker_name.clone() };
        routes.master(&queue.broker_name).ok_or_else(none)
    }

    pub(super) async fn send_oneway(&self, prepared: &Prepared, deadline: Instant) -> Result<()> {
        let queue = self.pick(prepared, &[], left(deadline)).await?;
        let addr = self.master(prepared, &queue, left(deadline)).await?;
        let queues = self.instance().config.default_queues;
        let command = prepared.command(&self.settings, &queue, queues);
        self.instance().remoting.oneway(&addr, &command, left(deadline)).await?;
        self.instance().tell_later(&addr);
        Ok(())
    }

    /// Asks every broker that could not be reached for anything: an answer, whatever its code, brings it back.
    async fn probe(&self) {
        let Some(faults) = &self.faults else { return };
        for broker in faults.unreachable() {
            let Some(addr) = self.instance().routes.master(&broker) else {
                faults.clear(&broker);
                continue;
            };
            let header = QueueHeader { topic: TEMPLATE_TOPIC, queue_id: 0 };
            let command = Command::request(request::GET_MAX_OFFSET).with_header(&header.ext());
            let timeout = faults.settings.probe_timeout;
            if self.instance().remoting.call(&addr, &command, timeout).await.is_ok() {
                tracing::debug!(broker, "a broker can be reached again");
                faults.clear(&broker);
            }
        }
    }
}

fn failure(prepared: &Prepared, mut attempts: Vec<Attempt>, limit: Limit) -> Error {
    // The end of the client, and what is wrong with the message itself, is no matter of brokers.
    if let Some(Attempt { error: error @ (Error::Closed(_) | Error::Invalid(_)), .. }) =
        attempts.last()
        && attempts.len() == 1
    {
        return error.clone();
    }
    if attempts.is_empty() {
        let what =
            format!("the send limit of {:?} was used up before the first try", limit.timeout);
        return Error::Busy { what };
    }
    attempts.shrink_to_fit();
    Error::Send(Arc::new(SendFailure {
        topic: prepared.topic.clone(),
        message_id: prepared.message_id.clone(),
        attempts,
        elapsed: limit.begun.elapsed(),
        timeout: limit.timeout,
    }))
}

/// Probes until the producer is gone.
pub(super) async fn probe_in_turn(producer: Weak<Shared>, period: Duration) {
    loop {
        sleep(period).await;
        let Some(producer) = producer.upgrade() else { return };
        if producer.check_open().is_err() || producer.instance().is_stopped() {
            return;
        }
        producer.probe().await;
    }
}
