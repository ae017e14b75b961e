//! The terms of one store on its disk, and how much of its log was acknowledged as replicated.
//!
//! ```text
//!  <store>/epochFileCheckpoint   numbers and starts, as stock 5.x keeps them
//!  <store>/ringmq/term-ids       the random id of each, which stock has no place for
//!  <store>/ringmq/replicated     a lower bound of what was acknowledged because slaves held it
//! ```
//! Each is replaced atomically and fsynced. The ids go first: an id without its term means nothing, a term without its id is one
//! that has to be compared byte for byte.

use std::cell::{Cell, Ref, RefCell};
use std::io;
use std::path::{Path, PathBuf};

use crc32c::crc32c;
use ringmq_engine::store::{StoreError, StoreLayout, write_replacing};

use crate::terms::{NUMBER_MAX, Term, TermId, TermList};

const BOUND_MAGIC: &str = "ringmq-replicated-1";

/// What recovery found of the log that the terms belong to.
#[derive(Debug, Clone, Copy)]
pub struct LogFound {
    /// Its first byte.
    pub min: u64,
    /// Its end.
    pub end: u64,
    /// A stock broker wrote into it since: what it wrote belongs to no term, and no id proves anything any more.
    pub stock_was_here: bool,
}

/// Where the files are.
#[derive(Debug, Clone)]
struct Paths {
    epochs: PathBuf,
    ids: PathBuf,
    bound: PathBuf,
}

/// A change of the files that blocks: run it off the reactor.
#[derive(Debug)]
#[must_use]
pub struct Save {
    files: Vec<(PathBuf, String)>,
}

impl Save {
    /// Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Io`]; files before the one that failed are written.
    pub fn run(self) -> Result<(), StoreError> {
        self.files.iter().try_for_each(|(path, text)| write_replacing(path, text.as_bytes()))
    }
}

/// The terms of one shard's log. Lives on its reactor.
#[derive(Debug)]
pub struct TermStore {
    paths: Paths,
    list: RefCell<TermList>,
    /// No number up to here is given again, whatever became of its term.
    floor: Cell<u32>,
    /// Counts changes of the list.
    changes: Cell<u64>,
    bound: Cell<u64>,
    saved_bound: Cell<u64>,
}

impl TermStore {
    /// Reads the files of a store, blocking, and fits the list to the log. Gives one line for everything that an operator should hear.
    ///
    /// A file that is damaged counts as none: a log without terms is compared byte for byte before it follows another.
    ///
    /// # Errors
    /// [`StoreError::Io`] for a file that is there and can't be read, or ids of another's log that can't be forgotten.
    pub fn load(
        layout: &StoreLayout,
        log: LogFound,
    ) -> Result<(TermStore, Vec<String>), StoreError> {
        let paths = Paths {
            epochs: layout.root().join("epochFileCheckpoint"),
            ids: layout.ringmq().join("term-ids"),
            bound: layout.ringmq().join("replicated"),
        };
        let mut notes = Vec::new();
        let ids = read(&paths.ids)?.unwrap_or_default();
        let mut list = match read(&paths.epochs)?.map(|text| TermList::decode_file(&text)) {
            None => TermList::default(),
            Some(Ok(list)) => list,
            Some(Err(error)) => {
                notes.push(format!(
                    "{}: {error}; without it this log is compared byte for byte before it follows another",
                    paths.epochs.display()
                ));
                TermList::default()
            }
        };
        list.decode_ids(&ids);
        let last = list.last().map_or(0, |term| term.number);
        let floor = last.max(TermList::number_max_of_ids(&ids));
        list.cut(log.end);
        list.expire(log.min);
        if log.stock_was_here && !list.is_empty() {
            list.forget_ids();
            // Before the visit is settled: a later start would not know of it.
            let forgotten = vec![(paths.ids.clone(), TermList::encode_no_ids(floor))];
            Save { files: forgotten }.run()?;
            notes.push("a stock broker was here: the terms of this log prove nothing any more, it is compared byte for byte before it follows another".to_owned());
        }
        let bound = read(&paths.bound)?.and_then(|text| {
            let bound = decode_bound(&text);
            if bound.is_none() {
                notes.push(format!(
                    "{} is damaged: how much of this log was acknowledged as replicated is not known any more",
                    paths.bound.display()
                ));
            }
            bound
        });
        let bound = bound.unwrap_or(0);
        let store = TermStore {
            paths,
            list: RefCell::new(list),
            floor: Cell::new(floor),
            changes: Cell::new(0),
            bound: Cell::new(bound),
            saved_bound: Cell::new(bound),
        };
        Ok((store, notes))
    }

