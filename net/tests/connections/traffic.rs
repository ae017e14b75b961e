//! Frames in, replies out: order, borders, bounds.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ringmq_net::command::Command;
use ringmq_net::server::{Gathering, ServerConfig};

use crate::harness::{
    PROCESS, Peer, Running, both_ways, code, encode, frame, local_config, shared_byte, wait,
};

#[test]
fn pipelined_requests_are_answered_in_order_with_few_system_calls() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let gathers = config.gather != Gathering::Never;
        let server = Running::start(config);
        let mut peer = Peer::connect(server.addr);
        for round in 0..20 {
            let burst: Vec<u8> =
                (0..64).flat_map(|i| frame(code::ECHO, round * 64 + i, &[i as u8; 1024])).collect();
            peer.send(&burst);
            for i in 0..64 {
                let reply = peer.reply().unwrap();
                assert_eq!(reply.opaque, round * 64 + i);
                assert_eq!(&reply.body[..], &[i as u8; 1024]);
            }
        }
        let stats = server.on_reactor(|server, _| server.stats());
        assert_eq!(stats.frames_in, 1280);
        // A gathered turn may take more than one receive.
        let turns = server.seen.turns.load(Ordering::SeqCst) as u64;
        assert!((1..=stats.recv_calls).contains(&turns), "{turns} turns, {stats:?}");
        assert!(gathers || turns == stats.recv_calls, "{turns} turns, {stats:?}");
        assert!(stats.send_calls <= stats.recv_calls + stats.send_blocked, "{stats:?}");
        assert!(stats.recv_calls <= 20 * 8, "{stats:?}");
    }
}

#[test]
fn a_frame_may_be_cut_at_every_byte() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut peer = Peer::connect(server.addr);
        let two = [frame(code::ECHO, 1, b"first"), frame(code::ECHO, 2, b"second")].concat();
        for cut in 1..two.len() {
            peer.send(&two[..cut]);
            // The first part must have been received by itself, else nothing was cut.
            let received = (cut - 1) * two.len() + cut;
            server.wait("the first part", |s| {
                s.on_reactor(|server, _| server.stats()).bytes_in == received as u64
            });
            peer.send(&two[cut..]);
            assert_eq!(&peer.reply().unwrap().body[..], b"first");
            assert_eq!(&peer.reply().unwrap().body[..], b"second");
        }
    }
}

#[test]
fn large_frames_between_small_ones_arrive_whole() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let mut peer = Peer::connect(server.addr);
        let sizes = [10, 300_000, 20, 5_000_000, 262_144, 0, 1, 1_000_000, 15_000_000, 3];
        let bodies: Vec<Vec<u8>> =
            sizes.iter().map(|n| (0..*n).map(|i| (i * 31 % 253) as u8).collect()).collect();
        let mut writer = peer.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (i, body) in bodies.iter().enumerate() {
                    writer.write_all(&frame(code::ECHO, i as i32, body)).unwrap();
                }
            });
            for (i, body) in bodies.iter().enumerate() {
                let reply = peer.reply().unwrap();
                assert_eq!(reply.opaque, i as i32);
                assert!(reply.body[..] == body[..], "body {i} differs");
            }
        });
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let _shared = PROCESS.read();
    let server = Running::start(local_config());
    let mut peers = Vec::new();
    for _ in 0..100 {
        let mut peer = Peer::connect(server.addr);
        peer.send(&[0x00, 0xff, 0xff, 0xfc, 0, 0, 0, 100, b'{']);
        peers.push(peer);
    }
    server.wait("all bytes", |s| s.on_reactor(|server, _| server.stats()).bytes_in == 900);
    // A few more bytes make the frame's own buffer grow by a first step, not by the claim.
    for peer in &mut peers {
        peer.send(b" ");
    }
    server.wait("all bytes", |s| s.on_reactor(|server, _| server.stats()).bytes_in == 1000);
    let (received, _) = server.on_reactor(|server, _| server.buffered_bytes());
    assert!(received <= 100 * 64 * 1024, "{received} bytes held for 1,000 received");
}

#[test]
fn replies_outside_a_turn_leave_with_and_without_a_flush() {
    let _shared = PROCESS.read();
    let server = Running::start(local_config());
    let mut peer = Peer::connect(server.addr);
    for flush in [true, false] {
        for opaque in 0..10 {
            peer.send(&frame(code::LATER, opaque, b""));
        }
        let seen = server.seen.frames.load(Ordering::SeqCst) / 10 * 10 + 10;
        server.wait("ten requests", |s| s.seen.frames.load(Ordering::SeqCst) == seen);
        let before = server.on_reactor(|server, _| server.stats().send_calls);
        let after = server.on_reactor(move |server, service| {
            assert_eq!(service.release(), 10);
            if flush {
                server.flush_dirty();
            }
            server.stats().send_calls
        });
        assert_eq!(after - before, u64::from(flush));
        for opaque in (0..10).rev() {
            assert_eq!(peer.reply().unwrap().opaque, opaque);
        }
        let after = server.on_reactor(|server, _| server.stats().send_calls);
        assert_eq!(after - before, 1, "ten replies must leave in one call");
    }
}

