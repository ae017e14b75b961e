//! What was captured between stock brokers: our sessions in the place of either say the same.

use std::time::Duration;

use ringmq_net::ha_term_frame::{CRC_RANGE_MAX, HELLO, encode_crc_query, peek_slave};
use ringmq_replication::pair::{
    MasterAction, MasterSession, Parsed, PeerState, Retry, SlaveAction, SlaveSession, Speech,
    Trouble,
};
use ringmq_replication::stock::Refused;

use crate::duo::{Side, history, list, master_config, slave_config};

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    digits.chunks(2).map(|pair| byte(pair).expect("a hex digit")).collect()
}

/// Milliseconds, whether from the master, bytes.
fn exchange() -> Vec<(u64, bool, Vec<u8>)> {
    let text = include_str!("../vectors/ha_exchange.txt");
    let rows = text.lines().filter(|row| !row.starts_with('#') && !row.is_empty());
    rows.map(|row| {
        let words: Vec<&str> = row.split(' ').collect();
        (words[0].parse().expect("a time"), words[1] == "M>S", unhex(words[3]))
    })
    .collect()
}

fn log_of_exchange() -> Vec<u8> {
    let text = include_str!("../vectors/ha_exchange_master_log.hex");
    unhex(&text.lines().filter(|row| !row.starts_with('#')).collect::<String>())
}

/// Frames without heartbeats, and where each ends.
fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(head) = bytes.first_chunk::<12>() {
        let len = 12 + u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        // The rest of it is in the next row.
        let Some((frame, rest)) = bytes.split_at_checked(len) else { break };
        bytes = rest;
        if len > 12 {
            found.push(frame);
        }
    }
    found
}

#[test]
fn a_master_sends_a_stock_slave_what_a_stock_master_sent() {
    let log = log_of_exchange();
    let mut session = MasterSession::new(master_config(), 0);
    let (mut want, mut got) = (Vec::new(), Vec::new());
    // Terms change nothing toward a stock slave.
    let mut side = Side::new(Vec::new(), &[(1, 0, 7), (2, 0x69, 8)]);
    for (ms, from_master, bytes) in exchange() {
        if !from_master {
            session.received(ms, &bytes, &side.master());
            continue;
        }
        want.extend_from_slice(&bytes);
        // What the stock master had by then.
        let end = frames(&want).last().map_or(0, |frame| {
            let at = u64::from_be_bytes(*frame.first_chunk().expect("an offset"));
            at + frame.len() as u64 - 12
        });
        side.bytes = log[..end as usize].to_vec();
        while let Some(action) = session.next(ms, &side.master()) {
            match action {
                MasterAction::Data { from, max } => {
                    let to = side.end().min(from + u64::from(max));
                    let body = side.range(from, to).expect("bytes").to_vec();
                    got.extend_from_slice(session.frame(&body, &side.master()).bytes());
                    got.extend(body);
                    session.sent(ms);
                }
                MasterAction::Send(bytes) => {
                    got.extend(bytes);
                    session.sent(ms);
                }
                _ => {}
            }
        }
    }
    // The capture's rows end where its relay read, so a frame may have come in two: what counts is the bytes of the log.
    let bodies = |bytes: &[u8]| -> Vec<u8> {
        frames(bytes).into_iter().flat_map(|frame| frame[12..].to_vec()).collect()
    };
    assert_eq!(bodies(&got), bodies(&want));
    assert!(frames(&got).iter().all(|frame| frame.len() <= 12 + 128));
    assert_eq!(session.acked(), 0x2a6);
}

