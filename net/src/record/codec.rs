//! Encoding and decoding of one record.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{
    MAGIC_BLANK, MAGIC_MESSAGE, PROPERTIES_BYTES_MAX, RECORD_FIXED_BYTES, TOPIC_BYTES_MAX,
    body_crc, sys_flag,
};

/// Bytes that a BLANK record needs at least; a record therefore ends this far before its segment's end.
pub const BLANK_BYTES_MIN: usize = 8;

/// Additional bytes of a record for each IPv6 host.
const V6_EXTRA_BYTES: usize = 12;
/// Bytes before the born host.
const BORN_HOST_AT: usize = 48;

/// Everything a record holds, to be encoded. `sys_flag` may carry anything in the two host bits and the CRC is not
/// given: both are set from the hosts and the body.
#[derive(Debug, Clone, Copy)]
pub struct RecordFields<'a> {
    /// Queue within the topic.
    pub queue_id: i32,
    /// The application's flag, not interpreted.
    pub flag: i32,
    /// Index of the message in its queue; 0 for prepared and rollback types.
    pub queue_offset: i64,
    /// Position of this record in the log.
    pub physical_offset: i64,
    /// See [`sys_flag`]; the host bits are overwritten.
    pub sys_flag: i32,
    /// The client's clock, milliseconds since 1970.
    pub born_timestamp: i64,
    /// The client's address as the broker sees it.
    pub born_host: SocketAddr,
    /// The broker's clock, milliseconds since 1970.
    pub store_timestamp: i64,
    /// The broker's advertised address.
    pub store_host: SocketAddr,
    /// How often this message was consumed before.
    pub reconsume_times: i32,
    /// Physical offset of the half message on a committed transaction's record, else 0.
    pub prepared_transaction_offset: i64,
    /// The body as received.
    pub body: &'a [u8],
    /// 1 to 127 bytes.
    pub topic: &'a str,
    /// Properties text, at most 32767 bytes.
    pub properties: &'a [u8],
}

/// Why bytes are not a record, or fields do not fit into one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The slice ends before the record does.
    #[error("record needs {need} bytes and {have} are there")]
    Short {
        /// Bytes needed, as far as known.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// No message magic.
    #[error("record magic is {0:#010x}, not 0xdaa320a7")]
    Magic(u32),
    /// The size field disagrees with the lengths inside.
    #[error("record says {total} bytes and its lengths add up to {computed}")]
    Size {
        /// The size field.
        total: i64,
        /// Sum of the parts.
        computed: i64,
    },
    /// A negative length inside.
    #[error("record has a negative {what} length: {length}")]
    NegativeLength {
        /// Which part.
        what: &'static str,
        /// The length found.
        length: i64,
    },
    /// The topic is no UTF-8 text.
    #[error("record's topic is not UTF-8 text")]
    TopicText,
    /// Topic empty or longer than 127 bytes (encoding).
    #[error("topic of {0} bytes: a record takes 1 to 127")]
    TopicLength(usize),
    /// Properties longer than 32767 bytes (encoding).
    #[error("properties of {0} bytes: a record takes at most 32767")]
    PropertiesLength(usize),
    /// Body whose length does not fit into the record's 32-bit lengths (encoding).
    #[error("body of {0} bytes does not fit into a record")]
    BodyLength(usize),
}

/// Length of a record with these hosts and lengths.
pub fn encoded_len(
    born_host: &SocketAddr,
    store_host: &SocketAddr,
    body: usize,
    topic: usize,
    properties: usize,
) -> usize {
    RECORD_FIXED_BYTES
        + V6_EXTRA_BYTES * (usize::from(born_host.is_ipv6()) + usize::from(store_host.is_ipv6()))
        + body
        + topic
        + properties
}

