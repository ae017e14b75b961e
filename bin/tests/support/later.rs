//! Judges what happens to messages later: those sent with a delay, and those that a consumer sent back.
//!
//! Both wait in the delay topic, in the queue of their level, from which the broker delivers them in order. What holds for an acknowledged one,
//! also across kills and crashes:
//!
//! - it stands once in the delay topic, every byte of it, at the offset that was told, whatever happens afterwards;
//! - it is delivered at least once, never before its time, and unchanged;
//! - delivery goes on where the saved progress says, or before it: it may repeat some after a kill, and never skips one. So what a queue
//!   got of one level is runs of successive messages, at most one more than there were kills.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::checker::{Rules, hold, known, physical_offset, pull, same_properties, scan};
use super::journal::{Delayed, Identity, Journal, Returned, Told, properties};
use super::record::Record;
use super::wire::{Conn, eventually};

/// The topic in which delayed messages wait (stock name).
const DELAY_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// The delays of the levels that the load uses, milliseconds, and the configuration that says so.
pub const DELAYS_MS: [i64; 2] = [1_000, 2_000];
pub const DELAYS_CONFIG: &str = "[topics]\ndelay_levels = \"1s 2s\"\n";

/// Where a message belongs: shard, topic, queue.
type Goal = (u16, String, i32);

/// A message that waits or has waited.
#[derive(Debug, Clone)]
struct Waiting {
    id: Identity,
    stored: i64,
    reconsume_times: i32,
    properties: String,
    physical_offset: i64,
}

/// What one check went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaterSummary {
    /// Messages in the delay topic, sent with a delay or sent back.
    pub waiting: u64,
    /// Deliveries found.
    pub delivered: u64,
    /// Of them, repetitions.
    pub repeated: u64,
    /// Dead letters found.
    pub dead: u64,
}

/// What to judge by.
pub struct Later<'a> {
    pub shards: &'a [SocketAddr],
    /// The load's topic, and the one that its delayed messages are for; both have that many queues.
    pub topic: &'a str,
    pub late_topic: &'a str,
    pub queues: u32,
    pub group: &'a str,
    pub journal: &'a Journal,
    pub told: &'a Told,
    pub rules: Rules,
    /// Kills and crashes since the store was made.
    pub crashes: u64,
}

