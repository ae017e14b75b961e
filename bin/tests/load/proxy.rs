//! A network that is unfaithful once: between harness and broker, it takes one send away and answers it itself, or has it arrive twice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What it does to one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Nothing,
    TakeAway,
    Double,
}

/// The correlation id of a copy, which no harness uses: answers to it go no further.
const COPY: &[u8] = b"\"opaque\":2000000007";

struct Shared {
    broker: SocketAddr,
    deed: Deed,
    /// Which send it is done to, counted from 1 over all connections.
    at: u64,
    sends: AtomicU64,
}

/// Listens until the process ends; returns where.
pub(crate) fn start(broker: SocketAddr, deed: Deed, at: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let shared = Arc::new(Shared { broker, deed, at, sends: AtomicU64::new(0) });
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(broker) = TcpStream::connect(shared.broker) else { continue };
            for stream in [&client, &broker] {
                stream.set_nodelay(true).expect("no delay");
            }
            let to_client = Arc::new(Mutex::new(client.try_clone().expect("a second handle")));
            let (answers, from_broker) =
                (Arc::clone(&to_client), broker.try_clone().expect("a second handle"));
            std::thread::spawn(move || {
                frames(from_broker, |frame| {
                    if header(frame).windows(COPY.len()).any(|part| part == COPY) {
                        return true;
                    }
                    answers.lock().expect("whole frames").write_all(frame).is_ok()
                });
            });
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || requests(&shared, client, broker, &to_client));
        }
    });
    address
}

fn requests(
    shared: &Shared,
    client: TcpStream,
    mut broker: TcpStream,
    to_client: &Mutex<TcpStream>,
) {
    frames(client, |frame| {
        let is_send = header(frame).windows(10).any(|part| part == b"\"code\":310");
        let ours = is_send && shared.sends.fetch_add(1, Relaxed) + 1 == shared.at;
        match shared.deed {
            Deed::TakeAway if ours => {
                let answer = answer(opaque(frame));
                to_client.lock().expect("whole frames").write_all(&answer).is_ok()
            }
            Deed::Double if ours => {
                let mut copy = frame.to_vec();
                let at = position(&copy, b"\"opaque\":").expect("a correlation id");
                copy[at..at + COPY.len()].copy_from_slice(COPY);
                broker.write_all(&copy).and_then(|()| broker.write_all(frame)).is_ok()
            }
            _ => broker.write_all(frame).is_ok(),
        }
    });
}

/// Calls `each` with every frame, as long as it says so.
fn frames(mut stream: TcpStream, mut each: impl FnMut(&[u8]) -> bool) {
    let mut length = [0; 4];
    while stream.read_exact(&mut length).is_ok() {
        let mut frame = length.to_vec();
        frame.resize(4 + u32::from_be_bytes(length) as usize, 0);
        if stream.read_exact(&mut frame[4..]).is_err() || !each(&frame) {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

fn header(frame: &[u8]) -> &[u8] {
    let length = u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize;
    &frame[8..8 + length]
}

fn position(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|part| part == needle)
}

fn opaque(frame: &[u8]) -> &str {
    let at = position(frame, b"\"opaque\":").expect("a correlation id") + 9;
    std::str::from_utf8(&frame[at..at + 10]).expect("ten digits")
}

fn answer(opaque: &str) -> Vec<u8> {
    let header = format!("{{\"code\":0,\"flag\":1,\"opaque\":{opaque}}}");
    let mut out = (4 + header.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&(header.len() as u32).to_be_bytes());
    out.extend_from_slice(header.as_bytes());
    out
}
