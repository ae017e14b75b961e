//! Gathering: while the [`Governor`] says so, connections are not watched by the ring. One task looks at all of them once in an
//! interval, handles what they brought as one turn, and sends what can be answered.
//!
//! A connection joins when its own task has handled what it received, and goes back to its task when it was silent for a
//! while, when it sends more than one receive takes (until it does not any more), when a frame needs the task (a large one, or one to
//! a peer that takes no replies), or when gathering ends.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_lite::future::{poll_fn, yield_now};
use glommio::timer::sleep;

use super::config::Gathering;
use super::conn::Conn;
use super::governor::{Governor, Sample};
use super::stats::add;
use super::turn::{Turn, keep_rest};
use super::{Server, State};

/// Looks in a row that brought nothing, after which a connection is watched by the ring again.
const SILENT_LOOKS: u8 = 8;
/// Requests handled, or connections looked at, in one turn. Then other tasks have a chance. Not fewer: what a turn brings to the log leaves in
/// one write, and what comes after it waits for the next one.
const REQUESTS_AT_ONCE: u64 = 256;
const LOOKS_AT_ONCE: usize = 512;
/// Receives between two looks at the clock while nothing is gathered.
const RECEIVES_AT_ONCE: u32 = 32;

/// The gathering of one server.
pub(super) struct Gather {
    governor: RefCell<Governor>,
    interval: Cell<Duration>,
    started: Instant,
    /// Receives since the clock was read last.
    unclocked: Cell<u32>,
    /// The connections that the task looks at.
    held: RefCell<Vec<Rc<Conn>>>,
    /// The swapped-out list, kept for its allocation.
    spare: Cell<Vec<Rc<Conn>>>,
    ticker: RefCell<Option<Waker>>,
}

/// What a look at a connection brought.
enum Look {
    /// Requests, or nothing for now.
    Stay,
    /// Its own task has to go on with it.
    Leave,
}

impl Gather {
    pub(super) fn new(gathering: Gathering) -> Self {
        let (governor, interval) = governor(gathering);
        Gather {
            governor: RefCell::new(governor),
            interval: Cell::new(interval),
            started: Instant::now(),
            unclocked: Cell::new(0),
            held: RefCell::default(),
            spare: Cell::default(),
            ticker: RefCell::new(None),
        }
    }

    /// Whether requests are gathered now.
    pub(super) fn is_on(&self) -> bool {
        self.governor.borrow().gathers()
    }

