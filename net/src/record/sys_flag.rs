//! The bits of a message's `sysFlag` (stock 4.9.8; bits 8 to 10 since 4.9.3).

/// The body is compressed.
pub const COMPRESSED: i32 = 0x1;
/// The topic's filter type is MULTI_TAG; set by the broker.
pub const MULTI_TAGS: i32 = 0x2;
/// Mask of the transaction type.
pub const TRANSACTION_MASK: i32 = 0xC;
/// Transaction type: an ordinary message.
pub const TRANSACTION_NONE: i32 = 0x0;
/// Transaction type: prepared. Such a record gets queue offset 0 and no consume queue unit.
pub const TRANSACTION_PREPARED: i32 = 0x4;
/// Transaction type: committed.
pub const TRANSACTION_COMMIT: i32 = 0x8;
/// Transaction type: rolled back. Neither a consume queue unit nor an index entry.
pub const TRANSACTION_ROLLBACK: i32 = 0xC;
/// The born host is an IPv6 address (20 bytes instead of 8).
pub const BORN_HOST_V6: i32 = 0x10;
/// The store host is an IPv6 address (20 bytes instead of 8).
pub const STORE_HOST_V6: i32 = 0x20;
/// Mask of the compression type: 0 and 3 zlib, 1 LZ4, 2 zstd.
pub const COMPRESSION_MASK: i32 = 0x700;

/// The transaction bits of `sys_flag`.
pub fn transaction_type(sys_flag: i32) -> i32 {
    sys_flag & TRANSACTION_MASK
}

/// Whether a record with this flag takes a place in its queue: types none and commit.
pub fn takes_queue_offset(sys_flag: i32) -> bool {
    matches!(transaction_type(sys_flag), TRANSACTION_NONE | TRANSACTION_COMMIT)
}

/// Whether the keys of a record with this flag are indexed: all types but rollback.
pub fn is_indexed(sys_flag: i32) -> bool {
    transaction_type(sys_flag) != TRANSACTION_ROLLBACK
}

/// `sys_flag` with the transaction bits replaced by `transaction_type`.
pub fn with_transaction_type(sys_flag: i32, transaction_type: i32) -> i32 {
    (sys_flag & !TRANSACTION_MASK) | (transaction_type & TRANSACTION_MASK)
}
