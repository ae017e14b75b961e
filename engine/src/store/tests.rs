use std::sync::Arc;

use super::vectors::vector;
use super::*;

fn layout() -> (tempfile::TempDir, StoreLayout) {
    let dir = tempfile::tempdir().expect("directory");
    let layout = StoreLayout::new(dir.path().join("store"));
    layout.create().expect("create");
    (dir, layout)
}

#[test]
fn a_checkpoint_is_that_of_stock() {
    let (_dir, layout) = layout();
    let stock = vector("checkpoint");
    let checkpoint = Checkpoint::decode(&stock);
    assert_eq!(checkpoint.physic, 1_700_000_000_123);
    assert_eq!(checkpoint.recovery_timestamp(), 1_699_999_997_123);
    assert_eq!(Checkpoint::load(&layout.checkpoint()).expect("load"), None);
    checkpoint.save(&layout.checkpoint()).expect("save");
    let bytes = std::fs::read(layout.checkpoint()).expect("read");
    assert_eq!(bytes.len(), CHECKPOINT_BYTES);
    assert_eq!(bytes[..stock.len()], stock);
    let later = Checkpoint { index: 7, ..checkpoint };
    later.save(&layout.checkpoint()).expect("save in place");
    assert_eq!(Checkpoint::load(&layout.checkpoint()).expect("load"), Some(later));
}

#[test]
fn a_store_has_one_user() {
    let (_dir, layout) = layout();
    assert_eq!(LockStamp::read(&layout).expect("stamp"), None);
    let lock = StoreLock::acquire(&layout).expect("lock");
    // Not read here: to close the file would release the lock.
    assert_eq!(std::fs::metadata(layout.lock()).expect("file").len(), 4);
    assert_eq!(LockStamp::read(&layout).expect("stamp"), Some(lock.stamp()));
    assert!(matches!(StoreLock::acquire(&layout), Err(StoreError::LockedHere { .. })));
    assert!(!another_process_can_lock(&layout), "the lock does not keep others out");
    drop(lock);
    assert!(another_process_can_lock(&layout), "the lock outlives its owner");
    StoreLock::acquire(&layout).expect("lock again");
}

/// A start may be cut off right after it took the lock: what the last run left under the file's stamp is still ours.
#[test]
fn taking_the_lock_again_leaves_its_stamp() {
    let (_dir, layout) = layout();
    let first = StoreLock::acquire(&layout).expect("lock").stamp();
    assert_eq!(StoreLock::acquire(&layout).expect("lock again").stamp(), first);
    // Cut off between making the file and writing into it.
    std::fs::write(layout.lock(), "lo").expect("a torn text");
    StoreLock::acquire(&layout).expect("lock");
    assert_eq!(std::fs::read(layout.lock()).expect("read"), b"lock");
}

