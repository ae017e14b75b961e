//! What a member knows of its lock on a queue: brokers give a queue of an orderly group to one client at a time.

use std::time::Duration;

use tokio::time::Instant;

/// Messages are begun only this long after the lock was last renewed; stock's number.
pub(crate) const TRUST: Duration = Duration::from_secs(30);
/// A broker lets another client have the lock this long after it was last renewed; stock's 60 s, with a margin.
const KEPT: Duration = Duration::from_secs(58);

/// See the module. Times are those at which the renewal was asked for: the broker's clock began later.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueLock {
    renewed: Option<Instant>,
    /// Somebody else may have had it since it was last ours for sure.
    doubtful: bool,
}

impl QueueLock {
    /// A lock that was just granted for the first time.
    pub(crate) fn granted_first(asked: Instant) -> QueueLock {
        QueueLock { renewed: Some(asked), doubtful: false }
    }

    /// Has it been ours all the time, if the broker grants it now? Otherwise the group's progress has to be looked at first.
    pub(crate) fn continues(&self, asked: Instant) -> bool {
        !self.doubtful && self.renewed.is_some_and(|renewed| asked.duration_since(renewed) < KEPT)
    }

    /// It is ours from now on.
    pub(crate) fn granted(&mut self, asked: Instant) {
        *self = QueueLock { renewed: Some(asked), doubtful: false };
    }

    /// The broker says that it is somebody else's.
    pub(crate) fn refused(&mut self) {
        *self = QueueLock { renewed: None, doubtful: true };
    }

    /// The connection was lost: a broker that starts again has no locks, and gives them to whoever asks first.
    pub(crate) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// May a message be begun?
    pub(crate) fn may_consume(&self, now: Instant) -> bool {
        !self.doubtful && self.renewed.is_some_and(|renewed| now < renewed + TRUST)
    }

    /// When a message that is being consumed must have ended.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + KEPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn no_message_is_begun_without_a_lock_younger_than_thirty_seconds() {
        let start = Instant::now();
        let mut lock = QueueLock::default();
        assert!(!lock.may_consume(start));
        lock = QueueLock::granted_first(start);
        assert!(lock.may_consume(start + 29 * S));
        assert!(!lock.may_consume(start + 30 * S));
        assert!(lock.continues(start + 40 * S));
        lock.granted(start + 40 * S);
        assert!(lock.may_consume(start + 69 * S));
        assert_eq!(lock.ends(), Some(start + 98 * S));
        lock.refused();
        assert!(!lock.may_consume(start + 41 * S));
        assert_eq!(lock.ends(), None);
    }

    #[test]
    fn a_lock_that_somebody_else_may_have_had_does_not_just_continue() {
        let start = Instant::now();
        let mut lock = QueueLock::granted_first(start);
        assert!(lock.continues(start + 57 * S));
        assert!(!lock.continues(start + 58 * S));
        lock.doubt();
        assert!(!lock.may_consume(start + S));
        assert!(!lock.continues(start + S));
        lock.granted(start + 2 * S);
        assert!(lock.continues(start + 3 * S));
        lock.refused();
        assert!(!lock.continues(start + 3 * S));
    }
}
