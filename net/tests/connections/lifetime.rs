//! How connections begin and end.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ringmq_net::server::{CloseReason, PortKind, Server, ServerConfig, ServerError};

use crate::harness::{PROCESS, Peer, Running, both_ways, code, frame, local_config, reactor};

fn closed_for(server: &Running, reason: CloseReason) -> u64 {
    server.on_reactor(move |server, _| server.stats().closed_for(reason))
}

#[test]
fn malformed_input_closes_only_its_own_connection() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut good = Peer::connect(server.addr);
        good.ping(0);
        let bad: &[&[u8]] = &[
            // Over the frame limit, negative, too short, header longer than the frame, unknown form.
            &[0x01, 0x00, 0x00, 0x00, 0, 0, 0, 1],
            &[0xff; 8],
            &[0, 0, 0, 3, 0, 0, 0],
            &[0, 0, 0, 8, 0, 0, 0, 100, 1, 2, 3, 4],
            &[0, 0, 0, 6, 7, 0, 0, 2, b'{', b'}'],
            // No JSON, and a binary header cut short.
            &[0, 0, 0, 7, 0, 0, 0, 3, b'{', b'{', b'{'],
            &[0, 0, 0, 7, 1, 0, 0, 3, 1, 2, 3],
            b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        ];
        for (i, bytes) in bad.iter().enumerate() {
            let mut peer = Peer::connect(server.addr);
            // The reply to a good frame before the bad one still comes.
            peer.send(&[&frame(code::ECHO, 9, b"before")[..], bytes].concat());
            assert_eq!(&peer.reply().unwrap().body[..], b"before");
            assert!(peer.reply().is_none(), "case {i} was not closed");
            good.ping(i as i32);
        }
        assert_eq!(closed_for(&server, CloseReason::Malformed), bad.len() as u64);
    }
}

#[test]
fn a_tls_hello_is_refused_by_name() {
    let _shared = PROCESS.read();
    let server = Running::start(local_config());
    let mut peer = Peer::connect(server.addr);
    peer.send(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03]);
    assert!(peer.reply().is_none());
    assert_eq!(closed_for(&server, CloseReason::Tls), 1);
    assert_eq!(closed_for(&server, CloseReason::Malformed), 0);
}

#[test]
fn silence_closes_and_traffic_does_not() {
    let _shared = PROCESS.read();
    for mut config in both_ways() {
        config.idle = Duration::from_millis(600);
        let server = Running::start(config);
        let started = Instant::now();
        let mut silent = Peer::connect(server.addr);
        let mut lively = Peer::connect(server.addr);
        let mut i = 0;
        while closed_for(&server, CloseReason::Idle) == 0 {
            lively.ping(i);
            i += 1;
            assert!(started.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(started.elapsed() >= Duration::from_millis(600));
        assert!(silent.reply().is_none());
        lively.ping(i);
    }
}

#[test]
fn connections_over_the_bound_are_closed_and_counted() {
    let _shared = PROCESS.read();
    let mut config = local_config();
    config.conns_max = 3;
    let server = Running::start(config);
    let mut kept: Vec<Peer> = (0..3).map(|_| Peer::connect(server.addr)).collect();
    kept.iter_mut().for_each(|p| p.ping(1));
    for _ in 0..5 {
        assert!(Peer::connect(server.addr).reply().is_none());
    }
    kept.iter_mut().for_each(|p| p.ping(2));
    let stats = server.on_reactor(|server, _| server.stats());
    assert_eq!((stats.refused, stats.accepted, stats.connections), (5, 8, 3));
    // Room that is given back is used again.
    drop(kept.pop());
    server.wait("the end of one", |s| s.on_reactor(|server, _| server.stats()).connections == 2);
    Peer::connect(server.addr).ping(3);
}

#[test]
fn a_reply_before_a_close_by_the_service_arrives() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut peer = Peer::connect(server.addr);
        peer.send(&frame(code::CLOSE, 5, b"last words"));
        assert_eq!(&peer.reply().unwrap().body[..], b"last words");
        assert!(peer.reply().is_none());
        assert_eq!(closed_for(&server, CloseReason::Service), 1);
    }
}

#[test]
fn replies_to_a_connection_that_is_gone_are_dropped() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut peer = Peer::connect(server.addr);
        peer.send(&frame(code::LATER, 1, b""));
        server.wait("the request", |s| s.seen.frames.load(Ordering::SeqCst) == 1);
        drop(peer);
        server.wait("the close", |s| s.seen.closed.load(Ordering::SeqCst) == 1);
        let unsent = server.on_reactor(|server, service| {
            service.release();
            server.flush_dirty();
            server.buffered_bytes().1
        });
        assert_eq!(unsent, 0);
        Peer::connect(server.addr).ping(1);
    }
}

