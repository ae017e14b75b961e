//! Messages for unit tests.

use std::net::SocketAddr;

use ringmq_net::body::MessageQueue;

use crate::message::{ReceivedMessage, parse_properties};

/// A message of queue 0 of `broker-a` with properties as they travel, `TAGS\u{1}a`.
pub(crate) fn message(topic: &str, offset: i64, properties: &str) -> ReceivedMessage {
    let host = SocketAddr::from(([127, 0, 0, 1], 10911));
    ReceivedMessage {
        queue: MessageQueue::new(topic, "broker-a", 0),
        queue_offset: offset,
        physical_offset: offset * 100,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: host,
        store_timestamp: 2,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: format!("body {offset}").into(),
        properties: parse_properties(properties),
    }
}
