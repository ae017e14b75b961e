//! Metadata beside the log: what consumers commit at a RingMQ master goes to its RingMQ slaves at once, before its answer if there is one, and other tables are asked
//! for when they change instead of when it is time.
//!
//! ```text
//!  1 offsets    all of them in pieces first, then what was committed since, each as the answer of request 43
//!  2 ask        topics or groups have changed: ask for the tables
//!  3 delays     the progress of delayed delivery, as the answer of request 45
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringmq_engine::state::delay::DelayOffsets;
use ringmq_engine::state::offsets::{ENTRIES_MAX, OffsetTable, OffsetsFull, QueueOffsets};

use super::Broker;
use super::signal::Signal;
use super::untold::Untold;

const OFFSETS: u8 = 1;
const ASK: u8 = 2;
const DELAYS: u8 = 3;

/// How often it is looked for changed tables.
const TELL_EVERY: Duration = Duration::from_millis(20);
/// After commits were told: what comes meanwhile goes together, so that a thousand commits cost one frame.
const GATHER: Duration = Duration::from_millis(1);
/// How often the progress of delayed delivery is told: a slave writes a file each time.
const DELAYS_EVERY: Duration = Duration::from_secs(1);
/// The answer to a commit waits no longer than this for slaves that do not take what they are told.
const TOLD_MAX: Duration = Duration::from_millis(20);
/// (group, topic) pairs of one round; beyond it slaves get all of the table.
const TOUCHED_MAX: usize = 10_000;
/// (group, topic) pairs of a piece.
const PIECE: usize = 1_000;

/// What consumers have committed since slaves were last told. Costs nothing while no slave listens.
#[derive(Default)]
pub(super) struct Touched {
    listened: Cell<bool>,
    pairs: Cell<usize>,
    groups: RefCell<HashMap<String, HashSet<String>>>,
    /// Raised when something is noted.
    due: Signal,
}

impl Touched {
    /// A group has committed an offset on a topic.
    pub(super) fn note(&self, group: &str, topic: &str) {
        if !self.listened.get() || self.pairs.get() > TOUCHED_MAX {
            return;
        }
        let mut groups = self.groups.borrow_mut();
        if groups.get(group).is_some_and(|topics| topics.contains(topic)) {
            return;
        }
        groups.entry(group.to_owned()).or_default().insert(topic.to_owned());
        self.pairs.set(self.pairs.get() + 1);
        self.due.raise();
    }

    /// Whether slaves listen from now on; what was noted until then, or nothing if that was too much to be told, or not all: before the
    /// first slave listened nothing was noted, and what it got first may be older than this.
    fn take(&self, listened: bool) -> Option<HashMap<String, HashSet<String>>> {
        let noted = self.listened.replace(listened);
        let groups = self.groups.take();
        let few = self.pairs.take() <= TOUCHED_MAX;
        (few && (noted || !listened)).then_some(groups)
    }
}

impl Broker {
    /// A master's side: tells slaves what has changed, until the broker stops.
    pub(super) async fn stream_metadata(self: Rc<Self>) {
        let mut told = (self.topics.borrow().version(), self.groups.borrow().version());
        let mut delays = Vec::new();
        let mut delays_told = Instant::now();
        loop {
            self.ha.touched.due.wait_at_most(TELL_EVERY).await;
            if self.stopped() {
                return;
            }
            let Some(master) = self.ha.master() else { continue };
            let listened = master.metadata_is_taken();
            let touched = self.ha.touched.take(listened);
            if !listened {
                continue;
            }
            let now = (self.topics.borrow().version(), self.groups.borrow().version());
            if now != told {
                told = now;
                master.tell(&[ASK]);
            }
            let pieces = match touched {
                Some(touched) => self.offsets_of(&touched),
                None => self.all_offsets(),
            };
            pieces.iter().for_each(|piece| master.tell(piece));
            if !pieces.is_empty() {
                glommio::timer::sleep(GATHER).await;
            }
            if delays_told.elapsed() >= DELAYS_EVERY {
                delays_told = Instant::now();
                let now = self.delay_offsets.borrow().to_json();
                if now != delays {
                    master.tell(&[&[DELAYS], now.as_slice()].concat());
                    delays = now;
                }
            }
        }
    }

    /// Tells one commit to slaves at once. Whether one takes it.
    pub(super) fn tell_commit(&self, group: &str, topic: &str, queue: i32) -> bool {
        let Some(master) = self.ha.master().filter(|master| master.metadata_is_taken()) else {
            return false;
        };
        let Some(offset) = self.offsets.borrow().get(group, topic, queue) else { return false };
        let mut one = OffsetTable::new(1);
        // It is empty, so there is room for one.
        let _ = one.commit(group, topic, queue, offset);
        master.tell(&[&[OFFSETS], one.to_json().as_slice()].concat());
        true
    }

    /// Ends when what was told is on its way, or does not get away for a while.
    pub(super) async fn commits_are_told(&self) {
        if let Some(master) = self.ha.master() {
            master.told_is_sent(TOLD_MAX).await;
        }
    }

    /// What a slave gets first.
    pub(super) fn all_metadata(&self) -> Vec<Vec<u8>> {
        let mut pieces = self.all_offsets();
        pieces.push([&[DELAYS], self.delay_offsets.borrow().to_json().as_slice()].concat());
        pieces.push(vec![ASK]);
        pieces
    }

