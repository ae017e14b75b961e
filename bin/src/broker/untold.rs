//! What consumers have committed at this slave and its master has not been told of, in memory and on disk.
//!
//! ```text
//!  <store>/ringmq/untold-offsets
//!    ringmq-untold-1 <CRC-32C of all that follows, as 8 hexadecimal digits>
//!    {"offsetTable":{...}}      what the master was being asked about when this was written
//!    {"offsetTable":{...}}      the rest; counts where both have an entry
//! ```
//! The file is never older than `consumerOffset.json`, so where it has an entry, that counts. Its backup may be: what is read from there
//! takes progress forward alone. An entry that the master heard of meanwhile does no harm: it is told again, and the master keeps what it
//! has if that is more.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crc32c::crc32c;
use ringmq_engine::state::json_file::{self, Loaded, load_to_serve};
use ringmq_engine::state::offsets::{ENTRIES_MAX, OffsetTable, OffsetsFull, OffsetsText};
use ringmq_engine::state::saver::{ConfigSaver, SaveStatus, SaveTicket};
use ringmq_engine::state::table_text::TableTextError;
use ringmq_engine::store::StoreLayout;
use ringmq_net::json::Writer;

use super::files::Paths;

const FILE: &str = "untold-offsets";
const MAGIC: &str = "ringmq-untold-1";
/// How long both files may take at a start.
const SAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// More entries are saved more rarely.
const LARGE: usize = 20_000;

/// Why a file's text cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UntoldError {
    #[error("it does not begin with {MAGIC}")]
    Head,
    #[error("its CRC is {told:08x} and that of its text {found:08x}")]
    Crc { told: u32, found: u32 },
    #[error(transparent)]
    Table(#[from] TableTextError),
}

/// What the master is being asked about. No longer in the table.
struct Asked {
    group: String,
    topic: String,
    queue: i32,
    offset: i64,
    /// It has told meanwhile that it is as far.
    heard: bool,
}

/// See the module. Lives on its shard's reactor.
pub(super) struct Untold {
    path: PathBuf,
    table: RefCell<OffsetTable>,
    asked: RefCell<Option<Asked>>,
    /// What was read is the backup's.
    from_backup: bool,
    /// The file has something that is neither in the table nor asked about.
    outdated: Cell<bool>,
    /// Texts being rendered: the table is no longer dirty, and the saver does not have it yet.
    under_way: Cell<usize>,
    /// Texts handed to the saver, and the last one.
    handed: Cell<u64>,
    last: Cell<Option<SaveTicket>>,
}

/// A text under way.
struct Rendering {
    asked: OffsetTable,
    text: OffsetsText,
}

impl Untold {
    /// Reads the file of a store. Blocks; nothing is served yet. What a stock broker was on since is not told any more: the commits are in
    /// that broker's own file.
    ///
    /// # Errors
    /// One line for a file that is there and cannot be used, nor its backup: an offset is never forgotten in silence.
    pub(super) fn load(layout: &StoreLayout, stock_was_here: bool) -> Result<Self, String> {
        let path = layout.ringmq().join(FILE);
        let loaded = load_to_serve(&path, decode).map_err(|error| error.to_string())?;
        let from_backup = matches!(loaded, Loaded::Backup { .. });
        let table = loaded.into_value().unwrap_or_else(|| OffsetTable::new(ENTRIES_MAX));
        let untold = Untold {
            path,
            table: RefCell::new(table),
            asked: RefCell::new(None),
            from_backup,
            // Until the file is written anew there is but the backup.
            outdated: Cell::new(from_backup),
            under_way: Cell::new(0),
            handed: Cell::new(0),
            last: Cell::new(None),
        };
        if stock_was_here && !untold.is_nothing_on_disk() {
            tracing::warn!(
                file = %untold.path.display(),
                entries = untold.len(),
                "another broker was on this store since: what was committed here before is not told to the master"
            );
            // Before the visit is settled: a later start would not know of it.
            untold.forget()?;
        }
        Ok(untold)
    }

    /// Puts what was read into the table of all progress, which may have been saved earlier; or later, if this came from the backup: then
    /// what is further counts, here and at the master.
    pub(super) fn put_into(&self, offsets: &mut OffsetTable) {
        let mut further = Vec::new();
        for (group, topic, queues) in self.table.borrow().iter() {
            for (queue, offset) in queues.iter() {
                let known = offsets.get(group, topic, queue).filter(|_| self.from_backup);
                if let Some(known) = known.filter(|known| *known >= offset) {
                    further.push((group.to_owned(), topic.to_owned(), queue, known));
                } else if let Err(error) = offsets.commit(group, topic, queue, offset) {
                    return tracing::error!("consumer offsets: {error}");
                }
            }
        }
        for (group, topic, queue, known) in further {
            self.commit(&group, &topic, queue, known);
        }
    }

