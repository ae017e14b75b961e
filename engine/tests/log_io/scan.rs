//! A recovery's reads, ahead of its scan.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use ringmq_engine::log::{
    CoreConfig, DiskFaults, Fault, FaultSeam, FileOp, Log, LogConfig, ReadHint,
};

use crate::support::{MIB, append_patiently, config, disk_dir, on_reactor, read_back, settle};

/// Fails the first large read of each place at which the log is read ahead.
#[derive(Default)]
struct FirstReads(Mutex<HashSet<(PathBuf, u64)>>);

impl DiskFaults for FirstReads {
    fn check(&self, op: FileOp, path: &Path, offset: u64, len: u64) -> Option<Fault> {
        let first = op == FileOp::LogRead
            && len > 4096
            && offset.is_multiple_of(MIB)
            && self.0.lock().unwrap().insert((path.to_path_buf(), offset));
        first.then_some(Fault::Errno(libc::EIO))
    }
}

#[test]
fn a_scan_of_many_reads_finds_every_record_even_if_what_was_read_ahead_has_to_be_read_again() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    // No whole number of reads in a segment, and records that lie in three of them.
    let large = |store: &Path| LogConfig {
        core: CoreConfig { segment_size: 5 * MIB / 2, ..config(store).core },
        ..config(store)
    };
    on_reactor(move || async move {
        let (log, _) = Log::open(large(&store)).await.unwrap();
        let mut sent = Vec::new();
        for n in 0..700 {
            let len = if n % 150 == 149 { 3 * MIB as usize / 2 } else { 10_000 };
            sent.push(append_patiently(&log, n, len).await);
        }
        settle(&log).await;
        let end = log.appended();
        log.close().await.unwrap();

        for seam in [FaultSeam::default(), FaultSeam::new(Arc::new(FirstReads::default()))] {
            // Without our own state, and after no clean stop, all of it is scanned.
            fs::remove_file(store.join("ringmq/state")).unwrap();
            fs::write(store.join("abort"), "").unwrap();
            let (log, opened) = Log::open(LogConfig { seam, ..large(&store) }).await.unwrap();
            let recovered = &opened.recovered;
            assert_eq!(
                (recovered.end, recovered.scanned_bytes, recovered.scanned_records),
                (end, end, 700),
                "{opened:?}"
            );
            log.close().await.unwrap();
        }
        let (log, _) = Log::open(large(&store)).await.unwrap();
        for one in &sent {
            read_back(&log, one, ReadHint::STREAM).await.unwrap();
        }
        log.close().await.unwrap();
    });
}
