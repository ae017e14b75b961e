//! Records, ids and hashes against bytes that stock RocketMQ 4.9.8 (and 4.0.0) wrote.

use ringmq_net::record::{
    BatchBody, BatchTexts, CheckResult, CheckRule, MAGIC_BLANK, OffsetMessageId, Properties,
    PropertiesRewriter, RecordFields, body_crc, check, decode, encode_blank, index_hash, java_hash,
    tags_code,
};

fn vector(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/vectors/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("vector file");
    let hex: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let digits: Vec<u8> =
        hex.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The records of a vector whose first record stands at the physical offset that it claims.
fn records(bytes: &[u8]) -> Vec<RecordFields<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let position = match decode(&bytes[at..]) {
            Ok(record) => record.physical_offset() as u64,
            Err(_) => break,
        };
        match check(&bytes[at..], position, CheckRule::Exact) {
            CheckResult::Good(record) => {
                assert_eq!(record.bytes().len(), record.total_size());
                found.push(record.fields());
                at += record.total_size();
            }
            other => panic!("record at {at}: {other:?}"),
        }
    }
    found
}

#[test]
fn every_stock_record_decodes_and_encodes_to_the_same_bytes() {
    let mut count = 0;
    for name in [
        "batch_records",
        "broker_record_committed",
        "broker_record_half",
        "broker_record_half_rewritten",
        "broker_record_normal",
        "broker_record_op",
        "broker_record_retry_delivered",
        "broker_record_retry_scheduled",
        "broker_record_zlib",
        "broker_records_batch",
        "record_crc_masked",
        "record_lmq",
        "record_schedule_delivered",
        "record_schedule_level3",
        "record_schedule_level_clamped",
        "record_tran_commit_type",
        "record_tran_prepared_type",
        "record_tran_rollback_type",
        "record_v1_bornhost_v6",
        "record_v1_both_v6",
        "record_v1_empty_body",
        "record_v1_ipv4",
        "seg_file0",
        "seg_file1",
        "v400_segment_with_stale_blank",
    ] {
        let bytes = vector(name);
        let mut encoded = Vec::new();
        for record in records(&bytes) {
            let start = encoded.len();
            encoded.resize(start + record.encoded_len(), 0xEE);
            record.encode(&mut encoded[start..]);
            count += 1;
        }
        assert!(!encoded.is_empty(), "{name}");
        assert_eq!(encoded, bytes[..encoded.len()], "{name}");
        let rest = &bytes[encoded.len()..];
        match check(rest, 0, CheckRule::Exact) {
            CheckResult::Blank { size } => assert_eq!(size as usize, rest.len(), "{name}"),
            CheckResult::End => assert!(rest.iter().all(|byte| *byte == 0), "{name}"),
            CheckResult::Need { .. } => assert!(rest.is_empty(), "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(count >= 40, "only {count} records");
}

#[test]
fn the_worked_example_has_the_documented_fields() {
    let bytes = vector("record_v1_ipv4");
    let record = decode(&bytes).expect("record");
    assert_eq!(record.total_size(), 209);
    assert_eq!(record.body_crc(), 0x69C8_65ED);
    assert_eq!((record.queue_id(), record.flag(), record.queue_offset()), (3, 7, 0));
    assert_eq!(record.born_timestamp(), 1_699_999_999_000);
    assert_eq!(record.born_host().to_string(), "192.168.1.10:54321");
    assert_eq!(record.store_timestamp(), 1_700_000_000_123);
    assert_eq!(record.store_host().to_string(), "10.0.0.5:10911");
    assert_eq!(record.body(), b"Hello RocketMQ");
    assert_eq!(record.topic(), "TopicTest");
    let text = record.properties_text();
    let known = Properties::new(&text).known();
    assert_eq!(known.keys, Some("order-1 order-2"));
    assert_eq!(known.tags, Some("TagA"));
    let keys: Vec<_> = known.index_keys().collect();
    assert_eq!(keys, ["C0A8010A00002A9F0000000000000000", "order-1", "order-2"]);
}

#[test]
fn a_blank_record_is_size_and_magic() {
    let stock = vector("blank_record");
    let mut ours = vec![0xEE; 12];
    encode_blank(&mut ours);
    assert_eq!(ours, stock);
    let mut shortest = [0xEE; 8];
    encode_blank(&mut shortest);
    assert_eq!(shortest[4..], MAGIC_BLANK.to_be_bytes());
}

#[test]
fn a_batch_request_becomes_the_records_that_stock_stores() {
    let request = vector("batch_request_body");
    let stored = vector("batch_records");
    let batch = BatchBody::parse(&request).expect("batch");
    assert_eq!(batch.count(), 3);
    let mut texts = BatchTexts::default();
    texts.begin("WAIT\u{1}true\u{2}CLUSTER\u{1}DefaultCluster".as_bytes());
    let mut encoded = Vec::new();
    for (message, mut record) in batch.messages().zip(records(&stored)) {
        let inner = std::str::from_utf8(message.properties).expect("text");
        let from = texts.all().len();
        texts.push(inner).expect("properties");
        let properties = &texts.all()[from..];
        record.body = message.body;
        record.flag = message.flag;
        record.properties = properties;
        let start = encoded.len();
        encoded.resize(start + record.encoded_len(), 0);
        record.encode(&mut encoded[start..]);
    }
    assert_eq!(encoded, stored);
}

#[test]
fn hashes_are_those_of_stock() {
    let table = include_str!("vectors/hashes.tsv");
    let mut count = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('\t').collect();
        let text = if columns[0] == "(empty)" { "" } else { columns[0] };
        assert_eq!(java_hash(text).to_string(), columns[2], "{text}");
        assert_eq!(format!("{:016x}", tags_code(Some(text))), columns[3], "{text}");
        if let Some((topic, key)) = text.split_once('#') {
            assert_eq!(index_hash(topic, key).to_string(), columns[4], "{text}");
        }
        count += 1;
    }
    assert_eq!(count, 17);
    assert_eq!(tags_code(None), 0);
    assert_eq!(java_hash("标签"), 857_175);
    assert_eq!(java_hash("aVeryLongTagName_0123456789"), 1_930_230_514);
}

#[test]
fn body_crc_is_that_of_stock() {
    let table = include_str!("vectors/crc.tsv");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('\t').collect();
        let body = if columns[0] == "(empty)" { "" } else { columns[0] };
        assert_eq!(format!("{:08x}", body_crc(body.as_bytes())), columns[2], "{body}");
    }
}

#[test]
fn message_ids_have_the_documented_text() {
    let v4 = OffsetMessageId {
        store_host: "127.0.0.1:10911".parse().expect("address"),
        physical_offset: 4660,
    };
    assert_eq!(v4.to_string(), "7F00000100002A9F0000000000001234");
    let v6 = OffsetMessageId {
        store_host: "[::1]:10911".parse().expect("address"),
        physical_offset: 4660,
    };
    assert_eq!(v6.to_string(), "0000000000000000000000000000000100002A9F0000000000001234");
    for id in [v4, v6] {
        assert_eq!(OffsetMessageId::parse(&id.to_string()), Ok(id));
        assert_eq!(OffsetMessageId::parse(&id.to_string().to_lowercase()), Ok(id));
    }
    for wrong in ["", "7F", "7F0000010000FFFFG000000000001234", "7F000001000100000000000000001234"]
    {
        assert!(OffsetMessageId::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn properties_parse_like_stock() {
    let parse = |text: &'static str| Properties::new(text).iter().collect::<Vec<_>>();
    assert_eq!(parse("TAGS\u{1}TagA\u{2}k\u{1}v"), [("TAGS", "TagA"), ("k", "v")]);
    assert_eq!(parse("TAGS\u{1}TagA\u{2}k\u{1}v\u{2}"), [("TAGS", "TagA"), ("k", "v")]);
    assert_eq!(parse("a\u{1}\u{2}b\u{1}x"), [("b", "x")]);
    assert_eq!(parse("a\u{2}b\u{1}c"), [("b", "c")]);
    assert_eq!(parse("\u{1}x\u{2}y\u{1}z"), [("y", "z")]);
    assert_eq!(parse("k\u{1}v1\u{1}v2\u{2}"), [("k", "v1\u{1}v2")]);
    assert_eq!(parse(""), []);
    let repeated = Properties::new("a\u{1}1\u{2}b\u{1}2\u{2}a\u{1}3\u{2}a\u{1}");
    assert_eq!(repeated.get("a"), Some("3"));
    assert_eq!(repeated.get("c"), None);
    assert_eq!(repeated.get(""), None);
}

#[test]
fn a_send_drops_wait_and_sets_cluster() {
    let mut rewriter = PropertiesRewriter::new();
    let text =
        "WAIT\u{1}false\u{2}TAGS\u{1}TagA\u{2}CLUSTER\u{1}x\u{2}e\u{1}\u{2}UNIQ_KEY\u{1}U\u{2}";
    let known = rewriter.for_send(text, "c1").expect("rewrite");
    assert_eq!(rewriter.text(), "TAGS\u{1}TagA\u{2}UNIQ_KEY\u{1}U\u{2}CLUSTER\u{1}c1".as_bytes());
    assert_eq!((known.tags, known.uniq_key), (Some("TagA"), Some("U")));
    assert!(!known.waits());
    let known = rewriter.for_send("", "c1").expect("rewrite");
    assert_eq!(rewriter.text(), "CLUSTER\u{1}c1".as_bytes());
    assert!(known.waits());
}

#[test]
fn what_would_break_a_record_is_refused() {
    let mut rewriter = PropertiesRewriter::new();
    let nul = rewriter.for_send("k\u{1}a\0b", "c").expect_err("NUL");
    assert_eq!(nul.to_string(), "message properties hold a NUL character at byte 3: remove it");
    let long = format!("k\u{1}{}", "v".repeat(32_767 - 2 - 10));
    assert!(rewriter.for_send(&long, "c").is_ok(), "{}", long.len());
    assert!(rewriter.for_send(&format!("{long}v"), "c").is_err());
    let mut texts = BatchTexts::default();
    texts.begin("CLUSTER\u{1}c".as_bytes());
    assert!(texts.push(&long).is_ok());
    assert!(texts.push("k\u{1}\0").is_err());
    texts.begin("CLUSTER\u{1}cc".as_bytes());
    assert!(texts.push(&long).is_err());
    assert!(rewriter.rewrite("", &[], &[("REAL_TOPIC", "a\u{2}b")]).is_err());
}

#[test]
fn a_batch_level_unique_key_does_not_hide_the_individual_ones() {
    let batch = "UNIQ_KEY\u{1}BATCH\u{2}WAIT\u{1}true\u{2}CLUSTER\u{1}c";
    let mut texts = BatchTexts::default();
    texts.begin(batch.as_bytes());
    let known = texts.push("UNIQ_KEY\u{1}M0\u{2}").expect("join");
    assert_eq!(known.uniq_key, Some("M0"));
    let own = "UNIQ_KEY\u{1}M0\u{2}WAIT\u{1}true\u{2}CLUSTER\u{1}c";
    assert_eq!(texts.all(), own.as_bytes());
    texts.push("").expect("join");
    assert_eq!(texts.all(), format!("{own}{batch}").as_bytes());
    texts.begin("CLUSTER\u{1}c".as_bytes());
    texts.push("UNIQ_KEY\u{1}M0").expect("join");
    assert_eq!(texts.all(), "UNIQ_KEY\u{1}M0\u{2}CLUSTER\u{1}c".as_bytes());
}

#[test]
fn malformed_batches_are_refused() {
    let good = vector("batch_request_body");
    assert!(BatchBody::parse(&[]).is_err());
    for cut in 1..good.len() {
        let whole_messages = BatchBody::parse(&good[..cut]).is_ok_and(|batch| {
            let len: usize = batch.messages().map(|m| 22 + m.body.len() + m.properties.len()).sum();
            len == cut
        });
        assert!(whole_messages || BatchBody::parse(&good[..cut]).is_err(), "cut at {cut}");
    }
    let mut negative = good.clone();
    negative[16] = 0x80;
    assert!(BatchBody::parse(&negative).is_err());
}
