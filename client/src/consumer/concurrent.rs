//! Listeners that are called for many messages at once.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::allocate::queue_text;
use super::listener::{self, Listener, Ran, Stopping};
use super::member::Member;
use super::outcome::{BatchOutcome, Fate, Outcome, fate};
use super::process_queue::{Batch, ProcessQueue};
use super::queue::{Leave, Queue};
use crate::message::ReceivedMessage;

/// The delay level of messages that were not done in time, as in stock: 10 s.
const LATE_LEVEL: u32 = 3;

/// Hands the queue's messages to the listener until the queue is to be given up.
pub(super) async fn run(member: &Arc<Member>, queue: &Arc<Queue>, listener: &Listener) {
    let why = loop {
        let next = async {
            queue.until(ProcessQueue::has_ready).await;
            member.places.take().await
        };
        let permit = tokio::select! {
            biased;
            why = queue.left() => break why,
            permit = next => permit,
        };
        // A reset may have taken them away.
        let Some(batch) = queue.take(member.settings.batch) else { continue };
        let (member, queue, listener) = (member.clone(), queue.clone(), listener.clone());
        let under_way = queue.running.enter();
        let offset = batch.messages.first().map(|message| message.queue_offset);
        let span = tracing::debug_span!(
            "consume",
            topic = queue.id.topic,
            queue_id = queue.id.queue_id,
            offset
        );
        let work = async move {
            consume(&member, &queue, &listener, batch, permit).await;
            drop(under_way);
        };
        tokio::spawn(work.instrument(span));
    };
    if why == Leave::Shutdown {
        tokio::select! {
            () = queue.running.idle() => {}
            () = member.hurried() => {}
        }
    }
}

async fn consume(
    member: &Member,
    queue: &Queue,
    listener: &Listener,
    batch: Batch,
    permit: Option<OwnedSemaphorePermit>,
) {
    let began = Instant::now();
    let late = async {
        tokio::select! {
            () = sleep(member.settings.consume_timeout) => {}
            () = member.hurried() => {}
        }
    };
    let messages = batch.messages.clone();
    let ran = listener::run(listener, messages, permit, late, Stopping::LeaveIt).await;
    let failed = |rest| BatchOutcome { consumed: 0, rest };
    let outcome = match ran {
        Ran::Returned(outcome) => outcome,
        Ran::Panicked(text) => {
            tracing::error!(text, "a listener panicked, its messages will be retried");
            failed(Outcome::Retry)
        }
        // At the end of the consumer: they come again.
        Ran::Stopped if member.is_ending() => return,
        Ran::Stopped => {
            tracing::warn!(
                limit = ?member.settings.consume_timeout,
                "a listener did not return in time, its messages will be retried"
            );
            failed(Outcome::RetryAtLevel(LATE_LEVEL))
        }
    };
    let done = (0..batch.messages.len()).filter(|at| outcome.of(*at) == Outcome::Consumed).count();
    member.stats.consumed(&queue.id.topic, done, batch.messages.len() - done, began.elapsed());
    settle(member, queue, &batch, outcome).await;
}

/// Does with each message what its outcome asks for.
async fn settle(member: &Member, queue: &Queue, batch: &Batch, outcome: BatchOutcome) {
    let mut kept: Vec<&Arc<ReceivedMessage>> = Vec::new();
    for (at, message) in batch.messages.iter().enumerate() {
        // The queue was given up or reset: its next owner gets the message.
        if queue.epoch() != batch.epoch {
            return;
        }
        let done = match fate(outcome.of(at), member.settings.is_broadcasting()) {
            Fate::Done => true,
            Fate::Dropped => {
                tracing::warn!(
                    id = message.message_id(),
                    "a message failed and is left out: broadcasting has no retries"
                );
                true
            }
            Fate::SendBack(level) => member.give_back(queue, message, level).await,
        };
        match done {
            true => queue.finish(batch.epoch, message.queue_offset),
            false => kept.push(message),
        }
    }
    if kept.is_empty() {
        return;
    }
    tracing::warn!(
        queue = queue_text(&queue.id),
        messages = kept.len(),
        "failed messages could not be given back and are retried here"
    );
    tokio::select! {
        _ = queue.left() => return,
        () = sleep(member.settings.timing.local_retry) => {}
    }
    for message in kept {
        queue.put_back(batch.epoch, once_more(message));
    }
}

/// The message with one more try counted.
pub(super) fn once_more(message: &Arc<ReceivedMessage>) -> Arc<ReceivedMessage> {
    let mut again = ReceivedMessage::clone(message);
    again.reconsume_times = again.reconsume_times.saturating_add(1);
    Arc::new(again)
}
