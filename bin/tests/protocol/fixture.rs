//! The broker that most tests share, and what they often ask it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::ext::Ext;
use super::peer::{Form, Frame, Peer};
use crate::support::record::Record;
use crate::support::wire::eventually;
use crate::support::{Broker, Options, Target, TempDir, tempdir};

/// Stock's suffix of some remarks.
pub const FAQ: &str = "\nSee http://rocketmq.apache.org/docs/faq/ for further details.";

/// How long something may take that needs no request of ours: generous, for a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

struct Running {
    broker: Broker,
    /// Goes away after the broker.
    _dir: TempDir,
}

static SHARED: OnceLock<Mutex<Option<Running>>> = OnceLock::new();

/// Ends the shared broker: nothing drops a static.
extern "C" fn end_shared() {
    if let Some(shared) = SHARED.get() {
        drop(lock(shared).take());
    }
}

fn lock(shared: &Mutex<Option<Running>>) -> MutexGuard<'_, Option<Running>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a broker is reached.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub main: SocketAddr,
    pub vip: SocketAddr,
    pub namesrv: SocketAddr,
}

impl Place {
    pub fn of(broker: &Broker, shard: u16) -> Place {
        let main = broker.address(shard);
        let vip = SocketAddr::new(main.ip(), main.port() - 2);
        Place { main, vip, namesrv: broker.namesrv }
    }

    pub fn peer(&self, form: Form) -> Peer {
        Peer::open(self.main, form)
    }
}

/// Whether the shared broker is a stock one: how these tests were proven. Where RingMQ differs on purpose, a test says so by this.
pub fn stock() -> bool {
    Target::from_env().is_stock()
}

/// Gives a stock broker a moment: it shows a message a little after its answer, and works on several requests at once.
pub fn settle() {
    if stock() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The shared broker: one shard, `write`, everything else default.
pub fn shared() -> Place {
    let shared = SHARED.get_or_init(|| {
        // SAFETY: atexit takes a function without arguments; ours touches statics alone and does not unwind into C, as a panic in an
        // `extern "C"` function aborts.
        let registered = unsafe { libc::atexit(end_shared) };
        assert_eq!(registered, 0, "atexit");
        // A child ends with the thread that started it, and the thread of the first test ends early: this one does not.
        let (started, running) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let dir = tempdir("protocol");
            let options = Options { segment_bytes: 256 << 20, ..Options::default() };
            let broker = Broker::standalone(Target::from_env(), &dir.sub("broker"), options);
            if started.send(Running { broker, _dir: dir }).is_ok() {
                loop {
                    std::thread::park();
                }
            }
        });
        Mutex::new(Some(running.recv().expect("the shared broker starts")))
    });
    let running = lock(shared);
    let running = running.as_ref().expect("the shared broker runs until the program ends");
    Place::of(&running.broker, 0)
}

/// A broker of a test's own, with a piece of configuration.
pub struct Own {
    pub broker: Broker,
    pub place: Place,
    _dir: TempDir,
}

impl Own {
    pub fn start(what: &str, config: &str) -> Own {
        Own::start_with(what, Options { config: config.to_owned(), ..Options::default() })
    }

    pub fn start_with(what: &str, options: Options) -> Own {
        let dir = tempdir(what);
        let broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options);
        Own { place: Place::of(&broker, 0), broker, _dir: dir }
    }
}

static NAMES: AtomicUsize = AtomicUsize::new(0);

