//! The configuration: what the file says, what the command line overrides, and what follows from both.
//!
//! Precedence: command line, environment, file, default. The result is [`Settings`], read-only for the rest of the process: each
//! reactor gets its [`ShardPlan`] and a shared reference to the rest.

mod address;
mod bounds;
mod error;
mod machine;
mod model;
mod plan;
mod settings;
mod shard_count;
mod unknown;

pub use address::{InterfaceAddress, choose_advertised, interface_addresses};
pub use bounds::{BOUNDS, Bound};
pub use error::ConfigError;
pub use machine::{Machine, SHARD_MEMORY_BYTES_MIN};
pub use model::{
    BrokerSection, Config, DrainSection, Durability, DurabilitySection, HaSection, LimitsSection,
    LogFormat, LogSection, MetricsSection, NamesrvSection, ReactorSection, RetentionSection, Role,
    ShardsSection, SlaveAck, SlaveStart, StoreSection, TopicsSection,
};
pub use plan::{NamesrvPlan, ShardPlan};
pub use settings::{Mode, Settings};
pub use shard_count::{CountSource, ShardCount};
pub use unknown::sections;
