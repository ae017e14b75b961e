//! The remoting protocol as these tests speak it: JSON headers, one connection, blocking.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub mod code {
    pub const SEND_MESSAGE_V2: i32 = 310;
    pub const SEND_BATCH_MESSAGE: i32 = 320;
    pub const PULL_MESSAGE: i32 = 11;
    pub const UPDATE_AND_CREATE_TOPIC: i32 = 17;
    pub const QUERY_CONSUMER_OFFSET: i32 = 14;
    pub const UPDATE_CONSUMER_OFFSET: i32 = 15;
    pub const QUERY_MESSAGE: i32 = 12;
    pub const GET_ALL_TOPIC_CONFIG: i32 = 21;
    pub const CONSUMER_SEND_MSG_BACK: i32 = 36;
    pub const UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: i32 = 200;
    pub const GET_ALL_SUBSCRIPTION_GROUP_CONFIG: i32 = 201;
    pub const DELETE_SUBSCRIPTION_GROUP: i32 = 207;
    pub const GET_MAX_OFFSET: i32 = 30;
    pub const GET_MIN_OFFSET: i32 = 31;
    pub const HEART_BEAT: i32 = 34;
    pub const GET_ROUTE_BY_TOPIC: i32 = 105;
    pub const GET_BROKER_CLUSTER_INFO: i32 = 106;
    pub const DELETE_EXPIRED_COMMITLOG: i32 = 329;
}

/// A reply.
#[derive(Debug, Clone)]
pub struct Reply {
    pub code: i32,
    pub opaque: i32,
    pub remark: Option<String>,
    ext: serde_json::Map<String, serde_json::Value>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn ext(&self, name: &str) -> Option<&str> {
        self.ext.get(name)?.as_str()
    }

    pub fn number(&self, name: &str) -> i64 {
        let text = self.ext(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }
}

/// The fields of a 310 or 320 to a topic that may have to be made, by their short names.
pub fn send_ext<'a>(
    group: &'a str,
    topic: &'a str,
    queue: &'a str,
    properties: &'a str,
    batch: bool,
) -> [(&'static str, &'a str); 12] {
    [
        ("a", group),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", if batch { "true" } else { "false" }),
    ]
}

/// A whole frame of a request.
pub fn frame(code: i32, opaque: i32, ext: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + body.len());
    put_frame(&mut out, code, opaque, ext, body);
    out
}

/// Flag of a request that wants no answer.
pub const ONEWAY: i32 = 2;

/// Appends a whole frame of a request.
pub fn put_frame(out: &mut Vec<u8>, code: i32, opaque: i32, ext: &[(&str, &str)], body: &[u8]) {
    put_flagged(out, code, 0, opaque, ext, body);
}

/// Appends a whole frame of a request with its flag.
pub fn put_flagged(
    out: &mut Vec<u8>,
    code: i32,
    flag: i32,
    opaque: i32,
    ext: &[(&str, &str)],
    body: &[u8],
) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(format!("{{\"code\":{code},\"language\":\"JAVA\",\"version\":409,\"opaque\":{opaque},\"flag\":{flag},\"extFields\":{{").as_bytes());
    for (i, (name, value)) in ext.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":\"");
        put_escaped(out, value);
        out.push(b'"');
    }
    out.extend_from_slice(b"}}");
    let header = out.len() - start - 8;
    out.extend_from_slice(body);
    let total = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&total.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&(header as u32).to_be_bytes());
}

fn put_escaped(out: &mut Vec<u8>, value: &str) {
    for c in value.bytes() {
        match c {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', c]),
            0..0x20 => out.extend_from_slice(format!("\\u{c:04x}").as_bytes()),
            _ => out.push(c),
        }
    }
}

/// A connection to a broker or a name server.
pub struct Conn {
    stream: TcpStream,
    buffer: Vec<u8>,
    begin: usize,
    opaque: i32,
}

impl Conn {
    pub fn open(to: SocketAddr) -> std::io::Result<Conn> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Conn { stream, buffer: Vec::with_capacity(1 << 16), begin: 0, opaque: 0 })
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a request and waits for its reply; other replies on the way are an error.
    pub fn call(&mut self, code: i32, ext: &[(&str, &str)], body: &[u8]) -> std::io::Result<Reply> {
        self.opaque += 1;
        let opaque = self.opaque;
        self.write(&frame(code, opaque, ext, body))?;
        let reply = self.read_reply()?;
        if reply.opaque == opaque {
            Ok(reply)
        } else {
            Err(std::io::Error::other(format!("reply {} instead of {opaque}", reply.opaque)))
        }
    }

    /// The next reply; requests of the other side are passed over.
    pub fn read_reply(&mut self) -> std::io::Result<Reply> {
        loop {
            if let Some(reply) = self.buffered_reply()? {
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// A reply that has been received already.
    pub fn buffered_reply(&mut self) -> std::io::Result<Option<Reply>> {
        loop {
            let have = &self.buffer[self.begin..];
            if have.len() < 8 {
                return Ok(None);
            }
            let total = u32::from_be_bytes([have[0], have[1], have[2], have[3]]) as usize;
            if have.len() < 4 + total {
                return Ok(None);
            }
            let header =
                (u32::from_be_bytes([have[4], have[5], have[6], have[7]]) & 0xFF_FFFF) as usize;
            let bad = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what.to_owned());
            if 4 + header > total || have[4] != 0 {
                return Err(bad("a frame that is not JSON or not whole"));
            }
            let json: serde_json::Value = serde_json::from_slice(&have[8..8 + header])
                .map_err(|e| bad(&format!("header: {e}")))?;
            let body = have[8 + header..4 + total].to_vec();
            self.begin += 4 + total;
            let number =
                |name: &str| json.get(name).and_then(serde_json::Value::as_i64).unwrap_or(0) as i32;
            if number("flag") & 1 == 0 {
                continue;
            }
            return Ok(Some(Reply {
                code: number("code"),
                opaque: number("opaque"),
                remark: json.get("remark").and_then(|r| r.as_str()).map(str::to_owned),
                ext: json.get("extFields").and_then(|e| e.as_object()).cloned().unwrap_or_default(),
                body,
            }));
        }
    }

    fn fill(&mut self) -> std::io::Result<()> {
        if self.begin > 0 {
            self.buffer.drain(..self.begin);
            self.begin = 0;
        }
        let mut chunk = [0; 1 << 16];
        let n = self.stream.read(&mut chunk)?;
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(())
    }
}

/// Calls `attempt` until it gives something; there is no event for what it looks at. `None` after `limit`.
pub fn eventually<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
