//! What a body begins with when it has to be known again, and what the rest of it is.
//!
//! ```text
//!  0  magic 4 | sender 4 | run id 8 | intended send time 8, nanoseconds on the run's clock | number among the connection's 8
//! 32  floor 8: all of the sender's numbers below it were answered before this one left | length of the body 4 | check 4
//! 48  filler: the same in all bodies of a run, as far as they reach
//! ```
//!
//! A sender is a connection (low 16 bits) and how often it was made anew (high 16 bits). What the floor says makes order decidable without
//! sending one at a time: a message below the floor of one that stands before it in the same queue was overtaken.

/// Bytes of a stamp: the least size of a body that has one.
pub const STAMP_BYTES: usize = 48;

const MAGIC: &[u8; 4] = b"RMQ2";

/// What is read from a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// See the [module](self).
    pub sender: u32,
    /// When the message was meant to be sent.
    pub intended: u64,
    /// Its number among those of its connection.
    pub number: u64,
    /// See the [module](self).
    pub floor: u64,
}

impl Stamp {
    /// The connection that it was sent over.
    #[must_use]
    pub fn connection(&self) -> usize {
        (self.sender & 0xFFFF) as usize
    }

    /// How often that had been made anew, modulo 2^16.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.sender >> 16
    }
}

/// What a body is to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// It has the run's stamp.
    Ours(Stamp),
    /// It had, and is not what was sent.
    Corrupt,
    /// It is not of this run.
    Foreign,
}

/// Writes what all stamps of a run have in common. `body` has at least [`STAMP_BYTES`].
pub fn put_head(body: &mut [u8], run_id: u64) {
    body[..4].copy_from_slice(MAGIC);
    body[8..16].copy_from_slice(&run_id.to_be_bytes());
}

/// Writes the rest, for a body of `length` bytes in all.
pub fn put(body: &mut [u8], run_id: u64, stamp: &Stamp, length: usize) {
    body[4..8].copy_from_slice(&stamp.sender.to_be_bytes());
    body[16..24].copy_from_slice(&stamp.intended.to_be_bytes());
    body[24..32].copy_from_slice(&stamp.number.to_be_bytes());
    body[32..40].copy_from_slice(&stamp.floor.to_be_bytes());
    body[40..44].copy_from_slice(&(length as u32).to_be_bytes());
    body[44..48].copy_from_slice(&check(run_id, stamp, length as u32).to_be_bytes());
}

/// What `body` is to run `run_id`. The filler is not looked at.
#[must_use]
pub fn read(body: &[u8], run_id: u64) -> Body {
    let Some(head) = body.first_chunk::<STAMP_BYTES>() else { return Body::Foreign };
    let u32_at =
        |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
    if &head[..4] != MAGIC || u64_at(8) != run_id {
        return Body::Foreign;
    }
    let stamp =
        Stamp { sender: u32_at(4), intended: u64_at(16), number: u64_at(24), floor: u64_at(32) };
    let length = u32_at(40);
    let sound = u32_at(44) == check(run_id, &stamp, length) && length as usize == body.len();
    if sound { Body::Ours(stamp) } else { Body::Corrupt }
}

fn check(run_id: u64, stamp: &Stamp, length: u32) -> u32 {
    let words = [stamp.sender.into(), stamp.intended, stamp.number, stamp.floor, length.into()];
    let sum = words.iter().fold(run_id, |sum: u64, word| {
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    (sum >> 32) as u32
}

/// A body that no link or disk can shrink much: printable and without a short period. A shorter one is the beginning of a longer one.
#[must_use]
pub fn filler(run_id: u64, bytes: usize) -> Vec<u8> {
    let mut state = run_id | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b' ' + (state >> 32) as u8 % 95
    };
    std::iter::repeat_with(&mut next).take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_changed_byte_of_a_stamp_goes_unnoticed() {
        let stamp = Stamp { sender: 0x0003_0007, intended: 99, number: 1 << 40, floor: 12 };
        let mut body = filler(5, 100);
        put_head(&mut body, 5);
        put(&mut body, 5, &stamp, 100);
        assert_eq!(read(&body, 5), Body::Ours(stamp));
        assert_eq!((stamp.connection(), stamp.epoch()), (7, 3));
        assert_eq!(read(&body, 6), Body::Foreign);
        assert_eq!(read(&body[..99], 5), Body::Corrupt);
        assert_eq!(read(&body[..47], 5), Body::Foreign);
        for at in 0..STAMP_BYTES {
            let mut changed = body.clone();
            changed[at] ^= 1;
            let foreign = at < 4 || (8..16).contains(&at);
            assert_eq!(
                read(&changed, 5),
                if foreign { Body::Foreign } else { Body::Corrupt },
                "{at}"
            );
        }
    }

    #[test]
    fn filler_is_printable_and_shorter_ones_begin_longer_ones() {
        let long = filler(77, 1000);
        assert!(long.iter().all(|byte| (b' '..=b'~').contains(byte)));
        assert_eq!(filler(77, 10), long[..10]);
    }
}
