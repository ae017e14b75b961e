//! How hostile clients behave on their connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::random::Random;

use super::mutate::{mutated, pick};
use super::request::Request;

/// Valid requests, and what chooses among them.
pub(crate) struct Mutants {
    pub(crate) valid: Vec<Request>,
    pub(crate) random: Random,
}

/// Opens connection after connection and sends mutants on each, some of which read answers and some not. Gives how many were sent.
pub(crate) fn attack(to: SocketAddr, mut mutants: Mutants, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(10)) else {
            continue;
        };
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        let reads = mutants.random.below(4) > 0;
        for opaque in 0..1 + mutants.random.below(40) as i32 {
            let valid = pick(&mut mutants.random, &mutants.valid).clone();
            let frame = mutated(&mut mutants.random, &valid, opaque);
            if stream.write_all(&frame).is_err() || stop.load(Ordering::Relaxed) {
                break;
            }
            sent += 1;
            if reads && !is_open(&mut stream) {
                break;
            }
        }
    }
    sent
}

/// Reads what is there; false at the stream's end.
fn is_open(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16 << 10]) {
        Ok(n) => n > 0,
        Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

/// Connections that each send most of the largest frame and then nothing: together far more than the broker may buffer. Each that is
/// closed is opened again.
pub(crate) fn hold_giants(to: SocketAddr, count: usize, stop: &AtomicBool) -> u64 {
    const FRAME: u32 = (16 << 20) - 4;
    const SENT: usize = 15 << 20;
    let mut held: Vec<Option<(TcpStream, usize)>> = (0..count).map(|_| None).collect();
    let chunk = vec![b' '; 256 << 10];
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for slot in &mut held {
            let Some((stream, at)) = slot else {
                if let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(10)) {
                    let head = [FRAME.to_be_bytes(), 1_000u32.to_be_bytes()].concat();
                    stream.set_nonblocking(true).expect("a socket that does not block");
                    let _ = stream.write(&head);
                    sent += 1;
                    *slot = Some((stream, 8));
                }
                continue;
            };
            if *at < SENT {
                match stream.write(&chunk) {
                    Ok(n) => *at += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => *slot = None,
                }
            } else if !matches!(stream.read(&mut [0; 64]), Err(e) if e.kind() == ErrorKind::WouldBlock)
            {
                *slot = None;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    sent
}

/// Connections that say nothing, or one byte a second.
pub(crate) struct Quiet {
    half_open: Vec<TcpStream>,
    slow: Vec<TcpStream>,
}

impl Quiet {
    /// `count` of each kind.
    pub(crate) fn open(to: SocketAddr, count: usize) -> Quiet {
        let open =
            || TcpStream::connect_timeout(&to, Duration::from_secs(10)).expect("a connection");
        Quiet {
            half_open: (0..count).map(|_| open()).collect(),
            slow: (0..count).map(|_| open()).collect(),
        }
    }
}

/// Sends one byte of a header a second on each slow connection; it never comes to its end. Gives how many connections there were.
pub(crate) fn trickle(quiet: &mut Quiet, stop: &AtomicBool) -> u64 {
    let frame = Request::new(34, &[("a", "b")], &[b'x'; 1_000]).frame(1, false);
    let mut next = Instant::now();
    for byte in frame.iter().cycle() {
        for stream in &mut quiet.slow {
            let _ = stream.write(&[*byte]);
        }
        next += Duration::from_secs(1);
        while Instant::now() < next {
            if stop.load(Ordering::Relaxed) {
                return (quiet.slow.len() + quiet.half_open.len()) as u64;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    0
}
