//! The store directory as a whole: whose it is, what is kept beside the log, what is deleted.

use std::{
    fs::File,
    ops::ControlFlow,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use crc32c::crc32c;
use ringmq_engine::{
    log::{
        CRC_BLOCK_BYTES, Item, LockStamps, Log, LogConfig, LogError, Problem, ReadHint,
        RecoveryError, Sidecar, walk_log,
    },
    store::{LockStamp, StoreLayout, StoreLock},
};

use crate::support::{
    MIB, Sent, append_patiently, config, disk_dir, on_reactor, read_back, record, segment_path,
    settle,
};

async fn write(log: &Log, from: u64, count: u64, len: usize) -> Vec<Sent> {
    let mut sent = Vec::new();
    for n in from..from + count {
        sent.push(append_patiently(log, n, len).await);
    }
    settle(log).await;
    sent
}

/// A log of `count` messages of 3,000 bytes that was closed in order.
fn closed_log(store: &Path, count: u64) -> Vec<Sent> {
    let store = store.to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        let sent = write(&log, 0, count, 3000).await;
        log.close().await.unwrap();
        sent
    })
}

/// A store as a stock broker leaves it: sparse segments of full length, BLANK at the end of a full one, an all-zero
/// segment made ahead, a checkpoint, perhaps `abort`; nothing of ours. Returns the messages and the end of the log.
fn stock_store(store: &Path, messages: u64, abort: bool) -> (Vec<Sent>, u64) {
    let mut sent = Vec::new();
    let mut at = 0u64;
    std::fs::create_dir_all(store.join("commitlog")).unwrap();
    let open = |start: u64| {
        let file = File::create(segment_path(store, start)).unwrap();
        file.set_len(MIB).unwrap();
        file
    };
    let mut file = open(0);
    for n in 0..messages {
        let body = 500 + (n * 331 % 4000) as usize;
        let len = record(n, body, 0).len();
        let room = MIB - at % MIB;
        if len as u64 + 8 > room {
            let mut blank = (room as u32).to_be_bytes().to_vec();
            blank.extend_from_slice(&0xCBD4_3194u32.to_be_bytes());
            // Stock 4.0.0 leaves whatever its buffer held as filler.
            blank.resize(room.min(64) as usize, 0xAB);
            file.write_all_at(&blank, at % MIB).unwrap();
            at += room;
            file = open(at);
        }
        file.write_all_at(&record(n, body, at), at % MIB).unwrap();
        sent.push(Sent { n, offset: at, len, body });
        at += len as u64;
    }
    open(at - at % MIB + MIB);
    std::fs::write(store.join("checkpoint"), [0u8; 4096]).unwrap();
    if abort {
        std::fs::write(store.join("abort"), "").unwrap();
    }
    (sent, at)
}

#[test]
fn a_store_that_a_stock_broker_wrote_opens_and_serves() {
    for abort in [false, true] {
        let dir = disk_dir();
        let store = dir.path().to_path_buf();
        let (sent, end) = stock_store(&store, 1000, abort);
        assert!(end > 2 * MIB);
        on_reactor(move || async move {
            let (log, opened) = Log::open(config(&store)).await.unwrap();
            assert_eq!(opened.recovered.clean, !abort);
            assert_eq!(opened.recovered.end, end);
            for one in &sent {
                read_back(&log, one, ReadHint::STREAM).await.unwrap();
            }
            let more = write(&log, 5000, 600, 3000).await;
            assert_eq!(more[0].offset, end);
            for one in &more {
                read_back(&log, one, ReadHint::EXACT).await.unwrap();
            }
            log.close().await.unwrap();
            // Nothing but segments of full length lies where a stock broker looks.
            for entry in std::fs::read_dir(store.join("commitlog")).unwrap() {
                let entry = entry.unwrap();
                assert_eq!(entry.file_name().len(), 20);
                assert_eq!(entry.metadata().unwrap().len(), MIB);
            }
        });
    }
}

/// Takes the store's lock as a broker does.
fn locked(store: &Path) -> (StoreLock, LogConfig) {
    let layout = StoreLayout::new(store);
    let before = LockStamp::read(&layout).unwrap();
    let lock = StoreLock::acquire(&layout).unwrap();
    let stamps = LockStamps { before, now: lock.stamp() };
    let config = LogConfig { lock: Some(stamps), dispatched: Some(500), ..config(store) };
    (lock, config)
}

