//! Peers that lie, or speak at the wrong time: nothing is acknowledged, stored or allocated for them.

use ringmq_net::ha_term_frame::{
    self as wire, Capabilities, DataHeader, HELLO, Welcome, WireTerm, encode_master_handshake,
    encode_report, encode_slave_handshake, encode_welcome,
};
use ringmq_replication::pair::{
    MasterAction, MasterClose, MasterConfig, MasterSession, Parsed, PeerState, SlaveAction,
    SlaveSession, Speech, Trouble,
};
use ringmq_replication::stock::Refused;

use crate::duo::{Side, history, master_config, slave_config};

fn side() -> Side {
    Side::new(history(0, 0, 700), &[(1, 0, 7)])
}

fn greeted(session: &mut MasterSession, side: &Side) {
    session.received(0, &HELLO.to_be_bytes(), &side.master());
    let handshake = encode_slave_handshake(Capabilities::LARGE_FRAMES, 3);
    session.received(0, &handshake, &side.master());
}

/// What a master does now, but for what it sends.
fn actions(session: &mut MasterSession, side: &Side) -> Vec<MasterAction> {
    let mut all = Vec::new();
    while let Some(action) = session.next(0, &side.master()) {
        match action {
            MasterAction::Send(_) => session.sent(0),
            MasterAction::Data { from, max } => {
                let to = side.end().min(from + u64::from(max));
                let _ = session.frame(side.range(from, to).expect("bytes"), &side.master());
                session.sent(0);
            }
            action => all.push(action),
        }
    }
    all
}

#[test]
fn a_report_before_the_handshake_or_beyond_what_was_sent_is_refused() {
    let side = side();
    let mut session = MasterSession::new(master_config(), 0);
    session.received(0, &HELLO.to_be_bytes(), &side.master());
    session.received(0, &encode_report(5), &side.master());
    let refused = PeerState::Refused(Refused::Forged { slave: 5, sent: 0 });
    assert!(actions(&mut session, &side).contains(&MasterAction::State(refused)));
    let mut session = MasterSession::new(master_config(), 0);
    greeted(&mut session, &side);
    session.received(0, &encode_report(650), &side.master());
    let done = actions(&mut session, &side);
    assert!(done.contains(&MasterAction::Acked(650)) && done.contains(&MasterAction::Admit(3)));
    for beyond in [701, i64::MAX as u64, u64::MAX] {
        session.received(0, &encode_report(beyond), &side.master());
    }
    let done = actions(&mut session, &side);
    assert!(done.contains(&MasterAction::Withhold), "{done:?}");
    assert!(!done.iter().any(|action| matches!(action, MasterAction::Acked(_))), "{done:?}");
}

#[test]
fn a_second_handshake_is_not_answered_and_half_of_one_is_not_read() {
    let side = side();
    let mut session = MasterSession::new(master_config(), 0);
    let mut opening = HELLO.to_be_bytes().to_vec();
    opening.extend(encode_slave_handshake(Capabilities::none(), 3));
    for (at, byte) in opening.iter().enumerate() {
        session.received(0, &[*byte], &side.master());
        assert_eq!(session.slave(), (at == 23).then_some(3), "after {at} bytes");
    }
    session.received(0, &encode_slave_handshake(Capabilities::none(), 9), &side.master());
    let mut sent = 0;
    while let Some(action) = session.next(0, &side.master()) {
        if let MasterAction::Send(_) = action {
            sent += 1;
            session.sent(0);
        }
    }
    assert_eq!((sent, session.slave()), (3, Some(3)), "welcome, ids and handshake");
}

#[test]
fn questions_are_bounded_and_what_is_no_frame_ends_the_connection() {
    let side = side();
    let mut session = MasterSession::new(master_config(), 0);
    greeted(&mut session, &side);
    for _ in 0..1_000 {
        session.received(0, &wire::encode_crc_query(600, 64), &side.master());
    }
    let asked = |session: &mut MasterSession| {
        let mut asked = 0;
        while let Some(action) = session.next(0, &side.master()) {
            match action {
                MasterAction::Send(_) => session.sent(0),
                MasterAction::Crc { offset, len } => {
                    asked += 1;
                    session.crc(offset, len, Some(1));
                }
                _ => {}
            }
        }
        asked
    };
    assert_eq!(asked(&mut session), 16);
    // Of what is not there nothing is read.
    session.received(0, &wire::encode_crc_query(9_000, 64), &side.master());
    assert_eq!(asked(&mut session), 0);
    session.received(0, &[0, 0, 0, 99, 0, 0, 0, 0], &side.master());
    let last = actions(&mut session, &side);
    assert!(matches!(last[..], [MasterAction::Close(MasterClose::Frame(_))]), "{last:?}");
}

