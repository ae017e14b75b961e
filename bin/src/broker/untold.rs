//! What consumers have committed at this slave and its master has not been told of, in memory and on disk.
//!
//! ```text
//!  <store>/ringmq/untold-offsets
//!    ringmq-untold-1 <CRC-32C of all that follows, as 8 hexadecimal digits>
//!    {"offsetTable":{...}}      what the master was being asked about when this was written
//!    {"offsetTable":{...}}      the rest; counts where both have an entry
//! ```
//! The file is never older than `consumerOffset.json`, so where it has an entry, that counts. An entry that the master heard of
//! meanwhile does no harm: it is told again, and the master keeps what it has if that is more.

use std::cell::{Cell, RefCell, RefMut};
use std::path::PathBuf;
use std::time::Duration;

use crc32c::crc32c;
use ringmq_engine::state::json_file::load_to_serve;
use ringmq_engine::state::offsets::{ENTRIES_MAX, OffsetTable, OffsetsFull, OffsetsText};
use ringmq_engine::state::saver::ConfigSaver;
use ringmq_engine::state::table_text::TableTextError;
use ringmq_engine::store::StoreLayout;
use ringmq_net::json::Writer;

use super::files::Paths;

const FILE: &str = "untold-offsets";
const MAGIC: &str = "ringmq-untold-1";
/// How long both files may take at a start.
const SAVE_TIMEOUT: Duration = Duration::from_secs(10);

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

/// See the module. Lives on its shard's reactor.
pub(super) struct Untold {
    path: PathBuf,
    table: RefCell<OffsetTable>,
    /// What the master is being asked about: group, topic, queue and offset. No longer in the table.
    asked: RefCell<Option<(String, String, i32, i64)>>,
    /// The file has something that is neither in the table nor asked about.
    outdated: Cell<bool>,
    /// A text is being rendered: the table is no longer dirty, and the saver does not have it yet.
    under_way: Cell<bool>,
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
        let mut table = loaded.into_value().unwrap_or_else(|| OffsetTable::new(ENTRIES_MAX));
        let outdated = stock_was_here && !table.is_empty();
        if outdated {
            tracing::warn!(
                file = %path.display(),
                entries = table.len(),
                "another broker was on this store since: what was committed here before is not told to the master"
            );
            table = OffsetTable::new(ENTRIES_MAX);
        }
        Ok(Untold {
            path,
            table: RefCell::new(table),
            asked: RefCell::new(None),
            outdated: Cell::new(outdated),
            under_way: Cell::new(false),
        })
    }

    /// Puts what was read into the table of all progress, which may have been saved earlier.
    pub(super) fn put_into(&self, offsets: &mut OffsetTable) {
        for (group, topic, queues) in self.table.borrow().iter() {
            for (queue, offset) in queues.iter() {
                if let Err(error) = offsets.commit(group, topic, queue, offset) {
                    return tracing::error!("consumer offsets: {error}");
                }
            }
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
        if self.len() == 0 && !self.outdated.take() {
            return Ok(());
        }
        // First where it counts from now on.
        saver.save(&paths.offsets, offsets.to_file());
        saver.flush(SAVE_TIMEOUT).map_err(|error| error.to_string())?;
        *self.table.borrow_mut() = OffsetTable::new(ENTRIES_MAX);
        saver.save(&self.path, self.rendered());
        saver.flush(SAVE_TIMEOUT).map_err(|error| error.to_string())
    }

    /// The table, to be changed.
    pub(super) fn table(&self) -> RefMut<'_, OffsetTable> {
        self.table.borrow_mut()
    }

    /// Entries of the table.
    pub(super) fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// The groups and topics of what is to be told.
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let table = self.table.borrow();
        table.iter().map(|(group, topic, _)| (group.to_owned(), topic.to_owned())).collect()
    }

    /// A consumer has committed here. Beyond the bound it is as with stock: what the master has counts.
    pub(super) fn commit(&self, group: &str, topic: &str, queue: i32, offset: i64) {
        let _: Result<(), OffsetsFull> =
            self.table.borrow_mut().commit(group, topic, queue, offset);
    }

    /// Takes out what the master is to be asked about now. It stays in the file until [`Untold::answered`].
    pub(super) fn ask(&self, group: &str, topic: &str, queue: i32) -> Option<i64> {
        let offset = self.table.borrow_mut().take(group, topic, queue)?;
        *self.asked.borrow_mut() = Some((group.to_owned(), topic.to_owned(), queue, offset));
        Some(offset)
    }

    /// The master has heard of what was [asked](Untold::ask) about, or it is in the table again.
    pub(super) fn answered(&self) {
        *self.asked.borrow_mut() = None;
        self.outdated.set(true);
    }

    /// Hands the table to the saver if it has changed. Large ones are rendered with turns for others in between.
    pub(super) async fn save(&self, saver: &ConfigSaver, pairs_a_step: usize) {
        if !self.take_dirty() {
            return;
        }
        self.under_way.set(true);
        let mut rendering = self.render();
        while !self.step(&mut rendering, pairs_a_step) {
            glommio::executor().yield_task_queue_now().await;
        }
        saver.save(&self.path, rendering.finish());
        self.under_way.set(false);
    }

    /// The same at once, for the end.
    pub(super) fn save_now(&self, saver: &ConfigSaver) {
        if self.take_dirty() || self.under_way.get() {
            saver.save(&self.path, self.rendered());
        }
    }

    fn take_dirty(&self) -> bool {
        self.table.borrow_mut().take_dirty() | self.outdated.take()
    }

    fn rendered(&self) -> Vec<u8> {
        let mut rendering = self.render();
        while !self.step(&mut rendering, usize::MAX) {}
        rendering.finish()
    }

    fn render(&self) -> Rendering {
        let text = self.table.borrow().render(Writer::new());
        Rendering { asked: OffsetTable::default(), text }
    }

    /// What the master is asked about during a step is not in the table then: it may be put back after its turn.
    fn step(&self, rendering: &mut Rendering, pairs: usize) -> bool {
        if let Some((group, topic, queue, offset)) = &*self.asked.borrow() {
            // Cannot be full: it has as many entries as there were steps.
            let _ = rendering.asked.commit(group, topic, *queue, *offset);
        }
        self.table.borrow().render_step(&mut rendering.text, pairs)
    }
}

impl Rendering {
    fn finish(self) -> Vec<u8> {
        let tables = [self.asked.to_json(), self.text.finish()].join(&b'\n');
        let mut text = format!("{MAGIC} {:08x}\n", crc32c(&tables)).into_bytes();
        text.extend_from_slice(&tables);
        text
    }
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
        again.answered();
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
    }

    #[test]
    fn another_brokers_commits_are_not_told_as_ones_of_this_one() {
        let (_dir, layout) = store();
        let untold = Untold::load(&layout, false).expect("no file");
        untold.commit("g", "t", 0, 40);
        let saver = ConfigSaver::start().expect("a thread");
        untold.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        let later = Untold::load(&layout, true).expect("a sound file");
        assert_eq!(later.len(), 0);
        later.save_now(&saver);
        saver.flush(SAVE_TIMEOUT).expect("saved");
        assert_eq!(Untold::load(&layout, false).expect("a sound file").len(), 0, "nor later");
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