#[test]
fn a_slave_tells_a_stock_master_what_a_stock_slave_told() {
    let mut side = Side::default();
    let mut session =
        SlaveSession::new(slave_config(), Speech::Stock { first: 0, compared: true }, 5_007);
    let (mut want, mut got, mut frame) = (Vec::new(), Vec::new(), Vec::new());
    let mut wanted = 0;
    let rows = exchange();
    for (ms, from_master, bytes) in &rows {
        if *from_master {
            frame.extend_from_slice(bytes);
        } else {
            want.extend_from_slice(bytes);
        }
        loop {
            while let Some(action) = session.next(*ms, &side.slave()).expect("no trouble") {
                if let SlaveAction::Send(bytes) = action {
                    got.extend(bytes);
                }
            }
            if wanted > 0 {
                if frame.len() < wanted {
                    break;
                }
                side.bytes.extend(frame.drain(..std::mem::take(&mut wanted)));
                session.body(*ms, true).expect("an intact body");
                continue;
            }
            match session.parse(*ms, &frame, &side.slave()).expect("frames") {
                Parsed::Consumed(len) => drop(frame.drain(..len)),
                Parsed::Body(body, head) => {
                    frame.drain(..head);
                    wanted = body.len;
                }
                _ => break,
            }
        }
    }
    assert_eq!(side.bytes, log_of_exchange()[..0x2a6]);
    // The stock slave's idle reports come by its own clock.
    assert!(want.starts_with(&got) || got.starts_with(&want), "{got:02x?}\n{want:02x?}");
    assert!(got.len() >= want.len() - 16, "{} of {}", got.len(), want.len());
}

#[test]
fn the_first_report_waits_for_no_clock() {
    let side = Side::new(history(0, 0, 700), &[]);
    let mut session =
        SlaveSession::new(slave_config(), Speech::Stock { first: 700, compared: true }, 0);
    let first = session.next(0, &side.slave()).expect("no trouble");
    assert_eq!(first, Some(SlaveAction::Send(700u64.to_be_bytes().to_vec())));
}

#[test]
fn what_a_stock_master_writes_belongs_to_no_term_of_ours() {
    let side = Side::new(history(0, 0, 100), &[(4, 0, 7)]);
    let mut session =
        SlaveSession::new(slave_config(), Speech::Stock { first: 100, compared: true }, 0);
    let head = ringmq_net::ha_frame::encode_header(100, 20);
    let Ok(Parsed::Body(body, 12)) = session.parse(0, &head, &side.slave()) else {
        panic!("no body")
    };
    let term = body.term.expect("a term of its own");
    assert_eq!((term.number, term.start, term.id.0), (5, 100, 0));
    // Once is enough.
    let side = Side::new(history(0, 0, 100), &[(4, 0, 7), (5, 90, 0)]);
    let mut session =
        SlaveSession::new(slave_config(), Speech::Stock { first: 100, compared: true }, 0);
    let Ok(Parsed::Body(body, 12)) = session.parse(0, &head, &side.slave()) else {
        panic!("no body")
    };
    assert_eq!(body.term, None);
}

#[test]
fn a_stock_masters_heartbeat_repeats_the_report_and_shows_nothing_of_its_log() {
    let side = Side::new(history(0, 0, 100), &[]);
    let heartbeat = ringmq_net::ha_frame::encode_header(100, 0);
    let data = ringmq_net::ha_frame::encode_header(100, 20);
    for compared in [false, true] {
        let speech = Speech::Stock { first: 100, compared };
        let mut session = SlaveSession::new(slave_config(), speech, 0);
        let parsed = session.parse(0, &heartbeat, &side.slave());
        assert_eq!(parsed, Ok(Parsed::Consumed(12)));
        assert_eq!(session.is_following(), compared);
        // A byte behind this log's end shows that it had what is before.
        let parsed = session.parse(0, &data, &side.slave());
        assert!(matches!(parsed, Ok(Parsed::Body(..))), "{parsed:?}");
        assert!(session.is_following());
    }
}

/// The captured rejoin of an old 5.5.0 master: where that one cut, we compare.
#[test]
fn the_captured_handshake_of_stock_5_leads_to_the_same_place() {
    let text = include_str!("../vectors/ha_rejoin_truncate.txt");
    let mut rows = text.lines().filter(|row| !row.starts_with('#'));
    let row = rows.find(|row| row.contains("M>S")).expect("a handshake");
    let handshake = unhex(row.split(' ').nth(2).expect("hex"));
    let terms = list(&[(1, 0, 0), (2, 63_186, 0), (3, 825_280, 0), (4, 945_855, 0)]);
    let log = ringmq_replication::pair::SlaveLog {
        min: 0,
        end: 18_328_452,
        held: 18_328_452,
        segment: 1 << 30,
        bound: 0,
        terms: &terms,
    };
    let mut session = SlaveSession::new(slave_config(), Speech::Terms { known: true }, 0);
    let Some(SlaveAction::Send(opening)) = session.next(0, &log).expect("no trouble") else {
        panic!("no hello")
    };
    assert_eq!(opening[..8], HELLO.to_be_bytes());
    assert!(matches!(peek_slave(&opening[8..]), Ok(Some((_, 16)))));
    let parsed = session.parse(0, &handshake, &log);
    assert_eq!(parsed, Ok(Parsed::Consumed(handshake.len())));
    let query = encode_crc_query(4_100_763, CRC_RANGE_MAX);
    assert_eq!(session.next(0, &log), Ok(Some(SlaveAction::Send(query.to_vec()))));
    let own = Some(SlaveAction::Crc { offset: 4_100_763, len: CRC_RANGE_MAX });
    assert_eq!(session.next(0, &log), Ok(own));
}

