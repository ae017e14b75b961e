//! Test helper: bytes that a stock broker wrote.

/// The bytes of `engine/tests/vectors/<name>.hex`.
pub(crate) fn vector(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/vectors/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("vector file");
    let hex: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let digits: Vec<u8> =
        hex.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The records of a vector.
pub(crate) fn records(bytes: &[u8]) -> Vec<ringmq_net::record::RecordView<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(record) = bytes.get(at..).and_then(|rest| ringmq_net::record::decode(rest).ok())
    {
        at += record.total_size();
        found.push(record);
    }
    found
}
