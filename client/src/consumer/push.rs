//! Push consumers: messages are brought to a listener.

use std::sync::Arc;

use ringmq_net::body::MessageQueue;
use tokio::sync::watch;

use super::handle::Handle;
use super::settings::check_concurrency;
use super::subscription::Filter;
use crate::client::Client;
use crate::endpoint::ConsumerEndpoint;
use crate::error::Result;

/// A running push consumer. Cheap to clone; all clones are the same member of the group.
///
/// Every message is consumed at least once: progress is stored after the listener is done with a message and all before it, each 5 s and at the
/// end. When the last handle is dropped, the consumer ends as with [`PushConsumer::shutdown`] but nobody waits for it: give that a chance before
/// the runtime ends, or messages of the last seconds come again.
#[derive(Clone, Debug)]
#[must_use = "a consumer ends when its last handle is dropped"]
pub struct PushConsumer {
    handle: Arc<Handle>,
}

impl PushConsumer {
    pub(super) fn new(handle: Arc<Handle>) -> PushConsumer {
        PushConsumer { handle }
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.handle.member.group()
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.handle.client
    }

    /// Subscribes to one more topic, or to other messages of one. Brokers have been told when this is done.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], [`crate::Error::Closed`].
    pub async fn subscribe(&self, topic: &str, filter: impl Into<Filter>) -> Result<()> {
        self.handle.member.subscribe(topic, &filter.into()).await
    }

    /// Gives a topic up. Messages that are in memory are left to the other members.
    ///
    /// # Errors
    /// [`crate::Error::Closed`].
    pub async fn unsubscribe(&self, topic: &str) -> Result<()> {
        self.handle.member.unsubscribe(topic).await
    }

    /// Pulls nothing more until [`PushConsumer::resume`]; what is in memory is consumed. Its queues stay its own.
    pub fn pause(&self) {
        self.handle.member.pause(true);
    }

    /// Goes on.
    pub fn resume(&self) {
        self.handle.member.pause(false);
    }

    /// Lets so many listener calls run at once from now on. Calls that run are left alone: after a smaller number, new ones begin when enough have
    /// ended.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for none, or more than 65,535.
    pub fn set_concurrency(&self, calls: usize) -> Result<()> {
        check_concurrency(calls)?;
        let member = &self.handle.member;
        if let Some(rest) = member.places.set(calls) {
            member.instance.spawn(rest);
        }
        Ok(())
    }

    /// How many listener calls may run at once.
    #[must_use]
    pub fn concurrency(&self) -> usize {
        self.handle.member.places.count()
    }

    /// Is it paused?
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.handle.member.is_paused()
    }

    /// Its queues, now and whenever they change. The retry topic's are among them.
    #[must_use]
    pub fn assignment(&self) -> watch::Receiver<Arc<[MessageQueue]>> {
        self.handle.member.assignment.subscribe()
    }

    /// How far it is in each queue of a topic that it has: everything below the offset is done.
    #[must_use]
    pub fn progress(&self, topic: &str) -> Vec<(MessageQueue, i64)> {
        self.handle.member.offsets(topic)
    }

    /// Ends it in order: pulls nothing more, waits for the listener calls that run (as long as the client's drain timeout, then they are dropped), stores
    /// progress, gives locks back, leaves the group. What was pulled and not begun is left to the other members. All handles end.
    /// May be called from anywhere, and again; once begun it goes on although the future is dropped. A listener that calls it and waits is
    /// waited for itself, for the whole of that timeout.
    ///
    /// # Errors
    /// None so far; what cannot be told to a broker is logged.
    pub async fn shutdown(&self) -> Result<()> {
        self.handle.shutdown().await;
        Ok(())
    }
}
