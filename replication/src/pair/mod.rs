//! What the two ends of one HA connection decide. No socket, file, executor or clock is in here: time is milliseconds of any clock that
//! only goes forward.
//!
//! **Master**, one [`MasterSession`] for each connection that it accepts:
//! ```text
//!   received(now, bytes, log)   bytes from the slave, in any cuts
//!   next(now, log)          ->  Send(bytes)       write them; then sent(now)
//!                               Data{from, max}   take up to so many bytes of the log from there, have frame(now, bytes, log) make the
//!                                                 head, write both; then sent(now)
//!                               Crc{offset, len}  read the log; then crc(..)
//!                               Withhold, Admit, Acked     what the gate of synchronous replication is told
//!                               State(state)      log it once, show it
//!                               Close(why)        drop the connection
//! ```
//! One write is under way at a time. A session is for one list of terms: when that changes, drop it, and the slave comes back.
//!
//! **Slave**, one [`SlaveSession`] for each connection that it makes:
//! ```text
//!   parse(now, buffer, log) ->  Need(n)           so many bytes are needed from the buffer's start
//!                               Consumed(n)       a frame that is dealt with
//!                               Metadata(bytes)   for the broker
//!                               Body(body)        log bytes follow and go to their place; then body(now, intact)
//!   next(now, log)          ->  Send(bytes)       write them, in order
//!                               Crc{offset, len}  read the own log; then crc(..)
//!                               StoreTerms(list)  make it durable; then terms_stored(now)
//!                               Cut(at)           order the cut and open the store anew: the session is over
//!                               Follows           both logs agree as far as the shorter one goes
//! ```
//! Either side speaks RocketMQ's 4.x protocol to a stock peer, to the byte, and between RingMQ nodes the frames with terms: a slave that
//! knows its master for a RingMQ node opens with the hello, and a master knows a slave by that.

mod master;
mod slave;
mod slave_wire;

pub use master::{
    FrameHead, MasterAction, MasterClose, MasterConfig, MasterLog, MasterSession, PeerState,
};
pub use slave::{Retry, SlaveAction, SlaveConfig, SlaveLog, SlaveSession, Speech, Start, Trouble};
pub use slave_wire::{Body, Parsed};

/// Bytes of a frame's body between RingMQ nodes at most.
pub const TERM_BATCH_BYTES: u32 = 1 << 20;

/// Milliseconds of a duration.
fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
