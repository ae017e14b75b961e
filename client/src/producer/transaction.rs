//! Messages that become visible when a local transaction commits.
//!
//! ```text
//!  half message ──stored──► local transaction ──► commit: it is delivered   rollback: it is dropped
//!                                  │
//!                                  └─ unknown, lost, or this program ended: the broker asks a producer of the group
//! ```

use std::fmt;
use std::sync::Arc;

use ringmq_net::code::request;
use ringmq_net::command::Command;
use ringmq_net::headers::{EndTransactionHeader, transaction_action};
use ringmq_net::record::OffsetMessageId;
use tokio::sync::Semaphore;

use super::prepare::Form;
use super::receipt::{SendReceipt, SendStatus};
use super::send::{Limit, Target};
use super::{Producer, ProducerBuilder, Shared};
use crate::endpoint::{BoxFuture, TransactionCheck};
use crate::error::Result;
use crate::message::{Message, ReceivedMessage, names};

/// How a local transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// Deliver the message.
    Commit,
    /// Drop the message.
    Rollback,
    /// Not known yet: the broker asks again, and drops the message after its limit of questions.
    Unknown,
}

impl TransactionState {
    fn action(self) -> i32 {
        match self {
            TransactionState::Commit => transaction_action::COMMIT,
            TransactionState::Rollback => transaction_action::ROLLBACK,
            TransactionState::Unknown => transaction_action::UNKNOWN,
        }
    }
}

/// What answers a broker's question.
pub(crate) type CheckFn = Arc<dyn Fn(ReceivedMessage) -> BoxFuture<TransactionState> + Send + Sync>;

/// The questions of brokers, within bounds.
pub(crate) struct Checker {
    check: CheckFn,
    at_once: Arc<Semaphore>,
    held: Arc<Semaphore>,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

/// Makes a [`TransactionProducer`]. Begin with [`ProducerBuilder::transactional`].
#[must_use]
pub struct TransactionProducerBuilder {
    producer: ProducerBuilder,
    check: CheckFn,
    at_once: usize,
    held_max: usize,
}

impl fmt::Debug for TransactionProducerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionProducerBuilder")
            .field("producer", &self.producer)
            .finish_non_exhaustive()
    }
}

impl TransactionProducerBuilder {
    pub(super) fn new(producer: ProducerBuilder, check: CheckFn) -> Self {
        TransactionProducerBuilder { producer, check, at_once: 4, held_max: 2000 }
    }

    /// Most questions that are answered at once, and most that wait or are being answered; 4 and 2000, as stock. Further ones are
    /// dropped with a warning: the broker asks again.
    pub fn checks(mut self, at_once: usize, held_max: usize) -> Self {
        (self.at_once, self.held_max) = (at_once.max(1), held_max.max(1));
        self
    }

    /// The producer, see [`ProducerBuilder::start`]. Declare its topics with [`ProducerBuilder::topics`], so that brokers can ask about
    /// what an earlier run left open.
    ///
    /// # Errors
    /// As [`ProducerBuilder::start`].
    pub async fn start(self) -> Result<TransactionProducer> {
        let checker = Checker {
            check: self.check,
            at_once: Arc::new(Semaphore::new(self.at_once)),
            held: Arc::new(Semaphore::new(self.held_max)),
        };
        let producer = self.producer.start_with(Some(checker)).await?;
        Ok(TransactionProducer { producer })
    }
}

/// A message that was sent in a transaction.
#[derive(Clone, Debug)]
pub struct TransactionReceipt {
    /// Of the half message.
    pub send: SendReceipt,
    /// How the transaction ended.
    pub state: TransactionState,
}

/// Sends messages in transactions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TransactionProducer {
    producer: Producer,
}

