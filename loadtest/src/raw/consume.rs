//! The consumer's worker: one thread, many queues, one pull under way for each, as in stock clients.

use std::collections::HashSet;
use std::io::IoSlice;
use std::net::TcpStream;
use std::sync::Arc;

use ringmq_net::code::response;
use ringmq_net::frame::FrameRef;
use ringmq_net::header::HeaderDecoder;
use ringmq_net::headers::PullReplyHeader;
use ringmq_net::record::{Properties, RecordView};

use crate::clock::{Clock, SECOND_NS, Span};
use crate::driver::Purpose;
use crate::error::LoadError;
use crate::ledger::Checker;
use crate::raw::link::Link;
use crate::raw::poller::{Event, Poller};
use crate::raw::produce::Broken;
use crate::raw::records;
use crate::raw::template::{OPAQUE_BASE, OPAQUE_SPAN, PullTemplate};
use crate::stamp;
use crate::tally::{Live, Recorder, Tally};
use crate::trace::Recorded;

/// Longest sleep: the end of the run is noticed this late at most.
const TURN_NS: u64 = SECOND_NS / 50;
/// Wait after a pull that failed or got nowhere.
const BACKOFF_NS: u64 = SECOND_NS / 10;
/// A queue read to its end is given up after so many failures in a row.
const FAILURES_MAX: u32 = 50;
/// What a connection reads at a time; one answer is rarely above 256 KiB.
const INPUT_BYTES: usize = 512 * 1024;

/// One queue to be read.
#[derive(Debug)]
pub struct QueuePlan {
    /// Which of the worker's connections it uses.
    pub link: usize,
    /// Which consumer group it is read for, counted from 0.
    pub group: usize,
    /// Queue id.
    pub queue: i32,
    /// Queue offset to begin at.
    pub offset: u64,
    /// How long a message is worked on, nanoseconds, as long as messages are sent; the next pull waits for it.
    pub work_ns: u64,
    /// The request.
    pub template: PullTemplate,
}

/// What a worker is to do.
#[derive(Debug)]
pub struct ConsumerPlan {
    /// The run's clock.
    pub clock: Clock,
    /// The run's times.
    pub span: Span,
    /// Go on at the end of a queue, instead of being done with it.
    pub follow: bool,
    /// Every record is asked for, so queue offsets must have no gaps.
    pub whole: bool,
    /// Stop after so many messages.
    pub messages_max: u64,
    /// What is measured.
    pub purpose: Purpose,
    /// For the progress line.
    pub live: Arc<Live>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CursorState {
    /// To be pulled as soon as its connection is open.
    Idle,
    /// A pull is under way since then.
    InFlight(u64),
    /// To be pulled at this time.
    BackOff(u64),
    Done,
}

#[derive(Debug)]
struct Cursor {
    plan: QueuePlan,
    state: CursorState,
    use_count: u32,
    failures: u32,
}

struct Conn {
    link: Link,
    out: Vec<u8>,
    written: usize,
}

/// One consuming thread's work.
pub struct Consumer {
    conns: Vec<Conn>,
    poller: Poller,
    pulls: Pulls,
}

/// The queues and what is known of them; apart from the connections, whose buffers it reads from.
struct Pulls {
    clock: Clock,
    cursors: Vec<Cursor>,
    cursor_bits: u32,
    decoder: HeaderDecoder,
    recorder: Recorder,
    follow: bool,
    whole: bool,
    messages_max: u64,
    purpose: Purpose,
    checker: Option<Checker>,
    recorded: Vec<Recorded>,
    /// Tags that were recorded.
    tags: HashSet<Arc<str>>,
    /// When the messages of an answer were meant to be sent.
    stamps: Vec<u64>,
    /// Cursors to be pulled later.
    backing_off: Vec<usize>,
    done: usize,
}

impl Consumer {
    /// A worker over connected streams; it does nothing before [`Self::run`].
    ///
    /// # Errors
    /// The system refuses to watch the connections.
    pub fn new(
        plan: ConsumerPlan,
        streams: Vec<TcpStream>,
        queues: Vec<QueuePlan>,
    ) -> Result<Self, LoadError> {
        let system = |source| LoadError::System { what: "watching the connections", source };
        let poller = Poller::new().map_err(system)?;
        let mut conns = Vec::with_capacity(streams.len());
        for stream in streams {
            let link = Link::open(stream, &poller, conns.len(), INPUT_BYTES).map_err(system)?;
            conns.push(Conn { link, out: Vec::new(), written: 0 });
        }
        let cursor = |plan| Cursor { plan, state: CursorState::Idle, use_count: 0, failures: 0 };
        let pulls = Pulls {
            clock: plan.clock,
            cursor_bits: queues.len().next_power_of_two().trailing_zeros(),
            cursors: queues.into_iter().map(cursor).collect(),
            decoder: HeaderDecoder::new(),
            recorder: Recorder::new(plan.span, plan.live),
            follow: plan.follow,
            whole: plan.whole,
            messages_max: plan.messages_max,
            checker: plan.purpose.check().cloned().map(Checker::new),
            purpose: plan.purpose,
            recorded: Vec::new(),
            tags: HashSet::new(),
            stamps: Vec::new(),
            backing_off: Vec::new(),
            done: 0,
        };
        Ok(Consumer { conns, poller, pulls })
    }