#[test]
fn a_lock_file_that_somebody_else_wrote_is_a_stock_brokers_visit() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (lock, config) = locked(&store);
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(!opened.stock_was_here);
        let sent = write(&log, 0, 100, 1000).await;
        log.close().await.unwrap();
        drop(lock);

        let (lock, config) = locked(&store);
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(!opened.stock_was_here && opened.recovered.clean);
        assert_eq!(opened.recovered.redo_from, Some(500), "as the caller knows it");
        log.close().await.unwrap();
        drop(lock);

        // A stock broker starts: it writes these four bytes.
        std::fs::write(store.join("lock"), "lock").unwrap();
        let (lock, config) = locked(&store);
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(opened.stock_was_here);
        assert_eq!(opened.recovered.redo_from, None, "stock's rule");
        for one in &sent {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        log.close().await.unwrap();
        drop(lock);

        // Whoever had to forget something did not come to it.
        let (lock, config) = locked(&store);
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(opened.stock_was_here && opened.own_state, "the log itself is ours again");
        log.settle_visit().await.unwrap();
        log.close().await.unwrap();
        drop(lock);

        let (_lock, config) = locked(&store);
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(!opened.stock_was_here, "known from now on");
        log.close().await.unwrap();
    });
}

/// The start that was cut off had taken the lock and not come to its first save. Were it taken for a stock broker, a record torn in its
/// properties would be believed, as stock believes it.
#[test]
fn a_start_that_was_cut_off_is_no_stock_brokers_visit() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (lock, config) = locked(&store);
        let (log, _) = Log::open(config).await.unwrap();
        write(&log, 0, 100, 1000).await;
        log.close().await.unwrap();
        drop(lock);
        drop(locked(&store));

        let (_lock, config) = locked(&store);
        let (log, opened) = Log::open(config).await.unwrap();
        assert!(!opened.stock_was_here && opened.own_state, "{opened:?}");
        log.close().await.unwrap();
    });
}