/// A slave that follows, having greeted a master whose log is as its own.
fn following(capabilities: Capabilities) -> (SlaveSession, Side) {
    let mut side = side();
    side.bytes.clear();
    let mut config = slave_config();
    config.capabilities = capabilities;
    let mut session = SlaveSession::new(config, Speech::Terms { known: true }, 0);
    let welcome = Welcome { capabilities, body_bytes_max: 1 << 20, log_start: 0 };
    for frame in [
        encode_welcome(&welcome),
        encode_master_handshake(700, &[WireTerm { number: 1, start: 0 }]),
    ] {
        session.parse(0, &frame, &side.slave()).expect("a frame");
    }
    while let Some(action) = session.next(0, &side.slave()).expect("no trouble") {
        if let SlaveAction::StoreTerms(terms) = action {
            side.terms = terms;
            session.terms_stored(0);
        }
    }
    assert!(session.is_following());
    (session, side)
}

#[test]
fn metadata_of_a_master_whose_log_is_not_followed_yet_is_not_taken() {
    let side = side();
    let metadata = wire::encode_metadata(b"offsets").expect("a small one");
    let mut session = SlaveSession::new(slave_config(), Speech::Terms { known: true }, 0);
    let early = session.parse(0, &metadata, &side.slave());
    assert_eq!(early, Err(Trouble::OutOfOrder("metadata")));
    let (mut session, side) = following(Capabilities::METADATA);
    let taken = session.parse(0, &metadata, &side.slave());
    assert_eq!(taken, Ok(Parsed::Metadata(b"offsets", metadata.len())));
}

fn data(body_len: u32, offset: i64, number: i32, start: i64) -> [u8; 36] {
    let term = WireTerm { number, start };
    DataHeader { body_len, offset, term, confirmed: i64::MAX }.encode()
}

#[test]
fn a_master_that_sends_what_cannot_be_is_left() {
    let trouble = |frame: &[u8]| {
        let (mut session, side) = following(Capabilities::none());
        session.parse(0, frame, &side.slave()).err()
    };
    assert_eq!(trouble(&data(100, 0, 1, 0)), None);
    let wrong = trouble(&data(u32::MAX, 0, 1, 0));
    assert!(matches!(wrong, Some(Trouble::Frame(_))), "a body of 4 GiB: {wrong:?}");
    let wrong = trouble(&data(100, 5, 1, 0));
    assert!(matches!(wrong, Some(Trouble::Mismatch(_))), "another place: {wrong:?}");
    let wrong = trouble(&data(600, 0, 1, 0));
    assert!(matches!(wrong, Some(Trouble::Mismatch(_))), "over a segment's end: {wrong:?}");
    let wrong = trouble(&data(100, 0, 2, 50));
    assert!(matches!(wrong, Some(Trouble::Term { .. })), "a term that begins later: {wrong:?}");
    let again = encode_master_handshake(700, &[]);
    assert_eq!(trouble(&again), Some(Trouble::OutOfOrder("a second handshake")));
    assert!(matches!(trouble(&[0, 0, 0, 3, 0, 0, 0, 0]), Some(Trouble::Frame(_))));
    // Whether it comes from one that was a RingMQ node before is known: a stock master sends what is no frame at once.
    let (welcomed, side) = following(Capabilities::none());
    let mut stranger = SlaveSession::new(slave_config(), Speech::Terms { known: false }, 0);
    let heartbeat = stranger.parse(0, &[0; 12], &side.slave());
    assert!(matches!(heartbeat, Err(Trouble::Frame(_))), "{heartbeat:?}");
    assert!(welcomed.is_welcomed() && !stranger.is_welcomed());
    // A kind of a later version is passed by.
    assert_eq!(trouble(&[0, 0, 0, 77, 0, 0, 0, 0]), None);
}

