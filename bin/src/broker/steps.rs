//! Steps of the wall clock, for what must not be undone by one: the age of segments.
//!
//! A machine that comes up with a wrong date, or a mistyped `date`, can set the clock forward by days. By the clock alone every
//! segment would then be older than the retention time and deleted, and setting the clock back brings none of them home. So
//! age is counted by the time that has really passed while this process watched: a segment that was written before a step is
//! taken to have been written that much later. A start begins anew with the clock as it is.

/// Less than this is no step: clocks drift, and are slewed.
const STEP_MS_MIN: i64 = 60_000;
/// Steps that are remembered apart; older ones are joined.
const STEPS_MAX: usize = 64;

/// The steps forward that were seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Steps {
    /// The wall clock and the one that is never set, at the last look.
    last: Option<(i64, i64)>,
    /// Where the wall clock stood before each step, and by how much it went.
    forward: Vec<(i64, i64)>,
}

impl Steps {
    /// Looks at both clocks, in milliseconds; `passed_ms` is one that is never set and counts the machine's sleep. Returns by how much
    /// the wall clock was set forward since the last look, or 0.
    pub(super) fn look(&mut self, wall_ms: i64, passed_ms: i64) -> i64 {
        let Some((wall_before, passed_before)) = self.last.replace((wall_ms, passed_ms)) else {
            return 0;
        };
        let stepped = (wall_ms - wall_before) - (passed_ms - passed_before);
        if stepped <= -STEP_MS_MIN {
            // Set back: what was taken off before is given back first, so that to and fro is nothing.
            self.give_back(-stepped);
        }
        if stepped < STEP_MS_MIN {
            return 0;
        }
        if self.forward.len() >= STEPS_MAX {
            let (_, joined) = self.forward.remove(0);
            if let Some(first) = self.forward.first_mut() {
                first.1 += joined;
            }
        }
        self.forward.push((wall_before, stepped));
        stepped
    }

    fn give_back(&mut self, mut back: i64) {
        while let Some(last) = self.forward.last_mut() {
            let given = last.1.min(back);
            last.1 -= given;
            back -= given;
            if last.1 > 0 {
                return;
            }
            self.forward.pop();
        }
    }

    /// The time from which to count the age of what the clock says was written at `modified_ms`.
    pub(super) fn age_from(&self, modified_ms: i64) -> i64 {
        let later = self.forward.iter().filter(|(before, _)| modified_ms <= *before);
        later.fold(modified_ms, |from, (_, stepped)| from.saturating_add(*stepped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn time_that_passes_is_no_step() {
        let mut steps = Steps::default();
        assert_eq!(steps.look(1_000 * HOUR, 5), 0);
        assert_eq!(steps.look(1_073 * HOUR, 5 + 73 * HOUR), 0, "the machine slept");
        assert_eq!(steps.look(1_073 * HOUR + 30_000, 5 + 73 * HOUR), 0, "a slew");
        assert_eq!(steps.age_from(1_000 * HOUR), 1_000 * HOUR);
    }

    #[test]
    fn a_step_forward_makes_nothing_older() {
        let mut steps = Steps::default();
        steps.look(1_000 * HOUR, 0);
        assert_eq!(steps.look(1_100 * HOUR, 0), 100 * HOUR);
        assert_eq!(steps.age_from(990 * HOUR), 1_090 * HOUR, "it stays ten hours old");
        assert_eq!(steps.age_from(1_100 * HOUR), 1_100 * HOUR, "written after the step");
        assert_eq!(steps.look(1_105 * HOUR, 5 * HOUR), 0);
        assert_eq!(steps.look(1_106 * HOUR, 5 * HOUR), HOUR);
        assert_eq!(steps.age_from(990 * HOUR), 1_091 * HOUR);
        assert_eq!(steps.age_from(1_100 * HOUR), 1_101 * HOUR);
    }

    #[test]
    fn to_and_fro_is_nothing() {
        let mut steps = Steps::default();
        steps.look(1_000 * HOUR, 0);
        steps.look(1_100 * HOUR, 0);
        steps.look(1_000 * HOUR, 0);
        assert_eq!(steps.age_from(990 * HOUR), 990 * HOUR);
        assert_eq!(steps.look(900 * HOUR, 0), 0);
        assert_eq!(steps.age_from(990 * HOUR), 990 * HOUR, "age is never made longer");
    }

    #[test]
    fn many_steps_are_remembered_in_little_room() {
        let mut steps = Steps::default();
        for n in 0..1_000 {
            steps.look(n * HOUR, 0);
        }
        assert_eq!(steps.forward.len(), STEPS_MAX);
        assert_eq!(steps.age_from(0), 999 * HOUR);
    }
}
