//! Connections and logs moved by the pure parts, on a glommio reactor.

pub mod master;
pub mod slave;
mod socket;
