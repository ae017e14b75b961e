//! Judges the broker's tables by the journal: committed offsets, topics, consumer groups, and the index.
//!
//! Of what is answered when it is durable (topics and groups made by command or by a first send) all must be there. Committed offsets live in
//! memory and are saved every few seconds: what a start finds must be what the file says, a value that was committed, within its queue,
//! and not behind what an earlier start found.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::checker::{hold, known, same_properties, scan};
use super::journal::{Acked, Commits, Journal, Told, body, key, properties, unique_key};
use super::record::Record;
use super::wire::{Conn, Reply, code};

/// A group's committed offset: shard, group, queue.
type Key = (u16, String, i32);

/// Committed offsets, from start to start.
#[derive(Debug, Clone, Default)]
pub struct Offsets {
    found: HashMap<Key, i64>,
}

impl Offsets {
    /// After a start: `stores` are the shards' directories as they were found before it, see [`saved`]; `clean` if the broker had been asked
    /// to end. Gives how many offsets there were.
    pub fn check(
        &mut self,
        shards: &[SocketAddr],
        topic: &str,
        told: &Told,
        saved: &HashMap<Key, i64>,
        clean: bool,
    ) -> Result<u64, String> {
        let mut count = 0;
        for (key, commits) in &told.commits {
            let (shard, group, queue) = key;
            let mut conn =
                Conn::open(shards[usize::from(*shard)]).map_err(|e| format!("connecting: {e}"))?;
            let queue_text = queue.to_string();
            let ext =
                [("consumerGroup", group.as_str()), ("topic", topic), ("queueId", &queue_text)];
            let ask = |conn: &mut Conn, code| {
                conn.call(code, &ext, &[]).map_err(|e| format!("an offset of {key:?}: {e}"))
            };
            let reply = ask(&mut conn, code::QUERY_CONSUMER_OFFSET)?;
            let found = if reply.code == 0 { reply.number("offset") } else { 0 };
            let max = ask(&mut conn, code::GET_MAX_OFFSET)?.number("offset");
            self.judge(key, found, commits, saved.get(key).copied(), max, clean)?;
            count += u64::from(found > 0);
        }
        Ok(count)
    }

    /// One offset that a start found.
    pub fn judge(
        &mut self,
        key: &Key,
        found: i64,
        commits: &Commits,
        saved: Option<i64>,
        max: i64,
        clean: bool,
    ) -> Result<(), String> {
        hold!(found <= max, "{key:?}: committed offset {found} is beyond the queue's end {max}");
        hold!(found == 0 || commits.tried.contains(&found), "{key:?}: nobody committed {found}");
        hold!(
            found == saved.unwrap_or(0),
            "{key:?}: the file says {saved:?}, and the broker {found}"
        );
        let before = self.found.insert(key.clone(), found).unwrap_or(0);
        hold!(
            found >= before,
            "{key:?}: {found} was committed after {before}, which was found before"
        );
        if let Some(acked) = commits.acked.filter(|_| clean) {
            hold!(found >= acked, "{key:?}: {found} after a clean stop, and {acked} was committed");
        }
        Ok(())
    }
}

/// Where a shard's committed offsets are saved.
pub fn offsets_file(store: &Path) -> PathBuf {
    store.join("config/consumerOffset.json")
}

/// The committed offsets of `group` and `topic` in the files of stopped shards.
pub fn saved(stores: &[PathBuf], group: &str, topic: &str) -> HashMap<Key, i64> {
    let mut all = HashMap::new();
    for (shard, store) in stores.iter().enumerate() {
        let Ok(text) = std::fs::read_to_string(offsets_file(store)) else { continue };
        for (queue, offset) in offsets_of(&text, group, topic) {
            all.insert((shard as u16, group.to_owned(), queue), offset);
        }
    }
    all
}

