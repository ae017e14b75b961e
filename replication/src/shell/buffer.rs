//! Bytes as they come from a socket, until they are dealt with.

use std::io;
use std::task::Poll;

/// Received bytes in order. Its memory is cleared once, when it grows: a receive that brings less than there is room for costs what it
/// brings. It keeps the memory of the most that it has held.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    memory: Vec<u8>,
    /// What is received and not dealt with.
    start: usize,
    end: usize,
}

impl Buffer {
    /// What is received and not dealt with.
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    /// How much that is.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The first `len` bytes are dealt with; all of them, if there are not so many.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len.min(self.len());
        if self.start == self.end {
            self.clear();
        }
    }

    /// All is dealt with.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Adds bytes that came by another way.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Receives behind what is there, up to `need` bytes in all and `step` at once.
    pub(super) fn receive(
        &mut self,
        need: usize,
        step: usize,
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let most = need.saturating_sub(self.len()).min(step);
        let received = read(self.room(most));
        if let Poll::Ready(Ok(len)) = received {
            self.end += len.min(most);
        }
        received
    }

    /// Place for the next `len` bytes.
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
        let to = self.end + len;
        if self.memory.len() < to {
            self.memory.resize(to, 0);
        }
        self.memory.get_mut(self.end..to).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_came_in_whatever_is_received_and_consumed_at_a_time() {
        let stream: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        for (brings, takes) in [(1, 1), (7, 3), (3, 7), (100, 99), (4096, 5000)] {
            let mut buffer = Buffer::default();
            let (mut from, mut out) = (0, Vec::new());
            while out.len() < stream.len() {
                let rest = &stream[from..];
                let got = buffer.receive(8_192, 4_096, |room| {
                    assert!(room.len() <= 4_096);
                    let len = brings.min(rest.len()).min(room.len());
                    room[..len].copy_from_slice(&rest[..len]);
                    Poll::Ready(Ok(len))
                });
                let Poll::Ready(Ok(len)) = got else { panic!("{got:?}") };
                from += len;
                let take = takes.min(buffer.len());
                out.extend_from_slice(&buffer.bytes()[..take]);
                buffer.consume(take);
            }
            assert_eq!(out, stream, "{brings} at a time in, {takes} out");
            assert_eq!(buffer.len(), 0);
        }
    }

    #[test]
    fn it_takes_no_more_than_is_needed_and_nothing_when_nothing_comes() {
        let mut buffer = Buffer::default();
        buffer.extend(b"abc");
        let nothing = buffer.receive(10, 100, |room| {
            assert_eq!(room.len(), 7);
            Poll::Pending
        });
        assert!(nothing.is_pending());
        assert_eq!(buffer.bytes(), b"abc");
        assert!(matches!(
            buffer.receive(2, 100, |room| Poll::Ready(Ok(room.len()))),
            Poll::Ready(Ok(0))
        ));
        buffer.consume(100);
        assert_eq!(buffer.len(), 0);
    }
}
