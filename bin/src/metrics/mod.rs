//! What can be watched over HTTP: `/metrics` in Prometheus's text format, `/healthz` and `/readyz`.
//!
//! ```text
//!   scraper ──GET──► metrics thread (http.rs) ──Ask──► inbox of each reactor (probe.rs) ──► the broker copies its counters
//!                         │   ▲                                                                      │
//!                         │   └──────────────── ShardSnapshot, or none in time ◄─────────────────────┘
//!                         └─ catalog.rs: every metric's name, kind, meaning, and where in the snapshots it is
//! ```
//!
//! Reactors share nothing, so nobody reads their counters but they themselves: plain cells on the hot path, copied when somebody
//! asks. A reactor that does not turn delays a scrape by a second at most and is then told as down. The thread costs
//! nothing while nobody asks.

#[macro_use]
mod family;

mod catalog;
mod http;
mod probe;
mod scene;
mod snapshot;
mod usage;

pub use catalog::CATALOG;
pub use family::{Family, Kind};
pub use http::{MetricsError, MetricsServer};
pub use probe::{Ask, Probe, Stage};
pub use scene::Process;
pub use snapshot::{
    ConnectionCounts, DelayBacklog, FollowerCounts, Lag, ShardSnapshot, SlaveCounts, TopicCounts,
};