    /// A master tells nobody: what it has counts. Durable when it returns, so that nothing old is told when this store is a slave's again.
    ///
    /// # Errors
    /// One line.
    pub(super) fn give_up(
        &self,
        offsets: &mut OffsetTable,
        saver: &ConfigSaver,
        paths: &Paths,
    ) -> Result<(), String> {
        if self.len() == 0 && self.is_nothing_on_disk() {
            return Ok(());
        }
        // First where it counts from now on.
        saver.save(&paths.offsets, offsets.to_file());
        saver.flush(SAVE_TIMEOUT).map_err(|error| error.to_string())?;
        self.forget()
    }

    /// Whether neither the file nor its backup has an entry.
    fn is_nothing_on_disk(&self) -> bool {
        let nothing = |path: &Path| match std::fs::read(path) {
            Ok(bytes) => decode(&bytes).is_ok_and(|table| table.is_empty()),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        nothing(&self.path) && nothing(&self.path.with_extension("bak"))
    }

    /// Empties the table, the file and its backup, durably. Blocks; the saver must have nothing of this file left to write.
    fn forget(&self) -> Result<(), String> {
        *self.table.borrow_mut() = OffsetTable::new(ENTRIES_MAX);
        let nothing = self.rendered();
        // The second time it is the backup too.
        for _ in 0..2 {
            json_file::write(&self.path, &nothing).map_err(|error| error.to_string())?;
        }
        self.outdated.set(false);
        Ok(())
    }

    /// The table, to be changed.
    pub(super) fn table(&self) -> RefMut<'_, OffsetTable> {
        self.table.borrow_mut()
    }

    /// Entries, with the one that the master is being asked about.
    pub(super) fn len(&self) -> usize {
        let table = self.table.borrow();
        let asked = self.asked.borrow();
        let also = asked
            .as_ref()
            .filter(|asked| !asked.heard)
            .is_some_and(|asked| table.get(&asked.group, &asked.topic, asked.queue).is_none());
        table.len() + usize::from(also)
    }

    /// Groups and topics of what is to be told: at most so many behind the first `skipped`.
    pub(super) fn pairs(&self, skipped: usize, max: usize) -> Vec<(String, String)> {
        let table = self.table.borrow();
        let some = table.iter().skip(skipped).take(max);
        some.map(|(group, topic, _)| (group.to_owned(), topic.to_owned())).collect()
    }

    /// Forgets what is about topics that are not kept; whether that was something.
    pub(super) fn keep_topics(&self, keep: impl Fn(&str) -> bool) -> bool {
        let mut table = self.table.borrow_mut();
        let gone = table.iter().map(|(_, topic, _)| topic).filter(|topic| !keep(topic));
        let gone: HashSet<String> = gone.map(str::to_owned).collect();
        gone.iter().map(|topic| table.remove_topic(topic)).sum::<usize>() > 0
    }

    /// Forgets what a group committed; whether that was something.
    pub(super) fn forget_group(&self, group: &str) -> bool {
        self.table.borrow_mut().remove_group(group) > 0
    }

    /// The master tells of its progress. Whether that counts: what consumers went on to here, and it has not been told of, is not lost.
    /// Where the master is as far, there is nothing to tell.
    pub(super) fn hears(&self, group: &str, topic: &str, queue: i32, offset: i64) -> bool {
        let mut table = self.table.borrow_mut();
        if table.get(group, topic, queue).is_some_and(|here| here > offset) {
            return false;
        }
        table.take(group, topic, queue);
        if let Some(asked) = self.asked.borrow_mut().as_mut()
            && (&*asked.group, &*asked.topic, asked.queue) == (group, topic, queue)
        {
            asked.heard |= offset >= asked.offset;
        }
        true
    }

    /// A consumer has committed here. Beyond the bound it is as with stock: what the master has counts.
    pub(super) fn commit(&self, group: &str, topic: &str, queue: i32, offset: i64) {
        let _: Result<(), OffsetsFull> =
            self.table.borrow_mut().commit(group, topic, queue, offset);
    }

    /// Takes out what the master is to be asked about now. It stays in the file until [`Untold::told`] or [`Untold::not_told`].
    pub(super) fn ask(&self, group: &str, topic: &str, queue: i32) -> Option<i64> {
        let offset = self.table.borrow_mut().take(group, topic, queue)?;
        let (group, topic) = (group.to_owned(), topic.to_owned());
        *self.asked.borrow_mut() = Some(Asked { group, topic, queue, offset, heard: false });
        Some(offset)
    }

