//! Delayed messages: the levels, where a delayed message is put, and when it is due.
//!
//! A message with DELAY = L is stored in queue L - 1 of SCHEDULE_TOPIC_XXXX with its own topic and queue
//! in REAL_TOPIC and REAL_QID; the tagsCode of its consume queue unit is its deliver time. Each level is
//! a queue in order of deliver time, so one look at its next unit tells when to wake.

use std::collections::BTreeMap;

use ringmq_net::body::{Body, DelayOffsetTable};
use thiserror::Error;

use super::table_text::{self, TableTextError};

/// The levels of a stock 4.9.8 broker.
pub const DEFAULT_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// The topic in which delayed messages wait (stock name).
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

/// At most this many levels; each is a queue.
pub const LEVELS_MAX: usize = 1_024;

/// The delay of a level that the table doesn't know, in ms (stock 4.9.8).
pub const UNKNOWN_LEVEL_MS: i64 = 1_000;

/// The longest that a delivery loop may sleep before it looks at the wall clock again, in ms: a clock
/// that jumps forward makes messages late by no more than this.
pub const SLEEP_MS_MAX: i64 = 1_000;

/// The longest delay of one level: ten years, in ms. Above it sums could overflow.
const DELAY_MS_MAX: i64 = 10 * 366 * 86_400_000;

/// A `messageDelayLevel` text that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DelayLevelsError {
    /// A word that is no number with a unit.
    #[error("delay level {level} is \"{word}\": write a number and one of s, m, h, d, such as 10s")]
    Word {
        /// Position from 1.
        level: usize,
        /// The text.
        word: String,
    },
    /// Nothing in it, or too much.
    #[error("{0} delay levels: between 1 and {LEVELS_MAX} are possible")]
    Count(usize),
}

/// The delay levels of a broker. Levels count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels {
    ms: Vec<i64>,
}

impl Default for DelayLevels {
    fn default() -> Self {
        Self::parse(DEFAULT_LEVELS).unwrap_or(Self { ms: vec![UNKNOWN_LEVEL_MS] })
    }
}

/// Where a delayed message goes instead of its own queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayRoute {
    /// The level, within the known ones: the DELAY property as it is to be stored.
    pub level: i32,
    /// The queue of [`SCHEDULE_TOPIC`].
    pub queue_id: i32,
    /// What to add to the store time for the deliver time, ms.
    pub delay_ms: i64,
}

impl DelayLevels {
    /// Reads `messageDelayLevel`: words of a number and a unit s, m, h or d, separated by spaces.
    pub fn parse(text: &str) -> Result<Self, DelayLevelsError> {
        let mut ms = Vec::new();
        for word in text.split_whitespace() {
            let bad = || DelayLevelsError::Word { level: ms.len() + 1, word: word.to_owned() };
            let unit_ms = match word.chars().next_back() {
                Some('s') => 1_000,
                Some('m') => 60_000,
                Some('h') => 3_600_000,
                Some('d') => 86_400_000,
                _ => return Err(bad()),
            };
            let delay_ms = word[..word.len() - 1]
                .parse::<u32>()
                .ok()
                .and_then(|n| i64::from(n).checked_mul(unit_ms))
                .filter(|delay_ms| *delay_ms <= DELAY_MS_MAX)
                .ok_or_else(bad)?;
            ms.push(delay_ms);
        }
        match ms.len() {
            1..=LEVELS_MAX => Ok(Self { ms }),
            n => Err(DelayLevelsError::Count(n)),
        }
    }

    /// The highest level.
    pub fn level_max(&self) -> i32 {
        self.ms.len() as i32
    }

    /// The delay of a level in ms; `None` if there is no such level.
    pub fn delay_ms(&self, level: i32) -> Option<i64> {
        let index = usize::try_from(level.checked_sub(1)?).ok()?;
        self.ms.get(index).copied()
    }

    /// The deliver time of a record in the delay topic: what its consume queue unit carries as
    /// tagsCode. The level is capped at the highest; an impossible one delays by 1 s (stock 4.9.8).
    pub fn deliver_time_ms(&self, level: i32, store_time_ms: i64) -> i64 {
        let level = level.min(self.level_max());
        store_time_ms.saturating_add(self.delay_ms(level).unwrap_or(UNKNOWN_LEVEL_MS))
    }

    /// Where a message with this delay level goes, capped at the highest; `None` if the level is 0: the
    /// message isn't delayed. Not to be asked for prepared and rollback messages (sysFlag bits 0x4 and
    /// 0xC). The caller stores DELAY = the route's level, REAL_TOPIC and REAL_QID with it.
    pub fn route(&self, level: u32) -> Option<DelayRoute> {
        let level = i32::try_from(level).unwrap_or(i32::MAX).min(self.level_max());
        let delay_ms = self.delay_ms(level)?;
        Some(DelayRoute { level, queue_id: level_to_queue(level), delay_ms })
    }
}

/// Level L waits in queue L - 1 of the delay topic.
pub fn level_to_queue(level: i32) -> i32 {
    level - 1
}

/// The level that waits in this queue of the delay topic.
pub fn queue_to_level(queue_id: i32) -> i32 {
    queue_id + 1
}

/// What the delivery loop of one level does about its next unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Deliver it now.
    Now,
    /// Look again in so many ms; never above [`SLEEP_MS_MAX`], never 0.
    In(i64),
}

/// Decides about a level's next unit. A deliver time more than one delay of the level ahead means that
/// the clock was set back since: it counts as due (stock 4.9.8). Where stock polls each 100 ms, the
/// answer is exact.
pub fn due(deliver_time_ms: i64, delay_ms: i64, now_ms: i64) -> Due {
    let wait_ms = deliver_time_ms.saturating_sub(now_ms);
    if wait_ms <= 0 || wait_ms > delay_ms {
        return Due::Now;
    }
    Due::In(wait_ms.min(SLEEP_MS_MAX))
}