    /// Pulls until the end that the plan gives. Returns what was seen.
    ///
    /// # Errors
    /// The system refuses to wait for the connections.
    pub fn run(mut self) -> Result<Tally, LoadError> {
        let system = |source| LoadError::System { what: "waiting for the connections", source };
        std::thread::sleep(self.pulls.clock.until(self.pulls.recorder.span.start));
        for at in 0..self.pulls.cursors.len() {
            self.request(at);
        }
        loop {
            for at in 0..self.conns.len() {
                self.write(at);
            }
            let now = self.pulls.clock.now();
            self.pulls.recorder.publish(now);
            if self.pulls.finished(now) {
                return Ok(self.pulls.finish(now));
            }
            for event in self.poller.wait(TURN_NS).map_err(system)? {
                self.on_event(event);
            }
            self.resume();
        }
    }

    fn request(&mut self, at: usize) {
        let Some(cursor) = self.pulls.cursors.get(at) else { return };
        let conn = &mut self.conns[cursor.plan.link];
        if conn.link.is_open() {
            self.pulls.request(at, &mut conn.out);
        }
    }

    fn on_event(&mut self, event: Event) {
        let (at, now) = (event.token, self.pulls.clock.now());
        if event.writable && self.conns[at].link.on_writable(&self.poller, now) {
            self.reopened(at);
        }
        if event.readable && self.receive(at).is_err() {
            self.break_off(at, now);
        }
        self.write(at);
    }

    fn receive(&mut self, at: usize) -> Result<(), Broken> {
        let conn = &mut self.conns[at];
        if !conn.link.read()? {
            return Ok(());
        }
        let now = self.pulls.clock.now();
        while let Some(frame) = conn.link.input.frame()? {
            let len = frame.len;
            if let Some(next) = self.pulls.on_frame(&frame, now) {
                self.pulls.request(next, &mut conn.out);
            }
            conn.link.input.consume(len);
        }
        Ok(())
    }

    fn write(&mut self, at: usize) {
        let conn = &mut self.conns[at];
        if conn.out.is_empty() || !conn.link.is_open() {
            return;
        }
        let written = conn.link.write(&[IoSlice::new(&conn.out[conn.written..])]);
        let watched = written.and_then(|written| {
            conn.written += written;
            let all = conn.written == conn.out.len();
            if all {
                conn.out.clear();
                conn.written = 0;
            }
            conn.link.watch_write(&self.poller, !all)
        });
        if watched.is_err() {
            self.break_off(at, self.pulls.clock.now());
        }
    }

    fn break_off(&mut self, at: usize, now: u64) {
        let conn = &mut self.conns[at];
        conn.link.break_off(now);
        conn.out.clear();
        conn.written = 0;
        self.pulls.recorder.tally.breaks += 1;
        self.pulls.forget(at);
    }

    fn reopened(&mut self, at: usize) {
        for number in 0..self.pulls.cursors.len() {
            let cursor = &self.pulls.cursors[number];
            if cursor.plan.link == at && cursor.state == CursorState::Idle {
                self.request(number);
            }
        }
    }

    /// Connects what is down and pulls what has waited long enough.
    fn resume(&mut self) {
        let now = self.pulls.clock.now();
        for at in 0..self.conns.len() {
            let link = &mut self.conns[at].link;
            if !link.is_open() && link.tend(&self.poller, now) {
                self.reopened(at);
            }
        }
        for at in self.pulls.ready(now) {
            self.request(at);
        }
    }
}

impl Pulls {
    fn finished(&self, now: u64) -> bool {
        let arrived = match &self.purpose {
            Purpose::Drain { .. } => false,
            Purpose::EndToEnd { arrivals, .. } => arrivals.done(now),
        };
        // End to end goes on after the last send, until all has arrived.
        let timed = matches!(self.purpose, Purpose::Drain { .. }) && now >= self.recorder.span.end;
        let counted = self.recorder.tally.messages_all >= self.messages_max;
        arrived || timed || counted || self.done == self.cursors.len() || self.recorder.stopped()
    }

