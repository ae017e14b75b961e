//! The VIP port, two below the client port: everything but pulls.

use super::ext::Ext;
use super::fixture::{consumer_beat, shared, topic, unique};
use super::peer::{FORMS, Peer};

#[test]
fn pulls_are_not_served_there() {
    for form in FORMS {
        let mut vip = Peer::open(shared().vip, form);
        let topic = topic(1);
        for code in [11, 361] {
            let remark = format!(" request type {code} not supported");
            let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, 0);
            vip.call(code, &ext, &[]).refused(3, &remark);
        }
    }
}

#[test]
fn everything_else_is_the_same_broker() {
    for form in FORMS {
        let (mut vip, mut main) = (Peer::open(shared().vip, form), shared().peer(form));
        let (topic, group) = (unique("Vip"), unique("VipGroup"));
        vip.call(17, &Ext::create_topic(&topic, 1), &[]).ok();
        let reply = vip.send(&topic, &[("KEYS", "k")], b"vip");
        assert_eq!(main.pull(&topic, 0, 0)[0].text(), "vip");
        let offset = super::fixture::physical_offset(reply.ext("msgId").expect("an id"));
        assert_eq!(vip.view(offset).text(), "vip");
        // Stock slaves ask there for the topics.
        assert!(vip.topic_config(&topic).is_some());
        // Registrations of the main connection are seen there, and the other way round.
        let beat = consumer_beat("c", &group, &topic, "*", 1);
        main.call(34, &Ext::none(), beat.as_bytes()).ok();
        let ids = vip.call(38, &Ext::new([("consumerGroup", group.as_str())]), &[]).ok().text();
        assert_eq!(ids, "{\"consumerIdList\":[\"c\"]}");
        let commit = Ext::queue(&topic, 0).with("consumerGroup", &group);
        vip.call(15, &commit.clone().with("commitOffset", 1), &[]).ok();
        assert_eq!(main.call(14, &commit, &[]).ok().number("offset"), 1);
        let lock = format!(
            r#"{{"clientId":"c","consumerGroup":"{group}","mqSet":[{{"brokerName":"broker-a","queueId":0,"topic":"{topic}"}}]}}"#
        );
        assert!(vip.call(41, &Ext::none(), lock.as_bytes()).ok().text().contains("\"queueId\":0"));
        let back =
            Ext::new([("group", group.as_str()), ("delayLevel", "-1")]).with("offset", offset);
        vip.call(36, &back, &[]).ok();
        vip.call(28, &Ext::none(), &[]).ok();
        vip.quiet();
    }
}