/// Whether a process that does what a stock broker does gets the lock.
fn another_process_can_lock(layout: &StoreLayout) -> bool {
    use std::os::fd::AsRawFd;
    let file = std::fs::OpenOptions::new().write(true).open(layout.lock()).expect("open");
    // SAFETY: the child makes two system calls that are safe after a fork and exits without running anything else.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: see above; the structure is plain C and lives over the call.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as libc::c_short;
            lock.l_len = 1;
            let got = libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) == 0;
            libc::_exit(i32::from(got));
        }
    }
    // Closing our descriptor would release this process's lock: it is leaked, as long as the test runs.
    std::mem::forget(file);
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` lives over the call.
    unsafe { libc::waitpid(child, &mut status, 0) };
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
}

#[test]
fn the_abort_marker_comes_and_goes() {
    let (_dir, layout) = layout();
    let abort = AbortMarker::new(&layout);
    assert!(!abort.is_set());
    abort.set().expect("set");
    abort.set().expect("set again");
    assert!(abort.is_set());
    assert_eq!(std::fs::read(layout.abort()).expect("read"), b"");
    abort.clear().expect("clear");
    abort.clear().expect("clear again");
    assert!(!abort.is_set());
}

#[test]
fn a_mark_is_believed_only_if_whole_and_nobody_else_was_here() {
    let (_dir, layout) = layout();
    let lock = StoreLock::acquire(&layout).expect("lock").stamp();
    let path = layout.derived_mark();
    assert_eq!(DerivedMark::load(&path, Some(lock)).expect("load"), None);
    let queues = crate::queue::QueueDigest { max_offsets: 5, ends: 6, min_offsets: 2 };
    let file = |name: &str| crate::index::IndexFileMark {
        name: name.to_owned(),
        next_entry: 7,
        end_physical: 99,
    };
    let index = vec![file("20231114221320123"), file("20231114221320124")];
    let mark = DerivedMark { dispatched: 4711, queues, log_min: 3, lock, index };
    mark.save(&path).expect("save");
    assert_eq!(DerivedMark::load(&path, Some(lock)).expect("load"), Some(mark.clone()));
    assert_eq!(DerivedMark::load(&path, None).expect("load"), None);
    std::fs::write(layout.lock(), "lock").expect("what a stock broker's start writes");
    let other = StoreLock::acquire(&layout).expect("another start").stamp();
    assert_ne!(lock, other);
    assert_eq!(DerivedMark::load(&path, Some(other)).expect("load"), None);
    let text = std::fs::read_to_string(&path).expect("read");
    for len in 0..text.len() {
        std::fs::write(&path, &text[..len]).expect("write");
        assert_eq!(DerivedMark::load(&path, Some(lock)).expect("load"), None, "{len} bytes");
    }
    std::fs::write(&path, text.replace("4711", "4712")).expect("write");
    assert_eq!(DerivedMark::load(&path, Some(lock)).expect("load"), None);
}

#[test]
fn a_worker_does_jobs_in_order_and_finishes_them_when_dropped() {
    let worker = Worker::start("test-worker").expect("worker");
    let (done, results) = std::sync::mpsc::channel();
    let mut tickets = Vec::new();
    for n in 0..100 {
        let done = done.clone();
        tickets.push(worker.submit(move || {
            done.send(n).expect("send");
            n * 2
        }));
    }
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.wait_blocking(), Ok(n * 2));
    }
    let last = worker.submit(|| 7);
    drop(worker);
    assert_eq!(last.poll(), Some(Ok(7)));
    assert_eq!(last.poll(), Some(Err(WorkerGone)));
    assert_eq!(results.try_iter().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_checkpoint_claims_what_is_written_and_nothing_after_a_failed_sync() {
    use crate::index::{Index, IndexConfig, IndexRecovery, load_index};
    use crate::queue::{QueueConfig, QueueRecovery, QueueStore, load_queues};
    use std::rc::Rc;

    let (_dir, layout) = layout();
    let lock = StoreLock::acquire(&layout).expect("lock");
    let stamp = lock.stamp();
    let executor = glommio::LocalExecutorBuilder::default().io_memory(1 << 20).make();
    let inner_layout = layout.clone();
    let digest = executor.expect("reactor").run(async move {
        let layout = inner_layout;
        let worker = Rc::new(Worker::start("test-store").expect("worker"));
        let queue_config = QueueConfig { file_bytes: 400, ..QueueConfig::new(&layout) };
        let index_config = IndexConfig { slots: 7, entries: 6, ..IndexConfig::new(&layout) };
        let recovery = QueueRecovery {
            log_min: 0,
            cut_at: 0,
            log_end: 0,
            trusted: true,
            clean: true,
            digest: None,
            same_beginning: false,
        };
        let loaded = load_queues(&queue_config, &recovery).expect("load");
        let queues = QueueStore::new(queue_config, Rc::clone(&worker), loaded);
        let recovery = IndexRecovery { log_min: 0, log_end: 0, clean: true, files: None };
        let loaded = load_index(&index_config, &recovery).expect("load");
        let index = Index::new(index_config, Rc::clone(&worker), loaded);
        for n in 0..8 {
            queues.append(&queues.open("T", 0), n, n * 100, 100, 0);
            index.put(3, n * 100, 1_000_000 + n);
        }
        let input = CheckpointInput {
            dispatched: 800,
            queues: queues.digest(),
            log_min: 0,
            physic_timestamp: 1_000_007,
            logics_timestamp: 1_000_006,
            lock: stamp,
        };
        let file_system = Arc::new(FileSystem::of(layout.root()).expect("file system"));
        let write = async || {
            write_checkpoint(&layout, &worker, &file_system, &queues, Some(&index), input).await
        };
        write().await.expect("checkpoint");
        assert_eq!(queues.unwritten_bytes(), 0);
        assert_eq!(index.stats().unwritten_bytes, 0);
        queues.set_sync_failed();
        assert!(matches!(write().await, Err(StoreError::SyncFailed)));
        queues.digest()
    });
    let checkpoint = Checkpoint::load(&layout.checkpoint()).expect("load").expect("checkpoint");
    assert_eq!(checkpoint, Checkpoint { physic: 1_000_007, logics: 1_000_006, index: 1_000_004 });
    let mark = DerivedMark::load(&layout.derived_mark(), Some(stamp)).expect("load");
    let mark = mark.expect("a mark");
    assert_eq!((mark.dispatched, mark.queues, mark.lock), (800, digest, stamp));
    assert_eq!(mark.index.iter().map(|file| file.next_entry).collect::<Vec<_>>(), [6, 4]);
    let recovery =
        IndexRecovery { log_min: 0, log_end: 800, clean: false, files: Some(mark.index) };
    let index_config = IndexConfig { slots: 7, entries: 6, ..IndexConfig::new(&layout) };
    let report = load_index(&index_config, &recovery).expect("load").report;
    assert_eq!((report.files, report.rebuilt_entries), (2, 3));
}
