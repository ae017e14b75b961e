//! A network between two programs that can be slow, go dead without a word, and come back: a relay that knows nothing of what it carries.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::random::Random;

/// What one direction may hold: about what sockets of a real network do.
const HELD_BYTES_MAX: usize = 1 << 20;
/// A packet's bytes, about, and when TCP sends a lost one again.
const PACKET_BYTES: usize = 1448;
const SENT_AGAIN: Duration = Duration::from_millis(200);
/// How often a relay looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// See the module. Ends when dropped.
pub struct Link {
    /// Where to connect to instead of the target.
    pub address: SocketAddr,
    weather: Arc<Weather>,
    acceptor: Option<JoinHandle<()>>,
}

struct Weather {
    state: Mutex<State>,
    changed: Condvar,
    ending: AtomicBool,
}

#[derive(Clone, Copy)]
struct State {
    cut: bool,
    delay: Duration,
    /// Bytes a second, each way.
    rate: Option<u64>,
    /// One packet in so many is lost, and comes when it is sent again.
    losses: Option<u64>,
    /// The next chunk of at least so many bytes is damaged.
    damages: Option<usize>,
    /// Whoever connects is sent away.
    closed: bool,
    /// Grows when all connections are to be reset.
    era: u64,
}

impl State {
    /// What is carried as one.
    fn chunk_bytes(&self) -> usize {
        if self.losses.is_some() || self.rate.is_some() { 4 * PACKET_BYTES } else { 64 << 10 }
    }

    /// When so many bytes that are sent now arrive, behind those that do so at `before`.
    fn arrival(&self, before: Instant, len: usize, random: &mut Random) -> Instant {
        let lost = self.losses.is_some_and(|one_in| {
            (0..len.div_ceil(PACKET_BYTES)).any(|_| random.below(one_in) == 0)
        });
        let again = if lost { SENT_AGAIN } else { Duration::ZERO };
        (Instant::now() + self.delay + again).max(before)
    }

    /// How long so many bytes take the link.
    fn takes(&self, len: usize) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(len as f64 / rate as f64))
    }
}

impl Weather {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Whether a connection of that era is to end.
    fn is_over(&self, era: u64) -> bool {
        self.ending.load(Ordering::SeqCst) || self.lock().era != era
    }

