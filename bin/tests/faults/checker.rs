//! The checker itself, lied to: for each promise a store that breaks it and nothing else, which has to be found out.

use std::sync::Arc;

use crate::support::checker::{Checker, Found, Place, Rules, Summary};
use crate::support::forged::{Forged, ForgedStore, message_id};
use crate::support::journal::{
    Acked, Commits, Delayed, Identity, Journal, Returned, Told, properties,
};
use crate::support::later::{DELAYS_MS, Later, LaterSummary};
use crate::support::tables::Offsets;
use crate::support::{Target, TempDir, tempdir};

const TOPIC: &str = "Journal";
const LATE: &str = "JournalLate";
const GROUP: &str = "Readers";
const QUEUES: u32 = 2;
/// Messages of each of the two connections.
const EACH: u64 = 40;

// ---- messages ----

/// A store and what was told of it; honest until somebody changes either.
struct Story {
    journal: Arc<Journal>,
    store: ForgedStore,
    acked: Vec<Acked>,
    rules: Rules,
    /// What consumers saw.
    seen: Vec<(Place, Found)>,
    _dir: TempDir,
}

impl Story {
    /// Two connections send in turn, each to both queues in turn.
    fn honest() -> Story {
        let dir = tempdir("checker");
        let journal = Journal::create(&dir.path().join("journal"));
        let (mut store, mut acked) = (ForgedStore::default(), Vec::new());
        let mut ends = [0; QUEUES as usize];
        for n in 0..2 * EACH {
            let id = Identity { conn: (n % 2) as u32, seq: n / 2 };
            journal.note_sent(id.conn, id.seq + 1);
            let queue = (n / 2 % 2) as i32;
            let (offset, physical) = (ends[queue as usize], 1_000 * n as i64);
            ends[queue as usize] += 1;
            store.records.push(Forged::honest(TOPIC, queue, offset, physical, id));
            acked.push(Acked {
                shard: 0,
                queue,
                offset,
                id,
                message_id: message_id(physical),
                level: Some("write".to_owned()),
                waits: true,
            });
        }
        let rules = Rules::of(Target::RingMq, "write");
        Story { journal, store, acked, rules, seen: Vec::new(), _dir: dir }
    }

    fn judged(self) -> Result<Summary, String> {
        let mut checker = Checker::new();
        checker.hold_to(self.seen);
        let address = self.store.serve();
        checker.try_check(&[address], TOPIC, QUEUES, &self.journal, &self.acked, self.rules)
    }

    /// The record at a place.
    fn at(&mut self, queue: i32, offset: i64) -> &mut Forged {
        let mut records = self.store.records.iter_mut();
        records.find(|r| (r.queue, r.offset) == (queue, offset)).expect("a record")
    }

    /// Which acknowledgement is of a place.
    fn ack(&self, queue: i32, offset: i64) -> usize {
        let mut acked = self.acked.iter();
        acked.position(|a| (a.queue, a.offset) == (queue, offset)).expect("an acknowledgement")
    }

    fn remove(&mut self, queue: i32, offset: i64) {
        self.store.records.retain(|r| (r.queue, r.offset) != (queue, offset));
    }

    /// Closes a gap, as if nothing had been there.
    fn close_up(&mut self, queue: i32, gap: i64) {
        for record in self.store.records.iter_mut().filter(|r| r.queue == queue && r.offset > gap) {
            record.offset -= 1;
        }
    }
}

/// The story, changed, is found out, with these words.
#[track_caller]
fn found_out(words: &str, change: impl FnOnce(&mut Story)) {
    let mut story = Story::honest();
    change(&mut story);
    let why = story.judged().expect_err(words);
    assert!(why.contains(words), "found out, but not for `{words}`: {why}");
}

const LAST: i64 = EACH as i64 - 1;

#[test]
fn an_honest_store_passes() {
    let summary = Story::honest().judged().expect("all is well");
    let count = 2 * EACH;
    assert_eq!(summary, Summary { records: count, acked: count, ..Summary::default() });
}