#[test]
fn a_frame_without_its_checksum_or_with_a_wrong_one_never_gets_into_the_log() {
    let (mut session, side) = following(Capabilities::FRAME_CRC);
    let head = data(4, 0, 1, 0);
    let without = session.parse(0, &head, &side.slave());
    assert_eq!(without, Err(Trouble::OutOfOrder("a frame without its CRC")));
    for flip in 0..40 * 8 {
        let (mut session, side) = following(Capabilities::FRAME_CRC);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), b"body");
        let mut bytes = [&head[..], b"body"].concat();
        bytes[flip / 8] ^= 1 << (flip % 8);
        let crc = wire::encode_frame_crc(crc);
        assert_eq!(session.parse(0, &crc, &side.slave()), Ok(Parsed::Consumed(12)));
        let taken = match session.parse(0, &bytes, &side.slave()) {
            Ok(Parsed::Body(body, at)) => {
                let got = bytes.get(at..at + body.len).unwrap_or_default();
                session.body(0, body.is_intact(got)).is_ok()
            }
            _ => false,
        };
        assert!(!taken, "bit {flip}");
    }
}

fn told(body_len: u32, confirmed: i64) -> Vec<u8> {
    let term = WireTerm { number: 1, start: 0 };
    DataHeader { body_len, offset: 0, term, confirmed }.encode().to_vec()
}

#[test]
fn what_a_damaged_frame_says_is_acknowledged_is_not_believed() {
    let trouble = Err(Trouble::Damaged(0));
    // A header whose body is found to be another one.
    let (mut session, mut side) = following(Capabilities::FRAME_CRC);
    session.parse(0, &wire::encode_frame_crc(1), &side.slave()).expect("a CRC");
    session.parse(0, &told(4, 500), &side.slave()).expect("a header");
    side.bytes = history(0, 0, 700);
    let _ = session.next(0, &side.slave());
    assert_eq!((session.body(0, false), session.confirmed()), (trouble, 0));
    // A heartbeat with no CRC, with its own, and with another's.
    let (mut session, mut side) = following(Capabilities::FRAME_CRC);
    let beat = told(0, 500);
    session.parse(0, &beat, &side.slave()).expect("a heartbeat");
    let empty = side.clone();
    side.bytes = history(0, 0, 700);
    let _ = session.next(0, &side.slave());
    assert_eq!(session.confirmed(), 0, "it may be damaged");
    for (crc, want) in [(crc32c::crc32c(&beat), true), (1, false)] {
        session.parse(0, &wire::encode_frame_crc(crc), &empty.slave()).expect("a CRC");
        assert_eq!(session.parse(0, &beat, &empty.slave()).is_ok(), want);
        let _ = session.next(0, &side.slave());
        assert_eq!(session.confirmed(), 500);
    }
}

#[test]
fn metadata_is_granted_by_those_alone_that_tell_it() {
    let side = side();
    let wanted = Capabilities::METADATA.with(Capabilities::FRAME_CRC);
    for (metadata, granted) in [(true, wanted), (false, Capabilities::FRAME_CRC)] {
        let config = MasterConfig { metadata, ..master_config() };
        let mut session = MasterSession::new(config, 0);
        session.received(0, &HELLO.to_be_bytes(), &side.master());
        session.received(0, &encode_slave_handshake(wanted, 3), &side.master());
        assert_eq!(session.granted(), granted);
        session.received(0, &encode_report(700), &side.master());
        assert_eq!(session.takes_metadata(), metadata);
    }
}

#[test]
fn a_heartbeat_comes_with_its_checksum() {
    let mut side = side();
    side.bound = 600;
    let mut session = MasterSession::new(master_config(), 0);
    session.received(0, &HELLO.to_be_bytes(), &side.master());
    let handshake = encode_slave_handshake(Capabilities::FRAME_CRC, 3);
    session.received(0, &handshake, &side.master());
    session.received(0, &encode_report(700), &side.master());
    actions(&mut session, &side);
    let Some(MasterAction::Send(beat)) = session.next(5_000, &side.master()) else {
        panic!("nothing is sent")
    };
    let head = DataHeader {
        body_len: 0,
        offset: 700,
        term: WireTerm { number: 1, start: 0 },
        confirmed: 600,
    };
    let head = head.encode();
    assert_eq!(beat, [&wire::encode_frame_crc(crc32c::crc32c(&head))[..], &head].concat());
}

#[test]
fn what_a_master_says_is_acknowledged_counts_only_as_far_as_it_is_held() {
    let (mut session, mut side) = following(Capabilities::none());
    // It says i64::MAX.
    session.parse(0, &data(0, 0, 1, 0), &side.slave()).expect("a heartbeat");
    let _ = session.next(0, &side.slave());
    assert_eq!(session.confirmed(), 0);
    side.bytes = history(0, 0, 700);
    let _ = session.next(0, &side.slave());
    assert_eq!(session.confirmed(), 0);
}
