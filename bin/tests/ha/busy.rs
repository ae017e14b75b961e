//! A stock master that answers requests for its tables late, with refusals, with nonsense or not at all. It is one of the test's own that
//! says what it is told to, byte by byte as stock 4.9.8 does.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::broker::NameServer;
use crate::support::ha::{CAUGHT_UP_MAX, QUICK, await_text, number};
use crate::support::wire::{Conn, code, eventually, put_flagged};
use crate::support::{Broker, Options, Target, ports, tempdir};
use crate::{SLAVE, TOPIC, stream};

const TOPICS: i32 = 21;
const GROUPS: i32 = 201;
const OFFSETS: i32 = 43;
const DELAYS: i32 = 45;
const RUNTIME: i32 = 28;
const RESPONSE: i32 = 1;

const BUSY: i32 = 2;
const NOT_FOUND: i32 = 22;

/// What is said to a request.
#[derive(Clone)]
enum Say {
    Body(String),
    Field(&'static str, &'static str),
    Refusal(i32),
    Nothing,
}

#[derive(Default)]
struct Script {
    says: HashMap<i32, Say>,
    /// How often each request came, and the fields of the last one.
    asked: HashMap<i32, (usize, HashMap<String, String>)>,
}

/// The master. Ends when dropped.
struct Scripted {
    port: u16,
    script: Arc<Mutex<Script>>,
    ending: Arc<AtomicBool>,
    /// Its connections to slaves are to end.
    era: Arc<Mutex<u64>>,
    threads: Vec<JoinHandle<()>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

const LOOK: Duration = Duration::from_millis(50);

impl Scripted {
    fn start() -> Scripted {
        Scripted::with_heartbeats(false)
    }

    fn with_heartbeats(hasty: bool) -> Scripted {
        let port = ports::broker_block(1);
        let mut master = Scripted {
            port,
            script: Arc::default(),
            ending: Arc::default(),
            era: Arc::default(),
            threads: Vec::new(),
        };
        for requests in [port, port - 2] {
            let (script, ending) = (Arc::clone(&master.script), Arc::clone(&master.ending));
            master.listen(requests, move |stream| answer_all(stream, &script, &ending));
        }
        let (ending, era) = (Arc::clone(&master.ending), Arc::clone(&master.era));
        master.listen(port + 1, move |stream| be_a_silent_log(stream, &ending, &era, hasty));
        master
    }

    fn listen(&mut self, port: u16, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port of the master");
        let ending = Arc::clone(&self.ending);
        self.threads.push(std::thread::spawn(move || {
            let mut served = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                if ending.load(Ordering::SeqCst) {
                    break;
                }
                stream.set_read_timeout(Some(LOOK)).expect("a timeout");
                let serve = serve.clone();
                served.push(std::thread::spawn(move || serve(stream)));
            }
            served.into_iter().for_each(|thread| drop(thread.join()));
        }));
    }

    fn say(&self, code: i32, say: Say) {
        locked(&self.script).says.insert(code, say);
    }

    fn asked(&self, code: i32) -> usize {
        locked(&self.script).asked.get(&code).map_or(0, |(times, _)| *times)
    }

