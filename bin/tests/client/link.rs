//! A link between clients and a peer that a test can disturb: slow, cut in the middle of a frame, or with other words in it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A link. Its connections end with it.
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    accept: Option<JoinHandle<()>>,
}

struct State {
    peer: SocketAddr,
    /// Replaced in what the peer says: name servers tell clients another address.
    words: Option<(String, String)>,
    delay_ms: AtomicU64,
    /// Frames until one is cut, each way; never if negative.
    cut_answer_in: AtomicI64,
    cut_request_in: AtomicI64,
    cuts: AtomicU64,
    stop: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Link {
    /// A link to that peer.
    pub(crate) fn to(peer: SocketAddr) -> Link {
        Link::start(peer, None)
    }

    /// A link to a name server, which sends clients of the broker at `from` to `to`.
    pub(crate) fn redirecting(namesrv: SocketAddr, from: SocketAddr, to: SocketAddr) -> Link {
        Link::start(namesrv, Some((format!("{from}\""), format!("{to}\""))))
    }

    fn start(peer: SocketAddr, words: Option<(String, String)>) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for a link");
        let address = listener.local_addr().expect("the link's address");
        let state = Arc::new(State {
            peer,
            words,
            delay_ms: AtomicU64::new(0),
            cut_answer_in: AtomicI64::new(-1),
            cut_request_in: AtomicI64::new(-1),
            cuts: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let of_thread = state.clone();
        let accept = std::thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.stop.load(Ordering::SeqCst) {
                    return;
                }
                if let (Ok(client), Ok(peer)) = (client, TcpStream::connect(of_thread.peer)) {
                    connect(&of_thread, &client, &peer);
                }
            }
        });
        Link { address, state, accept: Some(accept) }
    }

    /// Every answer comes so much later from now on; answers do not wait for each other.
    pub(crate) fn delay_answers(&self, by: Duration) {
        self.state.delay_ms.store(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// The answer after the next `frames` is cut in its middle, and both sides of the connection closed.
    pub(crate) fn cut_answer_after(&self, frames: i64) {
        self.state.cut_answer_in.store(frames, Ordering::SeqCst);
    }

    /// The same for a request: the peer gets its first half.
    pub(crate) fn cut_request_after(&self, frames: i64) {
        self.state.cut_request_in.store(frames, Ordering::SeqCst);
    }

    /// How often something was cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for stream in self.state.open.lock().expect("the links").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accept.
        let _ = TcpStream::connect(self.address);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

fn connect(state: &Arc<State>, client: &TcpStream, peer: &TcpStream) {
    let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle of a stream");
    for stream in [client, peer] {
        let _ = stream.set_nodelay(true);
        state.open.lock().expect("the links").push(copy(stream));
    }
    for (from, to, answers) in [(copy(client), copy(peer), false), (copy(peer), copy(client), true)]
    {
        let (sender, receiver) = mpsc::channel();
        let (of_reader, of_writer) = (state.clone(), state.clone());
        let ends = (copy(client), copy(peer));
        std::thread::spawn(move || read_frames(&of_reader, from, answers, &sender));
        std::thread::spawn(move || {
            write_frames(&of_writer, to, answers, &receiver);
            let _ = ends.0.shutdown(Shutdown::Both);
            let _ = ends.1.shutdown(Shutdown::Both);
        });
    }
}

fn read_frames(
    state: &State,
    mut from: TcpStream,
    answers: bool,
    to: &mpsc::Sender<(Instant, Vec<u8>)>,
) {
    let mut length = [0; 4];
    while from.read_exact(&mut length).is_ok() {
        let mut rest = vec![0; u32::from_be_bytes(length) as usize];
        if from.read_exact(&mut rest).is_err() {
            return;
        }
        if let (true, Some((old, new))) = (answers, &state.words) {
            rest = replaced(rest, old, new);
        }
        let mut frame = (rest.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&rest);
        let delay = if answers { state.delay_ms.load(Ordering::SeqCst) } else { 0 };
        if to.send((Instant::now() + Duration::from_millis(delay), frame)).is_err() {
            return;
        }
    }
}

/// Only bodies hold addresses, so the header's length stays.
fn replaced(frame: Vec<u8>, old: &str, new: &str) -> Vec<u8> {
    let Some(at) = frame.windows(old.len()).position(|w| w == old.as_bytes()) else { return frame };
    let rest = replaced(frame[at + old.len()..].to_vec(), old, new);
    [&frame[..at], new.as_bytes(), &rest].concat()
}

fn write_frames(
    state: &State,
    mut to: TcpStream,
    answers: bool,
    frames: &mpsc::Receiver<(Instant, Vec<u8>)>,
) {
    let left = if answers { &state.cut_answer_in } else { &state.cut_request_in };
    while let Ok((due, frame)) = frames.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // Below zero it only gets further from zero, for longer than any test.
        if left.fetch_sub(1, Ordering::SeqCst) == 0 {
            let _ = to.write_all(&frame[..frame.len() / 2]);
            state.cuts.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if to.write_all(&frame).is_err() {
            return;
        }
    }
}
