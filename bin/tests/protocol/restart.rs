//! What an administrator or a client was told is so after a restart, also after a SIGKILL at the worst moment.

use super::ext::Ext;
use super::fixture::{Own, Place, consumer_beat, physical_offset, soon};
use super::peer::{Form, Peer};
use crate::support::{Options, ports};

#[test]
fn what_an_administrator_was_answered_outlives_a_sigkill_right_after_it() {
    let mut own = Own::start("admin", "");
    let mut peer = own.place.peer(Form::Json);
    peer.call(17, &Ext::create_topic("Gone", 2), &[]).ok();
    for _ in 0..5 {
        peer.send("Gone", &[], b"old");
    }
    peer.call(200, &Ext::none(), b"{\"groupName\":\"Dropped\",\"retryMaxTimes\":3}").ok();
    peer.call(207, &Ext::new([("groupName", "Dropped")]), &[]).ok();
    peer.call(215, &Ext::new([("topic", "Gone")]), &[]).ok();
    own.broker.sigkill();
    own.broker.start();
    let mut peer = own.place.peer(Form::Json);
    assert_eq!(peer.topic_config("Gone"), None, "a deleted topic is back");
    assert_eq!(peer.group_config("Dropped"), None);
    assert_eq!(peer.max_offset("Gone", 0), 0, "a deleted topic's messages are back");
    // It starts over, and goes on from there.
    peer.call(17, &Ext::create_topic("Gone", 3), &[]).ok();
    own.broker.sigkill();
    own.broker.start();
    let mut peer = own.place.peer(Form::Json);
    assert_eq!(peer.topic_config("Gone").expect("the topic")["writeQueueNums"], 3);
    assert_eq!(peer.send("Gone", &[], b"new").number("queueOffset"), 0);
    peer.call(200, &Ext::none(), b"{\"groupName\":\"Kept\",\"retryMaxTimes\":4}").ok();
    own.broker.sigkill();
    own.broker.start();
    let mut peer = own.place.peer(Form::Json);
    assert_eq!(peer.group_config("Kept").expect("the group")["retryMaxTimes"], 4);
    let messages = peer.pull("Gone", 0, 0);
    assert_eq!((messages.len(), messages[0].text().as_str()), (1, "new"));
    assert_eq!(peer.send("Gone", &[], b"newer").number("queueOffset"), 1);
}

#[test]
fn a_topic_that_a_send_made_is_there_after_a_sigkill_right_after_its_answer() {
    let mut own = Own::start("autotopic", "");
    for round in 0..3 {
        let topic = format!("Auto{round}");
        let mut peer = own.place.peer(Form::Json);
        let ext = Ext::send(&topic).with("d", 6).with("e", 5);
        peer.call(310, &ext, b"acknowledged").ok();
        own.broker.sigkill();
        own.broker.start();
        let mut peer = own.place.peer(Form::Json);
        let config = peer.topic_config(&topic).unwrap_or_else(|| panic!("{topic} is gone"));
        assert_eq!((&config["readQueueNums"], &config["perm"]), (&6.into(), &6.into()), "{config}");
        assert_eq!(peer.pull(&topic, 5, 0)[0].text(), "acknowledged");
    }
}

#[test]
fn a_clean_stop_keeps_everything_that_a_client_was_told() {
    let mut own = Own::start("clean", "[drain]\nserve_ms = 0\n");
    let mut peer = own.place.peer(Form::Json);
    peer.send("Clean", &[("KEYS", "k")], b"kept");
    peer.send("Clean", &[("DELAY", "1")], b"late");
    let commit = Ext::queue("Clean", 0).with("consumerGroup", "G");
    peer.call(15, &commit.clone().with("commitOffset", 1), &[]).ok();
    let (status, _) = own.broker.terminate(std::time::Duration::from_secs(10));
    assert_eq!(status.code(), Some(0));
    own.broker.start();
    let mut peer = own.place.peer(Form::Json);
    assert_eq!(peer.call(14, &commit, &[]).ok().number("offset"), 1);
    assert_eq!(peer.pull("Clean", 0, 0)[0].text(), "kept");
    // Delivered once, whether before or after the stop.
    assert_eq!(peer.pull("Clean", 0, 1)[0].text(), "late");
    assert!(peer.group_config("TOOLS_CONSUMER").is_some());
    let query = Ext::new([("topic", "Clean"), ("key", "k"), ("maxNum", "32")])
        .with("beginTimestamp", 0)
        .with("endTimestamp", i64::MAX);
    peer.call(12, &query, &[]).ok();
}

