//! What connections cost the process: memory when idle, descriptors when ended.

use ringmq_net::server::CloseReason;

use crate::harness::{PROCESS, Peer, Running, code, frame, local_config};

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn idle_connections_are_cheap() {
    const CONNS: usize = 2000;
    let _alone = PROCESS.write();
    let server = Running::start(local_config());
    // Warm up what is paid once.
    for _ in 0..50 {
        Peer::connect(server.addr).ping(1);
    }
    let before = resident_bytes();
    let mut peers: Vec<Peer> = (0..CONNS).map(|_| Peer::connect(server.addr)).collect();
    peers.iter_mut().for_each(|p| p.ping(1));
    let (received, unsent) = server.on_reactor(|server, _| server.buffered_bytes());
    assert_eq!((received, unsent), (0, 0), "a connection between requests holds a buffer");
    let each = resident_bytes().saturating_sub(before) / CONNS;
    println!("{each} bytes of resident memory per idle connection, both ends");
    assert!(each < 4096, "{each} bytes per connection");
    drop(peers);
    server.wait("all ends", |s| s.on_reactor(|server, _| server.stats()).connections == 0);
}

#[test]
fn every_way_to_end_closes_the_descriptor() {
    let _alone = PROCESS.write();
    let mut config = local_config();
    config.conns_max = 50;
    config.idle = std::time::Duration::from_millis(300);
    let server = Running::start(config);
    // Taken with the server running: an executor of glommio 0.9 itself leaves a descriptor behind when it ends.
    Peer::connect(server.addr).ping(1);
    server.wait("the end", |s| s.on_reactor(|server, _| server.stats()).connections == 0);
    let before = descriptors();
    let mut idle: Vec<Peer> = Vec::new();
    for i in 0..200 {
        let mut peer = Peer::connect(server.addr);
        match i % 4 {
            0 => peer.send(&frame(code::CLOSE, i, b"")),
            1 => peer.send(b"\x16\x03\x01 hello"),
            2 => peer.send(&[0xff; 20]),
            _ => idle.push(peer),
        }
    }
    server.wait("all ends", |s| {
        let stats = s.on_reactor(|server, _| server.stats());
        stats.connections == 0 && stats.accepted == 201
    });
    drop(idle);
    let stats = server.on_reactor(|server, _| server.stats());
    assert!(stats.closed_for(CloseReason::Idle) > 0, "{stats:?}");
    assert_eq!(stats.closed.iter().sum::<u64>() + stats.refused, 201);
    assert_eq!(descriptors(), before);
}
