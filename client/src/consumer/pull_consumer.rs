//! Pull consumers: the application takes messages when it wants them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ringmq_net::body::MessageQueue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::allocate::queue_text;
use super::handle::Handle;
use super::listener::Messages;
use super::member::{Member, Mode};
use super::queue::Queue;
use super::start::millis;
use super::store;
use super::stream::MessageStream;
use super::subscription::Filter;
use crate::client::Client;
use crate::error::{Error, Result};

/// A running pull consumer. Cheap to clone; all clones are the same member of the group.
///
/// What a [`PullConsumer::poll`] gave counts as consumed when the next one is called; it is then stored from time to time
/// ([`crate::ConsumerBuilder::auto_commit`]), when its queue is given to another member, and at [`PullConsumer::shutdown`]. So each message is consumed
/// at least once as long as it is dealt with between two polls. Whoever polls from several tasks, or hands messages on, should turn that off
/// ([`crate::ConsumerBuilder::manual_commit`]) and say what is done.
#[derive(Clone, Debug)]
#[must_use = "a consumer ends when its last handle is dropped"]
pub struct PullConsumer {
    handle: Arc<Handle>,
    polls: Arc<Mutex<Polls>>,
}

/// What polls have given.
#[derive(Debug)]
struct Polls {
    given: Vec<Given>,
    next_commit: Instant,
    /// Polls begin at another queue each time.
    turn: usize,
    filter: Filter,
}

/// What one poll gave.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) queue: Arc<Queue>,
    pub(super) epoch: u64,
    pub(super) messages: Messages,
}

impl Given {
    fn finish(self) {
        self.messages
            .iter()
            .for_each(|message| self.queue.finish(self.epoch, message.queue_offset));
    }
}

impl PullConsumer {
    pub(super) fn new(handle: Arc<Handle>) -> PullConsumer {
        let every = handle.member.settings.auto_commit.unwrap_or_default();
        let polls = Polls {
            given: Vec::new(),
            next_commit: crate::deadline::deadline(every),
            turn: 0,
            filter: Filter::from("*"),
        };
        PullConsumer { handle, polls: Arc::new(Mutex::new(polls)) }
    }

    fn member(&self) -> &Arc<Member> {
        &self.handle.member
    }

