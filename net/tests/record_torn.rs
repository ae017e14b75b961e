//! Torn records: whatever subset of a record's device sectors never arrived, recovery sees it.

use proptest::prelude::*;
use ringmq_net::record::{
    CheckResult, CheckRule, PropertiesRewriter, RecordFields, SECTOR_BYTES, check, decode,
};

#[derive(Debug, Clone)]
struct Input {
    body: Vec<u8>,
    topic: String,
    client_text: String,
    cluster: String,
    v6: (bool, bool),
    position: u64,
    numbers: (i32, i32, i64, i64),
}

fn host(v6: bool) -> std::net::SocketAddr {
    // The addresses hold zero bytes on purpose.
    if v6 { "[2001:db8::7]:10911" } else { "10.0.0.5:10911" }.parse().expect("address")
}

fn input() -> impl Strategy<Value = Input> {
    let body = prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 1..40),
        prop::collection::vec(any::<u8>(), 200..2600),
        // Bodies of zeros: a lost sector may change nothing, and then the record is good.
        (1usize..2000).prop_map(|len| vec![0; len]),
        // Lengths whose low bytes are zero.
        (0u8..8, prop_oneof![Just(256usize), Just(512), Just(1024), Just(65_536)])
            .prop_map(|(seed, len)| (0..len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect()),
    ];
    let text = prop_oneof![
        Just(String::new()),
        "[a-z]{1,8}\u{1}[a-zA-Z0-9]{1,40}",
        // About 256 and its multiples, so that the length's upper or lower byte alone matters.
        (200usize..1400).prop_map(|len| format!("k\u{1}{}", "v".repeat(len))),
    ];
    // Positions around the ends of sectors, where fields are cut apart.
    let position = (0u64..2000, 0u64..512).prop_map(|(sector, within)| sector * 512 + within);
    (
        body,
        "[A-Za-z%_0-9-]{1,127}",
        text,
        "[a-z]{1,20}",
        any::<(bool, bool)>(),
        position,
        any::<(i32, i32, i64, i64)>(),
    )
        .prop_map(|(body, topic, client_text, cluster, v6, position, numbers)| Input {
            body,
            topic,
            client_text,
            cluster,
            v6,
            position,
            numbers,
        })
}

fn encode(input: &Input, with_properties: bool) -> Vec<u8> {
    let mut rewriter = PropertiesRewriter::new();
    rewriter.for_send(&input.client_text, &input.cluster).expect("a legal text");
    let record = RecordFields {
        queue_id: input.numbers.0,
        flag: input.numbers.1,
        queue_offset: input.numbers.2,
        physical_offset: input.position as i64,
        sys_flag: 0,
        born_timestamp: input.numbers.3,
        born_host: host(input.v6.0),
        store_timestamp: 1_700_000_000_123,
        store_host: host(input.v6.1),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &input.body,
        topic: &input.topic,
        properties: if with_properties { rewriter.text() } else { b"" },
    };
    let mut bytes = vec![0; record.encoded_len()];
    record.encode(&mut bytes);
    bytes
}

/// The record with the sectors of `lost` zeroed, as a reader finds it: more zeros behind.
fn tear(bytes: &[u8], position: u64, lost: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut torn = bytes.to_vec();
    for (at, byte) in torn.iter_mut().enumerate() {
        let sector = (position as usize % SECTOR_BYTES + at) / SECTOR_BYTES;
        if lost(sector) {
            *byte = 0;
        }
    }
    torn.resize(bytes.len() + 1024, 0);
    torn
}

