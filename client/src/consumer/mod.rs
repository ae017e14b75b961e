//! Consumers: members of a group to which messages are pushed, or which pull them.

mod allocate;
mod builder;
mod concurrent;
mod diff;
#[cfg(test)]
pub(crate) mod fixture;
mod gauge;
mod handle;
mod inspect;
mod listener;
mod local_offsets;
mod locks;
mod md5;
mod member;
mod orderly;
mod outcome;
mod places;
mod process_queue;
mod pull;
mod pull_consumer;
mod push;
mod queue;
mod queue_lock;
mod rebalance;
mod send_back;
mod settings;
mod start;
mod stats;
mod store;
mod stream;
mod subscription;
#[cfg(test)]
mod tests;

pub use allocate::{Allocate, Divide, RoomOf, VIRTUAL_NODES};
pub use builder::ConsumerBuilder;
pub use outcome::{BatchOutcome, IntoBatchOutcome, IntoOutcome, Outcome};
pub use pull_consumer::PullConsumer;
pub use push::PushConsumer;
pub use start::ConsumeFrom;
pub use stream::MessageStream;
pub use subscription::Filter;
