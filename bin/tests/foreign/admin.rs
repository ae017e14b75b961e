//! The stock quick start, and the commands of stock mqadmin that belong to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::judge::Judge;
use crate::support::client::{Client, Event, Running};
use crate::support::process::Process;
use crate::support::wire::{Conn, code, eventually, send_ext};
use crate::support::{Broker, Options, Target, have, peers, tempdir};

/// Runs commands of mqadmin in one JVM and gives what each printed.
fn mqadmin(version: &str, dir: &Path, commands: &[String]) -> BTreeMap<String, String> {
    let cache = peers::cache_dir();
    let home = dir.join(format!("admin-{version}"));
    std::fs::create_dir_all(home.join("conf")).expect("a home for mqadmin");
    let logback = "<configuration><root level=\"off\"/></configuration>";
    std::fs::write(home.join("conf/logback_tools.xml"), logback)
        .expect("mqadmin's logging configuration");
    let mut c = Command::new("java");
    c.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    c.arg(format!("-Duser.home={}", home.display()));
    c.arg(format!("-Drocketmq.home.dir={}", home.display()));
    c.arg(format!("-Drocketmq.client.logRoot={}", home.display()));
    c.arg("-cp")
        .arg(format!("{0}/rocketmq-tools-{version}/*:{0}/admin-{version}", cache.display()));
    c.arg("Admin").env_remove("NAMESRV_ADDR");
    let out = home.join("out");
    let mut process =
        Process::spawn_with_output(&format!("mqadmin {version}"), c, &out, &home.join("err"));
    process.say(&(commands.join("\n") + "\n"));
    process.hush();
    let status = process.wait(Duration::from_secs(120));
    let text = std::fs::read_to_string(&out).unwrap_or_default();
    assert!(
        status.is_some_and(|s| s.success()) && text.contains("### end"),
        "mqadmin {version}: {status:?}\n{text}"
    );
    let errors = process.log_text();
    let mut printed = BTreeMap::new();
    for part in text.split("### ").skip(1) {
        let (command, output) = part.split_once('\n').unwrap_or((part, ""));
        printed.insert(command.to_owned(), output.to_owned());
    }
    if errors.contains("Exception") {
        println!("mqadmin {version} said on standard error:\n{errors}");
    }
    printed
}

/// The lines of a table, split into words; the heading is left out.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.split_whitespace().collect())
        .filter(|r: &Vec<&str>| !r.is_empty())
        .collect()
}

#[test]
fn the_stock_quick_start_works() {
    let client = Client::Java("4.9.8");
    if !have("mvn", "mqadmin") || !client.fetch() {
        return;
    }
    peers::fetch("admin");
    let target = Target::from_env();
    let dir = tempdir("quick-start");
    let broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    let (n, b) = (broker.namesrv, broker.address(0));
    let update = format!("updateTopic -n {n} -b {b} -t TopicTest");
    let route = format!("topicRoute -n {n} -t TopicTest");
    let first = mqadmin("4.9.7", dir.path(), &[update.clone(), route.clone()]);
    assert!(
        first[&update].contains(&format!("create topic to {b} success.")),
        "{}",
        first[&update]
    );
    assert!(
        first[&update].contains("topicName=TopicTest, readQueueNums=8, writeQueueNums=8, perm=RW-"),
        "{}",
        first[&update]
    );
    assert_route(&first[&route], &broker);

    let mut running = client.start(&broker, dir.path(), "quick", 8, &["quick=TopicTest"]);
    let events = running.finish(Duration::from_secs(60));
    let failures = Judge::new(client, &broker, &events).judge();
    assert!(failures.is_empty(), "{}", failures.join("\n"));

    for version in ["4.9.7", "5.5.0"] {
        check_tools(version, dir.path(), &broker, &events);
    }
}

