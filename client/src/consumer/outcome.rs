//! What a listener made of messages, and what becomes of those that failed.

use std::fmt::Display;
use std::time::Duration;

use crate::message::{Message, ReceivedMessage, names};

/// Tries of a message by concurrent consumers before it becomes a dead letter, unless said; stock's number.
pub(crate) const RETRIES_USUAL: i32 = 16;
/// The first delay level of retries: 10 s in stock's table.
const FIRST_RETRY_LEVEL: i32 = 3;

/// What became of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    #[default]
    Consumed,
    /// It is to come again. For concurrent consumers the broker delays it longer with each time: 10 s, 30 s, 1 min ... 2 h, and after the last
    /// retry it is a dead letter. For orderly consumers the queue waits and then it comes first again.
    Retry,
    /// As [`Outcome::Retry`], at a delay level of the broker's table, 1 is 1 s; for orderly consumers as `Retry`.
    RetryAtLevel(u32),
    /// As [`Outcome::Retry`], for orderly consumers after that time, 10 ms to 30 s; for concurrent ones as `Retry`.
    RetryAfter(Duration),
    /// It shall not come again: a dead letter at once.
    DeadLetter,
}

/// What a listener may return.
pub trait IntoOutcome {
    /// What it means.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Consumed
    }
}

/// An error is logged, and the message is retried.
impl<T: IntoOutcome, E: Display> IntoOutcome for std::result::Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(outcome) => outcome.into_outcome(),
            Err(error) => {
                tracing::warn!(%error, "a listener failed, its message will be retried");
                Outcome::Retry
            }
        }
    }
}

/// What became of a batch: the first `consumed` messages are done, and this is the outcome of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOutcome {
    /// How many, from the first one on.
    pub consumed: usize,
    /// The others'.
    pub rest: Outcome,
}

/// What a listener of batches may return.
pub trait IntoBatchOutcome {
    /// What it means.
    fn into_batch_outcome(self) -> BatchOutcome;
}

impl IntoBatchOutcome for BatchOutcome {
    fn into_batch_outcome(self) -> BatchOutcome {
        self
    }
}

impl<T: IntoOutcome> IntoBatchOutcome for T {
    fn into_batch_outcome(self) -> BatchOutcome {
        BatchOutcome { consumed: 0, rest: self.into_outcome() }
    }
}

impl BatchOutcome {
    /// What became of the message at a place of the batch.
    pub(crate) fn of(&self, at: usize) -> Outcome {
        if at < self.consumed { Outcome::Consumed } else { self.rest }
    }
}

/// What a concurrent consumer does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// Give it back to the broker at this level: 0 lets the broker choose, -1 is a dead letter.
    SendBack(i32),
    /// It failed, and nobody repeats it: broadcasting has no retries.
    Dropped,
}

pub(crate) fn fate(outcome: Outcome, broadcasting: bool) -> Fate {
    match outcome {
        Outcome::Consumed => Fate::Done,
        _ if broadcasting => Fate::Dropped,
        Outcome::Retry | Outcome::RetryAfter(_) => Fate::SendBack(0),
        Outcome::RetryAtLevel(level) => Fate::SendBack(i32::try_from(level).unwrap_or(i32::MAX)),
        Outcome::DeadLetter => Fate::SendBack(-1),
    }
}

/// What an orderly consumer does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderlyFate {
    Done,
    /// Again after that time, and nothing of the queue before it.
    Wait(Duration),
    /// No more tries: it becomes a dead letter, and the queue goes on.
    GiveUp,
}

/// Bounds of a wait, as in stock.
const WAIT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(30));

/// `retries`: times a message may come again; `None` for ever.
pub(crate) fn orderly_fate(
    outcome: Outcome,
    reconsume_times: i32,
    retries: Option<i32>,
    usual_wait: Duration,
) -> OrderlyFate {
    let wait = match outcome {
        Outcome::Consumed => return OrderlyFate::Done,
        Outcome::DeadLetter => return OrderlyFate::GiveUp,
        Outcome::RetryAfter(wait) => wait,
        Outcome::Retry | Outcome::RetryAtLevel(_) => usual_wait,
    };
    match retries {
        Some(retries) if reconsume_times >= retries => OrderlyFate::GiveUp,
        _ => OrderlyFate::Wait(wait.clamp(WAIT.0, WAIT.1)),
    }
}

/// How a message goes on its way when the broker does not take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Retried later, unless it has been retried `max` times.
    Later { max: i32 },
    /// A dead letter.
    Never,
}

