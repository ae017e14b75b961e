//! How a test makes the disk misbehave while it is in use.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::wire;

/// Which requests of the block layer a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    pub reads: bool,
    pub writes: bool,
    pub flushes: bool,
}

impl Requests {
    pub const READS: Requests = Requests { reads: true, writes: false, flushes: false };
    pub const WRITES: Requests = Requests { reads: false, writes: true, flushes: false };
    pub const FLUSHES: Requests = Requests { reads: false, writes: false, flushes: true };
    pub const ALL: Requests = Requests { reads: true, writes: true, flushes: true };

    fn include(self, opcode: u32) -> bool {
        match opcode {
            wire::READ => self.reads,
            wire::WRITE => self.writes,
            wire::FSYNC => self.flushes,
            _ => false,
        }
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Effect {
    /// It fails. The loop device hands on nearly every error number as EIO.
    Fail(i32),
    /// It is done this much later. Others go on meanwhile.
    Delay(Duration),
    /// It waits until the fault is taken away, and is done then.
    Hang,
    /// It waits its turn behind the ones before it, at so many bytes a second (a flush costs nothing).
    Throttle(u64),
}

/// Names a fault that is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

struct Fault {
    id: FaultId,
    requests: Requests,
    range: Range<u64>,
    effect: Effect,
    hits: u64,
    /// When the requests that a throttle has let through so far are paid for.
    free_at: Instant,
}

/// The faults of one disk, shared by the test and the thread that serves the disk.
#[derive(Default)]
pub struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    list: Vec<Fault>,
    held: Vec<Held>,
    ended: bool,
}

/// A request that waits.
struct Held {
    request: wire::Request,
    until: Until,
}

#[derive(Debug, Clone, Copy)]
enum Until {
    Time(Instant),
    Released(FaultId),
}

/// What the server does with a request.
pub(super) enum Verdict {
    Go(wire::Request),
    Fail(wire::Request, i32),
    /// It is kept here and comes back by [`Faults::next_due`].
    Held,
}

impl Faults {
    /// Switches a fault on for requests that touch `range` (bytes of the disk; flushes have no range). The first fault that fits a request
    /// decides.
    pub fn add(&self, requests: Requests, range: Range<u64>, effect: Effect) -> FaultId {
        let mut state = self.lock();
        state.next += 1;
        let id = FaultId(state.next);
        state.list.push(Fault { id, requests, range, effect, hits: 0, free_at: Instant::now() });
        id
    }

    /// As [`Faults::add`], for the whole disk.
    pub fn everywhere(&self, requests: Requests, effect: Effect) -> FaultId {
        self.add(requests, 0..u64::MAX, effect)
    }

    /// Switches a fault off and lets go what it holds.
    pub fn remove(&self, id: FaultId) {
        let mut state = self.lock();
        state.list.retain(|fault| fault.id != id);
        for held in &mut state.held {
            if matches!(held.until, Until::Released(by) if by == id) {
                held.until = Until::Time(Instant::now());
            }
        }
        self.changed.notify_all();
    }

    /// Switches all faults off and lets go what they hold or delay.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.list.clear();
        for held in &mut state.held {
            held.until = Until::Time(Instant::now());
        }
        self.changed.notify_all();
    }

    /// How many requests a fault has met.
    pub fn hits(&self, id: FaultId) -> u64 {
        self.lock().list.iter().find(|fault| fault.id == id).map_or(0, |fault| fault.hits)
    }

    /// Waits until a fault has met `n` requests; false if it has not within `limit`.
    pub fn await_hits(&self, id: FaultId, n: u64, limit: Duration) -> bool {
        let met = |state: &State| state.list.iter().any(|f| f.id == id && f.hits >= n);
        let (state, _) = self
            .changed
            .wait_timeout_while(self.lock(), limit, |state| !met(state))
            .unwrap_or_else(PoisonError::into_inner);
        met(&state)
    }

    /// How many requests wait at this moment.
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    pub(super) fn judge(&self, request: wire::Request) -> Verdict {
        let opcode = request.opcode();
        let (offset, len) = match opcode {
            wire::READ | wire::WRITE => request.range(),
            wire::FSYNC => (0, 0),
            _ => return Verdict::Go(request),
        };
        let mut state = self.lock();
        let fits = |fault: &&mut Fault| {
            let touched = offset < fault.range.end && fault.range.start < offset + len;
            fault.requests.include(opcode) && (touched || opcode == wire::FSYNC)
        };
        let Some(fault) = state.list.iter_mut().find(fits) else { return Verdict::Go(request) };
        fault.hits += 1;
        let now = Instant::now();
        let until = match fault.effect {
            Effect::Fail(errno) => {
                self.changed.notify_all();
                return Verdict::Fail(request, errno);
            }
            Effect::Delay(time) => Until::Time(now + time),
            Effect::Hang => Until::Released(fault.id),
            Effect::Throttle(rate) => {
                let cost = Duration::from_secs_f64(len as f64 / rate.max(1) as f64);
                fault.free_at = fault.free_at.max(now) + cost;
                Until::Time(fault.free_at)
            }
        };
        state.held.push(Held { request, until });
        self.changed.notify_all();
        Verdict::Held
    }

    /// Waits for the next held request whose time has come, in the order of their times; `None` once the disk is gone.
    pub(super) fn next_due(&self) -> Option<wire::Request> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            let time = |held: &Held| match held.until {
                Until::Time(time) => Some(time),
                Until::Released(_) => None,
            };
            let next = state.held.iter().enumerate().filter_map(|(i, h)| Some((time(h)?, i))).min();
            let now = Instant::now();
            match next {
                Some((time, i)) if time <= now => return Some(state.held.remove(i).request),
                Some((time, _)) => {
                    let waited = self.changed.wait_timeout(state, time - now);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