#[test]
fn a_pull_by_a_registered_subscription_is_served_again_from_the_first_heartbeat_on() {
    let mut own = Own::start("resubscribe", "");
    let beat = consumer_beat("c", "G", "Sub", "*", 7);
    let registered = Ext::pull("G", "Sub", 0, 0).with("sysFlag", 0).with("subVersion", 7);
    let registered = registered.without("subscription");
    let mut peer = own.place.peer(Form::Json);
    peer.send("Sub", &[], b"x");
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
    assert_eq!(peer.call(11, &registered, &[]).code, 0);
    own.broker.sigkill();
    own.broker.start();
    let mut peer = own.place.peer(Form::Json);
    assert_eq!(peer.call(11, &registered, &[]).code, 24);
    // One that brings its subscription along needs no registration.
    assert_eq!(peer.call(11, &Ext::pull("G", "Sub", 0, 0), &[]).code, 0);
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
    assert_eq!(peer.call(11, &registered, &[]).code, 0);
}

#[test]
fn keys_are_found_after_a_sigkill_however_many_index_files_there_are() {
    let options = Options {
        store_keys: "index_slots = 64\nindex_entries = 50\n".to_owned(),
        config: "[limits]\nmessage_bytes = 262144\n".to_owned(),
        segment_bytes: 1 << 20,
        ..Options::default()
    };
    let mut own = Own::start_with("index-files", options);
    let mut peer = own.place.peer(Form::Json);
    let body = vec![b'x'; 8_000];
    const COUNT: usize = 300;
    for n in 0..COUNT {
        let ext = Ext::send("Keyed").properties(&[("KEYS", &format!("k{n}"))]);
        // So small a segment may be full before the next one is ready: then the broker is busy for a moment.
        soon("room for a message", || (peer.call(310, &ext, &body).code == 0).then_some(()));
    }
    own.broker.sigkill();
    // None yet if the kill came before the first was written.
    let index = std::fs::read_dir(own.broker.shard_dir(0).join("index"));
    let files = index.map_or(0, Iterator::count);
    own.broker.start();
    let mut peer = own.place.peer(Form::Json);
    for n in 0..COUNT {
        let key = format!("k{n}");
        let ext = Ext::new([("topic", "Keyed"), ("key", key.as_str()), ("maxNum", "64")])
            .with("beginTimestamp", 0)
            .with("endTimestamp", i64::MAX);
        let reply = peer.call(12, &ext, &[]);
        assert_eq!(reply.code, 0, "{key} of {COUNT}, {files} index files: {reply:?}");
    }
    println!("{files} index files before the restart");
}

#[test]
fn the_template_of_topics_leaves_the_routes_when_topics_are_no_longer_made() {
    let mut own = Own::start("template", "");
    let mut namesrv = Peer::open(own.place.namesrv, Form::Json);
    let template = Ext::new([("topic", "TBW102")]);
    soon("the template's route", || (namesrv.call(105, &template, &[]).code == 0).then_some(()));
    own.place.peer(Form::Json).send("Made", &[], b"x");
    own.broker.sigkill();
    own.broker.options.config = "[topics]\nauto_create = false\n".to_owned();
    own.broker.start();
    let mut namesrv = Peer::open(own.place.namesrv, Form::Json);
    assert_eq!(namesrv.call(105, &Ext::new([("topic", "Made")]), &[]).code, 0);
    assert_eq!(namesrv.call(105, &template, &[]).code, 17);
    let mut peer = own.place.peer(Form::Json);
    assert_eq!(peer.call(310, &Ext::send("New"), b"x").code, 17);
    peer.send("Made", &[], b"y");
}

#[test]
fn a_message_is_found_by_its_offset_after_its_broker_moved_to_another_address() {
    let mut own = Own::start("moved", "");
    let mut peer = own.place.peer(Form::Json);
    let reply = peer.send("Moved", &[], b"here");
    let id = reply.ext("msgId").expect("an id").to_owned();
    own.broker.sigkill();
    own.broker.port = ports::broker_block(1);
    own.broker.start();
    let place = Place::of(&own.broker, 0);
    assert_ne!(place.main, own.place.main);
    let mut peer = place.peer(Form::Json);
    let message = peer.view(physical_offset(&id));
    assert_eq!((message.text().as_str(), message.store_host), ("here", own.place.main));
    assert_eq!(peer.send("Moved", &[], b"there").number("queueOffset"), 1);
}
