//! 1,000 consumer groups with progress in 8 queues each.

use std::path::Path;
use std::time::{Duration, Instant};

use super::burst::{Request, batch, burst, fill, ok};
use super::sight::{ready_after, stalls};
use crate::support::wire::{code, eventually};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const TOPIC: &str = "Scale-progress";
const GROUPS: usize = 1_000;
const QUEUES: usize = 8;

fn group(n: usize) -> String {
    format!("Scale-group-{n:04}")
}

/// Another one for each group, and within the queues.
fn progress(group: usize) -> i64 {
    group as i64 + 1
}

/// The fields of a request about the `n`th progress.
fn queue_of(n: usize) -> Vec<(&'static str, String)> {
    vec![
        ("consumerGroup", group(n / QUEUES)),
        ("topic", TOPIC.to_owned()),
        ("queueId", (n % QUEUES).to_string()),
    ]
}

#[test]
fn the_progress_of_a_thousand_groups_is_there_after_a_kill() {
    let _alone = exclusive();
    let dir = tempdir("groups");
    let target = Target::from_env();
    let mut broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    broker.create_topic(TOPIC, QUEUES as u32);
    // 1,000 messages in each queue, so that no group is beyond an end.
    let bodies = vec![b"one".to_vec(); 125];
    fill(broker.address(0), (1, 8), QUEUES * 8, |n| batch(TOPIC, n % QUEUES, &bodies));

    let commit = |n| {
        let mut ext = queue_of(n);
        ext.push(("commitOffset", progress(n / QUEUES).to_string()));
        Request { code: code::UPDATE_CONSUMER_OFFSET, ext, body: Vec::new() }
    };
    let took = burst(broker.address(0), 4, GROUPS * QUEUES, commit, |_, reply| ok(reply));
    println!("{GROUPS} groups, {} commits: {took}", GROUPS * QUEUES);
    await_saved(&broker.store_dir().join("config/consumerOffset.json"));
    broker.sigkill();
    let took = ready_after(&mut broker);
    println!("ready after SIGKILL: {took:?}");
    assert!(took < Duration::from_secs(10), "ready only after {took:?}");
    let query =
        |n| Request { code: code::QUERY_CONSUMER_OFFSET, ext: queue_of(n), body: Vec::new() };
    let took = burst(broker.address(0), 4, GROUPS * QUEUES, query, |n, reply| {
        ok(reply);
        let at = reply.number("offset");
        assert_eq!(at, progress(n / QUEUES), "{} in queue {}", group(n / QUEUES), n % QUEUES);
    });
    println!("{} queries: {took}", GROUPS * QUEUES);
    let stalls = stalls(&broker.process().log_text());
    println!("{stalls:?}");
    stalls.assert_short();
}

/// Waits until the file has every group's progress in every queue.
fn await_saved(file: &Path) {
    let began = Instant::now();
    let saved = eventually(Duration::from_secs(60), || {
        let text = std::fs::read_to_string(file).ok()?;
        let groups: Vec<&str> = text.split(&format!("\"{TOPIC}@")).skip(1).collect();
        let whole = groups.len() == GROUPS && groups.iter().all(|entry| is_whole(entry));
        whole.then_some(text.len())
    });
    let bytes = saved.unwrap_or_else(|| panic!("not all in {}", file.display()));
    println!("saved after {:?}: {bytes} bytes", began.elapsed());
    // A line of less than 64 bytes for each would do.
    assert!(bytes < GROUPS * (QUEUES + 1) * 64, "{bytes} bytes");
}

/// A group's part of the file: its name, then number and progress of each queue.
fn is_whole(entry: &str) -> bool {
    let Some((name, queues)) = entry.split_once("\":{") else { return false };
    let Some(Ok(group)) = name.strip_prefix("Scale-group-").map(str::parse) else { return false };
    let queues = queues.split('}').next().unwrap_or_default();
    let there = queues.split(',').filter(|pair| {
        let at = pair.split_once(':').map(|(_, at)| at.trim().parse());
        at == Some(Ok(progress(group)))
    });
    there.count() == QUEUES
}
