//! Many requests on a few connections, a window of them at a time.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::support::load::put_batched;
use crate::support::wire::{self, Conn, Reply, code};

/// Requests in flight on one connection.
const WINDOW: usize = 512;

/// A request: code, fields, body.
pub(crate) struct Request {
    pub(crate) code: i32,
    pub(crate) ext: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

/// What a burst took.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    all: Duration,
    /// The longest that a window waited for its last reply.
    window_max: Duration,
    window: usize,
}

impl std::fmt::Display for Took {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?}, at most {:?} for {} on a connection",
            self.all, self.window_max, self.window
        )
    }
}

/// Sends the requests numbered `0..count` over `conns` connections and hands every reply to `judge` with its request's number.
pub(crate) fn burst(
    to: SocketAddr,
    conns: usize,
    count: usize,
    request: impl Fn(usize) -> Request + Sync,
    judge: impl Fn(usize, &Reply) + Sync,
) -> Took {
    burst_by(to, (conns, WINDOW), count, request, judge)
}

/// As [`burst`], with `window` requests in flight on each connection.
fn burst_by(
    to: SocketAddr,
    (conns, window): (usize, usize),
    count: usize,
    request: impl Fn(usize) -> Request + Sync,
    judge: impl Fn(usize, &Reply) + Sync,
) -> Took {
    let began = Instant::now();
    let window_max = std::thread::scope(|scope| {
        let (request, judge) = (&request, &judge);
        let each = count.div_ceil(conns);
        let threads: Vec<_> = (0..conns)
            .map(|n| {
                let range = n * each..((n + 1) * each).min(count);
                scope.spawn(move || stream(to, window, range, request, judge))
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a connection's thread")).max()
    });
    Took { all: began.elapsed(), window_max: window_max.unwrap_or_default(), window }
}

fn stream(
    to: SocketAddr,
    window: usize,
    range: std::ops::Range<usize>,
    request: &impl Fn(usize) -> Request,
    judge: &impl Fn(usize, &Reply),
) -> Duration {
    let mut conn = Conn::open(to).expect("a connection to the broker");
    let mut window_max = Duration::ZERO;
    let mut out = Vec::new();
    let mut next = range.start;
    while next < range.end {
        let together = next..(next + window).min(range.end);
        out.clear();
        for n in together.clone() {
            let Request { code, ext, body } = request(n);
            let ext: Vec<(&str, &str)> = ext.iter().map(|(k, v)| (*k, v.as_str())).collect();
            wire::put_frame(&mut out, code, n as i32, &ext, &body);
        }
        let sent = Instant::now();
        conn.write(&out).expect("writing requests");
        for _ in together.clone() {
            let reply = conn.read_reply().expect("a reply");
            judge(reply.opaque as usize, &reply);
        }
        window_max = window_max.max(sent.elapsed());
        next = together.end;
    }
    window_max
}

/// Sends the batches numbered `0..count` and again those that were refused because the log was busy. Gives the offset of the first message
/// of each, and what the first pass took.
pub(crate) fn fill(
    to: SocketAddr,
    lanes: (usize, usize),
    count: usize,
    batch: impl Fn(usize) -> Request + Sync,
) -> (Vec<i64>, Took) {
    let places = Mutex::new(vec![-1; count]);
    let mut left: Vec<usize> = (0..count).collect();
    let mut first = None;
    let end = Instant::now() + Duration::from_secs(600);
    while !left.is_empty() {
        assert!(Instant::now() < end, "{} batches are refused for ever", left.len());
        let took = burst_by(
            to,
            lanes,
            left.len(),
            |n| batch(left[n]),
            |n, reply| {
                let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
                match reply.code {
                    0 => places[left[n]] = reply.number("queueOffset"),
                    _ if reply.remark.as_ref().is_some_and(|r| r.contains("busy")) => {}
                    _ => panic!("{reply:?}"),
                }
            },
        );
        first.get_or_insert(took);
        let places = places.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|n| places[*n] < 0);
    }
    let places = places.into_inner().unwrap_or_else(PoisonError::into_inner);
    (places, first.expect("something to send"))
}

/// A batch for a queue.
pub(crate) fn batch(topic: &str, queue: usize, bodies: &[Vec<u8>]) -> Request {
    let mut body = Vec::new();
    for one in bodies {
        put_batched(&mut body, one, "WAIT\u{1}true");
    }
    let queue = queue.to_string();
    let ext = wire::send_ext("scale", topic, &queue, "WAIT\u{1}true", true);
    let ext = ext.map(|(name, value)| (name, value.to_owned())).into();
    Request { code: code::SEND_BATCH_MESSAGE, ext, body }
}

/// A send of one small message to a queue, whose topic is made with `queues` queues if it is not there.
pub(crate) fn send(topic: &str, queues: usize, queue: usize, body: Vec<u8>) -> Request {
    let fields = [
        ("a", "scale".to_owned()),
        ("b", topic.to_owned()),
        ("c", "TBW102".to_owned()),
        ("d", queues.to_string()),
        ("e", queue.to_string()),
        ("f", "0".to_owned()),
        ("g", "1700000000000".to_owned()),
        ("h", "0".to_owned()),
        ("i", format!("UNIQ_KEY\u{1}{topic}-{queue}")),
        ("j", "0".to_owned()),
        ("k", "false".to_owned()),
        ("m", "false".to_owned()),
    ];
    Request { code: code::SEND_MESSAGE_V2, ext: fields.into(), body }
}

/// Success, or the reply in words.
#[track_caller]
pub(crate) fn ok(reply: &Reply) {
    assert_eq!(reply.code, 0, "{:?}", reply.remark);
}
