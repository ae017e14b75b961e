//! What a consumer goes by.

use std::path::PathBuf;
use std::time::Duration;

use super::allocate::Allocate;
use super::process_queue::CacheLimits;
use super::start::ConsumeFrom;
use super::subscription::Filter;
use crate::error::{Error, Result};
use crate::validate;

/// Who gets a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Model {
    /// One member of the group.
    #[default]
    Clustering,
    /// Every member; progress is in this directory.
    Broadcasting(PathBuf),
}

/// Stock's values, some of which stock does not let one set.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    /// Between two looks at who has which queue, if nothing happens before.
    pub(crate) rebalance: Duration,
    /// Until the next look after one that came to no result.
    pub(crate) rebalance_again: Duration,
    /// Between two writes of progress.
    pub(crate) persist: Duration,
    /// Between two renewals of locks.
    pub(crate) lock: Duration,
    /// Until a lock is asked for again that was refused.
    pub(crate) lock_again: Duration,
    /// How long a call of an orderly listener may go on after its queue was given to another member.
    pub(crate) release: Duration,
    /// Until a message that could not be given back is consumed again here.
    pub(crate) local_retry: Duration,
    /// Until a pull that failed is repeated; doubles up to `pull_again_max`.
    pub(crate) pull_again: Duration,
    pub(crate) pull_again_max: Duration,
    /// Until a broker is asked again that controls its flow.
    pub(crate) flow_control: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            rebalance: Duration::from_secs(20),
            rebalance_again: Duration::from_millis(500),
            persist: Duration::from_secs(5),
            lock: Duration::from_secs(20),
            lock_again: Duration::from_millis(500),
            release: Duration::from_secs(20),
            local_retry: Duration::from_secs(5),
            pull_again: Duration::from_millis(100),
            pull_again_max: Duration::from_secs(3),
            flow_control: Duration::from_millis(20),
        }
    }
}

/// See the module. Stock's defaults unless said.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) group: String,
    pub(crate) model: Model,
    pub(crate) from: ConsumeFrom,
    pub(crate) allocate: Allocate,
    pub(crate) subscriptions: Vec<(String, Filter)>,
    pub(crate) concurrency: usize,
    pub(crate) batch: usize,
    pub(crate) pull_batch: u16,
    pub(crate) pull_interval: Duration,
    pub(crate) hold: Duration,
    pub(crate) cache: CacheLimits,
    pub(crate) topic_messages: Option<usize>,
    pub(crate) topic_bytes: Option<usize>,
    /// Of all queues together.
    pub(crate) total_messages: usize,
    pub(crate) retries: Option<i32>,
    pub(crate) consume_timeout: Duration,
    pub(crate) suspend: Duration,
    pub(crate) auto_commit: Option<Duration>,
    pub(crate) timing: Timing,
}

impl Settings {
    pub(crate) fn new(group: &str) -> Settings {
        Settings {
            group: group.to_owned(),
            model: Model::default(),
            from: ConsumeFrom::default(),
            allocate: Allocate::default(),
            subscriptions: Vec::new(),
            concurrency: 20,
            batch: 1,
            pull_batch: 32,
            pull_interval: Duration::ZERO,
            hold: Duration::from_secs(15),
            cache: CacheLimits { messages: 1000, bytes: 100 << 20, span: Some(2000) },
            topic_messages: None,
            topic_bytes: None,
            total_messages: usize::MAX,
            retries: None,
            consume_timeout: Duration::from_secs(15 * 60),
            suspend: Duration::from_secs(1),
            auto_commit: Some(Duration::from_secs(5)),
            timing: Timing::default(),
        }
    }

    pub(crate) fn is_broadcasting(&self) -> bool {
        matches!(self.model, Model::Broadcasting(_))
    }

    /// Bounds of a queue's cache when the consumer has `queues` queues of its topic.
    pub(crate) fn cache_of(&self, queues: usize) -> CacheLimits {
        let share = |of_topic: Option<usize>, own: usize| {
            of_topic.map_or(own, |all| (all / queues.max(1)).max(1).min(own))
        };
        CacheLimits {
            messages: share(self.topic_messages, self.cache.messages),
            bytes: share(self.topic_bytes, self.cache.bytes),
            span: self.cache.span,
        }
    }

    /// # Errors
    /// [`Error::Invalid`] for what cannot be, with stock's bounds.
    pub(crate) fn check(&self) -> Result<()> {
        validate::group(&self.group)?;
        check_concurrency(self.concurrency)?;
        within("a batch", self.batch, 1024)?;
        within("a pull batch", usize::from(self.pull_batch), 1024)?;
        within("a cache limit", self.cache.messages, 65_535)?;
        within("a limit of cached bytes", self.cache.bytes, 1 << 30)?;
        within("a topic's cache limit", self.topic_messages.unwrap_or(1), 6_553_500)?;
        if let Some(span) = self.cache.span {
            within("a span", usize::try_from(span).unwrap_or(0), 65_535)?;
        }
        if self.hold.as_millis() == 0 {
            return Err(Error::invalid(
                "a long poll of less than 1 ms: empty queues would be pulled without a pause",
            ));
        }
        if self.consume_timeout.is_zero() {
            return Err(Error::invalid("a consume timeout of zero: every message would be late"));
        }
        Ok(())
    }
}

/// # Errors
/// [`Error::Invalid`] for a number of listener calls that cannot be.
pub(crate) fn check_concurrency(calls: usize) -> Result<()> {
    within("a concurrency", calls, 65_535)
}

fn within(what: &str, value: usize, max: usize) -> Result<()> {
    let ok = (1..=max).contains(&value);
    ok.then_some(()).ok_or_else(|| {
        Error::invalid(format!("{what} of {value}: it has to be between 1 and {max}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topics_cache_is_shared_by_its_queues_and_never_zero() {
        let mut settings = Settings::new("g");
        assert_eq!(settings.cache_of(7), settings.cache);
        settings.topic_messages = Some(100);
        settings.topic_bytes = Some(1000);
        assert_eq!(settings.cache_of(8).messages, 12);
        assert_eq!(settings.cache_of(8).bytes, 125);
        assert_eq!(settings.cache_of(300).messages, 1);
        settings.topic_messages = Some(1_000_000);
        assert_eq!(settings.cache_of(2).messages, 1000);
    }

    #[test]
    fn what_is_out_of_stocks_bounds_is_refused() {
        type Change = fn(&mut Settings);
        let changes: [Change; 9] = [
            |s| s.concurrency = 0,
            |s| s.batch = 1025,
            |s| s.pull_batch = 0,
            |s| s.cache.messages = 0,
            |s| s.cache.bytes = 2 << 30,
            |s| s.cache.span = Some(0),
            |s| s.topic_messages = Some(0),
            |s| s.hold = Duration::from_micros(999),
            |s| s.group = "DEFAULT_CONSUMER".to_owned(),
        ];
        assert!(Settings::new("g").check().is_ok());
        for (at, change) in changes.into_iter().enumerate() {
            let mut settings = Settings::new("g");
            change(&mut settings);
            assert!(matches!(settings.check(), Err(Error::Invalid(_))), "change {at}");
        }
    }
}