fn assert_route(text: &str, broker: &Broker) {
    let plain: String = text.split_whitespace().collect();
    for part in [
        format!("\"brokerName\":\"{}\"", broker.shard_name(0)),
        format!("0:\"{}\"", broker.address(0)),
        "\"cluster\":\"DefaultCluster\"".to_owned(),
        "\"perm\":6".to_owned(),
        "\"readQueueNums\":8".to_owned(),
        "\"writeQueueNums\":8".to_owned(),
    ] {
        assert!(plain.contains(&part), "no {part} in the route:\n{text}");
    }
}

/// After ten messages were sent to TopicTest and consumed by `quick_g_quick`.
fn check_tools(version: &str, dir: &Path, broker: &Broker, events: &[Event]) {
    let stock = broker.target.is_stock();
    let (n, b) = (broker.namesrv, broker.address(0));
    let name = broker.shard_name(0);
    let sent: Vec<&Event> = events.iter().filter(|e| e.kind == "sent").collect();
    let id = sent[3].offset_id.clone().unwrap_or_default();
    let unique = sent[3].unique_id.clone().unwrap_or_default();
    let route = format!("topicRoute -n {n} -t TopicTest");
    let cluster = format!("clusterList -n {n}");
    let status = format!("topicStatus -n {n} -t TopicTest");
    let progress = format!("consumerProgress -n {n} -g quick_g_quick");
    let by_key = format!("queryMsgByKey -n {n} -t TopicTest -k k3");
    // 5.x asks for the topic as well.
    let by_id = format!(
        "queryMsgById -n {n}{} -i {id}",
        if version == "4.9.7" { "" } else { " -t TopicTest" }
    );
    let runtime = format!("brokerStatus -n {n} -b {b}");
    let topics = format!("topicList -n {n}");
    let all = [&route, &cluster, &status, &progress, &by_key, &by_id, &runtime, &topics]
        .map(Clone::clone);
    let printed = mqadmin(version, dir, &all);

    assert_route(&printed[&route], broker);

    let table = rows(&printed[&cluster]);
    let address = b.to_string();
    assert!(
        table
            .iter()
            .any(|r| r.len() > 5
                && r[..4] == ["DefaultCluster", name.as_str(), "0", address.as_str()]),
        "clusterList {version}:\n{}",
        printed[&cluster]
    );

    // 5.x tools first ask the broker for the topic's configuration by a request (351) that stock 4.9 does not have.
    if !(stock && version == "5.5.0") {
        // 5.x adds a line with the rate of sends.
        let mut table = rows(&printed[&status]);
        table.retain(|r| r[0] == name);
        let ends: i64 = table.iter().filter_map(|r| r[3].parse::<i64>().ok()).sum();
        assert_eq!((table.len(), ends), (8, 10), "topicStatus {version}:\n{}", printed[&status]);

        let text = &printed[&progress];
        let table: Vec<Vec<&str>> =
            rows(text).into_iter().filter(|r| r[0] == "TopicTest").collect();
        let sum =
            |column: usize| table.iter().filter_map(|r| r[column].parse::<i64>().ok()).sum::<i64>();
        assert_eq!(table.len(), 8, "consumerProgress {version}:\n{text}");
        assert!(text.contains("Diff Total: 0"), "consumerProgress {version}:\n{text}");
        // After the group's name, 5.x puts the address of the client that holds the queue.
        let broker_offset = table[0].iter().position(|w| *w == name).unwrap_or(1) + 2;
        assert_eq!(sum(broker_offset), 10, "consumerProgress {version}:\n{text}");
    }

    let found = rows(&printed[&by_key]);
    assert!(
        found.len() == 1 && found[0][0] == unique,
        "queryMsgByKey {version}:\n{}",
        printed[&by_key]
    );
    let queue = sent[3].queue.unwrap_or(-1).to_string();
    assert_eq!(found[0][1], queue, "queryMsgByKey {version}:\n{}", printed[&by_key]);

    let text = &printed[&by_id];
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let field = |k: &str| fields.get(k).copied().unwrap_or_default().to_owned();
    assert_eq!(field("Topic"), "TopicTest", "queryMsgById {version}:\n{text}");
    assert_eq!(field("Queue ID"), queue, "queryMsgById {version}:\n{text}");
    assert_eq!(
        field("Queue Offset"),
        sent[3].offset.unwrap_or(-1).to_string(),
        "queryMsgById {version}:\n{text}"
    );
    assert_eq!(field("Keys"), "[k3]", "queryMsgById {version}:\n{text}");
    assert_eq!(field("Store Host"), address, "queryMsgById {version}:\n{text}");
    assert!(field("Properties").contains(&unique), "queryMsgById {version}:\n{text}");

    let text = &printed[&runtime];
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.trim(), v.trim())).collect();
    for key in [
        "brokerVersion",
        "bootTimestamp",
        "putTps",
        "getTotalTps",
        "commitLogMaxOffset",
        "runtime",
        "msgPutTotalTodayNow",
    ] {
        assert!(fields.contains_key(key), "brokerStatus {version} has no {key}:\n{text}");
    }
    let put: i64 = fields["msgPutTotalTodayNow"].parse().unwrap_or(-1);
    assert!(put >= 10, "brokerStatus {version}: msgPutTotalTodayNow is {put}");

    let names: Vec<&str> = printed[&topics].lines().map(str::trim).collect();
    for topic in ["TopicTest", "TBW102", "%RETRY%quick_g_quick"] {
        assert!(
            names.contains(&topic),
            "topicList {version} has no {topic}:\n{}",
            printed[&topics]
        );
    }
}

