//! What moves bytes: sockets and the log on one side, the sessions on the other.

use ringmq_engine::log::Log;

pub mod master;
pub mod slave;
mod socket;

/// CRC-32C of `[offset - len, offset)`; `None` if not all of it can be read.
async fn crc_of(log: &Log, offset: u64, len: u32) -> Option<u32> {
    let mut at = offset.checked_sub(u64::from(len))?;
    let mut crc = 0;
    while at < offset {
        let left = usize::try_from(offset - at).ok()?;
        let slice = log.stream(at, left).await.ok()??;
        crc = crc32c::crc32c_append(crc, slice.bytes());
        at += slice.bytes().len() as u64;
    }
    Some(crc)
}
