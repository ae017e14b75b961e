//! Every message accounted for: which were acknowledged, which arrived, and how.
//!
//! Senders and receivers keep their own parts without a word between them ([`Bits`] by connection) and are put together when all is done. A
//! message is **lost** if it was acknowledged and did not arrive, **duplicated** if it arrived again, **reordered** if it stands in its queue behind one
//! that left after it had been answered, **corrupt** if its bytes are not those that were sent. One that arrives though its send got an error
//! or no answer at all is none of these: a broker may have stored it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::stamp::{self, Body, STAMP_BYTES, Stamp};

/// Most texts of one kind of finding that are kept.
const TEXTS_MAX: usize = 5;
/// Highest message number of a connection: 128 MiB of bits.
const NUMBER_MAX: u64 = 1 << 30;

/// A set of message numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Adds a number; returns whether it is new. Numbers from 2^30 on are not kept and count as new.
    pub fn insert(&mut self, number: u64) -> bool {
        if number >= NUMBER_MAX {
            return true;
        }
        let (word, bit) = ((number / 64) as usize, 1u64 << (number % 64));
        if word >= self.0.len() {
            self.0.resize((word + 1).next_power_of_two(), 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    /// Whether a number is in it.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.word((number / 64) as usize) & 1 << (number % 64) != 0
    }

    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Adds all of `other`; returns how many were in both.
    pub fn merge(&mut self, other: &Bits) -> u64 {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut both = 0;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            both += u64::from((*mine & theirs).count_ones());
            *mine |= theirs;
        }
        both
    }

    /// The numbers that are not in `other`, rising.
    pub fn without<'a>(&'a self, other: &'a Bits) -> impl Iterator<Item = u64> + 'a {
        self.0.iter().zip(0..).flat_map(move |(word, at)| {
            let mut left = word & !other.word(at);
            std::iter::from_fn(move || {
                let bit = u64::from(left.checked_ilog2().map(|_| left.trailing_zeros())?);
                left &= left - 1;
                Some(at as u64 * 64 + bit)
            })
        })
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Stretches of neighbours, each with its first number and its length.
    #[must_use]
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in self.without(&Bits::default()) {
            match ranges.last_mut() {
                Some((first, length)) if *first + *length == number => *length += 1,
                _ => ranges.push((number, 1)),
            }
        }
        ranges
    }

    /// The set of such stretches; see [`Self::ranges`]. `None` if a number is too high.
    #[must_use]
    pub fn from_ranges(ranges: &[(u64, u64)]) -> Option<Self> {
        let mut bits = Bits::default();
        for (first, length) in ranges {
            let end = first.checked_add(*length).filter(|end| *end <= NUMBER_MAX)?;
            for number in *first..end {
                bits.insert(number);
            }
        }
        Some(bits)
    }
}

/// Sets of numbers by connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByConnection(Vec<Bits>);

impl ByConnection {
    /// The set of a connection, made if need be. Connections are below 2^16.
    pub fn of(&mut self, connection: usize) -> &mut Bits {
        let connection = connection & 0xFFFF;
        if connection >= self.0.len() {
            self.0.resize(connection + 1, Bits::default());
        }
        &mut self.0[connection]
    }

    /// All sets, in the order of connections.
    #[must_use]
    pub fn all(&self) -> &[Bits] {
        &self.0
    }

    /// Adds all of `other`; returns how many were in both.
    pub fn merge(&mut self, other: &ByConnection) -> u64 {
        other.0.iter().enumerate().map(|(connection, bits)| self.of(connection).merge(bits)).sum()
    }

    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(Bits::len).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bits::is_empty)
    }
}

/// What arrived at one group.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The messages.
    pub arrived: ByConnection,
    /// How many came again.
    pub duplicated: u64,
    /// How many stand behind one that left after they had been answered.
    pub reordered: u64,
    /// How many are not as they were sent.
    pub corrupt: u64,
    /// The first findings.
    pub texts: Vec<String>,
}

