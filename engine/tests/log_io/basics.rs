//! Writing, reading back, rolling, closing and opening again.

use std::{cell::RefCell, path::Path, rc::Rc, time::Duration};

use ringmq_engine::log::{Log, LogConfig, ReadHint};

use crate::support::{
    MIB, Sent, append_patiently, config, disk_dir, on_reactor, read_back, settle,
};

const HINTS: [ReadHint; 3] =
    [ReadHint::EXACT, ReadHint { ahead_bytes: 256 << 10 }, ReadHint::STREAM];

async fn fill(log: &Log, from: u64, count: u64) -> Vec<Sent> {
    let mut sent = Vec::new();
    for n in from..from + count {
        let len = 100 + (n * 7919 % 5000) as usize;
        sent.push(append_patiently(log, n, len).await);
        if n % 7 == 0 {
            log.kick();
        }
    }
    settle(log).await;
    sent
}

#[test]
fn what_was_written_over_several_segments_reads_back_hot_and_cold_and_after_a_clean_reopen() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(opened.fresh && !opened.buffered && !opened.stock_was_here);
        let sent = fill(&log, 0, 2000).await;
        assert!(log.written() > 4 * MIB, "several segments");
        for hint in HINTS {
            for one in &sent {
                read_back(&log, one, hint).await.unwrap();
            }
        }
        assert!(log.stats().cache.hits > 0);
        let end = log.appended();
        log.close().await.unwrap();

        let (log, opened) = Log::open(config(&store)).await.unwrap();
        assert!(opened.recovered.clean, "{opened:?}");
        assert_eq!(opened.recovered.end, end);
        assert_eq!(opened.recovered.zeroed_bytes, 0);
        for one in &sent {
            read_back(&log, one, ReadHint::STREAM).await.unwrap();
        }
        let more = fill(&log, 2000, 500).await;
        assert_eq!(more[0].offset, end, "it goes on where it ended");
        for one in &more {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        log.close().await.unwrap();
    });
}

#[test]
fn who_passes_bytes_on_is_told_of_what_is_visible_before_anybody_else_is() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        let told = Rc::new(RefCell::new(Vec::new()));
        let (first, then) = (Rc::clone(&told), Rc::clone(&told));
        let seen = log.clone();
        log.on_visible(move || first.borrow_mut().push(("passing on", seen.visible())));
        log.on_progress(Box::new(move |progress| {
            then.borrow_mut().push(("dispatching", progress.offsets.visible));
        }));
        fill(&log, 0, 50).await;
        let end = log.appended();
        log.close().await.unwrap();
        let told = told.borrow();
        assert!(told.len() >= 2 && told.len() % 2 == 0, "{told:?}");
        for pair in told.chunks(2) {
            assert_eq!(pair, [("passing on", pair[0].1), ("dispatching", pair[0].1)]);
        }
        assert_eq!(told.last().map(|(_, visible)| *visible), Some(end));
    });
}

fn open_segments(store: &Path) -> usize {
    let commitlog = store.join("commitlog");
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|path| path.starts_with(&commitlog))
        .count()
}

#[test]
fn what_is_not_flushed_stays_open_whatever_is_read_and_only_so_much_of_the_rest() {
    let dir = disk_dir();
    let store = dir.path().to_path_buf();
    on_reactor(move || async move {
        let mut config = LogConfig { flush_bytes: u64::MAX, ..config(&store) };
        config.core.segment_size = 64 << 10;
        config.core.hot_bytes_max = 64 << 10;
        let (log, _) = Log::open(config.clone()).await.unwrap();
        let old = fill(&log, 0, 2_500).await;
        assert!(log.segments().len() > 90);
        log.close().await.unwrap();

        let (log, _) = Log::open(config).await.unwrap();
        let new = fill(&log, 2_500, 200).await;
        assert!(new[199].offset - new[0].offset > 6 * (64 << 10), "unflushed in several segments");
        for one in &old {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        log.flushed(log.appended()).await.unwrap();
        for one in old.iter().chain(&new) {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        // Closing is left to the reactor.
        while open_segments(&store) > 64 {
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        log.close().await.unwrap();
    });
}