    /// Lets the task look, if it has to.
    fn wake_ticker(&self) {
        if self.is_on()
            && let Some(ticker) = self.ticker.borrow_mut().take()
        {
            ticker.wake();
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn governor(gathering: Gathering) -> (Governor, Duration) {
    match gathering {
        Gathering::Never => (Governor::fixed(false), Duration::MAX),
        Gathering::Always(interval) => (Governor::fixed(true), interval),
        Gathering::WhenItPays(interval) => {
            let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
            (Governor::new(interval_us), interval)
        }
    }
}

impl Server {
    /// Changes whether requests are gathered; what was found out about it is forgotten.
    pub fn set_gathering(&self, gathering: Gathering) {
        let (governor, interval) = governor(gathering);
        self.gather.governor.replace(governor);
        self.gather.interval.set(interval);
        self.gather.wake_ticker();
    }

    /// Takes `conn` from its task to the next look, if requests are gathered. Whether it was taken.
    pub(super) fn hold(&self, conn: &Rc<Conn>) -> bool {
        if conn.held.get() {
            return true;
        }
        let hold = self.gather.is_on()
            && self.state.get() == State::Running
            && !conn.fast.get()
            && conn.silent_looks.get() < SILENT_LOOKS;
        if hold {
            conn.held.set(true);
            self.gather.held.borrow_mut().push(conn.clone());
        }
        hold
    }

    /// A connection's own task has received something: now and then the governor is asked.
    pub(super) fn received_alone(&self, conn: &Conn) {
        conn.silent_looks.set(0);
        let unclocked = self.gather.unclocked.get() + 1;
        if unclocked < RECEIVES_AT_ONCE {
            self.gather.unclocked.set(unclocked);
            return;
        }
        self.gather.unclocked.set(0);
        self.ask_governor();
        self.gather.wake_ticker();
    }

    fn ask_governor(&self) {
        let at_us = self.gather.now_us();
        let mut governor = self.gather.governor.borrow_mut();
        if governor.is_due(at_us) {
            let count = &self.hub.count;
            let requests = count.frames_in.get();
            governor.step(Sample {
                at_us,
                requests,
                work: self.service.work_done().unwrap_or(requests),
                receives: count.recv_calls.get(),
                cpu_us: thread_cpu_us(),
            });
        }
    }

    /// Looks at all held connections, in as few turns as may be.
    async fn look_at_held(&self) {
        add(&self.hub.count.gathers, 1);
        self.service.on_look();
        let mut list = self.gather.held.replace(self.gather.spare.take());
        let requests = || self.hub.count.frames_in.get();
        let (mut turn_began, mut looks) = (requests(), 0);
        for conn in list.drain(..) {
            if conn.is_closed() || self.state.get() != State::Running {
                self.let_go(&conn);
                continue;
            }
            match self.look(&conn) {
                Look::Stay => self.gather.held.borrow_mut().push(conn),
                Look::Leave => self.let_go(&conn),
            }
            looks += 1;
            let much = requests() - turn_began >= REQUESTS_AT_ONCE || looks >= LOOKS_AT_ONCE;
            if much || self.hub.is_tight() {
                self.end_gathered_turn(requests() != turn_began);
                glommio::executor().yield_if_needed().await;
                (turn_began, looks) = (requests(), 0);
            }
        }
        self.end_gathered_turn(requests() != turn_began);
        self.gather.spare.set(list);
    }

    fn end_gathered_turn(&self, handled: bool) {
        if handled {
            self.service.on_turn_end();
            self.hub.flush_dirty();
            self.reclaim_if_over();
        }
    }

    /// Receives once from a held connection and handles the frames.
    fn look(&self, conn: &Rc<Conn>) -> Look {
        if conn.out_bytes() > self.hub.out_bytes_max() {
            return Look::Leave;
        }
        let (mut scratch, room) = self.scratch_of(conn);
        let result = receive_now(conn.fd.get(), &mut scratch[room.clone()]);
        let stays = if let Some(result) = result.transpose() {
            let turn = self.received(conn, result, |n| {
                conn.silent_looks.set(0);
                let bytes = &scratch[..room.start + n];
                let handled = self.handle_frames(conn, bytes);
                keep_rest(conn, bytes, &handled, room.end);
                if conn.fast.get() { Turn::Full } else { Turn::More }
            });
            let rx = conn.rx.borrow();
            matches!(turn, Turn::More) && !rx.unhandled && rx.wants_scratch()
        } else {
            let silent = conn.silent_looks.get().saturating_add(1);
            conn.silent_looks.set(silent);
            silent < SILENT_LOOKS
        };
        self.hub.put_scratch(scratch);
        conn.account();
        if stays { Look::Stay } else { Look::Leave }
    }

    fn let_go(&self, conn: &Conn) {
        conn.held.set(false);
        conn.wake();
    }

    fn let_all_go(&self) {
        self.service.on_look();
        for conn in self.gather.held.take() {
            self.let_go(&conn);
        }
    }
}

/// The task that looks.
pub(super) async fn tick(server: Weak<Server>) {
    loop {
        poll_fn(|cx| match server.upgrade() {
            Some(server) if !server.gather.is_on() => {
                // Those that joined while it was on for a moment, and not long enough for this task to see it.
                server.let_all_go();
                *server.gather.ticker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
        let mut due = Instant::now();
        loop {
            let interval = match server.upgrade() {
                Some(server) => {
                    server.look_at_held().await;
                    server.ask_governor();
                    if !server.gather.is_on() {
                        server.let_all_go();
                        break;
                    }
                    server.gather.interval.get()
                }
                None => return,
            };
            due += interval;
            let now = Instant::now();
            if now < due {
                sleep(due - now).await;
            } else {
                // A look took longer than the interval: others have their turn, and what was missed is not made up for.
                due = now;
                yield_now().await;
            }
        }
    }
}

/// What the socket has at this moment: `None` is nothing, 0 bytes are its end.
fn receive_now(fd: RawFd, buf: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        // SAFETY: the pointer and the length are those of a live buffer; a bad descriptor is an error.
        let n = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) };
        if let Ok(n) = usize::try_from(n) {
            return Ok(Some(n));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock => return Ok(None),
            io::ErrorKind::Interrupted => {}
            _ => return Err(error),
        }
    }
}

/// Processor time of this thread since it began.
fn thread_cpu_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a live timespec. The clock exists on every Linux; were it not so, the time stays 0, and
    // nothing is gathered.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}
