//! REGISTER_BROKER (103): a broker's topics, as JSON or as a zlib stream.
//!
//! ```text
//!  zlib stream of: len, data version as JSON | n | n x (len, topic line) | len, filter servers as JSON
//!                  5.x: | m | m x (len, queue mapping as JSON), ignored here
//!  topic line: name read write perm filterType [attributes, 5.x], joined by blanks
//! ```
//! Lengths and counts are 4 bytes, big endian. The line has no room for `order` and `topicSysFlag`: they read
//! back as false and 0, as in stock.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use super::{Body, BodyError, DataVersion, TopicConfig, TopicConfigTable, TopicFilterType, texts};
use crate::json::{Limits, Value, Writer};
use crate::language::VERSION_REGISTER_FILTER;

/// Longest plaintext of a compressed registration, in bytes: what a plain one could have at most.
pub const INFLATED_BYTES_MAX: usize = crate::frame::FRAME_BYTES_MAX;

/// First byte of a zlib stream with the usual window. 5.x brokers compress and say they do not.
const ZLIB_FIRST_BYTE: u8 = 0x78;

/// A registration's body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterBroker {
    /// Filter servers of the broker. `None` (very old brokers) leaves what is known alone, empty removes it.
    pub filter_servers: Option<Vec<String>>,
    /// The topics that it registers.
    pub topics: TopicConfigTable,
}

impl RegisterBroker {
    /// Reads a registration of a broker whose request had this `version` and `compressed` field.
    ///
    /// # Errors
    /// Neither form can be read: answer code 1.
    pub fn decode(version: i32, compressed: bool, body: &[u8]) -> Result<Self, BodyError> {
        if body.is_empty() {
            return Ok(RegisterBroker { filter_servers: Some(Vec::new()), ..Self::default() });
        }
        if version < VERSION_REGISTER_FILTER {
            let topics = TopicConfigTable::from_json(body)?;
            return Ok(RegisterBroker { filter_servers: None, topics });
        }
        if compressed || body.first() == Some(&ZLIB_FIRST_BYTE) {
            return Self::inflate(body);
        }
        Self::from_json(body)
    }

    fn inflate(body: &[u8]) -> Result<Self, BodyError> {
        let fault = |what| BodyError::Compressed { what };
        let mut plain = Vec::new();
        let mut inflater = ZlibDecoder::new(body).take(INFLATED_BYTES_MAX as u64 + 1);
        inflater.read_to_end(&mut plain).map_err(|_| fault("not a zlib stream"))?;
        if plain.len() > INFLATED_BYTES_MAX {
            return Err(fault("more than 16 MiB when inflated"));
        }
        let mut rest = plain.as_slice();
        let data_version = DataVersion::from_json(chunk(&mut rest)?)?;
        let mut topics = Vec::new();
        // The count is not trusted with an allocation: the bytes run out first.
        for _ in 0..word(&mut rest)? {
            topics.push(topic_from_line(chunk(&mut rest)?)?);
        }
        let list = String::from_utf8_lossy(chunk(&mut rest)?);
        let list = Value::parse(&list)?;
        let filter_servers = list.items().iter().filter_map(Value::to_text).collect();
        let topics = TopicConfigTable { data_version, topics };
        Ok(RegisterBroker { filter_servers: Some(filter_servers), topics })
    }

    /// The compressed form. `order` and `topicSysFlag` of the topics are lost.
    #[must_use]
    pub fn to_compressed(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        put_chunk(&mut plain, &self.topics.data_version.to_json());
        plain.extend_from_slice(&(self.topics.topics.len() as u32).to_be_bytes());
        for topic in &self.topics.topics {
            put_chunk(&mut plain, line_of_topic(topic).as_bytes());
        }
        let mut w = Writer::new();
        w.begin_array();
        self.filter_servers.iter().flatten().for_each(|server| w.str(server));
        w.end_array();
        put_chunk(&mut plain, &w.finish());
        deflate(&plain)
    }
}

impl Body for RegisterBroker {
    const LIMITS: Limits = Limits::LARGE;

    fn read(value: &Value<'_>) -> Result<Self, BodyError> {
        let servers = value.get("filterServerList").map(|_| texts(value, "filterServerList"));
        let topics = value.get("topicConfigSerializeWrapper").map(TopicConfigTable::read);
        Ok(RegisterBroker {
            filter_servers: servers.transpose()?,
            topics: topics.transpose()?.unwrap_or_default(),
        })
    }

    fn write(&self, w: &mut Writer) {
        w.begin_object();
        if let Some(servers) = &self.filter_servers {
            w.field_strs("filterServerList", servers);
        }
        w.key("topicConfigSerializeWrapper");
        self.topics.write(w);
        w.end_object();
    }
}

/// The value of the header's `bodyCrc32`: CRC-32 (IEEE) of the body as sent, 31 bits kept.
#[must_use]
pub fn body_crc32(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7FFF_FFFF) as i32
}

fn word(rest: &mut &[u8]) -> Result<u32, BodyError> {
    let fault = BodyError::Compressed { what: "ends inside a length" };
    let (head, tail) = rest.split_first_chunk::<4>().ok_or(fault)?;
    *rest = tail;
    Ok(u32::from_be_bytes(*head))
}

fn chunk<'p>(rest: &mut &'p [u8]) -> Result<&'p [u8], BodyError> {
    let len = word(rest)? as usize;
    let fault = BodyError::Compressed { what: "a length is longer than what is left" };
    let (head, tail) = rest.split_at_checked(len).ok_or(fault)?;
    *rest = tail;
    Ok(head)
}

fn put_chunk(plain: &mut Vec<u8>, chunk: &[u8]) {
    plain.extend_from_slice(&(chunk.len() as u32).to_be_bytes());
    plain.extend_from_slice(chunk);
}

fn topic_from_line(line: &[u8]) -> Result<TopicConfig, BodyError> {
    let fault = BodyError::Compressed { what: "a topic line is not name, 3 numbers and a type" };
    let line = String::from_utf8_lossy(line);
    let mut parts = line.split(' ');
    let mut part = || parts.next().filter(|part| !part.is_empty());
    let topic = (|| {
        Some(TopicConfig {
            topic_name: part()?.to_owned(),
            read_queue_nums: part()?.parse().ok()?,
            write_queue_nums: part()?.parse().ok()?,
            perm: part()?.parse().ok()?,
            topic_filter_type: TopicFilterType::from_name(part()?)?,
            topic_sys_flag: 0,
            order: false,
        })
    })();
    topic.ok_or(fault)
}

fn line_of_topic(topic: &TopicConfig) -> String {
    format!(
        "{} {} {} {} {}",
        topic.topic_name,
        topic.read_queue_nums,
        topic.write_queue_nums,
        topic.perm,
        topic.topic_filter_type.name()
    )
}

fn deflate(plain: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    // Writing into memory does not fail; were it to, the receiver would refuse a short stream.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default()
}
