//! What an end-to-end run writes at the start of each body, so that whoever receives it can tell how old it is.
//!
//! ```text
//!  0  magic 8 | run id 8 | intended send time 8, nanoseconds on the run's clock | number among the connection's 8
//! ```

/// Bytes of a stamp: the least size of a body that has one.
pub const STAMP_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"RMQLOAD1";

/// What is read from a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// When the message was meant to be sent.
    pub intended: u64,
    /// Its number among those of its connection.
    pub number: u64,
}

/// Writes what all stamps of a run have in common. `body` has at least [`STAMP_BYTES`].
pub fn put_head(body: &mut [u8], run_id: u64) {
    body[..8].copy_from_slice(MAGIC);
    body[8..16].copy_from_slice(&run_id.to_be_bytes());
}

/// Writes the rest.
pub fn put(body: &mut [u8], intended: u64, number: u64) {
    body[16..24].copy_from_slice(&intended.to_be_bytes());
    body[24..32].copy_from_slice(&number.to_be_bytes());
}

/// The stamp of a message of run `run_id`; `None` for any other message.
#[must_use]
pub fn read(body: &[u8], run_id: u64) -> Option<Stamp> {
    let (magic, rest) = body.split_first_chunk::<8>()?;
    let (run, rest) = rest.split_first_chunk::<8>()?;
    let (intended, rest) = rest.split_first_chunk::<8>()?;
    let number = rest.first_chunk::<8>()?;
    let ours = magic == MAGIC && u64::from_be_bytes(*run) == run_id;
    ours.then(|| Stamp {
        intended: u64::from_be_bytes(*intended),
        number: u64::from_be_bytes(*number),
    })
}
