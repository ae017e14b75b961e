//! The route table against a model that is too simple to be wrong: flat lists and linear scans.

use std::collections::{BTreeMap, BTreeSet};

use ringmq_net::body::DataVersion;

use super::table::{EXPIRY_MS, MASTER_ID, Queues, Registration, RouteTable};

/// One seed is one history. A failing one is printed; `RINGMQ_SEED` runs it alone.
const SEEDS: u64 = 150;
const STEPS: usize = 250;

const CLUSTERS: [&str; 3] = ["east", "west", "south"];
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const ADDRS: [&str; 6] = ["1:1", "1:2", "1:3", "2:1", "2:2", "2:3"];
const TOPICS: [&str; 5] = ["T", "U", "V", "W", "X"];

struct Rng(u64);

impl Rng {
    /// The next number below `n` (splitmix64).
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

struct ModelLive {
    addr: &'static str,
    seen_ms: i64,
    version: DataVersion,
    conn: u64,
    ha: String,
}

#[derive(Default)]
struct Model {
    members: Vec<(&'static str, &'static str)>,
    /// Cluster of the first registration of each name.
    first_cluster: Vec<(&'static str, &'static str)>,
    addrs: Vec<(&'static str, i64, &'static str)>,
    queues: Vec<(&'static str, &'static str, Queues)>,
    live: Vec<ModelLive>,
    wiped: Vec<&'static str>,
}

impl Model {
    fn register(
        &mut self,
        reg: &Registration<'static>,
        topics: &[(&'static str, Queues)],
        now_ms: i64,
    ) -> (Option<&'static str>, Option<String>) {
        if !self.members.contains(&(reg.cluster, reg.name)) {
            self.members.push((reg.cluster, reg.name));
        }
        if !self.first_cluster.iter().any(|(name, _)| *name == reg.name) {
            self.first_cluster.push((reg.name, reg.cluster));
        }
        let fresh = !self.addrs.iter().any(|(n, id, _)| *n == reg.name && *id == reg.id);
        self.addrs.retain(|(n, id, a)| *n != reg.name || (*id != reg.id && *a != reg.addr));
        self.addrs.push((reg.name, reg.id, reg.addr));
        let same = self.live.iter().any(|l| l.addr == reg.addr && l.version == reg.version);
        if reg.id == MASTER_ID && (fresh || !same) {
            for (topic, queues) in topics {
                let mut queues = *queues;
                if self.wiped.contains(&reg.name) {
                    queues.perm &= !2;
                }
                self.queues.retain(|(t, n, _)| t != topic || *n != reg.name);
                self.queues.push((topic, reg.name, queues));
            }
        }
        self.live.retain(|l| l.addr != reg.addr);
        let ha = reg.ha_addr.unwrap_or_default().to_owned();
        self.live.push(ModelLive {
            addr: reg.addr,
            seen_ms: now_ms,
            version: reg.version,
            conn: reg.conn,
            ha,
        });
        if reg.id == MASTER_ID {
            return (None, None);
        }
        let master =
            self.addrs.iter().find(|(n, id, _)| *n == reg.name && *id == MASTER_ID).map(|m| m.2);
        let live = self.live.iter().find(|l| Some(l.addr) == master);
        live.map_or((None, None), |l| (master, Some(l.ha.clone())))
    }

    fn tidy(&mut self) {
        let addrs = &self.addrs;
        let held = |name: &str| addrs.iter().any(|(n, _, _)| *n == name);
        self.members.retain(|(_, name)| held(name));
        self.first_cluster.retain(|(name, _)| held(name));
        self.queues.retain(|(_, name, _)| held(name));
    }

    fn remove(&mut self, addr: &str) {
        self.live.retain(|l| l.addr != addr);
        self.addrs.retain(|(_, _, a)| *a != addr);
        self.tidy();
    }

    fn lose(&mut self, gone: impl Fn(&ModelLive) -> bool) -> BTreeSet<String> {
        let gone: Vec<&str> = self.live.iter().filter(|l| gone(l)).map(|l| l.addr).collect();
        gone.iter().for_each(|addr| self.remove(addr));
        gone.into_iter().map(str::to_owned).collect()
    }

    fn unregister(&mut self, name: &str, addr: &str) {
        self.addrs.retain(|(n, _, a)| *n != name || *a != addr);
        if !self.addrs.iter().any(|(_, _, a)| *a == addr) {
            self.live.retain(|l| l.addr != addr);
        }
        self.tidy();
    }

    fn check(&self, table: &RouteTable) {
        let mut clusters: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (cluster, name) in &self.members {
            clusters.entry((*cluster).to_owned()).or_default().insert((*name).to_owned());
        }
        assert_eq!(table.clusters(), &clusters);
        let names: BTreeSet<&str> = self.addrs.iter().map(|(n, _, _)| *n).collect();
        assert_eq!(table.groups().keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
        for (name, group) in table.groups() {
            let addrs = self.addrs.iter().filter(|(n, _, _)| n == name);
            let addrs: BTreeMap<i64, String> =
                addrs.map(|(_, i, a)| (*i, (*a).to_owned())).collect();
            assert_eq!(group.addrs, addrs);
            let first = self.first_cluster.iter().find(|(n, _)| n == name).map(|f| f.1);
            assert_eq!(Some(group.cluster.as_str()), first);
            // Whoever stands in a route can be lost by silence.
            assert!(addrs.values().all(|addr| table.live(addr).is_some()));
        }
        for topic in TOPICS {
            let queues = self.queues.iter().filter(|(t, _, _)| *t == topic);
            let queues: BTreeMap<String, Queues> =
                queues.map(|(_, n, q)| ((*n).to_owned(), *q)).collect();
            assert_eq!(table.route(topic).cloned().unwrap_or_default(), queues);
            for cluster in CLUSTERS {
                let there = queues.keys().any(|n| self.members.contains(&(cluster, n.as_str())));
                assert_eq!(table.topics_of_cluster(cluster).any(|t| t == topic), there);
            }
        }
        let topics: BTreeSet<&str> = self.queues.iter().map(|(t, _, _)| *t).collect();
        assert_eq!(table.topics().collect::<BTreeSet<_>>(), topics);
        assert_eq!(table.counts(), (topics.len(), self.live.len()));
        for live in &self.live {
            let known = table.live(live.addr).unwrap();
            assert_eq!(
                (known.seen_ms, known.conn, known.version),
                (live.seen_ms, live.conn, live.version)
            );
        }
    }
}

fn random_registration(rng: &mut Rng) -> (Registration<'static>, Vec<(&'static str, Queues)>) {
    let version = DataVersion { timestamp: rng.below(2) as i64, counter: rng.below(3) as i64 };
    let reg = Registration {
        cluster: rng.pick(&CLUSTERS),
        name: rng.pick(&NAMES),
        addr: rng.pick(&ADDRS),
        id: rng.below(3) as i64,
        ha_addr: [None, Some("9:9"), Some("8:8")][rng.below(3)],
        version,
        conn: rng.below(8) as u64,
        mark: 0,
    };
    let topics = (0..rng.below(4)).map(|_| {
        let queues = Queues {
            read: rng.below(9) as i32,
            write: rng.below(9) as i32,
            perm: rng.below(8) as i32,
            sys_flag: rng.below(4) as i32,
        };
        (rng.pick(&TOPICS), queues)
    });
    let topics: BTreeMap<&'static str, Queues> = topics.collect();
    (reg, topics.into_iter().collect())
}

fn step(rng: &mut Rng, table: &mut RouteTable, model: &mut Model, now_ms: i64) {
    match rng.below(20) {
        0..10 => {
            let (reg, topics) = random_registration(rng);
            let got = table.register(&reg, topics.iter().copied(), None, now_ms).unwrap();
            let (master, ha) = model.register(&reg, &topics, now_ms);
            assert_eq!(got.master_addr.as_deref(), master);
            assert_eq!(got.ha_addr.unwrap_or_default(), ha.unwrap_or_default());
        }
        10 | 11 => {
            let (name, addr) = (rng.pick(&NAMES), rng.pick(&ADDRS));
            table.unregister(name, addr);
            model.unregister(name, addr);
        }
        12 => {
            let conn = rng.below(8) as u64;
            let gone: BTreeSet<String> = table.connection_closed(conn).into_iter().collect();
            assert_eq!(gone, model.lose(|live| live.conn == conn));
        }
        13 => {
            let gone: BTreeSet<String> = table.expire(now_ms).into_iter().map(|g| g.0).collect();
            assert_eq!(gone, model.lose(|live| live.seen_ms + EXPIRY_MS < now_ms));
        }
        14 => {
            let (name, queues) = (rng.pick(&NAMES), &mut model.queues);
            let count = table.wipe_write(name).unwrap();
            let mine = queues.iter_mut().filter(|(_, n, _)| *n == name);
            assert_eq!(mine.map(|(_, _, q)| q.perm &= !2).count(), count);
            model.wiped.push(name);
        }
        15 => {
            let (name, queues) = (rng.pick(&NAMES), &mut model.queues);
            let count = table.add_write(name);
            let mine = queues.iter_mut().filter(|(_, n, _)| *n == name);
            assert_eq!(mine.map(|(_, _, q)| q.perm = 6).count(), count);
            model.wiped.retain(|n| *n != name);
        }
        16 | 17 => {
            let topic = rng.pick(&TOPICS);
            let cluster = [None, Some(rng.pick(&CLUSTERS))][rng.below(2)];
            table.delete_topic(topic, cluster);
            let members = &model.members;
            model.queues.retain(|(t, n, _)| {
                *t != topic || cluster.is_some_and(|c| !members.contains(&(c, n)))
            });
        }
        _ => {
            let sent = DataVersion { timestamp: rng.below(2) as i64, counter: rng.below(3) as i64 };
            let addr = rng.pick(&ADDRS);
            let live = model.live.iter_mut().find(|l| l.addr == addr);
            let stored = live.as_ref().map(|l| l.version);
            let changed = stored != Some(sent);
            if let Some(live) = live.filter(|_| !changed) {
                live.seen_ms = now_ms;
            }
            assert_eq!(table.query_version(addr, sent, now_ms), (changed, stored));
        }
    }
}

fn history(seed: u64) {
    let mut rng = Rng(seed);
    let mut table = RouteTable::default();
    let mut model = Model::default();
    let mut now_ms = 0;
    for _ in 0..STEPS {
        now_ms += rng.below(40_000) as i64;
        step(&mut rng, &mut table, &mut model, now_ms);
        model.check(&table);
    }
}

#[test]
fn any_history_leaves_what_the_model_says() {
    let seeds = match std::env::var("RINGMQ_SEED") {
        Ok(seed) => vec![seed.parse().expect("RINGMQ_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    };
    for seed in seeds {
        if std::panic::catch_unwind(|| history(seed)).is_err() {
            panic!("failed with RINGMQ_SEED={seed}");
        }
    }
}

fn registration(addr: &'static str, id: i64, conn: u64) -> Registration<'static> {
    Registration {
        cluster: "c",
        name: "broker-a",
        addr,
        id,
        ha_addr: Some("h:1"),
        version: DataVersion { timestamp: 1, counter: 1 },
        conn,
        mark: 0,
    }
}

const Q4: Queues = Queues { read: 4, write: 4, perm: 6, sys_flag: 0 };

#[test]
fn only_the_connection_of_the_last_registration_counts() {
    let mut table = RouteTable::default();
    table.register(&registration("m:1", 0, 1), [("T", Q4)], None, 0).unwrap();
    table.register(&registration("m:1", 0, 2), [("T", Q4)], None, 0).unwrap();
    assert!(table.connection_closed(1).is_empty());
    assert!(table.route("T").is_some());
    assert_eq!(table.connection_closed(2), ["m:1"]);
    assert!(table.route("T").is_none() && table.clusters().is_empty());
}

#[test]
fn routes_outlive_the_master_as_long_as_a_slave_is_left() {
    let mut table = RouteTable::default();
    table.register(&registration("m:1", 0, 1), [("T", Q4)], None, 0).unwrap();
    let master = table.register(&registration("s:1", 1, 2), [("U", Q4)], None, 0).unwrap();
    assert_eq!(master.master_addr.as_deref(), Some("m:1"));
    assert_eq!(master.ha_addr.as_deref(), Some("h:1"));
    assert!(table.route("U").is_none(), "a slave's topics are not taken");
    table.connection_closed(1);
    assert_eq!(table.group("broker-a").unwrap().addrs, BTreeMap::from([(1, "s:1".to_owned())]));
    assert!(table.route("T").is_some());
    let alone = table.register(&registration("s:1", 1, 2), [], None, 0).unwrap();
    assert_eq!(alone.master_addr, None);
    table.unregister("broker-a", "s:1");
    assert!(table.route("T").is_none());
}

#[test]
fn an_old_master_that_leaves_does_not_take_its_successor_along() {
    let mut table = RouteTable::default();
    table.register(&registration("m:1", 0, 1), [("T", Q4)], None, 0).unwrap();
    table.register(&registration("m:2", 0, 2), [("T", Q4)], None, 0).unwrap();
    table.unregister("broker-a", "m:1");
    assert_eq!(table.group("broker-a").unwrap().addrs[&0], "m:2");
    assert!(table.live("m:1").is_none() && table.route("T").is_some());
}

#[test]
fn a_wiped_permission_holds_until_it_is_given_back() {
    let mut table = RouteTable::new(BTreeSet::from(["broker-a".to_owned()]));
    let perm = |table: &RouteTable| table.route("T").unwrap()["broker-a"].perm;
    table.register(&registration("m:1", 0, 1), [("T", Q4)], None, 0).unwrap();
    assert_eq!(perm(&table), 4, "wiped before the restart");
    let mut changed = registration("m:1", 0, 1);
    changed.version.counter += 1;
    table.register(&changed, [("T", Q4)], None, 0).unwrap();
    assert_eq!(perm(&table), 4, "wiped through a changed registration");
    assert_eq!(table.add_write("broker-a"), 1);
    assert_eq!(perm(&table), 6);
    changed.version.counter += 1;
    table.register(&changed, [("T", Q4)], None, 0).unwrap();
    assert_eq!(perm(&table), 6);
}

#[test]
fn silence_removes_after_exactly_the_expiry() {
    let mut table = RouteTable::default();
    table.register(&registration("m:1", 0, 7), [("T", Q4)], None, 1000).unwrap();
    assert!(table.expire(1000 + EXPIRY_MS).is_empty());
    assert!(!table.query_version("m:1", DataVersion { timestamp: 1, counter: 1 }, 2000).0);
    assert!(table.expire(2000 + EXPIRY_MS).is_empty());
    assert_eq!(table.expire(2001 + EXPIRY_MS), [("m:1".to_owned(), 7)]);
    assert!(table.route("T").is_none());
}

#[test]
fn a_repeated_body_is_known_only_while_nothing_changed() {
    let mut table = RouteTable::default();
    let mut reg = registration("m:1", 0, 1);
    reg.mark = 5;
    assert!(!table.is_repeated(&reg));
    table.register(&reg, [("T", Q4)], None, 0).unwrap();
    reg.conn = 2;
    assert!(table.is_repeated(&reg));
    table.touch(&reg, 50);
    assert_eq!((table.live("m:1").unwrap().conn, table.live("m:1").unwrap().seen_ms), (2, 50));
    assert!(!table.is_repeated(&Registration { mark: 6, ..reg }));
    assert!(!table.is_repeated(&Registration { id: 1, ..reg }));
    assert!(!table.is_repeated(&Registration { cluster: "other", ..reg }));
    table.register(&Registration { addr: "m:2", ..reg }, [], None, 0).unwrap();
    assert!(!table.is_repeated(&reg), "another address took the id");
}

#[test]
fn filter_servers_follow_what_the_body_says() {
    let mut table = RouteTable::default();
    let reg = registration("m:1", 0, 1);
    let servers = vec!["f:1".to_owned()];
    table.register(&reg, [], Some(servers.clone()), 0).unwrap();
    table.register(&reg, [], None, 0).unwrap();
    assert_eq!(table.live("m:1").unwrap().filter_servers, servers);
    table.register(&reg, [], Some(Vec::new()), 0).unwrap();
    assert!(table.live("m:1").unwrap().filter_servers.is_empty());
}
