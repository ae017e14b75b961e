//! The name server over a real socket, with texts and bytes that a stock 4.9.8 name server and broker exchange.

use std::path::Path;
use std::time::Duration;

use ringmq_net::body::{
    Body, DataVersion, RegisterBroker, TopicConfig, TopicConfigTable, TopicList, body_crc32,
};
use ringmq_net::client::Client;
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::frame::SerializeType;

use super::{Namesrv, NamesrvConfig, NamesrvError};
use crate::reactor::{ReactorOptions, Seat, Stop, spawn_reactors};

const SOON: Duration = Duration::from_secs(20);

/// TopicA with queues 4/4, order and unit flag set, version counter 3.
const BODY: &str = r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":1700000000000},"topicConfigTable":{"TopicA":{"order":true,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":1,"writeQueueNums":4}}}}"#;
/// The same, compressed by a stock broker.
const BODY_ZLIB: &str = "78da63606050af564ace2fcd2b492d52b232d6512ac9cc4d2d2e49cc2d50b232343740805a0606064620160fc92fc84c76543001423385604f3f771fd7f8104777a01453742c00332112f4";

/// Runs a test on a reactor of its own, with its metronome.
fn on_reactor<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(tempfile::TempDir) -> F + Clone + Send + 'static,
) {
    let seats = vec![Seat { name: "test".to_owned(), load: tempfile::tempdir().unwrap() }];
    let options = ReactorOptions { cpus: vec![], stall: Duration::from_secs(5) };
    let reactors = spawn_reactors(seats, &options, &Stop::new(), move |_, dir| {
        let test = test.clone();
        async move {
            test(dir).await;
            Ok(())
        }
    });
    reactors.unwrap().join().unwrap();
}

/// A name server and a connection to it.
struct Ns {
    namesrv: Namesrv,
    client: Client,
}

impl Ns {
    async fn start(dir: &Path) -> Ns {
        let config = NamesrvConfig::new("127.0.0.1:0".parse().unwrap(), dir);
        let namesrv = Namesrv::start(config).await.unwrap();
        let client = Client::connect_addr(namesrv.addr().unwrap(), SOON).await.unwrap();
        Ns { namesrv, client }
    }

    async fn connect(&self) -> Client {
        Client::connect_addr(self.namesrv.addr().unwrap(), SOON).await.unwrap()
    }

    async fn call(&self, command: Command) -> Command {
        self.client.call(command, SOON).await.unwrap()
    }

    /// A call that succeeds; its body as text.
    async fn text(&self, command: Command) -> String {
        let reply = self.call(command).await;
        assert_eq!((reply.code, reply.remark), (response::SUCCESS, None));
        String::from_utf8(reply.body.to_vec()).unwrap()
    }

    async fn stop(self) {
        let Ns { namesrv, client } = self;
        client.close();
        namesrv.drain(SOON).await;
    }
}

fn register(id: i64, addr: &str, body: impl Into<Vec<u8>>) -> Command {
    let body = body.into();
    Command::request(request::REGISTER_BROKER)
        .with_ext("brokerName", "broker-a")
        .with_ext("brokerAddr", addr)
        .with_ext("clusterName", "DefaultCluster")
        .with_ext("haServerAddr", format!("{addr}2"))
        .with_ext("brokerId", id)
        .with_ext("compressed", body.first() == Some(&0x78))
        .with_ext("bodyCrc32", body_crc32(&body))
        .with_body(body)
}

