//! A peer on one connection: frames in either header form, requests of the broker told apart from its replies, and everything that foreign
//! clients rely on in a reply checked on the way.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::ext::Ext;
use super::fixture::{settle, stock};

/// How a header is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Binary,
}

/// Both.
pub const FORMS: [Form; 2] = [Form::Json, Form::Binary];

/// How long a reply may take. Far above what is expected: the machine may be busy.
const REPLY_MAX: Duration = Duration::from_secs(20);

/// Requests that store a message.
const SENDS: [i32; 4] = [10, 310, 320, 36];

pub const FLAG_RESPONSE: i32 = 1;
pub const FLAG_ONEWAY: i32 = 2;

/// A frame that came.
#[derive(Debug, Clone)]
pub struct Frame {
    pub form: Form,
    pub code: i32,
    pub language: u8,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<String>,
    /// `None`: the header had no ext fields at all.
    pub ext: Option<BTreeMap<String, String>>,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn ext(&self, name: &str) -> Option<&str> {
        self.ext.as_ref()?.get(name).map(String::as_str)
    }

    pub fn remark(&self) -> &str {
        self.remark.as_deref().unwrap_or_default()
    }

    #[track_caller]
    pub fn number(&self, name: &str) -> i64 {
        let text = self.ext(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a body in UTF-8")
    }

    /// The body as JSON; not for those with object keys.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Asserts a success.
    #[track_caller]
    pub fn ok(self) -> Frame {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts a refusal with exactly this remark.
    #[track_caller]
    pub fn refused(self, code: i32, remark: &str) -> Frame {
        assert_eq!((self.code, self.remark()), (code, remark), "{self:?}");
        assert!(self.body.is_empty(), "a refusal with a body: {self:?}");
        self
    }
}

/// A request to write.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub language: u8,
    pub version: i32,
    pub ext: Option<&'a Ext>,
    pub body: &'a [u8],
}

impl Request<'_> {
    pub fn frame(&self, form: Form) -> Vec<u8> {
        let header = match form {
            Form::Json => self.json_header(),
            Form::Binary => self.binary_header(),
        };
        raw_frame(&header, form, self.body)
    }

    fn json_header(&self) -> Vec<u8> {
        let mut fields = serde_json::json!({
            "code": self.code,
            "language": language_name(self.language),
            "version": self.version,
            "opaque": self.opaque,
            "flag": self.flag,
            "serializeTypeCurrentRPC": "JSON",
        });
        if let Some(ext) = self.ext {
            let map = ext.iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
            fields["extFields"] = serde_json::Value::Object(map);
        }
        fields.to_string().into_bytes()
    }

    fn binary_header(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        for (name, value) in self.ext.into_iter().flat_map(Ext::iter) {
            fields.extend_from_slice(&(name.len() as u16).to_be_bytes());
            fields.extend_from_slice(name.as_bytes());
            fields.extend_from_slice(&(value.len() as u32).to_be_bytes());
            fields.extend_from_slice(value.as_bytes());
        }
        let mut out = Vec::new();
        out.extend_from_slice(&(self.code as i16).to_be_bytes());
        out.push(self.language);
        out.extend_from_slice(&(self.version as i16).to_be_bytes());
        out.extend_from_slice(&self.opaque.to_be_bytes());
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&0i32.to_be_bytes());
        out.extend_from_slice(&(fields.len() as u32).to_be_bytes());
        out.extend_from_slice(&fields);
        out
    }
}

/// A frame around a header that was made by hand.
pub fn raw_frame(header: &[u8], form: Form, body: &[u8]) -> Vec<u8> {
    let total = 4 + header.len() + body.len();
    let word = (form as u32) << 24 | header.len() as u32;
    let mut out = Vec::with_capacity(4 + total);
    out.extend_from_slice(&(total as u32).to_be_bytes());
    out.extend_from_slice(&word.to_be_bytes());
    out.extend_from_slice(header);
    out.extend_from_slice(body);
    out
}

pub const JAVA: u8 = 0;
pub const CPP: u8 = 1;
pub const GO: u8 = 9;

fn language_name(code: u8) -> &'static str {
    match code {
        JAVA => "JAVA",
        CPP => "CPP",
        GO => "GO",
        13 => "NODE_JS",
        other => panic!("these tests have no language {other}"),
    }
}

