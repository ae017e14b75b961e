//! The thread that writes configuration files, so that no reactor waits for an fsync.
//!
//! It takes the text of a file, or what renders it, and keeps only the newest one that isn't written yet: a burst of
//! changes costs a few writes. For a large table even a snapshot at each change is too much: its owner only announces
//! the change ([`ConfigSaver::promise`]) and hands over one state for all that have gathered. A failed write is tried
//! again with the newest text and logged at most once a minute per file; [`ConfigSaver::status`] tells whoever needs to
//! know that a change is durable.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::json_file;

/// How long after a failed write of a file it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the same file's failures stay silent after a logged one.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Some files could not be written before the deadline.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("configuration not saved: {0}")]
pub struct SaveError(pub String);

/// Names one saved state of one file; ask [`ConfigSaver::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveTicket {
    file: usize,
    version: u64,
}

/// How far the saving of a state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveStatus {
    /// Not tried yet.
    Pending,
    /// This state or a newer one of the same file is durable.
    Saved,
    /// The last attempt failed with this; it will be tried again.
    Failing(String),
}

/// The content of a file.
enum Content {
    Text(Vec<u8>),
    /// Rendered on the saver's thread.
    Later(Box<dyn FnOnce() -> Vec<u8> + Send>),
}

impl Content {
    fn render(self) -> Vec<u8> {
        match self {
            Content::Text(text) => text,
            Content::Later(render) => render(),
        }
    }
}

struct FileState {
    path: PathBuf,
    pending: Option<Content>,
    /// Counts the states handed in or promised.
    version: u64,
    /// What was handed in last: what `pending` or the disk holds.
    handed_version: u64,
    saved_version: u64,
    /// Why the last attempt failed, and when the next is due.
    failed: Option<(String, Instant)>,
    last_logged: Option<Instant>,
}

#[derive(Default)]
struct State {
    files: Vec<FileState>,
    stopping: bool,
    failures: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something to write, or to stop.
    work: Condvar,
    /// A write ended.
    done: Condvar,
}

