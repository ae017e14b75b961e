//! Consume queues against stock bytes, against a model over crashes, and against damage.

mod damage;
mod model;
mod reactor;
mod stock;

use std::path::Path;
use std::rc::Rc;

use super::*;
use crate::store::{StoreLayout, Worker, numbered_name};

/// 20 units a file.
const FILE_BYTES: u64 = 400;

fn config(root: &Path) -> QueueConfig {
    let layout = StoreLayout::new(root);
    QueueConfig {
        file_bytes: FILE_BYTES,
        memory_bytes_max: 15 * UNIT_BYTES,
        descriptors_max: 3,
        batch_queues_max: 3,
        ..QueueConfig::new(&layout)
    }
}

fn worker() -> Rc<Worker> {
    Rc::new(Worker::start("test-queues").expect("worker"))
}

fn open(config: &QueueConfig, recovery: QueueRecovery) -> (QueueStore, LoadReport) {
    let loaded = load_queues(config, &recovery).expect("load");
    let report = loaded.report.clone();
    (QueueStore::new(config.clone(), worker(), loaded), report)
}

fn clean(log_end: u64) -> QueueRecovery {
    QueueRecovery {
        log_min: 0,
        cut_at: log_end,
        log_end,
        trusted: true,
        clean: true,
        digest: None,
        same_beginning: true,
    }
}

fn file(config: &QueueConfig, topic: &str, queue_id: i32, start: u64) -> std::path::PathBuf {
    config.dir.join(topic).join(queue_id.to_string()).join(numbered_name(start))
}

fn read_file(config: &QueueConfig, topic: &str, queue_id: i32, start: u64) -> Vec<u8> {
    std::fs::read(file(config, topic, queue_id, start)).expect("queue file")
}