impl Later<'_> {
    /// Checks the delay topic, what was delivered so far, and the dead letters.
    pub fn check(&self) -> Result<LaterSummary, String> {
        let mut summary = LaterSummary::default();
        for (shard, address) in self.shards.iter().enumerate() {
            let shard = shard as u16;
            let mut conn = Conn::open(*address).map_err(|e| format!("connecting: {e}"))?;
            let mut goals = HashMap::new();
            let mut returned = HashSet::new();
            for level in 1..=DELAYS_MS.len() as i32 {
                let waiting = self.delay_queue(&mut conn, shard, level, &mut returned)?;
                summary.waiting += waiting.values().map(|w| w.len() as u64).sum::<u64>();
                goals.extend(waiting.into_iter().map(|(goal, waiting)| ((goal, level), waiting)));
            }
            self.all_returned(shard, &returned)?;
            for queue in 0..self.queues as i32 {
                self.goal(
                    &mut conn,
                    (shard, self.late_topic.to_owned(), queue),
                    &goals,
                    &mut summary,
                )?;
            }
            if self.may_be_read(&mut conn, shard, &self.retry_topic(), |r| r.delay > 0)? {
                let goal = (shard, self.retry_topic(), 0);
                self.goal(&mut conn, goal, &goals, &mut summary)?;
            }
            if self.may_be_read(&mut conn, shard, &self.dead_topic(), |r| r.delay < 0)? {
                summary.dead += self.dead_letters(&mut conn, shard)?;
            }
        }
        Ok(summary)
    }

    /// Waits until every message that waited at the last look has been delivered.
    pub fn await_delivered(&self) -> Result<LaterSummary, String> {
        let mut last = Ok(LaterSummary::default());
        let all = eventually(Duration::from_secs(30), || {
            last = self.check();
            match &last {
                Ok(s) if s.delivered - s.repeated < s.waiting => None,
                _ => Some(()),
            }
        });
        let summary = last?;
        hold!(all.is_some(), "delayed messages are not delivered within 30 s: {summary:?}");
        Ok(summary)
    }

    fn retry_topic(&self) -> String {
        format!("%RETRY%{}", self.group)
    }

    fn dead_topic(&self) -> String {
        format!("%DLQ%{}", self.group)
    }

    /// A topic that is made for a first message may be gone after a crash, until a message was acknowledged that is for it.
    fn may_be_read(
        &self,
        conn: &mut Conn,
        shard: u16,
        topic: &str,
        is_for_it: impl Fn(&Returned) -> bool,
    ) -> Result<bool, String> {
        let acked = self
            .told
            .returned
            .iter()
            .any(|((of, ..), returned)| *of == shard && returned.acked && is_for_it(returned));
        let reply = pull(conn, topic, 0, 0, 0).map_err(|e| format!("a pull: {e}"))?;
        let gone = reply.code == 17;
        hold!(!(gone && acked), "shard {shard}: {topic} has acknowledged messages and is gone");
        Ok(!gone)
    }

    /// One level's queue of the delay topic: every acknowledged message at its place, and nothing invented. Gives what waits for each goal,
    /// in order.
    fn delay_queue(
        &self,
        conn: &mut Conn,
        shard: u16,
        level: i32,
        returned: &mut HashSet<Identity>,
    ) -> Result<HashMap<Goal, Vec<Waiting>>, String> {
        let acked: HashMap<i64, &Delayed> = self
            .told
            .delayed
            .iter()
            .filter(|d| (d.shard, d.delay) == (shard, level))
            .map(|d| (d.offset, d))
            .collect();
        let mut goals: HashMap<Goal, Vec<Waiting>> = HashMap::new();
        let mut sent = HashSet::new();
        let end = scan(conn, DELAY_TOPIC, level - 1, true, |record| {
            let goal = goal(record, shard)?;
            let id = known(record, self.journal)?;
            if goal.1 == self.late_topic {
                hold!(sent.insert(id), "delayed {id:?} waits twice");
                self.is_delayed(record, id, level, &goal)?;
            } else {
                hold!(goal.1 == self.retry_topic() && goal.2 == 0, "nobody sends back to {goal:?}");
                hold!(returned.insert(id), "returned {id:?} waits twice");
                self.is_returned(record, id, level, shard)?;
            }
            if let Some(acked) = acked.get(&record.queue_offset) {
                hold!(
                    acked.id == id && acked.queue == goal.2,
                    "{id:?} for {goal:?} waits at {} instead of {acked:?}",
                    record.queue_offset
                );
                hold!(
                    physical_offset(&acked.message_id) == Some(record.physical_offset),
                    "message id of {acked:?} and the record's offset {}",
                    record.physical_offset
                );
            }
            goals.entry(goal).or_default().push(Waiting {
                id,
                stored: record.stored,
                reconsume_times: record.reconsume_times,
                properties: record.properties.to_owned(),
                physical_offset: record.physical_offset,
            });
            Ok(())
        })
        .map_err(|why| format!("shard {shard}, delay level {level}: {why}"))?;
        for acked in acked.values() {
            hold!(acked.offset < end, "an acknowledged delayed message is lost: {acked:?}");
            self.rules.judge_level(acked.level.as_deref(), true, &format!("{acked:?}"))?;
        }
        Ok(goals)
    }

    fn is_delayed(
        &self,
        record: &Record<'_>,
        id: Identity,
        level: i32,
        goal: &Goal,
    ) -> Result<(), String> {
        let (level, queue) = (level.to_string(), goal.2.to_string());
        let set =
            [("DELAY", level.as_str()), ("REAL_TOPIC", self.late_topic), ("REAL_QID", &queue)];
        let with_wait = [set[0], set[1], set[2], ("WAIT", "true")];
        same_properties(record, &properties(id), &[&set, &with_wait])?;
        hold!(record.reconsume_times == 0, "{id:?} was consumed {} times", record.reconsume_times);
        Ok(())
    }

    /// A message that was sent back is the original but for what a retry adds.
    fn is_returned(
        &self,
        record: &Record<'_>,
        id: Identity,
        level: i32,
        shard: u16,
    ) -> Result<(), String> {
        let key = (shard, self.group.to_owned(), id);
        let Some(returned) = self.told.returned.get(&key) else {
            return Err(format!("{id:?} waits for a retry and was never sent back"));
        };
        hold!(
            returned.delay == level,
            "{id:?} was sent back as {returned:?}, not to level {level}"
        );
        let (level, topic) = (level.to_string(), self.retry_topic());
        let set = [
            ("DELAY", level.as_str()),
            ("REAL_TOPIC", topic.as_str()),
            ("REAL_QID", "0"),
            ("RETRY_TOPIC", self.topic),
            ("ORIGIN_MESSAGE_ID", returned.origin.as_str()),
            ("WAIT", "false"),
        ];
        same_properties(record, &properties(id), &[&set])?;
        hold!(record.reconsume_times == 1, "{id:?} was consumed {} times", record.reconsume_times);
        Ok(())
    }

    /// Whatever was acknowledged as sent back waits, or has waited.
    fn all_returned(&self, shard: u16, there: &HashSet<Identity>) -> Result<(), String> {
        for ((of, group, id), returned) in &self.told.returned {
            let here = *of == shard && group == self.group && returned.delay > 0 && returned.acked;
            hold!(
                !here || there.contains(id),
                "shard {shard}: {id:?} was acknowledged as sent back and is lost: {returned:?}"
            );
        }
        Ok(())
    }

    /// What has been delivered to one queue.
    fn goal(
        &self,
        conn: &mut Conn,
        goal: Goal,
        waiting: &HashMap<(Goal, i32), Vec<Waiting>>,
        summary: &mut LaterSummary,
    ) -> Result<(), String> {
        // By level: the place in its order, by message; how far delivery is; runs.
        let mut places = HashMap::new();
        for level in 1..=DELAYS_MS.len() as i32 {
            for (at, w) in waiting.get(&(goal.clone(), level)).into_iter().flatten().enumerate() {
                places.insert(w.id, (level, at, w));
            }
        }
        let mut next: HashMap<i32, (usize, u64)> = HashMap::new();
        let mut seen = HashSet::new();
        scan(conn, &goal.1, goal.2, true, |record| {
            let id = known(record, self.journal)?;
            let Some((level, at, waited)) = places.get(&id) else {
                return Err(format!("{id:?} is delivered and never waited"));
            };
            hold!(
                record.properties == waited.properties
                    && record.reconsume_times == waited.reconsume_times,
                "{id:?} is not delivered as it waited: {:?}, {:?}",
                record.properties,
                waited.properties
            );
            let waited_ms = record.stored - waited.stored;
            hold!(
                waited_ms >= DELAYS_MS[*level as usize - 1],
                "{id:?} of level {level} is delivered after {waited_ms} ms"
            );
            hold!(
                record.physical_offset > waited.physical_offset,
                "{id:?} is delivered before it waits"
            );
            let (expected, restarts) = next.entry(*level).or_default();
            hold!(
                at <= expected,
                "delivery of level {level} skipped {} messages before {id:?}",
                at - *expected
            );
            if at < expected {
                *restarts += 1;
                hold!(
                    *restarts <= self.crashes,
                    "delivery of level {level} began again {restarts} times in {} crashes",
                    self.crashes
                );
            }
            *expected = at + 1;
            summary.delivered += 1;
            summary.repeated += u64::from(!seen.insert(id));
            Ok(())
        })
        .map_err(|why| format!("{goal:?}: {why}"))?;
        Ok(())
    }

    /// Each dead letter was sent back as one, and each that was acknowledged is there, once. Gives how many there are.
    fn dead_letters(&self, conn: &mut Conn, shard: u16) -> Result<u64, String> {
        let mut dead = HashSet::new();
        let topic = self.dead_topic();
        scan(conn, &topic, 0, true, |record| {
            let id = known(record, self.journal)?;
            let returned = self.told.returned.get(&(shard, self.group.to_owned(), id));
            let returned = returned.filter(|r| r.delay < 0);
            let returned = returned.ok_or_else(|| format!("{id:?} is no dead letter"))?;
            hold!(dead.insert(id), "dead letter {id:?} is there twice");
            let set = [
                ("DELAY", "0"),
                ("RETRY_TOPIC", self.topic),
                ("ORIGIN_MESSAGE_ID", returned.origin.as_str()),
                ("WAIT", "false"),
            ];
            same_properties(record, &properties(id), &[&set])?;
            Ok(())
        })
        .map_err(|why| format!("shard {shard}, {topic}: {why}"))?;
        for ((of, group, id), returned) in &self.told.returned {
            let here = *of == shard && group == self.group && returned.delay < 0 && returned.acked;
            hold!(!here || dead.contains(id), "shard {shard}: dead letter {id:?} is lost");
        }
        Ok(dead.len() as u64)
    }
}

fn goal(record: &Record<'_>, shard: u16) -> Result<Goal, String> {
    let topic = record.property("REAL_TOPIC");
    let queue = record.property("REAL_QID").and_then(|q| q.parse().ok());
    match (topic, queue) {
        (Some(topic), Some(queue)) => Ok((shard, topic.to_owned(), queue)),
        _ => Err(format!("no goal in {:?}", record.properties)),
    }
}