impl Seen {
    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.texts.len() < TEXTS_MAX {
            self.texts.push(text());
        }
    }

    /// Adds what another worker saw of the same group.
    pub fn merge(&mut self, other: &Seen) {
        self.duplicated += other.duplicated + self.arrived.merge(&other.arrived);
        self.reordered += other.reordered;
        self.corrupt += other.corrupt;
        self.texts.extend(other.texts.iter().cloned());
        self.texts.truncate(TEXTS_MAX);
    }
}

/// What to check messages against.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The run whose messages they are.
    pub run_id: u64,
    /// What their bodies are made of.
    pub filler: Arc<[u8]>,
    /// Whether the order within queues is judged.
    pub order: bool,
}

impl Rule {
    /// For a run whose longest body has `bytes_max`.
    #[must_use]
    pub fn new(run_id: u64, bytes_max: usize, order: bool) -> Self {
        Rule { run_id, filler: stamp::filler(run_id, bytes_max).into(), order }
    }
}

/// One worker's side of checking.
#[derive(Debug)]
pub struct Checker {
    rule: Rule,
    /// What was seen, by group.
    pub groups: BTreeMap<usize, Seen>,
    /// By queue (as the worker counts them) and connection: the epoch and the highest floor that was seen.
    floors: Vec<Vec<(u32, u64)>>,
}

impl Checker {
    /// A worker's checker.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Checker { rule, groups: BTreeMap::new(), floors: Vec::new() }
    }

    /// Takes the next message of a queue, in the order of queue offsets. If it is a message of the run, returns its stamp and whether it
    /// came for the first time to this worker.
    pub fn see(
        &mut self,
        group: usize,
        queue: usize,
        place: impl Fn() -> String,
        body: &[u8],
    ) -> Option<(Stamp, bool)> {
        let seen = self.groups.entry(group).or_default();
        let stamp = match stamp::read(body, self.rule.run_id) {
            Body::Foreign => return None,
            Body::Corrupt => {
                seen.corrupt += 1;
                seen.note(|| format!("{}: the stamp of the body is damaged", place()));
                return None;
            }
            Body::Ours(stamp) => stamp,
        };
        let rest = body.get(STAMP_BYTES..).unwrap_or_default();
        if self.rule.filler.get(STAMP_BYTES..body.len()) != Some(rest) {
            seen.corrupt += 1;
            seen.note(|| {
                format!("{}: the body of {} is damaged", place(), key(self.rule.run_id, &stamp))
            });
        }
        let new = seen.arrived.of(stamp.connection()).insert(stamp.number);
        if !new {
            seen.duplicated += 1;
            seen.note(|| format!("{}: {} is there again", place(), key(self.rule.run_id, &stamp)));
        } else if self.rule.order && overtaken(&mut self.floors, queue, &stamp) {
            seen.reordered += 1;
            seen.note(|| {
                format!(
                    "{}: {} stands behind one that left after its answer",
                    place(),
                    key(self.rule.run_id, &stamp)
                )
            });
        }
        Some((stamp, new))
    }
}

/// Whether a message should have stood before one that was seen earlier in its queue.
fn overtaken(floors: &mut Vec<Vec<(u32, u64)>>, queue: usize, stamp: &Stamp) -> bool {
    if queue >= floors.len() {
        floors.resize(queue + 1, Vec::new());
    }
    let (of_queue, connection) = (&mut floors[queue], stamp.connection());
    if connection >= of_queue.len() {
        of_queue.resize(connection + 1, (0, 0));
    }
    let (epoch, floor) = &mut of_queue[connection];
    if stamp.epoch() != *epoch {
        if stamp.epoch() < *epoch {
            // Sent over a connection that broke: nobody knows when it got there.
            return false;
        }
        (*epoch, *floor) = (stamp.epoch(), 0);
    }
    let overtaken = stamp.number < *floor;
    *floor = stamp.floor.max(*floor);
    overtaken
}