#[test]
fn lost_messages_are_found() {
    let mut story = Story::honest();
    story.remove(1, LAST);
    assert_eq!(story.judged().expect("the rest is well").lost, 1, "at the end");
    found_out("not dense", |s| s.remove(0, 7));
    found_out("another message", |s| {
        s.remove(0, 7);
        s.close_up(0, 7);
    });
    // A later one takes the place.
    found_out("another message", |s| {
        s.remove(0, LAST);
        let mut last = s.at(1, LAST).clone();
        s.remove(1, LAST);
        last.queue = 0;
        s.store.records.push(last);
    });
    found_out("begins at 1", |s| {
        s.remove(0, 0);
        s.store.begins.insert((TOPIC.to_owned(), 0), 1);
    });
}

#[test]
fn what_consumers_saw_may_not_change_or_go() {
    let saw =
        |queue, offset, id, physical_offset| ((0, queue, offset), Found { id, physical_offset });
    let mut story = Story::honest();
    let id = Identity { conn: 0, seq: 0 };
    story.seen.push(saw(0, 0, id, 0));
    story.seen.push(saw(0, LAST + 1, Identity { conn: 0, seq: EACH }, 1 << 30));
    assert_eq!(story.judged().expect("the rest is well").vanished, 1);
    found_out("what was seen at", |s| s.seen.push(saw(0, 0, Identity { conn: 1, seq: 0 }, 0)));
    found_out("what was seen at", |s| s.seen.push(saw(0, 0, id, 77)));
}

#[test]
fn repeated_and_invented_messages_are_found() {
    let append = |s: &mut Story, change: &dyn Fn(&mut Forged)| {
        let mut copy = s.at(0, 3).clone();
        (copy.offset, copy.physical_offset) = (LAST + 1, 1 << 30);
        change(&mut copy);
        s.store.records.push(copy);
    };
    found_out("is there twice", |s| append(s, &|_| ()));
    found_out("is there twice", |s| append(s, &|r| (r.queue, r.offset) = (1, LAST + 1)));
    found_out("was never sent", |s| {
        append(s, &|r| {
            *r = Forged::honest(
                TOPIC,
                0,
                r.offset,
                r.physical_offset,
                Identity { conn: 0, seq: EACH },
            )
        });
    });
    found_out("was never sent", |s| {
        append(s, &|r| {
            *r = Forged::honest(TOPIC, 0, r.offset, r.physical_offset, Identity { conn: 9, seq: 0 })
        });
    });
    found_out("is nobody's", |s| append(s, &|r| r.body = b"spam".to_vec()));
}

#[test]
fn reordered_messages_are_found() {
    // Both the store and what was told of it agree: only the order in which one connection sent them is wrong.
    found_out("was sent first", |s| {
        // Neighbours in a queue are of two connections: 4 and 6 are of the same.
        let (one, three) = (s.at(0, 4).clone(), s.at(0, 6).clone());
        let swap = |to: &mut Forged, from: &Forged| {
            (to.body, to.properties) = (from.body.clone(), from.properties.clone());
        };
        swap(s.at(0, 4), &three);
        swap(s.at(0, 6), &one);
        let (a, b) = (s.ack(0, 4), s.ack(0, 6));
        (s.acked[a].id, s.acked[b].id) = (s.acked[b].id, s.acked[a].id);
    });
    // Across queues, too.
    found_out("was sent first", |s| {
        let at = s.ack(1, LAST);
        s.at(1, LAST).physical_offset = 38_500;
        s.acked[at].message_id = message_id(38_500);
        // Its neighbours before it must not be after it.
        for n in 0..LAST {
            let physical = 100 * n + 1;
            s.at(1, n).physical_offset = physical;
            let at = s.ack(1, n);
            s.acked[at].message_id = message_id(physical);
        }
    });
    found_out("physical offsets fall", |s| s.at(0, 9).physical_offset = 1);
}

#[test]
fn changed_messages_are_found() {
    found_out("is not what was sent", |s| *s.at(0, 3).body.last_mut().unwrap() ^= 1);
    found_out("is not what was sent", |s| s.at(0, 3).body.push(0));
    found_out("is not what was sent", |s| s.at(1, 3).body.truncate(30));
    found_out("body CRC", |s| s.at(0, 3).crc = Some(7));
    let text = |s: &mut Story, from: &str, to: &str| {
        let record = s.at(1, 5);
        assert!(record.properties.contains(from), "{:?}", record.properties);
        record.properties = record.properties.replacen(from, to, 1);
    };
    found_out("properties at", |s| text(s, "TAGS\u{1}Tag", "TAGS\u{1}tag"));
    found_out("properties at", |s| text(s, "noise\u{1}", "nois\u{1}"));
    found_out("properties at", |s| text(s, "CLUSTER", "a\u{1}b\u{2}CLUSTER"));
    found_out("properties at", |s| text(s, "CLUSTER", "CLUSTER\u{1}c\u{2}CLUSTER"));
    found_out("properties at", |s| {
        s.at(1, 5).properties = properties(Identity { conn: 0, seq: 0 });
    });
}