fn route(topic: &str, version: i32) -> Command {
    let request = Command::request(request::GET_ROUTEINFO_BY_TOPIC).with_ext("topic", topic);
    Command { version, ..request }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn topics(n: usize, counter: i64) -> RegisterBroker {
    let topics = (0..n).map(|i| TopicConfig::new(format!("a-topic-with-a-long-name-{i:06}"), 8));
    let data_version = DataVersion { timestamp: 1, counter };
    let topics = TopicConfigTable { data_version, topics: topics.collect() };
    RegisterBroker { filter_servers: Some(Vec::new()), topics }
}

#[test]
fn routes_and_cluster_info_are_stocks_in_both_dialects() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let master = ns.call(register(0, "127.0.0.1:10911", BODY)).await;
        assert_eq!((master.code, master.body.len(), master.ext.len()), (0, 0, 0));
        let slave = ns.call(register(1, "127.0.0.1:11911", BODY)).await;
        assert_eq!(slave.ext("masterAddr"), Some("127.0.0.1:10911"));
        assert_eq!(slave.ext("haServerAddr"), Some("127.0.0.1:109112"));
        let queues = r#""filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":1,"writeQueueNums":4}]}"#;
        let strict = format!(
            r#"{{"brokerDatas":[{{"brokerAddrs":{{"0":"127.0.0.1:10911","1":"127.0.0.1:11911"}},"brokerName":"broker-a","cluster":"DefaultCluster"}}],{queues}"#
        );
        let plain = strict.replace("\"0\":", "0:").replace("\"1\":", "1:");
        assert_eq!(ns.text(route("TopicA", 409)).await, strict);
        assert_eq!(ns.text(route("TopicA", 401)).await, strict);
        assert_eq!(ns.text(route("TopicA", 317)).await, plain);
        let asked = route("TopicA", 317).with_ext("acceptStandardJsonOnly", "true");
        assert_eq!(ns.text(asked).await, strict);
        let binary = Command { serialize: SerializeType::Binary, ..route("TopicA", 409) };
        assert_eq!(ns.text(binary).await, strict);
        let cluster = r#"{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}"#;
        assert_eq!(ns.text(Command::request(request::GET_BROKER_CLUSTER_INFO)).await, cluster);
        let unknown = ns.call(route("NoSuchTopic", 409)).await;
        assert_eq!(unknown.code, response::TOPIC_NOT_EXIST);
        let remark = "No topic route info in name server for the topic: NoSuchTopic\nSee \
                      http://rocketmq.apache.org/docs/faq/ for further details.";
        assert_eq!(unknown.remark.as_deref(), Some(remark));
        ns.stop().await;
    });
}

#[test]
fn every_form_of_a_registration_is_read() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let compressed = register(0, "1:1", unhex(BODY_ZLIB));
        assert_eq!(compressed.ext("bodyCrc32"), Some("146929124"));
        assert_eq!(ns.call(compressed).await.code, 0);
        assert!(ns.text(route("TopicA", 409)).await.contains(r#""topicSysFlag":0"#));
        // 5.x brokers compress and say they did not.
        let mut unsaid = register(0, "1:2", unhex(BODY_ZLIB));
        unsaid.ext.push(("compressed".into(), "false".to_owned()));
        assert_eq!(ns.call(unsaid).await.code, 0);
        // Brokers before 3.0.11 send the topic table alone.
        let wrapper = &BODY[BODY.find(r#"{"dataVersion""#).unwrap()..BODY.len() - 1];
        let old = Command { version: 36, ..register(0, "1:3", wrapper) };
        assert_eq!(ns.call(old).await.code, 0);
        assert!(ns.text(route("TopicA", 409)).await.contains("1:3"));
        let mut wrong = register(0, "1:4", BODY);
        wrong.ext.push(("bodyCrc32".into(), "1".to_owned()));
        let wrong = ns.call(wrong).await;
        assert_eq!((wrong.code, wrong.remark.as_deref()), (1, Some("crc32 not match")));
        for bad in [b"{\"topicConfig".to_vec(), unhex("78da0102")] {
            let reply = ns.call(register(0, "1:4", bad)).await;
            assert_eq!(reply.code, response::SYSTEM_ERROR);
        }
        assert!(!ns.text(route("TopicA", 409)).await.contains("1:4"));
        // Missing fields are named, and the connection goes on.
        let nameless = ns.call(Command::request(request::REGISTER_BROKER)).await;
        assert_eq!(nameless.code, response::SYSTEM_ERROR);
        assert!(nameless.remark.unwrap().contains("brokerName"));
        ns.stop().await;
    });
}

#[test]
fn a_data_version_is_compared_for_equality() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let query = |version: &'static str| {
            Command::request(request::QUERY_DATA_VERSION)
                .with_ext("brokerName", "broker-a")
                .with_ext("brokerAddr", "1:1")
                .with_ext("clusterName", "c")
                .with_ext("brokerId", 0)
                .with_body(version)
        };
        let unknown = ns.call(query(r#"{"counter":3,"timestamp":1700000000000}"#)).await;
        assert_eq!((unknown.ext("changed"), unknown.body.len()), (Some("true"), 0));
        ns.call(register(0, "1:1", BODY)).await;
        let stored = r#"{"counter":3,"timestamp":1700000000000}"#;
        for (sent, changed) in [(stored, "false"), (r#"{"counter":2,"timestamp":1}"#, "true")] {
            let reply = ns.call(query(sent)).await;
            assert_eq!(reply.ext("changed"), Some(changed));
            assert_eq!(reply.body, stored);
        }
        ns.stop().await;
    });
}

