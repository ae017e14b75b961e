//! Tables of queue offsets: consumers', delay levels', resets.

use std::collections::BTreeMap;

use super::{Body, BodyError, MessageQueue, items, key_long, key_text, long, pairs};
use crate::json::{Limits, Value, Writer};

fn offset_of(value: &Value<'_>, field: &'static str) -> Result<i64, BodyError> {
    value.as_i64().ok_or(BodyError::Shape { field, wanted: "a table of offsets" })
}

fn queue_key(key: &Value<'_>, field: &'static str) -> Result<i32, BodyError> {
    let id = key_long(key, field)?;
    i32::try_from(id).map_err(|_| BodyError::Shape { field, wanted: "keyed by queue ids" })
}

/// All progress of all groups: the answer to GET_ALL_CONSUMER_OFFSET (43) and `consumerOffset.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerOffsetTable {
    /// Offsets by queue id, by `topic@group`.
    pub offsets: BTreeMap<String, BTreeMap<i32, i64>>,
}

impl Body for ConsumerOffsetTable {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut offsets = BTreeMap::new();
        for (key, queues) in pairs(value, "offsetTable")? {
            let mut by_queue = BTreeMap::new();
            for (id, offset) in queues.pairs() {
                by_queue.insert(queue_key(id, "offsetTable")?, offset_of(offset, "offsetTable")?);
            }
            offsets.insert(key_text(key, "offsetTable")?, by_queue);
        }
        Ok(ConsumerOffsetTable { offsets })
    }

    fn write(&self, w: &mut Writer) {
        let rows = self.offsets.iter();
        write_consumer_offsets(w, rows.map(|(key, q)| (key, q.iter().map(|(id, at)| (*id, *at)))));
    }
}

/// Writes a [`ConsumerOffsetTable`] out of the caller's own: `topic@group` with (queue id, offset) pairs.
pub fn write_consumer_offsets<K: AsRef<str>>(
    w: &mut Writer,
    rows: impl IntoIterator<Item = (K, impl IntoIterator<Item = (i32, i64)>)>,
) {
    w.begin_object();
    w.key("offsetTable");
    w.begin_object();
    for (key, queues) in rows {
        w.key(key.as_ref());
        w.begin_object();
        for (id, offset) in queues {
            w.key_i64(i64::from(id));
            w.i64(offset);
        }
        w.end_object();
    }
    w.end_object();
    w.end_object();
}

/// Progress of the delay levels: the answer to GET_ALL_DELAY_OFFSET (45) and `delayOffset.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayOffsetTable {
    /// Offsets by level.
    pub offsets: BTreeMap<i32, i64>,
}

impl Body for DelayOffsetTable {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(DelayOffsetTable { offsets: by_queue_id(value, "offsetTable")? })
    }

    fn write(&self, w: &mut Writer) {
        write_by_queue_id(w, "offsetTable", &self.offsets);
    }
}

/// The answer to QUERY_CORRECTION_OFFSET (308).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorrectionOffsets {
    /// Offsets by queue id.
    pub offsets: BTreeMap<i32, i64>,
}

impl Body for CorrectionOffsets {
    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        Ok(CorrectionOffsets { offsets: by_queue_id(value, "correctionOffsets")? })
    }

    fn write(&self, w: &mut Writer) {
        write_by_queue_id(w, "correctionOffsets", &self.offsets);
    }
}

fn by_queue_id(value: &Value<'_>, field: &'static str) -> Result<BTreeMap<i32, i64>, BodyError> {
    let rows = pairs(value, field)?.iter();
    rows.map(|(id, offset)| Ok((queue_key(id, field)?, offset_of(offset, field)?))).collect()
}

fn write_by_queue_id(w: &mut Writer, field: &'static str, offsets: &BTreeMap<i32, i64>) {
    w.begin_object();
    w.key(field);
    w.begin_object();
    for (id, offset) in offsets {
        w.key_i64(i64::from(*id));
        w.i64(*offset);
    }
    w.end_object();
    w.end_object();
}

/// Offsets to take: RESET_CONSUMER_CLIENT_OFFSET (220) to clients, the answer to 222.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResetOffset {
    /// Offsets by queue.
    pub offsets: Vec<(MessageQueue, i64)>,
}

impl ResetOffset {
    /// The list form, which C++ clients need.
    #[must_use]
    pub fn to_list_json(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.begin_object();
        w.key("offsetTable");
        w.begin_array();
        for (queue, offset) in &self.offsets {
            w.begin_object();
            w.field_str("brokerName", &queue.broker_name);
            w.field_i64("offset", *offset);
            w.field_i64("queueId", queue.queue_id);
            w.field_str("topic", &queue.topic);
            w.end_object();
        }
        w.end_array();
        w.end_object();
        w.finish()
    }
}

/// Written with objects as keys (Java and Go); both forms are read.
impl Body for ResetOffset {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let offsets = match value.get("offsetTable") {
            Some(Value::Array(_)) => items(value, "offsetTable")?
                .iter()
                .map(|row| Ok((MessageQueue::read(row)?, long(row, "offset", 0)?)))
                .collect::<Result<_, BodyError>>()?,
            _ => read_by_queue(pairs(value, "offsetTable")?)?,
        };
        Ok(ResetOffset { offsets })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("offsetTable");
        write_by_queue(w, &self.offsets);
        w.end_object();
    }
}

fn read_by_queue(pairs: &[(Value<'_>, Value<'_>)]) -> Result<Vec<(MessageQueue, i64)>, BodyError> {
    let rows = pairs.iter();
    rows.map(|(key, at)| Ok((MessageQueue::from_key(key)?, offset_of(at, "offsetTable")?)))
        .collect()
}

fn write_by_queue(w: &mut Writer, offsets: &[(MessageQueue, i64)]) {
    w.begin_object();
    for (queue, offset) in offsets {
        queue.write_key(w);
        w.i64(*offset);
    }
    w.end_object();
}

/// Where consumers are: a client's answer to 221 (its own queues) and the broker's to 223 (by client).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerStatus {
    /// By client id; of a client's answer, empty.
    pub clients: BTreeMap<String, Vec<(MessageQueue, i64)>>,
    /// The answering client's own; of a broker's answer, empty.
    pub queues: Vec<(MessageQueue, i64)>,
}

impl Body for ConsumerStatus {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let mut clients = BTreeMap::new();
        for (client, table) in pairs(value, "consumerTable")? {
            clients.insert(key_text(client, "consumerTable")?, read_by_queue(table.pairs())?);
        }
        Ok(ConsumerStatus { clients, queues: read_by_queue(pairs(value, "messageQueueTable")?)? })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        w.key("consumerTable");
        w.begin_object();
        for (client, table) in &self.clients {
            w.key(client);
            write_by_queue(w, table);
        }
        w.end_object();
        w.key("messageQueueTable");
        write_by_queue(w, &self.queues);
        w.end_object();
    }
}
