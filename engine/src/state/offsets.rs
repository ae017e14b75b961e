//! Consumer offsets: (group, topic, queue) -> the next queue offset to consume.
//!
//! A commit comes with nearly every pull, so it neither allocates nor builds the file's `topic@group`
//! key: two look-ups and a short binary search. What is stored is never changed by the broker itself;
//! an offset outside its queue is kept and reported ([`OffsetTable::audit`]).

use std::rc::Rc;

use ringmq_net::body::ConsumerOffsetTable;
use ringmq_net::json::Writer;
use ringmq_net::map::SeededMap;
use thiserror::Error;

use super::table_text::{self, TableTextError};

/// The default bound on (group, topic, queue) entries of one shard: about 64 MB of offsets.
pub const ENTRIES_MAX: usize = 4_000_000;

/// Most queues of one (group, topic): no topic has more, and a table of them stays quick to change.
pub const QUEUES_MAX: usize = 65_536;

/// Bytes of names for which there is room with each entry; and the least room for names.
const NAME_BYTES_AN_ENTRY: usize = 16;
const NAME_BYTES_MIN: usize = 1 << 20;

/// What a (group, topic) costs besides its entries. Names come unchecked from the network.
fn pair_bytes(group: &str, topic: &str) -> usize {
    160 + group.len() + topic.len()
}

/// The table is full: the commit was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "as many consumer offsets are stored as may be ({entries_max}, fewer with long names, {QUEUES_MAX} queues of a topic): delete unused groups"
)]
pub struct OffsetsFull {
    /// The bound.
    pub entries_max: usize,
}

/// The offsets of one (group, topic), ordered by queue id. Queue ids come unchecked from the network,
/// so they never index an array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueOffsets(Vec<(i32, i64)>);

impl QueueOffsets {
    /// The offset of a queue.
    #[inline]
    pub fn get(&self, queue_id: i32) -> Option<i64> {
        let at = self.0.binary_search_by_key(&queue_id, |(id, _)| *id).ok()?;
        Some(self.0[at].1)
    }

    /// All queues, in order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (i32, i64)> {
        self.0.iter().copied()
    }

    /// Number of queues.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no queue has an offset.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets one queue's offset; whether the queue is new here.
    fn set(&mut self, queue_id: i32, offset: i64) -> bool {
        match self.0.binary_search_by_key(&queue_id, |(id, _)| *id) {
            Ok(at) => {
                self.0[at].1 = offset;
                false
            }
            Err(at) => {
                self.0.insert(at, (queue_id, offset));
                true
            }
        }
    }
}

/// A stored offset that its queue does not cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetOutside {
    /// Group.
    pub group: String,
    /// Topic.
    pub topic: String,
    /// Queue.
    pub queue_id: i32,
    /// What is stored, and kept.
    pub offset: i64,
    /// The queue's min offset.
    pub min: i64,
    /// The queue's max offset.
    pub max: i64,
}

/// The consumer offsets of one shard. Owned by its reactor; bounded.
#[derive(Clone, Debug)]
pub struct OffsetTable {
    groups: SeededMap<Rc<str>, SeededMap<Rc<str>, QueueOffsets>>,
    /// Entries of the file whose key has no `@`: no request reaches them, they are only written back.
    odd: Vec<(String, QueueOffsets)>,
    entries: usize,
    /// What the names in `groups` cost.
    name_bytes: usize,
    entries_max: usize,
    dirty: bool,
}

impl Default for OffsetTable {
    fn default() -> Self {
        Self::new(ENTRIES_MAX)
    }
}

impl OffsetTable {
    /// An empty table that takes at most `entries_max` queues.
    pub fn new(entries_max: usize) -> Self {
        let groups = SeededMap::default();
        Self { groups, odd: Vec::new(), entries: 0, name_bytes: 0, entries_max, dirty: false }
    }