impl RecordFields<'_> {
    /// Checks what [`RecordFields::encode`] takes for granted.
    ///
    /// # Errors
    /// [`RecordError::TopicLength`], [`RecordError::PropertiesLength`] or [`RecordError::BodyLength`].
    pub fn validate(&self) -> Result<(), RecordError> {
        if self.topic.is_empty() || self.topic.len() > TOPIC_BYTES_MAX {
            return Err(RecordError::TopicLength(self.topic.len()));
        }
        if self.properties.len() > PROPERTIES_BYTES_MAX {
            return Err(RecordError::PropertiesLength(self.properties.len()));
        }
        if i32::try_from(self.encoded_len()).is_err() {
            return Err(RecordError::BodyLength(self.body.len()));
        }
        Ok(())
    }

    /// Exact length of the encoded record.
    pub fn encoded_len(&self) -> usize {
        encoded_len(
            &self.born_host,
            &self.store_host,
            self.body.len(),
            self.topic.len(),
            self.properties.len(),
        )
    }

    /// Writes the record over the whole of `out`. Sets the host bits of `sysFlag` from the hosts and the CRC from the body.
    ///
    /// # Panics
    /// When `out` is not exactly [`RecordFields::encoded_len`] long or [`RecordFields::validate`] would refuse: the caller
    /// has admitted the record before it reserved room.
    pub fn encode(&self, out: &mut [u8]) {
        let len = self.encoded_len();
        assert_eq!(out.len(), len, "a record is encoded into exactly its own room");
        assert!(self.validate().is_ok(), "a record is validated before room is reserved");
        let mut flags = self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
        if self.born_host.is_ipv6() {
            flags |= sys_flag::BORN_HOST_V6;
        }
        if self.store_host.is_ipv6() {
            flags |= sys_flag::STORE_HOST_V6;
        }
        let mut out = Put(out);
        out.put(&(len as u32).to_be_bytes());
        out.put(&MAGIC_MESSAGE.to_be_bytes());
        out.put(&body_crc(self.body).to_be_bytes());
        out.put(&self.queue_id.to_be_bytes());
        out.put(&self.flag.to_be_bytes());
        out.put(&self.queue_offset.to_be_bytes());
        out.put(&self.physical_offset.to_be_bytes());
        out.put(&flags.to_be_bytes());
        out.put(&self.born_timestamp.to_be_bytes());
        out.put_host(&self.born_host);
        out.put(&self.store_timestamp.to_be_bytes());
        out.put_host(&self.store_host);
        out.put(&self.reconsume_times.to_be_bytes());
        out.put(&self.prepared_transaction_offset.to_be_bytes());
        out.put(&(self.body.len() as u32).to_be_bytes());
        out.put(self.body);
        out.put(&[self.topic.len() as u8]);
        out.put(self.topic.as_bytes());
        out.put(&(self.properties.len() as u16).to_be_bytes());
        out.put(self.properties);
    }
}

/// A cursor over the room of a record; the length was asserted, so no write can miss.
struct Put<'a>(&'a mut [u8]);

impl Put<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (head, tail) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.0 = tail;
    }

    fn put_host(&mut self, host: &SocketAddr) {
        match host.ip() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }
}

/// Writes a BLANK record over the whole of `out`, the rest of a segment: size, magic, zeros.
///
/// # Panics
/// When `out` is shorter than 8 bytes; the log always leaves that much.
pub fn encode_blank(out: &mut [u8]) {
    assert!(out.len() >= BLANK_BYTES_MIN, "8 bytes are always left for a BLANK record");
    let len = out.len() as u32;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out[4..8].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    out[8..].fill(0);
}

/// A record inside a byte slice, its lengths checked against the slice and one another. Neither the CRC nor the
/// physical offset is checked here: see [`super::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    bytes: &'a [u8],
    store_at: usize,
    body_at: usize,
    topic_at: usize,
    topic: &'a str,
    properties_at: usize,
}

/// Reads the record at the start of `buf`, which may go on behind it.
///
/// # Errors
/// [`RecordError`]; [`RecordError::Short`] when the slice ends inside the record.
pub fn decode(buf: &[u8]) -> Result<RecordView<'_>, RecordError> {
    let total = i32::from_be_bytes(array(buf, 0)?);
    let magic = u32::from_be_bytes(array(buf, 4)?);
    if magic != MAGIC_MESSAGE {
        return Err(RecordError::Magic(magic));
    }
    let size = usize::try_from(total)
        .map_err(|_| RecordError::NegativeLength { what: "total", length: i64::from(total) })?;
    let mismatch =
        |computed: usize| RecordError::Size { total: i64::from(total), computed: computed as i64 };
    if size < RECORD_FIXED_BYTES {
        return Err(mismatch(RECORD_FIXED_BYTES));
    }
    let bytes = buf.get(..size).ok_or(RecordError::Short { need: size, have: buf.len() })?;
    // From here on every miss means that the size field and the lengths disagree, as all bytes are there.
    let inside = |at: usize| mismatch(at);
    let flags = i32::from_be_bytes(array(bytes, 36)?);
    let host = |bit: i32| if flags & bit == 0 { 8 } else { 8 + V6_EXTRA_BYTES };
    let store_at = BORN_HOST_AT + host(sys_flag::BORN_HOST_V6);
    let body_len_at = store_at + 8 + host(sys_flag::STORE_HOST_V6) + 12;
    let body_at = body_len_at + 4;
    let body_len = array(bytes, body_len_at).map_err(|_| inside(body_at))?;
    let body_len = length("body", i64::from(i32::from_be_bytes(body_len)))?;
    let topic_len_at = body_at + body_len;
    let topic_len = *bytes.get(topic_len_at).ok_or_else(|| inside(topic_len_at + 1))?;
    let topic_len = length("topic", i64::from(topic_len as i8))?;
    let topic_at = topic_len_at + 1;
    let properties_len_at = topic_at + topic_len;
    let properties_at = properties_len_at + 2;
    let topic = bytes.get(topic_at..properties_len_at).ok_or_else(|| inside(properties_len_at))?;
    let properties_len = array(bytes, properties_len_at).map_err(|_| inside(properties_at))?;
    let properties_len = length("properties", i64::from(i16::from_be_bytes(properties_len)))?;
    if properties_at + properties_len != size {
        return Err(mismatch(properties_at + properties_len));
    }
    let topic = std::str::from_utf8(topic).map_err(|_| RecordError::TopicText)?;
    Ok(RecordView { bytes, store_at, body_at, topic_at, topic, properties_at })
}

