//! A real full disk: a small ext4 on a loop device.

use std::{path::PathBuf, process::Command, time::Duration};

use ringmq_engine::log::{AppendError, Log, ReadHint};

use crate::support::{append, config, disk_dir, on_reactor, read_back, settle};

/// A mounted image; unmounted when dropped.
struct SmallDisk {
    _dir: tempfile::TempDir,
    mount: PathBuf,
}

impl SmallDisk {
    /// `None`, with the reason printed, where one may not mount.
    fn new(mib: u64) -> Option<Self> {
        let dir = disk_dir();
        let (image, mount) = (dir.path().join("disk.img"), dir.path().join("mnt"));
        std::fs::create_dir(&mount).unwrap();
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| -> bool {
            match Command::new(program).args(args).output() {
                Ok(output) if output.status.success() => true,
                Ok(output) => {
                    let why = String::from_utf8_lossy(&output.stderr).into_owned();
                    println!("skipped: {program}: {}", why.trim());
                    false
                }
                Err(e) => {
                    println!("skipped: {program}: {e}");
                    false
                }
            }
        };
        let made = run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_ref()])
            && run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), mount.as_ref()]);
        made.then_some(SmallDisk { _dir: dir, mount })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mount).status();
    }
}

#[test]
fn a_full_disk_refuses_appends_keeps_reading_and_takes_appends_again_when_space_is_freed() {
    let Some(disk) = SmallDisk::new(48) else { return };
    let store = disk.mount.join("store");
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
