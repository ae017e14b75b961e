//! A broker that lies: it serves the records it is given, whatever they are, to whoever checks them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use super::journal::{Identity, body, properties};
use super::wire::code;

/// A record to be served, and where.
#[derive(Debug, Clone)]
pub struct Forged {
    pub topic: String,
    pub queue: i32,
    pub offset: i64,
    pub physical_offset: i64,
    pub stored: i64,
    pub reconsume_times: i32,
    pub body: Vec<u8>,
    /// `None`: the right one.
    pub crc: Option<u32>,
    pub properties: String,
}

impl Forged {
    /// The record that an honest broker has of a message sent as a single one.
    pub fn honest(
        topic: &str,
        queue: i32,
        offset: i64,
        physical_offset: i64,
        id: Identity,
    ) -> Forged {
        Forged {
            topic: topic.to_owned(),
            queue,
            offset,
            physical_offset,
            stored: 1_000,
            reconsume_times: 0,
            body: body(id),
            crc: None,
            properties: format!("{}\u{2}CLUSTER\u{1}DefaultCluster", properties(id)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        let crc = self.crc.unwrap_or_else(|| super::checker::crc32(&self.body));
        out.extend(0xDAA3_20A7u32.to_be_bytes());
        out.extend(crc.to_be_bytes());
        out.extend(self.queue.to_be_bytes());
        out.extend(0i32.to_be_bytes()); // flag
        out.extend(self.offset.to_be_bytes());
        out.extend(self.physical_offset.to_be_bytes());
        out.extend(0i32.to_be_bytes()); // system flag
        out.extend([0; 16]); // born: when, where
        out.extend(self.stored.to_be_bytes());
        out.extend([127, 0, 0, 1, 0, 0, 0, 1]);
        out.extend(self.reconsume_times.to_be_bytes());
        out.extend(0i64.to_be_bytes()); // prepared transaction
        out.extend((self.body.len() as u32).to_be_bytes());
        out.extend(&self.body);
        out.push(self.topic.len() as u8);
        out.extend(self.topic.as_bytes());
        out.extend((self.properties.len() as u16).to_be_bytes());
        out.extend(self.properties.as_bytes());
        let len = out.len() as u32;
        out[..4].copy_from_slice(&len.to_be_bytes());
        out
    }
}

/// The message id that tells this physical offset.
pub fn message_id(physical_offset: i64) -> String {
    format!("7F00000100000001{physical_offset:016X}")
}

/// What is served: queues in the order that their records were given in, each from where it begins.
#[derive(Debug, Clone, Default)]
pub struct ForgedStore {
    pub records: Vec<Forged>,
    /// Where queues begin, if not at 0, by topic and queue.
    pub begins: HashMap<(String, i32), i64>,
}

impl ForgedStore {
    /// Serves it on a loopback port, until the test program ends.
    pub fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let store = Arc::new(self);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let store = store.clone();
                std::thread::spawn(move || {
                    let _ = store.answer_all(stream);
                });
            }
        });
        address
    }

    fn answer_all(&self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let mut word = [0; 4];
            stream.read_exact(&mut word)?;
            let mut frame = vec![0; u32::from_be_bytes(word) as usize];
            stream.read_exact(&mut frame)?;
            let header = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
            let json: serde_json::Value = serde_json::from_slice(&frame[4..4 + header])?;
            let text = |name: &str| json["extFields"][name].as_str().unwrap_or_default().to_owned();
            let queue = (text("topic"), text("queueId").parse().unwrap_or(0));
            let begin = self.begins.get(&queue).copied().unwrap_or(0);
            let all: Vec<&Forged> = self
                .records
                .iter()
                .filter(|r| (&r.topic, r.queue) == (&queue.0, queue.1))
                .collect();
            let (code, ext, body) = match json["code"].as_i64().unwrap_or(0) as i32 {
                code::GET_MIN_OFFSET => (0, format!("\"offset\":\"{begin}\""), Vec::new()),
                code::GET_MAX_OFFSET => {
                    (0, format!("\"offset\":\"{}\"", begin + all.len() as i64), Vec::new())
                }
                code::PULL_MESSAGE if all.is_empty() => (17, String::new(), Vec::new()),
                code::PULL_MESSAGE => {
                    let from: i64 = text("queueOffset").parse().unwrap_or(0);
                    let from = all.iter().skip((from - begin) as usize).take(32);
                    (0, String::new(), from.flat_map(|r| r.encode()).collect())
                }
                other => (3, format!("\"code\":\"{other}\""), Vec::new()),
            };
            let head = format!(
                "{{\"code\":{code},\"flag\":1,\"opaque\":{},\"extFields\":{{{ext}}}}}",
                json["opaque"]
            );
            stream.write_all(&((4 + head.len() + body.len()) as u32).to_be_bytes())?;
            stream.write_all(&(head.len() as u32).to_be_bytes())?;
            stream.write_all(head.as_bytes())?;
            stream.write_all(&body)?;
        }
    }
}