    /// Entries stored.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Stores an offset, forward or backward. Nothing is validated: unknown topics and groups are
    /// accepted (stock 4.9.8). Fails only if the entry is new and the table full.
    #[inline]
    pub fn commit(
        &mut self,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<(), OffsetsFull> {
        if let Some(queues) = self.groups.get_mut(group).and_then(|topics| topics.get_mut(topic))
            && let Ok(at) = queues.0.binary_search_by_key(&queue_id, |(id, _)| *id)
        {
            let stored = &mut queues.0[at].1;
            self.dirty |= *stored != offset;
            *stored = offset;
            return Ok(());
        }
        self.commit_new(group, topic, queue_id, offset)
    }

    #[cold]
    fn commit_new(
        &mut self,
        group: &str,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<(), OffsetsFull> {
        if topic.contains('@') {
            // The file's key is topic@group and is split at the first @: file and memory must agree.
            let key = format!("{topic}@{group}");
            let (topic, group) = key.split_once('@').unwrap_or((topic, group));
            return self.commit(group, topic, queue_id, offset);
        }
        let known = self.groups.get(group).and_then(|topics| topics.get(topic));
        let more = if known.is_some() { 0 } else { pair_bytes(group, topic) };
        let names_max = self.entries_max.saturating_mul(NAME_BYTES_AN_ENTRY).max(NAME_BYTES_MIN);
        if self.entries >= self.entries_max
            || self.name_bytes.saturating_add(more) > names_max
            || known.is_some_and(|queues| queues.len() >= QUEUES_MAX)
        {
            return Err(OffsetsFull { entries_max: self.entries_max });
        }
        self.name_bytes += more;
        let topics = entry(&mut self.groups, group);
        if entry(topics, topic).set(queue_id, offset) {
            self.entries += 1;
        }
        self.dirty = true;
        Ok(())
    }

    /// The stored offset; `None` if there is none or it is negative.
    #[inline]
    pub fn get(&self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        self.queues(group, topic)?.get(queue_id).filter(|offset| *offset >= 0)
    }

    /// All stored offsets of a group on a topic.
    pub fn queues(&self, group: &str, topic: &str) -> Option<&QueueOffsets> {
        if topic.contains('@') {
            let key = format!("{topic}@{group}");
            let (topic, group) = key.split_once('@')?;
            return self.groups.get(group)?.get(topic);
        }
        self.groups.get(group)?.get(topic)
    }

    /// The topics on which a group has offsets, sorted.
    pub fn topics_of_group(&self, group: &str) -> Vec<&str> {
        let topics = self.groups.get(group).into_iter().flatten();
        let mut topics: Vec<&str> = topics.map(|(topic, _)| &**topic).collect();
        topics.sort_unstable();
        topics
    }

    /// The groups that have offsets on a topic, sorted.
    pub fn groups_of_topic(&self, topic: &str) -> Vec<&str> {
        let groups = self.groups.iter().filter(|(_, topics)| topics.contains_key(topic));
        let mut groups: Vec<&str> = groups.map(|(group, _)| &**group).collect();
        groups.sort_unstable();
        groups
    }

    /// Every (group, topic) with its offsets, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &QueueOffsets)> {
        self.groups.iter().flat_map(|(group, topics)| {
            topics.iter().map(move |(topic, queues)| (&**group, &**topic, queues))
        })
    }

    /// The smallest offset of each queue of a topic over all groups but those that `skip` names.
    pub fn min_of_topic(&self, topic: &str, skip: impl Fn(&str) -> bool) -> QueueOffsets {
        let mut min = QueueOffsets::default();
        for (group, topics) in &self.groups {
            let Some(queues) = topics.get(topic).filter(|_| !skip(group)) else { continue };
            for (queue_id, offset) in queues.iter() {
                if min.get(queue_id).is_none_or(|least| offset < least) {
                    min.set(queue_id, offset);
                }
            }
        }
        min
    }

    /// Gives `to` the offsets that `from` has on a topic (request 314); how many queues.
    pub fn clone_group(&mut self, from: &str, to: &str, topic: &str) -> Result<usize, OffsetsFull> {
        let Some(queues) = self.queues(from, topic).cloned() else { return Ok(0) };
        for (queue_id, offset) in queues.iter() {
            self.commit(to, topic, queue_id, offset)?;
        }
        Ok(queues.len())
    }

    /// Forgets all offsets of a group; how many entries.
    pub fn remove_group(&mut self, group: &str) -> usize {
        let removed = self.groups.remove(group);
        let mut entries = 0;
        for (topic, queues) in removed.into_iter().flatten() {
            entries += queues.len();
            self.name_bytes -= pair_bytes(group, &topic);
        }
        self.removed(entries)
    }

    /// Forgets all groups' offsets of a topic; how many entries. Stock 4.9.8 keeps them when a topic is
    /// deleted, so that a topic made anew under the name starts below them: say so where it's called.
    pub fn remove_topic(&mut self, topic: &str) -> usize {
        let (mut removed, mut names) = (0, 0);
        self.groups.retain(|group, topics| {
            if let Some(queues) = topics.remove(topic) {
                removed += queues.len();
                names += pair_bytes(group, topic);
            }
            !topics.is_empty()
        });
        self.name_bytes -= names;
        self.removed(removed)
    }

    /// Takes out one queue's offset, if there is one.
    pub fn take(&mut self, group: &str, topic: &str, queue_id: i32) -> Option<i64> {
        let topics = self.groups.get_mut(group)?;
        let queues = topics.get_mut(topic)?;
        let at = queues.0.binary_search_by_key(&queue_id, |(id, _)| *id).ok()?;
        let (_, offset) = queues.0.remove(at);
        if queues.is_empty() {
            topics.remove(topic);
            if topics.is_empty() {
                self.groups.remove(group);
            }
            self.name_bytes -= pair_bytes(group, topic);
        }
        self.removed(1);
        Some(offset)
    }

    /// Forgets the offsets of one group on one topic; how many entries.
    pub fn remove(&mut self, group: &str, topic: &str) -> usize {
        let Some(topics) = self.groups.get_mut(group) else { return 0 };
        let removed = topics.remove(topic);
        if topics.is_empty() {
            self.groups.remove(group);
        }
        if removed.is_some() {
            self.name_bytes -= pair_bytes(group, topic);
        }
        self.removed(removed.map_or(0, |queues| queues.len()))
    }

    fn removed(&mut self, entries: usize) -> usize {
        self.entries -= entries;
        self.dirty |= entries > 0;
        entries
    }

    /// Whether anything changed since the last call: save the file then (each 5 s and at the end).
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// After recovery: which stored offsets lie outside their queue. They are kept as they are: the
    /// consumer's next pull is answered by the stock rules, and an operator can read here why. `bounds`
    /// tells a queue's `(min, max)`, or `None` for a queue that doesn't exist.
    pub fn audit(
        &self,
        mut bounds: impl FnMut(&str, i32) -> Option<(i64, i64)>,
    ) -> Vec<OffsetOutside> {
        let mut outside = Vec::new();
        for (group, topic, queues) in self.iter() {
            for (queue_id, offset) in queues.iter() {
                let (min, max) = bounds(topic, queue_id).unwrap_or((0, 0));
                if offset < min || offset > max {
                    let (group, topic) = (group.to_owned(), topic.to_owned());
                    outside.push(OffsetOutside { group, topic, queue_id, offset, min, max });
                }
            }
        }
        outside.sort_unstable_by(|a, b| {
            (&a.group, &a.topic, a.queue_id).cmp(&(&b.group, &b.topic, b.queue_id))
        });
        outside
    }
}

const TABLE: &str = "offsetTable";

/// To render so many queues takes about as long as to render a pair of names.
const QUEUES_A_PAIR: usize = 16;

/// A rendering of the table in steps; see [`OffsetTable::render`].
#[derive(Debug)]
pub struct OffsetsText {
    keys: Vec<(Rc<str>, Rc<str>)>,
    writer: Writer,
}

impl OffsetTable {
    /// Reads `consumerOffset.json` (also a 5.x broker's), or the answer of request 43. Loading is not
    /// bounded: a table that was saved can be read.
    pub fn from_json(bytes: &[u8], entries_max: usize) -> Result<Self, TableTextError> {
        let body: ConsumerOffsetTable = table_text::read(bytes, TABLE)?;
        let mut table = Self::new(usize::MAX);
        for (key, queues) in body.offsets {
            match key.split_once('@') {
                Some((topic, group)) => {
                    for (queue_id, offset) in queues {
                        // Cannot be full: the bound is set below.
                        let _ = table.commit(group, topic, queue_id, offset);
                    }
                }
                None => table.odd.push((key, QueueOffsets(queues.into_iter().collect()))),
            }
        }
        table.entries_max = entries_max;
        table.dirty = false;
        Ok(table)
    }