/// What administrators ask of a running consumer and of queues: a stock Java consumer is told to go back to the start, consumes again, is
/// asked for its state and to consume one message; a group's progress is copied; queues are looked into.
#[test]
fn stock_tools_reach_consumers_and_look_into_queues() {
    const QUEUES: i32 = 4;
    const MESSAGES: usize = 12;
    let client = Client::Java("4.9.8");
    if !have("mvn", "mqadmin") || !client.fetch() {
        return;
    }
    peers::fetch("admin");
    let dir = tempdir("tools");
    let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), Options::default());
    broker.create_topic("Tools", QUEUES as u32);
    let (n, b) = (broker.namesrv, broker.address(0));
    let mut conn = Conn::open(b).expect("a connection");
    let mut ids = Vec::new();
    for i in 0..MESSAGES {
        let queue = (i as i32 % QUEUES).to_string();
        let ext = send_ext("PG", "Tools", &queue, "KEYS\u{1}k", false);
        let reply = conn.call(code::SEND_MESSAGE_V2, &ext, b"tool").expect("a reply");
        ids.push(reply.ext("msgId").expect("an id").to_owned());
    }
    let mut running = client.start(&broker, dir.path(), "tools", QUEUES as u32, &["online=Tools"]);
    let group = "tools_g_online";
    let received =
        |running: &Running| running.so_far().iter().filter(|event| event.kind == "recv").count();
    let await_received = |running: &Running, count: usize| {
        let came =
            eventually(Duration::from_secs(60), || (received(running) >= count).then_some(()));
        assert!(came.is_some(), "{} of {count} messages came", received(running));
    };
    await_received(&running, MESSAGES);
    let committed = |conn: &mut Conn, group: &str, queue: i32| {
        let queue = queue.to_string();
        let ext = [("consumerGroup", group), ("topic", "Tools"), ("queueId", &queue)];
        conn.call(code::QUERY_CONSUMER_OFFSET, &ext, &[]).expect("a reply").number("offset")
    };
    let end = MESSAGES as i64 / i64::from(QUEUES);
    let all = |conn: &mut Conn, group: &str| {
        (0..QUEUES).all(|queue| committed(conn, group, queue) == end).then_some(())
    };
    // A consumer stores its progress every five seconds.
    let stored = eventually(Duration::from_secs(30), || all(&mut conn, group));
    assert!(stored.is_some(), "the consumer's progress is not stored");
    let members = conn.call(38, &[("consumerGroup", group)], &[]).expect("a reply");
    let members: serde_json::Value = serde_json::from_slice(&members.body).expect("JSON");
    let id = members["consumerIdList"][0].as_str().expect("a client id").to_owned();

    for version in ["4.9.7", "5.5.0"] {
        let status = format!("consumerStatus -n {n} -g {group} -i {id} -s");
        let stats = format!("brokerConsumeStats -n {n} -b {b}");
        let copy = format!("cloneGroupOffset -n {n} -s {group} -d copy_{version} -t Tools");
        let units = format!("queryCq -n {n} -t Tools -q 0 -i 0 -c 3 -b {b}");
        let topic = if version == "4.9.7" { "" } else { " -t Tools" };
        let direct = format!("queryMsgById -n {n}{topic} -i {} -g {group} -d {id}", ids[0]);
        let clean = format!("cleanExpiredCQ -n {n} -b {b}");
        let print = format!("consumeMessage -n {n} -t Tools");
        let before = received(&running);
        // The first call of a JVM that is not warm may take longer than the tool waits: let it be one that does not matter.
        let warm = format!("topicRoute -n {n} -t Tools");
        let commands = [&warm, &warm, &status, &stats, &copy, &units, &direct, &clean, &print]
            .map(Clone::clone);
        let lacks = |printed: &BTreeMap<String, String>| {
            let parts: [(&String, &[&str]); 5] = [
                (&status, &["PROP_CONSUME_TYPE", "CONSUME_PASSIVELY", "Tools", "java.lang.Thread"]),
                (&stats, &["Tools", group, "Diff Total: 0"]),
                (&units, &["physicOffset"]),
                (&direct, &["CR_SUCCESS"]),
                (&clean, &["success"]),
            ];
            let missing = parts.iter().find_map(|(command, parts)| {
                let text = &printed[*command];
                let part = parts.iter().find(|part| !text.contains(**part))?;
                Some(format!("{version} {command}: no {part} in\n{text}"))
            });
            let shown = printed[&print].matches("MSGID").count();
            let few = format!("{version} {print}: {shown} messages in\n{}", printed[&print]);
            missing.or_else(|| (shown != MESSAGES).then_some(few))
        };
        // On a busy machine a tool may give up on a call all the same: its limit is a few seconds.
        let mut printed = mqadmin(version, dir.path(), &commands);
        if let Some(lack) = lacks(&printed) {
            println!("once more, because of {lack}");
            printed = mqadmin(version, dir.path(), &commands);
        }
        assert_eq!(lacks(&printed), None);
        assert!(all(&mut conn, &format!("copy_{version}")).is_some(), "{}", printed[&copy]);
        // The consumer was made to consume one more.
        await_received(&running, before + 1);
    }

    // Back to the start: all of it comes once more, some ten seconds later.
    let before = received(&running);
    let reset = format!("resetOffsetByTime -n {n} -g {group} -t Tools -s 1000");
    let printed = mqadmin("4.9.7", dir.path(), std::slice::from_ref(&reset));
    let table: Vec<Vec<&str>> =
        rows(&printed[&reset]).into_iter().filter(|row| row[0] == broker.shard_name(0)).collect();
    assert_eq!(table.len(), QUEUES as usize, "{}", printed[&reset]);
    assert!(table.iter().all(|row| row[2] == "0"), "{}", printed[&reset]);
    await_received(&running, before + MESSAGES);

    running.process.say("stop\n");
    running.finish(Duration::from_secs(60));
    // Nobody is online now: tools set the progress themselves.
    let to_start = format!("resetOffsetByTime -n {n} -g {group} -t Tools -s 1000");
    mqadmin("5.5.0", dir.path(), &[to_start]);
    for queue in 0..QUEUES {
        assert_eq!(committed(&mut conn, group, queue), 0);
    }
}
