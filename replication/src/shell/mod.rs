//! What moves bytes: sockets and the log on one side, the sessions on the other.

use crc32c::crc32c_append;
use ringmq_engine::log::{Log, LogError};

mod acquaintance;
mod buffer;
mod feed;
pub mod master;
pub mod slave;
mod socket;
mod waiters;

/// CRC-32C of `[offset - len, offset)`; `None` if not all of it is in the log.
///
/// # Errors
/// [`LogError`] of bytes that are there and can't be read: that proves nothing of them.
async fn crc_of(log: &Log, offset: u64, len: u32) -> Result<Option<u32>, LogError> {
    let Some(mut at) = offset.checked_sub(u64::from(len)) else { return Ok(None) };
    let mut crc = 0;
    while at < offset {
        let left = usize::try_from(offset - at).unwrap_or(usize::MAX);
        let slice = match log.stream(at, left).await {
            Ok(Some(slice)) => slice,
            Ok(None) | Err(LogError::OutOfRange { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        crc = crc32c_append(crc, slice.bytes());
        at += slice.bytes().len() as u64;
    }
    Ok(Some(crc))
}
