//! One verdict on a broker that was ended in some way under a mixed load and started again: messages, delays and retries, committed
//! offsets, topics and groups, the index.

use std::collections::HashMap;
use std::path::PathBuf;

use super::Broker;
use super::checker::{Checker, Found, Place, Rules, Summary};
use super::journal::{Acked, Identity, Journal, Refused, Told};
use super::later::{Later, LaterSummary};
use super::mixed::{GROUP, late_topic};
use super::random::Random;
use super::tables::{Offsets, check_index, check_made, saved};

/// Acknowledged messages that are looked up by their keys.
const INDEX_SAMPLE: u64 = 8;

/// How a broker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was asked to.
    Clean,
    /// Killed, or the machine crashed.
    Crash,
}

/// What is known of one store, from start to start.
#[derive(Debug, Clone, Default)]
pub struct Judge {
    pub topic: String,
    pub queues: u32,
    checker: Checker,
    offsets: Offsets,
    saved: HashMap<(u16, String, i32), i64>,
    end: Option<End>,
    crashes: u64,
    /// Messages lost that had not waited for more than memory.
    lost_unwaited: u64,
}

/// What a verdict went through.
#[derive(Debug, Clone, Copy, Default)]
pub struct Verdict {
    pub messages: Summary,
    pub later: LaterSummary,
    /// Committed offsets that were found.
    pub offsets: u64,
}

impl Judge {
    pub fn new(topic: &str, queues: u32) -> Judge {
        Judge { topic: topic.to_owned(), queues, ..Judge::default() }
    }

    /// The broker has ended; `seen` is what its consumers saw, and holds it from now on. To be called before it starts again.
    pub fn ended(&mut self, broker: &Broker, end: End, seen: Vec<(Place, Found)>) {
        self.checker.hold_to(seen);
        self.ended_unseen(broker, end);
    }

    /// As [`Judge::ended`]; also after an end while nobody was served.
    pub fn ended_unseen(&mut self, broker: &Broker, end: End) {
        let stores: Vec<PathBuf> = (0..broker.shards()).map(|k| broker.shard_dir(k)).collect();
        self.saved = saved(&stores, GROUP, &self.topic);
        // A crash in between makes the whole of it one.
        self.end = if self.end == Some(End::Crash) { self.end } else { Some(end) };
        self.crashes += u64::from(end == End::Crash);
    }

    /// The broker serves again: all that it had told must hold. With `wait`, what is delayed must also be delivered.
    pub fn verdict(
        &mut self,
        broker: &Broker,
        journal: &Journal,
        told: &Told,
        rules: Rules,
        wait: bool,
        random: &mut Random,
    ) -> Verdict {
        self.try_verdict(broker, journal, told, rules, wait, random)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Judge::verdict`].
    ///
    /// # Errors
    /// What does not hold.
    pub fn try_verdict(
        &mut self,
        broker: &Broker,
        journal: &Journal,
        told: &Told,
        rules: Rules,
        wait: bool,
        random: &mut Random,
    ) -> Result<Verdict, String> {
        let shards = broker.addresses();
        let clean = self.end.take() == Some(End::Clean);
        // First of all, while nobody has committed anything.
        let offsets = self.offsets.check(&shards, &self.topic, told, &self.saved, clean)?;
        let (topic, queues) = (self.topic.clone(), self.queues);
        let messages =
            self.checker.try_check(&shards, &topic, queues, journal, &told.acked, rules)?;
        if messages.lost + messages.vanished > 0 {
            return Err(format!("acknowledged or seen messages are lost: {messages:?}"));
        }
        self.late_ones(&told.refusals)?;
        if clean && messages.lost_unwaited > self.lost_unwaited {
            return Err(format!("a clean stop lost messages: {messages:?}"));
        }
        self.lost_unwaited = messages.lost_unwaited;
        let later = Later {
            shards: &shards,
            topic: &topic,
            late_topic: &late_topic(&topic),
            queues,
            group: GROUP,
            journal,
            told,
            rules,
            crashes: self.crashes,
        };
        let later = if wait { later.await_delivered()? } else { later.check()? };
        check_made(&shards, told, journal)?;
        let waited: Vec<&Acked> = told.acked.iter().filter(|a| a.waits).collect();
        let sample: Vec<&Acked> = (0..INDEX_SAMPLE.min(waited.len() as u64))
            .map(|_| waited[random.below(waited.len() as u64) as usize])
            .collect();
        check_index(&shards, &topic, &sample)?;
        Ok(Verdict { messages, later, offsets })
    }

    /// What was answered 10 with `ackLevel=write` was late for its level, and written nevertheless.
    fn late_ones(&self, refusals: &[Refused]) -> Result<(), String> {
        let written =
            refusals.iter().filter(|r| r.code == 10 && r.level.as_deref() == Some("write"));
        for refused in written {
            let (queue, offset) =
                refused.place.ok_or_else(|| format!("no place in {refused:?}"))?;
            for n in 0..refused.count {
                let id = Identity { seq: refused.first.seq + n, ..refused.first };
                let place = (refused.shard, queue, offset + n as i64);
                let found = self.checker.seen.get(&place).map(|found| found.id);
                if found != Some(id) {
                    return Err(format!("{id:?} was written at {place:?}, where {found:?} is"));
                }
            }
        }
        Ok(())
    }
}
