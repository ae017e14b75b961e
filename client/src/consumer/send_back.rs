//! What becomes of messages that failed.

use std::sync::PoisonError;

use super::member::Member;
use super::outcome::{Again, RETRIES_USUAL, retry_message};
use super::queue::Queue;
use crate::broker::SendBack;
use crate::error::{Error, Result};
use crate::message::ReceivedMessage;

impl Member {
    /// Gives a message back to its broker at that delay level, or sends it to the retry topic if the broker does not take it. Gives
    /// whether one of them worked.
    pub(crate) async fn give_back(
        &self,
        queue: &Queue,
        message: &ReceivedMessage,
        level: i32,
    ) -> bool {
        let max = self.settings.retries.unwrap_or(RETRIES_USUAL);
        let error = match self.try_give_back(queue, message, level, max).await {
            Ok(()) => return true,
            Err(error) => error,
        };
        tracing::debug!(id = message.message_id(), %error, "a broker does not take a message back, it is sent to the retry topic");
        let again = if level < 0 { Again::Never } else { Again::Later { max } };
        self.send_on(message, again).await
    }

    async fn try_give_back(
        &self,
        queue: &Queue,
        message: &ReceivedMessage,
        level: i32,
        max: i32,
    ) -> Result<()> {
        let (broker, id) = self.instance.queue_broker(&queue.id, 0).await?;
        if id != 0 {
            return Err(Error::NoMaster { broker: queue.id.broker_name.clone() });
        }
        let back = SendBack {
            group: self.group(),
            physical_offset: message.physical_offset,
            delay_level: level,
            origin_message_id: &message.offset_message_id(),
            origin_topic: message.topic(),
            max_reconsume_times: max,
        };
        broker.send_back(&back).await
    }

    /// Makes a message a dead letter.
    pub(crate) async fn bury(&self, message: &ReceivedMessage) -> bool {
        self.send_on(message, Again::Never).await
    }

    async fn send_on(&self, message: &ReceivedMessage, again: Again) -> bool {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(sender) = sender else { return false };
        match sender.send(retry_message(message, self.group(), again)).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(id = message.message_id(), %error, "a failed message could not be sent to the retry topic");
                false
            }
        }
    }
}
