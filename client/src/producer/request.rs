//! Requests that are answered by a message.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Form, Producer, Target};
use crate::deadline::{deadline, left};
use crate::error::{Error, Result};
use crate::message::{Message, ReceivedMessage, names};

/// The part of a request's time that a broker gets to hear of this client: one that is silent must leave time for the request.
const TELLING_SHARE: u32 = 4;

/// Requests that wait for their replies, by correlation id. Each is completed once, by whoever comes first: its reply, its time limit, or its end.
#[derive(Default)]
pub(crate) struct Replies {
    waiting: Mutex<HashMap<String, oneshot::Sender<ReceivedMessage>>>,
}

impl Replies {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<ReceivedMessage>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a reply to who waits for it; false when nobody does.
    pub(crate) fn deliver(&self, id: &str, reply: ReceivedMessage) -> bool {
        let waiter = self.waiting().remove(id);
        waiter.is_some_and(|waiter| waiter.send(reply).is_ok())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    fn expect(&self, id: &str) -> (Expected<'_>, oneshot::Receiver<ReceivedMessage>) {
        let (waiter, reply) = oneshot::channel();
        self.waiting().insert(id.to_owned(), waiter);
        (Expected { replies: self, id: id.to_owned() }, reply)
    }
}

/// A place in the table, given up when the request ends in whatever way.
struct Expected<'a> {
    replies: &'a Replies,
    id: String,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.replies.waiting().remove(&self.id);
    }
}

impl Producer {
    /// Sends a message and waits for the message that a consumer replies with, `timeout` in all. The replier makes it with
    /// [`Message::reply_to`] and sends it with any producer.
    ///
    /// Brokers must know this client for the reply to reach it; that is seen to first.
    ///
    /// # Errors
    /// As [`Producer::send`]; [`Error::NoReply`] when the request was stored but no reply came.
    pub async fn request(&self, message: Message, timeout: Duration) -> Result<ReceivedMessage> {
        let begun = Instant::now();
        let deadline = deadline(timeout);
        let id = correlation_id();
        let topic = message.topic().to_owned();
        let message = message
            .system(names::CORRELATION_ID, id.as_str())
            .system(names::REPLY_TO_CLIENT, self.client().id())
            .system(names::TTL, timeout.as_millis().to_string());
        let prepared = self.prepare(message, Form::Plain)?;
        self.tell_brokers(&topic, timeout, begun + left(deadline) / TELLING_SHARE).await?;
        let (_expected, mut reply) = self.shared.instance().replies.expect(&id);
        let sent = tokio::select! {
            biased;
            // A reply says that the request was stored, whatever became of the answer to the send.
            reply = &mut reply => return reply.map_err(|_| Error::Closed("the client")),
            sent = self.run(&prepared, Target::Next, left(deadline)) => sent,
        };
        match sent {
            Ok(_) => match timeout_at(deadline, &mut reply).await {
                Ok(Ok(reply)) => Ok(reply),
                _ => Err(Error::NoReply { topic, waited: begun.elapsed() }),
            },
            Err(failed) => reply.try_recv().map_err(|_| failed),
        }
    }
}

/// A random id in the form of a version 4 UUID.
fn correlation_id() -> String {
    let bits = fastrand::u128(..) & !(0xF << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        bits >> 96,
        bits >> 80 & 0xFFFF,
        bits >> 64 & 0xFFFF,
        bits >> 48 & 0xFFFF,
        bits & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> ReceivedMessage {
        let nowhere = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
        ReceivedMessage {
            queue: ringmq_net::body::MessageQueue::default(),
            queue_offset: 0,
            physical_offset: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: nowhere,
            store_timestamp: 0,
            store_host: nowhere,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: bytes::Bytes::new(),
            properties: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn a_reply_is_delivered_once_and_never_to_who_has_left() {
        let replies = Replies::default();
        let (expected, mut waiting) = replies.expect("id");
        assert!(!replies.deliver("other", reply()));
        assert!(replies.deliver("id", reply()));
        assert!(!replies.deliver("id", reply()), "a second reply has nobody to go to");
        assert!(waiting.try_recv().is_ok());
        drop(expected);
        let (expected, _waiting) = replies.expect("id");
        drop(expected);
        assert!(!replies.deliver("id", reply()));
        assert!(replies.waiting().is_empty());
    }

    #[test]
    fn correlation_ids_are_version_4_uuids() {
        let id = correlation_id();
        let bytes = id.as_bytes();
        assert_eq!((id.len(), bytes[8], bytes[13], bytes[14]), (36, b'-', b'-', b'4'));
        assert!(matches!(bytes[19], b'8' | b'9' | b'a' | b'b'), "{id}");
        assert_ne!(correlation_id(), id);
    }
}