/// How far each level has delivered: the content of `config/delayOffset.json`. After a crash the
/// deliveries since the last save happen again: delivery is at least once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayOffsets {
    offsets: BTreeMap<i32, i64>,
    dirty: bool,
}

/// A stored offset outside of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayOffsetMoved {
    /// The level.
    pub level: i32,
    /// What the file said.
    pub stored: i64,
    /// Where delivery goes on.
    pub used: i64,
}

impl DelayOffsets {
    /// No level has delivered anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// The queue offset that this level looks at next.
    pub fn get(&self, level: i32) -> i64 {
        self.offsets.get(&level).copied().unwrap_or(0)
    }

    /// This level goes on at `offset`.
    pub fn set(&mut self, level: i32, offset: i64) {
        if self.offsets.insert(level, offset) != Some(offset) {
            self.dirty = true;
        }
    }

    /// The levels that have an offset, in order.
    pub fn iter(&self) -> impl Iterator<Item = (i32, i64)> {
        self.offsets.iter().map(|(level, offset)| (*level, *offset))
    }

    /// Whether anything changed since the last call: save the file then (each 10 s and at the end).
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// Reads `delayOffset.json` (also a 5.x broker's), or the answer of request 45.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TableTextError> {
        let body: DelayOffsetTable = table_text::read(bytes, "offsetTable")?;
        Ok(Self { offsets: body.offsets, dirty: false })
    }

    /// The content of `delayOffset.json`.
    pub fn to_file(&self) -> Vec<u8> {
        table_text::to_file(&self.body())
    }

    /// The answer of request 45.
    pub fn to_json(&self) -> Vec<u8> {
        self.body().to_json()
    }

    fn body(&self) -> DelayOffsetTable {
        DelayOffsetTable { offsets: self.offsets.clone() }
    }

    /// After recovery: brings every offset into its queue's `[min, max]`, as stock 4.9.8 does, and
    /// tells which moved so that it can be logged. A level below the min has lost delayed messages to
    /// retention; one above the max has lost its queue.
    pub fn clamp(&mut self, mut bounds: impl FnMut(i32) -> (i64, i64)) -> Vec<DelayOffsetMoved> {
        let mut moved = Vec::new();
        for (level, offset) in &mut self.offsets {
            let (min, max) = bounds(level_to_queue(*level));
            let used = (*offset).max(min).min(max.max(min));
            if used != *offset {
                moved.push(DelayOffsetMoved { level: *level, stored: *offset, used });
                *offset = used;
                self.dirty = true;
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_levels_are_stocks() {
        let levels = DelayLevels::default();
        assert_eq!(levels.level_max(), 18);
        assert_eq!(levels.delay_ms(1), Some(1_000));
        assert_eq!(levels.delay_ms(3), Some(10_000));
        assert_eq!(levels.delay_ms(18), Some(7_200_000));
        assert_eq!(levels.delay_ms(0), None);
        assert_eq!(levels.delay_ms(19), None);
        assert_eq!(levels.delay_ms(i32::MIN), None);
    }

    #[test]
    fn bad_level_texts_are_refused_by_position() {
        assert_eq!(
            DelayLevels::parse("1s 5x").unwrap_err(),
            DelayLevelsError::Word { level: 2, word: "5x".into() }
        );
        for bad in ["", "s", "-1s", "1", "1é", "99999999d", "4294967296s"] {
            assert!(DelayLevels::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(DelayLevels::parse("1d").unwrap().delay_ms(1), Some(86_400_000));
    }

    #[test]
    fn a_level_above_the_highest_is_capped_and_none_means_no_delay() {
        let levels = DelayLevels::default();
        let route = DelayRoute { level: 18, queue_id: 17, delay_ms: 7_200_000 };
        assert_eq!(levels.route(99), Some(route));
        assert_eq!(levels.route(u32::MAX), Some(route));
        assert_eq!(levels.route(0), None);
    }

    #[test]
    fn deliver_time_of_an_unknown_level_is_a_second_later() {
        let levels = DelayLevels::default();
        assert_eq!(levels.deliver_time_ms(3, 1_700_000_000_123), 1_700_000_010_123);
        assert_eq!(levels.deliver_time_ms(99, 0), 7_200_000);
        assert_eq!(levels.deliver_time_ms(0, 5), 1_005);
    }

    #[test]
    fn a_unit_is_due_at_its_time_and_when_the_clock_went_back() {
        assert_eq!(due(10_000, 5_000, 10_000), Due::Now);
        assert_eq!(due(10_000, 5_000, 9_999), Due::In(1));
        assert_eq!(due(10_000, 5_000, 5_000), Due::In(1_000));
        assert_eq!(due(10_000, 5_000, 4_999), Due::Now);
        assert_eq!(due(i64::MAX, 5_000, i64::MIN), Due::Now);
    }

    #[test]
    fn offsets_outside_their_queue_are_clamped_and_named() {
        let mut offsets = DelayOffsets::new();
        offsets.set(1, 5);
        offsets.set(2, 50);
        offsets.set(3, 1);
        assert!(offsets.take_dirty());
        let moved = offsets.clamp(|queue| match queue {
            0 => (0, 10),
            1 => (0, 40),
            _ => (3, 9),
        });
        assert_eq!(
            moved,
            [
                DelayOffsetMoved { level: 2, stored: 50, used: 40 },
                DelayOffsetMoved { level: 3, stored: 1, used: 3 }
            ]
        );
        assert_eq!((offsets.get(1), offsets.get(2), offsets.get(9)), (5, 40, 0));
        assert!(offsets.take_dirty());
        assert!(!offsets.take_dirty());
    }
}