impl TransactionProducer {
    /// The producer, for messages outside transactions and for [`Producer::shutdown`].
    #[must_use]
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Stores the message invisibly, runs `local` with its receipt, and ends the transaction as it says. `local` is not run when the half
    /// message was not stored, or not as durably as the broker should make it; the latter rolls back.
    ///
    /// That the end was told to the broker is not waited for: if it gets lost, the broker asks. The same holds when the future
    /// is dropped.
    ///
    /// # Errors
    /// As [`Producer::send`], of the half message.
    pub async fn send<L, F>(&self, message: Message, local: L) -> Result<TransactionReceipt>
    where
        L: FnOnce(SendReceipt) -> F,
        F: Future<Output = TransactionState>,
    {
        let prepared = self.producer.prepare(message, Form::Half)?;
        let shared = &self.producer.shared;
        let limit = Limit::new(shared.settings.send_timeout);
        // A transaction is on its way until its end was told: a shutdown waits for that.
        let work = async {
            let send = shared.send(&prepared, Target::Next, limit).await?;
            let state = match send.status {
                SendStatus::Ok => local(send.clone()).await,
                _ => TransactionState::Rollback,
            };
            if let Err(error) = shared.end_transaction(&send, state).await {
                tracing::warn!(%error, id = send.message_id, "the end of a transaction could not be told; the broker will ask");
            }
            Ok(TransactionReceipt { send, state })
        };
        shared.bounded(prepared.body.len(), limit.deadline, work).await
    }

    /// [`Producer::shutdown`].
    ///
    /// # Errors
    /// As [`Producer::shutdown`].
    pub async fn shutdown(&self) -> Result<()> {
        self.producer.shutdown().await
    }
}

impl Shared {
    async fn end_transaction(&self, send: &SendReceipt, state: TransactionState) -> Result<()> {
        let broker = &send.queue.broker_name;
        let none = || crate::Error::NoMaster { broker: broker.clone() };
        let addr = self.instance().routes.master(broker).ok_or_else(none)?;
        let place = OffsetMessageId::parse(&send.offset_message_id).map_err(|e| {
            crate::Error::Malformed {
                addr: addr.as_str().into(),
                request: request::SEND_MESSAGE_V2,
                what: format!("offset message id: {e}"),
            }
        })?;
        let header = EndTransactionHeader {
            producer_group: &self.settings.group,
            tran_state_table_offset: send.queue_offset,
            commit_log_offset: i64::try_from(place.physical_offset).unwrap_or(i64::MAX),
            commit_or_rollback: state.action(),
            from_transaction_check: false,
            msg_id: Some(&send.message_id),
            transaction_id: send.transaction_id.as_deref().or(Some(&send.message_id)),
        };
        let command = end_command(&header, &send.queue.topic);
        self.instance().remoting.oneway(&addr, &command, self.settings.send_timeout).await
    }
}

/// 5.x brokers read the topic too; others pass it over.
fn end_command(header: &EndTransactionHeader<'_>, topic: &str) -> Command {
    Command::request(request::END_TRANSACTION).with_header(&header.ext()).with_ext("topic", topic)
}

/// Answers a broker's question on a task of its own.
pub(super) fn check(shared: Arc<Shared>, question: TransactionCheck) {
    let group = &shared.settings.group;
    let Some(checker) = &shared.checker else {
        tracing::warn!(group, "a transaction is to be checked by a producer without transactions");
        return;
    };
    let Ok(held) = checker.held.clone().try_acquire_owned() else {
        tracing::warn!(
            group,
            "too many checks of transactions at once: one is dropped, the broker asks again"
        );
        return;
    };
    let (check, at_once) = (checker.check.clone(), checker.at_once.clone());
    let task = async move {
        let _held = held;
        let Ok(_turn) = at_once.acquire_owned().await else { return };
        let asked = question.message.clone();
        // On a task of its own, where a panic of the application's ends nothing else.
        let state = tokio::spawn(async move { check(asked).await }).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the check of a transaction failed, it stays unknown");
            TransactionState::Unknown
        });
        if let Err(error) = shared.answer_check(&question, state).await {
            tracing::warn!(%error, "the answer to a check could not be told; the broker asks again");
        }
    };
    tokio::spawn(task);
}

impl Shared {
    async fn answer_check(
        &self,
        question: &TransactionCheck,
        state: TransactionState,
    ) -> Result<()> {
        let message_id = question.message.message_id();
        let header = EndTransactionHeader {
            producer_group: &self.settings.group,
            tran_state_table_offset: question.tran_state_table_offset,
            commit_log_offset: question.commit_log_offset,
            commit_or_rollback: state.action(),
            from_transaction_check: true,
            msg_id: Some(question.message.property(names::UNIQ_KEY).unwrap_or(&message_id)),
            transaction_id: question.transaction_id.as_deref(),
        };
        let command = end_command(&header, question.message.topic());
        self.instance().remoting.oneway(&question.addr, &command, self.settings.send_timeout).await
    }
}
