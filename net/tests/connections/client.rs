//! The client against the server, on one reactor.

use std::cell::Cell;
use std::future::Future;
use std::net::TcpListener;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::future::{or, zip};
use glommio::timer::sleep;
use ringmq_net::client::{Client, ClientError, off_reactor, resolve};
use ringmq_net::command::Command;

use crate::harness::{PROCESS, Running, code, local_config, reactor};

const SOON: Duration = Duration::from_secs(10);

/// Runs a client test on its own reactor against a server on another.
fn against<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(std::net::SocketAddr) -> F + Send + 'static,
) -> Running {
    let server = Running::start(local_config());
    let addr = server.addr;
    reactor(move || async move { test(addr).await }).join().unwrap();
    server
}

#[test]
fn concurrent_calls_get_their_own_replies() {
    let _shared = PROCESS.read();
    against(|addr| async move {
        let client = Rc::new(Client::connect(&addr.to_string(), SOON).await.unwrap());
        let mut calls = Vec::new();
        for i in 0..200u32 {
            let client = client.clone();
            calls.push(glommio::spawn_local(async move {
                // Some replies need more room than one receive.
                let body = vec![i as u8; if i % 50 == 0 { 900_000 } else { i as usize }];
                let request = Command::request(code::ECHO).with_body(body.clone());
                let reply = client.call(request, SOON).await.unwrap();
                assert!(reply.body == body);
            }));
        }
        for call in calls {
            call.await;
        }
        assert!(!client.is_closed());
    });
}

#[test]
fn a_late_reply_is_dropped_and_the_connection_goes_on() {
    let _shared = PROCESS.read();
    let server = Running::start(local_config());
    let addr = server.addr;
    let (tell, told) = std::sync::mpsc::channel();
    let (go, gone) = std::os::unix::net::UnixStream::pair().unwrap();
    let thread = reactor(move || async move {
        let client = Client::connect_addr(addr, SOON).await.unwrap();
        let wait = Duration::from_millis(50);
        let error = client.call(Command::request(code::LATER), wait).await.unwrap_err();
        assert!(matches!(error, ClientError::Timeout { code: code::LATER, .. }), "{error}");
        // A call whose future is dropped is forgotten too.
        or(
            async { client.call(Command::request(code::LATER), SOON).await.map(|_| ()).unwrap() },
            sleep(wait),
        )
        .await;
        tell.send(()).unwrap();
        let mut go = on_glommio(go);
        futures_lite::AsyncReadExt::read(&mut go, &mut [0]).await.unwrap();
        let request = Command::request(code::ECHO).with_body("still here");
        assert_eq!(&client.call(request, SOON).await.unwrap().body[..], b"still here");
    });
    told.recv().unwrap();
    let released = server.on_reactor(|server, service| {
        let n = service.release();
        server.flush_dirty();
        n
    });
    assert_eq!(released, 2);
    drop(gone);
    thread.join().unwrap();
}

fn on_glommio(stream: std::os::unix::net::UnixStream) -> glommio::net::UnixStream {
    use std::os::fd::{FromRawFd, IntoRawFd};
    // SAFETY: ownership of the open descriptor passes on.
    unsafe { glommio::net::UnixStream::from_raw_fd(stream.into_raw_fd()) }
}

#[test]
fn calls_in_flight_fail_when_the_peer_closes() {
    let _shared = PROCESS.read();
    against(|addr| async move {
        let client = Client::connect_addr(addr, SOON).await.unwrap();
        let pending = client.call(Command::request(code::LATER), SOON);
        let closing = client.call(Command::request(code::CLOSE), SOON);
        let (pending, closing) = zip(pending, closing).await;
        assert!(closing.is_ok());
        assert!(matches!(pending, Err(ClientError::Closed { .. })), "{pending:?}");
        client.closed().await;
        let error = client.call(Command::request(code::ECHO), SOON).await.unwrap_err();
        assert!(matches!(error, ClientError::Closed { .. }));
        assert!(client.oneway(Command::request(code::ECHO)).is_err());
    });
}

#[test]
fn requests_from_the_server_reach_the_callback() {
    let _shared = PROCESS.read();
    // A peer that speaks first: a request frame as soon as the connection is there.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Wait for the client's first byte, so that its callback is in place.
        std::io::Read::read(&mut stream, &mut [0]).unwrap();
        let notify = crate::harness::frame(40, 77, b"changed");
        std::io::Write::write_all(&mut stream, &notify).unwrap();
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
    });
    reactor(move || async move {
        let client = Client::connect_addr(addr, SOON).await.unwrap();
        let seen = Rc::new(Cell::new(0));
        let told = seen.clone();
        client.on_request(move |request| told.set(request.opaque));
        client.oneway(Command::request(code::COUNT)).unwrap();
        let started = Instant::now();
        while seen.get() != 77 && started.elapsed() < SOON {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(seen.get(), 77);
    })
    .join()
    .unwrap();
    peer.join().unwrap();
}

#[test]
fn connecting_fails_by_name_and_in_time() {
    let _shared = PROCESS.read();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    reactor(move || async move {
        let refused = Client::connect_addr(free, SOON).await.err().unwrap();
        assert!(refused.to_string().contains(&free.to_string()), "{refused}");
        let unknown = Client::connect("no-such-host.invalid:9876", SOON).await.err().unwrap();
        assert!(matches!(unknown, ClientError::Resolve { .. } | ClientError::Connect { .. }));
        let nonsense = Client::connect("nonsense", SOON).await.err().unwrap();
        assert!(nonsense.to_string().contains("nonsense"));
        // A listener that never accepts, its queue full: the connect must give up by itself.
        let listener =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any: std::net::SocketAddr = ([127, 0, 0, 1], 0).into();
        listener.bind(&any.into()).unwrap();
        listener.listen(1).unwrap();
        let full = listener.local_addr().unwrap().as_socket().unwrap();
        let mut kept = Vec::new();
        let mut gave_up = false;
        for _ in 0..5 {
            let started = Instant::now();
            match Client::connect_addr(full, Duration::from_millis(200)).await {
                Ok(client) => kept.push(client),
                Err(error) => {
                    assert!(started.elapsed() < Duration::from_secs(5));
                    assert!(error.to_string().contains("timed out"), "{error}");
                    gave_up = true;
                }
            }
        }
        assert!(gave_up);
    })
    .join()
    .unwrap();
}

#[test]
fn blocking_work_does_not_hold_the_reactor() {
    let _shared = PROCESS.read();
    reactor(|| async {
        let (go, wait) = std::sync::mpsc::channel();
        let slow = off_reactor("test-slow", move || {
            wait.recv().unwrap();
            "done"
        });
        // The reactor runs while the work is stuck, else it could never be released.
        let release = async {
            sleep(Duration::from_millis(5)).await;
            go.send(()).unwrap();
        };
        let (result, ()) = zip(slow, release).await;
        assert_eq!(result.unwrap(), "done");
        assert!(off_reactor("test-panic", || panic!("on purpose")).await.is_err());
        let localhost = resolve("localhost:9876", SOON).await.unwrap();
        assert!(localhost.iter().all(|a| a.ip().is_loopback() && a.port() == 9876));
    })
    .join()
    .unwrap();
}
