//! What is told to `tracing`. A program of its own: the subscriber is the process's, so that no other test decides what it sees.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use ringmq_client::protocol::body::{Body, BrokerData, QueueData, TopicRouteData};
use ringmq_client::protocol::code::{request, response};
use ringmq_client::protocol::command::Command;
use ringmq_client::protocol::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_client::protocol::header::FLAG_RESPONSE;
use ringmq_client::{Client, Error, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}

/// A name server that sends everybody to itself, and a broker that is too busy for any message.
async fn busy_broker() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, addr));
        }
    });
    addr
}

async fn serve(mut stream: TcpStream, addr: SocketAddr) {
    let mut buf = BytesMut::new();
    loop {
        while let Peek::Frame(frame) = peek(&buf, FRAME_BYTES_MAX).unwrap() {
            let (command, len) = (Command::decode(&frame).unwrap(), frame.len);
            let _ = buf.split_to(len);
            let reply = match command.code {
                request::GET_ROUTEINFO_BY_TOPIC => {
                    Command::request(response::SUCCESS).with_body(route(addr))
                }
                request::SEND_MESSAGE_V2 => Command::request(response::SYSTEM_BUSY),
                _ => Command::request(response::SUCCESS),
            };
            let mut bytes = BytesMut::new();
            Command { opaque: command.opaque, flag: FLAG_RESPONSE, ..reply }.encode(&mut bytes);
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
        }
        if stream.read_buf(&mut buf).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

fn route(addr: SocketAddr) -> Bytes {
    let queue = QueueData {
        broker_name: "a".to_owned(),
        read_queue_nums: 2,
        write_queue_nums: 2,
        perm: 6,
        topic_sys_flag: 0,
    };
    let broker = BrokerData {
        cluster: "c".to_owned(),
        broker_name: "a".to_owned(),
        broker_addrs: [(0, addr.to_string())].into(),
    };
    let data =
        TopicRouteData { queues: vec![queue], brokers: vec![broker], ..TopicRouteData::default() };
    data.to_json().into()
}

#[tokio::test]
async fn failed_sends_are_told_with_topic_and_id_and_never_with_a_body() {
    let lines = Lines::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(lines.clone())
        .init();
    let addr = busy_broker().await;
    let client = Client::builder().name_server(addr.to_string()).build().unwrap();
    let producer = client.producer("g").start().await.unwrap();
    let error = producer.send(Message::new("t", "a secret")).await.unwrap_err();
    assert!(!error.to_string().contains("a secret") && !format!("{error:?}").contains("a secret"));
    let Error::Send(failure) = error else { panic!("{error}") };
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("a try failed") && text.contains(&failure.message_id), "{text}");
    assert!(!text.contains("a secret"), "{text}");
}
