//! Which messages a pull returns: tags by their hash, in the request or in the group's subscription, from clients of every language.

use super::ext::Ext;
use super::fixture::{Message, consumer_beat, shared, stock, topic, unique};
use super::peer::{CPP, FORMS, Form, GO, Peer};

const TAGS: [&str; 5] = ["TagA", "TagB", "标签", "😀", "aVeryLongTagName_0123456789"];

/// One message for each tag, and one without, on queue 0.
fn tagged(peer: &mut Peer) -> String {
    let topic = topic(1);
    for tag in TAGS {
        peer.send(&topic, &[("TAGS", tag)], tag.as_bytes());
    }
    peer.send(&topic, &[], b"none");
    topic
}

#[track_caller]
fn bodies(peer: &mut Peer, ext: &Ext) -> Vec<String> {
    let reply = peer.call(11, ext, &[]);
    match reply.code {
        0 => Message::all(&reply.body).iter().map(Message::text).collect(),
        20 => {
            assert_eq!(reply.remark(), "NO_MATCHED_MESSAGE");
            // Past everything that was looked at.
            assert_eq!(reply.number("nextBeginOffset"), 6);
            Vec::new()
        }
        code => panic!("{code}: {reply:?}"),
    }
}

#[test]
fn the_subscription_in_the_request_selects_by_tags() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let topic = tagged(&mut peer);
        let mut check = |expression: Option<&str>, expected: &[&str]| {
            let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, 0).without("subscription");
            let ext = match expression {
                Some(expression) => ext.with("subscription", expression),
                None => ext,
            };
            assert_eq!(bodies(&mut peer, &ext), expected, "{expression:?}");
            let ext = ext.with("expressionType", "TAG");
            assert_eq!(bodies(&mut peer, &ext), expected, "{expression:?}");
        };
        let all = [TAGS.as_slice(), &["none"]].concat();
        check(None, &all);
        check(Some("*"), &all);
        check(Some("TagA"), &["TagA"]);
        check(Some("TagA||TagB"), &["TagA", "TagB"]);
        check(Some("  TagB || || TagA "), &["TagA", "TagB"]);
        check(Some("标签||😀"), &["标签", "😀"]);
        check(Some("aVeryLongTagName_0123456789"), &["aVeryLongTagName_0123456789"]);
        check(Some("NoSuchTag"), &[]);
        // Part of a tag is another tag.
        check(Some("Tag"), &[]);
    }
}

#[test]
fn what_is_not_asked_for_is_counted_as_looked_at() {
    let mut peer = shared().peer(Form::Json);
    let topic = tagged(&mut peer);
    let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, 0).with("subscription", "TagB");
    let reply = peer.call(11, &ext, &[]);
    assert_eq!((reply.code, reply.number("nextBeginOffset")), (0, 6));
}

#[test]
fn the_registered_subscription_selects_by_tags() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let (topic, group) = (tagged(&mut peer), unique("F"));
        let mut version = 0;
        let mut check = |expression: &str, expected: &[&str]| {
            version += 1;
            let beat = consumer_beat("c", &group, &topic, expression, version);
            peer.call(34, &Ext::none(), beat.as_bytes()).ok();
            let ext = Ext::pull(&group, &topic, 0, 0).with("sysFlag", 0).without("subscription");
            assert_eq!(
                bodies(&mut peer, &ext.with("subVersion", version)),
                expected,
                "{expression}"
            );
        };
        if stock() {
            continue; // It believes the codes, which these heartbeats leave out.
        }
        check("TagB", &["TagB"]);
        check("TagA || 标签", &["TagA", "标签"]);
        check("*", &[TAGS.as_slice(), &["none"]].concat());
    }
}

#[test]
fn hashes_that_go_takes_over_utf8_are_corrected() {
    if stock() {
        return;
    }
    let mut peer = shared().peer(Form::Json);
    (peer.language, peer.version) = (GO, 317);
    let (topic, group) = (tagged(&mut peer), unique("Go"));
    // Go sends codes as strings, and those of other letters over other units.
    let beat = format!(
        r#"{{"clientID":"go@1","consumerDataSet":[{{"groupName":"{group}","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{{"classFilterMode":false,"topic":"{topic}","subString":"标签||TagA","tagsSet":["标签","TagA"],"codeSet":["-1234567","2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}}],"unitMode":false}}],"producerDataSet":[]}}"#
    );
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
    let ext = Ext::pull(&group, &topic, 0, 0).with("sysFlag", 0).without("subscription");
    let ext = ext.with("subVersion", 1_700_000_000_000_000_000i64);
    assert_eq!(bodies(&mut peer, &ext), ["TagA", "标签"]);
}

#[test]
fn an_expression_from_cpp_without_tags_or_codes_selects() {
    if stock() {
        return;
    }
    let mut peer = shared().peer(Form::Json);
    (peer.language, peer.version) = (CPP, 333);
    let (topic, group) = (tagged(&mut peer), unique("Cpp"));
    let beat = format!(
        "{{\"clientID\":\"c2@cpp\",\"consumerDataSet\":[{{\"consumeFromWhere\":0,\"consumeType\":1,\"groupName\":\"{group}\",\"messageModel\":1,\"subscriptionDataSet\":[{{\"subString\":\"TagB\",\"subVersion\":\"100\",\"topic\":\"{topic}\"}}]}}]}}\n"
    );
    peer.call(34, &Ext::none(), beat.as_bytes()).ok();
    let ext = Ext::pull(&group, &topic, 0, 0).with("sysFlag", 0).without("subscription");
    assert_eq!(bodies(&mut peer, &ext.with("subVersion", 100)), ["TagB"]);
}

#[test]
fn tags_of_one_hash_pass_and_what_is_filtered_is_passed_over() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    // `Aa` and `BB` have one hash in Java; `C` has another.
    for n in 0..1_000 {
        let tag = if n % 500 == 7 { "BB" } else { "C" };
        peer.post(310, 0, &Ext::send(&topic).properties(&[("TAGS", tag)]), b"x");
    }
    for _ in 0..1_000 {
        peer.reply().ok();
    }
    super::fixture::settle();
    peer.send(&topic, &[("TAGS", "Aa")], b"wanted");
    let (mut offset, mut got) = (0, Vec::new());
    while offset < 1_001 {
        let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, offset).with("subscription", "Aa");
        let reply = peer.call(11, &ext, &[]);
        assert!([0, 20].contains(&reply.code), "{reply:?}");
        let next = reply.number("nextBeginOffset");
        assert!(next > offset, "stuck at {offset}: {reply:?}");
        offset = next;
        got.extend(Message::all(&reply.body).iter().map(|m| m.property("TAGS").map(str::to_owned)));
    }
    // The client looks at the tag itself.
    let expected = ["BB", "BB", "Aa"].map(|tag| Some(tag.to_owned()));
    assert_eq!(got, expected);
}