#[test]
fn a_broker_is_gone_with_the_connection_of_its_last_registration() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let (first, second) = (ns.connect().await, ns.connect().await);
        first.call(register(0, "1:1", BODY), SOON).await.unwrap();
        second.call(register(0, "1:1", BODY), SOON).await.unwrap();
        first.close();
        // A round trip on a connection opened later: the close before it has been seen.
        while ns.namesrv.server().stats().connections > 2 {
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(ns.call(route("TopicA", 409)).await.code, 0);
        second.close();
        while ns.namesrv.server().stats().connections > 1 {
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(ns.call(route("TopicA", 409)).await.code, response::TOPIC_NOT_EXIST);
        let empty = r#"{"brokerAddrTable":{},"clusterAddrTable":{}}"#;
        assert_eq!(ns.text(Command::request(request::GET_BROKER_CLUSTER_INFO)).await, empty);
        // And with its goodbye.
        ns.call(register(0, "1:1", BODY)).await;
        let bye = Command::request(request::UNREGISTER_BROKER)
            .with_ext("brokerName", "broker-a")
            .with_ext("brokerAddr", "1:1")
            .with_ext("clusterName", "DefaultCluster")
            .with_ext("brokerId", 0);
        assert_eq!(ns.call(bye).await.code, 0);
        assert_eq!(ns.call(route("TopicA", 409)).await.code, response::TOPIC_NOT_EXIST);
        ns.stop().await;
    });
}

#[test]
fn wiped_write_permission_survives_registration_and_restart() {
    on_reactor(async |dir| {
        let named = |code| Command::request(code).with_ext("brokerName", "broker-a");
        let mut ns = Ns::start(dir.path()).await;
        ns.call(register(0, "1:1", BODY)).await;
        let wiped = ns.call(named(request::WIPE_WRITE_PERM_OF_BROKER)).await;
        assert_eq!(wiped.ext("wipeTopicCount"), Some("1"));
        for counter in 4..7 {
            let body = BODY.replace("\"counter\":3", &format!("\"counter\":{counter}"));
            ns.call(register(0, "1:1", body)).await;
            assert!(ns.text(route("TopicA", 409)).await.contains("\"perm\":4"));
            if counter == 5 {
                ns.stop().await;
                ns = Ns::start(dir.path()).await;
            }
        }
        let added = ns.call(named(request::ADD_WRITE_PERM_OF_BROKER)).await;
        assert_eq!(added.ext("addTopicCount"), Some("1"));
        assert!(ns.text(route("TopicA", 409)).await.contains("\"perm\":6"));
        ns.stop().await;
        ns = Ns::start(dir.path()).await;
        ns.call(register(0, "1:1", BODY)).await;
        assert!(ns.text(route("TopicA", 409)).await.contains("\"perm\":6"));
        ns.stop().await;
    });
}

#[test]
fn key_value_pairs_are_durable_when_answered() {
    on_reactor(async |dir| {
        let kv = |code, namespace: &'static str, key: &'static str| {
            Command::request(code).with_ext("namespace", namespace).with_ext("key", key)
        };
        let order = "ORDER_TOPIC_CONFIG";
        let list = |namespace: &'static str| {
            Command::request(request::GET_KVLIST_BY_NAMESPACE).with_ext("namespace", namespace)
        };
        let mut ns = Ns::start(dir.path()).await;
        assert_eq!(ns.call(register(0, "1:1", BODY)).await.body.len(), 0);
        let unknown = ns.call(list(order)).await;
        assert_eq!(unknown.code, response::QUERY_NOT_FOUND);
        assert_eq!(
            unknown.remark.as_deref(),
            Some("No config item, Namespace: ORDER_TOPIC_CONFIG")
        );
        let put = kv(request::PUT_KV_CONFIG, order, "TopicOrd").with_ext("value", "broker-a:8");
        assert_eq!(ns.call(put).await.code, 0);
        let file = std::fs::read_to_string(dir.path().join("kvConfig.json")).unwrap();
        assert_eq!(file, r#"{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrd":"broker-a:8"}}}"#);
        ns.stop().await;
        ns = Ns::start(dir.path()).await;
        let table = r#"{"table":{"TopicOrd":"broker-a:8"}}"#;
        assert_eq!(ns.text(list(order)).await, table);
        assert_eq!(ns.call(register(0, "1:1", BODY)).await.body, table);
        let got = ns.call(kv(request::GET_KV_CONFIG, order, "TopicOrd")).await;
        assert_eq!(got.ext("value"), Some("broker-a:8"));
        assert_eq!(ns.call(kv(request::DELETE_KV_CONFIG, order, "TopicOrd")).await.code, 0);
        let gone = ns.call(kv(request::GET_KV_CONFIG, order, "TopicOrd")).await;
        assert_eq!(gone.code, response::QUERY_NOT_FOUND);
        let remark = "No config item, Namespace: ORDER_TOPIC_CONFIG Key: TopicOrd";
        assert_eq!(gone.remark.as_deref(), Some(remark));
        // The emptied namespace stays: brokers clear their order flags by it.
        assert_eq!(ns.text(list(order)).await, r#"{"table":{}}"#);
        let nameless = ns.call(Command::request(request::PUT_KV_CONFIG)).await;
        assert_eq!(nameless.remark.as_deref(), Some("namespace or key is null"));
        ns.stop().await;
    });
}

#[test]
fn a_change_that_cannot_be_saved_is_not_confirmed() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        // A directory where the new content would be written first.
        std::fs::create_dir_all(dir.path().join("kvConfig.json.tmp")).unwrap();
        let put = Command::request(request::PUT_KV_CONFIG)
            .with_ext("namespace", "n")
            .with_ext("key", "k")
            .with_ext("value", "v");
        let reply = ns.call(put).await;
        assert_eq!(reply.code, response::SYSTEM_ERROR);
        assert!(reply.remark.unwrap().contains("kvConfig.json"));
        ns.stop().await;
    });
}