/// One connection.
pub struct Peer {
    pub form: Form,
    pub version: i32,
    pub language: u8,
    stream: TcpStream,
    buffer: Vec<u8>,
    opaque: i32,
    /// Requests of the broker that came while a reply was awaited.
    requests: VecDeque<Frame>,
}

impl Peer {
    pub fn open(to: SocketAddr, form: Form) -> Peer {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))
            .unwrap_or_else(|e| panic!("connecting to {to}: {e}"));
        stream.set_nodelay(true).expect("no delay");
        Peer {
            form,
            version: 409,
            language: JAVA,
            stream,
            buffer: Vec::new(),
            opaque: 0,
            requests: VecDeque::new(),
        }
    }

    /// As the broker sees this peer.
    pub fn address(&self) -> SocketAddr {
        self.stream.local_addr().expect("a local address")
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("writing to the broker");
    }

    /// Sends a request without waiting; returns its opaque.
    pub fn post(&mut self, code: i32, flag: i32, ext: &Ext, body: &[u8]) -> i32 {
        self.opaque += 1;
        let request = Request {
            code,
            opaque: self.opaque,
            flag,
            language: self.language,
            version: self.version,
            ext: Some(ext),
            body,
        };
        let bytes = request.frame(self.form);
        self.write(&bytes);
        if flag == FLAG_ONEWAY {
            settle();
        }
        self.opaque
    }

    /// Sends a request and waits for its reply.
    #[track_caller]
    pub fn call(&mut self, code: i32, ext: &Ext, body: &[u8]) -> Frame {
        let opaque = self.post(code, 0, ext, body);
        let reply = self.reply();
        if SENDS.contains(&code) {
            settle();
        }
        assert_eq!(reply.opaque, opaque, "the reply to another request: {reply:?}");
        // A stock broker's refusals are JSON whatever was asked in, and some of its successes.
        assert!(
            reply.form == self.form || stock(),
            "a reply has the form of its request: {reply:?}"
        );
        reply
    }

    /// The next reply, whosever; requests of the broker are kept aside.
    #[track_caller]
    pub fn reply(&mut self) -> Frame {
        self.reply_within(REPLY_MAX).unwrap_or_else(|| panic!("no reply in {REPLY_MAX:?}"))
    }

    #[track_caller]
    pub fn reply_within(&mut self, limit: Duration) -> Option<Frame> {
        let end = Instant::now() + limit;
        loop {
            let frame = self.frame_until(end)?;
            if frame.flag & FLAG_RESPONSE == 0 {
                self.requests.push_back(frame);
                continue;
            }
            assert_eq!(frame.flag, FLAG_RESPONSE, "flags of a reply: {frame:?}");
            // What a Java consumer with an expression looks at is the version; nobody minds the language.
            let right = frame.version == 409 || stock() && frame.version >= 232;
            assert!(right && frame.language == JAVA, "{frame:?}");
            return Some(frame);
        }
    }

    /// The next request of the broker.
    #[track_caller]
    pub fn request(&mut self) -> Frame {
        self.request_within(REPLY_MAX)
            .unwrap_or_else(|| panic!("no request of the broker in {REPLY_MAX:?}"))
    }

    #[track_caller]
    pub fn request_within(&mut self, limit: Duration) -> Option<Frame> {
        if let Some(kept) = self.requests.pop_front() {
            return Some(kept);
        }
        let end = Instant::now() + limit;
        let frame = self.frame_until(end)?;
        assert_eq!(frame.flag & FLAG_RESPONSE, 0, "a reply came instead of a request: {frame:?}");
        // C++ clients cannot read another form.
        assert_eq!(frame.form, Form::Json, "the broker's own requests are JSON");
        Some(frame)
    }

    /// Answers a request of the broker.
    pub fn respond(&mut self, to: &Frame, code: i32, ext: &Ext, body: &[u8]) {
        let response = Request {
            code,
            opaque: to.opaque,
            flag: FLAG_RESPONSE,
            language: self.language,
            version: self.version,
            ext: Some(ext),
            body,
        };
        let bytes = response.frame(Form::Json);
        self.write(&bytes);
    }

    /// Asserts that nothing more came up to now: the next thing is the reply to something harmless.
    #[track_caller]
    pub fn quiet(&mut self) {
        let reply = self.call(30, &Ext::new([("topic", "Quiet"), ("queueId", "0")]), &[]);
        assert_eq!(reply.code, 0);
    }

    /// Takes the broker's requests that came up to now.
    #[track_caller]
    pub fn take_requests(&mut self) -> Vec<Frame> {
        self.quiet();
        self.requests.drain(..).collect()
    }

    fn frame_until(&mut self, end: Instant) -> Option<Frame> {
        loop {
            if let Some(frame) = self.take_frame() {
                return Some(frame);
            }
            match self.fill(end) {
                Fill::Bytes => {}
                Fill::Late => return None,
                Fill::Closed => panic!("the broker closed the connection"),
            }
        }
    }

    fn fill(&mut self, end: Instant) -> Fill {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left)).expect("a read timeout");
        let mut chunk = vec![0; 1 << 16];
        match self.stream.read(&mut chunk) {
            Ok(0) => Fill::Closed,
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                Fill::Bytes
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Fill::Late,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => Fill::Closed,
            Err(e) => panic!("reading from the broker: {e}"),
        }
    }

    fn take_frame(&mut self) -> Option<Frame> {
        let word = |at: usize| {
            let bytes = self.buffer.get(at..at + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize)
        };
        let (total, header) = (word(0)?, word(4)?);
        if self.buffer.len() < 4 + total {
            return None;
        }
        let frame: Vec<u8> = self.buffer.drain(..4 + total).collect();
        let (form, header) = (header >> 24, header & 0xFF_FFFF);
        let (header, body) = frame[8..].split_at(header);
        Some(match form {
            0 => read_json(header, body),
            1 => read_binary(header, body),
            other => panic!("serialize type {other}"),
        })
    }
}

