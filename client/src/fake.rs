//! A peer for unit tests: a server on loopback whose every reaction is scripted, and which remembers what it was asked.
//!
//! ```ignore
//! let broker = Fake::start(|command| match command.code {
//!     SEND_MESSAGE_V2 => refusal(SYSTEM_BUSY),
//!     _ => React::Answer(ok()),
//! })
//! .await;
//! let servers = Fake::name_server(vec![("a", broker.addr())], 4).await;
//! ```
//!
//! Nothing here sleeps for a result: the `until_` methods and [`eventually`] wait for it, and panic after [`PATIENCE`].

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringmq_net::body::{Body, BrokerData, QueueData, TopicRouteData};
use ringmq_net::code::request::GET_ROUTEINFO_BY_TOPIC;
use ringmq_net::code::response;
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_net::header::FLAG_RESPONSE;
use ringmq_net::record::RecordFields;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// After this long something that is waited for will not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What the peer does about a request.
pub(crate) enum React {
    /// Answers.
    Answer(Command),
    /// Answers later; further requests are read meanwhile.
    AnswerAfter(Duration, Command),
    /// Answers when this is ready; further requests are read meanwhile.
    AnswerWhen(Pin<Box<dyn Future<Output = Command> + Send>>),
    /// Asks the client something (the second), then answers (the first).
    Ask(Command, Command),
    /// Never answers.
    Silence,
    /// Closes the connection in the middle of the answer's frame.
    CutMidFrame,
    /// Closes the connection without a word.
    Close,
}

/// A scripted peer. Its port and all its connections are closed when it is dropped.
pub(crate) struct Fake {
    addr: SocketAddr,
    seen: Arc<Seen>,
    accept: JoinHandle<()>,
}

/// What came in, and the way out.
struct Seen {
    log: watch::Sender<Log>,
    writers: Mutex<Vec<mpsc::UnboundedSender<Out>>>,
    next_opaque: AtomicI32,
}

#[derive(Default)]
struct Log {
    /// Requests of clients, in order of arrival.
    requests: Vec<Command>,
    /// Clients' answers to what this peer asked.
    answers: Vec<Command>,
    connections: usize,
}

enum Out {
    Frame(Command),
    HalfFrame(Command),
    End,
}

type Script = Arc<dyn Fn(&Command) -> React + Send + Sync>;

impl Fake {
    /// A peer on a free port of 127.0.0.1.
    pub(crate) async fn start(react: impl Fn(&Command) -> React + Send + Sync + 'static) -> Fake {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), react).await
    }

