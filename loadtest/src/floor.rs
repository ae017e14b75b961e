//! What a sender knows of its own numbers: how far all of them have been answered.

use std::collections::VecDeque;

/// The numbers of one connection that are under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Whether each request from the oldest without an answer on has got one; the newest is last.
    answered: VecDeque<bool>,
    /// Number of the first message of the oldest of them.
    first: u64,
    /// Number of the next message.
    next: u64,
    /// Messages of a request.
    step: u64,
}

impl Floor {
    /// For requests of so many messages, from number 0 on.
    #[must_use]
    pub fn new(messages_per_request: u64) -> Self {
        Floor { step: messages_per_request.max(1), ..Floor::default() }
    }

    /// The number of the next message.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// All numbers below this one have been answered, or given up.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Begins a request; returns the number of its first message.
    pub fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += self.step;
        self.answered.push_back(false);
        number
    }

    /// The request whose first message has this number is answered.
    pub fn answer(&mut self, number: u64) {
        let place = number.saturating_sub(self.first) / self.step;
        if number >= self.first
            && let Some(entry) = self.answered.get_mut(place as usize)
        {
            *entry = true;
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.first += self.step;
        }
    }

    /// No answers come any more to what is under way.
    pub fn abandon(&mut self) {
        self.answered.clear();
        self.first = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_oldest_that_has_no_answer() {
        let mut floor = Floor::new(10);
        assert_eq!([floor.begin(), floor.begin(), floor.begin()], [0, 10, 20]);
        floor.answer(10);
        assert_eq!(floor.first(), 0);
        floor.answer(0);
        assert_eq!((floor.first(), floor.next()), (20, 30));
        floor.answer(0);
        floor.answer(1_000);
        assert_eq!(floor.first(), 20);
        floor.abandon();
        assert_eq!((floor.first(), floor.begin()), (30, 30));
    }
}