    /// Appends the next pull of a queue to `out`.
    fn request(&mut self, at: usize, out: &mut Vec<u8>) {
        let cursor = &mut self.cursors[at];
        cursor.use_count = (cursor.use_count + 1) % (OPAQUE_SPAN >> self.cursor_bits);
        let opaque = OPAQUE_BASE + (cursor.use_count << self.cursor_bits | at as u32) as i32;
        out.extend_from_slice(cursor.plan.template.patch(opaque, cursor.plan.offset));
        cursor.state = CursorState::InFlight(self.clock.now());
    }

    /// The pulls under way on a connection will not be answered.
    fn forget(&mut self, link: usize) {
        for cursor in &mut self.cursors {
            if cursor.plan.link == link && matches!(cursor.state, CursorState::InFlight(_)) {
                cursor.state = CursorState::Idle;
            }
        }
    }

    /// Queues whose wait is over.
    fn ready(&mut self, now: u64) -> Vec<usize> {
        if self.backing_off.is_empty() {
            return Vec::new();
        }
        let waits = |at: &usize| matches!(self.cursors[*at].state, CursorState::BackOff(until) if until > now);
        let (later, ready): (Vec<_>, Vec<_>) = self.backing_off.drain(..).partition(waits);
        self.backing_off = later;
        for at in &ready {
            self.cursors[*at].state = CursorState::Idle;
        }
        ready
    }

    /// Takes an answer. Returns the queue to be pulled again at once.
    fn on_frame(&mut self, frame: &FrameRef<'_>, now: u64) -> Option<usize> {
        let reply = Reply::read(&mut self.decoder, frame)?;
        let Some((at, since)) = self.find(reply.opaque) else {
            self.recorder.tally.strays += 1;
            return None;
        };
        let cursor = &mut self.cursors[at];
        cursor.state = CursorState::Idle;
        let moved = reply.next != Some(cursor.plan.offset);
        match (reply.code, reply.next) {
            (response::SUCCESS, Some(next)) => {
                let messages = self.take_records(at, frame, now, since);
                self.cursors[at].plan.offset = next;
                let work_ns = self.cursors[at].plan.work_ns.saturating_mul(messages);
                if work_ns > 0 && moved && self.is_sent_to() {
                    self.cursors[at].failures = 0;
                    return self.wait(at, now + work_ns);
                }
            }
            (response::PULL_NOT_FOUND, _) if self.follow => {
                // Held to the end, in which case it goes on at once; or refused to be held.
                if now.saturating_sub(since) < BACKOFF_NS {
                    return self.back_off(at, now);
                }
            }
            (response::PULL_NOT_FOUND, _) => {
                self.end(at);
                return None;
            }
            (response::PULL_RETRY_IMMEDIATELY, Some(next)) => cursor.plan.offset = next,
            (response::PULL_OFFSET_MOVED, Some(next)) => {
                self.recorder.tally.offsets_moved += 1;
                cursor.plan.offset = next;
            }
            (code, _) => {
                self.recorder.tally.error(code, frame);
                return self.fail(at, now);
            }
        }
        // An answer that sends us nowhere must not be asked for in a circle.
        let waits = self.follow && reply.code == response::PULL_NOT_FOUND;
        if !(moved || waits) {
            return self.fail(at, now);
        }
        self.cursors[at].failures = 0;
        Some(at)
    }

    fn find(&self, opaque: i32) -> Option<(usize, u64)> {
        let value = opaque.checked_sub(OPAQUE_BASE).and_then(|value| u32::try_from(value).ok())?;
        let at = (value & ((1 << self.cursor_bits) - 1)) as usize;
        let cursor = self.cursors.get(at)?;
        match cursor.state {
            CursorState::InFlight(since) if cursor.use_count == value >> self.cursor_bits => {
                Some((at, since))
            }
            _ => None,
        }
    }

    fn fail(&mut self, at: usize, now: u64) -> Option<usize> {
        self.cursors[at].failures += 1;
        if !self.follow && self.cursors[at].failures >= FAILURES_MAX {
            self.end(at);
            return None;
        }
        self.back_off(at, now)
    }

