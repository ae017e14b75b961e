//! Bodies of requests and replies: typed, read leniently and written to the byte as stock does.
//!
//! Every type is a [`Body`]. Fields of a written object are sorted by name and those without a value are
//! left out, since that is what fastjson does and what foreign clients were written against. On reading,
//! unknown fields are skipped, absent ones have the default a Java peer would have.

use thiserror::Error;

use crate::json::{JsonError, Limits, Value, Writer};

mod client;
mod group;
mod heartbeat;
mod list;
mod lock;
mod offset;
pub mod properties;
mod queue;
mod register;
mod route;
mod running;
mod stats;
mod topic;

pub use client::{
    CheckClientConfig, Connection, ConsumerConnection, ConsumerList, ProducerConnection,
    ProducerInfo, ProducerTable,
};
pub use group::{SubscriptionGroupConfig, SubscriptionGroupTable, write_group_table};
pub use heartbeat::{
    ConsumeFrom, ConsumeType, ConsumerData, Heartbeat, MessageModel, SubscriptionData,
};
pub use list::{GroupList, KvTable, TopicList};
pub use lock::{LockBatch, LockOk};
pub use offset::{
    ConsumerOffsetTable, ConsumerStatus, CorrectionOffsets, DelayOffsetTable, ResetOffset,
    write_consumer_offsets,
};
pub use queue::MessageQueue;
pub use register::{INFLATED_BYTES_MAX, RegisterBroker, body_crc32};
pub use route::{BrokerData, ClusterInfo, QueueData, TopicRouteData};
pub use running::{ConsumeDirectlyResult, ConsumeStatus, ConsumerRunningInfo, ProcessQueueInfo};
pub use stats::{
    BrokerStats, BrokerStatsItem, ConsumeQueueBody, ConsumeQueueUnit, ConsumeStats,
    ConsumeStatsList, ConsumeTimeSpan, ConsumeTimeSpans, OffsetPair, TopicOffset, TopicStats,
};
pub use topic::{DataVersion, TopicConfig, TopicConfigTable, TopicFilterType, write_topic_table};

/// Why a body cannot be used: answer code 1 with this text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BodyError {
    /// Not JSON, or over a bound.
    #[error("body is not readable: {0}")]
    Json(#[from] JsonError),
    /// JSON of another shape.
    #[error("body field {field} is not {wanted}")]
    Shape {
        /// The field; `body` means the whole.
        field: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// A field that the body cannot do without.
    #[error("body field {field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// The binary form of a registration.
    #[error("compressed registration is not readable: {what}")]
    Compressed {
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Something that travels as a JSON body.
pub trait Body: Sized {
    /// What reading one may cost.
    const LIMITS: Limits = Limits::SMALL;

    /// Reads the value that the document consists of.
    ///
    /// # Errors
    /// A field has the wrong shape or is missing.
    fn read(value: &Value<'_>) -> Result<Self, BodyError>;

    /// Writes the value that the document consists of.
    fn write(&self, w: &mut Writer);

    /// Reads a body's bytes; those that are not UTF-8 become replacement characters, as in Java.
    ///
    /// # Errors
    /// Malformed JSON, a bound, or a field.
    fn from_json(bytes: &[u8]) -> Result<Self, BodyError> {
        let text = String::from_utf8_lossy(bytes);
        let value = Value::parse_within(&text, Self::LIMITS)?;
        if !matches!(value, Value::Object(_)) {
            return Err(BodyError::Shape { field: "body", wanted: "an object" });
        }
        Self::read(&value)
    }

    /// The body's bytes in fastjson's plain dialect.
    fn to_json(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.write(&mut w);
        w.finish()
    }
}

// Field access in the words of this module. Absent and null are the same.

fn text(value: &Value<'_>, field: &'static str) -> Result<String, BodyError> {
    Ok(opt_text(value, field)?.unwrap_or_default())
}

fn opt_text(value: &Value<'_>, field: &'static str) -> Result<Option<String>, BodyError> {
    let Some(found) = value.get(field) else { return Ok(None) };
    let text = found.to_text().ok_or(BodyError::Shape { field, wanted: "a string" })?;
    Ok(Some(text))
}

fn required_text(value: &Value<'_>, field: &'static str) -> Result<String, BodyError> {
    opt_text(value, field)?.ok_or(BodyError::Missing { field })
}

fn long(value: &Value<'_>, field: &'static str, default: i64) -> Result<i64, BodyError> {
    let Some(found) = value.get(field) else { return Ok(default) };
    found.as_i64().ok_or(BodyError::Shape { field, wanted: "a whole number" })
}

fn int(value: &Value<'_>, field: &'static str, default: i32) -> Result<i32, BodyError> {
    let Some(found) = value.get(field) else { return Ok(default) };
    found.as_i32().ok_or(BodyError::Shape { field, wanted: "a 32-bit number" })
}

fn double(value: &Value<'_>, field: &'static str) -> Result<f64, BodyError> {
    let Some(found) = value.get(field) else { return Ok(0.0) };
    found.as_f64().ok_or(BodyError::Shape { field, wanted: "a number" })
}

fn boolean(value: &Value<'_>, field: &'static str, default: bool) -> Result<bool, BodyError> {
    let Some(found) = value.get(field) else { return Ok(default) };
    found.as_bool().ok_or(BodyError::Shape { field, wanted: "a boolean" })
}

/// The elements of an array; none when it is absent.
fn items<'v, 'a>(value: &'v Value<'a>, field: &'static str) -> Result<&'v [Value<'a>], BodyError> {
    match value.get(field) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(BodyError::Shape { field, wanted: "an array" }),
    }
}

/// The pairs of an object; none when it is absent.
fn pairs<'v, 'a>(
    value: &'v Value<'a>,
    field: &'static str,
) -> Result<&'v [(Value<'a>, Value<'a>)], BodyError> {
    match value.get(field) {
        None => Ok(&[]),
        Some(Value::Object(pairs)) => Ok(pairs),
        Some(_) => Err(BodyError::Shape { field, wanted: "an object" }),
    }
}

/// An array of strings; null elements are dropped.
fn texts(value: &Value<'_>, field: &'static str) -> Result<Vec<String>, BodyError> {
    Ok(items(value, field)?.iter().filter_map(Value::to_text).collect())
}

/// Reads each element of an array as a body of its own.
fn bodies<B: Body>(value: &Value<'_>, field: &'static str) -> Result<Vec<B>, BodyError> {
    items(value, field)?.iter().map(B::read).collect()
}

/// Writes an array of bodies under a name.
fn write_bodies<'b, B: Body + 'b>(
    w: &mut Writer,
    field: &'static str,
    bodies: impl IntoIterator<Item = &'b B>,
) {
    w.key(field);
    w.begin_array();
    for body in bodies {
        body.write(w);
    }
    w.end_array();
}

/// The key of a pair as text.
fn key_text(key: &Value<'_>, field: &'static str) -> Result<String, BodyError> {
    key.to_text().ok_or(BodyError::Shape { field, wanted: "an object with string keys" })
}

/// The key of a pair as a number, bare or quoted.
fn key_long(key: &Value<'_>, field: &'static str) -> Result<i64, BodyError> {
    key.as_i64().ok_or(BodyError::Shape { field, wanted: "an object with number keys" })
}

#[cfg(test)]
mod tests;
