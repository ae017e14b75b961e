//! What takes part in a client's heartbeats, and serves what brokers ask of it.
//!
//! Producers do so inside this crate. A consumer implements [`ConsumerEndpoint`] and registers with
//! [`crate::Client::register_consumer`]: from then on heartbeats to every broker name it with its subscriptions, its topics' routes are
//! renewed, and requests about its group come to it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use ringmq_net::body::{ConsumeDirectlyResult, ConsumerData, ConsumerRunningInfo, MessageQueue};
use tokio::time::Instant;

use crate::error::Result;
use crate::instance::Instance;
use crate::message::ReceivedMessage;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A consumer as its client sees it. The methods without a future are called on the client's tasks and must not block.
pub trait ConsumerEndpoint: Send + Sync + 'static {
    /// What heartbeats say of it: group, model, subscriptions. Called for each heartbeat.
    fn data(&self) -> ConsumerData;
    /// A broker says that members of the group came or went, or a connection to a broker was opened again: divide the queues anew.
    fn rebalance(&self);
    /// An administrator resets offsets of a topic.
    fn reset_offsets(&self, topic: &str, offsets: Vec<(MessageQueue, i64)>);
    /// Offsets in memory of a topic's queues.
    fn offsets(&self, topic: &str) -> Vec<(MessageQueue, i64)>;
    /// Its state, for administrators.
    fn running_info(&self) -> BoxFuture<ConsumerRunningInfo>;
    /// An administrator wants this message consumed now.
    fn consume_directly(&self, message: ReceivedMessage) -> BoxFuture<ConsumeDirectlyResult>;
    /// The client is being shut down: stop taking messages, finish those at hand, commit, by `deadline`. The group is
    /// unregistered afterwards.
    fn drain(self: Arc<Self>, deadline: Instant) -> BoxFuture<()>;
}

/// A producer as its client sees it.
pub(crate) trait ProducerEndpoint: Send + Sync + 'static {
    /// A broker asks what became of a half message.
    fn check_transaction(self: Arc<Self>, check: TransactionCheck);
    /// Takes no more messages and waits for those on their way, until `deadline`.
    fn drain(self: Arc<Self>, deadline: Instant) -> BoxFuture<()>;
}

/// A broker's question about a half message.
#[derive(Debug)]
pub(crate) struct TransactionCheck {
    /// Who asks, and is answered.
    pub(crate) addr: Arc<str>,
    pub(crate) tran_state_table_offset: i64,
    pub(crate) commit_log_offset: i64,
    pub(crate) transaction_id: Option<String>,
    pub(crate) message: ReceivedMessage,
}

/// What a registration is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Producer,
    Consumer,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Producer => "producer",
            Kind::Consumer => "consumer",
        }
    }
}

/// A group's place in its client. When it is dropped the group leaves: brokers are told by a task of its own.
/// [`Registration::leave`] waits until they are.
#[derive(Debug)]
pub struct Registration {
    instance: Weak<Instance>,
    kind: Kind,
    group: String,
}

impl Registration {
    pub(crate) fn new(instance: Weak<Instance>, kind: Kind, group: String) -> Registration {
        Registration { instance, kind, group }
    }

    /// Leaves, and waits until every broker was told, or the client's call timeout is over. A broker that cannot be told sees the
    /// connection end.
    ///
    /// # Errors
    /// None so far; a broker that fails is logged.
    pub async fn leave(mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        if let Some(instance) = self.instance.upgrade() {
            instance.leave(self.kind, &group).await;
        }
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let group = std::mem::take(&mut self.group);
        if !group.is_empty()
            && let Some(instance) = self.instance.upgrade()
        {
            instance.leave_later(self.kind, group);
        }
    }
}
