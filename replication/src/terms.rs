//! Terms: which master wrote which part of the log.

use std::fmt::Write as _;
use thiserror::Error;

/// The highest number: stock 5.x has them in 32 bits with a sign.
pub const NUMBER_MAX: u32 = i32::MAX as u32;

/// The random number that tells two terms of one number and start apart; 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TermId(pub u128);

impl TermId {
    /// Whether both are known and differ: surely not the same term.
    #[must_use]
    pub fn contradicts(self, other: Self) -> bool {
        self.0 != 0 && other.0 != 0 && self != other
    }

    /// Whether both are known and the same: surely one term.
    #[must_use]
    pub fn proves(self, other: Self) -> bool {
        self.0 != 0 && self == other
    }
}

/// What one master wrote from its start to the next term's start. Stock 5.x calls it an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its number, growing.
    pub number: u32,
    /// The physical offset of its first byte.
    pub start: u64,
    /// Its own id.
    pub id: TermId,
}

/// Why a term or a file of terms is not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TermError {
    /// A term that does not follow the last one.
    #[error(
        "term {number} from {start} does not follow term {last} from {last_start}; its master has another history"
    )]
    Order {
        /// The refused number.
        number: u32,
        /// The refused start.
        start: u64,
        /// The last term's number.
        last: u32,
        /// The last term's start.
        last_start: u64,
    },
    /// A file that is not a list of terms.
    #[error(
        "line {line} of the epoch file is not what it must be: {what}; restore it from its .bak or let the node copy anew"
    )]
    File {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// The terms of a log, ascending by number and start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TermList(Vec<Term>);

impl TermList {
    /// A list from terms in any state.
    ///
    /// # Errors
    /// Terms that do not ascend.
    pub fn new(terms: impl IntoIterator<Item = Term>) -> Result<Self, TermError> {
        let mut list = Self::default();
        for term in terms {
            if list.last().is_some_and(|last| term.start == last.start) {
                return Err(list.order(term));
            }
            list.append(term)?;
        }
        Ok(list)
    }

    /// The terms, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[Term] {
        &self.0
    }

    /// The newest term.
    #[must_use]
    pub fn last(&self) -> Option<&Term> {
        self.0.last()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a term. One that starts where the last one does replaces it, for nothing was written in that
    /// one; stock 5.5.0 keeps the old one, and two histories then share a number and a start.
    ///
    /// # Errors
    /// A number or start that does not follow. The list is as before.
    pub fn append(&mut self, term: Term) -> Result<(), TermError> {
        if let Some(last) = self.0.last().copied() {
            if term.number <= last.number || term.start < last.start {
                return Err(self.order(term));
            }
            if term.start == last.start {
                self.0.pop();
            }
        }
        self.0.push(term);
        Ok(())
    }

    fn order(&self, term: Term) -> TermError {
        let last = self.0.last();
        TermError::Order {
            number: term.number,
            start: term.start,
            last: last.map_or(0, |l| l.number),
            last_start: last.map_or(0, |l| l.start),
        }
    }

    /// Drops the terms that start behind `end`: the log was cut there. One that starts there has no byte yet, and keeps its number.
    pub fn cut(&mut self, end: u64) {
        self.0.retain(|t| t.start <= end);
    }

    /// No id proves anything any more: somebody wrote into the log who keeps no terms.
    pub fn forget_ids(&mut self) {
        self.0.iter_mut().for_each(|term| term.id = TermId::default());
    }

    /// Drops the terms that end at or before `log_start`: their segments are deleted.
    pub fn expire(&mut self, log_start: u64) {
        let keep_from = self.0.partition_point(|t| t.start <= log_start).saturating_sub(1);
        self.0.drain(..keep_from);
    }

    /// The term that the byte at `offset` belongs to; `None` before the first.
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<&Term> {
        let after = self.0.partition_point(|t| t.start <= offset);
        self.0.get(after.checked_sub(1)?)
    }

    /// The first start of a term behind `offset`: a frame from `offset` ends there at the latest.
    #[must_use]
    pub fn next_start(&self, offset: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|t| t.start <= offset)).map(|t| t.start)
    }

    /// Where term `index` ends in a log that ends at `log_end`.
    fn end(&self, index: usize, log_end: u64) -> u64 {
        self.0.get(index + 1).map_or(log_end, |next| next.start).min(log_end)
    }

    /// The terms that start at `end` or before, as a list.
    #[must_use]
    pub fn up_to(&self, end: u64) -> Self {
        Self(self.0.iter().copied().filter(|t| t.start <= end).collect())
    }

    /// Gives the terms of the same number and start the ids that `other` knows.
    pub fn learn_ids(&mut self, other: &Self) {
        for term in self.0.iter_mut().filter(|t| t.id.0 == 0) {
            let same = other.0.iter().find(|o| o.number == term.number && o.start == term.start);
            term.id = same.map_or(TermId::default(), |o| o.id);
        }
    }

    /// The text of stock 5.x's `epochFileCheckpoint`. Stock never writes an empty list: keep the old file
    /// then, or remove both.
    #[must_use]
    pub fn encode_file(&self) -> String {
        let lines = lines(&self.0);
        format!("{}\n{}\n{lines}", self.0.len(), checksum(&lines))
    }

    /// Reads `epochFileCheckpoint` or its `.bak`. Ids are not in there: see [`Self::decode_ids`].
    ///
    /// # Errors
    /// What is not as stock writes it, a wrong checksum (0 stands for none), terms out of order.
    pub fn decode_file(text: &str) -> Result<Self, TermError> {
        let mut rows = text.lines();
        let mut head = |line, what| {
            rows.next()
                .and_then(|r| r.trim().parse::<u32>().ok())
                .ok_or(TermError::File { line, what })
        };
        let count = head(1, "not a count")?;
        let crc = head(2, "not a checksum")?;
        let mut terms = Vec::new();
        for (n, row) in rows.filter(|r| !r.is_empty()).enumerate() {
            let term = row.split_once('-').and_then(|(number, start)| {
                Some(Term {
                    number: number.parse().ok().filter(|number| *number <= NUMBER_MAX)?,
                    start: start.parse().ok()?,
                    id: TermId::default(),
                })
            });
            terms.push(
                term.ok_or(TermError::File { line: n + 3, what: "not `epoch-startOffset`" })?,
            );
        }
        if terms.len() != count as usize {
            return Err(TermError::File { line: 1, what: "the count is not that of the lines" });
        }
        if crc != 0 && crc != checksum(&lines(&terms)) {
            return Err(TermError::File { line: 2, what: "the checksum is wrong" });
        }
        Self::new(terms)
    }

    /// The text of the sidecar with the ids: `number-start id`, one line each, and a checksum first.
    #[must_use]
    pub fn encode_ids(&self) -> String {
        let mut rows = String::new();
        for t in self.0.iter().filter(|t| t.id.0 != 0) {
            let _ = writeln!(rows, "{}-{} {:032x}", t.number, t.start, t.id.0);
        }
        format!("{}\n{rows}", checksum(&rows))
    }

    /// The sidecar's text of a log whose ids are forgotten: it names a number alone, so that none up to it is given again.
    #[must_use]
    pub fn encode_no_ids(number: u32) -> String {
        let row = format!("{number}-0 0\n");
        format!("{}\n{row}", checksum(&row))
    }

    /// The highest number that the sidecar's text names; 0 if it names none or is damaged.
    #[must_use]
    pub fn number_max_of_ids(text: &str) -> u32 {
        let Some((crc, rows)) = text.split_once('\n') else { return 0 };
        if crc.parse() != Ok(checksum(rows)) {
            return 0;
        }
        let numbers = rows.lines().filter_map(|row| row.split_once('-')?.0.parse().ok());
        numbers.max().unwrap_or(0)
    }

    /// Takes the ids from the sidecar's text for the terms that are in the list with the same number and
    /// start. A sidecar that is damaged gives none: the ids are then unknown, and CRCs decide.
    pub fn decode_ids(&mut self, text: &str) {
        let Some((crc, rows)) = text.split_once('\n') else { return };
        if crc.parse() != Ok(checksum(rows)) {
            return;
        }
        for row in rows.lines() {
            let Some((key, id)) = row.split_once(' ') else { continue };
            let Ok(id) = u128::from_str_radix(id, 16) else { continue };
            let same = self.0.iter_mut().find(|t| key == format!("{}-{}", t.number, t.start));
            if let Some(term) = same {
                term.id = TermId(id);
            }
        }
    }
}

