//! The producer's worker: one thread, many connections, each with a window of requests under way.
//!
//! Closed loop: an answer makes room, room is used at once (or, in bursts, when all answers are there). Open loop: the
//! schedule says when a request is due; it goes to the next connection with room, and is timed from when it was due.

use std::net::TcpStream;
use std::sync::Arc;

use crate::clock::{Clock, SECOND_NS, Span};
use crate::error::LoadError;
use crate::raw::answer::AnswerReader;
use crate::raw::link::Link;
use crate::raw::poller::{Event, Poller, set_fine_timers};
use crate::raw::template::{Place, SendTemplate, Shape, born_digits};
use crate::raw::window::{Sending, Window};
use crate::schedule::{Agenda, Schedule};
use crate::tally::{Live, Recorder, Tally};

/// How long answers are waited for after the last request.
const DRAIN_NS: u64 = 5 * SECOND_NS;
/// Open loop: requests that were due before the end are sent this long after it, at most.
const OVERDUE_NS: u64 = SECOND_NS / 5;
/// Longest sleep: the end of the run and a stop are noticed this late at most.
const TURN_NS: u64 = SECOND_NS / 20;
/// What a connection reads at a time.
const INPUT_BYTES: usize = 32 * 1024;

/// When requests are sent.
#[derive(Clone, Debug)]
pub enum Pace {
    /// As soon as there is room in the window.
    Closed,
    /// When the whole window has been answered: all of it at once.
    Burst,
    /// When they are due.
    Open(Agenda),
}

/// A connection to be used by a worker.
#[derive(Debug)]
pub struct ProducerLink {
    /// Connected.
    pub stream: TcpStream,
    /// Queues to send to in turn; not empty.
    pub places: Vec<Place>,
    /// The request.
    pub template: SendTemplate,
}

/// What a worker is to do.
#[derive(Debug)]
pub struct ProducerPlan {
    /// The run's clock.
    pub clock: Clock,
    /// The run's times.
    pub span: Span,
    /// When to send.
    pub pace: Pace,
    /// Requests under way on one connection.
    pub window: usize,
    /// When a connection is closed and made anew, each in its turn: producers that come and go.
    pub churn: Option<Schedule>,
    /// Keep which messages were acknowledged.
    pub keep: bool,
    /// Most requests; `u64::MAX` when time ends the run.
    pub requests_max: u64,
    /// For the progress line.
    pub live: Arc<Live>,
}

struct Conn {
    link: Link,
    window: Window,
    places: Vec<Place>,
    next_place: usize,
    /// It takes no more requests, and is closed and made anew when all are answered.
    leaving: bool,
}

/// One producing thread's work.
pub struct Producer {
    clock: Clock,
    pace: Pace,
    conns: Vec<Conn>,
    poller: Poller,
    reader: AnswerReader,
    recorder: Recorder,
    requests_left: u64,
    request_messages: u64,
    keep: bool,
    churn: Option<Schedule>,
    /// The connection that leaves next.
    next_to_leave: usize,
    /// Open loop: connections that got something to write in this turn.
    touched: Vec<usize>,
    /// Connections that are not open.
    down: Vec<usize>,
    /// Where the open loop looks for room next.
    turn: usize,
    born: [u8; 13],
    born_ms: u64,
}

impl Producer {
    /// A worker over connected streams; it does nothing before [`Self::run`].
    ///
    /// # Errors
    /// The system refuses to watch the connections.
    pub fn new(plan: ProducerPlan, links: Vec<ProducerLink>) -> Result<Self, LoadError> {
        let system = |source| LoadError::System { what: "watching the connections", source };
        let poller = Poller::new().map_err(system)?;
        let mut conns = Vec::with_capacity(links.len());
        let mut request_messages = 1;
        for link in links {
            let ProducerLink { stream, places, template } = link;
            let window = Window::new(template, plan.window);
            request_messages = window.messages_per_request() as u64;
            let link = Link::open(stream, &poller, conns.len(), INPUT_BYTES).map_err(system)?;
            conns.push(Conn { link, window, places, next_place: 0, leaving: false });
        }
        Ok(Producer {
            clock: plan.clock,
            pace: plan.pace,
            touched: Vec::with_capacity(conns.len()),
            conns,
            poller,
            reader: AnswerReader::default(),
            recorder: Recorder::new(plan.span, plan.live),
            requests_left: plan.requests_max,
            request_messages,
            keep: plan.keep,
            churn: plan.churn,
            next_to_leave: 0,
            down: Vec::new(),
            turn: 0,
            born: born_digits(0),
            born_ms: 0,
        })
    }