#[test]
fn drain_lets_every_reply_leave_and_takes_no_new_connection() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut slow = Peer::connect(server.addr);
        let mut busy = Peer::connect(server.addr);
        let request = ringmq_net::command::Command::request(code::SHARED).with_ext("n", 4 << 20);
        slow.send(&crate::harness::encode(request, 1));
        server.wait("unsent bytes", |s| s.on_reactor(|s, _| s.stats()).send_blocked > 0);
        busy.send(&frame(code::LATER, 7, b""));
        server.wait("the request", |s| s.seen.frames.load(Ordering::SeqCst) == 2);
        let (tell, told) = std::sync::mpsc::channel();
        server.on_reactor(move |server, service| {
            service.release();
            let server = server.clone();
            glommio::spawn_local(async move {
                server.drain(Duration::from_secs(10)).await;
                tell.send(server.stats()).unwrap();
            })
            .detach();
        });
        // Input that nobody will read: closing with it unread would reset the connection and lose replies.
        for _ in 0..100 {
            let _ = slow.stream.write_all(&frame(code::ECHO, 2, &[0; 10_000]));
            let _ = busy.stream.write_all(&frame(code::ECHO, 8, b"too late"));
        }
        assert_eq!(busy.reply().unwrap().opaque, 7);
        assert!(busy.reply().is_none());
        assert_eq!(slow.reply().unwrap().body.len(), 4 << 20);
        assert!(slow.reply().is_none());
        assert!(TcpStream::connect(server.addr).is_err());
        drop((slow, busy));
        let stats = told.recv().unwrap();
        assert_eq!(stats.connections, 0);
        assert_eq!(stats.closed_for(CloseReason::Shutdown), 2);
    }
}

#[test]
fn drain_ends_at_its_deadline_when_a_peer_does_not_read() {
    let _shared = PROCESS.read();
    let server = Running::start(local_config());
    let mut stuck = Peer::connect(server.addr);
    for opaque in 0..8 {
        let request = ringmq_net::command::Command::request(code::SHARED).with_ext("n", 4 << 20);
        stuck.send(&crate::harness::encode(request, opaque));
    }
    server.wait("unsent bytes", |s| s.on_reactor(|s, _| s.stats()).send_blocked > 0);
    let (tell, told) = std::sync::mpsc::channel();
    server.on_reactor(move |server, _| {
        let server = server.clone();
        glommio::spawn_local(async move {
            let started = Instant::now();
            server.drain(Duration::from_millis(300)).await;
            tell.send(started.elapsed()).unwrap();
        })
        .detach();
    });
    let took = told.recv().unwrap();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn both_ports_and_both_address_families_are_told_apart() {
    let _shared = PROCESS.read();
    let mut config = ServerConfig::new("[::]:0".parse().unwrap());
    config = config.with_vip("127.0.0.1:0".parse().unwrap());
    let server = Running::start(config);
    let vip = server.on_reactor(|server, _| server.local_addr(PortKind::Vip)).unwrap();
    let main: SocketAddr = ([127, 0, 0, 1], server.addr.port()).into();
    for (addr, port) in [(main, "Main"), (vip, "Vip")] {
        let mut peer = Peer::connect(addr);
        let local = peer.stream.local_addr().unwrap();
        peer.send(&frame(code::PORT, 1, b""));
        assert_eq!(peer.reply().unwrap().remark.unwrap(), format!("{port} {local}"));
    }
    if let Ok(v6) = TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, server.addr.port())) {
        let local = v6.local_addr().unwrap();
        drop(v6);
        assert!(local.is_ipv6());
        let mut peer = Peer::connect((std::net::Ipv6Addr::LOCALHOST, server.addr.port()).into());
        peer.send(&frame(code::PORT, 1, b""));
        assert!(peer.reply().unwrap().remark.unwrap().starts_with("Main [::1]:"));
    }
}

#[test]
fn a_taken_port_is_refused_by_name() {
    let _shared = PROCESS.read();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let server = Running::start(local_config());
    let own = server.addr;
    reactor(move || async move {
        for addr in [addr, own] {
            let result = Server::bind(ServerConfig::new(addr), std::rc::Rc::new(Deaf));
            match result {
                Err(error @ ServerError::Bind { .. }) => {
                    assert!(error.to_string().contains(&addr.to_string()));
                }
                Ok(_) => panic!("{addr} was bound twice"),
            }
        }
    })
    .join()
    .unwrap();
}

struct Deaf;

impl ringmq_net::server::Service for Deaf {
    fn on_frame(
        &self,
        _: &std::rc::Rc<ringmq_net::server::Conn>,
        _: &ringmq_net::header::HeaderView<'_>,
        _: &[u8],
    ) {
    }
}

#[test]
fn a_half_closed_peer_is_closed() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut peer = Peer::connect(server.addr);
        peer.send(&frame(code::ECHO, 1, b"x"));
        peer.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(&peer.reply().unwrap().body[..], b"x");
        assert_eq!(peer.stream.read(&mut [0]).unwrap(), 0);
        assert_eq!(closed_for(&server, CloseReason::Peer), 1);
    }
}