/// `"topic@group":{0:1,"1":2}` somewhere in the text; stock's JSON has numbers as names.
fn offsets_of(text: &str, group: &str, topic: &str) -> Vec<(i32, i64)> {
    let name = format!("\"{topic}@{group}\"");
    let Some((_, rest)) = text.split_once(&name) else { return Vec::new() };
    let Some((_, rest)) = rest.split_once('{') else { return Vec::new() };
    let Some((entries, _)) = rest.split_once('}') else { return Vec::new() };
    let number = |text: &str| text.trim_matches(|c: char| c == '"' || c.is_whitespace()).to_owned();
    entries
        .split(',')
        .filter_map(|entry| entry.split_once(':'))
        .map(|(queue, offset)| {
            let queue = number(queue).parse().expect("a queue id in the offsets' file");
            (queue, number(offset).parse().expect("an offset in the offsets' file"))
        })
        .collect()
}

/// Every topic and group that was made is there as it was asked for, and every message that made its topic.
pub fn check_made(shards: &[SocketAddr], told: &Told, journal: &Journal) -> Result<(), String> {
    for (shard, address) in shards.iter().enumerate() {
        let shard = shard as u16;
        let mut conn = Conn::open(*address).map_err(|e| format!("connecting: {e}"))?;
        let topics = table(&mut conn, code::GET_ALL_TOPIC_CONFIG, "topicConfigTable")?;
        for (_, topic, queues) in told.topics.iter().filter(|(s, ..)| *s == shard) {
            let there =
                topics.get(topic).map(|t| (&t["readQueueNums"], &t["writeQueueNums"], &t["perm"]));
            let asked = (&(*queues).into(), &(*queues).into(), &6.into());
            hold!(
                there == Some(asked),
                "shard {shard}: topic {topic} of {queues} queues is {there:?}"
            );
        }
        let groups =
            table(&mut conn, code::GET_ALL_SUBSCRIPTION_GROUP_CONFIG, "subscriptionGroupTable")?;
        for (_, group) in told.groups.iter().filter(|(s, ..)| *s == shard) {
            let there = groups.get(group).map(|g| &g["retryMaxTimes"]);
            hold!(there == Some(&7.into()), "shard {shard}: group {group} is {there:?}");
        }
        for (_, topic, queue, id) in told.firsts.iter().filter(|(s, ..)| *s == shard) {
            let mut found = Vec::new();
            scan(&mut conn, topic, *queue, true, |record| {
                same_properties(record, &properties(known(record, journal)?), &[&[]])?;
                found.push(known(record, journal)?);
                Ok(())
            })?;
            hold!(found == [*id], "shard {shard}: {topic} was made by {id:?} and has {found:?}");
        }
    }
    Ok(())
}

fn table(
    conn: &mut Conn,
    code: i32,
    name: &str,
) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    let reply = conn.call(code, &[], &[]).map_err(|e| format!("{name}: {e}"))?;
    let json: serde_json::Value =
        serde_json::from_slice(&reply.body).map_err(|e| format!("{name}: {e}"))?;
    json[name].as_object().cloned().ok_or_else(|| format!("no {name} in {json}"))
}

/// Some acknowledged messages are found by their keys.
pub fn check_index(shards: &[SocketAddr], topic: &str, sample: &[&Acked]) -> Result<(), String> {
    for ack in sample {
        let mut conn =
            Conn::open(shards[usize::from(ack.shard)]).map_err(|e| format!("connecting: {e}"))?;
        for key in [key(ack.id), unique_key(ack.id)] {
            let reply =
                query(&mut conn, topic, &key).map_err(|e| format!("query of {key}: {e}"))?;
            hold!(reply.code == 0, "{:?} is not found by {key}: {:?}", ack.id, reply.remark);
            let records = Record::all(&reply.body)?;
            // Others may come with it: the index knows the hash of a key alone.
            hold!(
                records.iter().any(|r| r.queue_offset == ack.offset && r.body == body(ack.id)),
                "{:?} is not among the {} found by {key}",
                ack.id,
                records.len()
            );
        }
    }
    Ok(())
}

fn query(conn: &mut Conn, topic: &str, key: &str) -> std::io::Result<Reply> {
    let end = i64::MAX.to_string();
    let ext = [
        ("topic", topic),
        ("key", key),
        ("maxNum", "32"),
        ("beginTimestamp", "0"),
        ("endTimestamp", &end),
        ("_UNIQUE_KEY_QUERY", "false"),
    ];
    conn.call(code::QUERY_MESSAGE, &ext, &[])
}
