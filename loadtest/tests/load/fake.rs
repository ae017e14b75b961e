//! A broker of a few lines: it keeps records in memory, answers sends and pulls, and misbehaves on demand.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use ringmq_net::body::{Body, BrokerData, QueueData, TopicRouteData};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_net::record::{BatchBody, Properties, RecordFields};

/// How it misbehaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manners {
    /// Answer the sends of one read in reverse.
    pub(crate) reverse: bool,
    /// Answer every so manieth send with this code.
    pub(crate) refuse: Option<(u64, i32)>,
    /// Answer every so manieth send twice.
    pub(crate) repeat: Option<u64>,
    /// Close the connection instead of answering this send.
    pub(crate) close_at: Option<u64>,
    /// Answer nothing for this long, from this send on.
    pub(crate) stall: Option<(u64, Duration)>,
    /// Leave out the record of every so manieth send.
    pub(crate) lose: Option<u64>,
    /// Store the record of every so manieth send twice.
    pub(crate) double: Option<u64>,
    /// Change a byte of the body of every so manieth send.
    pub(crate) damage: Option<u64>,
    /// Store this send's record before all others of its queue but the first.
    pub(crate) overtake: Option<u64>,
    /// Work so long on each send.
    pub(crate) pause: Option<Duration>,
    /// First queue offset that is there.
    pub(crate) min_offset: i64,
}

/// One message as it came.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) key: String,
    pub(crate) queue: i32,
    pub(crate) properties: String,
    pub(crate) body: usize,
    pub(crate) at: Instant,
}

#[derive(Default)]
struct State {
    connections: u64,
    requests: u64,
    sent: Vec<Sent>,
    queues: BTreeMap<i32, Vec<Vec<u8>>>,
    stalled_until: Option<Instant>,
}

struct Shared {
    address: SocketAddr,
    manners: Manners,
    state: Mutex<State>,
    arrived: Condvar,
}

/// A running broker; its threads end with the process.
pub(crate) struct FakeBroker(Arc<Shared>);