fn length(what: &'static str, length: i64) -> Result<usize, RecordError> {
    usize::try_from(length).map_err(|_| RecordError::NegativeLength { what, length })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], RecordError> {
    bytes
        .get(at..)
        .and_then(|tail| tail.first_chunk::<N>())
        .copied()
        .ok_or(RecordError::Short { need: at + N, have: bytes.len() })
}

impl<'a> RecordView<'a> {
    /// The array at `at`, which lies inside the fixed part that [`decode`] has seen whole.
    fn fixed<const N: usize>(&self, at: usize) -> [u8; N] {
        array(self.bytes, at).unwrap_or([0; N])
    }

    /// All bytes of the record.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Length of the record in bytes.
    pub fn total_size(&self) -> usize {
        self.bytes.len()
    }

    /// The stored CRC of the body (31 bits).
    pub fn body_crc(&self) -> u32 {
        u32::from_be_bytes(self.fixed(8))
    }

    /// Queue within the topic.
    pub fn queue_id(&self) -> i32 {
        i32::from_be_bytes(self.fixed(12))
    }

    /// The application's flag.
    pub fn flag(&self) -> i32 {
        i32::from_be_bytes(self.fixed(16))
    }

    /// Index of the message in its queue.
    pub fn queue_offset(&self) -> i64 {
        i64::from_be_bytes(self.fixed(20))
    }

    /// Position that the record claims in the log.
    pub fn physical_offset(&self) -> i64 {
        i64::from_be_bytes(self.fixed(28))
    }

    /// See [`sys_flag`].
    pub fn sys_flag(&self) -> i32 {
        i32::from_be_bytes(self.fixed(36))
    }

    /// The client's clock, milliseconds since 1970.
    pub fn born_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.fixed(40))
    }

    /// The client's address.
    pub fn born_host(&self) -> SocketAddr {
        self.host(BORN_HOST_AT, self.sys_flag() & sys_flag::BORN_HOST_V6 != 0)
    }

    /// The broker's clock, milliseconds since 1970.
    pub fn store_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.fixed(self.store_at))
    }

    /// The broker's address.
    pub fn store_host(&self) -> SocketAddr {
        self.host(self.store_at + 8, self.sys_flag() & sys_flag::STORE_HOST_V6 != 0)
    }

    /// How often this message was consumed before.
    pub fn reconsume_times(&self) -> i32 {
        i32::from_be_bytes(self.fixed(self.body_at - 16))
    }

    /// Physical offset of the half message on a committed transaction's record, else 0.
    pub fn prepared_transaction_offset(&self) -> i64 {
        i64::from_be_bytes(self.fixed(self.body_at - 12))
    }

    /// The body as stored.
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(self.body_at..self.topic_at - 1).unwrap_or_default()
    }

    /// The topic.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties text as stored.
    pub fn properties(&self) -> &'a [u8] {
        self.bytes.get(self.properties_at..).unwrap_or_default()
    }

    /// The properties as text; bytes that are no UTF-8 are replaced, as Java does when it reads them.
    pub fn properties_text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.properties())
    }

    /// Where the topic begins in the record.
    pub(super) fn topic_at(&self) -> usize {
        self.topic_at
    }

    /// Where the properties text begins in the record.
    pub(super) fn properties_at(&self) -> usize {
        self.properties_at
    }

    /// All fields, for encoding a changed copy.
    pub fn fields(&self) -> RecordFields<'a> {
        RecordFields {
            queue_id: self.queue_id(),
            flag: self.flag(),
            queue_offset: self.queue_offset(),
            physical_offset: self.physical_offset(),
            sys_flag: self.sys_flag(),
            born_timestamp: self.born_timestamp(),
            born_host: self.born_host(),
            store_timestamp: self.store_timestamp(),
            store_host: self.store_host(),
            reconsume_times: self.reconsume_times(),
            prepared_transaction_offset: self.prepared_transaction_offset(),
            body: self.body(),
            topic: self.topic(),
            properties: self.properties(),
        }
    }

    fn host(&self, at: usize, v6: bool) -> SocketAddr {
        let (ip, port_at) = if v6 {
            (IpAddr::V6(Ipv6Addr::from(self.fixed::<16>(at))), at + 16)
        } else {
            (IpAddr::V4(Ipv4Addr::from(self.fixed::<4>(at))), at + 4)
        };
        // Only the low 16 bits of the four port bytes can be a port.
        SocketAddr::new(ip, u32::from_be_bytes(self.fixed(port_at)) as u16)
    }
}
