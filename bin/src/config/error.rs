//! What can be wrong with a configuration. Each message is one line: what, where, and what to do.

use std::path::PathBuf;

use thiserror::Error;

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("configuration file {path}: {error}: give an existing file with --config", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not TOML, or a value has the wrong type.
    #[error("configuration file {path}, line {line}: {why}: `{text}`", path = .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The line's text.
        text: String,
        /// What the parser says.
        why: String,
    },
    /// A key or section that does not exist.
    #[error("configuration file {path}: {message}", path = .path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The key, and the nearest one.
        message: String,
    },
    /// A number out of its range.
    #[error("{key} = {value} is out of range: set {min} to {max}")]
    OutOfRange {
        /// `section.key`.
        key: &'static str,
        /// The value.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// A value that breaks a rule with other values.
    #[error("{key}: {remedy}")]
    Refused {
        /// `section.key`.
        key: &'static str,
        /// The rule and what to set.
        remedy: String,
    },
    /// An address that cannot be used.
    #[error("{key} = \"{value}\": {why}")]
    Address {
        /// `section.key`.
        key: &'static str,
        /// The value.
        value: String,
        /// Why, and how to write it.
        why: String,
    },
    /// No address to tell clients was found.
    #[error("no network address to tell clients was found: set broker.advertise or --advertise")]
    NoAdvertise,
    /// A shard's port would be below 1 or above 65535.
    #[error(
        "{key}: shard {shard} would need port {port}: choose a base port so that all ports lie within 1 to 65535"
    )]
    PortRange {
        /// `section.key`.
        key: &'static str,
        /// The shard.
        shard: u32,
        /// The port.
        port: i64,
    },
    /// Two parts of this process would bind the same port.
    #[error(
        "port {port} is wanted by {first} and by {second}: change broker.listen, namesrv.listen, metrics.listen or shards.port_stride"
    )]
    PortClash {
        /// The port.
        port: u16,
        /// One user.
        first: String,
        /// The other user.
        second: String,
    },
    /// Another shard count than the store's.
    #[error(
        "the store {dir} has {stored} shard(s) and {wanted} were asked for: a store keeps its count, so leave --shards and shards.count out",
        dir = .data_dir.display()
    )]
    ShardCount {
        /// The store.
        data_dir: PathBuf,
        /// Its count.
        stored: u32,
        /// The count asked for.
        wanted: u32,
    },
    /// The store's shard count cannot be read.
    #[error("shard count {path}: {why}", path = .path.display())]
    ShardRecord {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
}
