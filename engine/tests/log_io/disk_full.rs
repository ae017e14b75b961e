//! A real full disk: a small ext4 on a loop device.

use std::time::Duration;

use ringmq_engine::log::{AppendError, Log, ReadHint};

use crate::support::{SmallDisk, append, config, on_reactor, read_back, settle};

#[test]
fn a_full_disk_refuses_appends_keeps_reading_and_takes_appends_again_when_space_is_freed() {
    let Some(disk) = SmallDisk::new(48) else { return };
    let store = disk.mount().join("store");
    on_reactor(move || async move {
        let (log, _) = Log::open(config(&store)).await.unwrap();
        let mut sent = Vec::new();
        let refused = loop {
            match append(&log, sent.len() as u64, 3000) {
                Ok(one) => sent.push(one),
                Err(e @ AppendError::NoSpace { .. }) => break e,
                Err(AppendError::Busy { .. } | AppendError::NotReady { .. }) => {
                    log.kick();
                    glommio::timer::sleep(Duration::from_millis(1)).await;
                }
                Err(e) => panic!("{e}"),
            }
        };
        assert!(refused.to_string().contains("free disk space"), "{refused}");
        assert!(log.is_disk_full() && log.failed().is_none());
        settle(&log).await;
        for one in sent.iter().step_by(50) {
            read_back(&log, one, ReadHint::EXACT).await.unwrap();
        }
        let space = log.disk_space().await.unwrap();
        assert!(space.used_percent() > 50, "{space:?}");

        for _ in 0..3 {
            log.delete_oldest().await.unwrap();
        }
        // Nobody asks for it: the log finds out by itself.
        let after = loop {
            match append(&log, sent.len() as u64, 3000) {
                Ok(one) => break one,
                Err(_) => glommio::timer::sleep(Duration::from_millis(20)).await,
            }
        };
        settle(&log).await;
        read_back(&log, &after, ReadHint::EXACT).await.unwrap();
        assert!(!log.is_disk_full());
        log.close().await.unwrap();
    });
}
