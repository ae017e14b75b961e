//! The commit log's record and everything that is computed from one.
//!
//! ```text
//!  totalSize magic crc queueId flag queueOffset physicalOffset sysFlag born.. bornHost store.. storeHost
//!      4       4    4     4     4        8            8           4      8      8|20     8       8|20
//!  reconsume preparedTransactionOffset bodyLen body topicLen topic propertiesLen properties
//!      4                8                 4      n      1      t         2            p
//! ```
//!
//! All integers are big endian. The same bytes are what the log stores, what the HA stream carries and
//! what a pull answers, so this module belongs to the protocol and not to the store. It does no I/O,
//! reads no clock, and on the encode and decode paths allocates nothing.
//!
//! - [`RecordFields`] encodes, [`RecordView`] decodes, [`check`] decides at recovery whether bytes are a
//!   whole record (including the case that stock RocketMQ cannot see: a record torn in its properties);
//! - [`Properties`] reads the `name 0x01 value 0x02` text, [`PropertiesRewriter`] makes the text a broker stores;
//! - [`BatchBody`] walks a batch request; [`OffsetMessageId`] is the id a producer gets back;
//! - [`java_hash`], [`tags_code`], [`index_hash`], [`body_crc`] are the hashes that stock peers compute too.

mod batch;
mod check;
mod codec;
mod hash;
mod message_id;
mod properties;
pub mod sys_flag;

pub use batch::{BatchBody, BatchError, BatchMessage, BatchMessages};
pub use check::{CheckResult, CheckRule, SECTOR_BYTES, TornWhy, check};
pub use codec::{
    BLANK_BYTES_MIN, RecordError, RecordFields, RecordView, decode, encode_blank, encoded_len,
};
pub use hash::{TopicKeyHasher, body_crc, index_hash, java_hash, tags_code};
pub use message_id::{MESSAGE_ID_CHARS_MAX, MessageIdError, OffsetMessageId};
pub use properties::{
    BatchTexts, KnownProperties, NAME_SEPARATOR, PROPERTY_SEPARATOR, Properties, PropertiesError,
    PropertiesIter, PropertiesRewriter, name,
};

/// Magic of a message record (stock 4.9 "V1").
pub const MAGIC_MESSAGE: u32 = 0xDAA3_20A7;
/// Magic of the record that fills the end of a segment.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Longest topic in bytes: its length is a signed byte on disk.
pub const TOPIC_BYTES_MAX: usize = 127;
/// Longest properties text in bytes: its length is a signed short on disk.
pub const PROPERTIES_BYTES_MAX: usize = 32_767;
/// Stock's default limit of one message body (`maxMessageSize`).
pub const BODY_BYTES_MAX_DEFAULT: usize = 4 * 1024 * 1024;
/// What stock 4.9.8 allows a record above `maxMessageSize`.
pub const RECORD_OVERHEAD_BYTES_MAX: usize = 65_536;
/// Bytes of a record with IPv4 hosts around body, topic and properties.
pub const RECORD_FIXED_BYTES: usize = 91;