/// The unique key of a message, by which tools find it.
#[must_use]
pub fn key(run_id: u64, stamp: &Stamp) -> String {
    key_of(run_id, stamp.connection(), stamp.number)
}

/// The same by its parts.
#[must_use]
pub fn key_of(run_id: u64, connection: usize, number: u64) -> String {
    format!("{run_id:016X}{connection:04X}{number:012X}")
}

/// What came of the checking.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// Whether order was judged.
    pub order: bool,
    /// Each group's account.
    pub groups: Vec<Account>,
    /// Whether nothing was lost, duplicated, reordered or corrupt.
    pub sound: bool,
}

/// The account of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// The group.
    pub name: String,
    /// Different messages that arrived.
    pub arrived: u64,
    /// Acknowledged and not there.
    pub lost: u64,
    /// There more than once.
    pub duplicated: u64,
    /// Overtaken in their queue.
    pub reordered: u64,
    /// Not as they were sent.
    pub corrupt: u64,
    /// There though no success was answered.
    pub unacknowledged: u64,
    /// The first findings, with unique keys.
    pub texts: Vec<String>,
}

/// Puts what was acknowledged beside what arrived at each group. A group without an entry in `seen` got nothing.
#[must_use]
pub fn judge(
    rule: (u64, bool),
    acknowledged: &ByConnection,
    seen: &BTreeMap<usize, Seen>,
    names: &[String],
) -> Verdict {
    let (run_id, order) = rule;
    let nothing = Seen::default();
    let account = |(group, name): (usize, &String)| {
        let seen = seen.get(&group).unwrap_or(&nothing);
        let mut account = Account {
            name: name.clone(),
            arrived: seen.arrived.len(),
            duplicated: seen.duplicated,
            reordered: seen.reordered,
            corrupt: seen.corrupt,
            texts: seen.texts.clone(),
            ..Account::default()
        };
        let empty = Bits::default();
        for (connection, bits) in acknowledged.all().iter().enumerate() {
            let arrived = seen.arrived.all().get(connection).unwrap_or(&empty);
            for number in bits.without(arrived) {
                account.lost += 1;
                if account.lost <= TEXTS_MAX as u64 {
                    account.texts.push(format!(
                        "{} was acknowledged and is not there",
                        key_of(run_id, connection, number)
                    ));
                }
            }
        }
        account.unacknowledged =
            (account.arrived + account.lost).saturating_sub(acknowledged.len());
        account
    };
    let groups: Vec<_> = names.iter().enumerate().map(account).collect();
    let sound = |account: &Account| {
        account.lost + account.duplicated + account.reordered + account.corrupt == 0
    };
    Verdict { acknowledged: acknowledged.len(), order, sound: groups.iter().all(sound), groups }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 9;

    fn body(connection: u32, epoch: u32, number: u64, floor: u64) -> Vec<u8> {
        let stamp = Stamp { sender: epoch << 16 | connection, intended: 1, number, floor };
        let mut body = stamp::filler(RUN, 80);
        stamp::put_head(&mut body, RUN);
        stamp::put(&mut body, RUN, &stamp, 80);
        body
    }

    fn checker() -> Checker {
        Checker::new(Rule::new(RUN, 80, true))
    }

    fn see(checker: &mut Checker, queue: usize, body: &[u8]) {
        checker.see(0, queue, String::new, body);
    }

    #[test]
    fn bits_know_their_numbers_ranges_and_differences() {
        let numbers = [0, 1, 2, 63, 64, 65, 200, 1_000];
        let mut bits = Bits::default();
        assert!(numbers.iter().all(|number| bits.insert(*number)));
        assert!(!bits.insert(64) && bits.contains(200) && !bits.contains(201));
        assert_eq!((bits.len(), bits.is_empty()), (8, false));
        assert_eq!(bits.ranges(), [(0, 3), (63, 3), (200, 1), (1_000, 1)]);
        assert_eq!(Bits::from_ranges(&bits.ranges()).unwrap().ranges(), bits.ranges());
        let mut other = Bits::default();
        other.insert(1);
        other.insert(5_000);
        assert_eq!(bits.without(&other).collect::<Vec<_>>(), [0, 2, 63, 64, 65, 200, 1_000]);
        assert_eq!(bits.merge(&other), 1);
        assert_eq!(bits.len(), 9);
        assert_eq!(Bits::from_ranges(&[(NUMBER_MAX, 1)]), None);
        assert_eq!(Bits::from_ranges(&[(u64::MAX, 2)]), None);
    }

    #[test]
    fn lost_duplicated_and_unacknowledged_messages_are_told_apart() {
        let mut acknowledged = ByConnection::default();
        for number in 0..10 {
            acknowledged.of(2).insert(number);
        }
        let (mut one, mut two) = (checker(), checker());
        // Number 3 is lost, 4 comes twice at one worker, 5 at both; 10 and 11 were not acknowledged.
        for number in [0, 1, 2, 4, 4, 5, 10, 11] {
            see(&mut one, 0, &body(2, 0, number, 0));
        }
        for number in [5, 6, 7, 8, 9] {
            see(&mut two, 1, &body(2, 0, number, 0));
        }
        see(&mut two, 1, b"a message of somebody else's");
        let mut seen = one.groups.remove(&0).unwrap();
        seen.merge(&two.groups[&0]);
        let verdict =
            judge((RUN, true), &acknowledged, &[(0, seen)].into(), &["g".into(), "none".into()]);
        let account = &verdict.groups[0];
        assert_eq!((account.arrived, account.lost, account.duplicated), (11, 1, 2), "{account:?}");
        assert_eq!((account.unacknowledged, account.reordered, account.corrupt), (2, 0, 0));
        assert!(
            account.texts.iter().any(|text| text.starts_with(&key_of(RUN, 2, 3))),
            "{account:?}"
        );
        assert_eq!(verdict.groups[1].lost, 10);
        assert!(!verdict.sound);
    }

    #[test]
    fn only_what_was_certainly_overtaken_is_reordered() {
        let mut c = checker();
        // 1 and 0 were under way together: either may come first.
        see(&mut c, 0, &body(0, 0, 1, 0));
        see(&mut c, 0, &body(0, 0, 0, 0));
        // 5 left when all below 4 had been answered.
        see(&mut c, 0, &body(0, 0, 5, 4));
        see(&mut c, 0, &body(0, 0, 4, 2));
        assert_eq!(c.groups[&0].reordered, 0);
        see(&mut c, 0, &body(0, 0, 3, 2));
        assert_eq!(c.groups[&0].reordered, 1);
        // Another queue, another connection: nothing to compare with.
        see(&mut c, 1, &body(0, 0, 2, 2));
        see(&mut c, 0, &body(1, 0, 0, 0));
        // After a break numbers of before may come late.
        see(&mut c, 0, &body(0, 1, 20, 20));
        see(&mut c, 0, &body(0, 0, 6, 6));
        assert_eq!(c.groups[&0].reordered, 1);
        see(&mut c, 0, &body(0, 1, 19, 19));
        assert_eq!(c.groups[&0].reordered, 2);
    }

    #[test]
    fn a_changed_byte_is_corruption_wherever_it_is() {
        let sent = body(0, 0, 7, 0);
        for at in [5, 20, 30, 40, 47, 48, 60, 79] {
            let mut c = checker();
            let mut damaged = sent.clone();
            damaged[at] ^= 0x20;
            see(&mut c, 0, &damaged);
            assert_eq!(c.groups[&0].corrupt, 1, "byte {at}");
        }
        let mut c = checker();
        see(&mut c, 0, &sent[..79]);
        assert_eq!(c.groups[&0].corrupt, 1);
    }
}
