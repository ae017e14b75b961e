//! The hashes that a broker, its store files and its clients must agree on.

/// Continues Java's `String.hashCode` from `hash` over the UTF-16 units of `text`.
fn continue_java_hash(mut hash: i32, text: &str) -> i32 {
    if !text.is_ascii() {
        return text
            .encode_utf16()
            .fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    }
    // Four bytes a step: the chain of multiplications, not the loads, is what takes the time.
    let mut chunks = text.as_bytes().chunks_exact(4);
    for chunk in &mut chunks {
        let step = i32::from(chunk[0]) * 29_791
            + i32::from(chunk[1]) * 961
            + i32::from(chunk[2]) * 31
            + i32::from(chunk[3]);
        hash = hash.wrapping_mul(923_521).wrapping_add(step);
    }
    for byte in chunks.remainder() {
        hash = hash.wrapping_mul(31).wrapping_add(i32::from(*byte));
    }
    hash
}

/// Java's `String.hashCode`: `h = 31 * h + unit` over the UTF-16 units, wrapping at 32 bits.
pub fn java_hash(text: &str) -> i32 {
    continue_java_hash(0, text)
}

/// The tags code of a consume queue unit: the Java hash of the whole TAGS text, sign extended; 0 without tags.
pub fn tags_code(tags: Option<&str>) -> i64 {
    i64::from(tags.map_or(0, java_hash))
}

/// The key hash of an index entry: the absolute Java hash of `topic#key`, with -2147483648 made 0.
pub fn index_hash(topic: &str, key: &str) -> i32 {
    TopicKeyHasher::new(topic).hash(key)
}

/// [`index_hash`] for many keys of one topic: the part `topic#` is hashed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicKeyHasher {
    prefix: i32,
}

impl TopicKeyHasher {
    /// The hasher of one topic.
    pub fn new(topic: &str) -> Self {
        Self { prefix: continue_java_hash(java_hash(topic), "#") }
    }

    /// The index hash of `topic#key`, never negative.
    pub fn hash(self, key: &str) -> i32 {
        continue_java_hash(self.prefix, key).checked_abs().unwrap_or(0)
    }
}

/// The CRC field of a record: CRC-32 (IEEE) of the body as stored, with the top bit cleared; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}