#[test]
fn an_unusable_file_is_refused_by_name() {
    on_reactor(async |dir| {
        for file in ["kvConfig.json", "wipedBrokers.json"] {
            let path = dir.path().join(file);
            std::fs::write(&path, b"{\"broken").unwrap();
            let config = NamesrvConfig::new("127.0.0.1:0".parse().unwrap(), dir.path());
            let error = Namesrv::start(config).await.err().unwrap();
            assert!(matches!(error, NamesrvError::File(_)));
            assert!(error.to_string().contains(file), "{error}");
            std::fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn topic_lists_are_told_apart() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let mut body = topics(0, 1);
        for (name, flag) in [("plain", 0), ("unit", 1), ("sub", 2), ("both", 3)] {
            let topic = TopicConfig { topic_sys_flag: flag, ..TopicConfig::new(name, 1) };
            body.topics.topics.push(topic);
        }
        ns.call(register(0, "127.0.0.1:10911", body.to_json())).await;
        let list = async |command: Command| {
            let body = ns.call(command).await.body;
            let mut topics = TopicList::from_json(&body).unwrap().topics;
            topics.sort();
            topics
        };
        let of = |code| Command::request(code);
        let all = ["both", "plain", "sub", "unit"];
        assert_eq!(list(of(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).await, all);
        let cluster = of(request::GET_TOPICS_BY_CLUSTER).with_ext("cluster", "DefaultCluster");
        assert_eq!(list(cluster).await, all);
        let nowhere = of(request::GET_TOPICS_BY_CLUSTER).with_ext("cluster", "nowhere");
        assert_eq!(ns.text(nowhere).await, r#"{"topicList":[]}"#);
        assert_eq!(list(of(request::GET_UNIT_TOPIC_LIST)).await, ["both", "unit"]);
        assert_eq!(list(of(request::GET_HAS_UNIT_SUB_TOPIC_LIST)).await, ["both", "sub"]);
        assert_eq!(list(of(request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)).await, ["sub"]);
        assert_eq!(
            ns.text(of(request::GET_SYSTEM_TOPIC_LIST_FROM_NS)).await,
            r#"{"brokerAddr":"127.0.0.1:10911","topicList":["DefaultCluster","broker-a"]}"#
        );
        let delete = of(request::DELETE_TOPIC_IN_NAMESRV).with_ext("topic", "unit");
        ns.call(delete.clone().with_ext("clusterName", "nowhere")).await;
        assert_eq!(ns.call(route("unit", 409)).await.code, 0);
        ns.call(delete.with_ext("clusterName", "DefaultCluster")).await;
        assert_eq!(ns.call(route("unit", 409)).await.code, response::TOPIC_NOT_EXIST);
        ns.stop().await;
    });
}

#[test]
fn configuration_over_the_wire() {
    on_reactor(async |dir| {
        let mut ns = Ns::start(dir.path()).await;
        let update =
            |text: &'static str| Command::request(request::UPDATE_NAMESRV_CONFIG).with_body(text);
        let order = Command::request(request::PUT_KV_CONFIG)
            .with_ext("namespace", "ORDER_TOPIC_CONFIG")
            .with_ext("key", "TopicA")
            .with_ext("value", "broker-a:8");
        ns.call(order).await;
        ns.call(register(0, "1:1", BODY)).await;
        assert!(!ns.text(route("TopicA", 409)).await.contains("orderTopicConf"));
        let refused = ns.call(update("orderMessageEnable=true\nkvConfigPath=/x")).await;
        assert_eq!(refused.code, response::NO_PERMISSION);
        assert_eq!(refused.remark.as_deref(), Some("Can not update config in black list."));
        let fixed = ns.call(update("orderMessageEnable=true\nlistenPort=1")).await;
        assert!(fixed.remark.unwrap().contains("listenPort"));
        assert!(!ns.text(route("TopicA", 409)).await.contains("orderTopicConf"));
        assert_eq!(ns.call(update("orderMessageEnable=true\nunknown=1")).await.code, 0);
        for _ in 0..2 {
            let expected = r#""filterServerTable":{},"orderTopicConf":"broker-a:8","queueDatas":"#;
            assert!(ns.text(route("TopicA", 409)).await.contains(expected));
            let config = ns.text(Command::request(request::GET_NAMESRV_CONFIG)).await;
            assert!(config.lines().any(|line| line == "orderMessageEnable=true"), "{config}");
            assert!(config.contains("kvConfigPath="));
            ns.stop().await;
            ns = Ns::start(dir.path()).await;
            ns.call(register(0, "1:1", BODY)).await;
        }
        ns.stop().await;
    });
}

#[test]
fn unknown_requests_are_answered_and_oneway_ones_are_not() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        for code in [904, 901, 217, 10, -5] {
            let reply = ns.call(Command::request(code)).await;
            let remark = format!(" request type {code} not supported");
            assert_eq!((reply.code, reply.remark), (3, Some(remark)));
        }
        let before = ns.namesrv.server().stats().bytes_out;
        ns.client.oneway(Command::request(904)).unwrap();
        ns.client.oneway(register(0, "1:1", BODY)).unwrap();
        let reply = ns.call(Command::request(904)).await;
        let sent = ns.namesrv.server().stats().bytes_out - before;
        assert_eq!(reply.code, 3);
        assert!(sent < 300, "{sent} bytes for one reply");
        assert_eq!(ns.call(route("TopicA", 409)).await.code, 0, "the oneway registration counted");
        ns.stop().await;
    });
}

