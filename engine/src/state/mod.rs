//! The broker's state over the log: what is known of topics, groups, consumers and waiting pulls.
//!
//! Every table here is pure: it belongs to one reactor, takes the time as an argument, does no I/O and
//! answers with values (whom to notify, what to send, when to wake). The two exceptions hold the files:
//! [`json_file`] writes and reads one so that a crash can't lose it, and [`saver`] does that on a thread.
//!
//! | module | holds | file |
//! |---|---|---|
//! | [`topics`], [`topic_name`] | topics and their rules of creation | `topics.json` |
//! | [`groups`] | consumer groups | `subscriptionGroup.json` |
//! | [`offsets`] | consumer offsets | `consumerOffset.json` |
//! | [`delay`] | delay levels and their progress | `delayOffset.json` |
//! | [`clients`] | connected producers and consumers | |
//! | [`heartbeat`] | what a heartbeat does to them all | |
//! | [`filter`] | subscriptions and tag matching | |
//! | [`locks`] | queue locks of orderly consumers | |
//! | [`waiters`] | waiting pulls | |
//! | [`stats`], [`stats_items`] | counters | |

pub mod clients;
pub mod delay;
pub mod filter;
pub mod groups;
pub mod heartbeat;
pub mod json_file;
pub mod locks;
pub mod offsets;
pub mod saver;
pub mod stats;
pub mod stats_items;
pub mod table_text;
pub mod topic_name;
pub mod topics;
pub mod waiters;

/// File of [`topics`] in the store's `config/`.
pub const TOPICS_FILE: &str = "topics.json";
/// File of [`groups`] in the store's `config/`.
pub const GROUPS_FILE: &str = "subscriptionGroup.json";
/// File of [`offsets`] in the store's `config/`.
pub const OFFSETS_FILE: &str = "consumerOffset.json";
/// File of [`delay`] in the store's `config/`.
pub const DELAY_FILE: &str = "delayOffset.json";

/// Identifies a connection, unique in the process (`ringmq_net::server::Conn::id`).
pub type ConnId = u64;

#[cfg(test)]
#[path = "stock_files_tests.rs"]
mod stock_files_tests;