/// The message that carries a failed one to the retry topic of a group, from where the broker delays it or makes it a dead letter. The failed one
/// is not touched.
pub(crate) fn retry_message(failed: &ReceivedMessage, group: &str, again: Again) -> Message {
    let mut message =
        Message::new(format!("{}{group}", super::start::RETRY_PREFIX), failed.body.clone());
    let carried = |name: &str| !matches!(name, names::TRAN_MSG | names::DELAY | names::PGROUP);
    for (name, value) in &failed.properties {
        if carried(name) && !value.is_empty() {
            message = message.system(name, value.as_str());
        }
    }
    let origin = failed.property(names::ORIGIN_MESSAGE_ID);
    let origin = origin.map_or_else(|| failed.offset_message_id(), str::to_owned);
    let times = failed.reconsume_times.saturating_add(1);
    let (times, max, level) = match again {
        Again::Later { max } => (times, max, Some(FIRST_RETRY_LEVEL + failed.reconsume_times)),
        // Brokers from 5.x on want more than the bound, those before at least the bound.
        Again::Never => (times, failed.reconsume_times, None),
    };
    message = message
        .flag(failed.flag)
        .system(names::ORIGIN_MESSAGE_ID, origin)
        .system(names::RETRY_TOPIC, failed.topic())
        .system(names::RECONSUME_TIME, times.to_string())
        .system(names::MAX_RECONSUME_TIMES, max.to_string());
    match level {
        Some(level) => message.system(names::DELAY, level.to_string()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::fixture::message;

    #[test]
    fn a_failed_message_goes_back_at_the_level_that_was_asked_for() {
        assert_eq!(fate(Outcome::Consumed, false), Fate::Done);
        assert_eq!(fate(Outcome::Retry, false), Fate::SendBack(0));
        assert_eq!(fate(Outcome::RetryAtLevel(5), false), Fate::SendBack(5));
        assert_eq!(fate(Outcome::DeadLetter, false), Fate::SendBack(-1));
        assert_eq!(fate(Outcome::Retry, true), Fate::Dropped);
        assert_eq!(fate(Outcome::Consumed, true), Fate::Done);
    }

    #[test]
    fn results_mean_what_one_expects() {
        assert_eq!(().into_outcome(), Outcome::Consumed);
        assert_eq!(Ok::<(), String>(()).into_outcome(), Outcome::Consumed);
        assert_eq!(Err::<(), _>("no").into_outcome(), Outcome::Retry);
        assert_eq!(Ok::<_, String>(Outcome::DeadLetter).into_outcome(), Outcome::DeadLetter);
        let part = BatchOutcome { consumed: 2, rest: Outcome::Retry };
        let all: Vec<Outcome> = (0..3).map(|at| part.of(at)).collect();
        assert_eq!(all, [Outcome::Consumed, Outcome::Consumed, Outcome::Retry]);
        assert_eq!(Outcome::Retry.into_batch_outcome().of(0), Outcome::Retry);
        assert_eq!(().into_batch_outcome().of(7), Outcome::Consumed);
    }

    #[test]
    fn an_orderly_queue_waits_for_ever_or_gives_up_at_the_bound() {
        let usual = Duration::from_secs(1);
        let of = |outcome, times, retries| orderly_fate(outcome, times, retries, usual);
        assert_eq!(of(Outcome::Consumed, 99, Some(1)), OrderlyFate::Done);
        assert_eq!(of(Outcome::Retry, 1_000_000, None), OrderlyFate::Wait(usual));
        assert_eq!(of(Outcome::Retry, 2, Some(3)), OrderlyFate::Wait(usual));
        assert_eq!(of(Outcome::Retry, 3, Some(3)), OrderlyFate::GiveUp);
        assert_eq!(of(Outcome::DeadLetter, 0, None), OrderlyFate::GiveUp);
        for (asked, got) in [(0, 10), (500, 500), (60_000, 30_000)] {
            let outcome = Outcome::RetryAfter(Duration::from_millis(asked));
            assert_eq!(of(outcome, 0, None), OrderlyFate::Wait(Duration::from_millis(got)));
        }
    }

    #[test]
    fn what_carries_a_failed_message_has_all_of_it_and_leaves_it_alone() {
        let text =
            "UNIQ_KEY\u{1}ID\u{2}TAGS\u{1}a\u{2}TRAN_MSG\u{1}true\u{2}mine\u{1}1\u{2}DELAY\u{1}9";
        let mut failed = message("T", 3, text);
        (failed.reconsume_times, failed.flag) = (2, 5);
        let before = failed.clone();
        let later = retry_message(&failed, "g", Again::Later { max: 16 });
        assert_eq!(failed, before);
        assert_eq!((later.topic(), later.flag, later.body()), ("%RETRY%g", 5, &failed.body));
        for (name, value) in [
            ("UNIQ_KEY", Some("ID")),
            ("TAGS", Some("a")),
            ("mine", Some("1")),
            ("TRAN_MSG", None),
            ("RETRY_TOPIC", Some("T")),
            ("RECONSUME_TIME", Some("3")),
            ("MAX_RECONSUME_TIMES", Some("16")),
            ("DELAY", Some("5")),
            ("ORIGIN_MESSAGE_ID", Some("7F00000100002A9F000000000000012C")),
        ] {
            assert_eq!(later.get(name), value, "{name}");
        }
        let never = retry_message(&failed, "g", Again::Never);
        assert_eq!(never.get("DELAY"), None);
        assert_eq!(
            (never.get("RECONSUME_TIME"), never.get("MAX_RECONSUME_TIMES")),
            (Some("3"), Some("2"))
        );
    }
}