impl FakeBroker {
    pub(crate) fn start(manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (state, arrived) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { address, manners, state, arrived });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                shared.lock().connections += 1;
                std::thread::spawn(move || serve(&shared, stream));
            }
        });
        FakeBroker(shared)
    }

    pub(crate) fn address(&self) -> String {
        self.0.address.to_string()
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.0.lock().sent.clone()
    }

    pub(crate) fn connections(&self) -> u64 {
        self.0.lock().connections
    }

    pub(crate) fn requests(&self) -> u64 {
        self.0.lock().requests
    }

    /// Stores `count` records in a queue.
    pub(crate) fn fill(&self, queue: i32, count: usize) {
        let mut state = self.0.lock();
        for number in 0..count {
            self.0.store(&mut state, queue, format!("body {number}").as_bytes(), "");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn store(&self, state: &mut State, queue: i32, body: &[u8], properties: &str) {
        let queue_records = state.queues.entry(queue).or_default();
        let host = self.address;
        let fields = RecordFields {
            queue_id: queue,
            flag: 0,
            queue_offset: self.manners.min_offset + queue_records.len() as i64,
            physical_offset: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_timestamp: 0,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            topic: "T",
            properties: properties.as_bytes(),
        };
        let mut record = vec![0; fields.encoded_len()];
        fields.encode(&mut record);
        queue_records.push(record);
    }
}

impl Shared {
    /// Has the last record of a queue stand before the others but the first, with queue offsets to match.
    fn bring_forward(&self, state: &mut State, queue: i32) {
        let records = state.queues.remove(&queue).unwrap_or_default();
        let rest = records.iter().skip(1).take(records.len().saturating_sub(2));
        let order = records.first().into_iter().chain(records.last()).chain(rest);
        for record in order {
            let view = ringmq_net::record::decode(record).unwrap();
            let properties = std::str::from_utf8(view.properties()).unwrap();
            self.store(state, queue, view.body(), properties);
        }
    }
}

fn serve(shared: &Arc<Shared>, mut stream: TcpStream) {
    let writer = Arc::new(Mutex::new(stream.try_clone().unwrap()));
    let (mut input, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        input.extend_from_slice(&chunk[..read]);
        let (mut used, mut replies) = (0, Vec::new());
        while let Ok(Peek::Frame(frame)) = peek(&input[used..], FRAME_BYTES_MAX) {
            used += frame.len;
            let command = Command::decode(&frame).unwrap();
            let answered = match command.code {
                request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => send(shared, &command),
                request::PULL_MESSAGE => {
                    pull(shared, &writer, command);
                    Some(Vec::new())
                }
                _ => Some(vec![other(shared, &command)]),
            };
            match answered {
                Some(more) => replies.extend(more),
                None => return,
            }
        }
        input.drain(..used);
        if shared.manners.reverse {
            replies.reverse();
        }
        if let Some(until) = shared.lock().stalled_until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let mut out = BytesMut::new();
        replies.iter().for_each(|reply| reply.encode(&mut out));
        if writer.lock().unwrap().write_all(&out).is_err() {
            return;
        }
    }
}

fn reply(to: &Command, code: i32) -> Command {
    Command { opaque: to.opaque, flag: 1, serialize: to.serialize, ..Command::request(code) }
}

/// The answers to a send; `None` closes the connection.
fn send(shared: &Shared, command: &Command) -> Option<Vec<Command>> {
    if let Some(pause) = shared.manners.pause {
        std::thread::sleep(pause);
    }
    let mut state = shared.lock();
    state.requests += 1;
    let number = state.requests;
    let every = |nth: Option<u64>| nth.is_some_and(|nth| number.is_multiple_of(nth));
    let queue = command.ext("e").unwrap().parse().unwrap();
    if shared.manners.close_at == Some(number) {
        return None;
    }
    if let Some((from, pause)) = shared.manners.stall
        && number == from
    {
        state.stalled_until = Some(Instant::now() + pause);
    }
    if let Some((_, code)) = shared.manners.refuse.filter(|(nth, _)| every(Some(*nth))) {
        let refused = Command { remark: Some("not now".into()), ..reply(command, code) };
        return Some(vec![refused]);
    }
    let mut messages = Vec::new();
    if command.code == request::SEND_BATCH_MESSAGE {
        for message in BatchBody::parse(&command.body).unwrap().messages() {
            let properties = std::str::from_utf8(message.properties).unwrap().to_owned();
            messages.push((message.body.to_vec(), properties));
        }
    } else {
        let properties = command.ext("i").unwrap_or_default().to_owned();
        messages.push((command.body.to_vec(), properties));
    }
    for (mut body, properties) in messages {
        if every(shared.manners.damage)
            && let Some(byte) = body.last_mut()
        {
            *byte ^= 1;
        }
        let copies = if every(shared.manners.lose) {
            0
        } else {
            1 + u64::from(every(shared.manners.double))
        };
        (0..copies).for_each(|_| shared.store(&mut state, queue, &body, &properties));
        if shared.manners.overtake == Some(number) {
            shared.bring_forward(&mut state, queue);
        }
        let key = Properties::new(&properties).get("UNIQ_KEY").unwrap_or_default().to_owned();
        state.sent.push(Sent { key, queue, properties, body: body.len(), at: Instant::now() });
    }
    shared.arrived.notify_all();
    let done = reply(command, response::SUCCESS).with_ext("queueId", queue);
    Some(if every(shared.manners.repeat) { vec![done.clone(), done] } else { vec![done] })
}

/// Answers a pull, on a thread of its own if it has to be held.
fn pull(shared: &Arc<Shared>, writer: &Arc<Mutex<TcpStream>>, command: Command) {
    let number = |name: &str| command.ext(name).unwrap().parse::<i64>().unwrap();
    let hold = if number("sysFlag") & 2 != 0 { number("suspendTimeoutMillis") } else { 0 };
    let until = Instant::now() + Duration::from_millis(hold as u64);
    let (shared, writer) = (Arc::clone(shared), Arc::clone(writer));
    let answer = move || {
        let mut state = shared.lock();
        loop {
            let reply = pull_reply(&shared, &state, &command);
            let left = until.saturating_duration_since(Instant::now());
            if reply.code != response::PULL_NOT_FOUND || left.is_zero() {
                drop(state);
                let mut out = BytesMut::new();
                reply.encode(&mut out);
                // A client that left does not want it.
                let _ = writer.lock().unwrap().write_all(&out);
                return;
            }
            state = shared.arrived.wait_timeout(state, left).unwrap().0;
        }
    };
    if hold > 0 {
        std::thread::spawn(answer);
    } else {
        answer();
    }
}

fn pull_reply(shared: &Shared, state: &State, command: &Command) -> Command {
    let number = |name: &str| command.ext(name).unwrap().parse::<i64>().unwrap();
    let (offset, min) = (number("queueOffset"), shared.manners.min_offset);
    let records = state.queues.get(&(number("queueId") as i32)).map_or(&[][..], Vec::as_slice);
    let max = min + records.len() as i64;
    let (code, next) = match offset {
        _ if offset < min => (response::PULL_OFFSET_MOVED, min),
        _ if offset > max => (response::PULL_OFFSET_MOVED, max),
        _ if offset == max => (response::PULL_NOT_FOUND, offset),
        _ => (response::SUCCESS, max.min(offset + number("maxMsgNums"))),
    };
    let found = if code == response::SUCCESS {
        records[(offset - min) as usize..(next - min) as usize].concat()
    } else {
        Vec::new()
    };
    reply(command, code)
        .with_ext("suggestWhichBrokerId", 0)
        .with_ext("nextBeginOffset", next)
        .with_ext("minOffset", min)
        .with_ext("maxOffset", max)
        .with_body(found)
}

fn other(shared: &Shared, command: &Command) -> Command {
    match command.code {
        request::GET_MAX_OFFSET | request::GET_MIN_OFFSET => {
            let queue = command.ext("queueId").unwrap().parse().unwrap();
            let records = shared.lock().queues.get(&queue).map_or(0, Vec::len) as i64;
            let max = if command.code == request::GET_MAX_OFFSET { records } else { 0 };
            reply(command, 0).with_ext("offset", shared.manners.min_offset + max)
        }
        request::GET_ROUTEINFO_BY_TOPIC if command.ext("topic") == Some("known") => {
            let queue = |name: &str, perm| QueueData {
                broker_name: name.into(),
                read_queue_nums: 3,
                write_queue_nums: 2,
                perm,
                topic_sys_flag: 0,
            };
            let broker = |name: &str, id| BrokerData {
                cluster: "C".into(),
                broker_name: name.into(),
                broker_addrs: [(id, shared.address.to_string())].into(),
            };
            let route = TopicRouteData {
                queues: vec![queue("a", 6), queue("readonly", 4), queue("slave", 6)],
                brokers: vec![broker("a", 0), broker("readonly", 0), broker("slave", 1)],
                ..TopicRouteData::default()
            };
            reply(command, 0).with_body(route.to_json())
        }
        request::GET_ROUTEINFO_BY_TOPIC => reply(command, response::TOPIC_NOT_EXIST),
        _ => reply(command, response::REQUEST_CODE_NOT_SUPPORTED),
    }
}
