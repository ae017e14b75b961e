//! One valid request of every code, which mutation starts from. None names what belongs to the good pair in a request that may
//! change it: whoever may ask for a topic's deletion gets it, from stock as from us.

use super::request::Request;

/// Topics and groups that the hostile clients use, and create.
pub(crate) const TOPIC: &str = "Hostile";
pub(crate) const GROUP: &str = "hostile";

const SEND: [(&str, &str); 13] = [
    ("a", GROUP),
    ("b", TOPIC),
    ("c", "TBW102"),
    ("d", "4"),
    ("e", "0"),
    ("f", "0"),
    ("g", "1700000000000"),
    ("h", "0"),
    ("i", "KEYS\u{1}k\u{2}TAGS\u{1}t\u{2}UNIQ_KEY\u{1}0A0A0A0A00002A9F6C5A000000000001"),
    ("j", "0"),
    ("k", "false"),
    ("l", "16"),
    ("m", "false"),
];

const SEND_LONG: [(&str, &str); 13] = [
    ("producerGroup", GROUP),
    ("topic", TOPIC),
    ("defaultTopic", "TBW102"),
    ("defaultTopicQueueNums", "4"),
    ("queueId", "0"),
    ("sysFlag", "0"),
    ("bornTimestamp", "1700000000000"),
    ("flag", "0"),
    ("properties", "DELAY\u{1}1\u{2}TAGS\u{1}t"),
    ("reconsumeTimes", "0"),
    ("unitMode", "false"),
    ("maxReconsumeTimes", "16"),
    ("batch", "false"),
];

const PULL: [(&str, &str); 11] = [
    ("consumerGroup", GROUP),
    ("topic", TOPIC),
    ("queueId", "0"),
    ("queueOffset", "0"),
    ("maxMsgNums", "32"),
    ("sysFlag", "6"),
    ("commitOffset", "0"),
    ("suspendTimeoutMillis", "500"),
    ("subscription", "a || b"),
    ("subVersion", "0"),
    ("expressionType", "TAG"),
];

const HEARTBEAT: &str = r#"{"clientID":"10.0.0.1@hostile","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"hostile","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[97],"expressionType":"TAG","subString":"a","subVersion":1,"tagsSet":["a"],"topic":"Hostile"}],"unitMode":false}],"producerDataSet":[{"groupName":"hostile"}]}"#;
const LOCKS: &str = r#"{"clientId":"10.0.0.1@hostile","consumerGroup":"hostile","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"Hostile"}]}"#;
const GROUP_CONFIG: &str = r#"{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"hostile-set","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#;
const CHECK: &str = r#"{"clientId":"c","group":"hostile","subscriptionData":{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"Hostile"}}"#;
const VERSION: &str = r#"{"counter":1,"timestamp":1700000000000}"#;
const REGISTRATION: &str = r#"{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1700000000000},"topicConfigTable":{"Hostile":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"Hostile","topicSysFlag":0,"writeQueueNums":4}}}}"#;

/// Requests that a broker serves or refuses, and some that nobody has.
pub(crate) fn of_a_broker() -> Vec<Request> {
    let text = |code, fields: &[(&str, &str)]| Request::new(code, fields, b"");
    let queue = [("topic", TOPIC), ("queueId", "0")];
    let progress =
        [("consumerGroup", GROUP), ("topic", TOPIC), ("queueId", "0"), ("commitOffset", "5")];
    let mut all = vec![
        Request::new(10, &SEND_LONG, b"a body"),
        Request::new(310, &SEND, b"another body"),
        Request::new(320, &with(&SEND, "m", "true"), &batch()),
        // A compressed body that would be 64 MiB: the broker has no reason to look into it.
        Request::new(310, &with(&SEND, "f", "1"), &zeros_deflated()),
        text(11, &PULL),
        text(361, &PULL),
        text(
            12,
            &[
                ("topic", TOPIC),
                ("key", "k"),
                ("maxNum", "64"),
                ("beginTimestamp", "0"),
                ("endTimestamp", "9999999999999"),
            ],
        ),
        text(14, &progress[..3]),
        text(15, &progress),
        text(
            17,
            &[
                ("topic", "HostileSet"),
                ("defaultTopic", "TBW102"),
                ("readQueueNums", "4"),
                ("writeQueueNums", "4"),
                ("perm", "6"),
                ("topicFilterType", "SINGLE_TAG"),
                ("topicSysFlag", "0"),
                ("order", "false"),
            ],
        ),
        Request::new(25, &[], b"fileReservedTime=48\ndeleteWhen=04\n"),
        text(29, &[("topic", TOPIC), ("queueId", "0"), ("timestamp", "1700000000000")]),
        text(30, &queue),
        text(31, &queue),
        text(32, &queue),
        text(33, &[("offset", "0"), ("topic", TOPIC)]),
        Request::new(34, &[], HEARTBEAT.as_bytes()),
        text(35, &[("clientID", "c"), ("producerGroup", GROUP), ("consumerGroup", GROUP)]),
        text(
            36,
            &[
                ("offset", "0"),
                ("group", GROUP),
                ("delayLevel", "1"),
                ("originMsgId", "7F00000100002A9F0000000000000000"),
                ("originTopic", TOPIC),
                ("unitMode", "false"),
                ("maxReconsumeTimes", "16"),
            ],
        ),
        text(
            37,
            &[
                ("producerGroup", GROUP),
                ("tranStateTableOffset", "0"),
                ("commitLogOffset", "0"),
                ("commitOrRollback", "8"),
            ],
        ),
        text(38, &[("consumerGroup", GROUP)]),
        Request::new(41, &[], LOCKS.as_bytes()),
        Request::new(42, &[], LOCKS.as_bytes()),
        Request::new(46, &[], CHECK.as_bytes()),
        Request::new(200, &[], GROUP_CONFIG.as_bytes()),
        text(202, &[("topic", TOPIC)]),
        text(203, &[("consumerGroup", GROUP)]),
        text(204, &[("producerGroup", GROUP)]),
        text(207, &[("groupName", "hostile-set"), ("removeOffset", "true")]),
        text(208, &[("consumerGroup", GROUP), ("topic", TOPIC)]),
        text(215, &[("topic", "HostileSet")]),
        text(300, &[("topic", TOPIC)]),
        text(314, &[("srcGroup", GROUP), ("destGroup", "hostile-too"), ("topic", TOPIC)]),
        text(315, &[("statsName", "TOPIC_PUT_NUMS"), ("statsKey", TOPIC)]),
        text(
            321,
            &[
                ("topic", TOPIC),
                ("queueId", "0"),
                ("index", "0"),
                ("count", "10"),
                ("consumerGroup", GROUP),
            ],
        ),
        text(351, &[("topic", TOPIC)]),
    ];
    let bare = [21, 26, 28, 43, 45, 201, 305, 306, 307, 316, 317, 322, 328, 329, 901, 904, 31_999];
    all.extend(bare.iter().map(|code| text(*code, &[])));
    all
}

