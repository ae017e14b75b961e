//! A broker on a reactor of its own, driven from there: what sockets and load would bring about only now and then.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clap::Parser;
use glommio::timer::Timer;
use glommio::{Latency, Shares};
use ringmq_net::code::{request, response};
use ringmq_net::command::Command;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_net::header::HeaderDecoder;
use ringmq_net::headers::pull_flag;
use ringmq_net::server::{Conn, Gathering, Server, Service};

use super::service::BrokerService;
use super::{Broker, BrokerConfig};
use crate::cli::{self, Cli};
use crate::config::{Machine, Settings};
use crate::reactor::{ReactorOptions, Seat, Stop, spawn_reactors};

/// Between two looks at what is gathered: a connection that is silent for eight of them is not gathered any more.
const LOOK: Duration = Duration::from_millis(40);
/// What a machine may be too busy for.
const TRIES: u32 = 12;
const SOON: Duration = Duration::from_secs(20);

/// A running broker and one client of it, on its reactor.
struct Rig {
    broker: Rc<Broker>,
    server: Rc<Server>,
    client: Peer,
}

/// Runs `test` on the reactor of a broker that gathers.
fn on_a_broker<F: Future<Output = ()> + 'static>(test: fn(Rig) -> F) {
    let dir = tempfile::tempdir_in(".").unwrap();
    let listen = free_block();
    let cli = Cli::parse_from([
        "ringmq",
        "broker",
        "--shards",
        "1",
        "--listen",
        &listen.to_string(),
        "--advertise",
        &listen.ip().to_string(),
        "--data-dir",
        &dir.path().display().to_string(),
    ]);
    let cli::Command::Broker(args) = cli.command else { panic!("a broker was asked for") };
    let settings = Arc::new(Settings::broker(&args, Machine::detect()).unwrap());
    let seats = vec![Seat { name: "test".to_owned(), load: settings }];
    let options = ReactorOptions { cpus: vec![], stall: Duration::from_secs(5) };
    let reactors = spawn_reactors(
        seats,
        &options,
        &Stop::new(),
        move |_, settings: Arc<Settings>| async move {
            let serving = glommio::executor().create_task_queue(
                Shares::default(),
                Latency::NotImportant,
                "serving",
            );
            let config = BrokerConfig::new(&settings, &settings.shards[0])?;
            let broker = Broker::open(config, &settings, serving).await?;
            let server = broker.listen(&settings.config.limits, 100)?;
            let tasks = broker.start_tasks(serving).map_err(|error| error.to_string())?;
            server.set_gathering(Gathering::Always(LOOK));
            let client = Peer::connect(listen);
            test(Rig { broker: Rc::clone(&broker), server: Rc::clone(&server), client }).await;
            broker.stop(&server, tasks, Duration::ZERO).await
        },
    );
    reactors.unwrap().join().unwrap();
}

/// A port with two free ones around it as a shard needs them, at a loopback address that nobody else uses.
fn free_block() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, high.max(1), low, NEXT.fetch_add(1, Ordering::Relaxed));
    loop {
        let port = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        if [port - 2, port, port + 1].iter().all(|port| TcpListener::bind((ip, *port)).is_ok()) {
            return SocketAddr::from((ip, port));
        }
    }
}

/// A client whose writes are in the broker's socket when they return.
struct Peer {
    stream: TcpStream,
    kept: Vec<u8>,
}

