//! What an administrator or a client was told is so after a restart, also after a SIGKILL at the worst moment.

use super::ext::Ext;
use super::fixture::Own;
use super::peer::Form;

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