    /// Begins a term of this node at `start`, the log's end. Blocks, and is durable when it returns: no byte of the term may be appended
    /// before. One that starts where the last one does takes its place, for nothing was written in that one. What was acknowledged beyond
    /// `start` is lost to this log: the bound is `start` then, for of what is written there from now on nothing is acknowledged yet.
    ///
    /// # Errors
    /// [`StoreError::Io`]; no term has begun then.
    pub fn begin(&self, start: u64) -> Result<Term, StoreError> {
        let epochs = &self.paths.epochs;
        let refused =
            |why: String| StoreError::io("begin a term in", epochs, io::Error::other(why));
        let id = random_id().map_err(|error| StoreError::io("make an id for", epochs, error))?;
        let number = self.floor.get().saturating_add(1);
        if number > NUMBER_MAX {
            return Err(refused(format!("{number} is no number of an epoch: remove the file")));
        }
        let term = Term { number, start, id };
        let mut list = self.list.borrow().clone();
        list.append(term).map_err(|error| refused(error.to_string()))?;
        let mut save = self.save(&list);
        let lost = self.bound.get() > start;
        if lost {
            save.files.push((self.paths.bound.clone(), encode_bound(start)));
        }
        save.run()?;
        if lost {
            self.bound.set(start);
            self.saved_bound.set(start);
        }
        self.adopt(list);
        Ok(term)
    }

    /// The terms.
    pub fn list(&self) -> Ref<'_, TermList> {
        self.list.borrow()
    }

    /// Grows with each change of the list: what was told of it before is old.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// What makes `list` durable. Run it, then [`Self::adopt`] the list.
    pub fn save(&self, list: &TermList) -> Save {
        let files = vec![
            (self.paths.ids.clone(), list.encode_ids()),
            (self.paths.epochs.clone(), list.encode_file()),
        ];
        Save { files }
    }

    /// `list` is durable and counts from here on.
    pub fn adopt(&self, list: TermList) {
        let last = list.last().map_or(0, |term| term.number);
        self.floor.set(self.floor.get().max(last));
        *self.list.borrow_mut() = list;
        self.changes.set(self.changes.get() + 1);
    }

    /// Up to here the log was acknowledged because slaves held it, at least: it is never cut below.
    pub fn bound(&self) -> u64 {
        self.bound.get()
    }

    /// More was acknowledged: only a term that [begins](Self::begin) below takes that back.
    pub fn raise_bound(&self, offset: u64) {
        self.bound.set(self.bound.get().max(offset));
    }

    /// What makes the bound durable, if it has grown since the last time; and the value, for [`Self::bound_saved`].
    pub fn save_bound(&self) -> Option<(u64, Save)> {
        let bound = self.bound.get();
        (bound > self.saved_bound.get())
            .then(|| (bound, Save { files: vec![(self.paths.bound.clone(), encode_bound(bound))] }))
    }

    /// The bound is durable up to here.
    pub fn bound_saved(&self, bound: u64) {
        self.saved_bound.set(self.saved_bound.get().max(bound));
    }
}

fn read(path: &Path) -> Result<Option<String>, StoreError> {
    match std::fs::read(path) {
        // What is no text is damaged, and will be called so.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", path, error)),
    }
}

fn encode_bound(bound: u64) -> String {
    let text = format!("{BOUND_MAGIC} {bound}");
    format!("{text} {:08x}\n", crc32c(text.as_bytes()))
}

fn decode_bound(text: &str) -> Option<u64> {
    let (text, crc) = text.trim_end().rsplit_once(' ')?;
    if u32::from_str_radix(crc, 16).ok()? != crc32c(text.as_bytes()) {
        return None;
    }
    text.strip_prefix(BOUND_MAGIC)?.trim().parse().ok()
}

