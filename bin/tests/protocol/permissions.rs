//! The broker's own permission, and topics that are ordered.

use super::ext::Ext;
use super::fixture::{Own, physical_offset, soon};
use super::peer::{FORMS, Form, Peer};

fn set(peer: &mut Peer, permission: i32) {
    let body = format!("brokerPermission={permission}\n");
    peer.call(25, &Ext::none(), body.as_bytes()).ok();
}

#[test]
fn without_read_permission_no_pull_is_served() {
    let own = Own::start("noread", "");
    for form in FORMS {
        let mut peer = own.place.peer(form);
        peer.send("Perm", &[], b"x");
        set(&mut peer, 2);
        for code in [11, 361] {
            // Before every other check.
            let ext = Ext::pull("no group!", "NoSuchTopic", 0, 0);
            peer.call(code, &ext, &[])
                .refused(16, "the broker[127.0.0.1] pulling message is forbidden");
        }
        peer.send("Perm", &[], b"x");
        set(&mut peer, 6);
        assert_eq!(peer.call(11, &Ext::pull("G", "Perm", 0, 0), &[]).code, 0);
    }
}

#[test]
fn without_write_permission_ordered_topics_and_returned_messages_are_refused() {
    let own = Own::start("nowrite", "");
    let mut peer = own.place.peer(Form::Json);
    // The name server lists a topic as ordered; the broker takes that from the answer to its next registration.
    let mut namesrv = Peer::open(own.place.namesrv, Form::Json);
    let order = Ext::new([
        ("namespace", "ORDER_TOPIC_CONFIG"),
        ("key", "Ordered"),
        ("value", "broker-a:1"),
    ]);
    namesrv.call(100, &order, &[]).ok();
    for topic in ["Ordered", "Plain"] {
        peer.call(17, &Ext::create_topic(topic, 1), &[]).ok();
    }
    soon("the topic to be ordered", || {
        let ordered = peer.topic_config("Ordered").expect("the topic")["order"] == true;
        ordered.then_some(())
    });
    let reply = peer.send("Ordered", &[], b"x");
    let offset = physical_offset(reply.ext("msgId").expect("an id"));
    for form in FORMS {
        let mut peer = own.place.peer(form);
        set(&mut peer, 4);
        let remark = "the broker[127.0.0.1] sending message is forbidden";
        for code in [10, 310, 320] {
            // Before the check of the queue id.
            let ext = Ext::send("Ordered").with("e", 99).named_for(code);
            let reply = peer.call(code, &ext, b"x").refused(16, remark);
            assert_eq!(reply.ext("TRACE_ON"), Some("true"));
        }
        // Others are sent on: clients stop by the route.
        peer.send("Plain", &[], b"x");
        let back = Ext::new([("group", "Back"), ("delayLevel", "0")]).with("offset", offset);
        peer.call(36, &back, &[]).refused(16, remark);
        // The route says so: permissions go to the name servers with the next registration.
        soon("the route without write permission", || {
            let route = namesrv.call(105, &Ext::new([("topic", "Plain")]), &[]).ok().json();
            (route["queueDatas"][0]["perm"] == 4).then_some(())
        });
        set(&mut peer, 6);
        peer.send("Ordered", &[], b"x");
        peer.call(36, &back, &[]).ok();
        soon("the route with it again", || {
            let route = namesrv.call(105, &Ext::new([("topic", "Plain")]), &[]).ok().json();
            (route["queueDatas"][0]["perm"] == 6).then_some(())
        });
    }
}

#[test]
fn where_nothing_is_made_by_itself_unknown_topics_and_groups_are_refused() {
    let own = Own::start("noauto", "[topics]\nauto_create = false\nauto_create_groups = false\n");
    for form in FORMS {
        let mut peer = own.place.peer(form);
        let reply = peer.call(310, &Ext::send("Unknown"), b"x");
        let faq = super::fixture::FAQ;
        reply.refused(17, &format!("topic[Unknown] not exist, apply first please!{faq}"));
        // Nothing is a template then; stock makes topics after those of cluster and broker all the same.
        for template in ["TBW102", "DefaultCluster", "broker-a"] {
            let reply = peer.call(310, &Ext::send("Unknown").with("c", template), b"x");
            reply.refused(17, &format!("topic[Unknown] not exist, apply first please!{faq}"));
        }
        assert_eq!(peer.topic_config("Unknown"), None);
        let made = format!("Made{form:?}");
        peer.call(17, &Ext::create_topic(&made, 1), &[]).ok();
        peer.send(&made, &[], b"x");
        // A retry topic is made in any case; its group is not.
        let reply = peer.call(310, &Ext::send("%RETRY%Unknown"), b"x");
        reply.refused(26, &format!("subscription group not exist, Unknown {faq}"));
        let reply = peer.call(11, &Ext::pull("Unknown", &made, 0, 0), &[]);
        reply.refused(26, &format!("subscription group [Unknown] does not exist, {faq}"));
        let back = Ext::new([("group", "Unknown"), ("delayLevel", "0"), ("offset", "0")]);
        peer.call(36, &back, &[])
            .refused(26, &format!("subscription group not exist, Unknown {faq}"));
        // Stock's own groups are made all the same.
        assert_eq!(peer.call(11, &Ext::pull("CID_RMQ_SYS_X", &made, 0, 0), &[]).code, 0);
        peer.call(200, &Ext::none(), b"{\"groupName\":\"Known\"}").ok();
        assert_eq!(peer.call(11, &Ext::pull("Known", &made, 0, 0), &[]).code, 0);
    }
}
