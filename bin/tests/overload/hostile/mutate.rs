//! What a hostile client makes of a valid request: it knows the protocol, and where a number, a name, a length or a count stands.

use crate::support::random::Random;

use super::request::{Request, frame_of};

/// Numbers at and beyond the ends of every type.
const NUMBERS: [&str; 22] = [
    "-1",
    "0",
    "1",
    "31",
    "255",
    "32767",
    "65535",
    "65536",
    "1000000",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4611686018427387904",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999999999",
    "1e400",
    "NaN",
    "0x10",
    " 7 ",
    "",
    "true",
];

/// Names that are paths, commands, separators of our own files, or no text at all.
pub(crate) const NAMES: [&[u8]; 22] = [
    b"../../../escaped",
    b"..",
    b".",
    b"/tmp/ringmq-escaped",
    b"a/b",
    b"a\\b",
    b"nul\0inside",
    b"\0",
    b"\xff\xfe\xfd",
    b"\xed\xa0\x80",
    b"new\nline",
    b"a\x01b\x02c",
    b"a@b",
    b"%RETRY%hostile",
    b"%RETRY%../escaped",
    b"%DLQ%hostile",
    b"SCHEDULE_TOPIC_XXXX",
    b"OFFSET_MOVED_EVENT",
    b"TBW102",
    b"$(touch escaped)",
    b"\"quoted\",\"x\":{",
    "\u{202e}\u{1F980}".as_bytes(),
];

pub(crate) fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[random.below(from.len() as u64) as usize]
}

/// Bytes of a frame made from a valid request: mostly one thing is wrong, sometimes several, now and then nothing.
pub(crate) fn mutated(random: &mut Random, valid: &Request, opaque: i32) -> Vec<u8> {
    let mut request = valid.clone();
    for _ in 0..random.below(4) {
        mutate(random, &mut request);
    }
    match random.below(12) {
        0 => broken_frame(random, &request, opaque),
        1 => bent_json(random, &request, opaque),
        n => request.frame(opaque, n < 4),
    }
}

fn mutate(random: &mut Random, request: &mut Request) {
    let count = request.fields.len() as u64;
    match random.below(12) {
        0..4 if count > 0 => {
            let at = random.below(count) as usize;
            request.fields[at].1 = evil_value(random);
        }
        4 if count > 0 => drop(request.fields.remove(random.below(count) as usize)),
        5 if count > 0 => {
            let (name, _) = request.fields[random.below(count) as usize].clone();
            request.fields.push((name, evil_value(random)));
        }
        6 => {
            for n in 0..random.below(2_000) {
                request.fields.push((format!("f{n}").into_bytes(), evil_value(random)));
            }
        }
        7 => request.flag = *pick(random, &[1, 2, 3, -1, i64::from(i32::MAX)]),
        8 | 9 => mutate_bytes(random, &mut request.body),
        10 => request.body = evil_json(random),
        _ => mutate_numbers_in(random, &mut request.body),
    }
}

fn evil_value(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0..4 => pick(random, &NUMBERS).as_bytes().to_vec(),
        4..7 => pick(random, &NAMES).to_vec(),
        _ => vec![b'n'; *pick(random, &[127, 128, 255, 256, 4_096, 32_768, 65_536, 300_000])],
    }
}

/// Some bytes changed, cut off, doubled or made up.
fn mutate_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    let len = bytes.len() as u64;
    match random.below(4) {
        0 if len > 0 => bytes.truncate(random.below(len) as usize),
        1 if len > 0 => {
            for _ in 0..1 + random.below(8) {
                let at = random.below(len) as usize;
                bytes[at] = random.next() as u8;
            }
        }
        2 if len > 4 => {
            // Where a length or a count of four bytes may stand.
            let at = random.below(len - 3) as usize;
            let word =
                *pick(random, &[0u32, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x00FF_FFFF]);
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        _ => bytes.extend((0..random.below(300)).map(|_| random.next() as u8)),
    }
}

/// Replaces a number of a JSON text by an evil one.
fn mutate_numbers_in(random: &mut Random, json: &mut Vec<u8>) {
    let starts: Vec<usize> =
        (1..json.len()).filter(|at| json[*at].is_ascii_digit() && json[*at - 1] == b':').collect();
    if starts.is_empty() {
        return;
    }
    let at = *pick(random, &starts);
    let end = at + json[at..].iter().take_while(|b| b.is_ascii_digit()).count();
    let number = pick(random, &NUMBERS).as_bytes().to_vec();
    json.splice(at..end, number);
}

/// JSON that costs its reader more than its writer.
pub(crate) fn evil_json(random: &mut Random) -> Vec<u8> {
    let n = *pick(random, &[100usize, 10_000, 200_000]);
    match random.below(8) {
        0 => b"[".repeat(n),
        1 => [b"{\"a\":".repeat(n), b"1".to_vec(), b"}".repeat(n)].concat(),
        2 => [
            b"{\"clientID\":\"c\",\"consumerDataSet\":[".to_vec(),
            b"{},".repeat(n),
            b"{}]}".to_vec(),
        ]
        .concat(),
        3 => [b"{\"clientID\":".to_vec(), b"9".repeat(n), b"}".to_vec()].concat(),
        4 => [b"{\"clientID\":\"".to_vec(), b"\\u00".repeat(n), b"\"}".to_vec()].concat(),
        5 => {
            let mut out = b"{".to_vec();
            (0..n).for_each(|i| out.extend_from_slice(format!("\"k{i}\":{i},").as_bytes()));
            out.extend_from_slice(b"\"clientID\":\"c\"}");
            out
        }
        6 => [b"{".to_vec(), b"\"clientID\":\"c\",".repeat(n), b"\"clientID\":\"d\"}".to_vec()]
            .concat(),
        _ => [
            b"{\"clientID\":\"".to_vec(),
            b"x".repeat(n),
            b"\",\"producerDataSet\":[".to_vec(),
            (0..1_000)
                .map(|i| format!("{{\"groupName\":\"g{i}\"}},"))
                .collect::<String>()
                .into_bytes(),
            b"{\"groupName\":\"g\"}]}".to_vec(),
        ]
        .concat(),
    }
}

/// A frame whose own lengths lie, or that is no frame.
fn broken_frame(random: &mut Random, request: &Request, opaque: i32) -> Vec<u8> {
    let mut frame = request.frame(opaque, random.below(2) == 0);
    match random.below(8) {
        0 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        1 => [&[0x16u8, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3][..], &[7; 508][..]].concat(),
        2 => {
            frame.truncate(random.below(frame.len() as u64) as usize);
            frame
        }
        3 => {
            let word =
                *pick(random, &[0u32, 3, 4, 0x00FF_FFFF, 0x0100_0000, 0x7FFF_FFFF, 0xFFFF_FFFF]);
            frame[..4].copy_from_slice(&word.to_be_bytes());
            frame
        }
        4 => {
            let word = random.next() as u32;
            frame[4..8].copy_from_slice(&word.to_be_bytes());
            frame
        }
        _ => {
            mutate_bytes(random, &mut frame);
            frame
        }
    }
}

/// A header that is nearly JSON.
fn bent_json(random: &mut Random, request: &Request, opaque: i32) -> Vec<u8> {
    let mut header = request.json(opaque);
    mutate_bytes(random, &mut header);
    frame_of(&header, 0, &request.body)
}