    fn back_off(&mut self, at: usize, now: u64) -> Option<usize> {
        self.wait(at, now + BACKOFF_NS)
    }

    fn wait(&mut self, at: usize, until: u64) -> Option<usize> {
        self.cursors[at].state = CursorState::BackOff(until);
        self.backing_off.push(at);
        None
    }

    fn end(&mut self, at: usize) {
        self.cursors[at].state = CursorState::Done;
        self.done += 1;
    }

    /// Whether messages are still being sent.
    fn is_sent_to(&self) -> bool {
        match &self.purpose {
            Purpose::Drain { .. } => true,
            Purpose::EndToEnd { arrivals, .. } => !arrivals.all_sent(),
        }
    }

    fn finish(mut self, now: u64) -> Tally {
        if let Some(checker) = self.checker {
            self.recorder.tally.seen = checker.groups;
        }
        self.recorder.tally.recorded = self.recorded;
        self.recorder.finish(now)
    }

    /// Counts the records of an answer; returns how many there were.
    fn take_records(&mut self, at: usize, frame: &FrameRef<'_>, now: u64, since: u64) -> u64 {
        let plan = &self.cursors[at].plan;
        let (queue, offset, group, whole) = (plan.queue, plan.offset, plan.group, self.whole);
        let (recorder, checker) = (&mut self.recorder, &mut self.checker);
        let place = |record: &RecordView<'_>| {
            format!("queue {queue}, queue offset {}", record.queue_offset())
        };
        match &self.purpose {
            Purpose::Drain { record: keep, .. } => {
                let (recorded, tags) = (&mut self.recorded, &mut self.tags);
                let each = |record: &RecordView<'_>| {
                    if let Some(checker) = checker {
                        checker.see(group, at, || place(record), record.body());
                    }
                    if *keep {
                        recorded.push(recording(record, tags));
                    }
                };
                let count =
                    records::walk(frame.body, queue, offset, whole, &mut recorder.tally, each);
                recorder.messages(now, count, frame.body.len() as u64);
                recorder.latency(now, since);
                count
            }
            Purpose::EndToEnd { run_id, arrivals, .. } => {
                let (stamps, mut bytes, mut new) = (&mut self.stamps, 0, 0);
                stamps.clear();
                let each = |record: &RecordView<'_>| {
                    let seen = match checker {
                        Some(checker) => checker.see(group, at, || place(record), record.body()),
                        None => match stamp::read(record.body(), *run_id) {
                            stamp::Body::Ours(stamp) => Some((stamp, true)),
                            _ => None,
                        },
                    };
                    if let Some((stamp, is_new)) = seen {
                        stamps.push(stamp.intended);
                        bytes += record.total_size() as u64;
                        new += u64::from(is_new);
                    }
                };
                let count =
                    records::walk(frame.body, queue, offset, whole, &mut recorder.tally, each);
                for intended in stamps.iter() {
                    recorder.age(now, *intended, group);
                }
                recorder.messages(now, stamps.len() as u64, bytes);
                arrivals.add(group, new, now);
                count
            }
        }
    }
}

/// What has to be known of a record to send the same again.
fn recording(record: &RecordView<'_>, tags: &mut HashSet<Arc<str>>) -> Recorded {
    let properties = std::str::from_utf8(record.properties()).unwrap_or_default();
    let tag = Properties::new(properties).get("TAGS").unwrap_or_default();
    let tag = tags.get(tag).cloned().unwrap_or_else(|| {
        let tag: Arc<str> = tag.into();
        tags.insert(Arc::clone(&tag));
        tag
    });
    let born_ms = u64::try_from(record.born_timestamp()).unwrap_or(0);
    Recorded { born_ms, size: record.body().len() as u32, tag }
}

/// What matters of a pull's answer.
struct Reply {
    opaque: i32,
    code: i32,
    /// Where to go on, if it says so.
    next: Option<u64>,
}

impl Reply {
    /// `None` if it is no answer but a request of the broker's, or nothing that can be read.
    fn read(decoder: &mut HeaderDecoder, frame: &FrameRef<'_>) -> Option<Self> {
        let view = decoder.decode(frame.serialize, frame.header).ok()?;
        let next = PullReplyHeader::decode(&view).ok().map(|reply| reply.next_begin_offset);
        let next = next.and_then(|next| u64::try_from(next).ok());
        view.is_response().then(|| Reply { opaque: view.opaque(), code: view.code(), next })
    }
}
