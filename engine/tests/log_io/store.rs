//! The store directory as a whole: whose it is, what is kept beside the log, what is deleted.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use ringmq_engine::log::{
    CRC_BLOCK_BYTES, Log, LogConfig, LogError, ReadHint, RecoveryError, Sidecar,
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

#[test]
fn a_checkpoint_that_was_not_announced_is_a_stock_brokers_visit() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        let sent = write(&log, 0, 100, 1000).await;
        let content = [1u8; 4096];
        log.expect_checkpoint(&content).await.unwrap();
        std::fs::write(store.join("checkpoint"), content).unwrap();
        log.close().await.unwrap();

        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(!opened.stock_was_here && opened.recovered.clean);
        // Announced but never written: a crash in between.
        log.expect_checkpoint(&[2u8; 4096]).await.unwrap();
        log.close().await.unwrap();
        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(!opened.stock_was_here);
        log.close().await.unwrap();

        std::fs::write(store.join("checkpoint"), [3u8; 4096]).unwrap();
        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(opened.stock_was_here);
        assert_eq!(opened.recovered.redo_from, None, "stock's rule");
        for one in &sent {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        log.close().await.unwrap();
        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(!opened.stock_was_here, "known from now on");
        log.close().await.unwrap();
    });
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
                assert_eq!(crc, crc32c::crc32c(bytes), "segment {start} block {block}");
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
    let sent = on_reactor({
        let store = store.clone();
        move || async move {
            let (log, _) = Log::open(config(&store)).await.unwrap();
            let sent = write(&log, 0, 600, 3000).await;
            log.close().await.unwrap();
            sent
        }
    });
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