impl Peer {
    fn connect(addr: SocketAddr) -> Peer {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Peer { stream, kept: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    async fn reply(&mut self) -> Command {
        let deadline = Instant::now() + SOON;
        loop {
            if let Peek::Frame(frame) = peek(&self.kept, FRAME_BYTES_MAX).unwrap() {
                let len = frame.len;
                let command = Command::decode(&frame).unwrap();
                self.kept.drain(..len);
                return command;
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the broker closed"),
                Ok(n) => self.kept.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "no reply");
                    Timer::new(Duration::from_millis(1)).await;
                }
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// The replies to two requests, in their order.
    async fn replies_to(&mut self, first: i32, second: i32) -> [Command; 2] {
        let (one, other) = (self.reply().await, self.reply().await);
        let replies = if one.opaque == first { [one, other] } else { [other, one] };
        assert_eq!((replies[0].opaque, replies[1].opaque), (first, second));
        replies
    }
}

impl Rig {
    fn conn(&self) -> Rc<Conn> {
        let conns = self.server.conns();
        assert_eq!(conns.len(), 1);
        Rc::clone(&conns[0])
    }

    /// Has the broker store a message, and leaves the client's connection gathered or not.
    async fn with_one_more(&mut self, gathered: bool) {
        loop {
            self.client.send(&send(1));
            assert_eq!(self.client.reply().await.code, response::SUCCESS);
            if self.conn().is_gathered() == gathered {
                return;
            }
            Timer::new(Duration::from_millis(1)).await;
        }
    }

    /// The end of the queue, as a client could see it now.
    fn end(&self) -> i64 {
        self.broker.shard.existing_queue("gathered", 0).unwrap().max_offset()
    }
}

fn frame(command: Command, opaque: i32) -> Vec<u8> {
    let mut out = BytesMut::new();
    Command { opaque, ..command }.encode(&mut out);
    out.to_vec()
}

fn send(opaque: i32) -> Vec<u8> {
    let fields = [
        ("a", "senders"),
        ("b", "gathered"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", ""),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let command = Command::request(request::SEND_MESSAGE_V2).with_body(&b"a message"[..]);
    frame(
        fields.into_iter().fold(command, |command, (name, value)| command.with_ext(name, value)),
        opaque,
    )
}

fn pull(opaque: i32, offset: i64, messages: i32) -> Vec<u8> {
    let command = Command::request(request::PULL_MESSAGE)
        .with_ext("consumerGroup", "readers")
        .with_ext("topic", "gathered")
        .with_ext("queueId", 0)
        .with_ext("queueOffset", offset)
        .with_ext("maxMsgNums", messages)
        .with_ext("sysFlag", pull_flag::SUBSCRIPTION | pull_flag::SUSPEND)
        .with_ext("commitOffset", 0)
        .with_ext("suspendTimeoutMillis", 15_000)
        .with_ext("subscription", "*")
        .with_ext("subVersion", 0);
    frame(command, opaque)
}

fn next_offset(reply: &Command) -> i64 {
    assert_eq!(reply.code, response::SUCCESS, "{reply:?}");
    reply.ext("nextBeginOffset").unwrap().parse().unwrap()
}

/// Hands frames to the broker as a gathered turn does, which this connection is in.
fn gathered_turn(service: &BrokerService, conn: &Rc<Conn>, frames: &[Vec<u8>]) {
    assert!(conn.is_gathered());
    let mut decoder = HeaderDecoder::new();
    for bytes in frames {
        let Peek::Frame(frame) = peek(bytes, FRAME_BYTES_MAX).unwrap() else { panic!("no frame") };
        let header = decoder.decode(frame.serialize, frame.header).unwrap();
        service.on_frame(conn, &header, frame.body);
    }
    service.on_turn_end();
}

#[test]
fn a_pull_beside_a_send_in_a_gathered_turn_brings_that_message() {
    on_a_broker(|mut rig| async move {
        // A write that takes longer than to the next look is not waited for, and the pull after that does not wait.
        for tries_left in (0..TRIES).rev() {
            rig.with_one_more(true).await;
            let end = rig.end();
            // Both are in the socket before the next look, the pull first: at once it would bring less.
            rig.client.send(&[pull(2, 0, 32), send(3)].concat());
            let [pulled, sent] = rig.client.replies_to(2, 3).await;
            assert_eq!(sent.code, response::SUCCESS);
            if (next_offset(&pulled), rig.end()) == (end + 1, end + 1) {
                break;
            }
            assert!(tries_left > 0, "{pulled:?} where the queue ended at {end}");
        }

        // One that has all it wants is answered with what was there.
        rig.with_one_more(true).await;
        rig.client.send(&[pull(2, 0, 1), send(3)].concat());
        assert_eq!(next_offset(&rig.client.replies_to(2, 3).await[0]), 1);

        // Where nothing is gathered, as always.
        rig.server.set_gathering(Gathering::Never);
        rig.with_one_more(false).await;
        let end = rig.end();
        rig.client.send(&[pull(2, 0, 32), send(3)].concat());
        let [pulled, _] = rig.client.replies_to(2, 3).await;
        assert_eq!((next_offset(&pulled), rig.end()), (end, end + 1));
        assert_eq!(rig.broker.late.borrow().len(), 0);
    });
}

#[test]
fn a_gathered_pull_waits_until_the_next_look_at_most_and_goes_with_its_connection() {
    on_a_broker(|mut rig| async move {
        rig.with_one_more(true).await;
        let end = rig.end();
        let service = BrokerService(Rc::clone(&rig.broker));
        let late = || rig.broker.late.borrow().len();
        let conn = rig.conn();
        // No write completes meanwhile: nothing is waited for from here ...
        gathered_turn(&service, &conn, &[pull(2, 0, 32)]);
        assert_eq!(late(), 0, "the turn brought nothing for its queue");
        gathered_turn(&service, &conn, &[pull(3, 0, 32), send(4)]);
        assert_eq!(late(), 1);
        service.on_look();
        assert_eq!(late(), 0);
        // ... and the look after one that was waited for in vain does not wait.
        gathered_turn(&service, &conn, &[pull(5, 0, 32), send(6)]);
        assert_eq!(late(), 0);
        service.on_look();
        gathered_turn(&service, &conn, &[pull(7, 0, 32), send(8)]);
        assert_eq!(late(), 1);
        rig.broker.on_close(&conn);
        assert_eq!(late(), 0);
        // ... to here.
        for _ in 0..6 {
            let reply = rig.client.reply().await;
            match reply.opaque {
                2 | 3 | 5 => assert_eq!(next_offset(&reply), end),
                4 | 6 | 8 => assert_eq!(reply.code, response::SUCCESS),
                other => panic!("an answer to {other}"),
            }
        }
    });
}
