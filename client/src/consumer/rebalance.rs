//! Dividing the queues anew: when members come or go, when a route changes, and each 20 s.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ringmq_net::body::MessageQueue;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::allocate::queue_text;
use super::diff::diff;
use super::member::{Member, Mode};
use super::queue::Queue;
use super::queue_lock::QueueLock;
use super::start::{Begin, RETRY_PREFIX, begin};
use super::store;
use crate::error::{Error, Result};

/// Queues whose first offset is asked for at once.
const STARTS_AT_ONCE: usize = 16;
/// The pause before the next look doubles up to this while a division is not known.
const AGAIN_MAX: Duration = Duration::from_secs(8);
/// The same while all that lacks are queues that another member has still locked.
const LOCKS_AGAIN_MAX: Duration = Duration::from_secs(2);

/// What a look came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Complete,
    /// Queues that are ours could not be taken yet.
    NotAllTaken,
    NotAllKnown,
}

/// Looks again and again until the member ends.
pub(super) async fn run(member: &Arc<Member>) {
    let timing = &member.settings.timing;
    let mut again = timing.rebalance_again;
    while !member.is_ending() {
        let look = if member.is_paused() { Look::Complete } else { look(member).await };
        let pause = match look {
            Look::Complete => timing.rebalance,
            Look::NotAllTaken => again.min(LOCKS_AGAIN_MAX),
            Look::NotAllKnown => again.min(AGAIN_MAX),
        };
        again = if look == Look::Complete { timing.rebalance_again } else { pause * 2 };
        tokio::select! {
            () = member.ended() => {}
            () = member.woken() => {}
            () = sleep(pause) => {}
        }
    }
}

/// One look.
async fn look(member: &Arc<Member>) -> Look {
    let (wanted, all_known) = match member.mode {
        Mode::Subscribed => tokio::select! {
            () = member.ended() => return Look::Complete,
            divided = divide(member) => divided,
        },
        Mode::Assigned => (member.assigned(), true),
    };
    // A topic that is subscribed to during the look waits for the next one.
    let subscribed = member.topics();
    let current: BTreeSet<MessageQueue> = member.table().keys().cloned().collect();
    let diff = diff(&current, &wanted, &subscribed);
    member.release(&diff.remove);
    // What is wanted again while it is being given up is taken when that is done.
    let returning = |queue: &Arc<Queue>| {
        queue.is_leaving() && wanted.get(&queue.id.topic).is_some_and(|own| own.contains(&queue.id))
    };
    let returning = member.queues().iter().any(returning);
    let taken = take(member, diff.add).await;
    match (all_known, taken && !returning) {
        (true, true) => Look::Complete,
        (true, false) => Look::NotAllTaken,
        (false, _) => Look::NotAllKnown,
    }
}

/// Own queues by topic, of the topics whose division is known now, and whether all are.
async fn divide(member: &Member) -> (BTreeMap<String, Vec<MessageQueue>>, bool) {
    let (mut wanted, mut all_known) = (BTreeMap::new(), true);
    let mut ids = MemberIds::default();
    for topic in member.topics() {
        match own_share(member, &topic, &mut ids).await {
            Ok(own) => drop(wanted.insert(topic, own)),
            Err(error) => {
                all_known = false;
                tracing::debug!(topic, group = member.group(), %error, "the queues of a topic cannot be divided now");
            }
        }
    }
    (wanted, all_known)
}

/// The members of the group, as each broker that was asked in this look says.
#[derive(Default)]
struct MemberIds {
    by_addr: BTreeMap<String, Vec<String>>,
}

