//! Consumers against a broker that is a table in memory, whose every answer a test can replace.

mod control;
mod orderly;
mod progress;
mod pulling;
mod pulls;
mod retries;
mod world;

use std::sync::Arc;
use std::time::Duration;

use ringmq_net::body::MessageQueue;
use tokio::sync::mpsc;

use super::*;
use crate::ReceivedMessage;
use crate::fake::{React, eventually, ok, refusal};
use world::World;

/// A limit that no test reaches.
const LONG: Duration = Duration::from_secs(20);

/// Where a listener puts what it got.
fn inbox() -> (mpsc::UnboundedSender<Arc<ReceivedMessage>>, Inbox) {
    let (send, receive) = mpsc::unbounded_channel();
    (send, Inbox(receive))
}

/// A listener that puts there what it gets, and is done with it.
fn into_inbox(
    send: mpsc::UnboundedSender<Arc<ReceivedMessage>>,
) -> impl Fn(Arc<ReceivedMessage>) -> std::future::Ready<()> + Send + Sync + 'static {
    move |message| {
        drop(send.send(message));
        std::future::ready(())
    }
}

/// What a listener got.
struct Inbox(mpsc::UnboundedReceiver<Arc<ReceivedMessage>>);

impl Inbox {
    async fn next(&mut self) -> Arc<ReceivedMessage> {
        let next = tokio::time::timeout(LONG, self.0.recv()).await;
        next.expect("a message comes").expect("the listener is there")
    }

    /// Queue offsets of the next messages, in the order in which they came.
    async fn offsets(&mut self, count: usize) -> Vec<i64> {
        let mut offsets = Vec::new();
        while offsets.len() < count {
            offsets.push(self.next().await.queue_offset);
        }
        offsets
    }

    fn is_empty(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

/// A consumer of group `g` with short pauses.
fn consumer(world: &World) -> ConsumerBuilder {
    let builder = world.client().consumer("g").subscribe("T", "*");
    builder.consume_from(ConsumeFrom::First).long_poll(Duration::from_secs(2)).timing(|timing| {
        timing.rebalance_again = Duration::from_millis(20);
        timing.lock_again = Duration::from_millis(20);
        timing.local_retry = Duration::from_millis(50);
        timing.pull_again = Duration::from_millis(5);
        timing.pull_again_max = Duration::from_millis(50);
    })
}
