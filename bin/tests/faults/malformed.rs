//! Frames that are wrong in every way we could think of: each costs at most its own connection, and no memory.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::random::Random;
use crate::support::wire::{Conn, code, frame, send_ext};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

/// What may come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The broker closes the connection.
    Closed,
    /// It answers, with a code other than success, and goes on.
    Refused,
    /// Either of the two, or silence until the sender goes away: nothing was complete.
    AnythingOwn,
}

struct Nonsense {
    what: &'static str,
    bytes: Vec<u8>,
    outcome: Outcome,
}

fn raw(total: u32, word: u32, rest: &[u8]) -> Vec<u8> {
    let mut out = total.to_be_bytes().to_vec();
    out.extend_from_slice(&word.to_be_bytes());
    out.extend_from_slice(rest);
    out
}

fn with_header(header: &[u8], serialize: u32) -> Vec<u8> {
    raw(4 + header.len() as u32, serialize << 24 | header.len() as u32, header)
}

fn binary_header(remark_len: i32, ext_len: i32, rest: &[u8]) -> Vec<u8> {
    let mut h = vec![0, 10, 0, 0, 1]; // code 10, language 0, version 1
    h.extend_from_slice(&1i32.to_be_bytes());
    h.extend_from_slice(&0i32.to_be_bytes());
    h.extend_from_slice(&remark_len.to_be_bytes());
    h.extend_from_slice(&ext_len.to_be_bytes());
    h.extend_from_slice(rest);
    with_header(&h, 1)
}

/// The 310 of a good send, with one field changed.
fn send_with(field: &str, value: &str) -> Vec<u8> {
    let mut ext = send_ext("p", "Malformed", "0", "", false);
    for pair in &mut ext {
        if pair.0 == field {
            pair.1 = value;
        }
    }
    frame(code::SEND_MESSAGE_V2, 1, &ext, b"body")
}

fn batch_of(body: &[u8]) -> Vec<u8> {
    let ext = send_ext("p", "Malformed", "0", "", true);
    frame(code::SEND_BATCH_MESSAGE, 1, &ext, body)
}