/// A name for a topic or a group that no other test has.
pub fn unique(what: &str) -> String {
    format!("{what}_{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A new topic on the shared broker.
pub fn topic(queues: i32) -> String {
    let name = unique("T");
    let mut peer = shared().peer(Form::Json);
    peer.call(17, &Ext::create_topic(&name, queues), &[]).ok();
    name
}

impl Peer {
    /// Sends one message to queue 0.
    #[track_caller]
    pub fn send(&mut self, topic: &str, pairs: &[(&str, &str)], body: &[u8]) -> Frame {
        self.call(310, &Ext::send(topic).properties(pairs), body).ok()
    }

    /// One past the last offset of a queue.
    #[track_caller]
    pub fn max_offset(&mut self, topic: &str, queue: i32) -> i64 {
        self.call(30, &Ext::queue(topic, queue), &[]).ok().number("offset")
    }

    /// All messages of a queue from an offset on, by one pull; waits for at least one.
    #[track_caller]
    pub fn pull(&mut self, topic: &str, queue: i32, offset: i64) -> Vec<Message> {
        let reply =
            self.call(11, &Ext::pull("TOOLS_CONSUMER", topic, queue, offset).waiting(15_000), &[]);
        assert_eq!(
            (reply.code, reply.remark()),
            (0, "FOUND"),
            "{topic} {queue} {offset}: {reply:?}"
        );
        Message::all(&reply.body)
    }

    /// The lowest offset of a queue that can be read.
    #[track_caller]
    pub fn min_offset(&mut self, topic: &str, queue: i32) -> i64 {
        self.call(31, &Ext::queue(topic, queue), &[]).ok().number("offset")
    }

    /// Stores a group's progress on a queue.
    #[track_caller]
    pub fn commit(&mut self, group: &str, topic: &str, queue: i32, offset: i64) {
        let ext = Ext::queue(topic, queue).with("consumerGroup", group);
        self.call(15, &ext.with("commitOffset", offset), &[]).ok();
    }

    /// A group's stored progress on a queue; `None` if there is none and the group's own rule decides.
    #[track_caller]
    pub fn committed(&mut self, group: &str, topic: &str, queue: i32) -> Option<i64> {
        let reply = self.call(14, &Ext::queue(topic, queue).with("consumerGroup", group), &[]);
        match reply.code {
            22 => None,
            _ => Some(reply.ok().number("offset")),
        }
    }

    /// The record at a physical offset.
    #[track_caller]
    pub fn view(&mut self, physical_offset: i64) -> Message {
        let reply = self.call(33, &Ext::none().with("offset", physical_offset), &[]).ok();
        Message::all(&reply.body).remove(0)
    }

    /// A topic's settings, as request 21 tells them; `None` if there is no such topic.
    pub fn topic_config(&mut self, topic: &str) -> Option<serde_json::Value> {
        let table = self.call(21, &Ext::none(), &[]).ok().json();
        table["topicConfigTable"].get(topic).cloned()
    }

    /// A group's settings, as request 201 tells them.
    pub fn group_config(&mut self, group: &str) -> Option<serde_json::Value> {
        let table = self.call(201, &Ext::none(), &[]).ok().json();
        table["subscriptionGroupTable"].get(group).cloned()
    }
}

/// What a test looks at in a stored message.
#[derive(Debug, Clone)]
pub struct Message {
    pub topic: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub flag: i32,
    pub sys_flag: i32,
    pub born: i64,
    pub stored: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub properties: String,
    pub body: Vec<u8>,
}

impl Message {
    #[track_caller]
    pub fn all(bytes: &[u8]) -> Vec<Message> {
        let records = Record::all(bytes).expect("whole records");
        let mut at = 0;
        let read = records.iter().map(|record| {
            let message = Message::from(record, &bytes[at..at + record.len]);
            at += record.len;
            message
        });
        read.collect()
    }

    fn from(record: &Record<'_>, bytes: &[u8]) -> Message {
        let int = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let host = |at: usize| {
            let ip: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
            SocketAddr::from((ip, int(at + 4) as u16))
        };
        assert_eq!(int(36) & 0x30, 0, "these tests run over IPv4");
        Message {
            topic: record.topic.to_owned(),
            queue_id: record.queue_id,
            queue_offset: record.queue_offset,
            physical_offset: record.physical_offset,
            flag: int(16),
            sys_flag: int(36),
            born: long(40),
            born_host: host(48),
            stored: long(56),
            store_host: host(64),
            reconsume_times: record.reconsume_times,
            properties: record.properties.to_owned(),
            body: record.body.to_vec(),
        }
    }

    /// The last value of a property.
    pub fn property(&self, name: &str) -> Option<&str> {
        let pairs = self.properties.split('\u{2}').filter_map(|p| p.split_once('\u{1}'));
        pairs.filter(|(known, _)| *known == name).map(|(_, value)| value).next_back()
    }

    /// The id under which a broker tells it.
    pub fn id(&self) -> String {
        offset_id(self.store_host, self.physical_offset)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// An offset message id, by this module's own hand.
pub fn offset_id(host: SocketAddr, physical_offset: i64) -> String {
    let SocketAddr::V4(host) = host else { panic!("these tests run over IPv4") };
    let ip: String = host.ip().octets().iter().map(|b| format!("{b:02X}")).collect();
    format!("{ip}{:08X}{physical_offset:016X}", host.port())
}

/// The physical offset in an offset message id.
#[track_caller]
pub fn physical_offset(id: &str) -> i64 {
    i64::from_str_radix(&id[id.len() - 16..], 16).unwrap_or_else(|e| panic!("{id}: {e}"))
}

/// Looks again and again until `look` gives something: for what has no event.
#[track_caller]
pub fn soon<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually(SOON, look).unwrap_or_else(|| panic!("{what}: not in {SOON:?}"))
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_millis() as i64
}

/// A consumer's heartbeat body with one subscription.
pub fn consumer_beat(
    client: &str,
    group: &str,
    topic: &str,
    expression: &str,
    version: i64,
) -> String {
    let tags: Vec<&str> = match expression {
        "*" => Vec::new(),
        tags => tags.split("||").map(str::trim).collect(),
    };
    serde_json::json!({
        "clientID": client,
        "consumerDataSet": [{
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [{
                "classFilterMode": false, "codeSet": [], "expressionType": "TAG", "subString": expression,
                "subVersion": version, "tagsSet": tags, "topic": topic,
            }],
            "unitMode": false,
        }],
        "producerDataSet": [],
    })
    .to_string()
}