    /// Waits until a request came so many times more.
    fn await_asked(&self, code: i32, more: usize) {
        let before = self.asked(code);
        let came = eventually(CAUGHT_UP_MAX, || (self.asked(code) >= before + more).then_some(()));
        assert!(came.is_some(), "request {code} does not come");
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        for port in [self.port, self.port - 2, self.port + 1] {
            // Wakes who accepts there.
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Reads exactly so much, unless it is time to end or the peer has.
fn read_all(stream: &mut TcpStream, to: &mut [u8], ending: &AtomicBool) -> Option<()> {
    let mut have = 0;
    while have < to.len() {
        match stream.read(&mut to[have..]) {
            Ok(0) => return None,
            Ok(len) => have += len,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock) => {}
            Err(_) => return None,
        }
        if ending.load(Ordering::SeqCst) {
            return None;
        }
    }
    Some(())
}

fn answer_all(mut stream: TcpStream, script: &Mutex<Script>, ending: &AtomicBool) {
    let mut head = [0; 8];
    while read_all(&mut stream, &mut head, ending).is_some() {
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let mut rest = vec![0; word(0) as usize - 4];
        if read_all(&mut stream, &mut rest, ending).is_none() {
            return;
        }
        let header = &rest[..(word(4) & 0xFF_FFFF) as usize];
        let header: serde_json::Value = serde_json::from_slice(header).expect("a JSON header");
        let number = |name: &str| header[name].as_i64().expect("a number") as i32;
        let fields = header["extFields"].as_object().cloned().unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let fields = fields.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let say = {
            let mut script = locked(script);
            let code = number("code");
            let asked = script.asked.entry(code).or_default();
            *asked = (asked.0 + 1, fields);
            script.says.get(&code).cloned().unwrap_or(Say::Refusal(3))
        };
        let mut out = Vec::new();
        let mut put = |code: i32, ext: &[(&str, &str)], body: &[u8]| {
            put_flagged(&mut out, code, RESPONSE, number("opaque"), ext, body);
        };
        match say {
            Say::Body(body) => put(0, &[], body.as_bytes()),
            Say::Field(name, value) => put(0, &[(name, value)], &[]),
            Say::Refusal(code) => put(code, &[], &[]),
            Say::Nothing => {}
        }
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

/// The HA port of a master without a message: a heartbeat says that the log goes on where the slave reported. There is none to one that
/// has reported nothing, and none to a hello, unless the master's heartbeats come so fast that one is due: it says the same then.
fn be_a_silent_log(mut stream: TcpStream, ending: &AtomicBool, era: &Mutex<u64>, hasty: bool) {
    let of = *locked(era);
    let mut heartbeat = None;
    while !ending.load(Ordering::SeqCst) && *locked(era) == of {
        let mut reports = [0; 512];
        match stream.read(&mut reports) {
            Ok(0) => return,
            Ok(len) => {
                let last = &reports[(len / 8).saturating_sub(1) * 8..][..8];
                let is_hello = last[0] & 0x80 != 0;
                heartbeat = (hasty || !is_hello).then(|| [last, &[0; 4]].concat());
            }
            Err(e) if !matches!(e.kind(), std::io::ErrorKind::WouldBlock) => return,
            Err(_) => {}
        }
        if heartbeat.as_ref().is_some_and(|bytes| stream.write_all(bytes).is_err()) {
            return;
        }
    }
}

fn topics() -> Say {
    Say::Body(format!(
        "{{\"dataVersion\":{{\"counter\":1,\"timestamp\":1700000000000}},\"topicConfigTable\":{{\"{TOPIC}\":{{\"topicName\":\"{TOPIC}\",\"readQueueNums\":4,\"writeQueueNums\":4,\"perm\":6,\"topicFilterType\":\"SINGLE_TAG\",\"topicSysFlag\":0,\"order\":false}}}}}}"
    ))
}

fn groups() -> Say {
    Say::Body("{\"dataVersion\":{\"counter\":1,\"timestamp\":1700000000000},\"subscriptionGroupTable\":{\"writers\":{\"groupName\":\"writers\",\"consumeEnable\":true,\"retryQueueNums\":1,\"retryMaxTimes\":16}}}".to_owned())
}

fn offsets(at: i64) -> Say {
    Say::Body(format!("{{\"offsetTable\":{{\"{TOPIC}@readers\":{{0:{at}}}}}}}"))
}

fn runtime() -> Say {
    Say::Body("{\"table\":{\"commitLogMinOffset\":\"0\",\"commitLogMaxOffset\":\"0\"}}".to_owned())
}

/// A slave of it, and the name server of both.
fn slave_of(master: &Scripted, dir: &std::path::Path) -> (Broker, NameServer) {
    let namesrv = NameServer::start(Target::RingMq, &dir.join("namesrv"));
    let quick = QUICK.replace("oldest", "newest");
    let options = Options {
        args: SLAVE.iter().map(|arg| (*arg).to_owned()).collect(),
        config: format!("[ha]\nmaster = \"127.0.0.1:{}\"\n{quick}", master.port + 1),
        ..Options::default()
    };
    let mut slave = Broker::new(Target::RingMq, &dir.join("slave"), options, Some(namesrv.address));
    slave.start();
    (slave, namesrv)
}

fn progress(slave: SocketAddr) -> Option<i64> {
    let asked = [("consumerGroup", "readers"), ("topic", TOPIC), ("queueId", "0")];
    let mut conn = Conn::open(slave).expect("a connection");
    let reply = conn.call(code::QUERY_CONSUMER_OFFSET, &asked, &[]).expect("an answer");
    (reply.code == 0).then(|| reply.number("offset"))
}

fn knows(slave: SocketAddr, request: i32, name: &str) -> bool {
    let mut conn = Conn::open(slave).expect("a connection");
    let reply = conn.call(request, &[], &[]).expect("an answer");
    String::from_utf8_lossy(&reply.body).contains(name)
}

fn await_progress(slave: SocketAddr, offset: i64) {
    let there = eventually(CAUGHT_UP_MAX, || (progress(slave) == Some(offset)).then_some(()));
    assert!(there.is_some(), "{:?}, not {offset}", progress(slave));
}

#[test]
fn each_table_of_a_stock_master_is_taken_when_it_is_told_whatever_becomes_of_the_others() {
    let dir = tempdir("ha-busy-master");
    let master = Scripted::start();
    master.say(RUNTIME, runtime());
    master.say(TOPICS, Say::Refusal(BUSY));
    master.say(OFFSETS, Say::Body("{\"offsetTable\":".to_owned()));
    master.say(DELAYS, Say::Refusal(1));
    master.say(GROUPS, Say::Nothing);
    let (slave, _namesrv) = slave_of(&master, dir.path());
    let at = slave.address(0);
    await_text(at, "ringmqHaState", |state| state == "following");
    // A round is over that waited for the groups in vain.
    master.await_asked(TOPICS, 1);
    assert!(!knows(at, TOPICS, TOPIC));
    // The log has nothing to do with it.
    assert_eq!(number(at, "ringmqHaConnections"), Some(1));
    await_text(at, "ringmqHaState", |state| state == "following");
    master.say(TOPICS, topics());
    master.say(OFFSETS, offsets(5));
    stream::await_topic_at(&slave);
    await_progress(at, 5);
    assert!(!knows(at, GROUPS, "writers"));
    master.say(GROUPS, groups());
    let known = eventually(CAUGHT_UP_MAX, || knows(at, GROUPS, "writers").then_some(()));
    assert!(known.is_some(), "the groups do not come");
    // What was there stays while it is refused again, or is no table.
    for say in [Say::Refusal(BUSY), Say::Body("{}".to_owned()), Say::Body(String::new())] {
        for code in [TOPICS, OFFSETS, GROUPS] {
            master.say(code, say.clone());
        }
        master.await_asked(GROUPS, 2);
        assert_eq!(progress(at), Some(5));
        assert!(knows(at, TOPICS, TOPIC) && knows(at, GROUPS, "writers"));
    }
    assert_eq!(number(at, "ringmqHaConnections"), Some(1));
}

#[test]
fn a_busy_stock_master_is_told_of_progress_when_it_takes_it_and_is_known_again() {
    let dir = tempdir("ha-busy-range");
    let master = Scripted::start();
    for (code, say) in [(RUNTIME, runtime()), (TOPICS, topics()), (GROUPS, groups())] {
        master.say(code, say);
    }
    master.say(OFFSETS, offsets(5));
    master.say(code::QUERY_CONSUMER_OFFSET, Say::Refusal(BUSY));
    let (slave, _namesrv) = slave_of(&master, dir.path());
    let at = slave.address(0);
    await_progress(at, 5);
    stream::commit(&slave, "readers", "0", "50");
    // That it is busy does not say that it knows of nothing.
    master.await_asked(code::QUERY_CONSUMER_OFFSET, 2);
    assert_eq!(master.asked(code::UPDATE_CONSUMER_OFFSET), 0);
    assert_eq!((progress(at), number(at, "ringmqHaUntold")), (Some(50), Some(1)));
    // It answers, and refuses to be told.
    master.say(code::QUERY_CONSUMER_OFFSET, Say::Field("offset", "5"));
    master.say(code::UPDATE_CONSUMER_OFFSET, Say::Refusal(BUSY));
    master.await_asked(code::UPDATE_CONSUMER_OFFSET, 2);
    assert_eq!((progress(at), number(at, "ringmqHaUntold")), (Some(50), Some(1)));

    // The connection ends, and on the next one nobody says whose tables those are: they are not taken, and it is not told.
    master.say(RUNTIME, Say::Refusal(BUSY));
    *locked(&master.era) += 1;
    await_text(at, "ringmqHaConnections", |count| count.parse().is_ok_and(|count: u64| count > 1));
    master.await_asked(RUNTIME, 2);
    let before = (master.asked(code::UPDATE_CONSUMER_OFFSET), master.asked(TOPICS));
    master.await_asked(RUNTIME, 3);
    let now = (master.asked(code::UPDATE_CONSUMER_OFFSET), master.asked(TOPICS));
    assert_eq!(before, now);
    assert_eq!((progress(at), number(at, "ringmqHaUntold")), (Some(50), Some(1)));
    // Its table goes on to say less: nothing but the telling itself can end it.
    master.say(code::QUERY_CONSUMER_OFFSET, Say::Refusal(NOT_FOUND));
    master.say(code::UPDATE_CONSUMER_OFFSET, Say::Body(String::new()));
    master.say(RUNTIME, runtime());
    await_text(at, "ringmqHaState", |state| state == "following");
    await_text(at, "ringmqHaUntold", |untold| untold == "0");
    assert_eq!(master.asked(code::UPDATE_CONSUMER_OFFSET), now.0 + 1);
    let told = locked(&master.script).asked[&code::UPDATE_CONSUMER_OFFSET].1.clone();
    let field = |name: &str| told.get(name).map(String::as_str);
    assert_eq!(
        (field("consumerGroup"), field("queueId"), field("commitOffset")),
        (Some("readers"), Some("0"), Some("50"))
    );
    // From here on what it says counts, and it is not told again.
    await_progress(at, 5);
    master.say(OFFSETS, offsets(60));
    await_progress(at, 60);
    assert_eq!(master.asked(code::UPDATE_CONSUMER_OFFSET), now.0 + 1);
}

#[test]
fn progress_on_what_the_master_has_no_more_is_forgotten_and_told_neither_now_nor_after_a_start() {
    let dir = tempdir("ha-gone");
    let master = Scripted::start();
    for (code, say) in [(RUNTIME, runtime()), (TOPICS, topics()), (GROUPS, groups())] {
        master.say(code, say);
    }
    master.say(OFFSETS, offsets(5));
    master.say(code::QUERY_CONSUMER_OFFSET, Say::Refusal(BUSY));
    master.say(code::UPDATE_CONSUMER_OFFSET, Say::Body(String::new()));
    let (mut slave, _namesrv) = slave_of(&master, dir.path());
    let at = slave.address(0);
    await_progress(at, 5);
    let known = eventually(CAUGHT_UP_MAX, || knows(at, GROUPS, "writers").then_some(()));
    assert!(known.is_some(), "the groups do not come");
    stream::commit(&slave, "readers", "0", "50");
    stream::commit(&slave, "writers", "0", "40");
    await_text(at, "ringmqHaUntold", |untold| untold == "2");
    // The master never had the group of the readers in its table: that one is not gone.
    master.say(GROUPS, Say::Body("{\"dataVersion\":{\"counter\":2,\"timestamp\":1700000000000},\"subscriptionGroupTable\":{}}".to_owned()));
    await_text(at, "ringmqHaUntold", |untold| untold == "1");
    master.await_asked(GROUPS, 2);
    assert_eq!((progress(at), number(at, "ringmqHaUntold")), (Some(50), Some(1)));
    master.say(OFFSETS, Say::Body("{\"offsetTable\":{}}".to_owned()));
    master.say(
        TOPICS,
        Say::Body(
            "{\"dataVersion\":{\"counter\":2,\"timestamp\":1700000000000},\"topicConfigTable\":{}}"
                .to_owned(),
        ),
    );
    await_text(at, "ringmqHaUntold", |untold| untold == "0");
    assert!(!knows(at, TOPICS, TOPIC));
    assert_ne!(progress(at), Some(50));
    master.say(code::QUERY_CONSUMER_OFFSET, Say::Refusal(NOT_FOUND));
    master.await_asked(GROUPS, 2);
    // The topics are saved after that is, so one that is without them has nothing to tell.
    let saved = eventually(CAUGHT_UP_MAX, || {
        let text = std::fs::read_to_string(slave.store_dir().join("config/topics.json")).ok()?;
        (!text.contains(&format!("\"{TOPIC}\""))).then_some(())
    });
    assert!(saved.is_some(), "the topics are not saved");
    slave.sigkill();
    slave.start();
    await_text(at, "ringmqHaState", |state| state == "following");
    assert_eq!(number(at, "ringmqHaUntold"), Some(0));
    master.await_asked(GROUPS, 2);
    assert_eq!(master.asked(code::UPDATE_CONSUMER_OFFSET), 0);
}

#[test]
fn a_stock_master_that_answers_no_question_is_followed_however_soon_its_heartbeats_come() {
    for hasty in [false, true] {
        let dir = tempdir("ha-hasty-master");
        let master = Scripted::with_heartbeats(hasty);
        master.say(RUNTIME, Say::Refusal(BUSY));
        let (slave, _namesrv) = slave_of(&master, dir.path());
        await_text(slave.address(0), "ringmqHaState", |state| state == "following");
        await_text(slave.address(0), "ringmqHaProtocol", |protocol| protocol == "stock");
    }
}