    /// Until the link carries and `due` has come; `false` when the connection is to end.
    fn wait_until(&self, due: Instant, era: u64) -> bool {
        let mut state = self.lock();
        loop {
            if self.ending.load(Ordering::SeqCst) || state.era != era {
                return false;
            }
            let left = due.saturating_duration_since(Instant::now());
            if !state.cut && left.is_zero() {
                return true;
            }
            let wait = if state.cut { LOOK } else { left.min(LOOK) };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Link {
    /// A link to `target` that carries everything at once.
    pub fn to(target: SocketAddr) -> Link {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port for the link");
        let address = listener.local_addr().expect("the link's address");
        let state = State {
            cut: false,
            delay: Duration::ZERO,
            rate: None,
            losses: None,
            damages: None,
            closed: false,
            era: 0,
        };
        let weather = Arc::new(Weather {
            state: Mutex::new(state),
            changed: Condvar::new(),
            ending: AtomicBool::new(false),
        });
        let sky = Arc::clone(&weather);
        let acceptor = std::thread::spawn(move || {
            let mut relays = Vec::new();
            while let Ok((near, _)) = listener.accept() {
                if sky.ending.load(Ordering::SeqCst) {
                    break;
                }
                if sky.lock().closed {
                    continue;
                }
                // Nobody is there: the near side is told so by a close.
                let Ok(far) = TcpStream::connect(target) else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().expect("a socket's handle");
                let (there, back) = ((clone(&near), clone(&far)), (far, near));
                for (from, to) in [there, back] {
                    let sky = Arc::clone(&sky);
                    relays.push(std::thread::spawn(move || relay(from, to, &sky)));
                }
            }
            relays.into_iter().for_each(|relay| drop(relay.join()));
        });
        Link { address, weather, acceptor: Some(acceptor) }
    }

    /// From now on nothing comes through, and nobody is told.
    pub fn cut(&self) {
        self.weather.set(|state| state.cut = true);
    }

    /// It carries again; what was held comes now, as what TCP sends again.
    pub fn heal(&self) {
        self.weather.set(|state| (state.cut, state.closed) = (false, false));
    }

    /// Each byte arrives this much later than it was sent, one way.
    pub fn delay(&self, delay: Duration) {
        self.weather.set(|state| state.delay = delay);
    }

    /// No more than so many bytes a second come through, each way.
    pub fn rate(&self, bytes: Option<u64>) {
        self.weather.set(|state| state.rate = bytes);
    }

    /// One packet in so many is lost on its way: it comes when TCP has sent it again, and all behind it then.
    pub fn lose(&self, one_in: Option<u64>) {
        self.weather.set(|state| state.losses = one_in);
    }

    /// The next chunk of at least so many bytes, whichever way it goes, comes with one bit turned over, as no TCP checksum noticed. From
    /// then on whoever connects is sent away, until it heals.
    pub fn damage(&self, at_least: usize) {
        self.weather.set(|state| state.damages = Some(at_least));
    }

    /// Whether what [`Link::damage`] asked for is still to come.
    pub fn is_to_damage(&self) -> bool {
        self.weather.lock().damages.is_some()
    }

    /// Every connection ends; what was on its way is lost.
    pub fn reset(&self) {
        self.weather.set(|state| state.era += 1);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.weather.ending.store(true, Ordering::SeqCst);
        self.weather.changed.notify_all();
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        self.acceptor.take().map(JoinHandle::join);
    }
}

/// What is on its way in one direction.
#[derive(Default)]
struct Pipe {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    /// When each may leave.
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// Nothing more comes.
    ended: bool,
    /// Nothing more leaves.
    closed: bool,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, held: MutexGuard<'a, Held>) -> MutexGuard<'a, Held> {
        self.changed.wait_timeout(held, LOOK).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Until there is room; `false` when nothing more leaves.
    fn has_room(&self) -> bool {
        let mut held = self.lock();
        while held.bytes >= HELD_BYTES_MAX && !held.closed {
            held = self.wait(held);
        }
        !held.closed
    }

    fn put(&self, due: Instant, chunk: Vec<u8>) {
        let mut held = self.lock();
        held.bytes += chunk.len();
        held.chunks.push_back((due, chunk));
        self.changed.notify_all();
    }

    fn end(&self, change: impl FnOnce(&mut Held)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// The next one, which stays held; `None` when nothing more comes, or the connection is to end.
    fn next(&self, weather: &Weather, era: u64) -> Option<Instant> {
        let mut held = self.lock();
        loop {
            match held.chunks.front() {
                Some((due, _)) => return Some(*due),
                None if held.ended || weather.is_over(era) => return None,
                None => held = self.wait(held),
            }
        }
    }

    fn take(&self) -> Vec<u8> {
        let mut held = self.lock();
        let chunk = held.chunks.pop_front().map(|(_, chunk)| chunk).unwrap_or_default();
        held.bytes -= chunk.len();
        self.changed.notify_all();
        chunk
    }
}

/// One direction: what is read is held until it is due.
fn relay(from: TcpStream, to: TcpStream, weather: &Weather) {
    let era = weather.lock().era;
    let pipe = Pipe::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            read_side(&from, &pipe, weather);
            pipe.end(|held| held.ended = true);
        });
        write_side(&to, &pipe, weather, era);
        pipe.end(|held| held.closed = true);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

fn read_side(mut from: &TcpStream, pipe: &Pipe, weather: &Weather) {
    let mut random = Random::new(u64::from(from.peer_addr().map_or(0, |addr| addr.port())));
    let mut last = Instant::now();
    while pipe.has_room() {
        let mut chunk = vec![0; weather.lock().chunk_bytes()];
        // Ends with the socket, which the other side shuts down.
        match from.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(len) => {
                chunk.truncate(len);
                let mut state = weather.lock();
                if state.damages.take_if(|at_least| len >= *at_least).is_some() {
                    state.closed = true;
                    chunk[len / 2] ^= 1;
                }
                drop(state);
                last = weather.lock().arrival(last, len, &mut random);
                pipe.put(last, chunk);
            }
        }
    }
}

fn write_side(mut to: &TcpStream, pipe: &Pipe, weather: &Weather, era: u64) {
    let mut free = Instant::now();
    loop {
        let Some(due) = pipe.next(weather, era) else {
            // An end comes through as late as bytes do.
            weather.wait_until(Instant::now(), era);
            return;
        };
        if !weather.wait_until(due.max(free), era) {
            return;
        }
        let chunk = pipe.take();
        free = Instant::now() + weather.lock().takes(chunk.len());
        if to.write_all(&chunk).is_err() {
            return;
        }
    }
}