#[test]
fn a_large_table_fits_the_frames() {
    const TOPICS: usize = 60_000;
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let plain = topics(TOPICS, 1).to_json();
        assert!(plain.len() < 16 << 20, "{}", plain.len());
        assert_eq!(ns.call(register(0, "1:1", plain.clone())).await.code, 0);
        assert_eq!(ns.call(register(0, "1:1", plain)).await.code, 0);
        let packed = topics(TOPICS + 1, 2).to_compressed();
        assert_eq!(ns.call(register(0, "1:1", packed)).await.code, 0);
        let body =
            ns.call(Command::request(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).await.body;
        assert_eq!(TopicList::from_json(&body).unwrap().topics.len(), TOPICS + 1);
        let last = format!("a-topic-with-a-long-name-{TOPICS:06}");
        assert!(ns.text(route(&last, 409)).await.len() < 400);
        ns.stop().await;
    });
}

#[test]
fn a_broker_name_belongs_to_one_cluster_at_a_time() {
    on_reactor(async |dir| {
        let ns = Ns::start(dir.path()).await;
        let in_cluster = |cluster: &str, addr: &str, version: i64| {
            let mut command = register(0, addr, topics(1, version).to_json());
            for (name, value) in &mut command.ext {
                if name == "clusterName" {
                    *value = cluster.to_owned();
                }
            }
            command
        };
        assert_eq!(ns.call(in_cluster("east", "1:1", 1)).await.code, 0);
        let other = ns.connect().await;
        let refused = other.call(in_cluster("west", "2:2", 2), SOON).await.unwrap();
        assert_eq!(refused.code, response::SYSTEM_ERROR);
        let remark = refused.remark.unwrap_or_default();
        assert!(remark.contains("east") && remark.contains("west"), "{remark}");
        let cluster = ns.text(Command::request(request::GET_BROKER_CLUSTER_INFO)).await;
        assert!(cluster.contains("1:1") && !cluster.contains("2:2"), "{cluster}");
        assert!(!cluster.contains("west"), "{cluster}");
        // A broker that moves itself is not in its own way.
        assert_eq!(ns.call(in_cluster("west", "1:1", 3)).await.code, 0);
        ns.stop().await;
    });
}
