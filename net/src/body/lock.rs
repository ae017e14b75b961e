//! Locks of orderly consumers: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

use super::{Body, BodyError, MessageQueue, bodies, required_text, write_bodies};
use crate::json::{Value, Writer};

/// The request of both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockBatch {
    /// Who locks. Locks belong to a client id, not to a connection.
    pub client_id: String,
    /// Group.
    pub consumer_group: String,
    /// The queues.
    pub queues: Vec<MessageQueue>,
}

impl Body for LockBatch {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(LockBatch {
            client_id: required_text(value, "clientId")?,
            consumer_group: required_text(value, "consumerGroup")?,
            queues: bodies(value, "mqSet")?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.field_str("clientId", &self.client_id);
        w.field_str("consumerGroup", &self.consumer_group);
        write_bodies(w, "mqSet", &self.queues);
        w.end_object();
    }
}

/// The answer to a lock request: what the client now holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockOk {
    /// The queues, perhaps none.
    pub queues: Vec<MessageQueue>,
}

impl Body for LockOk {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(LockOk { queues: bodies(value, "lockOKMQSet")? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        write_bodies(w, "lockOKMQSet", &self.queues);
        w.end_object();
    }
}
