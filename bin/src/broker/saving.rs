//! Saving the broker's configuration files when they have changed.
//!
//! Tables of thousands of entries take milliseconds to render, so none is rendered while a request is served: topics as a
//! snapshot on the saver's thread, offsets in steps. Topics and groups have one save under way or none, and what changes meanwhile
//! goes into the next: ten thousand topics that producers make in one burst cost a few saves, and each send is still answered
//! when its topic is durable.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_lite::FutureExt;
use ringmq_engine::log::LogError;
use ringmq_engine::state::saver::{SaveStatus, SaveTicket};
use ringmq_net::code::response;
use ringmq_net::json::Writer;

use super::signal::Signal;
use super::{Broker, Refusal, TopicHandle};

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
/// (group, topic) pairs of offsets that are rendered before others have their turn.
const OFFSET_STEP: usize = 256;
/// How long a stopping broker waits for its files.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Changes of topics and groups that are promised to the saver and not handed over yet.
#[derive(Default)]
pub(super) struct Promised {
    topics: Cell<bool>,
    groups: Cell<bool>,
    raised: Signal,
    /// Requests that wait for a promise to be kept.
    waiting: RefCell<Vec<Waker>>,
    /// Topics whose sends wait for a save, the earliest save first.
    unsaved: RefCell<VecDeque<(TopicHandle, SaveTicket)>>,
    /// Offsets are being rendered: no longer dirty, and not handed over yet.
    offsets_under_way: Cell<bool>,
}

impl Broker {
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

    /// Saves what has changed until the broker stops, each file in its own time.
    pub(super) async fn save_again_and_again(self: Rc<Self>) {
        for round in 1u64.. {
            glommio::timer::sleep(SAVE_EVERY).await;
            if self.stopped() {
                return;
            }
            self.save_topics();
            self.save_groups();
            let offsets_are_due = round.is_multiple_of(OFFSET_ROUNDS);
            if offsets_are_due || !self.ha.untold.is_large() {
                self.ha.untold.save(&self.saver, OFFSET_STEP).await;
            }
            if offsets_are_due {
                self.save_offsets().await;
            }
        }
    }

    /// Sees to it that the topics are saved soon if they have changed; the ticket tells when they are durable.
    pub(super) fn save_topics(&self) -> Option<SaveTicket> {
        let dirty = self.topics.borrow_mut().take_dirty();
        dirty.then(|| {
            self.promised.topics.set(true);
            self.promised.raised.raise();
            self.saver.promise(&self.paths.topics)
        })
    }

    /// The same for the consumer groups.
    pub(super) fn save_groups(&self) -> Option<SaveTicket> {
        let dirty = self.groups.borrow_mut().take_dirty();
        dirty.then(|| {
            self.promised.groups.set(true);
            self.promised.raised.raise();
            self.saver.promise(&self.paths.groups)
        })
    }

    /// Keeps promises until the broker stops: what has gathered while one save was under way makes the next.
    pub(super) async fn keep_promises(self: Rc<Self>) {
        while !self.stopped() {
            if self.promised.unsaved.borrow().is_empty() {
                self.promised.raised.wait().await;
            } else {
                self.promised.raised.wait_at_most(FAILING_POLL).await;
            }
            for ticket in self.hand_over().into_iter().flatten() {
                // A file that cannot be saved now does not hold up the other one; the saver tries on.
                self.tried(ticket).await;
            }
            self.release_saved();
        }
    }

    /// Hands over what was promised.
    fn hand_over(&self) -> [Option<SaveTicket>; 2] {
        let topics = self.promised.topics.take().then(|| {
            let topics = self.topics.borrow().snapshot();
            self.saver.save_with(&self.paths.topics, move || topics.to_file())
        });
        let groups = self.promised.groups.take().then(|| {
            let groups = self.groups.borrow().to_file();
            self.saver.save(&self.paths.groups, groups)
        });
        [topics, groups]
    }

