//! The pulls of one queue, one at a time, for as long as the queue is here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ringmq_net::code::response;
use tokio::time::{Instant, sleep};

use super::allocate::queue_text;
use super::member::{Kind, Member};
use super::queue::Queue;
use super::start::RETRY_PREFIX;
use super::subscription::Subscription;
use crate::broker::{PullReply, PullRequest, PullStatus};
use crate::error::{Error, Result};

/// Pulls until the queue is to be given up. Whatever happens to a pull, another one follows.
pub(super) async fn run(member: &Member, queue: &Queue) {
    let mut failures = 0;
    loop {
        let turn = async {
            until_allowed(member, queue).await;
            pull(member, queue).await
        };
        let done = tokio::select! {
            _ = queue.left() => return,
            done = turn => done,
        };
        let pause = match done {
            Ok(()) => {
                failures = 0;
                member.settings.pull_interval
            }
            Err(error) => {
                failures += 1;
                pause_after(member, queue, &error, failures)
            }
        };
        if !pause.is_zero() {
            let epoch = queue.epoch();
            tokio::select! {
                _ = queue.left() => return,
                () = sleep(pause) => {}
                () = queue.until(|state| state.epoch() != epoch) => {}
            }
        }
    }
}

fn pause_after(member: &Member, queue: &Queue, error: &Error, failures: u32) -> Duration {
    let timing = &member.settings.timing;
    let text = queue_text(&queue.id);
    // The first one may be a broker's restart; after that somebody should know.
    if failures == 2 && !queue.id.topic.starts_with(RETRY_PREFIX) {
        tracing::warn!(queue = text, %error, "pulls of a queue fail and are repeated");
    } else {
        tracing::debug!(queue = text, %error, failures, "a pull failed");
    }
    if error.is_refusal(response::FLOW_CONTROL) {
        return timing.flow_control;
    }
    let doubled = timing.pull_again.saturating_mul(1 << (failures - 1).min(10));
    doubled.min(timing.pull_again_max)
}

/// Waits while the consumer or the queue is paused, and while too much is in memory.
async fn until_allowed(member: &Member, queue: &Queue) {
    loop {
        member.resumed().await;
        queue.resumed().await;
        let limits = member.cache_limits(&queue.id.topic);
        queue.until(|state| state.has_room(&limits)).await;
        member.total.below(member.settings.total_messages).await;
        // Each of these may have changed while another one was waited for.
        if !member.is_paused() && !queue.is_paused() && queue.look(|s| s.has_room(&limits)) {
            return;
        }
    }
}

/// One pull, and what follows from its answer.
async fn pull(member: &Member, queue: &Queue) -> Result<()> {
    let topic = &queue.id.topic;
    let subscription = member.subscription(topic);
    let Some(subscription) = subscription else {
        return Err(Error::Invalid(format!("topic {topic} is not subscribed any more")));
    };
    let began = Instant::now();
    let wanted = queue.suggested.load(Ordering::Relaxed);
    let (broker, id) = member.instance.queue_broker(&queue.id, wanted).await?;
    let (epoch, offset) = queue.look(|state| (state.epoch(), state.next_pull()));
    let request = request(member, queue, &subscription, offset, id == 0);
    queue.pulling();
    if let Some(commit) = request.commit {
        queue.sending(commit);
    }
    let answer = async {
        member.instance.ensure_told(broker.addr()).await?;
        let reply = broker.pull(&request).await;
        let unknown = [response::SUBSCRIPTION_NOT_EXIST, response::SUBSCRIPTION_NOT_LATEST];
        match reply {
            // It has started again, or knows another subscription: it is told ours, and asked again.
            Err(error) if unknown.iter().any(|code| error.is_refusal(*code)) => {
                member.instance.heartbeat(broker.addr()).await?;
                broker.pull(&request).await
            }
            reply => reply,
        }
    };
    let reply = tokio::select! {
        reply = answer => reply,
        // The offset was reset: the answer would be about another place.
        () = queue.until(|state| state.epoch() != epoch) => return Ok(()),
    };
    match reply {
        Ok(reply) => {
            if let Some(commit) = request.commit {
                queue.sent_with_pull(commit);
            }
            member.stats.pulled(topic, reply.messages.len(), began.elapsed());
            accept(member, queue, &subscription, epoch, reply).await;
            Ok(())
        }
        Err(error) => {
            if error.is_network() {
                after_loss(member, queue, id).await;
            }
            Err(error)
        }
    }
}

fn request(
    member: &Member,
    queue: &Queue,
    subscription: &Subscription,
    offset: i64,
    master: bool,
) -> PullRequest {
    let settings = &member.settings;
    let pulls = matches!(member.kind, Kind::Pull);
    let committed = queue.committed();
    let commits = master
        && !pulls
        && !settings.is_broadcasting()
        && committed > 0
        && (!member.locks() || queue.may_consume());
    PullRequest {
        group: settings.group.clone(),
        queue: queue.id.clone(),
        offset,
        max_messages: i32::from(settings.pull_batch),
        // Push consumers rely on what they registered, pull consumers send theirs along: both as stock does.
        subscription: pulls.then(|| subscription.data.sub_string.clone()),
        expression_type: subscription.data.expression_type.clone(),
        sub_version: subscription.data.sub_version,
        commit: commits.then_some(committed),
        hold: settings.hold,
    }
}

async fn accept(
    member: &Member,
    queue: &Queue,
    subscription: &Subscription,
    epoch: u64,
    reply: PullReply,
) {
    queue.suggested.store(reply.suggested_broker_id, Ordering::Relaxed);
    queue.end.store(reply.max_offset, Ordering::Relaxed);
    match reply.status {
        PullStatus::Found | PullStatus::NoNew | PullStatus::NoMatch => {
            let mut messages = reply.messages;
            messages.retain(|message| subscription.wants(message));
            if queue.put(epoch, messages, reply.next_offset) {
                member.ready.send_replace(());
            }
        }
        PullStatus::OffsetIllegal => {
            tracing::warn!(
                queue = queue_text(&queue.id),
                offset = queue.look(|state| state.next_pull()),
                next = reply.next_offset,
                "the offset is outside the queue, consumption goes on where the broker says"
            );
            if queue.epoch() == epoch {
                queue.moved(epoch, reply.next_offset);
                if member.stores(queue) {
                    member.persist_now(queue).await;
                }
            }
            // A broker that says so for ever shall not be asked without a pause.
            sleep(member.settings.timing.flow_control).await;
        }
    }
}

/// A broker was lost: perhaps another one of its group can be read, perhaps it moved.
async fn after_loss(member: &Member, queue: &Queue, id: i64) {
    if member.locks() {
        queue.doubt_lock();
    }
    member.instance.renew_consuming(&queue.id.topic).await;
    let group = member.instance.routes.group(&queue.id.broker_name);
    let next = group.range(id + 1..).next().or_else(|| group.iter().next());
    queue.suggested.store(next.map_or(0, |(id, _)| *id), Ordering::Relaxed);
}