fn all_kinds() -> Vec<Nonsense> {
    use Outcome::{AnythingOwn, Closed, Refused};
    let header = br#"{"code":34,"opaque":1,"flag":0}"#;
    let deep = [b"{\"a\":".repeat(20_000), b"1".to_vec(), b"}".repeat(20_000)].concat();
    let kinds: Vec<(&'static str, Vec<u8>, Outcome)> = vec![
        ("a length over the limit", raw(0x0100_0000, 8, b""), Closed),
        ("the greatest length", raw(0x7FFF_FFFF, 8, b""), Closed),
        ("a negative length", raw(0xFFFF_FFFF, 8, b""), Closed),
        ("length zero", raw(0, 0, b""), Closed),
        ("length three", raw(3, 0, b""), Closed),
        ("a header longer than its frame", raw(36, 4000, &[b' '; 32]), Closed),
        ("the greatest header length", raw(36, 0x00FF_FFFF, &[b' '; 32]), Closed),
        ("serialize type 2", with_header(header, 2), Closed),
        ("serialize type 255", with_header(header, 255), Closed),
        ("no JSON at all", with_header(&[b'x'; 64], 0), Closed),
        ("half a JSON header", with_header(&header[..15], 0), Closed),
        ("a JSON array", with_header(b"[1,2,3]", 0), AnythingOwn),
        ("a header of length zero", raw(4, 0, b""), AnythingOwn),
        (
            "bytes that are no UTF-8",
            with_header(b"{\"code\":34,\"remark\":\"\xff\xfe\xff\"}", 0),
            AnythingOwn,
        ),
        ("an unfinished escape", with_header(b"{\"code\":34,\"remark\":\"\\u12", 0), Closed),
        ("nesting 20,000 deep", with_header(&deep, 0), AnythingOwn),
        ("a code that is no number", with_header(br#"{"code":"x","opaque":1}"#, 0), AnythingOwn),
        (
            "a code beyond 32 bits",
            with_header(br#"{"code":99999999999999999999,"opaque":1}"#, 0),
            AnythingOwn,
        ),
        ("a binary header of one byte", with_header(&[0], 1), Closed),
        ("a binary remark longer than all", binary_header(1 << 30, 0, b""), Closed),
        ("a negative binary remark", binary_header(-5, 0, b""), Closed),
        ("binary fields longer than all", binary_header(0, 1 << 30, b""), Closed),
        ("negative binary fields", binary_header(0, -1, b""), AnythingOwn),
        ("a binary key beyond its fields", binary_header(0, 6, &[0x7F, 0xFF, 0, 0, 0, 1]), Closed),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), Closed),
        (
            "a TLS hello",
            [&[0x16u8, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3][..], &[7; 508][..]].concat(),
            AnythingOwn,
        ),
        ("a code that nobody has", frame(31_999, 1, &[], &[]), Refused),
        ("a send without fields", frame(code::SEND_MESSAGE_V2, 1, &[], b"body"), Refused),
        ("a pull without fields", frame(code::PULL_MESSAGE, 1, &[], &[]), Refused),
        ("a heartbeat without a body", frame(code::HEART_BEAT, 1, &[], &[]), Refused),
        (
            "a heartbeat of nonsense",
            frame(code::HEART_BEAT, 1, &[], b"{\"clientID\":[{{{"),
            Refused,
        ),
        ("a heartbeat nested 20,000 deep", frame(code::HEART_BEAT, 1, &[], &deep), AnythingOwn),
        ("a queue that is no number", send_with("e", "one"), Refused),
        ("a queue beyond the topic's", send_with("e", "77777"), Refused),
        ("a number beyond 64 bits", send_with("g", "99999999999999999999999"), Refused),
        ("an empty topic", send_with("b", ""), Refused),
        ("a topic out of its letters", send_with("b", "../../etc/passwd"), Refused),
        ("a topic too long", send_with("b", &"t".repeat(4_000)), Refused),
        ("properties too long", send_with("i", &format!("k\u{1}{}", "p".repeat(40_000))), Refused),
        ("a batch cut short", batch_of(&[0, 0, 0, 50, 0, 0, 0, 0]), Refused),
        (
            "a batch with a length beyond its end",
            batch_of(
                &[&[0u8, 0, 0, 50][..], &[0; 12], &[0x7F, 0xFF, 0xFF, 0xFF], b"body"].concat(),
            ),
            Refused,
        ),
        (
            "a batch with a negative length",
            batch_of(&[&[0u8, 0, 0, 50][..], &[0; 12], &[0xFF; 4], b"body"].concat()),
            Refused,
        ),
        (
            "half a frame",
            frame(code::SEND_MESSAGE_V2, 1, &[("a", "p")], b"body")[..20].to_vec(),
            AnythingOwn,
        ),
        ("two bytes", vec![0, 0], AnythingOwn),
        ("nothing", vec![], AnythingOwn),
        (
            "a response to nothing",
            with_header(br#"{"code":0,"flag":1,"opaque":77}"#, 0),
            AnythingOwn,
        ),
    ];
    kinds.into_iter().map(|(what, bytes, outcome)| Nonsense { what, bytes, outcome }).collect()
}

/// Sends it and looks at what comes of it.
fn offer(to: SocketAddr, nonsense: &Nonsense) -> Result<(), String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))
        .map_err(|e| format!("no connection: {e}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(|e| e.to_string())?;
    // The broker may close before it has read all.
    let _ = stream.write_all(&nonsense.bytes);
    if nonsense.outcome == Outcome::AnythingOwn {
        // Its end of the connection is told that no more comes, as a client that dies would.
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut first = [0; 512];
    let got = stream.read(&mut first);
    match (nonsense.outcome, got) {
        (Outcome::AnythingOwn, Ok(_)) => Ok(()),
        (Outcome::Closed | Outcome::AnythingOwn, Err(e))
            if e.kind() == std::io::ErrorKind::ConnectionReset =>
        {
            Ok(())
        }
        (Outcome::Closed, Ok(0)) => Ok(()),
        (Outcome::Refused, Ok(n)) if n > 8 => {
            let text = String::from_utf8_lossy(&first[8..n]).into_owned();
            if text.contains("\"code\":0,") || text.contains("\"code\":0}") {
                return Err(format!("answered with success: {text}"));
            }
            // And the connection lives.
            stream
                .write_all(&frame(
                    code::GET_MAX_OFFSET,
                    2,
                    &[("topic", "Malformed"), ("queueId", "0")],
                    &[],
                ))
                .map_err(|e| e.to_string())?;
            match stream.read(&mut first) {
                Ok(n) if n > 0 => Ok(()),
                other => Err(format!("after the answer: {other:?}")),
            }
        }
        (expected, got) => {
            Err(format!("expected {expected:?}, got {got:?}: {}", String::from_utf8_lossy(&first)))
        }
    }
}

#[test]
fn malformed_frames_close_at_most_their_own_connection() {
    let _alone = exclusive();
    let target = Target::from_env();
    let dir = tempdir("malformed");
    let mut broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    broker.create_topic("Malformed", 4);
    let address = broker.address(0);
    let mut healthy = Conn::open(address).expect("a healthy connection");
    let mut failures = Vec::new();
    for nonsense in all_kinds() {
        if let Err(why) = offer(address, &nonsense) {
            failures.push(format!("{}: {why}", nonsense.what));
        }
        let reply =
            healthy.call(code::GET_MAX_OFFSET, &[("topic", "Malformed"), ("queueId", "0")], &[]);
        assert!(
            reply.is_ok_and(|r| r.code == 0),
            "the healthy connection after: {}",
            nonsense.what
        );
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(broker.is_running());
}

#[test]
fn malformed_frames_cost_no_memory() {
    let _alone = exclusive();
    let target = Target::from_env();
    let mut random = Random::from_env("malformed");
    let dir = tempdir("malformed-memory");
    let mut broker = Broker::standalone(target, &dir.sub("broker"), Options::default());
    broker.create_topic("Malformed", 4);
    let address = broker.address(0);
    let kinds = all_kinds();
    let mut round = |times: u64| {
        for _ in 0..times {
            let nonsense = &kinds[random.below(kinds.len() as u64) as usize];
            let _ = offer(address, nonsense);
            noise(address, &mut random);
        }
    };
    round(400);
    let before = broker.process().memory_kib("VmRSS");
    round(2_000);
    // Frames that announce 15 MiB and never come: the announcement alone reserves nothing.
    let announced: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("a connection");
            stream.write_all(&raw(15 << 20, 64, &[b' '; 60])).expect("an announcement");
            stream
        })
        .collect();
    let reply = Conn::open(address).and_then(|mut c| {
        c.call(code::GET_MAX_OFFSET, &[("topic", "Malformed"), ("queueId", "0")], &[])
    });
    assert!(reply.is_ok_and(|r| r.code == 0), "a healthy connection beside 64 announcements");
    let after = broker.process().memory_kib("VmRSS");
    drop(announced);
    println!("resident: {before} KiB, then {after} KiB");
    if !target.is_stock() {
        assert!(after < before + (24 << 10), "memory grew from {before} to {after} KiB");
    }
}

/// Random bytes, some behind a plausible length.
fn noise(to: SocketAddr, random: &mut Random) {
    let Ok(mut stream) = TcpStream::connect(to) else { return };
    let mut bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
    if bytes.len() > 8 && random.below(2) == 0 {
        let total = bytes.len() as u32 - 4;
        bytes[..4].copy_from_slice(&total.to_be_bytes());
        bytes[4..8].copy_from_slice(&(total - 4).min(40).to_be_bytes());
    }
    let _ = stream.write_all(&bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.read(&mut [0; 256]);
}