    /// The master has heard of what was [asked](Untold::ask) about.
    pub(super) fn told(&self) {
        *self.asked.borrow_mut() = None;
        self.outdated.set(true);
    }

    /// It has not, as far as is known: that is in the table again, unless consumers have gone on here, or it told meanwhile that it is as
    /// far. Whether it is there again.
    pub(super) fn not_told(&self) -> bool {
        self.outdated.set(true);
        let Some(asked) = self.asked.take() else { return false };
        let mut table = self.table.borrow_mut();
        if asked.heard || table.get(&asked.group, &asked.topic, asked.queue).is_some() {
            return false;
        }
        // What is beyond the bound is lost as a slave's commits are with stock.
        table.commit(&asked.group, &asked.topic, asked.queue, asked.offset).is_ok()
    }

    /// Whether it is large, and to be saved more rarely.
    pub(super) fn is_large(&self) -> bool {
        self.table.borrow().len() > LARGE
    }

    /// Hands the table to the saver if it has changed. Large ones are rendered with turns for others in between. Whether the saver has all
    /// that was there when this began.
    pub(super) async fn save(&self, saver: &ConfigSaver, pairs_a_step: usize) -> bool {
        if !self.take_dirty() {
            return self.under_way.get() == 0;
        }
        self.under_way.set(self.under_way.get() + 1);
        let handed = self.handed.get();
        let mut rendering = self.render();
        while !self.step(&mut rendering, pairs_a_step) {
            glommio::executor().yield_task_queue_now().await;
        }
        self.under_way.set(self.under_way.get() - 1);
        let newest = self.handed.get() == handed;
        if newest {
            self.hand_over(saver, rendering);
        } else {
            // Another one came first, and may be newer: that stays.
            self.outdated.set(true);
        }
        newest
    }

    /// The same at once, for the end.
    pub(super) fn save_now(&self, saver: &ConfigSaver) {
        if self.take_dirty() || self.under_way.get() > 0 {
            let mut rendering = self.render();
            while !self.step(&mut rendering, usize::MAX) {}
            self.hand_over(saver, rendering);
        }
    }

    /// How far the last text that was handed over is.
    pub(super) fn saved(&self, saver: &ConfigSaver) -> SaveStatus {
        self.last.get().map_or(SaveStatus::Saved, |ticket| saver.status(ticket))
    }

    fn hand_over(&self, saver: &ConfigSaver, rendering: Rendering) {
        let tables = rendering.tables();
        // Joined, and its CRC made, on the saver's thread.
        let ticket = saver.save_with(&self.path, move || encode(&tables));
        self.handed.set(self.handed.get() + 1);
        self.last.set(Some(ticket));
    }

    fn take_dirty(&self) -> bool {
        self.table.borrow_mut().take_dirty() | self.outdated.take()
    }

    fn rendered(&self) -> Vec<u8> {
        let mut rendering = self.render();
        while !self.step(&mut rendering, usize::MAX) {}
        encode(&rendering.tables())
    }

    fn render(&self) -> Rendering {
        let text = self.table.borrow().render(Writer::new());
        Rendering { asked: OffsetTable::default(), text }
    }

    /// What the master is asked about during a step is not in the table then: it may be put back after its turn.
    fn step(&self, rendering: &mut Rendering, pairs: usize) -> bool {
        if let Some(asked) = &*self.asked.borrow() {
            // Cannot be full: it has as many entries as there were steps.
            let _ = rendering.asked.commit(&asked.group, &asked.topic, asked.queue, asked.offset);
        }
        self.table.borrow().render_step(&mut rendering.text, pairs)
    }
}

impl Rendering {
    fn tables(self) -> [Vec<u8>; 2] {
        [self.asked.to_json(), self.text.finish()]
    }
}

fn encode(tables: &[Vec<u8>; 2]) -> Vec<u8> {
    let tables = tables.join(&b'\n');
    let mut text = format!("{MAGIC} {:08x}\n", crc32c(&tables)).into_bytes();
    text.extend_from_slice(&tables);
    text
}