    /// Sends until the end of the span or of the requests, then waits for answers. Returns what was seen.
    ///
    /// # Errors
    /// The system refuses to wait for the connections.
    pub fn run(mut self) -> Result<Tally, LoadError> {
        let system = |source| LoadError::System { what: "waiting for the connections", source };
        set_fine_timers();
        std::thread::sleep(self.clock.until(self.recorder.span.start));
        for at in 0..self.conns.len() {
            self.pump(at, self.clock.now());
        }
        let mut drain_until = None;
        loop {
            let now = self.clock.now();
            self.begin_due(now);
            self.recorder.publish(now);
            self.churn(now);
            let sending = self.is_sending(now);
            if !sending {
                let until = *drain_until.get_or_insert(now + DRAIN_NS);
                if now >= until || self.conns.iter().all(|conn| conn.window.is_empty()) {
                    break;
                }
            }
            let timeout = self.timeout(now, sending);
            for event in self.poller.wait(timeout).map_err(system)? {
                self.on_event(event);
            }
            self.tend_down(self.clock.now());
        }
        Ok(self.finish())
    }

    fn is_sending(&self, now: u64) -> bool {
        let end = self.recorder.span.end;
        let timely = match &self.pace {
            Pace::Closed | Pace::Burst => now < end,
            Pace::Open(agenda) => agenda.next() < end && now < end.saturating_add(OVERDUE_NS),
        };
        timely && self.requests_left > 0 && !self.recorder.stopped()
    }

    fn finish(mut self) -> Tally {
        let now = self.clock.now();
        for conn in &mut self.conns {
            self.recorder.tally.unanswered += conn.window.abandon() as u64;
        }
        if let Pace::Open(agenda) = &self.pace
            && self.requests_left > 0
        {
            let end = self.recorder.span.end.min(now);
            self.recorder.tally.unsent = agenda.overdue(end).min(self.requests_left);
        }
        self.recorder.finish(now)
    }

    // ---- sending ----

    fn set_born(&mut self, now: u64) {
        let born_ms = self.clock.unix_ms(now);
        if born_ms != self.born_ms {
            (self.born_ms, self.born) = (born_ms, born_digits(born_ms));
        }
    }

    /// Closed loop: fills the connection's window. In any case writes what is queued.
    fn pump(&mut self, at: usize, now: u64) {
        if !matches!(self.pace, Pace::Open(_)) && self.is_sending(now) {
            self.set_born(now);
            let conn = &mut self.conns[at];
            let waits = matches!(self.pace, Pace::Burst) && !conn.window.is_empty();
            while !waits && conn.takes_more() && self.requests_left > 0 {
                if !conn.push(&self.born, now, None) {
                    break;
                }
                self.requests_left -= 1;
            }
        }
        self.write(at, now);
    }

    /// Open loop: gives the requests that are due to the connections in turn.
    fn begin_due(&mut self, now: u64) {
        if !self.is_sending(now) {
            return;
        }
        self.set_born(now);
        let Pace::Open(agenda) = &mut self.pace else { return };
        let mut full = 0;
        let due_before = self.recorder.span.end.min(now + 1);
        while self.requests_left > 0 && full < self.conns.len() && agenda.next() < due_before {
            self.turn = (self.turn + 1) % self.conns.len();
            let conn = &mut self.conns[self.turn];
            if !conn.takes_more() || !conn.window.has_room() {
                full += 1;
                continue;
            }
            let Some(due) = agenda.take(now) else { break };
            if !conn.window.has_queued() {
                self.touched.push(self.turn);
            }
            let shape =
                due.event.map(|event| Shape { head: event.kind, body: 0, size: event.size });
            conn.push(&self.born, due.intended, shape);
            // If a window was full, it is the broker that makes requests late.
            if full == 0 {
                self.recorder.lag(now, due.intended);
            }
            full = 0;
            self.requests_left -= 1;
        }
        while let Some(at) = self.touched.pop() {
            self.write(at, now);
        }
    }

    fn write(&mut self, at: usize, now: u64) {
        let conn = &mut self.conns[at];
        if !conn.link.is_open() || !conn.window.has_queued() {
            return;
        }
        let link = &mut conn.link;
        let written = conn.window.write_queued(|parts| link.write(parts));
        if written.and_then(|all| link.watch_write(&self.poller, !all)).is_err() {
            self.break_off(at, now);
        }
    }

    // ---- receiving ----