impl State {
    /// The index of a file, new or known.
    fn file(&mut self, path: &Path) -> usize {
        let known = self.files.iter().position(|f| f.path == path);
        known.unwrap_or_else(|| {
            self.files.push(FileState {
                path: path.to_owned(),
                pending: None,
                version: 0,
                handed_version: 0,
                saved_version: 0,
                failed: None,
                last_logged: None,
            });
            self.files.len() - 1
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock would mean a panic inside the few lines below, which have none.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Saves configuration files on a thread of its own. One per store; usable from one reactor or several.
/// Dropping it writes what is pending, once, and joins the thread.
pub struct ConfigSaver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ConfigSaver {
    /// Starts the thread.
    pub fn start() -> Result<Self, SaveError> {
        let shared = Arc::new(Shared::default());
        let for_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("config-saver".to_owned())
            .spawn(move || run(&for_thread))
            .map_err(|e| SaveError(format!("cannot start the saver thread: {e}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hands over the newest content of a file; never blocks on I/O. The ticket may be dropped.
    pub fn save(&self, path: &Path, bytes: Vec<u8>) -> SaveTicket {
        self.hand_over(path, Content::Text(bytes))
    }

    /// [`ConfigSaver::save`] with content that is rendered on the saver's thread, and not at all if newer content comes
    /// before its turn. Keeps every promise made for the file so far.
    pub fn save_with(
        &self,
        path: &Path,
        render: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> SaveTicket {
        self.hand_over(path, Content::Later(Box::new(render)))
    }

    /// Says that the file has changed and that the caller will hand over a state with the change in it. Until that is
    /// durable the ticket is pending.
    pub fn promise(&self, path: &Path) -> SaveTicket {
        let mut state = self.shared.lock();
        let file = state.file(path);
        let entry = &mut state.files[file];
        entry.version += 1;
        SaveTicket { file, version: entry.version }
    }

    fn hand_over(&self, path: &Path, content: Content) -> SaveTicket {
        let mut state = self.shared.lock();
        let file = state.file(path);
        let entry = &mut state.files[file];
        entry.version += 1;
        entry.handed_version = entry.version;
        let replaced = entry.pending.replace(content);
        let ticket = SaveTicket { file, version: entry.version };
        drop(state);
        // Large, perhaps: not while the lock is held.
        drop(replaced);
        self.shared.work.notify_one();
        ticket
    }

    /// How far the state that the ticket names is. Cheap enough to poll each few milliseconds.
    pub fn status(&self, ticket: SaveTicket) -> SaveStatus {
        let state = self.shared.lock();
        match state.files.get(ticket.file) {
            Some(file) if file.saved_version >= ticket.version => SaveStatus::Saved,
            Some(FileState { failed: Some((why, _)), .. }) => SaveStatus::Failing(why.clone()),
            _ => SaveStatus::Pending,
        }
    }

    /// Failed writes since the start.
    pub fn failures(&self) -> u64 {
        self.shared.lock().failures
    }

    /// Blocks until everything handed in is durable; for a shutdown and for tests, never on a reactor
    /// that serves. A file that fails within `timeout` is an error that names it.
    pub fn flush(&self, timeout: Duration) -> Result<(), SaveError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            let unsaved: Vec<String> = state
                .files
                .iter()
                .filter(|f| f.saved_version < f.handed_version)
                .map(describe)
                .collect();
            if unsaved.is_empty() {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SaveError(unsaved.join("; ")));
            }
            state = self
                .shared
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Drop for ConfigSaver {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn describe(file: &FileState) -> String {
    match &file.failed {
        Some((why, _)) => why.clone(),
        None => format!("{} is still being written", file.path.display()),
    }
}

fn run(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let now = Instant::now();
        let stopping = state.stopping;
        let due = state.files.iter().position(|f| {
            f.pending.is_some()
                && f.failed.as_ref().is_none_or(|(_, again)| stopping || *again <= now)
        });
        if let Some(index) = due {
            state = write_one(shared, state, index);
        } else if stopping {
            return;
        } else {
            let again = state.files.iter().filter(|f| f.pending.is_some()).filter_map(|f| {
                f.failed.as_ref().map(|(_, again)| again.saturating_duration_since(now))
            });
            // Without a retry to come, sleep until notified; the hour only bounds one wait.
            let sleep = again.min().unwrap_or(Duration::from_secs(3_600));
            let woken = shared.work.wait_timeout(state, sleep);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Writes one pending file with the lock released, and notes how it went.
fn write_one<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    index: usize,
) -> MutexGuard<'a, State> {
    let file = &mut state.files[index];
    let Some(content) = file.pending.take() else { return state };
    let (path, version) = (file.path.clone(), file.handed_version);
    drop(state);
    let bytes = content.render();
    let result = json_file::write(&path, &bytes);
    let mut state = shared.lock();
    let stopping = state.stopping;
    let file = &mut state.files[index];
    match result {
        Ok(()) => {
            file.saved_version = version;
            if file.failed.take().is_some() {
                file.last_logged = None;
                tracing::info!(file = %path.display(), "configuration saved again");
            }
        }
        Err(error) => {
            let (now, why) = (Instant::now(), error.to_string());
            if file.last_logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY) {
                file.last_logged = Some(now);
                tracing::error!(%error, "configuration not saved; it stays in memory, trying again");
            }
            if !stopping {
                // A newer text handed in meanwhile stands; else this one is tried again.
                file.pending.get_or_insert(Content::Text(bytes));
            }
            file.failed = Some((why, now + RETRY_AFTER));
            state.failures += 1;
        }
    }
    shared.done.notify_all();
    state
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_newest_content_wins_and_a_ticket_tells_when_it_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config/x.json");
        let saver = ConfigSaver::start().unwrap();
        let mut tickets = vec![];
        for n in 0..200 {
            tickets.push(saver.save(&path, format!("{{{n}}}").into_bytes()));
        }
        saver.flush(LONG).unwrap();
        assert!(tickets.iter().all(|t| saver.status(*t) == SaveStatus::Saved));
        assert_eq!(fs::read(&path).unwrap(), b"{199}");
        assert_eq!(saver.failures(), 0);
    }

    #[test]
    fn a_promise_is_pending_until_a_state_handed_over_after_it_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let saver = ConfigSaver::start().unwrap();
        let first = saver.save(&path, b"{1}".to_vec());
        let promised = saver.promise(&path);
        // Nothing of it was handed in: a flush has nothing to wait for.
        saver.flush(LONG).unwrap();
        assert_eq!(saver.status(first), SaveStatus::Saved);
        assert_eq!(saver.status(promised), SaveStatus::Pending);
        let kept = saver.save_with(&path, || b"{2}".to_vec());
        saver.flush(LONG).unwrap();
        assert_eq!(saver.status(promised), SaveStatus::Saved);
        assert_eq!(saver.status(kept), SaveStatus::Saved);
        assert_eq!(fs::read(&path).unwrap(), b"{2}");
    }

    #[test]
    fn what_is_replaced_before_its_turn_is_never_rendered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let saver = ConfigSaver::start().unwrap();
        let rendered = Arc::new(Mutex::new(Vec::new()));
        let render = |n: u32| {
            let rendered = rendered.clone();
            move || {
                rendered.lock().unwrap().push(n);
                format!("{{{n}}}").into_bytes()
            }
        };
        // The first holds the thread until all others were handed in.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let first = render(0);
        saver.save_with(&path, move || {
            wait.recv().unwrap();
            first()
        });
        while saver.shared.lock().files[0].pending.is_some() {
            thread::yield_now();
        }
        (1..100).for_each(|n| _ = saver.save_with(&path, render(n)));
        go.send(()).unwrap();
        saver.flush(LONG).unwrap();
        assert_eq!(*rendered.lock().unwrap(), [0, 99]);
        assert_eq!(fs::read(&path).unwrap(), b"{99}");
    }

    #[test]
    fn dropping_the_saver_writes_what_is_pending() {
        let dir = tempfile::tempdir().unwrap();
        let saver = ConfigSaver::start().unwrap();
        for n in 0..20 {
            saver.save(&dir.path().join(format!("{n}.json")), format!("{{{n}}}").into_bytes());
        }
        drop(saver);
        for n in 0..20 {
            let content = fs::read_to_string(dir.path().join(format!("{n}.json"))).unwrap();
            assert_eq!(content, format!("{{{n}}}"));
        }
    }

    #[test]
    fn a_failing_file_is_named_retried_and_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("blocked");
        fs::write(&blocked, b"a file where a directory should be").unwrap();
        let (bad, good) = (blocked.join("x.json"), dir.path().join("y.json"));
        let saver = ConfigSaver::start().unwrap();
        let ticket = saver.save(&bad, b"{1}".to_vec());
        let other = saver.save(&good, b"{2}".to_vec());
        let error = saver.flush(Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.contains("blocked"), "{error}");
        assert!(matches!(saver.status(ticket), SaveStatus::Failing(_)));
        assert_eq!(saver.status(other), SaveStatus::Saved);
        assert!(saver.failures() >= 1);
        fs::remove_file(&blocked).unwrap();
        saver.flush(LONG).unwrap();
        assert_eq!(fs::read(&bad).unwrap(), b"{1}");
        assert_eq!(saver.status(ticket), SaveStatus::Saved);
    }
}
