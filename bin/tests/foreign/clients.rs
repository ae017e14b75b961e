//! Every scenario with every client.

use std::time::Duration;

use crate::judge::Judge;
use crate::support::client::Client;
use crate::support::{Broker, Options, Target, tempdir};

/// Queues of a topic on each shard.
const QUEUES: u32 = 4;
const LIMIT: Duration = Duration::from_secs(170);

const JAVA: &[&str] = &[
    "send",
    "query",
    "orderly",
    "broadcast",
    "tags",
    "retry",
    "dead",
    "delay",
    "restart",
    "rebalance",
    "lite",
    "pull",
];
const GO: &[&str] =
    &["send", "orderly", "broadcast", "tags", "retry", "dead", "delay", "restart", "poll"];
const PYTHON: &[&str] = &["send", "orderly", "tags", "retry", "delay", "pull"];

fn check(clients: &[(Client, &[&str])]) {
    if !clients.iter().all(|(c, _)| c.fetch()) {
        return;
    }
    let target = Target::from_env();
    let dir = tempdir("clients");
    let broker =
        Broker::standalone(target, &dir.sub("broker"), Options { shards: 2, ..Options::default() });
    let queues = QUEUES * u32::from(broker.shards());
    let mut running = Vec::new();
    for (client, all) in clients {
        let prefix = client.tag();
        let mut scenarios: Vec<&str> = all.to_vec();
        // A 5.x lite pull consumer pulls by request 361, which stock 4.9 does not know: there it never gets a message.
        if target.is_stock() && *client == Client::Java("5.5.0") {
            scenarios.retain(|s| *s != "lite");
        }
        for scenario in &scenarios {
            broker.create_topic(&format!("{prefix}_{scenario}"), QUEUES);
        }
        // A topic that only its first send makes.
        if matches!(client, Client::Java(_)) {
            scenarios.push("auto");
        }
        running.push(client.start(&broker, dir.path(), &prefix, queues, &scenarios));
    }
    let mut failures = Vec::new();
    for client in &mut running {
        let events = client.finish(LIMIT);
        failures.extend(Judge::new(client.client, &broker, &events).judge());
    }
    if !failures.is_empty() {
        // What the broker had to say about it goes away with its directory.
        println!("{}", std::fs::read_to_string(broker.log()).unwrap_or_default());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn stock_java_clients_are_served() {
    check(&[(Client::Java("4.9.8"), JAVA), (Client::Java("5.5.0"), JAVA)]);
}

#[test]
fn stock_go_and_cpp_clients_are_served() {
    check(&[(Client::Go, GO), (Client::Python, PYTHON)]);
}