/// An id that no other term has.
fn random_id() -> io::Result<TermId> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer has as many bytes as are asked for.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(got) {
        Ok(16) => Ok(TermId(u128::from_be_bytes(bytes).max(1))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: LogFound = LogFound { min: 0, end: 0, stock_was_here: false };

    fn layout() -> (tempfile::TempDir, StoreLayout) {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = StoreLayout::new(dir.path());
        std::fs::create_dir(layout.ringmq()).expect("a directory");
        (dir, layout)
    }

    fn load(layout: &StoreLayout, end: u64) -> TermStore {
        TermStore::load(layout, LogFound { end, ..FOUND }).expect("readable files").0
    }

    #[test]
    fn a_term_is_on_disk_when_it_has_begun_and_an_empty_one_is_replaced() {
        let (_dir, layout) = layout();
        let first = load(&layout, 0).begin(0).expect("a term");
        assert_eq!((first.number, first.start), (1, 0));
        assert_ne!(first.id, TermId(0));
        let text = std::fs::read_to_string(layout.root().join("epochFileCheckpoint"));
        assert_eq!(text.expect("the file"), "1\n1725254278\n1-0\n");
        let store = load(&layout, 0);
        let second = store.begin(0).expect("a term");
        assert_eq!(store.list().as_slice(), [second], "nothing was written in the first one");
        assert_eq!(second.number, 2);
        let store = load(&layout, 500);
        let third = store.begin(500).expect("a term");
        assert_eq!(load(&layout, 500).list().as_slice(), [second, third]);
        assert!(store.begin(400).is_err(), "the log never goes back below a term");
    }

    #[test]
    fn a_number_is_not_given_again_when_its_term_was_lost_with_the_log_s_end() {
        let (_dir, layout) = layout();
        load(&layout, 0).begin(0).expect("a term");
        load(&layout, 900).begin(900).expect("a term");
        let store = load(&layout, 700);
        assert_eq!(store.list().as_slice().len(), 1);
        assert_eq!(store.begin(700).expect("a term").number, 3);
    }

    #[test]
    fn what_is_damaged_or_another_s_proves_nothing() {
        let (_dir, layout) = layout();
        let term = load(&layout, 0).begin(0).expect("a term");
        let found = LogFound { end: 10, stock_was_here: true, ..FOUND };
        let (store, notes) = TermStore::load(&layout, found).expect("readable files");
        assert_eq!(store.list().as_slice(), [Term { id: TermId(0), ..term }]);
        assert_eq!(notes.len(), 1);
        let later = load(&layout, 10);
        assert_eq!(
            later.list().as_slice(),
            [Term { id: TermId(0), ..term }],
            "nor at a later start"
        );
        std::fs::write(layout.root().join("epochFileCheckpoint"), "1\n5\n1-0\n").expect("a write");
        let (store, notes) = TermStore::load(&layout, FOUND).expect("readable files");
        assert!(store.list().is_empty() && notes.len() == 1, "{notes:?}");
        assert_eq!(store.begin(0).expect("a term").number, 2, "the ids tell of the number");
    }

    #[test]
    fn a_term_that_begins_below_the_bound_promises_nothing_of_its_own() {
        let (_dir, layout) = layout();
        let store = load(&layout, 900);
        store.raise_bound(800);
        store.save_bound().expect("it has grown").1.run().expect("a write");
        store.begin(900).expect("a term");
        assert_eq!(load(&layout, 700).bound(), 800, "as a slave it may get there again");
        let store = load(&layout, 700);
        store.begin(700).expect("a term");
        assert_eq!((store.bound(), load(&layout, 700).bound()), (700, 700));
        store.raise_bound(750);
        assert_eq!(store.save_bound().expect("it has grown").0, 750);
    }

    #[test]
    fn the_bound_only_grows_and_comes_back() {
        let (_dir, layout) = layout();
        let store = load(&layout, 0);
        assert!(store.save_bound().is_none());
        store.raise_bound(700);
        store.raise_bound(600);
        let (bound, save) = store.save_bound().expect("it has grown");
        save.run().expect("a write");
        store.bound_saved(bound);
        assert!(store.save_bound().is_none());
        assert_eq!(load(&layout, 0).bound(), 700);
        std::fs::write(layout.ringmq().join("replicated"), "ringmq-replicated-1 701 00000000\n")
            .expect("a write");
        let (store, notes) = TermStore::load(&layout, FOUND).expect("readable files");
        assert_eq!((store.bound(), notes.len()), (0, 1));
    }
}