#[test]
fn a_peer_that_does_not_read_is_bounded_and_gets_everything_later() {
    const REPLY: usize = 1 << 20;
    let _shared = PROCESS.read();
    for mut config in both_ways() {
        config.out_bytes_max = 3 << 20;
        let server = Running::start(config);
        let mut slow = Peer::connect(server.addr);
        let mut requests = Vec::new();
        for opaque in 0..150 {
            requests.extend(encode(Command::request(code::SHARED).with_ext("n", REPLY), opaque));
        }
        let mut writer = slow.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&requests).unwrap());
            server.wait("a pause", |s| s.on_reactor(|server, _| server.stats()).read_pauses > 0);
            let (_, unsent) = server.on_reactor(|server, _| server.buffered_bytes());
            assert!(unsent <= (3 << 20) + REPLY + 1000, "{unsent} bytes wait");
            // Others are served meanwhile.
            let mut other = Peer::connect(server.addr);
            (0..50).for_each(|i| other.ping(i));
            for opaque in 0..150 {
                let reply = slow.reply().unwrap();
                assert_eq!(reply.opaque, opaque);
                assert!(reply.body.iter().enumerate().all(|(i, b)| *b == shared_byte(i)));
                assert_eq!(reply.body.len(), REPLY);
            }
        });
    }
}

#[test]
fn a_peer_that_never_reads_is_closed_at_the_cap() {
    let _shared = PROCESS.read();
    for mut config in both_ways() {
        config.out_bytes_cap = 8 << 20;
        config.out_bytes_max = usize::MAX;
        let server = Running::start(config);
        let mut slow = Peer::connect(server.addr);
        let mut other = Peer::connect(server.addr);
        for opaque in 0..40 {
            slow.send(&encode(Command::request(code::SHARED).with_ext("n", 1 << 20), opaque));
        }
        server.wait("the close", |s| {
            let stats = s.on_reactor(|server, _| server.stats());
            stats.closed_for(ringmq_net::server::CloseReason::SlowReader) == 1
        });
        other.ping(1);
    }
}

#[test]
fn a_flooding_peer_does_not_starve_another() {
    let _shared = PROCESS.read();
    for config in both_ways() {
        let server = Running::start(config);
        let flood: Vec<u8> = (0..1000).flat_map(|i| frame(code::COUNT, i, &[0; 100])).collect();
        let flooder = Peer::connect(server.addr);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = &flooder.stream;
                while !stop.load(Ordering::SeqCst) {
                    stream.write_all(&flood).unwrap();
                }
            });
            wait("the flood", || server.seen.frames.load(Ordering::SeqCst) > 1000);
            let mut peer = Peer::connect(server.addr);
            peer.stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            (0..20).for_each(|i| peer.ping(i));
            stop.store(true, Ordering::SeqCst);
        });
    }
}

/// What is held when gathering ends goes on, and a peer that sends more than a receive takes is not held.
#[test]
fn requests_are_answered_while_gathering_comes_and_goes() {
    let _shared = PROCESS.read();
    let server = Running::start(local_config());
    let mut switch = Peer::connect(server.addr);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (addr, done) = (server.addr, &done);
            scope.spawn(move || {
                let mut peer = Peer::connect(addr);
                peer.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let size = if number == 0 { 60_000 } else { 100 };
                for round in 0..100 {
                    let burst: Vec<u8> = (0..4)
                        .flat_map(|i| frame(code::ECHO, round * 4 + i, &vec![1; size]))
                        .collect();
                    std::thread::scope(|scope| {
                        let mut writer = peer.stream.try_clone().unwrap();
                        scope.spawn(move || writer.write_all(&burst).unwrap());
                        for i in 0..4 {
                            assert_eq!(peer.reply().unwrap().opaque, round * 4 + i);
                        }
                    });
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        for opaque in 0.. {
            let code = if opaque % 2 == 0 { code::GATHER } else { code::DO_NOT_GATHER };
            switch.send(&frame(code, opaque, b""));
            assert_eq!(switch.reply().unwrap().opaque, opaque);
            if done.load(Ordering::SeqCst) == 4 {
                break;
            }
        }
    });
    let stats = server.on_reactor(|server, _| server.stats());
    assert!(stats.gathers > 0, "{stats:?}");
}

#[test]
fn a_look_is_told_before_each_gathered_turn_and_when_gathering_ends() {
    let _shared = PROCESS.read();
    let gather = Gathering::Always(Duration::from_millis(20));
    let server = Running::start(ServerConfig { gather, ..local_config() });
    let mut peer = Peer::connect(server.addr);
    let mut gathered = Vec::new();
    // The first is not gathered, and none is after long silence, which a busy machine can bring about.
    for opaque in 0.. {
        peer.send(&frame(code::LOOKS, opaque, b""));
        let reply = peer.reply().unwrap();
        gathered.extend(reply.remark.map(|looks| looks.parse::<usize>().unwrap()));
        if gathered.len() == 10 {
            break;
        }
    }
    assert!(gathered.is_sorted_by(|a, b| a < b), "{gathered:?}");
    let looks = gathered[9];
    peer.send(&frame(code::DO_NOT_GATHER, 0, b""));
    assert!(peer.reply().is_some());
    server.wait("the end of gathering", |s| s.seen.looks.load(Ordering::SeqCst) > looks);
    server.wait("a request that is not gathered", |_| {
        let mut peer = Peer::connect(server.addr);
        peer.ping(0);
        peer.send(&frame(code::LOOKS, 1, b""));
        peer.reply().unwrap().remark.is_none()
    });
}
