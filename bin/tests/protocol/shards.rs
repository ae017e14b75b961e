//! Several shards in one process: each is a broker of its own.

use super::ext::Ext;
use super::fixture::{Own, Place, consumer_beat};
use super::peer::{Form, Peer};
use crate::support::Options;

#[test]
fn a_topic_that_is_made_on_one_shard_is_on_that_one_alone() {
    let own = Own::start_with("shards", Options { shards: 2, ..Options::default() });
    let places = [Place::of(&own.broker, 0), Place::of(&own.broker, 1)];
    let mut peers = places.map(|place| place.peer(Form::Json));
    let mut namesrv = Peer::open(own.place.namesrv, Form::Json);
    peers[1].call(17, &Ext::create_topic("Global", 1), &[]).ok();
    assert_eq!(peers[0].topic_config("Global"), None);
    assert!(peers[1].topic_config("Global").is_some());
    let route = namesrv.call(105, &Ext::new([("topic", "Global")]), &[]).ok().json();
    let queues = route["queueDatas"].as_array().expect("a list");
    assert_eq!(queues.len(), 1, "{route}");
    assert_eq!(queues[0]["brokerName"], own.broker.shard_name(1));
    assert_eq!(route["brokerDatas"][0]["brokerAddrs"]["0"], places[1].main.to_string());
    // What is asked with another shard's address is not there.
    let reply = peers[0].call(11, &Ext::pull("G", "Global", 0, 0), &[]);
    assert_eq!(reply.code, 17);
    let reply = peers[1].send("Global", &[], b"x");
    let message = peers[1].pull("Global", 0, 0).remove(0);
    assert_eq!(message.store_host, places[1].main);
    assert_eq!(reply.ext("msgId"), Some(message.id().as_str()));
    // Deleted there, kept elsewhere.
    for peer in &mut peers {
        peer.call(17, &Ext::create_topic("Both", 1), &[]).ok();
    }
    peers[0].call(215, &Ext::new([("topic", "Both")]), &[]).ok();
    assert_eq!(peers[0].topic_config("Both"), None);
    assert!(peers[1].topic_config("Both").is_some());
    // Groups, progress and members are each shard's own.
    peers[0].call(200, &Ext::none(), b"{\"groupName\":\"One\"}").ok();
    assert!(peers[0].group_config("One").is_some() && peers[1].group_config("One").is_none());
    let body = peers[1].call(202, &Ext::new([("topic", "Global")]), &[]).ok().text();
    assert!(body.contains(&format!("\"brokerName\":\"{}\"", own.broker.shard_name(1))), "{body}");
}

#[test]
fn every_shard_tells_the_members_of_a_group_in_the_order_in_which_they_came() {
    let own = Own::start_with("members", Options { shards: 2, ..Options::default() });
    let places = [Place::of(&own.broker, 0), Place::of(&own.broker, 1)];
    let ids = ["c3", "c1", "c2"];
    let mut peers: Vec<[Peer; 2]> = Vec::new();
    for id in ids {
        let mut pair = places.map(|place| place.peer(Form::Json));
        for peer in &mut pair {
            let beat = consumer_beat(id, "Members", "T", "*", 1);
            peer.call(34, &Ext::none(), beat.as_bytes()).ok();
        }
        peers.push(pair);
    }
    for peer in &mut peers[0] {
        let reply = peer.call(38, &Ext::new([("consumerGroup", "Members")]), &[]).ok();
        assert_eq!(reply.json()["consumerIdList"], serde_json::json!(ids));
    }
}