    /// The content of `consumerOffset.json`, in one go.
    pub fn to_file(&self) -> Vec<u8> {
        let mut text = self.render(Writer::pretty());
        while !self.render_step(&mut text, usize::MAX) {}
        text.finish()
    }

    /// The answer of request 43.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = self.render(Writer::new());
        while !self.render_step(&mut text, usize::MAX) {}
        text.finish()
    }

    /// Begins to render the table into `writer` ([`Writer::pretty`] for the file). A large table takes
    /// milliseconds, so a reactor does it in steps and yields between them. Commits in between are
    /// allowed: each (group, topic) is written as it is at its step. Ask [`OffsetTable::take_dirty`]
    /// *before* this call, so that such a commit is saved the next time.
    pub fn render(&self, mut writer: Writer) -> OffsetsText {
        let topics_of = |(group, topics): (&Rc<str>, &SeededMap<Rc<str>, QueueOffsets>)| {
            topics.keys().map(|topic| (group.clone(), topic.clone())).collect::<Vec<_>>()
        };
        let keys = self.groups.iter().flat_map(topics_of).collect();
        writer.begin_object();
        writer.key(TABLE);
        writer.begin_object();
        for (key, queues) in &self.odd {
            write_queues(&mut writer, key, queues);
        }
        OffsetsText { keys, writer }
    }

