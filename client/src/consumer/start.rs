//! Where a queue begins that was just assigned.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringmq_net::body::ConsumeFrom as Wire;

/// Topics of messages that are consumed again.
pub(crate) const RETRY_PREFIX: &str = "%RETRY%";

/// Where a group begins in a queue in which it has no progress yet. With progress it always goes on from there.
///
/// Two surprises that are the brokers' and not the client's choice: a broker answers 0 instead of "no progress" while all messages that a queue ever
/// had are still in its memory, so that a new group begins a young queue at its first message; and the choice is made queue by queue, when a
/// queue is first assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumeFrom {
    /// Behind the last message. A queue whose first message came after the consumer began is consumed from that one all the same.
    #[default]
    Last,
    /// At the first message.
    First,
    /// At the first message stored at or after that time, to the millisecond.
    Time(SystemTime),
}

impl ConsumeFrom {
    pub(crate) fn wire(self) -> Wire {
        match self {
            ConsumeFrom::Last => Wire::LastOffset,
            ConsumeFrom::First => Wire::FirstOffset,
            ConsumeFrom::Time(_) => Wire::Timestamp,
        }
    }
}

/// What to do to find the first offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// There.
    At(i64),
    /// At the end, which the broker has to be asked for.
    End,
    /// At the end; but at the first message if the queue has had none before this consumer began.
    EndUnlessNew,
    /// At a store time, milliseconds since 1970, for which the broker has to be asked.
    Search(i64),
}

/// The first offset of a queue. `stored` is the group's progress, which was read without an error: a failed read is never taken for
/// none.
pub(crate) fn begin(from: ConsumeFrom, stored: Option<i64>, topic: &str) -> Begin {
    if let Some(stored) = stored.filter(|stored| *stored >= 0) {
        return Begin::At(stored);
    }
    let retry = topic.starts_with(RETRY_PREFIX);
    match from {
        ConsumeFrom::Last if retry => Begin::At(0),
        ConsumeFrom::Last => Begin::EndUnlessNew,
        ConsumeFrom::First => Begin::At(0),
        ConsumeFrom::Time(_) if retry => Begin::End,
        ConsumeFrom::Time(time) => Begin::Search(millis(time)),
    }
}

pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_first_offsets_is_that_of_stock() {
        let time = UNIX_EPOCH + Duration::from_millis(1_234);
        let froms = [ConsumeFrom::Last, ConsumeFrom::First, ConsumeFrom::Time(time)];
        for from in froms {
            for topic in ["T", "%RETRY%g"] {
                assert_eq!(begin(from, Some(7), topic), Begin::At(7));
                assert_eq!(begin(from, Some(0), topic), Begin::At(0));
            }
        }
        for (topic, wanted) in [
            ("T", [Begin::EndUnlessNew, Begin::At(0), Begin::Search(1_234)]),
            ("%RETRY%g", [Begin::At(0), Begin::At(0), Begin::End]),
        ] {
            for (from, wanted) in froms.into_iter().zip(wanted) {
                assert_eq!(begin(from, None, topic), wanted, "{topic} {from:?}");
                assert_eq!(begin(from, Some(-1), topic), wanted, "{topic} {from:?}");
            }
        }
    }
}