fn decode(bytes: &[u8]) -> Result<OffsetTable, UntoldError> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(UntoldError::Head)?;
    let (head, rest) = bytes.split_at(end);
    let tables = rest.get(1..).unwrap_or_default();
    let told = std::str::from_utf8(head).ok().and_then(|head| head.strip_prefix(MAGIC));
    let told = told.and_then(|crc| crc.strip_prefix(' ')).ok_or(UntoldError::Head)?;
    let told = u32::from_str_radix(told, 16).map_err(|_| UntoldError::Head)?;
    let found = crc32c(tables);
    if told != found {
        return Err(UntoldError::Crc { told, found });
    }
    let mut all = OffsetTable::new(ENTRIES_MAX);
    for text in tables.split(|byte| *byte == b'\n') {
        for (group, topic, queues) in OffsetTable::from_json(text, ENTRIES_MAX)?.iter() {
            for (queue, offset) in queues.iter() {
                // What is beyond the bound was not stored either.
                let _ = all.commit(group, topic, queue, offset);
            }
        }
    }
    let _ = all.take_dirty();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn path_in(store: &Path) -> PathBuf {
        StoreLayout::new(store).ringmq().join(FILE)
    }

    fn store() -> (tempfile::TempDir, StoreLayout) {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = StoreLayout::new(dir.path());
        std::fs::create_dir_all(layout.ringmq()).expect("a directory");
        (dir, layout)
    }

    fn entries(untold: &Untold) -> Vec<(String, i32, i64)> {
        let table = untold.table();
        let mut all: Vec<_> = table
            .iter()
            .flat_map(|(group, _, queues)| queues.iter().map(|(q, o)| (group.to_owned(), q, o)))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn what_is_not_told_is_there_after_a_start_and_so_is_what_was_being_told() {
        let (dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        assert_eq!(untold.len(), 0);
        untold.commit("g", "t", 0, 40);
        untold.commit("h", "t", 1, 7);
        assert_eq!(untold.ask("h", "t", 1), Some(7));
        let saver = ConfigSaver::start().expect("a thread");
        untold.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        let again = Untold::load(&layout, false).expect("a sound file");
        assert_eq!(entries(&again), [("g".to_owned(), 0, 40), ("h".to_owned(), 1, 7)]);
        // It is told, and the file says so.
        again.ask("h", "t", 1).expect("an entry");
        again.save_now(&saver);
        assert_eq!(again.len(), 2, "the one that is asked about counts");
        again.told();
        assert_eq!(again.len(), 1);
        again.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        let told = Untold::load(&layout, false).expect("a sound file");
        assert_eq!(entries(&told), [("g".to_owned(), 0, 40)]);
        // The consumer has gone on meanwhile: that counts.
        untold.commit("h", "t", 1, 9);
        untold.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        let again = Untold::load(&layout, false).expect("a sound file");
        assert_eq!(entries(&again), [("g".to_owned(), 0, 40), ("h".to_owned(), 1, 9)]);
        let mut offsets = OffsetTable::default();
        offsets.commit("g", "t", 0, 10).expect("room");
        again.put_into(&mut offsets);
        assert_eq!((offsets.get("g", "t", 0), offsets.get("h", "t", 1)), (Some(40), Some(9)));
        // A master has nothing to tell, now and later.
        let paths = Paths::new(&layout);
        again.give_up(&mut offsets, &saver, &paths).expect("saved");
        assert_eq!(again.len(), 0);
        assert_eq!(Untold::load(&layout, false).expect("a sound file").len(), 0);
        assert!(paths.offsets.exists() && path_in(dir.path()).exists());
        // Nor by its backup, also if all was told before.
        std::fs::write(path_in(dir.path()), b"damaged").expect("a file");
        assert_eq!(Untold::load(&layout, false).expect("its backup").len(), 0);
        let (file, backup) = (again.rendered(), untold.rendered());
        std::fs::write(path_in(dir.path()), file).expect("a file");
        std::fs::write(path_in(dir.path()).with_extension("bak"), backup).expect("a file");
        let empty = Untold::load(&layout, false).expect("a sound file");
        empty.give_up(&mut offsets, &saver, &paths).expect("saved");
        std::fs::remove_file(path_in(dir.path())).expect("a file");
        assert_eq!(Untold::load(&layout, false).expect("its backup").len(), 0);
    }

    #[test]
    fn an_older_backup_takes_progress_forward_alone() {
        let (dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        for (queue, offset) in [(0, 40), (1, 40), (2, 40)] {
            untold.commit("g", "t", queue, offset);
        }
        let bytes = untold.rendered();
        std::fs::write(path_in(dir.path()).with_extension("bak"), bytes).expect("a file");
        let mut offsets = OffsetTable::default();
        offsets.commit("g", "t", 0, 50).expect("room");
        offsets.commit("g", "t", 1, 30).expect("room");
        let again = Untold::load(&layout, false).expect("its backup");
        again.put_into(&mut offsets);
        assert_eq!([0, 1, 2].map(|queue| offsets.get("g", "t", queue)), [50, 40, 40].map(Some));
        let told = [(0, 50), (1, 40), (2, 40)].map(|(queue, at)| ("g".to_owned(), queue, at));
        assert_eq!(entries(&again), told);
        // The file is there again soon.
        let saver = ConfigSaver::start().expect("a thread");
        again.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        assert_eq!(again.saved(&saver), SaveStatus::Saved);
        assert_eq!(entries(&Untold::load(&layout, false).expect("a sound file")), told);
    }

    #[test]
    fn what_the_master_tells_while_it_is_asked_is_not_overtaken_when_the_question_fails() {
        let (_dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        untold.commit("g", "t", 0, 40);
        for known in [None, Some(10)] {
            assert_eq!(untold.ask("g", "t", 0), Some(40));
            assert!(known.is_none_or(|known| untold.hears("g", "t", 0, known)));
            assert!(untold.not_told(), "it has not heard of it");
            assert_eq!(untold.table().get("g", "t", 0), Some(40));
        }
        // It is as far, by what was asked or by its own consumers: from there on it counts, back too.
        for far in [40, 90] {
            untold.commit("g", "t", 0, 40);
            assert_eq!(untold.ask("g", "t", 0), Some(40));
            assert!(untold.hears("g", "u", 0, 99) && untold.hears("g", "t", 0, far));
            assert_eq!(untold.len(), 0);
            assert!(!untold.not_told());
            assert!(untold.hears("g", "t", 0, 5) && untold.len() == 0, "{far}");
        }
        // Consumers have gone on here: that is to be told.
        untold.commit("g", "t", 0, 40);
        assert_eq!(untold.ask("g", "t", 0), Some(40));
        untold.commit("g", "t", 0, 70);
        assert!(!untold.hears("g", "t", 0, 60) && !untold.not_told());
        assert_eq!(untold.table().get("g", "t", 0), Some(70));
    }

    #[test]
    fn what_the_master_has_no_more_is_not_told_of() {
        let (_dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        for (group, topic) in [("g", "t"), ("g", "u"), ("h", "t"), ("h", "v")] {
            untold.commit(group, topic, 0, 40);
        }
        assert!(untold.keep_topics(|topic| topic != "u") && untold.len() == 3);
        assert!(!untold.keep_topics(|topic| topic != "u") && !untold.forget_group("i"));
        assert!(untold.forget_group("h"));
        assert_eq!(untold.pairs(0, 9), [("g".to_owned(), "t".to_owned())]);
        assert_eq!(untold.pairs(1, 9), []);
    }

    #[test]
    fn another_brokers_commits_are_not_told_as_ones_of_this_one() {
        let (dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        untold.commit("g", "t", 0, 40);
        let saver = ConfigSaver::start().expect("a thread");
        untold.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        let later = Untold::load(&layout, true).expect("a sound file");
        assert_eq!(later.len(), 0);
        // Nothing is saved after that start.
        assert_eq!(Untold::load(&layout, false).expect("a sound file").len(), 0, "nor later");
        std::fs::remove_file(path_in(dir.path())).expect("a file");
        assert_eq!(Untold::load(&layout, false).expect("its backup").len(), 0, "nor by the backup");
    }

    #[test]
    fn no_damage_passes_for_progress() {
        let (dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        untold.commit("group", "topic", 3, 123_456);
        let sound = untold.rendered();
        assert_eq!(decode(&sound).expect("sound").get("group", "topic", 3), Some(123_456));
        for at in 0..sound.len() {
            for bit in 0..8 {
                let mut damaged = sound.clone();
                damaged[at] ^= 1 << bit;
                // A letter of the CRC may be written large: nothing else may pass.
                let crc = MAGIC.len() + 1..MAGIC.len() + 9;
                let same = crc.contains(&at) && damaged.eq_ignore_ascii_case(&sound);
                assert_eq!(decode(&damaged).is_ok(), same, "bit {bit} of byte {at}");
            }
            assert!(decode(&sound[..at]).is_err(), "cut at {at}");
        }
        // A damaged file without a sound backup is named, and refuses the start.
        std::fs::write(path_in(dir.path()), &sound[..sound.len() - 1]).expect("a file");
        let why = Untold::load(&layout, false).err().expect("refused");
        assert!(why.contains("untold-offsets cannot be used") && why.contains("CRC"), "{why}");
        std::fs::write(path_in(dir.path()).with_extension("bak"), &sound).expect("a file");
        let found = Untold::load(&layout, false).expect("its backup");
        assert_eq!(entries(&found), [("group".to_owned(), 3, 123_456)]);
    }
}
