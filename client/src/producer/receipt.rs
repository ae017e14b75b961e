//! What a broker says of a stored message.

use ringmq_net::body::MessageQueue;
use ringmq_net::code::response;
use ringmq_net::command::Command;

/// What is known of a stored message's durability. Every status means that the master has stored it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// As durable as the broker is configured to make it.
    Ok,
    /// Not flushed in time.
    FlushDiskTimeout,
    /// No slave confirmed in time.
    FlushSlaveTimeout,
    /// There is no slave to confirm.
    SlaveNotAvailable,
}

impl SendStatus {
    fn of(code: i32) -> Option<SendStatus> {
        Some(match code {
            response::SUCCESS => SendStatus::Ok,
            response::FLUSH_DISK_TIMEOUT => SendStatus::FlushDiskTimeout,
            response::FLUSH_SLAVE_TIMEOUT => SendStatus::FlushSlaveTimeout,
            response::SLAVE_NOT_AVAILABLE => SendStatus::SlaveNotAvailable,
            _ => return None,
        })
    }
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendReceipt {
    /// How durable it is.
    pub status: SendStatus,
    /// The unique id that this client gave it.
    pub message_id: String,
    /// The broker's id: where it is. Empty for a reply that was delivered and not stored.
    pub offset_message_id: String,
    /// Where it was stored.
    pub queue: MessageQueue,
    /// Its place in the queue.
    pub queue_offset: i64,
    /// The broker's transaction id; stock brokers give none.
    pub transaction_id: Option<String>,
    /// Region of the broker.
    pub region: String,
    /// May clients trace its messages?
    pub trace: bool,
    /// RingMQ only: the level that was reached, `memory`, `write` or `sync`.
    pub ack_level: Option<String>,
    /// RingMQ only: how many slaves hold it.
    pub ack_replicas: Option<u32>,
}

impl SendReceipt {
    /// Reads an answer to a send. `None`: it is a refusal; an error says what is missing.
    pub(super) fn read(
        reply: &Command,
        message_id: &str,
        queue: &MessageQueue,
    ) -> Option<Result<SendReceipt, String>> {
        let status = SendStatus::of(reply.code)?;
        let number = |field: &str| {
            let text = reply.ext(field).and_then(|text| text.parse().ok());
            text.ok_or_else(|| format!("ext field {field} is no number"))
        };
        let read = || {
            let queue_id = number("queueId")?;
            let queue_id = i32::try_from(queue_id).map_err(|_| format!("queue id {queue_id}"))?;
            Ok(SendReceipt {
                status,
                message_id: message_id.to_owned(),
                offset_message_id: reply.ext("msgId").unwrap_or_default().to_owned(),
                queue: MessageQueue { queue_id, ..queue.clone() },
                queue_offset: number("queueOffset")?,
                transaction_id: reply.ext("transactionId").map(str::to_owned),
                region: reply.ext("MSG_REGION").unwrap_or("DefaultRegion").to_owned(),
                trace: reply.ext("TRACE_ON") != Some("false"),
                ack_level: reply.ext("ackLevel").map(str::to_owned),
                ack_replicas: reply.ext("ackReplicas").and_then(|text| text.parse().ok()),
            })
        };
        Some(read())
    }

    /// The receipts of a batch's messages, out of that of the batch.
    pub(super) fn split(self, message_ids: Vec<String>) -> Vec<SendReceipt> {
        let places: Vec<&str> = self.offset_message_id.split(',').collect();
        let of = |(at, message_id): (usize, String)| SendReceipt {
            message_id,
            offset_message_id: places.get(at).copied().unwrap_or_default().to_owned(),
            queue_offset: self.queue_offset + at as i64,
            ..self.clone()
        };
        message_ids.into_iter().enumerate().map(of).collect()
    }
}
