//! Configuration at run time: read (26) and changed (25); 329.

use std::collections::BTreeMap;

use super::ext::Ext;
use super::fixture::{Own, shared};
use super::peer::{FORMS, Form, Peer};

fn config(peer: &mut Peer) -> (String, BTreeMap<String, String>) {
    let reply = peer.call(26, &Ext::none(), &[]).ok();
    let version = reply.ext("version").expect("a version").to_owned();
    let text = reply.text();
    let pairs = text.lines().map(|line| line.split_once('=').unwrap_or_else(|| panic!("{line}")));
    (version, pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

#[test]
fn the_configuration_has_what_stock_tools_need_of_it() {
    for form in FORMS {
        let (version, pairs) = config(&mut shared().peer(form));
        let version: serde_json::Value = serde_json::from_str(&version).expect("JSON");
        assert!(version["counter"].is_i64() && version["timestamp"].is_i64(), "{version}");
        // exportConfigs and exportMetrics fail with a null error where one of these is missing.
        for key in [
            "brokerClusterName",
            "brokerId",
            "brokerName",
            "brokerRole",
            "fileReservedTime",
            "filterServerNums",
            "flushDiskType",
            "maxMessageSize",
            "messageDelayLevel",
            "msgTraceTopicName",
            "slaveReadEnable",
            "traceOn",
            "traceTopicEnable",
            "useTLS",
            "autoCreateTopicEnable",
            "autoCreateSubscriptionGroup",
            "clientCallbackExecutorThreads",
            "brokerPermission",
            "namesrvAddr",
        ] {
            assert!(pairs.contains_key(key), "{key} in {pairs:?}");
        }
        assert_eq!((pairs["brokerName"].as_str(), pairs["brokerId"].as_str()), ("broker-a", "0"));
        assert_eq!(pairs["listenPort"], shared().main.port().to_string());
        assert_eq!(pairs["flushDiskType"], "ASYNC_FLUSH");
        assert_eq!(
            pairs["messageDelayLevel"],
            "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
        );
    }
}

#[test]
fn what_can_change_changes_and_the_version_with_it() {
    let own = Own::start("config", "");
    for form in FORMS {
        let mut peer = own.place.peer(form);
        let (before, old) = config(&mut peer);
        let hours = old["fileReservedTime"].parse::<u64>().expect("hours") + 1;
        let body = format!("fileReservedTime={hours}\ndeleteWhen=02;05\n");
        peer.call(25, &Ext::none(), body.as_bytes()).ok();
        let (after, new) = config(&mut peer);
        assert_ne!(before, after);
        assert_eq!(
            (new["fileReservedTime"].as_str(), new["deleteWhen"].as_str()),
            (hours.to_string().as_str(), "02;05")
        );
        // Nothing to change is a success, and no change.
        peer.call(25, &Ext::none(), b"").ok();
        assert_eq!(config(&mut peer).0, after);
    }
}

#[test]
fn identity_paths_unknown_keys_and_wild_values_are_refused_and_change_nothing() {
    let own = Own::start("refuse", "");
    for form in FORMS {
        let mut peer = own.place.peer(form);
        let before = config(&mut peer);
        for line in [
            "brokerName=other",
            "brokerClusterName=other",
            "brokerId=1",
            "listenPort=1",
            "storePathRootDir=/tmp/x",
            "storePathCommitLog=/tmp/x",
            "brokerConfigPath=/tmp/x",
            "rocketmqHome=/tmp/x",
            "configBlackList=x",
            "noSuchKey=1",
            "brokerPermission=9",
            "fileReservedTime=never",
            "diskMaxUsedSpaceRatio=99",
            "diskMaxUsedSpaceRatio=5",
            "kvConfigPath=/etc/x",
            "configStorePath=../x",
            "filterServerNums=1",
            // Not cut at a blank, and not half applied: it takes a restart, and the refusal says so.
            "messageDelayLevel=1s 5s 10s",
        ] {
            // Together with one that could be changed: all or none.
            let body = format!("deleteWhen=01\n{line}\n");
            let reply = peer.call(25, &Ext::none(), body.as_bytes());
            assert_eq!(reply.code, 16, "{line}: {reply:?}");
            let key = line.split('=').next().expect("a key");
            assert!(reply.remark().contains(key), "{line}: {reply:?}");
            if !["brokerPermission", "fileReservedTime", "diskMaxUsedSpaceRatio"].contains(&key) {
                assert!(reply.remark().contains("configuration file and restart"), "{reply:?}");
            }
        }
        assert_ne!(peer.call(25, &Ext::none(), b"\xff\xfe=1").code, 0);
        assert_eq!(config(&mut peer), before);
    }
}

#[test]
fn expired_segments_may_be_asked_to_go() {
    let mut peer = shared().peer(Form::Json);
    let topic = super::fixture::topic(1);
    peer.send(&topic, &[], b"x");
    peer.call(329, &Ext::none(), &[]).ok();
    // What is not expired stays.
    assert_eq!(peer.pull(&topic, 0, 0).len(), 1);
}
