//! The zeroed frontier: how far ahead of the tail the device already has blocks.
//!
//! On ext4 a completed direct write into space that is merely allocated is unreadable after a kernel crash until the
//! journal commits; into space that was written and flushed before it is there. So zeros go first, and no log write
//! crosses [`Frontier::reached`]. How far ahead and in which steps follows from the rate: a step that log
//! writes had to wait for doubles the next one.

use std::{collections::VecDeque, ops::RangeInclusive};

use super::block::{unit_ceil, unit_floor};

/// A piece to zero, in physical offsets inside one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Where zeroing stands. One piece is in flight at a time.
pub(super) struct Frontier {
    segment_size: u64,
    /// Everything in `[from, reached)` was zeroed durably or written since. Grows; jumps when the log leaves the
    /// rest of a segment.
    from: u64,
    reached: u64,
    /// How far ready segments behind `reached` are already zeroed: (start, reached).
    ahead: VecDeque<(u64, u64)>,
    in_flight: Option<Piece>,
    /// Bytes of the next piece, within `steps`.
    step: u64,
    steps: RangeInclusive<u64>,
    /// A write waited for the piece in flight.
    waited: bool,
}

impl Frontier {
    pub(super) fn new(
        segment_size: u64,
        steps: RangeInclusive<u64>,
        from: u64,
        reached: u64,
    ) -> Self {
        assert!(from <= reached, "the frontier's range is in order");
        Self {
            segment_size,
            from,
            reached,
            ahead: VecDeque::new(),
            in_flight: None,
            step: *steps.start(),
            steps,
            waited: false,
        }
    }

    /// Physical offset that log writes may not cross.
    pub(super) fn reached(&self) -> u64 {
        self.reached
    }

    /// Start of the range without gaps that ends at [`Self::reached`].
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// A segment was prepared; its first `zeroed` bytes are durable zeros.
    pub(super) fn segment_ready(&mut self, start: u64, zeroed: u64) {
        assert!(zeroed <= self.segment_size, "a segment has no more zeros than bytes");
        assert!(unit_floor(zeroed) == zeroed, "zeros are counted in whole units");
        self.ahead.push_back((start, start + zeroed));
        self.join();
    }

    /// The log goes on at `offset`; what lies between the frontier and that offset's segment will not be written.
    pub(super) fn move_to(&mut self, offset: u64) {
        let start = offset - offset % self.segment_size;
        if self.reached < start {
            self.from = start;
            self.reached = start;
        }
        while self.ahead.front().is_some_and(|(ahead, _)| *ahead < start) {
            self.ahead.pop_front();
        }
        self.join();
    }

    /// The next piece to zero, up to `limit`, if none is in flight. `urgent` means that a write waits.
    pub(super) fn next_piece(&mut self, limit: u64, urgent: bool) -> Option<Piece> {
        if urgent {
            self.waited = true;
        }
        if self.in_flight.is_some() || self.reached >= limit {
            return None;
        }
        let segment_end = self.reached - self.reached % self.segment_size + self.segment_size;
        let to = (self.reached + self.step).min(segment_end);
        let piece = Piece { from: self.reached, to };
        self.in_flight = Some(piece);
        self.waited = urgent;
        Some(piece)
    }

    /// The piece in flight did not succeed; it may be tried again.
    pub(super) fn piece_failed(&mut self) {
        self.in_flight = None;
    }

    /// The piece in flight is durable: publish it.
    pub(super) fn piece_done(&mut self) {
        if let Some(piece) = self.in_flight.take() {
            if piece.from == self.reached {
                self.reached = piece.to;
                self.join();
            }
            let step = if self.waited { self.step * 2 } else { self.step / 2 };
            self.step = unit_ceil(step).clamp(*self.steps.start(), *self.steps.end());
            self.waited = false;
        }
    }

    /// Log writes went on behind the frontier without zeros, and a flush has covered them up to `to`.
    pub(super) fn flushed(&mut self, to: u64) {
        if to > self.reached {
            self.reached = to;
            self.join();
        }
    }

    /// A frontier that reached a ready segment's start continues with what that segment has.
    fn join(&mut self) {
        while let Some((start, reached)) = self.ahead.front().copied() {
            if start != self.reached {
                break;
            }
            self.reached = reached;
            self.ahead.pop_front();
        }
    }
}
