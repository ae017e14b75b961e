//! Listeners that are called for one batch of a queue at a time, in order, while the queue's lock is ours.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::concurrent::once_more;
use super::listener::{self, Listener, Ran, Stopping};
use super::member::Member;
use super::outcome::{BatchOutcome, OrderlyFate, Outcome, orderly_fate};
use super::process_queue::{Batch, ProcessQueue};
use super::queue::{Leave, Queue};
use crate::message::ReceivedMessage;

/// Hands the queue's messages to the listener until the queue is to be given up.
pub(super) async fn run(member: &Arc<Member>, queue: &Arc<Queue>, listener: &Listener) {
    loop {
        let permit = tokio::select! {
            biased;
            _ = queue.left() => return,
            permit = ready(member, queue) => permit,
        };
        let Some(batch) = queue.take(member.settings.batch) else { continue };
        let offset = batch.messages.first().map(|message| message.queue_offset);
        let span = tracing::debug_span!(
            "consume",
            topic = queue.id.topic,
            queue_id = queue.id.queue_id,
            offset
        );
        let wait = consume(member, queue, listener, &batch, permit).instrument(span).await;
        if wait.is_zero() {
            continue;
        }
        tokio::select! {
            _ = queue.left() => return,
            () = sleep(wait) => {}
        }
    }
}

/// Waits until there are messages and the lock is ours.
async fn ready(member: &Member, queue: &Queue) -> Option<OwnedSemaphorePermit> {
    let ours = || !member.locks() || queue.may_consume();
    loop {
        while !ours() {
            if !member.regain_lock(queue).await {
                sleep(member.settings.timing.lock_again).await;
            }
        }
        queue.until(ProcessQueue::has_ready).await;
        let permit = member.places.take().await;
        if ours() {
            return permit;
        }
    }
}

/// One call of the listener. Gives how long to wait before the next one.
async fn consume(
    member: &Member,
    queue: &Queue,
    listener: &Listener,
    batch: &Batch,
    permit: Option<OwnedSemaphorePermit>,
) -> Duration {
    let began = Instant::now();
    let messages = batch.messages.clone();
    let stop = until_stopped(member, queue);
    let outcome = match listener::run(listener, messages, permit, stop, Stopping::AwaitEnd).await {
        Ran::Returned(outcome) => outcome,
        Ran::Panicked(text) => {
            tracing::error!(text, "a listener panicked, its messages come again");
            BatchOutcome { consumed: 0, rest: Outcome::Retry }
        }
        Ran::Stopped => {
            batch.messages.iter().for_each(|message| queue.put_back(batch.epoch, message.clone()));
            return Duration::ZERO;
        }
    };
    let done = (0..batch.messages.len()).filter(|at| outcome.of(*at) == Outcome::Consumed).count();
    member.stats.consumed(&queue.id.topic, done, batch.messages.len() - done, began.elapsed());
    settle(member, queue, batch, outcome).await
}

/// A call is stopped when another member may get the queue, so that never two work on it.
async fn until_stopped(member: &Member, queue: &Queue) {
    let released = async {
        match queue.left().await {
            Leave::Shutdown => std::future::pending().await,
            _ => sleep(member.settings.timing.release).await,
        }
    };
    let lock_ended = async {
        match member.locks() {
            true => queue.lock_ended().await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        () = released => {}
        () = lock_ended => {}
        () = member.hurried() => {}
    }
}

async fn settle(member: &Member, queue: &Queue, batch: &Batch, outcome: BatchOutcome) -> Duration {
    let (retries, usual) = (member.settings.retries, member.settings.suspend);
    let mut wait = Duration::ZERO;
    for (at, message) in batch.messages.iter().enumerate() {
        match orderly_fate(outcome.of(at), message.reconsume_times, retries, usual) {
            OrderlyFate::Done => queue.finish(batch.epoch, message.queue_offset),
            OrderlyFate::Wait(again) => {
                queue.put_back(batch.epoch, once_more(message));
                wait = wait.max(again);
            }
            OrderlyFate::GiveUp if given_up(member, message).await => {
                queue.finish(batch.epoch, message.queue_offset);
            }
            OrderlyFate::GiveUp => {
                queue.put_back(batch.epoch, once_more(message));
                wait = wait.max(usual);
            }
        }
    }
    wait
}

/// Makes it a dead letter; broadcasting has none.
async fn given_up(member: &Member, message: &ReceivedMessage) -> bool {
    if member.settings.is_broadcasting() {
        tracing::warn!(
            id = message.message_id(),
            "a message failed and is left out: broadcasting has no dead letters"
        );
        return true;
    }
    member.bury(message).await
}