    fn on_event(&mut self, event: Event) {
        let (at, now) = (event.token, self.clock.now());
        if event.writable && self.conns[at].link.on_writable(&self.poller, now) {
            self.down.retain(|down| *down != at);
        }
        if event.readable && self.receive(at).is_err() {
            self.break_off(at, now);
        }
        self.pump(at, now);
        self.leave(at, now);
    }

    /// Reads and counts answers. An error means that the connection is of no use any more.
    fn receive(&mut self, at: usize) -> Result<(), Broken> {
        let conn = &mut self.conns[at];
        if !conn.link.read()? {
            return Ok(());
        }
        let now = self.clock.now();
        while let Some(frame) = conn.link.input.frame()? {
            let len = frame.len;
            if let Some(answer) = self.reader.read(&frame) {
                match conn.window.on_answer(answer.opaque) {
                    None => self.recorder.tally.strays += 1,
                    Some(request) if answer.code == 0 => {
                        self.recorder.messages(now, self.request_messages, request.bytes);
                        self.recorder.latency(now, request.started);
                        if self.keep {
                            let first = request.first_message;
                            let numbers = first..first + self.request_messages;
                            self.recorder.acknowledged(conn.window.connection(), numbers);
                        }
                    }
                    Some(_) => self.recorder.tally.error(answer.code, &frame),
                }
            }
            conn.link.input.consume(len);
        }
        Ok(())
    }

    // ---- connections ----

    fn break_off(&mut self, at: usize, now: u64) {
        let conn = &mut self.conns[at];
        conn.link.break_off(now);
        self.recorder.tally.unanswered += conn.window.abandon() as u64;
        self.recorder.tally.breaks += 1;
        conn.leaving = false;
        if !self.down.contains(&at) {
            self.down.push(at);
        }
    }

    /// Has connections leave whose time has come.
    fn churn(&mut self, now: u64) {
        let end = self.recorder.span.end;
        while let Some(churn) = &mut self.churn
            && churn.next() < end
            && churn.take(now).is_some()
        {
            let at = self.next_to_leave % self.conns.len();
            self.next_to_leave = at + 1;
            let conn = &mut self.conns[at];
            conn.leaving = conn.link.is_open();
            self.leave(at, now);
        }
    }

    /// Closes a connection that is to leave, if nothing is under way on it, and has it made anew.
    fn leave(&mut self, at: usize, now: u64) {
        let conn = &mut self.conns[at];
        if conn.leaving && conn.window.is_empty() {
            conn.leaving = false;
            conn.link.renew(now);
            self.recorder.tally.renewed += 1;
            if !self.down.contains(&at) {
                self.down.push(at);
            }
        }
    }

    fn tend_down(&mut self, now: u64) {
        let mut at = 0;
        while let Some(number) = self.down.get(at).copied() {
            if self.conns[number].link.tend(&self.poller, now) {
                self.down.swap_remove(at);
                self.pump(number, now);
            } else {
                at += 1;
            }
        }
    }

    fn timeout(&self, now: u64, sending: bool) -> u64 {
        let mut until = now + TURN_NS;
        if let Pace::Open(agenda) = &self.pace
            && sending
            && self.conns.iter().any(|conn| conn.takes_more() && conn.window.has_room())
        {
            until = until.min(agenda.next());
        }
        if let Some(churn) = &self.churn
            && sending
        {
            until = until.min(churn.next());
        }
        for at in &self.down {
            until = until.min(self.conns[*at].link.wakes_at().unwrap_or(until));
        }
        if now < self.recorder.span.end {
            until = until.min(self.recorder.span.end);
        }
        until.saturating_sub(self.clock.now())
    }
}

impl Conn {
    fn takes_more(&self) -> bool {
        self.link.is_open() && !self.leaving
    }

    fn push(&mut self, born: &[u8; 13], started: u64, shape: Option<Shape>) -> bool {
        let place = self.places.get(self.next_place).copied().unwrap_or_default();
        let pushed = self.window.push(&Sending { place, shape, born, started });
        if pushed {
            self.next_place = (self.next_place + 1) % self.places.len().max(1);
        }
        pushed
    }
}

/// A connection is of no use any more; why doesn't matter here, it is counted.
pub(crate) struct Broken;

impl From<std::io::Error> for Broken {
    fn from(_: std::io::Error) -> Self {
        Broken
    }
}

impl From<ringmq_net::frame::FrameError> for Broken {
    fn from(_: ringmq_net::frame::FrameError) -> Self {
        Broken
    }
}