    fn polls(&self) -> MutexGuard<'_, Polls> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.member().group()
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.handle.client
    }

    // What it has.

    /// As [`crate::PushConsumer::subscribe`].
    ///
    /// # Errors
    /// Also [`Error::Invalid`] for a consumer of assigned queues.
    pub async fn subscribe(&self, topic: &str, filter: impl Into<Filter>) -> Result<()> {
        self.need(Mode::Subscribed)?;
        self.member().subscribe(topic, &filter.into()).await
    }

    /// Gives a topic up. What earlier polls gave is stored first, unless commits are manual.
    ///
    /// # Errors
    /// As [`PullConsumer::subscribe`].
    pub async fn unsubscribe(&self, topic: &str) -> Result<()> {
        self.need(Mode::Subscribed)?;
        self.member().unsubscribe(topic).await
    }

    /// Takes exactly these queues from now on, for a consumer that was started with [`crate::ConsumerBuilder::start_assigned`]. Those that it has
    /// already go on where they are. It has all of them when this is done, so that they can be sought in and paused; those that cannot be taken within
    /// the client's call timeout come later, see [`PullConsumer::assignment`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for no queues, or a consumer with subscriptions; [`Error::Closed`].
    pub async fn assign(&self, queues: impl IntoIterator<Item = MessageQueue>) -> Result<()> {
        self.need(Mode::Assigned)?;
        self.member().check_running()?;
        let queues: Vec<MessageQueue> = queues.into_iter().collect();
        if queues.is_empty() {
            return Err(Error::invalid("no queues are assigned: give at least one"));
        }
        let filter = self.polls().filter.clone();
        self.member().assign(queues, &filter).await
    }

    pub(super) fn set_filter(&self, filter: Filter) {
        self.polls().filter = filter;
    }

    fn need(&self, mode: Mode) -> Result<()> {
        if self.member().mode == mode {
            return Ok(());
        }
        Err(Error::invalid(
            "a consumer either subscribes or has queues assigned: start another one for the other",
        ))
    }

    /// Its queues, now and whenever they change.
    #[must_use]
    pub fn assignment(&self) -> watch::Receiver<Arc<[MessageQueue]>> {
        self.member().assignment.subscribe()
    }

    /// The queues of a topic that can be read, sorted.
    ///
    /// # Errors
    /// [`Error::NoRoute`], [`Error::NameServers`].
    pub async fn queues(&self, topic: &str) -> Result<Vec<MessageQueue>> {
        let mut queues = self.client().route(topic).await?.readable.clone();
        queues.sort();
        Ok(queues)
    }

    // Messages.

    /// The next messages of one queue, at most [`crate::ConsumerBuilder::pull_batch`]; none when there were none within `timeout`. Says that what
    /// earlier polls gave is consumed. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] after a shutdown.
    pub async fn poll(&self, timeout: Duration) -> Result<Messages> {
        let Some(given) = self.poll_unseen(timeout).await? else { return Ok(Vec::new()) };
        let messages = given.messages.clone();
        self.seen(given);
        Ok(messages)
    }

    /// As [`PullConsumer::poll`], of messages that nobody has seen until [`PullConsumer::seen`].
    pub(super) async fn poll_unseen(&self, timeout: Duration) -> Result<Option<Given>> {
        let deadline = crate::deadline::deadline(timeout);
        self.member().check_running()?;
        self.earlier_is_consumed();
        loop {
            let mut ready = self.member().ready.subscribe();
            let mut assigned = self.member().assignment.subscribe();
            if let Some(given) = self.next() {
                return Ok(Some(given));
            }
            tokio::select! {
                _ = ready.changed() => {}
                _ = assigned.changed() => {}
                () = self.member().ended() => return Err(Error::Closed("the consumer")),
                () = sleep_until(deadline) => return Ok(None),
            }
        }
    }

    /// The application has these now: they count as consumed with the next poll.
    pub(super) fn seen(&self, given: Given) {
        self.polls().given.push(given);
    }

    /// A stream of single messages. A message counts as consumed when those that were pulled with it have been taken and the next is asked for, or
    /// with a poll or a commit after the stream gave it; one that the stream has not given yet counts never.
    pub fn stream(&self) -> MessageStream {
        MessageStream::new(self.clone())
    }

    fn earlier_is_consumed(&self) {
        let given = {
            let mut polls = self.polls();
            std::mem::take(&mut polls.given)
        };
        given.into_iter().for_each(Given::finish);
        let Some(every) = self.member().settings.auto_commit else { return };
        {
            let mut polls = self.polls();
            if Instant::now() < polls.next_commit {
                return;
            }
            polls.next_commit = crate::deadline::deadline(every);
        }
        let member = self.member().clone();
        self.member().instance.spawn(async move { member.persist_all().await });
    }

    /// Takes what the next queue in turn has.
    fn next(&self) -> Option<Given> {
        let queues = self.member().queues();
        let mut polls = self.polls();
        for at in 0..queues.len() {
            let queue = &queues[(polls.turn + at) % queues.len()];
            if queue.is_paused() || queue.is_leaving() {
                continue;
            }
            if let Some(batch) = queue.take(usize::from(self.member().settings.pull_batch)) {
                polls.turn = (polls.turn + at + 1) % queues.len();
                let (epoch, messages) = (batch.epoch, batch.messages);
                return Some(Given { queue: queue.clone(), epoch, messages });
            }
        }
        None
    }

    /// Messages that nobody has seen: they come again.
    pub(super) fn unseen(&self, unseen: impl IntoIterator<Item = Given>) {
        for Given { queue, epoch, messages } in unseen {
            messages.into_iter().for_each(|message| queue.put_back(epoch, message));
        }
        self.member().ready.send_replace(());
    }

    // Progress.

    /// Stores that everything that polls gave so far is consumed. It is stored when this is done.
    ///
    /// # Errors
    /// The first one of the brokers; the other queues are stored all the same. [`Error::Invalid`] when a queue of these messages is not this consumer's
    /// any more: its new owner gets them again. [`Error::Closed`] after a shutdown.
    pub async fn commit(&self) -> Result<()> {
        self.member().check_running()?;
        let given = {
            let mut polls = self.polls();
            std::mem::take(&mut polls.given)
        };
        let queues = self.member().queues();
        let mut done = Ok(());
        for given in given {
            let (queue, epoch) = (given.queue.clone(), given.epoch);
            given.finish();
            let has = queues.iter().any(|own| Arc::ptr_eq(own, &queue));
            // After a seek of our own there is nothing to store; but one that goes has been reset for good.
            if !has || (queue.is_leaving() && queue.epoch() != epoch) {
                done = done.and(Err(Error::invalid(format!(
                    "what was polled of {} is not stored: the queue is not this consumer's any more",
                    queue_text(&queue.id)
                ))));
            }
        }
        for queue in queues {
            let stored = self.member().persist(&queue).await;
            done = done.and(stored);
        }
        done
    }

    /// Stores these offsets, whatever was polled: consumption goes on there after a restart.
    ///
    /// # Errors
    /// The first one of the brokers; the offsets behind it are not stored then.
    pub async fn commit_offsets(
        &self,
        offsets: impl IntoIterator<Item = (MessageQueue, i64)>,
    ) -> Result<()> {
        let member = self.member();
        for (id, offset) in offsets {
            let queue = member.queue(&id);
            let mut known = match &queue {
                Some(queue) => Some(queue.stored.lock().await),
                None => None,
            };
            member.store.write(&member.instance, member.group(), &id, offset).await?;
            if let Some(known) = &mut known {
                **known = Some(offset);
            }
        }
        Ok(())
    }

    /// The group's stored progress in a queue; `None` when it has none.
    ///
    /// # Errors
    /// Those of the broker: they never look like "none".
    pub async fn committed(&self, queue: &MessageQueue) -> Result<Option<i64>> {
        let member = self.member();
        member.store.read(&member.instance, member.group(), queue).await
    }

    /// The offset of the next message that polls give of a queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a queue that this consumer does not have.
    pub fn position(&self, queue: &MessageQueue) -> Result<i64> {
        self.owned(queue).map(|queue| {
            queue.look(|state| {
                let [(ready, first, _), _] = state.ranges();
                if ready > 0 { first } else { state.next_pull() }
            })
        })
    }

    fn owned(&self, id: &MessageQueue) -> Result<Arc<Queue>> {
        self.member().check_running()?;
        let queue = self.member().queue(id).filter(|queue| !queue.is_leaving());
        queue.ok_or_else(|| {
            Error::invalid(format!(
                "{} is not this consumer's now: look at its assignment",
                queue_text(id)
            ))
        })
    }

    /// Goes on at that offset, forwards or back. From now on polls give nothing of the queue that was pulled before.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a queue that this consumer does not have, or an offset outside it; those of the broker.
    pub async fn seek(&self, queue: &MessageQueue, offset: i64) -> Result<()> {
        self.owned(queue)?;
        let broker = store::home(&self.member().instance, queue).await?;
        let min = broker.min_offset(&queue.topic, queue.queue_id).await?;
        let max = broker.max_offset(&queue.topic, queue.queue_id).await?;
        if !(min..=max).contains(&offset) {
            return Err(Error::invalid(format!(
                "offset {offset} is outside {}, which has {min} to {max}",
                queue_text(queue)
            )));
        }
        self.owned(queue)?.reset(offset);
        Ok(())
    }

    /// Goes on at the queue's first message.
    ///
    /// # Errors
    /// As [`PullConsumer::seek`].
    pub async fn seek_to_begin(&self, queue: &MessageQueue) -> Result<()> {
        let broker = store::home(&self.member().instance, queue).await?;
        let min = broker.min_offset(&queue.topic, queue.queue_id).await?;
        self.owned(queue)?.reset(min);
        Ok(())
    }

    /// Goes on behind the queue's last message.
    ///
    /// # Errors
    /// As [`PullConsumer::seek`].
    pub async fn seek_to_end(&self, queue: &MessageQueue) -> Result<()> {
        let broker = store::home(&self.member().instance, queue).await?;
        let max = broker.max_offset(&queue.topic, queue.queue_id).await?;
        self.owned(queue)?.reset(max);
        Ok(())
    }

    /// The offset of the message stored at that time, or next to it.
    ///
    /// # Errors
    /// Those of the broker.
    pub async fn offset_for_time(&self, queue: &MessageQueue, time: SystemTime) -> Result<i64> {
        let broker = store::home(&self.member().instance, queue).await?;
        broker.search_offset(&queue.topic, queue.queue_id, millis(time)).await
    }

    // Pausing.

    /// Polls give nothing of these queues until [`PullConsumer::resume`], and nothing more is pulled. Queues that this consumer does not have
    /// are left out; one that comes later is not paused.
    pub fn pause<'a>(&self, queues: impl IntoIterator<Item = &'a MessageQueue>) {
        self.set_paused(queues, true);
    }

    /// Goes on with these queues.
    pub fn resume<'a>(&self, queues: impl IntoIterator<Item = &'a MessageQueue>) {
        self.set_paused(queues, false);
        self.member().ready.send_replace(());
    }

    fn set_paused<'a>(&self, queues: impl IntoIterator<Item = &'a MessageQueue>, paused: bool) {
        for queue in queues.into_iter().filter_map(|id| self.member().queue(id)) {
            queue.pause(paused);
        }
    }

    /// Is this queue paused? `None` for one that this consumer does not have.
    #[must_use]
    pub fn is_paused(&self, queue: &MessageQueue) -> Option<bool> {
        self.member().queue(queue).map(|queue| queue.is_paused())
    }

    /// Ends it in order: what polls gave counts as consumed and is stored (unless commits are manual), and the consumer leaves the group. All handles
    /// end. May be called again. Dropping the last handle does the same without counting what the last poll gave, and nobody waits for
    /// it.
    ///
    /// # Errors
    /// None so far; what cannot be told to a broker is logged.
    pub async fn shutdown(&self) -> Result<()> {
        let given = {
            let mut polls = self.polls();
            std::mem::take(&mut polls.given)
        };
        given.into_iter().for_each(Given::finish);
        self.handle.shutdown().await;
        Ok(())
    }
}
