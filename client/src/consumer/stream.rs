//! A pull consumer as a stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;

use super::pull_consumer::{Given, PullConsumer};
use crate::endpoint::BoxFuture;
use crate::error::{Error, Result};
use crate::message::ReceivedMessage;

/// How long one poll waits; then another one does.
const POLL: Duration = Duration::from_secs(5);

/// The messages of a [`PullConsumer`], one by one; it ends when the consumer is shut down. Messages that were pulled and not taken when it is
/// dropped come again.
#[must_use = "a stream does nothing unless it is polled"]
pub struct MessageStream {
    consumer: PullConsumer,
    /// One message each, which nobody has seen.
    waiting: VecDeque<Given>,
    poll: Option<BoxFuture<Result<Option<Given>>>>,
}

impl std::fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageStream")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl MessageStream {
    pub(super) fn new(consumer: PullConsumer) -> MessageStream {
        MessageStream { consumer, waiting: VecDeque::new(), poll: None }
    }

    /// The next message; `None` when the consumer is shut down. For whoever has no trait of streams at hand. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Arc<ReceivedMessage>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for MessageStream {
    type Item = Arc<ReceivedMessage>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            while let Some(given) = this.waiting.pop_front() {
                // The queue was given up or sought in: it comes again, if it is to.
                if given.queue.epoch() != given.epoch {
                    continue;
                }
                let message = given.messages.first().cloned();
                this.consumer.seen(given);
                if message.is_some() {
                    return Poll::Ready(message);
                }
            }
            let consumer = &this.consumer;
            let poll = this.poll.get_or_insert_with(|| {
                let consumer = consumer.clone();
                Box::pin(async move { consumer.poll_unseen(POLL).await })
            });
            let polled = ready!(poll.as_mut().poll(context));
            this.poll = None;
            match polled {
                Ok(given) => this.waiting.extend(given.into_iter().flat_map(single)),
                Err(Error::Closed(_)) => return Poll::Ready(None),
                Err(error) => {
                    // Polls fail at the end of a consumer only.
                    tracing::debug!(%error, "a stream ends");
                    return Poll::Ready(None);
                }
            }
        }
    }
}

/// One for each message.
fn single(given: Given) -> impl Iterator<Item = Given> {
    let Given { queue, epoch, messages } = given;
    messages.into_iter().map(move |message| Given {
        queue: queue.clone(),
        epoch,
        messages: vec![message],
    })
}

impl Drop for MessageStream {
    fn drop(&mut self) {
        self.consumer.unseen(self.waiting.drain(..));
    }
}