/// Requests that a name server serves or refuses.
pub(crate) fn of_a_name_server() -> Vec<Request> {
    let text = |code, fields: &[(&str, &str)]| Request::new(code, fields, b"");
    let broker = [
        ("brokerName", "hostile-broker"),
        ("brokerAddr", "10.0.0.1:10911"),
        ("clusterName", "HostileCluster"),
        ("haServerAddr", "10.0.0.1:10912"),
        ("brokerId", "0"),
        ("compressed", "false"),
        ("bodyCrc32", "0"),
    ];
    let pair = [("namespace", "Hostile"), ("key", "k"), ("value", "v")];
    let mut all = vec![
        text(100, &pair),
        text(101, &pair[..2]),
        text(102, &pair[..2]),
        Request::new(103, &broker, REGISTRATION.as_bytes()),
        Request::new(103, &with(&broker, "compressed", "true"), &zeros_deflated()),
        text(104, &broker[..5]),
        text(105, &[("topic", TOPIC)]),
        text(205, &[("brokerName", "hostile-broker")]),
        text(216, &[("topic", TOPIC)]),
        text(219, &[("namespace", "Hostile")]),
        text(224, &[("cluster", "HostileCluster")]),
        Request::new(318, &[], b"orderMessageEnable=true\n"),
        Request::new(322, &broker[..5], VERSION.as_bytes()),
        text(327, &[("brokerName", "hostile-broker")]),
    ];
    let bare = [106, 206, 304, 311, 312, 313, 319, 901, 31_999];
    all.extend(bare.iter().map(|code| text(*code, &[])));
    all
}

/// The fields with one of them changed.
fn with<'a, const N: usize>(
    fields: &[(&'a str, &'a str); N],
    name: &str,
    value: &'a str,
) -> [(&'a str, &'a str); N] {
    fields.map(|(known, old)| if known == name { (known, value) } else { (known, old) })
}

/// A batch of two small messages.
fn batch() -> Vec<u8> {
    let mut out = Vec::new();
    for body in [&b"one"[..], b"two"] {
        out.extend_from_slice(&((22 + body.len()) as u32).to_be_bytes());
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(&0u16.to_be_bytes());
    }
    out
}

/// A zlib stream of 400 KiB that inflates to 64 MiB of zeros, four times what a frame may have. Built by hand: a deflate block with fixed codes, one
/// literal zero, then copies of 258 bytes from one byte before.
pub(crate) fn zeros_deflated() -> Vec<u8> {
    const COPIES: usize = 260_000;
    let mut bits = Bits::default();
    bits.put(1, 1); // the last block
    bits.put(1, 2); // fixed codes
    bits.code(0x30, 8); // the literal 0
    for _ in 0..COPIES {
        bits.code(0b1100_0101, 8); // length 258
        bits.code(0, 5); // distance 1
    }
    bits.code(0, 7); // the end
    let mut out = vec![0x78, 0x9C];
    out.extend_from_slice(&bits.bytes());
    out.extend_from_slice(&[0; 4]); // no valid checksum, which comes too late to matter
    out
}

#[derive(Default)]
struct Bits {
    out: Vec<u8>,
    held: u64,
    count: u32,
}

impl Bits {
    fn put(&mut self, value: u64, bits: u32) {
        self.held |= value << self.count;
        self.count += bits;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// Codes go with their highest bit first.
    fn code(&mut self, value: u64, bits: u32) {
        self.put(value.reverse_bits() >> (64 - bits), bits);
    }

    fn bytes(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.out.push(self.held as u8);
        }
        self.out
    }
}
