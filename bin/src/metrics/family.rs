//! What a metric is, and how it becomes text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ringmq_engine::times::{TIME_BOUNDS_US, TimesSnapshot};

use super::CATALOG;
use super::scene::{Scene, Shard};

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from the start of the process on.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Times by classes, in seconds.
    Histogram,
}

/// One metric.
pub struct Family {
    /// Its name, as it is scraped.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// What it is, in one line.
    pub help: &'static str,
    pub(super) emit: fn(&Scene, &mut Samples<'_>) -> fmt::Result,
}

/// Label names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Where a family's samples go.
pub(super) struct Samples<'a> {
    to: MetricEncoder<'a>,
}

impl Samples<'_> {
    pub(super) fn counter(&mut self, labels: Labels<'_>, value: u64) -> fmt::Result {
        self.to.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    pub(super) fn seconds(&mut self, labels: Labels<'_>, value: f64) -> fmt::Result {
        self.to.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    pub(super) fn gauge(&mut self, labels: Labels<'_>, value: f64) -> fmt::Result {
        self.to.encode_family(&labels)?.encode_gauge(&value)
    }

    pub(super) fn histogram(&mut self, labels: Labels<'_>, times: &TimesSnapshot) -> fmt::Result {
        let bounds = TIME_BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
        let buckets: Vec<(f64, u64)> =
            bounds.chain([f64::MAX]).zip(times.counts.iter().copied()).collect();
        let (sum, count) = (times.sum_us as f64 / 1e6, times.count());
        self.to.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// A family of samples that each shard gives any number of: `each!(counter, name, help, |numbers, put| ...)`, where `put` takes
/// further labels and a value.
macro_rules! each {
    ($kind:ident, $name:literal, $help:literal, |$numbers:ident, $put:ident| $body:expr) => {
        Family {
            name: $name,
            kind: kind!($kind),
            help: $help,
            emit: |scene, samples| {
                for (shard, $numbers) in scene.answered() {
                    let mut $put = |labels: Labels<'_>, value| {
                        samples.$kind(&with_shard(shard, labels), value)
                    };
                    $body
                }
                Ok(())
            },
        }
    };
}

/// A family of one sample a shard.
macro_rules! one {
    ($kind:ident, $name:literal, $help:literal, |$numbers:ident| $value:expr) => {
        each!($kind, $name, $help, |$numbers, put| put(&[], $value)?)
    };
}

/// A family of the process.
macro_rules! process {
    ($kind:ident, $name:literal, $help:literal, |$scene:ident, $samples:ident| $body:expr) => {
        Family {
            name: $name,
            kind: kind!($kind),
            help: $help,
            emit: |$scene, $samples| {
                $body;
                Ok(())
            },
        }
    };
}

macro_rules! kind {
    (counter) => {
        Kind::Counter
    };
    (seconds) => {
        Kind::Counter
    };
    (gauge) => {
        Kind::Gauge
    };
    (histogram) => {
        Kind::Histogram
    };
}

/// Labels behind those that say which shard it is.
pub(super) fn with_shard<'a>(shard: &'a Shard, labels: Labels<'a>) -> Vec<(&'a str, &'a str)> {
    let mut all = Vec::with_capacity(2 + labels.len());
    all.extend([("shard", shard.index.as_str()), ("broker", shard.name.as_str())]);
    all.extend_from_slice(labels);
    all
}

impl Scene {
    /// The labels of what belongs to a reactor: those of its shard, or of the name server if that runs alone.
    pub(super) fn seat<'a>(&'a self, index: usize, labels: Labels<'a>) -> Vec<(&'a str, &'a str)> {
        match self.shards.get(index) {
            Some(shard) => with_shard(shard, labels),
            None => [&[("shard", ""), ("broker", "namesrv")], labels].concat(),
        }
    }
}

impl Collector for Scene {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in CATALOG {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            // The encoder writes the suffix of a counter itself.
            let name = match family.kind {
                Kind::Counter => family.name.strip_suffix("_total").unwrap_or(family.name),
                Kind::Gauge | Kind::Histogram => family.name,
            };
            let to = encoder.encode_descriptor(name, family.help, None, kind)?;
            (family.emit)(self, &mut Samples { to })?;
        }
        Ok(())
    }
}

impl Scene {
    /// The scrape's text.
    ///
    /// # Errors
    /// Never: a text takes everything.
    pub(super) fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::with_capacity(64 << 10);
        prometheus_text::encode(&mut text, &registry)?;
        Ok(text)
    }
}