    /// Renders the next `topics` (group, topic) pairs, fewer if they have many queues; true when there are no more.
    pub fn render_step(&self, text: &mut OffsetsText, topics: usize) -> bool {
        let mut cost = 0usize;
        while cost < topics
            && let Some((group, topic)) = text.keys.pop()
        {
            cost += 1;
            if let Some(queues) = self.groups.get(&group).and_then(|topics| topics.get(&topic)) {
                cost += queues.len() / QUEUES_A_PAIR;
                write_queues(&mut text.writer, &format!("{topic}@{group}"), queues);
            }
        }
        text.keys.is_empty()
    }
}

impl OffsetsText {
    /// The text; complete once [`OffsetTable::render_step`] said so.
    pub fn finish(mut self) -> Vec<u8> {
        self.writer.end_object();
        self.writer.end_object();
        self.writer.finish()
    }
}

fn write_queues(writer: &mut Writer, key: &str, queues: &QueueOffsets) {
    writer.key(key);
    writer.begin_object();
    for (queue_id, offset) in queues.iter() {
        writer.key_i64(i64::from(queue_id));
        writer.i64(offset);
    }
    writer.end_object();
}

/// `map.entry(key.into()).or_default()` without allocating the key when it is there.
fn entry<'a, V: Default>(map: &'a mut SeededMap<Rc<str>, V>, key: &str) -> &'a mut V {
    if !map.contains_key(key) {
        map.insert(key.into(), V::default());
    }
    map.entry(key.into()).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_may_go_backwards_and_needs_no_known_topic() {
        let mut table = OffsetTable::default();
        table.commit("g", "T", 3, 10).unwrap();
        table.commit("g", "T", 3, 4).unwrap();
        assert_eq!(table.get("g", "T", 3), Some(4));
        assert_eq!(table.get("g", "T", 0), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_repeated_commit_of_the_same_offset_writes_no_file() {
        let mut table = OffsetTable::default();
        table.commit("g", "T", 0, 10).unwrap();
        assert!(table.take_dirty());
        table.commit("g", "T", 0, 10).unwrap();
        assert!(!table.take_dirty());
    }

    #[test]
    fn wild_queue_ids_cost_one_entry_each() {
        let mut table = OffsetTable::default();
        for queue_id in [i32::MAX, i32::MIN, -1, 0] {
            table.commit("g", "T", queue_id, 1).unwrap();
        }
        assert_eq!(table.len(), 4);
        let ids: Vec<i32> = table.queues("g", "T").unwrap().iter().map(|(id, _)| id).collect();
        assert_eq!(ids, [i32::MIN, -1, 0, i32::MAX]);
    }

    #[test]
    fn what_is_taken_out_leaves_the_others_and_no_names() {
        let mut table = OffsetTable::new(2);
        table.commit("g", "T", 0, 5).unwrap();
        table.commit("g", "T", 1, 6).unwrap();
        assert_eq!(table.take("g", "T", 2), None);
        assert_eq!(table.take("g", "U", 0), None);
        assert_eq!(table.take("g", "T", 0), Some(5));
        assert_eq!((table.len(), table.get("g", "T", 1)), (1, Some(6)));
        assert_eq!(table.take("g", "T", 1), Some(6));
        assert_eq!((table.len(), table.name_bytes, table.iter().count()), (0, 0, 0));
        assert_eq!(table.take("g", "T", 1), None);
    }

    #[test]
    fn a_full_table_still_updates_what_it_has() {
        let mut table = OffsetTable::new(1);
        table.commit("g", "T", 0, 1).unwrap();
        assert_eq!(table.commit("g", "T", 1, 1), Err(OffsetsFull { entries_max: 1 }));
        table.commit("g", "T", 0, 2).unwrap();
        assert_eq!(table.get("g", "T", 0), Some(2));
    }

    #[test]
    fn listings_removal_and_cloning_agree_on_the_count() {
        let mut table = OffsetTable::default();
        for (group, topic) in [("a", "T"), ("a", "U"), ("b", "T")] {
            table.commit(group, topic, 0, 5).unwrap();
            table.commit(group, topic, 1, 7).unwrap();
        }
        assert_eq!(table.topics_of_group("a"), ["T", "U"]);
        assert_eq!(table.groups_of_topic("T"), ["a", "b"]);
        assert_eq!(table.clone_group("a", "c", "U").unwrap(), 2);
        assert_eq!(table.len(), 8);
        assert_eq!(table.remove_group("a"), 4);
        assert_eq!(table.remove_topic("T"), 2);
        assert_eq!(table.remove("c", "U"), 2);
        assert!(table.is_empty());
        assert_eq!(table.remove_group("a"), 0);
    }

    #[test]
    fn the_minimum_of_a_topic_leaves_the_table_alone() {
        let mut table = OffsetTable::default();
        table.commit("a", "T", 0, 5).unwrap();
        table.commit("b", "T", 0, 3).unwrap();
        table.commit("b", "T", 1, 9).unwrap();
        let min = table.min_of_topic("T", |_| false);
        assert_eq!(min.iter().collect::<Vec<_>>(), [(0, 3), (1, 9)]);
        assert_eq!(table.min_of_topic("T", |g| g == "b").iter().collect::<Vec<_>>(), [(0, 5)]);
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn offsets_outside_their_queue_are_kept_and_named() {
        let mut table = OffsetTable::default();
        table.commit("g", "T", 0, 5).unwrap();
        table.commit("g", "T", 1, 50).unwrap();
        table.commit("g", "T", 2, 1).unwrap();
        table.commit("g", "Gone", 0, 1).unwrap();
        let before = table.clone();
        let outside = table.audit(|topic, queue_id| match (topic, queue_id) {
            ("T", 0 | 1) => Some((0, 10)),
            ("T", _) => Some((3, 10)),
            _ => None,
        });
        let named: Vec<_> = outside.iter().map(|o| (o.topic.as_str(), o.queue_id)).collect();
        assert_eq!(named, [("Gone", 0), ("T", 1), ("T", 2)]);
        assert_eq!(table.get("g", "T", 1), before.get("g", "T", 1));
    }

    #[test]
    fn a_topic_with_an_at_sign_is_found_where_the_file_puts_it() {
        let mut table = OffsetTable::default();
        table.commit("g", "a@b", 0, 5).unwrap();
        assert_eq!(table.get("g", "a@b", 0), Some(5));
        assert_eq!(table.get("b@g", "a", 0), Some(5));
        table.commit("g", "a@b", 0, 6).unwrap();
        assert_eq!(table.len(), 1);
    }
}