fn good_means_identical(whole: &[u8], torn: &[u8], position: u64) -> Result<bool, TestCaseError> {
    match check(torn, position, CheckRule::Exact) {
        CheckResult::Good(record) => {
            prop_assert_eq!(record.bytes(), whole);
            Ok(true)
        }
        CheckResult::Blank { .. } => Err(TestCaseError::fail("a torn record became a BLANK")),
        CheckResult::End | CheckResult::Need { .. } | CheckResult::Bad { .. } => {
            prop_assert!(torn[..whole.len()] != *whole, "a whole record was refused");
            Ok(false)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Either byte-identical or detected, for a random subset of sectors.
    #[test]
    fn a_record_without_some_sectors_is_detected(input in input(), lost in any::<u64>(), with in any::<bool>()) {
        let whole = encode(&input, with);
        good_means_identical(&whole, &tear(&whole, input.position, |_| false), input.position)?;
        let torn = tear(&whole, input.position, |sector| lost >> (sector % 64) & 1 == 1);
        good_means_identical(&whole, &torn, input.position)?;
    }

    /// Encode and decode are inverse, and a decoded record's fields encode to the same bytes.
    #[test]
    fn a_record_decodes_to_what_was_encoded(input in input()) {
        let whole = encode(&input, true);
        let record = decode(&whole).expect("a record");
        prop_assert_eq!(record.body(), &input.body[..]);
        prop_assert_eq!(record.topic(), &input.topic);
        prop_assert_eq!(record.queue_id(), input.numbers.0);
        prop_assert_eq!(record.queue_offset(), input.numbers.2);
        prop_assert_eq!(record.born_host(), host(input.v6.0));
        prop_assert_eq!(record.store_host(), host(input.v6.1));
        let mut again = vec![0; whole.len()];
        record.fields().encode(&mut again);
        prop_assert_eq!(again, whole);
    }

    /// No bytes make the decoder or the checker panic, or read past the slice.
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>(), size in 0u32..400) {
        if magic && bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&size.to_be_bytes());
            bytes[4..8].copy_from_slice(&0xDAA3_20A7_u32.to_be_bytes());
        }
        for rule in [CheckRule::Exact, CheckRule::Stock] {
            if let CheckResult::Good(record) = check(&bytes, 0, rule) {
                prop_assert!(record.total_size() <= bytes.len());
            }
        }
        let _ = ringmq_net::record::BatchBody::parse(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The same for each single sector and each tail, at each of the 512 places of a short record within a sector: the
    /// cases where a boundary cuts through a length field.
    #[test]
    fn every_place_of_a_short_record_is_safe(input in input(), with in any::<bool>()) {
        let mut input = input;
        input.body.truncate(300);
        for within in 0..512 {
            input.position = 4096 + within;
            let whole = encode(&input, with);
            let sectors = (within as usize + whole.len()).div_ceil(SECTOR_BYTES);
            for sector in 0..sectors {
                let one = tear(&whole, input.position, |lost| lost == sector);
                good_means_identical(&whole, &one, input.position)?;
                let tail = tear(&whole, input.position, |lost| lost >= sector);
                good_means_identical(&whole, &tail, input.position)?;
                let head = tear(&whole, input.position, |lost| lost <= sector);
                good_means_identical(&whole, &head, input.position)?;
            }
        }
    }
}

/// The check must be able to fail: without the rule about zero sectors a record torn in its properties passes, as it does
/// in a stock broker.
#[test]
fn the_stock_rule_alone_misses_a_record_torn_in_its_properties() {
    let input = Input {
        body: b"body".to_vec(),
        topic: "T".to_owned(),
        client_text: format!("k\u{1}{}", "v".repeat(1500)),
        cluster: "c".to_owned(),
        v6: (false, false),
        position: 100,
        numbers: (0, 0, 0, 0),
    };
    let torn = tear(&encode(&input, true), 100, |sector| sector == 2);
    assert!(matches!(check(&torn, 100, CheckRule::Stock), CheckResult::Good(_)));
    assert!(matches!(check(&torn, 100, CheckRule::Exact), CheckResult::Bad { .. }));
}

#[test]
fn a_record_at_another_position_is_stale() {
    let bytes = encode(
        &Input {
            body: vec![1],
            topic: "T".to_owned(),
            client_text: String::new(),
            cluster: "c".to_owned(),
            v6: (false, false),
            position: 100,
            numbers: (0, 0, 0, 0),
        },
        true,
    );
    assert!(matches!(check(&bytes, 100, CheckRule::Exact), CheckResult::Good(_)));
    assert!(matches!(check(&bytes, 101, CheckRule::Stock), CheckResult::Bad { size: Some(_), .. }));
    let half = &bytes[..50];
    assert_eq!(check(half, 100, CheckRule::Exact), CheckResult::Need { len: bytes.len() });
}

/// The length of the topic is the last byte of a lost sector, whose other bytes were zeros of the body anyway; the first two
/// characters of the topic then read as a properties length that fits.
#[test]
fn a_lost_topic_length_is_detected() {
    let topic = "%%T";
    let rest = 0x2525 - topic.len();
    let properties = format!("k\u{1}{}", "v".repeat(rest - 2));
    let record = RecordFields {
        queue_id: 0,
        flag: 0,
        queue_offset: 0,
        physical_offset: 0,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: host(false),
        store_timestamp: 2,
        store_host: host(false),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &[0; 1023 - 88],
        topic,
        properties: properties.as_bytes(),
    };
    let mut whole = vec![0; record.encoded_len()];
    record.encode(&mut whole);
    assert_eq!(whole[1023], 3, "the topic length ends the second sector");
    let torn = tear(&whole, 0, |sector| sector == 1);
    match check(&torn, 0, CheckRule::Stock) {
        CheckResult::Bad { why, .. } => assert_eq!(why.to_string(), "record has no topic"),
        other => panic!("{other:?}"),
    }
}