impl MemberIds {
    /// Asks the brokers of a topic until one answers, and gives the answer only if this client is in it.
    async fn of(&mut self, member: &Member, addrs: Vec<String>) -> Result<Vec<String>> {
        let mut last = Error::NoRoute { topic: String::new(), why: "it has no broker" };
        for addr in addrs {
            if let Some(ids) = self.by_addr.get(&addr) {
                return Ok(ids.clone());
            }
            match ask(member, &addr).await {
                Ok(ids) => {
                    self.by_addr.insert(addr, ids.clone());
                    return Ok(ids);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

async fn ask(member: &Member, addr: &str) -> Result<Vec<String>> {
    let instance = &member.instance;
    instance.ensure_told(addr).await?;
    let broker = instance.broker(addr);
    let mut ids = broker.consumer_ids(member.group()).await;
    let knows =
        |ids: &Result<Vec<String>>| ids.as_ref().is_ok_and(|ids| ids.contains(&instance.client_id));
    if !knows(&ids) {
        // It may have started again, or have taken us for gone.
        instance.heartbeat(addr).await?;
        ids = broker.consumer_ids(member.group()).await;
    }
    let mut ids = ids?;
    if !ids.contains(&instance.client_id) {
        return Err(Error::Malformed {
            addr: addr.into(),
            request: ringmq_net::code::request::GET_CONSUMER_LIST_BY_GROUP,
            what: "this client is not among the members although it has just reported".into(),
        });
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

async fn own_share(member: &Member, topic: &str, ids: &mut MemberIds) -> Result<Vec<MessageQueue>> {
    let route = member.instance.consuming(topic).await?;
    let mut queues = route.readable.clone();
    queues.sort();
    if member.settings.is_broadcasting() {
        return Ok(queues);
    }
    // All members ask in the same order, so that they get the same answer while brokers know different members. Slaves know them too.
    let mut addrs: Vec<(bool, String)> = Vec::new();
    for (_, group) in route.brokers() {
        addrs.extend(group.iter().map(|(id, addr)| (*id != 0, addr.clone())));
    }
    addrs.sort_by_key(|(slave, _)| *slave);
    let addrs = addrs.into_iter().map(|(_, addr)| addr).collect();
    let ids = ids.of(member, addrs).await?;
    let mut own = by_rule(member, &queues, &ids).map_err(Error::Invalid)?;
    own.sort();
    own.dedup();
    Ok(own)
}

/// One's own rule may panic: that is logged, and the rule is asked again at the next look.
fn by_rule(
    member: &Member,
    queues: &[MessageQueue],
    ids: &[String],
) -> std::result::Result<Vec<MessageQueue>, String> {
    let rule = &member.settings.allocate;
    let divide = || rule.divide(&member.instance.client_id, queues, ids);
    catch_unwind(AssertUnwindSafe(divide)).unwrap_or_else(|_| {
        tracing::error!(
            group = member.group(),
            rule = rule.name(),
            "the rule of division panicked, its topic's queues stay as they are"
        );
        Err("the rule of division panicked".to_owned())
    })
}

/// Takes queues: locks those of orderly consumers, finds where each begins. Gives whether all were taken.
async fn take(member: &Arc<Member>, queues: Vec<MessageQueue>) -> bool {
    // Locks that it gets are given back before the member's end is done.
    let Some(_under_way) = member.enter() else { return true };
    let count = queues.len();
    let asked = Instant::now();
    let (mine, lock) = match member.locks() {
        true => (member.lock_all(queues).await, QueueLock::granted_first(asked)),
        false => (queues, QueueLock::default()),
    };
    let mut taken = 0;
    let mut starts: JoinSet<Option<Arc<Queue>>> = JoinSet::new();
    let mut mine = mine.into_iter();
    loop {
        while starts.len() < STARTS_AT_ONCE
            && let Some(id) = mine.next()
        {
            let member = member.clone();
            starts.spawn(async move { prepare(&member, id, lock).await });
        }
        match starts.join_next().await {
            Some(Ok(Some(queue))) => {
                taken += 1;
                let id = queue.id.clone();
                if !member.adopt(queue) && member.locks() {
                    member.unlock_id(&id).await;
                }
            }
            Some(_) => {}
            None => return taken == count,
        }
    }
}

/// A queue with its first offset; `None` when that cannot be found now: it is not taken then.
async fn prepare(member: &Member, id: MessageQueue, lock: QueueLock) -> Option<Arc<Queue>> {
    let first = tokio::select! {
        () = member.ended() => Err(Error::Closed("the consumer")),
        first = first_offset(member, &id) => first,
    };
    match first {
        Ok((start, stored)) => Some(Queue::new(id, start, stored, lock, member.total.clone())),
        Err(error) => {
            if !matches!(error, Error::Closed(_)) {
                tracing::warn!(queue = %queue_text(&id), %error, "a queue is not taken yet: where it begins is not known");
            }
            if error.is_network() {
                member.instance.renew_consuming(&id.topic).await;
            }
            if member.locks() {
                member.unlock_id(&id).await;
            }
            None
        }
    }
}

/// Where a queue begins, and what the store has.
async fn first_offset(member: &Member, id: &MessageQueue) -> Result<(i64, Option<i64>)> {
    let instance = &member.instance;
    let stored = member.store.read(instance, member.group(), id).await?;
    let broker = || store::home(instance, id);
    let start = match begin(member.settings.from, stored, &id.topic) {
        Begin::At(offset) => offset,
        Begin::End => broker().await?.max_offset(&id.topic, id.queue_id).await?,
        Begin::EndUnlessNew => {
            let broker = broker().await?;
            let end = broker.max_offset(&id.topic, id.queue_id).await?;
            match end > 0 && is_new(member, &broker, id).await? {
                true => 0,
                false => end,
            }
        }
        Begin::Search(time) => broker().await?.search_offset(&id.topic, id.queue_id, time).await?,
    };
    Ok((start, stored))
}

/// Was the queue's first message ever stored after this consumer began?
async fn is_new(member: &Member, broker: &crate::Broker, id: &MessageQueue) -> Result<bool> {
    if id.topic.starts_with(RETRY_PREFIX) {
        return Ok(false);
    }
    if broker.min_offset(&id.topic, id.queue_id).await? > 0 {
        return Ok(false);
    }
    let earliest = broker.earliest_store_time(&id.topic, id.queue_id).await?;
    Ok(earliest >= member.started_ms)
}