enum Fill {
    Bytes,
    Late,
    Closed,
}

fn read_json(header: &[u8], body: &[u8]) -> Frame {
    let json: serde_json::Value = serde_json::from_slice(header).expect("a header of plain JSON");
    let number =
        |name: &str| json[name].as_i64().unwrap_or_else(|| panic!("no {name}: {json}")) as i32;
    let ext = json.get("extFields").map(|fields| {
        let fields = fields.as_object().expect("ext fields are an object");
        // Go and C++ read nothing but strings there.
        let text =
            |v: &serde_json::Value| v.as_str().unwrap_or_else(|| panic!("{json}")).to_owned();
        fields.iter().map(|(name, value)| (name.clone(), text(value))).collect()
    });
    Frame {
        form: Form::Json,
        code: number("code"),
        language: if json["language"] == "JAVA" { JAVA } else { 255 },
        version: number("version"),
        opaque: number("opaque"),
        flag: number("flag"),
        remark: json.get("remark").map(|r| r.as_str().expect("a remark is a string").to_owned()),
        ext,
        body: body.to_vec(),
    }
}

fn read_binary(header: &[u8], body: &[u8]) -> Frame {
    let mut at = 0;
    let mut take = |n: usize| {
        at += n;
        &header[at - n..at]
    };
    let short = |b: &[u8]| i32::from(i16::from_be_bytes(b.try_into().expect("two bytes")));
    let int = |b: &[u8]| i32::from_be_bytes(b.try_into().expect("four bytes"));
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).expect("UTF-8");
    let code = short(take(2));
    let language = take(1)[0];
    let version = short(take(2));
    let opaque = int(take(4));
    let flag = int(take(4));
    let remark_len = int(take(4)) as usize;
    let remark = text(take(remark_len));
    let mut left = int(take(4)) as usize;
    let mut ext = BTreeMap::new();
    while left > 0 {
        let name_len = short(take(2)) as usize;
        let name = text(take(name_len));
        let value_len = int(take(4)) as usize;
        let value = text(take(value_len));
        ext.insert(name, value);
        left -= 6 + name_len + value_len;
    }
    assert_eq!(at, header.len(), "a binary header with bytes left over");
    Frame {
        form: Form::Binary,
        code,
        language,
        version,
        opaque,
        flag,
        remark: (remark_len > 0).then_some(remark),
        ext: Some(ext),
        body: body.to_vec(),
    }
}
