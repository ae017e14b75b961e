//! What must hold of a broker that was overloaded: memory within its budgets, no long stall of its own making, few log lines, everything
//! as before when it is over.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::support::Broker;
use crate::support::wire::{Conn, eventually};

/// GET_BROKER_RUNTIME_INFO.
const RUNTIME_INFO: i32 = 28;
/// How long a broker may take to come back to what it was.
const BACK_MAX: Duration = Duration::from_secs(60);

/// The budgets that an overloaded broker is given: small, so that a short test reaches them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budgets {
    pub(crate) block: u64,
    pub(crate) unwritten: u64,
    pub(crate) cache: u64,
    pub(crate) buffers: u64,
    pub(crate) connections: u64,
    pub(crate) waiting_pulls: u64,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets {
            block: 16 << 20,
            unwritten: 4 << 20,
            cache: 16 << 20,
            buffers: 64 << 20,
            connections: 20_000,
            waiting_pulls: 100_000,
        }
    }
}

impl Budgets {
    /// The section of the configuration file.
    pub(crate) fn config(&self) -> String {
        format!(
            "[limits]\nblock_budget_bytes = {}\nunwritten_bytes = {}\ncache_budget_bytes = {}\nconnections_bytes = {}\nconnections = {}\nwaiting_pulls = {}\n",
            self.block,
            self.unwritten,
            self.cache,
            self.buffers,
            self.connections,
            self.waiting_pulls
        )
    }

    /// KiB that the process may have had at most, if it had `idle` before: its budgets, and a quarter more for what an allocator
    /// cannot give back; buffers twice, since one that has grown leaves its smaller predecessors behind; what `conns` connections
    /// and `pulls` waiting pulls are.
    pub(crate) fn peak_kib(&self, idle_kib: u64, conns: u64, pulls: u64) -> u64 {
        const CONN_BYTES: u64 = 4 << 10;
        const PULL_BYTES: u64 = 1 << 10;
        let each = conns * CONN_BYTES + pulls * PULL_BYTES;
        let budgets = self.block + self.unwritten + self.cache + each;
        idle_kib + ((budgets * 5 / 4 + 2 * self.buffers) >> 10) + (16 << 10)
    }
}

/// Numbers about the running broker.
pub(crate) fn runtime(broker: &Broker) -> BTreeMap<String, String> {
    // It may be at its limit of connections just now.
    let reply = eventually(BACK_MAX, || {
        Conn::open(broker.address(0)).and_then(|mut conn| conn.call(RUNTIME_INFO, &[], &[])).ok()
    });
    let reply = reply.expect("the runtime information");
    let body: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    let table = body["table"].as_object().expect("a table");
    table.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect()
}

/// One of them.
pub(crate) fn number(broker: &Broker, key: &str) -> u64 {
    let table = runtime(broker);
    table.get(key).and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{key} in {table:?}"))
}

/// Waits until a number is what `wanted` accepts.
pub(crate) fn await_number(broker: &Broker, key: &str, wanted: impl Fn(u64) -> bool) {
    let mut last = 0;
    let there = eventually(BACK_MAX, || {
        last = number(broker, key);
        wanted(last).then_some(())
    });
    assert!(there.is_some(), "{key} is {last} after {BACK_MAX:?}");
}

/// A stall that is over, as the recorder tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) lasted_ms: u64,
    /// Of these, without a processor.
    pub(crate) waited_ms: u64,
    pub(crate) cause: String,
    /// What the reactor did when the recorder looked.
    pub(crate) doing: String,
}

/// All stalls of a log.
pub(crate) fn stalls(log: &str) -> Vec<Stall> {
    let mut doing = String::new();
    let mut found = Vec::new();
    for line in log.lines() {
        if line.contains("reactor has not turned") {
            doing = field(line, "doing");
        } else if line.contains("reactor turns again") {
            let number = |name| field(line, name).parse().expect("a number");
            found.push(Stall {
                lasted_ms: number("lasted_ms"),
                waited_ms: number("waited_ms"),
                cause: field(line, "cause"),
                doing: std::mem::take(&mut doing),
            });
        }
    }
    found
}

/// The value of `name=value` or `name="some words"`.
fn field(line: &str, name: &str) -> String {
    let plain = strip_colours(line);
    let Some((_, rest)) = plain.split_once(&format!(" {name}=")) else { return String::new() };
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default().to_owned(),
        None => rest.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

fn strip_colours(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        out.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    out + rest
}

/// No stall over the limit, without the time in which the reactor had no processor, which is none of its making: 100 ms, five times
/// as much for a build without optimization.
pub(crate) fn assert_no_stall(log: &str) {
    let limit = if cfg!(debug_assertions) { 500 } else { 100 };
    let all = stalls(log);
    println!("stalls: {all:?}");
    let own =
        |s: &&Stall| s.cause != "no processor" && s.lasted_ms.saturating_sub(s.waited_ms) > limit;
    let own: Vec<&Stall> = all.iter().filter(own).collect();
    assert!(own.is_empty(), "the reactor stood still for more than {limit} ms: {own:?}");
}

/// The log has no panic, and not more than `lines` lines.
pub(crate) fn assert_calm_log(log: &str, lines: usize) {
    assert!(!log.contains("panicked"), "a panic:\n{log}");
    let count = log.lines().count();
    println!("log lines: {count}");
    assert!(count <= lines, "{count} log lines, {lines} were enough");
}

/// All files below a directory, relative to it.
pub(crate) fn files_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).expect("a directory").map_while(Result::ok) {
            let path = entry.path();
            if path.is_dir() {
                open.push(path.clone());
            }
            let name = path.strip_prefix(dir).expect("below").to_string_lossy().into_owned();
            found.push(name);
        }
    }
    found.sort();
    found
}
