//! The application's part of a push consumer.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::outcome::{BatchOutcome, IntoBatchOutcome, IntoOutcome, Outcome};
use crate::endpoint::BoxFuture;
use crate::message::ReceivedMessage;

/// Messages of one queue, in its order.
pub(crate) type Messages = Vec<Arc<ReceivedMessage>>;
/// What is called with messages.
pub(crate) type Listener = Arc<dyn Fn(Messages) -> BoxFuture<BatchOutcome> + Send + Sync>;

/// A listener of single messages.
pub(crate) fn single<L, F>(listener: L) -> Listener
where
    L: Fn(Arc<ReceivedMessage>) -> F + Send + Sync + 'static,
    F: Future<Output: IntoOutcome> + Send + 'static,
{
    Arc::new(move |messages: Messages| {
        // Batches have one message; of more, each would be called in turn.
        let calls: Vec<F> = messages.into_iter().map(&listener).collect();
        Box::pin(async move {
            for (consumed, call) in calls.into_iter().enumerate() {
                match call.await.into_outcome() {
                    Outcome::Consumed => {}
                    rest => return BatchOutcome { consumed, rest },
                }
            }
            BatchOutcome { consumed: 0, rest: Outcome::Consumed }
        })
    })
}

/// A listener of batches.
pub(crate) fn batches<L, F>(listener: L) -> Listener
where
    L: Fn(Messages) -> F + Send + Sync + 'static,
    F: Future<Output: IntoBatchOutcome> + Send + 'static,
{
    Arc::new(move |messages| {
        let call = listener(messages);
        Box::pin(async move { call.await.into_batch_outcome() })
    })
}

/// How a call ended.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The listener returned.
    Returned(BatchOutcome),
    /// It panicked, with that text.
    Panicked(String),
    /// It was stopped.
    Stopped,
}

/// What happens to a call that is to be stopped. One that blocks its thread instead of waiting cannot be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// Nobody waits for its end.
    LeaveIt,
    /// It has ended when this returns.
    AwaitEnd,
}

/// Calls a listener on a task of its own, so that a panic ends nothing else, until `stop`. The permit is given back when the call has really ended.
pub(crate) async fn run(
    listener: &Listener,
    messages: Messages,
    permit: Option<OwnedSemaphorePermit>,
    stop: impl Future<Output = ()>,
    stopping: Stopping,
) -> Ran {
    let listener = listener.clone();
    let mut call = tokio::spawn(async move {
        let _permit = permit;
        listener(messages).await
    });
    let ended = tokio::select! {
        ended = &mut call => ended,
        () = stop => {
            call.abort();
            match stopping {
                Stopping::LeaveIt => return Ran::Stopped,
                // It may have returned in the same moment.
                Stopping::AwaitEnd => call.await,
            }
        }
    };
    match ended {
        Ok(outcome) => Ran::Returned(outcome),
        Err(error) if error.is_panic() => Ran::Panicked(panic_text(error.into_panic())),
        Err(_) => Ran::Stopped,
    }
}

fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::fixture::message;
    use tokio::sync::Semaphore;

    fn one() -> Messages {
        vec![Arc::new(message("T", 1, ""))]
    }

    #[tokio::test]
    async fn a_panic_is_an_outcome_and_gives_its_permit_back() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = permits.clone().acquire_owned().await.ok();
        let listener = single(|message| async move { assert_eq!(message.queue_offset, 2) });
        let never = std::future::pending();
        match run(&listener, one(), permit, never, Stopping::LeaveIt).await {
            Ran::Panicked(text) => assert!(text.contains("left"), "{text}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_call_that_waits_can_be_stopped() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = permits.clone().acquire_owned().await.ok();
        let listener = single(|_| std::future::pending::<()>());
        let stop = async {};
        let ran = run(&listener, one(), permit, stop, Stopping::AwaitEnd).await;
        assert!(matches!(ran, Ran::Stopped));
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn the_rest_of_a_batch_fails_behind_the_first_failure() {
        let listener =
            single(
                |message| async move { if message.queue_offset == 1 { Err("no") } else { Ok(()) } },
            );
        let three = (0..3).map(|offset| Arc::new(message("T", offset, ""))).collect();
        let never = std::future::pending();
        let Ran::Returned(outcome) = run(&listener, three, None, never, Stopping::LeaveIt).await
        else {
            panic!("it returns")
        };
        assert_eq!((outcome.consumed, outcome.rest), (1, Outcome::Retry));
    }
}
