//! A connection: two streams of bytes that come in order, late, and cut anywhere; or not at all for a while.

use std::collections::VecDeque;

use crate::random::Random;

/// Bytes under way in one direction.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pieces: VecDeque<(u64, Vec<u8>)>,
    pub(crate) bytes: usize,
}

impl Stream {
    pub(crate) fn push(&mut self, now: u64, delay: u64, bytes: Vec<u8>) {
        let after = self.pieces.back().map_or(0, |(at, _)| *at);
        self.bytes += bytes.len();
        self.pieces.push_back((after.max(now + delay), bytes));
    }

    /// What has come by now: some of it, cut anywhere.
    pub(crate) fn pop(&mut self, now: u64, random: &mut Random) -> Option<Vec<u8>> {
        let (at, piece) = self.pieces.front_mut()?;
        if *at > now {
            return None;
        }
        let take = 1 + random.below(piece.len() as u64) as usize;
        let take = if random.one_in(3) { take } else { piece.len() };
        let taken: Vec<u8> = piece.drain(..take).collect();
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        self.bytes -= taken.len();
        Some(taken)
    }
}

/// One connection of a slave to a master.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) slave: usize,
    pub(crate) master: usize,
    pub(crate) up: Stream,
    pub(crate) down: Stream,
    /// Nothing comes before this time.
    pub(crate) stalled_until: u64,
    /// Either end has closed it, or its node is gone; the other end hears of it once what is under way is read.
    pub(crate) slave_gone: bool,
    pub(crate) master_gone: bool,
}
