//! What becomes of a message's properties text, and its limits.

use std::collections::BTreeMap;

use super::ext::Ext;
use super::fixture::{shared, topic};
use super::peer::{FORMS, Form, Peer};

/// The stored pairs of a message that was sent with this text; none may come twice, and no separator stands at the end.
fn stored(peer: &mut Peer, text: &str) -> BTreeMap<String, String> {
    let topic = topic(1);
    peer.call(310, &Ext::send(&topic).with("i", text), b"x").ok();
    let properties = peer.pull(&topic, 0, 0).remove(0).properties;
    assert!(!properties.ends_with('\u{2}'), "{properties:?}");
    let pairs: Vec<(String, String)> = properties
        .split('\u{2}')
        .map(|pair| pair.split_once('\u{1}').unwrap_or_else(|| panic!("{properties:?}")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    // Of a repeated name the last holds, for every reader.
    pairs.into_iter().collect()
}

#[test]
fn the_text_is_parsed_by_stocks_rules_and_the_cluster_added() {
    for form in FORMS {
        let mut peer = shared().peer(form);
        let mut check = |text: &str, expected: &[(&str, &str)]| {
            let mut stored = stored(&mut peer, text);
            assert_eq!(stored.remove("CLUSTER").as_deref(), Some("DefaultCluster"), "{text:?}");
            let expected: BTreeMap<String, String> =
                expected.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            assert_eq!(stored, expected, "{text:?}");
        };
        check("", &[]);
        check("TAGS\u{1}TagA\u{2}k\u{1}v", &[("TAGS", "TagA"), ("k", "v")]);
        check("TAGS\u{1}TagA\u{2}k\u{1}v\u{2}", &[("TAGS", "TagA"), ("k", "v")]);
        check("a\u{1}\u{2}b\u{1}x", &[("b", "x")]);
        check("ab\u{2}b\u{1}c", &[("b", "c")]);
        check("\u{1}x\u{2}y\u{1}z", &[("y", "z")]);
        check("k\u{1}v1\u{1}v2\u{2}", &[("k", "v1\u{1}v2")]);
        check("k\u{1}first\u{2}k\u{1}last", &[("k", "last")]);
        check("CLUSTER\u{1}Another", &[]);
        check(
            "键\u{1}值😀\u{2}K-1\u{1}\"quoted\" \\ text\t",
            &[("键", "值😀"), ("K-1", "\"quoted\" \\ text\t")],
        );
        // WAIT is for this call alone.
        check("WAIT\u{1}true\u{2}k\u{1}v", &[("k", "v")]);
        check("WAIT\u{1}false", &[]);
    }
}

#[test]
fn properties_longer_than_a_record_takes_are_13() {
    // What the broker adds counts: `CLUSTER=DefaultCluster` and the separator before it.
    const ROOM: usize = 32_767 - "k".len() - 1 - 1 - "CLUSTER".len() - 1 - "DefaultCluster".len();
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let mut send =
        |value: &str| peer.call(310, &Ext::send(&topic).properties(&[("k", value)]), b"x");
    send(&"v".repeat(ROOM)).ok();
    let remark = "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg properties length limit 32KB.";
    send(&"v".repeat(ROOM + 1)).refused(13, remark);
    // Fewer characters than the limit, more bytes.
    send(&"值".repeat(ROOM / 3 + 1)).refused(13, remark);
    send(&"值".repeat(ROOM / 3)).ok();
    assert_eq!(peer.max_offset(&topic, 0), 2);
}

#[test]
fn a_nul_in_properties_is_refused() {
    if super::fixture::stock() {
        return;
    }
    // A record with a NUL in its properties could not be told from a torn one after a crash.
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    let reply = peer.call(310, &Ext::send(&topic).properties(&[("k", "a\0b")]), b"x");
    assert_eq!(reply.code, 13);
    assert_eq!(peer.max_offset(&topic, 0), 0);
}

#[test]
fn separators_within_names_and_values_mix_nothing_up() {
    let mut peer = shared().peer(Form::Json);
    let topic = topic(1);
    // What a client that checks nothing makes of a value with a separator in it, of a name with one, of no name, of nothing.
    for text in [
        "k\u{1}a\u{2}b\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}key",
        "n\u{1}m\u{1}v\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}key",
        "\u{1}v\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}key",
        "\u{2}\u{2}TAGS\u{1}TagA\u{2}\u{2}KEYS\u{1}key\u{2}\u{2}",
        "TAGS\u{1}TagB\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}other\u{2}KEYS\u{1}key",
    ] {
        let reply = peer.call(310, &Ext::send(&topic).with("i", text), b"x").ok();
        let at = reply.number("queueOffset");
        let message = peer.pull(&topic, 0, at).remove(0);
        assert_eq!(message.property("TAGS"), Some("TagA"), "{text:?}");
        assert_eq!(message.property("KEYS"), Some("key"), "{text:?}");
        let ext = Ext::pull("TOOLS_CONSUMER", &topic, 0, at).with("subscription", "TagA");
        assert_eq!(peer.call(11, &ext, &[]).code, 0, "{text:?}");
    }
    let ext = Ext::new([("topic", topic.as_str()), ("key", "key"), ("maxNum", "64")])
        .with("beginTimestamp", 0)
        .with("endTimestamp", i64::MAX);
    let found = super::fixture::soon("all in the index", || {
        let reply = peer.call(12, &ext, &[]);
        let found = super::fixture::Message::all(&reply.body).len();
        (reply.code == 0 && found == 5).then_some(found)
    });
    assert_eq!(found, 5);
}
