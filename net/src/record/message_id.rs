//! The offset message id: what a producer gets as `msgId` and may ask a broker for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Characters of an id with an IPv6 host; one with an IPv4 host has 32.
pub const MESSAGE_ID_CHARS_MAX: usize = 56;

/// Store host and physical offset of a record. Its text is upper case hex of address (4 or 16 bytes), port (4)
/// and offset (8): 32 characters for IPv4, 56 for IPv6 (stock 4.9.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OffsetMessageId {
    /// The broker that stored the record; clients connect to this address to view the message.
    pub store_host: SocketAddr,
    /// Where the record begins in that broker's log.
    pub physical_offset: u64,
}

/// Why a text is no offset message id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageIdError {
    /// Neither 32 nor 56 characters.
    #[error("a message id of {0} bytes: 32 hex characters (IPv4) or 56 (IPv6) are needed")]
    Length(usize),
    /// A character that is no hex digit.
    #[error("message id has a character that is no hex digit at byte {0}")]
    Digit(usize),
    /// A port above 65535.
    #[error("message id names port {0}: above 65535")]
    Port(u32),
}

impl OffsetMessageId {
    /// Writes the id into `out` and returns the part that was filled.
    pub fn write<'a>(&self, out: &'a mut [u8; MESSAGE_ID_CHARS_MAX]) -> &'a str {
        let mut raw = [0u8; MESSAGE_ID_CHARS_MAX / 2];
        let address_bytes = match self.store_host.ip() {
            IpAddr::V4(ip) => {
                raw[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                raw[..16].copy_from_slice(&ip.octets());
                16
            }
        };
        let port = u32::from(self.store_host.port());
        raw[address_bytes..address_bytes + 4].copy_from_slice(&port.to_be_bytes());
        raw[address_bytes + 4..address_bytes + 12]
            .copy_from_slice(&self.physical_offset.to_be_bytes());
        let raw = &raw[..address_bytes + 12];
        let (pairs, _) = out.as_chunks_mut::<2>();
        for (pair, byte) in pairs.iter_mut().zip(raw) {
            *pair = HEX[usize::from(*byte)];
        }
        std::str::from_utf8(&out[..raw.len() * 2]).unwrap_or_default()
    }

    /// Reads an id; lower case digits are taken too.
    ///
    /// # Errors
    /// [`MessageIdError`] for any other length, a character that is no hex digit, or a port above 65535.
    pub fn parse(text: &str) -> Result<Self, MessageIdError> {
        let text = text.as_bytes();
        let address_bytes = match text.len() {
            32 => 4,
            56 => 16,
            other => return Err(MessageIdError::Length(other)),
        };
        let mut raw = [0u8; MESSAGE_ID_CHARS_MAX / 2];
        for (at, digit) in text.iter().enumerate() {
            let value = (*digit as char).to_digit(16).ok_or(MessageIdError::Digit(at))?;
            raw[at / 2] = raw[at / 2] << 4 | value as u8;
        }
        let mut port = [0u8; 4];
        port.copy_from_slice(&raw[address_bytes..address_bytes + 4]);
        let port = u32::from_be_bytes(port);
        let port = u16::try_from(port).map_err(|_| MessageIdError::Port(port))?;
        let mut offset = [0u8; 8];
        offset.copy_from_slice(&raw[address_bytes + 4..address_bytes + 12]);
        let ip = if address_bytes == 4 {
            IpAddr::V4(Ipv4Addr::new(raw[0], raw[1], raw[2], raw[3]))
        } else {
            let mut octets = [0u8; 16];
            octets.copy_from_slice(&raw[..16]);
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        Ok(Self {
            store_host: SocketAddr::new(ip, port),
            physical_offset: u64::from_be_bytes(offset),
        })
    }
}

/// Both digits of every byte.
static HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789ABCDEF";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

impl fmt::Display for OffsetMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.write(&mut [0; MESSAGE_ID_CHARS_MAX]))
    }
}