#[test]
fn wrong_places_are_found() {
    found_out("instead of", |s| {
        let at = s.ack(0, LAST);
        // Told: a place that nothing stands at.
        s.acked[at].offset += 1;
    });
    found_out("another message", |s| {
        (s.acked[4].offset, s.acked[4].queue) = (s.acked[5].offset, s.acked[5].queue);
    });
    found_out("message id", |s| s.acked[8].message_id = message_id(1));
}

#[test]
fn wrong_levels_are_found() {
    for level in [Some("sync"), Some("memory"), Some("Write"), None] {
        found_out("ackLevel", |s| s.acked[11].level = level.map(str::to_owned));
    }
    // Who does not wait is told `memory`, and nothing above it.
    found_out("ackLevel", |s| s.acked[11].waits = false);
}

#[test]
fn only_what_did_not_wait_may_be_lost() {
    let unwaited = |s: &mut Story, queue, offset| {
        let at = s.ack(queue, offset);
        let ack = &mut s.acked[at];
        (ack.waits, ack.level) = (false, Some("memory".to_owned()));
    };
    let mut story = Story::honest();
    unwaited(&mut story, 1, LAST);
    story.remove(1, LAST);
    let summary = story.judged().expect("this may be");
    assert_eq!((summary.lost, summary.lost_unwaited), (0, 1));
    // Not to be lost is to be where it was told.
    found_out("instead of", |s| {
        unwaited(s, 1, LAST);
        let at = s.ack(1, LAST);
        s.acked[at].offset += 1;
    });
}

// ---- delays, retries, dead letters ----

/// Delayed messages and messages sent back, honest until somebody changes something.
struct LateStory {
    journal: Arc<Journal>,
    told: Told,
    waiting: Vec<Forged>,
    delivered: Vec<Forged>,
    dead: Vec<Forged>,
    crashes: u64,
    _dir: TempDir,
}

const DELAY_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

