//! A network between two programs that can be slow, go dead without a word, and come back: a relay that knows nothing of what it carries.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What one direction may hold: about what sockets of a real network do.
const HELD_BYTES_MAX: usize = 1 << 20;
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
    /// Grows when all connections are to be reset.
    era: u64,
}

impl Weather {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
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
        let state = State { cut: false, delay: Duration::ZERO, era: 0 };
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
        self.weather.set(|state| state.cut = false);
    }

    /// Each byte arrives this much later than it was sent, one way.
    pub fn delay(&self, delay: Duration) {
        self.weather.set(|state| state.delay = delay);
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

/// A read that never waits. The socket's other handle writes, so that its mode is not changed for this.
fn read_now(from: &TcpStream, chunk: &mut [u8]) -> std::io::Result<usize> {
    let (to, len) = (chunk.as_mut_ptr().cast(), chunk.len());
    // SAFETY: the descriptor is open, and the kernel writes `len` bytes at most to memory that is ours alone.
    let read = unsafe { libc::recv(from.as_raw_fd(), to, len, libc::MSG_DONTWAIT) };
    usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
}

/// One direction: reads as long as little is held, writes what is due.
fn relay(mut from: TcpStream, mut to: TcpStream, weather: &Weather) {
    let era = weather.lock().era;
    from.set_read_timeout(Some(LOOK)).expect("a timeout");
    let mut held: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut bytes_held = 0;
    let mut ended = false;
    loop {
        let mut chunk = vec![0; 64 << 10];
        if !ended && bytes_held < HELD_BYTES_MAX {
            // While something waits, only what is there already is read with it.
            let read = match held.is_empty() {
                true => from.read(&mut chunk),
                false => read_now(&from, &mut chunk),
            };
            match read {
                Ok(0) => ended = true,
                Ok(len) => {
                    chunk.truncate(len);
                    bytes_held += len;
                    held.push_back((Instant::now() + weather.lock().delay, chunk));
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => ended = true,
            }
        }
        let due = held.front().map_or_else(Instant::now, |(due, _)| *due);
        if (!held.is_empty() || ended) && !weather.wait_until(due, era) {
            break;
        }
        if weather.ending.load(Ordering::SeqCst) || weather.lock().era != era {
            break;
        }
        match held.pop_front() {
            Some((_, chunk)) => {
                bytes_held -= chunk.len();
                if to.write_all(&chunk).is_err() {
                    break;
                }
            }
            None if ended => break,
            None => {}
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