#[test]
fn a_walk_sees_every_record_and_names_every_kind_of_damage() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    let sent = closed_log(&store, 1000);
    let walk = |from: u64| {
        let (mut records, mut problems) = (Vec::new(), Vec::new());
        let summary = walk_log(&store, from, &mut |item| {
            match item {
                Item::Record(view) => records.push(view.queue_offset()),
                Item::Problem(problem) => problems.push(problem),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        (summary, records, problems)
    };
    let (summary, records, problems) = walk(0);
    assert_eq!(problems, []);
    assert_eq!(records, (0..1000).collect::<Vec<i64>>());
    let last = sent.last().unwrap();
    assert_eq!(summary.end, last.offset + last.len as u64);
    assert_eq!(summary.durable, Some(summary.end));
    assert!(summary.blocks_compared > 2 * MIB / CRC_BLOCK_BYTES);

    // A bit of a body in the middle, and a bit of a property, which no CRC of a stock record covers.
    let flip = |offset: u64| {
        let path = segment_path(&store, offset - offset % MIB);
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset % MIB).unwrap();
        file.write_all_at(&[byte[0] ^ 4], offset % MIB).unwrap();
    };
    let (body, property) = (sent[20].offset + 200, sent[30].offset + sent[30].len as u64 - 2);
    flip(body);
    flip(property);
    let (summary, records, problems) = walk(0);
    assert_eq!(records.len(), 999, "the walk goes on behind a bad body");
    assert!(matches!(problems[0], Problem::BadRecord { offset, durable: true, .. }
        if offset == sent[20].offset));
    let blocks: Vec<u64> = problems
        .iter()
        .filter_map(|p| match p {
            Problem::Block { offset, .. } => Some(*offset),
            _ => None,
        })
        .collect();
    let block = |offset: u64| offset - offset % CRC_BLOCK_BYTES;
    let mut expected = vec![block(body), block(property)];
    expected.dedup();
    assert_eq!(blocks, expected);
    assert_eq!(summary.problems, problems.len() as u64);
    flip(body);
    flip(property);

    // From the second segment on, and stopped at the first record.
    let (summary, records, _) = walk(MIB + 5);
    assert_eq!(summary.start, 0);
    assert!(records[0] > 0 && records.len() < 1000);
    let stopped = walk_log(&store, 0, &mut |item| match item {
        Item::Record(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
    .unwrap();
    assert!(stopped.stopped && stopped.records == 1);

    // Zeros over everything from a record on, in the middle segment.
    let hole = sent.iter().find(|s| s.offset > MIB + MIB / 2).unwrap().offset;
    let file = File::options().write(true).open(segment_path(&store, MIB)).unwrap();
    file.write_all_at(&vec![0; (2 * MIB - hole) as usize], hole - MIB).unwrap();
    let (_, _, problems) = walk(0);
    assert!(problems.contains(&Problem::Hole { offset: hole, next: 2 * MIB }), "{problems:?}");
}

#[test]
fn a_walk_reads_segments_that_a_stock_broker_wrote() {
    let dir = disk_dir();
    let log = dir.path().join("commitlog");
    std::fs::create_dir(&log).unwrap();
    for (name, text) in [
        ("00000000000000000000", include_str!("../../../net/tests/vectors/seg_file0.hex")),
        ("00000000000000002048", include_str!("../../../net/tests/vectors/seg_file1.hex")),
    ] {
        let digits: String =
            text.lines().filter(|l| !l.starts_with('#')).flat_map(|l| l.trim().chars()).collect();
        let bytes: Vec<u8> = digits
            .as_bytes()
            .chunks(2)
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(bytes.len(), 2048);
        std::fs::write(log.join(name), bytes).unwrap();
    }
    std::fs::write(log.join("stray"), "x").unwrap();
    let (mut offsets, mut blanks, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    let summary = walk_log(dir.path(), 0, &mut |item| {
        match item {
            Item::Record(view) => offsets.push(view.physical_offset()),
            Item::Blank { offset, room } => blanks.push((offset, room)),
            Item::Problem(problem) => problems.push(problem),
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    // The first segment's records as stock's own classes laid them out.
    let first = [0, 209, 309, 423, 544, 645, 781, 937, 1093, 1216, 1331, 1446, 1741];
    assert_eq!(offsets[..13], first);
    assert_eq!(blanks, [(2036, 12)]);
    assert!(matches!(&problems[..], [Problem::Entry { path, .. }] if path.ends_with("stray")));
    assert_eq!((summary.segments, summary.segment_bytes), (2, 2048));
    assert_eq!(summary.durable, None);
}

#[test]
fn what_is_fixed_at_creation_is_refused_by_name_when_it_changed() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        write(&log, 0, 10, 100).await;
        log.close().await.unwrap();

        let other = LogConfig { shards: 4, ..config(&store) };
        let error = Log::open(other).await.err().unwrap();
        assert!(matches!(error, LogError::StateMismatch { key: "shards", .. }), "{error}");

        let mut other = config(&store);
        other.core.segment_size = 2 * MIB;
        let error = Log::open(other).await.err().unwrap();
        assert!(matches!(error, LogError::SegmentLength { .. }), "{error}");

        let state = store.join("ringmq/state");
        let text = std::fs::read_to_string(&state).unwrap();
        std::fs::write(&state, text.replace("ringmq-state 1.0", "ringmq-state 9.0")).unwrap();
        let error = Log::open(config(&store)).await.err().unwrap();
        assert!(matches!(error, LogError::StateVersion { .. }), "{error}");

        std::fs::write(&state, &text[..text.len() - 3]).unwrap();
        let error = Log::open(config(&store)).await.err().unwrap();
        assert!(matches!(error, LogError::StateCorrupt { .. }), "{error}");

        std::fs::write(&state, text).unwrap();
        let (log, _) = Log::open(config(&store)).await.unwrap();
        log.close().await.unwrap();
    });
}

#[test]
fn damage_below_the_durable_offset_is_named_and_nothing_is_cut() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        let sent = write(&log, 0, 10, 1000).await;
        log.close().await.unwrap();
        let last = sent.last().unwrap();
        let file = File::options().read(true).write(true).open(segment_path(&store, 0)).unwrap();
        let mut byte = [0];
        let at = last.offset + 500;
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        file.sync_all().unwrap();
        let error = Log::open(config(&store)).await.err().unwrap();
        assert!(matches!(error, LogError::Recovery(RecoveryError::Damaged { .. })), "{error}");
        file.write_all_at(&byte, at).unwrap();
        file.sync_all().unwrap();
        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(opened.recovered.clean);
        read_back(&log, last, ReadHint::EXACT).await.unwrap();
        log.close().await.unwrap();
    });
}

fn sidecar(store: &Path, start: u64) -> Sidecar {
    let bytes = std::fs::read(store.join(format!("ringmq/crc/{start:020}"))).unwrap_or_default();
    Sidecar::decode(&bytes, start)
}

/// Every known entry is right, and of a finished segment all are known in the end.
async fn check_sidecar(store: &Path, start: u64) {
    let data = std::fs::read(segment_path(store, start)).unwrap();
    let blocks = MIB / CRC_BLOCK_BYTES;
    let began = Instant::now();
    loop {
        let crcs = sidecar(store, start);
        for block in 0..blocks {
            let at = (block * CRC_BLOCK_BYTES) as usize;
            if let Some(crc) = crcs.get(block) {
                let bytes = &data[at..at + CRC_BLOCK_BYTES as usize];
                assert_eq!(crc, crc32c(bytes), "segment {start} block {block}");
            }
        }
        if crcs.known() == blocks {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{} of {blocks} known", crcs.known());
        glommio::timer::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn block_checksums_are_right_complete_for_finished_segments_and_rebuilt_when_missing() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        write(&log, 0, 700, 3000).await;
        log.flushed(log.written()).await.unwrap();
        log.close().await.unwrap();

        let (log, _) = Log::open(config(&store)).await.unwrap();
        check_sidecar(&store, 0).await;
        // Goes on in the middle of a block of the third segment, and finishes it.
        write(&log, 700, 400, 3000).await;
        log.flushed(log.written()).await.unwrap();
        check_sidecar(&store, MIB).await;
        check_sidecar(&store, 2 * MIB).await;
        log.close().await.unwrap();

        std::fs::remove_file(store.join(format!("ringmq/crc/{:020}", 0))).unwrap();
        let (log, _) = Log::open(config(&store)).await.unwrap();
        check_sidecar(&store, 0).await;
        log.close().await.unwrap();
    });
}

#[test]
fn deleted_segments_can_not_be_read_and_leave_nothing_behind() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        let sent = write(&log, 0, 1200, 3000).await;
        read_back(&log, &sent[3], ReadHint::STREAM).await.unwrap();
        let deleted = log.delete_oldest().await.unwrap();
        assert_eq!(deleted.start, 0);
        assert_eq!(log.min_offset(), MIB);
        assert!(!segment_path(&store, 0).exists());
        let error = read_back(&log, &sent[3], ReadHint::STREAM).await.unwrap_err();
        assert!(matches!(error, LogError::OutOfRange { min: MIB, .. }), "{error}");
        while log.delete_oldest().await.is_ok() {}
        let last = sent.last().unwrap();
        assert!(log.min_offset() <= last.offset, "never the one being written");
        read_back(&log, last, ReadHint::EXACT).await.unwrap();
        let trash = || {
            std::fs::read_dir(store.join("ringmq/prepare"))
                .unwrap()
                .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("deleted"))
                .count()
        };
        let began = Instant::now();
        while trash() > 0 {
            assert!(began.elapsed() < Duration::from_secs(20));
            glommio::timer::sleep(Duration::from_millis(5)).await;
        }
        let min = log.min_offset();
        log.close().await.unwrap();
        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert_eq!(opened.recovered.min_offset, min);
        read_back(&log, last, ReadHint::EXACT).await.unwrap();
        log.close().await.unwrap();
    });
}

#[test]
fn written_data_is_read_from_the_device_by_a_reactor_that_never_wrote() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    let sent = closed_log(&store, 600);
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        for one in sent.iter().step_by(13) {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        // Either the device can be polled and reads came that way, or it can't and then writes must not spin in polling.
        write(&log, 600, 10, 100).await;
        let stats = glommio::executor().io_stats();
        let polled = stats.poll_ring.file_writes().0;
        let reads = stats.poll_ring.file_reads().0;
        assert!(polled == 0 || reads > 0, "{polled} polled writes but no polled read");
        log.close().await.unwrap();
    });
}

#[test]
fn in_memory_file_systems_are_refused_unless_allowed() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let error = Log::open(config(&store)).await.err().unwrap();
        assert!(matches!(error, LogError::NotDirect { .. }), "{error}");
        let allowed = LogConfig { allow_buffered: true, ..config(&store) };
        let (log, opened) = Log::open(allowed).await.unwrap();
        assert!(opened.buffered);
        let sent = write(&log, 0, 10, 1000).await;
        read_back(&log, &sent[0], ReadHint::EXACT).await.unwrap();
        log.close().await.unwrap();
    });
}