impl LateStory {
    /// Level 1 has six delayed messages for queue 0 and two that were sent back; there is one dead letter.
    fn honest() -> LateStory {
        let dir = tempdir("checker");
        let journal = Journal::create(&dir.path().join("journal"));
        let mut told = Told::default();
        let (mut waiting, mut delivered, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..9 {
            let id = Identity { conn: 3, seq: n };
            journal.note_sent(3, n + 1);
            let (offset, physical) = (n as i64, 1_000 * n as i64);
            let cluster = "CLUSTER\u{1}DefaultCluster";
            let back = format!(
                "{}\u{2}{cluster}\u{2}RETRY_TOPIC\u{1}{TOPIC}\u{2}ORIGIN_MESSAGE_ID\u{1}origin{n}\u{2}WAIT\u{1}false",
                properties(id)
            );
            if n < 6 {
                let mut record = Forged::honest(DELAY_TOPIC, 0, offset, physical, id);
                record.properties.push_str(&format!(
                    "\u{2}DELAY\u{1}1\u{2}REAL_TOPIC\u{1}{LATE}\u{2}REAL_QID\u{1}0\u{2}WAIT\u{1}true"
                ));
                waiting.push(record);
                let (message_id, level) = (message_id(physical), Some("write".to_owned()));
                told.delayed.push(Delayed {
                    shard: 0,
                    id,
                    delay: 1,
                    queue: 0,
                    offset,
                    message_id,
                    level,
                });
            } else if n < 8 {
                let mut record = Forged::honest(DELAY_TOPIC, 0, offset, physical, id);
                record.properties = format!(
                    "{back}\u{2}DELAY\u{1}1\u{2}REAL_TOPIC\u{1}%RETRY%{GROUP}\u{2}REAL_QID\u{1}0"
                );
                record.reconsume_times = 1;
                waiting.push(record);
            } else {
                let mut record = Forged::honest(&format!("%DLQ%{GROUP}"), 0, 0, 99_000, id);
                record.properties = format!("{back}\u{2}DELAY\u{1}0");
                dead.push(record);
            }
            if n >= 6 {
                let delay = if n < 8 { 1 } else { -1 };
                let returned = Returned { delay, origin: format!("origin{n}"), acked: true };
                told.returned.insert((0, GROUP.to_owned(), id), returned);
            }
        }
        for (n, waited) in waiting.iter().enumerate() {
            let (topic, offset) = if n < 6 {
                (LATE.to_owned(), n as i64)
            } else {
                (format!("%RETRY%{GROUP}"), n as i64 - 6)
            };
            let stored = waited.stored + DELAYS_MS[0];
            let physical_offset = 50_000 + n as i64;
            delivered.push(Forged { topic, offset, stored, physical_offset, ..waited.clone() });
        }
        LateStory { journal, told, waiting, delivered, dead, crashes: 1, _dir: dir }
    }

    fn judged(self) -> Result<LaterSummary, String> {
        let records = [self.waiting, self.delivered, self.dead].concat();
        let address = ForgedStore { records, ..ForgedStore::default() }.serve();
        Later {
            shards: &[address],
            topic: TOPIC,
            late_topic: LATE,
            queues: 1,
            group: GROUP,
            journal: &self.journal,
            told: &self.told,
            rules: Rules::of(Target::RingMq, "write"),
            crashes: self.crashes,
        }
        .check()
    }

    /// Delivers the messages of the late topic in this order, by their numbers.
    fn deliver(&mut self, order: &[usize]) {
        let once = self.delivered.clone();
        self.delivered.retain(|r| r.topic != LATE);
        for (offset, n) in order.iter().enumerate() {
            let (offset, physical_offset) = (offset as i64, 60_000 + offset as i64);
            self.delivered.push(Forged { offset, physical_offset, ..once[*n].clone() });
        }
    }

    fn returned(&mut self, n: u64) -> &mut Returned {
        let key = (0, GROUP.to_owned(), Identity { conn: 3, seq: n });
        self.told.returned.get_mut(&key).expect("a returned message")
    }
}

#[track_caller]
fn late_found_out(words: &str, change: impl FnOnce(&mut LateStory)) {
    let mut story = LateStory::honest();
    change(&mut story);
    let why = story.judged().expect_err(words);
    assert!(why.contains(words), "found out, but not for `{words}`: {why}");
}

#[test]
fn honest_deliveries_pass_and_may_repeat_after_a_crash() {
    let passes = |order: &[usize], crashes| {
        let mut story = LateStory::honest();
        story.deliver(order);
        story.crashes = crashes;
        story.judged().unwrap_or_else(|why| panic!("{order:?}: {why}"))
    };
    let summary = passes(&[0, 1, 2, 3, 4, 5], 0);
    assert_eq!(summary, LaterSummary { waiting: 8, delivered: 8, repeated: 0, dead: 1 });
    assert_eq!(passes(&[0, 1, 2, 3, 1, 2, 3, 4, 5], 1).repeated, 3);
    assert_eq!(passes(&[0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 5], 2).repeated, 5);
    // Not all are due yet.
    assert_eq!(passes(&[0, 1, 2], 0).delivered, 5);
}

#[test]
fn wrong_deliveries_are_found() {
    late_found_out("skipped 1", |s| s.deliver(&[0, 1, 3, 4, 5]));
    late_found_out("skipped 1", |s| s.deliver(&[1, 2]));
    late_found_out("skipped 2", |s| s.deliver(&[0, 1, 2, 3, 1, 4, 5]));
    late_found_out("began again", |s| s.deliver(&[0, 1, 0, 1, 0, 1]));
    late_found_out("began again", |s| {
        s.crashes = 0;
        s.deliver(&[0, 0, 1]);
    });
    late_found_out("is delivered after 999 ms", |s| s.delivered[2].stored -= 1);
    late_found_out("not delivered as it waited", |s| {
        s.delivered[2].properties.push_str("\u{2}a\u{1}b")
    });
    late_found_out("not delivered as it waited", |s| s.delivered[6].reconsume_times = 2);
    late_found_out("is not what was sent", |s| s.delivered[6].body[30] ^= 1);
    late_found_out("never waited", |s| {
        s.journal.note_sent(4, 1);
        let invented = Identity { conn: 4, seq: 0 };
        s.delivered.push(Forged::honest(LATE, 0, 6, 70_000, invented));
    });
}

#[test]
fn wrong_waiting_is_found() {
    late_found_out("acknowledged delayed message is lost", |s| {
        s.deliver(&[]);
        s.delivered.clear();
        s.waiting.truncate(5);
        for n in [6, 7] {
            s.returned(n).acked = false;
        }
    });
    late_found_out("was acknowledged as sent back and is lost", |s| {
        s.waiting.pop();
        s.delivered.pop();
    });
    late_found_out("never sent back", |s| {
        s.told.returned.remove(&(0, GROUP.to_owned(), Identity { conn: 3, seq: 7 }));
    });
    late_found_out("not to level", |s| s.returned(7).delay = 2);
    late_found_out("properties at", |s| s.returned(7).origin.push('0'));
    late_found_out("was consumed 2 times", |s| s.waiting[7].reconsume_times = 2);
    late_found_out("waits twice", |s| {
        let copy = Forged { offset: 8, physical_offset: 9_000, ..s.waiting[0].clone() };
        s.waiting.push(copy);
    });
    late_found_out("instead of", |s| s.told.delayed[2].id.seq = 3);
    late_found_out("message id", |s| s.told.delayed[2].message_id = message_id(3));
    late_found_out("ackLevel", |s| s.told.delayed[2].level = Some("sync".to_owned()));
    late_found_out("dead letter Identity { conn: 3, seq: 8 } is lost", |s| {
        // Another one is there in its stead.
        let id = Identity { conn: 3, seq: 9 };
        s.journal.note_sent(3, 10);
        let returned = Returned { delay: -1, origin: "origin9".to_owned(), acked: true };
        s.told.returned.insert((0, GROUP.to_owned(), id), returned);
        let before = properties(Identity { conn: 3, seq: 8 });
        let text = s.dead[0].properties.replace(&before, &properties(id));
        s.dead[0] = Forged {
            properties: text.replace("origin8", "origin9"),
            ..Forged::honest(&s.dead[0].topic, 0, 0, 99_000, id)
        };
    });
    late_found_out("is gone", |s| s.dead.clear());
    late_found_out("is no dead letter", |s| {
        s.returned(8).delay = 1;
        s.returned(8).acked = false;
    });
}

// ---- committed offsets ----

#[test]
fn wrong_offsets_are_found() {
    let key = (0, GROUP.to_owned(), 0);
    let commits = Commits { tried: vec![3, 5, 9, 12], acked: Some(9) };
    let judge = |before: Option<i64>, found, saved, max, clean| {
        let mut offsets = Offsets::default();
        if let Some(before) = before {
            offsets.judge(&key, before, &commits, Some(before), 100, false).expect("the first");
        }
        offsets.judge(&key, found, &commits, saved, max, clean).err().unwrap_or_default()
    };
    assert_eq!(judge(None, 0, None, 0, false), "");
    assert_eq!(judge(Some(3), 5, Some(5), 5, false), "");
    assert_eq!(judge(Some(5), 12, Some(12), 12, true), "");
    assert!(judge(None, 9, Some(9), 8, false).contains("beyond the queue's end"));
    assert!(judge(None, 4, Some(4), 100, false).contains("nobody committed"));
    assert!(judge(None, 5, Some(9), 100, false).contains("the file says"));
    assert!(judge(None, 5, None, 100, false).contains("the file says"));
    assert!(judge(Some(9), 5, Some(5), 100, false).contains("was found before"));
    assert!(judge(None, 5, Some(5), 100, true).contains("after a clean stop"));
}

/// Of several shards, a message of one on another is not at its place.
#[test]
fn a_message_of_another_shard_is_found() {
    let story = Story::honest();
    let empty = ForgedStore::default().serve();
    let address = story.store.clone().serve();
    let mut checker = Checker::new();
    let result = checker.try_check(
        &[empty, address],
        TOPIC,
        QUEUES,
        &story.journal,
        &story.acked,
        story.rules,
    );
    assert!(result.expect_err("misplaced").contains("instead of"));
}
