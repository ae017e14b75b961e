//! How a consumer group consumes, as its heartbeats say (stock 4.9.8's enumerations).

/// Pull or push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumeType {
    /// CONSUME_ACTIVELY: pull.
    Actively,
    /// CONSUME_PASSIVELY: push.
    Passively,
}

/// Clustering or broadcasting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageModel {
    /// BROADCASTING.
    Broadcasting,
    /// CLUSTERING.
    Clustering,
}

/// Where a new group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumeFromWhere {
    /// CONSUME_FROM_LAST_OFFSET.
    LastOffset,
    /// CONSUME_FROM_FIRST_OFFSET.
    FirstOffset,
    /// CONSUME_FROM_TIMESTAMP.
    Timestamp,
}
