//! The decision which segment to delete next. Pure: the caller brings the segments, the disk and the time.

use crate::log::SegmentInfo;

/// When segments go; stock 4.9.8's rules and defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionRules {
    /// Age in hours from which a segment may go (`fileReservedTime`).
    pub hours: u64,
    /// Local hours of the day at which age alone is enough (`deleteWhen`).
    pub delete_when: Vec<u8>,
    /// Disk use in percent above which age alone is enough at any hour (`diskMaxUsedSpaceRatio`).
    pub aged_percent: u8,
    /// Disk use in percent above which segments go whatever their age.
    pub forced_percent: u8,
    /// Disk use in percent above which new messages are refused.
    pub full_percent: u8,
    /// Most segments deleted in one round.
    pub segments_a_round: usize,
}

impl Default for RetentionRules {
    fn default() -> Self {
        RetentionRules {
            hours: 72,
            delete_when: vec![4],
            aged_percent: 75,
            forced_percent: 85,
            full_percent: 90,
            segments_a_round: 10,
        }
    }
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Keep,
    /// Delete the oldest segment.
    Delete {
        /// Its start offset.
        start: u64,
        /// Why, for the log.
        why: &'static str,
    },
}

/// Decides about the oldest of `segments` (in log order). `local_hour` is the hour of the day where the broker runs,
/// `manual` that an administrator asked for expired segments to go now.
pub fn decide(
    rules: &RetentionRules,
    segments: &[SegmentInfo],
    used_percent: u8,
    now_ms: i64,
    local_hour: u8,
    manual: bool,
) -> Decision {
    // The last segment is never deleted, whatever its age.
    let [oldest, _, ..] = segments else { return Decision::Keep };
    if used_percent > rules.forced_percent {
        return Decision::Delete { start: oldest.start, why: "disk use is above the forced limit" };
    }
    let allowed =
        manual || used_percent > rules.aged_percent || rules.delete_when.contains(&local_hour);
    let age_ms = i64::try_from(rules.hours.saturating_mul(3_600_000)).unwrap_or(i64::MAX);
    // A modification time ahead of the clock (it was set back) counts as now: never as an age.
    let expired = oldest.modified_ms.saturating_add(age_ms) <= now_ms;
    if allowed && expired {
        return Decision::Delete { start: oldest.start, why: "older than the retention time" };
    }
    Decision::Keep
}
