//! Settings of producers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ringmq_net::code::response;

use super::fault::LatencyFault;
use super::transaction::{CheckFn, TransactionProducerBuilder, TransactionState};
use super::{Producer, Shared};
use crate::client::Client;
use crate::compress::Compression;
use crate::error::Result;
use crate::message::ReceivedMessage;
use crate::validate;

/// "The broker is shutting down" of stock 5.x.
const GO_AWAY: i32 = 1500;
/// Not sent by any broker of today, but retried by stock.
const NO_BUYER_ID: i32 = 204;
/// A try is not cut shorter than this unless the call is.
const TRY_MIN: Duration = Duration::from_secs(1);

/// What a producer goes by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) group: String,
    pub(super) send_timeout: Duration,
    pub(super) try_timeout: Option<Duration>,
    pub(super) retries: u32,
    pub(super) retry_codes: BTreeSet<i32>,
    pub(super) retry_not_stored: bool,
    pub(super) body_bytes_max: usize,
    pub(super) compress_from: usize,
    pub(super) compression: Compression,
    pub(super) compression_level: u32,
    pub(super) in_flight_max: usize,
    pub(super) in_flight_bytes_max: usize,
    pub(super) latency_fault: Option<LatencyFault>,
    pub(super) topics: Vec<String>,
}

impl Settings {
    /// Stock's defaults, and those of stock 5.x where 4.9.8 has none or a defect.
    pub(super) fn new(group: &str) -> Settings {
        Settings {
            group: group.to_owned(),
            send_timeout: Duration::from_secs(3),
            try_timeout: None,
            retries: 2,
            retry_codes: BTreeSet::from([
                response::SYSTEM_ERROR,
                response::SYSTEM_BUSY,
                response::SERVICE_NOT_AVAILABLE,
                response::NO_PERMISSION,
                response::TOPIC_NOT_EXIST,
                NO_BUYER_ID,
                response::NOT_IN_CURRENT_UNIT,
                GO_AWAY,
            ]),
            retry_not_stored: false,
            body_bytes_max: ringmq_net::record::BODY_BYTES_MAX_DEFAULT,
            compress_from: 4096,
            compression: Compression::default(),
            compression_level: 5,
            in_flight_max: 10_000,
            in_flight_bytes_max: 100 << 20,
            latency_fault: None,
            topics: Vec::new(),
        }
    }

    /// What one try may take of `left` while `tries_left` (this one included) remain: a broker that is silent must leave time for
    /// another one.
    pub(super) fn share(&self, left: Duration, tries_left: u32) -> Duration {
        if tries_left <= 1 {
            return left;
        }
        let share = self.try_timeout.unwrap_or_else(|| (left / tries_left).max(TRY_MIN));
        share.min(left)
    }
}

/// Makes a [`Producer`]. Begin with [`Client::producer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ProducerBuilder {
    client: Client,
    settings: Settings,
}

impl ProducerBuilder {
    pub(crate) fn new(client: Client, group: String) -> ProducerBuilder {
        ProducerBuilder { client, settings: Settings::new(&group) }
    }

