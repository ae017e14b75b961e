//! Consume queues: for each queue of each topic, where its messages are in the log.
//!
//! ```text
//!  consumequeue/<topic>/<queueId>/00000000000000000000        unit n = byte 20 n of the queue
//!                                 00000000000006000000        physicalOffset 8 | totalSize 4 | tagsCode 8
//! ```
//!
//! The life of a unit: dispatch appends it to the queue's memory ([`QueueStore::append`], no I/O), where pulls find it
//! ([`QueueStore::recent`]). Once a second, or sooner when much has gathered, one batch of all queues goes to the store's
//! worker thread, which writes it through a bounded set of descriptors. Written units stay in memory until the
//! budget of the shard is used up, then the least recently written queues give theirs back; from then on
//! [`QueueStore::read`] takes them from the file. Nothing is durable until a checkpoint syncs the file system; after a crash the
//! queues are cut where the last checkpoint ended and redone from the log ([`load_queues`]).
//!
//! Files are what a stock broker of release 4.9 reads: always of full length, made with their first units in them (a trailing
//! file of zeros makes a stock broker store a message twice), complete in the prepare directory before they are renamed in.
//!
//! A [`QueueStore`] and its [`QueueRef`]s live on one reactor.

mod core;
mod error;
mod load;
mod read;
mod scan;
mod store;
mod time;
mod trim;
mod unit;
mod writer;

pub use self::core::{Appended, Queue, QueueDigest, QueueRef};
pub use error::QueueError;
pub use load::{KeptUnits, LoadReport, LoadedQueue, LoadedQueues, QueueRecovery, load_queues};
pub use store::{QueueConfig, QueueStats, QueueStore};
pub use trim::TrimReport;
pub use unit::{BLANK_UNIT_SIZE, RawUnit, UNIT_BYTES, Unit};

#[cfg(test)]
mod tests;