fn lines(terms: &[Term]) -> String {
    let mut rows = String::new();
    for t in terms {
        let _ = writeln!(rows, "{}-{}", t.number, t.start);
    }
    rows
}

fn checksum(lines: &str) -> u32 {
    crc32fast::hash(lines.as_bytes()) & 0x7fff_ffff
}

/// A place up to which two logs may be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The end of the common part.
    pub point: u64,
    /// Whether ids prove it. Otherwise the CRCs before the point must be compared, and be comparable.
    pub proven: bool,
}

/// Where the logs of a slave and its master may part, from the best place down: the ends of the terms
/// that they share, then what is older than the terms of both. A term is shared if number and start are
/// equal and the ids, if both know one, too.
#[must_use]
pub fn candidates(
    own: &TermList,
    own_end: u64,
    master: &TermList,
    master_end: u64,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    for (i, term) in own.0.iter().enumerate().rev() {
        let same = |m: &Term| {
            m.number == term.number && m.start == term.start && !m.id.contradicts(term.id)
        };
        let Some(j) = master.0.iter().position(same) else { continue };
        let point = own.end(i, own_end).min(master.end(j, master_end));
        if point >= term.start {
            let proven = master.0.get(j).is_some_and(|m| m.id.proves(term.id));
            found.push(Candidate { point, proven });
        }
    }
    let before = |list: &TermList, end: u64| list.0.first().map_or(end, |t| t.start.min(end));
    let point = before(own, own_end).min(before(master, master_end));
    if point > 0 && found.iter().all(|c| c.point > point) {
        found.push(Candidate { point, proven: false });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(terms: &[(u32, u64, u128)]) -> TermList {
        TermList::new(terms.iter().map(|&(number, start, id)| Term {
            number,
            start,
            id: TermId(id),
        }))
        .unwrap()
    }

    #[test]
    fn the_stock_epoch_file_comes_back_byte_for_byte() {
        let text = include_str!("../tests/vectors/epochFileCheckpoint");
        let terms = TermList::decode_file(text).unwrap();
        assert_eq!(terms.encode_file(), text);
        assert_eq!(terms.last().unwrap().start, 4_100_763);
        assert_eq!(checksum("1-0\n2-63186\n"), 311_037_775);
    }

    #[test]
    fn a_damaged_epoch_file_is_refused_and_a_damaged_sidecar_gives_no_id() {
        let text = include_str!("../tests/vectors/epochFileCheckpoint");
        for cut in 0..text.len() - 1 {
            assert!(TermList::decode_file(&text[..cut]).is_err(), "accepted after {cut} bytes");
        }
        assert!(TermList::decode_file(&text.replace("3-825280", "3-825281")).is_err());
        assert!(TermList::decode_file("2\n0\n5-1\n4-2\n").is_err());
        let terms = list(&[(1, 0, 7), (2, 50, 9)]);
        let sidecar = terms.encode_ids();
        let mut bare = list(&[(1, 0, 0), (2, 50, 0)]);
        bare.decode_ids(&sidecar.replace('9', "8"));
        assert_eq!(bare.last().unwrap().id, TermId(0));
        bare.decode_ids(&sidecar);
        assert_eq!(bare, terms);
    }

    #[test]
    fn a_term_without_a_write_is_replaced_by_the_next() {
        // Stock 5.5.0 kept (10, X) and refused (11, X).
        let mut terms = list(&[(9, 10, 1), (10, 50, 2)]);
        terms.append(Term { number: 11, start: 50, id: TermId(3) }).unwrap();
        assert_eq!(terms, list(&[(9, 10, 1), (11, 50, 3)]));
        assert!(terms.append(Term { number: 11, start: 60, id: TermId(4) }).is_err());
        assert!(terms.append(Term { number: 12, start: 49, id: TermId(4) }).is_err());
    }

    #[test]
    fn two_histories_of_one_number_and_start_part_at_the_term_before() {
        let a = list(&[(9, 10, 1), (10, 50, 2)]);
        let b = list(&[(9, 10, 1), (10, 50, 3)]);
        let points = candidates(&a, 90, &b, 80);
        assert_eq!(points[0], Candidate { point: 50, proven: true });
    }

    #[test]
    fn the_captured_rejoin_parts_where_stock_cut() {
        let master =
            TermList::decode_file(include_str!("../tests/vectors/epochFileCheckpoint")).unwrap();
        let own = list(&[(1, 0, 0), (2, 63186, 0), (3, 825_280, 0), (4, 945_855, 0)]);
        let points = candidates(&own, 18_328_452, &master, 4_100_763);
        assert_eq!(points[0], Candidate { point: 4_100_763, proven: false });
    }

    #[test]
    fn a_log_without_terms_is_only_a_candidate_to_be_compared() {
        let master = list(&[(4, 70, 1)]);
        let none = TermList::default();
        assert_eq!(candidates(&none, 90, &master, 120), [Candidate { point: 70, proven: false }]);
        assert_eq!(candidates(&none, 90, &list(&[(4, 0, 1)]), 120), []);
    }

    #[test]
    fn terms_follow_deleted_segments_and_cuts() {
        let mut terms = list(&[(1, 0, 1), (2, 50, 2), (4, 90, 3)]);
        assert_eq!((terms.at(49).unwrap().number, terms.at(50).unwrap().number), (1, 2));
        assert_eq!(
            (terms.next_start(49), terms.next_start(50), terms.next_start(90)),
            (Some(50), Some(90), None)
        );
        terms.expire(50);
        assert_eq!(terms, list(&[(2, 50, 2), (4, 90, 3)]));
        terms.cut(90);
        assert_eq!(terms, list(&[(2, 50, 2), (4, 90, 3)]), "empty, but begun");
        terms.cut(89);
        assert_eq!(terms, list(&[(2, 50, 2)]));
        terms.cut(49);
        assert!(terms.is_empty() && terms.at(60).is_none());
    }
}