    /// Topics that this producer will send to. Their brokers are told of the producer at its start: without it they hear of it with the first
    /// send. Needed for checks of transactions that an earlier run left open.
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.settings.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// What a send may take in all, retries and waiting for room included; 3 s.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.settings.send_timeout = timeout;
        self
    }

    /// What one try may take while others remain. Default: an equal share of the rest, but at least 1 s.
    pub fn try_timeout(mut self, timeout: Duration) -> Self {
        self.settings.try_timeout = Some(timeout.max(Duration::from_millis(1)));
        self
    }

    /// Further tries after the first; 2. A retry may store a message twice: its unique id is the same then.
    pub fn retries(mut self, retries: u32) -> Self {
        self.settings.retries = retries;
        self
    }

    /// One more response code after which a send is tried again.
    pub fn retry_code(mut self, code: i32) -> Self {
        self.settings.retry_codes.insert(code);
        self
    }

    /// Whether to try another broker when the message was stored but not flushed or replicated in time; no. It is then stored more
    /// than once.
    pub fn retry_when_not_durable(mut self, retry: bool) -> Self {
        self.settings.retry_not_stored = retry;
        self
    }

    /// Longest body, before compression; 4 MiB. Brokers have the same limit.
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.body_bytes_max = bytes;
        self
    }

    /// How bodies of at least `from_bytes` are compressed; zlib from 4096 bytes on. `usize::MAX` compresses none.
    pub fn compression(mut self, compression: Compression, from_bytes: usize) -> Self {
        self.settings.compression = compression;
        self.settings.compress_from = from_bytes;
        self
    }

    /// Level of zlib, 0 to 9; 5.
    pub fn compression_level(mut self, level: u32) -> Self {
        self.settings.compression_level = level;
        self
    }

    /// Most sends at once, and most bytes of their bodies; 10,000 and 100 MiB. Further ones wait within their time limit and then
    /// fail with [`crate::Error::Busy`].
    pub fn in_flight_max(mut self, sends: usize, bytes: usize) -> Self {
        self.settings.in_flight_max = sends.max(1);
        self.settings.in_flight_bytes_max = bytes.max(1);
        self
    }

    /// Leaves out brokers that failed or were slow for a while; off unless set. [`LatencyFault::default`] is stock's.
    pub fn latency_fault(mut self, settings: LatencyFault) -> Self {
        self.settings.latency_fault = Some(settings);
        self
    }

    /// A producer that sends in transactions. `check` is asked by brokers about messages whose transaction has not ended, perhaps
    /// by another producer of the group or before a restart: it must answer from what all producers of the group share. A panic counts as
    /// [`TransactionState::Unknown`].
    pub fn transactional<C, F>(self, check: C) -> TransactionProducerBuilder
    where
        C: Fn(ReceivedMessage) -> F + Send + Sync + 'static,
        F: Future<Output = TransactionState> + Send + 'static,
    {
        let check: CheckFn = Arc::new(move |message| Box::pin(check(message)));
        TransactionProducerBuilder::new(self, check)
    }

    /// The producer. Resolves the declared topics and tells their brokers; without any, nothing is sent yet.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for the group's name, [`crate::Error::GroupTaken`], and for declared topics those of a route request.
    pub async fn start(self) -> Result<Producer> {
        self.start_with(None).await
    }

    /// A producer that no heartbeat names: consumers send failed messages on with it.
    pub(crate) fn unregistered(self) -> Producer {
        Producer { shared: Shared::new(self.client, self.settings, None) }
    }

    pub(super) async fn start_with(
        self,
        checker: Option<super::transaction::Checker>,
    ) -> Result<Producer> {
        validate::group(&self.settings.group)?;
        let shared = Shared::start(self.client, self.settings, checker)?;
        let producer = Producer { shared };
        producer.announce().await?;
        Ok(producer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_leaves_time_for_the_next_one() {
        let mut settings = Settings::new("g");
        let s = Duration::from_secs;
        assert_eq!(settings.share(s(3), 3), s(1));
        assert_eq!(settings.share(s(2), 1), s(2));
        assert_eq!(settings.share(s(30), 3), s(10));
        // Too little for all: the try gets its second, or what is left.
        assert_eq!(settings.share(s(2), 3), s(1));
        assert_eq!(settings.share(Duration::from_millis(300), 3), Duration::from_millis(300));
        settings.try_timeout = Some(Duration::from_millis(50));
        assert_eq!(settings.share(s(3), 3), Duration::from_millis(50));
    }

    #[test]
    fn a_busy_broker_is_in_the_retry_set() {
        assert!(Settings::new("g").retry_codes.contains(&response::SYSTEM_BUSY));
        assert!(!Settings::new("g").retry_codes.contains(&response::MESSAGE_ILLEGAL));
    }
}