    /// A peer on that port.
    pub(crate) async fn start_at(
        addr: SocketAddr,
        react: impl Fn(&Command) -> React + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Seen {
            log: watch::Sender::default(),
            writers: Mutex::default(),
            next_opaque: AtomicI32::new(1_000_000),
        });
        let accept = tokio::spawn(accept(listener, seen.clone(), Arc::new(react)));
        Fake { addr, seen, accept }
    }

    /// A name server that knows every topic, with that many queues on each of these brokers, see [`route`].
    pub(crate) async fn name_server(brokers: Vec<(&'static str, String)>, queues: i32) -> Fake {
        Self::start(move |command| match command.code {
            GET_ROUTEINFO_BY_TOPIC => React::Answer(ok().with_body(route(&brokers, queues))),
            _ => React::Answer(ok()),
        })
        .await
    }

    /// `host:port`.
    pub(crate) fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// Requests of that code so far, in order.
    pub(crate) fn asked(&self, code: i32) -> Vec<Command> {
        of_code(&self.seen.log.borrow(), code)
    }

    /// Waits until there were `count` requests of that code, and gives them.
    pub(crate) async fn until_asked(&self, code: i32, count: usize) -> Vec<Command> {
        let what = format!("{count} requests of code {code}");
        self.until(&what, |log| Some(of_code(log, code)).filter(|all| all.len() >= count)).await
    }

    /// Waits for the first answer of a client to what this peer asked, and gives it.
    pub(crate) async fn until_answered(&self) -> Command {
        self.until("an answer of the client", |log| log.answers.first().cloned()).await
    }

    /// Connections that were ever taken.
    pub(crate) fn connections(&self) -> usize {
        self.seen.log.borrow().connections
    }

    /// Asks the client that connected last, and waits for its answer.
    pub(crate) async fn ask(&self, mut command: Command) -> Command {
        command.opaque = self.seen.next_opaque.fetch_add(1, Ordering::Relaxed);
        let opaque = command.opaque;
        self.tell(command);
        let find = |log: &Log| log.answers.iter().find(|a| a.opaque == opaque).cloned();
        self.until("the answer to a question", find).await
    }

    /// Sends a request to the client that connected last, without waiting.
    pub(crate) fn tell(&self, command: Command) {
        let writers = self.seen.writers.lock().unwrap();
        let newest = writers.iter().rev().find(|writer| !writer.is_closed());
        newest.expect("nobody is connected").send(Out::Frame(command)).unwrap();
    }

    /// Closes all connections; the port stays open.
    pub(crate) fn cut(&self) {
        for writer in self.seen.writers.lock().unwrap().drain(..) {
            let _ = writer.send(Out::End);
        }
    }

    /// Closes port and connections, and waits until they are.
    pub(crate) async fn stop(mut self) {
        self.accept.abort();
        let _ = (&mut self.accept).await;
    }

    async fn until<T>(&self, what: &str, look: impl Fn(&Log) -> Option<T>) -> T {
        let mut log = self.seen.log.subscribe();
        let found = async {
            loop {
                if let Some(found) = look(&log.borrow_and_update()) {
                    return found;
                }
                log.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(found) => found,
            Err(_) => panic!("{} waited in vain for {what}", self.addr),
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

fn of_code(log: &Log, code: i32) -> Vec<Command> {
    log.requests.iter().filter(|command| command.code == code).cloned().collect()
}

async fn accept(listener: TcpListener, seen: Arc<Seen>, script: Script) {
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve(stream, seen.clone(), script.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, seen: Arc<Seen>, script: Script) {
    let (read, write) = stream.into_split();
    let (out, frames) = mpsc::unbounded_channel();
    seen.writers.lock().unwrap().push(out.clone());
    seen.log.send_modify(|log| log.connections += 1);
    tokio::select! {
        () = read_all(read, out, seen, script) => {}
        () = write_all(write, frames) => {}
    }
}

async fn read_all(
    mut half: OwnedReadHalf,
    out: mpsc::UnboundedSender<Out>,
    seen: Arc<Seen>,
    script: Script,
) {
    let mut buf = BytesMut::new();
    let mut later = JoinSet::new();
    loop {
        while let Peek::Frame(frame) = peek(&buf, FRAME_BYTES_MAX).unwrap() {
            let (command, len) = (Command::decode(&frame).unwrap(), frame.len);
            let _ = buf.split_to(len);
            if command.is_response() {
                seen.log.send_modify(|log| log.answers.push(command));
                continue;
            }
            seen.log.send_modify(|log| log.requests.push(command.clone()));
            let answer = |mut answer: Command| {
                answer.opaque = command.opaque;
                answer.flag = FLAG_RESPONSE;
                answer
            };
            let send = |frame| drop(out.send(frame));
            match script(&command) {
                React::Answer(reply) => send(Out::Frame(answer(reply))),
                React::Ask(reply, own) => {
                    send(Out::Frame(own));
                    send(Out::Frame(answer(reply)));
                }
                React::Silence => {}
                React::CutMidFrame => send(Out::HalfFrame(answer(ok().with_body(vec![7; 100])))),
                React::Close => send(Out::End),
                React::AnswerAfter(pause, reply) => {
                    let (out, reply) = (out.clone(), answer(reply));
                    later.spawn(async move {
                        tokio::time::sleep(pause).await;
                        let _ = out.send(Out::Frame(reply));
                    });
                }
                React::AnswerWhen(ready) => {
                    let (out, opaque) = (out.clone(), command.opaque);
                    later.spawn(async move {
                        let reply = Command { opaque, flag: FLAG_RESPONSE, ..ready.await };
                        let _ = out.send(Out::Frame(reply));
                    });
                }
            }
        }
        if half.read_buf(&mut buf).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

async fn write_all(mut half: OwnedWriteHalf, mut frames: mpsc::UnboundedReceiver<Out>) {
    while let Some(frame) = frames.recv().await {
        let mut bytes = BytesMut::new();
        let last = match frame {
            Out::Frame(command) => {
                command.encode(&mut bytes);
                false
            }
            Out::HalfFrame(command) => {
                command.encode(&mut bytes);
                bytes.truncate(bytes.len() / 2);
                true
            }
            Out::End => true,
        };
        if half.write_all(&bytes).await.is_err() || last {
            return;
        }
    }
}

/// An answer with code 0.
pub(crate) fn ok() -> Command {
    Command::request(response::SUCCESS)
}

/// The reaction of a peer that refuses with that code.
pub(crate) fn refusal(code: i32) -> React {
    React::Answer(Command {
        remark: Some(format!("refused with {code}")),
        ..Command::request(code)
    })
}

/// The body of a route: `queues` queues that take reads and writes on each of these brokers (name, master's address).
pub(crate) fn route(brokers: &[(&str, String)], queues: i32) -> Bytes {
    let data = TopicRouteData {
        queues: brokers
            .iter()
            .map(|(name, _)| QueueData {
                broker_name: (*name).to_owned(),
                read_queue_nums: queues,
                write_queue_nums: queues,
                perm: 6,
                topic_sys_flag: 0,
            })
            .collect(),
        brokers: brokers
            .iter()
            .map(|(name, addr)| BrokerData {
                cluster: "fakes".to_owned(),
                broker_name: (*name).to_owned(),
                broker_addrs: [(0, addr.clone())].into(),
            })
            .collect(),
        ..TopicRouteData::default()
    };
    data.to_json().into()
}

/// A stored message as pulls, checks and queries carry it: of queue 3, at queue offset 7 and physical offset 4660 of 127.0.0.1:10911, consumed
/// once before.
pub(crate) fn record(topic: &str, flags: i32, body: &[u8], properties: &str) -> Bytes {
    let fields = RecordFields {
        queue_id: 3,
        flag: 9,
        queue_offset: 7,
        physical_offset: 4660,
        sys_flag: flags,
        born_timestamp: 1,
        born_host: SocketAddr::from(([10, 0, 0, 9], 50_000)),
        store_timestamp: 2,
        store_host: SocketAddr::from(([127, 0, 0, 1], 10911)),
        reconsume_times: 1,
        prepared_transaction_offset: 0,
        body,
        topic,
        properties: properties.as_bytes(),
    };
    let mut out = vec![0; fields.encoded_len()];
    fields.encode(&mut out);
    out.into()
}

/// An address that refuses connections. It is not one of 127.0.0.1, where other tests' ports could come to be the same.
pub(crate) async fn nobody() -> String {
    let listener = match TcpListener::bind("127.0.0.2:0").await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind("127.0.0.1:0").await.unwrap(),
    };
    listener.local_addr().unwrap().to_string()
}

/// Waits until there is something.
pub(crate) async fn eventually<T>(look: impl Fn() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