    fn all_offsets(&self) -> Vec<Vec<u8>> {
        pieces(self.offsets.borrow().iter())
    }

    fn offsets_of(&self, touched: &HashMap<String, HashSet<String>>) -> Vec<Vec<u8>> {
        let offsets = self.offsets.borrow();
        let pairs =
            touched.iter().flat_map(|(group, topics)| topics.iter().map(move |t| (group, t)));
        pieces(pairs.filter_map(|(group, topic)| {
            Some((group.as_str(), topic.as_str(), offsets.queues(group, topic)?))
        }))
    }

    /// A slave's side: metadata came with the log.
    pub(super) fn take_metadata(&self, body: &[u8]) {
        let Some((kind, body)) = body.split_first() else { return };
        let taken = match *kind {
            OFFSETS => self.take_offsets(body),
            ASK => {
                self.ha.tables_due.raise();
                Ok(())
            }
            DELAYS => self.take_delays(body),
            // Of a later version.
            _ => Ok(()),
        };
        if let Err(why) = taken {
            self.rare_log.warn("taking over the master's tables, trying on", &why);
        }
    }

    pub(super) fn take_offsets(&self, body: &[u8]) -> Result<(), String> {
        let table = OffsetTable::from_json(body, ENTRIES_MAX).map_err(|error| error.to_string())?;
        take_over(&table, &mut self.offsets.borrow_mut(), &self.ha.untold)
            .map_err(|error| error.to_string())
    }

    /// To the file alone: it counts once this broker is a master.
    pub(super) fn take_delays(&self, body: &[u8]) -> Result<(), String> {
        let offsets = DelayOffsets::from_json(body).map_err(|error| error.to_string())?;
        self.saver.save(&self.paths.delay, offsets.to_file());
        *self.delay_offsets.borrow_mut() = offsets;
        Ok(())
    }
}

/// Takes over a master's progress, forward or backward, where it [counts](Untold::hears).
fn take_over(
    from: &OffsetTable,
    offsets: &mut OffsetTable,
    untold: &Untold,
) -> Result<(), OffsetsFull> {
    for (group, topic, queues) in from.iter() {
        for (queue, offset) in queues.iter() {
            if untold.hears(group, topic, queue, offset) {
                offsets.commit(group, topic, queue, offset)?;
            }
        }
    }
    Ok(())
}

/// Progress of groups on topics, some at a time.
fn pieces<'a>(all: impl Iterator<Item = (&'a str, &'a str, &'a QueueOffsets)>) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut all = all.peekable();
    while all.peek().is_some() {
        let mut part = OffsetTable::new(ENTRIES_MAX);
        for (group, topic, queues) in all.by_ref().take(PIECE) {
            for (queue, offset) in queues.iter() {
                // A part of a table that was not full is not full.
                let _ = part.commit(group, topic, queue, offset);
            }
        }
        pieces.push([&[OFFSETS], part.to_json().as_slice()].concat());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use ringmq_engine::store::StoreLayout;

    use super::*;

    #[test]
    fn a_masters_progress_counts_but_where_consumers_went_further_here() {
        let table = |entries: &[(i32, i64)]| {
            let mut table = OffsetTable::default();
            for (queue, offset) in entries {
                table.commit("g", "t", *queue, *offset).expect("room");
            }
            table
        };
        let mut offsets = table(&[(0, 40), (1, 80), (2, 7), (3, 9)]);
        let dir = tempfile::tempdir().expect("a directory");
        let untold = Untold::load(&StoreLayout::new(dir.path()), false).expect("no file");
        *untold.table() = table(&[(0, 40), (1, 80), (3, 9)]);
        take_over(&table(&[(0, 10), (1, 90), (2, 5)]), &mut offsets, &untold).expect("room");
        let of = |table: &OffsetTable| [0, 1, 2, 3].map(|queue| table.get("g", "t", queue));
        assert_eq!(of(&offsets), [Some(40), Some(90), Some(5), Some(9)]);
        assert_eq!(of(&untold.table()), [Some(40), None, None, Some(9)], "what is left to be told");
        // It has heard of it: from here on it counts, backward too.
        take_over(&table(&[(0, 40)]), &mut offsets, &untold).expect("room");
        take_over(&table(&[(0, 3)]), &mut offsets, &untold).expect("room");
        assert_eq!(of(&offsets)[0], Some(3));
    }

    #[test]
    fn what_is_committed_is_told_once_and_too_much_of_it_not_at_all() {
        let touched = Touched::default();
        touched.note("g", "t");
        assert_eq!(touched.take(false), Some(HashMap::new()), "nobody listens");
        touched.note("g", "t");
        assert_eq!(touched.take(true), None, "it was not noted, and is told with all");
        for _ in 0..3 {
            touched.note("g", "t");
        }
        touched.note("g", "u");
        let pairs = touched.take(true).expect("few pairs");
        assert_eq!(pairs["g"].len(), 2);
        assert_eq!(touched.take(true), Some(HashMap::new()));
        (0..=TOUCHED_MAX).for_each(|n| touched.note("g", &n.to_string()));
        assert_eq!(touched.take(true), None);
        assert_eq!(touched.take(true), Some(HashMap::new()));
    }
}