    async fn save_offsets(&self) {
        if !self.offsets.borrow_mut().take_dirty() && !self.promised.offsets_under_way.get() {
            return;
        }
        self.promised.offsets_under_way.set(true);
        let text = self.render_offsets(Writer::pretty()).await;
        if self.untold_is_saved().await {
            self.saver.save(&self.paths.offsets, text);
            self.promised.offsets_under_way.set(false);
        }
    }

    /// Saves what the master is to be told. The offsets wait for it, so that this file is never older than theirs; if it cannot be
    /// saved now, they are saved another time.
    pub(super) async fn untold_is_saved(&self) -> bool {
        let all = self.ha.untold.save(&self.saver, OFFSET_STEP).await;
        while self.ha.untold.saved(&self.saver) == SaveStatus::Pending && !self.stopped() {
            glommio::timer::sleep(SAVED_POLL).await;
        }
        all && self.ha.untold.saved(&self.saver) == SaveStatus::Saved
    }

    /// The table of offsets as JSON, with turns for others in between.
    pub(super) async fn render_offsets(&self, writer: Writer) -> Vec<u8> {
        let mut text = self.offsets.borrow().render(writer);
        while !self.offsets.borrow().render_step(&mut text, OFFSET_STEP) {
            glommio::executor().yield_task_queue_now().await;
        }
        text.finish()
    }

    /// Waits until what the ticket names is saved or fails to be. This asks again and again: one task does it for all that wait.
    async fn tried(&self, ticket: SaveTicket) {
        while self.saver.status(ticket) == SaveStatus::Pending {
            glommio::timer::sleep(SAVED_POLL).await;
        }
    }

    /// Waits until the change of topics or groups that the ticket names is durable; the text says why it is not.
    async fn durable(&self, ticket: SaveTicket) -> Result<(), String> {
        poll_fn(|context| match self.saver.status(ticket) {
            SaveStatus::Saved => Poll::Ready(Ok(())),
            SaveStatus::Failing(why) => Poll::Ready(Err(why)),
            SaveStatus::Pending => {
                self.promised.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
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
    pub(super) fn answer_when_saved(&self, topic: &TopicHandle, ticket: SaveTicket) {
        topic.slot().unsaved.set(Some(ticket));
        self.promised.unsaved.borrow_mut().push_back((Rc::clone(topic), ticket));
    }

    /// Sends to topics that are saved by now need not wait, and those that did are answered.
    fn release_saved(&self) {
        let mut unsaved = self.promised.unsaved.borrow_mut();
        while let Some((topic, ticket)) = unsaved.front() {
            if self.saver.status(*ticket) != SaveStatus::Saved {
                break;
            }
            topic.slot().unsaved.set(None);
            unsaved.pop_front();
        }
        drop(unsaved);
        self.promised.waiting.take().into_iter().for_each(Waker::wake);
        self.answer_unsaved();
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
        self.promised.topics.set(true);
        self.promised.groups.set(true);
        self.hand_over();
        self.saver.save(&self.paths.offsets, self.offsets.borrow().to_file());
        self.saver.save(&self.paths.delay, self.delay_offsets.borrow().to_file());
    }

    /// The last save, waited for. Blocks briefly; nothing is served any more.
    pub(super) fn save_all(&self) -> Result<(), String> {
        self.save_topics();
        self.save_groups();
        self.hand_over();
        self.ha.untold.save_now(&self.saver);
        if self.ha.untold.saved(&self.saver) != SaveStatus::Saved {
            let flushed = self.saver.flush(FLUSH_TIMEOUT).map_err(|error| error.to_string());
            if self.ha.untold.saved(&self.saver) != SaveStatus::Saved {
                // The offsets must not be newer.
                return flushed;
            }
        }
        if self.offsets.borrow_mut().take_dirty() || self.promised.offsets_under_way.get() {
            self.saver.save(&self.paths.offsets, self.offsets.borrow().to_file());
        }
        self.saver.flush(FLUSH_TIMEOUT).map_err(|error| error.to_string())
    }
}