#[test]
fn a_stock_slave_that_is_ahead_or_lies_gets_nothing_and_is_kept_for_a_while() {
    for (reports, why) in [
        (vec![701i64], Refused::Ahead { slave: 701, master: 700 }),
        (vec![-2], Refused::Forged { slave: -2, sent: 700 }),
        (vec![i64::MAX], Refused::Ahead { slave: i64::MAX as u64, master: 700 }),
    ] {
        let side = Side::new(history(0, 0, 700), &[(1, 0, 7)]);
        let mut session = MasterSession::new(master_config(), 0);
        for report in reports {
            session.received(0, &report.to_be_bytes(), &side.master());
        }
        assert_eq!(session.next(0, &side.master()), Some(MasterAction::Withhold));
        let state = Some(MasterAction::State(PeerState::Refused(why)));
        assert_eq!(session.next(0, &side.master()), state);
        // Whatever it says now counts for nothing.
        session.received(10, &700i64.to_be_bytes(), &side.master());
        assert_eq!(session.next(19_000, &side.master()), None);
        let closed = session.next(20_001, &side.master());
        assert_eq!(closed, Some(MasterAction::Close(why.into())));
    }
}

#[test]
fn a_difference_is_tried_again_more_and_more_rarely_and_a_lost_link_soon() {
    let mut retry = Retry::default();
    let waits: Vec<_> = (0..8).map(|_| retry.after(Duration::ZERO, true).as_millis()).collect();
    assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 15_000, 15_000, 15_000, 15_000]);
    assert_eq!(retry.after(Duration::from_secs(60), false), Duration::from_millis(250));
    assert_eq!(retry.after(Duration::ZERO, false), Duration::from_millis(500));
    // No longer than it is told.
    let mut retry = Retry::new(Duration::from_millis(600));
    let waits: Vec<_> = (0..4).map(|_| retry.after(Duration::ZERO, false).as_millis()).collect();
    assert_eq!(waits, [250, 500, 600, 600]);
    let waits: Vec<_> = (0..3).map(|_| retry.after(Duration::ZERO, true).as_millis()).collect();
    assert_eq!(waits, [1_200, 1_800, 1_800]);
    // However long may be waited, a connection that was good is made again soon.
    let mut retry = Retry::new(Duration::from_secs(60));
    (0..9).for_each(|_| _ = retry.after(Duration::ZERO, false));
    assert_eq!(retry.after(Duration::from_secs(5), false), Duration::from_secs(60));
    assert_eq!(retry.after(Duration::from_millis(5_001), false), Duration::from_millis(250));
    let mut retry = Retry::new(Duration::from_millis(100));
    assert_eq!(retry.after(Duration::ZERO, false), Duration::from_millis(100));
    assert_eq!(retry.after(Duration::ZERO, true), Duration::from_millis(300));
}

#[test]
fn a_hello_that_nobody_answers_tells_of_a_stock_master_only_if_none_is_expected() {
    let side = Side::new(history(0, 0, 700), &[]);
    let silent = |known, at| {
        let mut session = SlaveSession::new(slave_config(), Speech::Terms { known }, 0);
        let hello = session.next(0, &side.slave()).expect("no trouble");
        assert!(matches!(hello, Some(SlaveAction::Send(_))));
        session.next(at, &side.slave())
    };
    assert_eq!(silent(false, 1_000), Ok(None));
    assert_eq!(silent(false, 1_001), Err(Trouble::NotRingMq));
    assert_eq!(silent(true, 20_000), Ok(None));
    assert_eq!(silent(true, 20_001), Err(Trouble::Silent(20_000)));
}
