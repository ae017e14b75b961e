//! The key index: for the hash of `topic#key`, which records may carry that key.
//!
//! ```text
//!  index/20231114221320123      header 40 | slots 4 each | entries 20 each, entry 0 unused
//!  slot  = number of the newest entry of its chain, 0 = none         slot of a hash = hash mod slots
//!  entry = hash 4 | physicalOffset 8 | seconds since the file's begin 4 | previous entry of the chain 4
//! ```
//!
//! The slot table of the newest file is in memory, entries gather in a buffer: [`Index::put`] does no I/O. Batches of entries go
//! to the store's worker, in sequence at the file's end. A checkpoint writes the header once the entries it counts are durable;
//! the slots are written when the file is full or the store is closed. After any other stop they are made again from
//! the entries ([`load_index`]), where a stock broker deletes the file.
//!
//! Files are those of stock 4.9.8. Keys compare by hash alone: who asks must look at the record.
//!
//! An [`Index`] lives on one reactor.

mod check;
mod core;
mod error;
mod header;
mod load;
mod name;
mod query;
mod store;
mod writer;

pub use check::{IndexCheck, IndexCheckError, IndexSummary};
pub use error::IndexError;
pub use header::{ENTRY_BYTES, HEADER_BYTES, Header};
pub use load::{IndexFileMark, IndexRecovery, IndexReport, LoadedIndex, load_index};
pub use query::IndexQuery;
pub use store::{Index, IndexConfig, IndexStats};
pub use writer::HeaderSave;

#[cfg(test)]
mod tests;
