//! Where two logs part, and what becomes of what lies beyond.

use ringmq_net::ha_term_frame::Capabilities;
use ringmq_replication::pair::{Start, Trouble};

use crate::duo::{Duo, End, SEGMENT, Side, history, list};

/// A master whose log is `[0, end)` of history 0, with terms.
fn master(end: u64, terms: &[(u32, u64, u128)]) -> Side {
    Side::new(history(0, 0, end), terms)
}

/// A log that is the master's up to `parts` and its own from there on.
fn parted(parts: u64, end: u64, terms: &[(u32, u64, u128)]) -> Side {
    let mut bytes = history(0, 0, parts);
    bytes.extend(history(0xAA, parts, end));
    Side::new(bytes, terms)
}

/// Cuts as the slave wanted, and talks again.
fn cut_and_talk(duo: &mut Duo, at: u64) -> End {
    duo.slave.bytes.truncate((at - duo.slave.min) as usize);
    duo.slave.terms.cut(at);
    duo.talk(usize::MAX)
}

#[test]
fn an_empty_slave_gets_all_of_it_with_its_terms_however_the_bytes_come() {
    for step in [1, 3, 7, 100, usize::MAX] {
        let mut duo =
            Duo::new(master(3_000, &[(1, 0, 7), (4, 700, 8), (5, 2_999, 9)]), Side::default());
        assert_eq!(duo.talk(step), End::CaughtUp);
        assert_eq!(duo.slave.bytes, duo.master.bytes);
        assert_eq!(duo.slave.terms, duo.master.terms);
        assert_eq!(duo.admitted, [3]);
        assert!(duo.acked.is_sorted() && duo.acked.last() == Some(&3_000), "{:?}", duo.acked);
        // No frame crosses a segment's end or the start of a term.
        assert_eq!(duo.frames as u64, 3_000 / SEGMENT + 1 + 2, "in steps of {step}");
    }
}

#[test]
fn an_empty_slave_that_asks_for_the_newest_segment_hears_of_its_term_alone() {
    let mut duo = Duo::new(master(3_000, &[(1, 0, 7), (4, 700, 8)]), Side::default());
    duo.config.start = Start::Newest;
    assert_eq!(duo.talk(usize::MAX), End::CaughtUp);
    assert_eq!(duo.slave.min, 3_000 / SEGMENT * SEGMENT);
    assert_eq!(duo.slave.terms, list(&[(4, 700, 8)]));
}

#[test]
fn a_slave_that_is_behind_goes_on_without_losing_a_byte() {
    let mut duo = Duo::new(master(3_000, &[(1, 0, 7), (4, 700, 8)]), master(650, &[(1, 0, 7)]));
    assert_eq!(duo.talk(usize::MAX), End::CaughtUp);
    assert_eq!((duo.slave.bytes.len(), duo.acked[0]), (3_000, 650));
    assert_eq!(duo.slave.terms, duo.master.terms);
}

#[test]
fn an_old_master_is_cut_where_the_new_one_began() {
    let mut duo =
        Duo::new(master(3_000, &[(1, 0, 7), (2, 700, 8)]), parted(700, 900, &[(1, 0, 7)]));
    assert_eq!(duo.talk(usize::MAX), End::Cut(700));
    assert_eq!((duo.acked.len(), duo.admitted.len()), (0, 0), "it counts as no slave before");
    assert_eq!(cut_and_talk(&mut duo, 700), End::CaughtUp);
    assert_eq!(duo.slave.bytes, duo.master.bytes);
}

/// Stock 5.5.0 kept the empty entry of the old number, and two histories shared a number and a start: they diverged unnoticed.
#[test]
fn two_masters_that_began_at_one_place_part_there() {
    let written = [(9, 10, 1), (10, 500, 2)];
    // The other one began its own term, without a write in the one before.
    let mut mine = list(&written);
    mine.append(ringmq_replication::terms::Term {
        number: 11,
        start: 500,
        id: ringmq_replication::terms::TermId(3),
    })
    .expect("it takes the empty one's place");
    let mut new = master(800, &[]);
    new.terms = mine;
    let mut duo = Duo::new(new, parted(500, 900, &written));
    assert_eq!(duo.talk(usize::MAX), End::Cut(500));
    assert_eq!(cut_and_talk(&mut duo, 500), End::CaughtUp);
    assert_eq!(duo.slave.terms, list(&[(9, 10, 1), (11, 500, 3)]));
    // Even if both have the same number: the ids differ.
    let mut duo = Duo::new(
        master(800, &[(9, 10, 1), (10, 500, 3)]),
        parted(500, 900, &[(9, 10, 1), (10, 500, 2)]),
    );
    assert_eq!(duo.talk(usize::MAX), End::Cut(500));
    // And if nobody knows an id, as of stock's epoch files: the bytes differ.
    let mut duo = Duo::new(
        master(800, &[(9, 10, 0), (10, 500, 0)]),
        parted(500, 900, &[(9, 10, 0), (10, 500, 0)]),
    );
    assert_eq!(duo.talk(usize::MAX), End::Cut(500));
}

#[test]
fn what_was_acknowledged_because_slaves_hold_it_is_not_cut() {
    let mut duo =
        Duo::new(master(3_000, &[(1, 0, 7), (2, 700, 8)]), parted(700, 900, &[(1, 0, 7)]));
    duo.slave.bound = 701;
    let End::Trouble(trouble) = duo.talk(usize::MAX) else { panic!("it was cut") };
    assert!(trouble.is_divergence());
    let text = trouble.to_string();
    assert!(text.contains("[0, 900)") && text.contains("[0, 3000)"), "names both logs: {text}");
    assert!(text.contains("at 700, below 701"), "{text}");
    duo.slave.bound = 700;
    assert_eq!(duo.talk(usize::MAX), End::Cut(700));
}

#[test]
fn a_slave_learns_what_was_acknowledged_and_holds_it_only_when_it_has_all_of_it() {
    let mut upper = master(3_000, &[(1, 0, 7)]);
    upper.bound = 2_900;
    let mut duo = Duo::new(upper, master(650, &[(1, 0, 7)]));
    assert_eq!(duo.talk(usize::MAX), End::CaughtUp);
    assert_eq!(duo.confirmed, 2_900);
    duo.slave.bound = duo.confirmed;
    // The master loses its disk's end, and goes on.
    duo.master.bytes.truncate(2_000);
    duo.master.terms = list(&[(1, 0, 7), (2, 2_000, 9)]);
    assert!(matches!(
        duo.talk(usize::MAX),
        End::Trouble(Trouble::BelowAcknowledged { point: 2_000, bound: 2_900, .. })
    ));
}

#[test]
fn a_master_that_lost_what_was_acknowledged_tells_of_what_it_has() {
    let mut upper = master(2_000, &[(1, 0, 7)]);
    upper.bound = 2_900;
    let mut duo = Duo::new(upper, Side::default());
    assert_eq!(duo.talk(usize::MAX), End::CaughtUp);
    assert_eq!(duo.confirmed, 2_000);
}

#[test]
fn a_log_without_terms_is_compared_and_not_trusted() {
    // The same bytes: it goes on.
    let mut duo = Duo::new(master(3_000, &[(1, 2_500, 7)]), master(650, &[]));
    assert_eq!(duo.talk(usize::MAX), End::CaughtUp);
    // Other bytes of the same length, or more: nothing shows where they part.
    for end in [650, 2_600] {
        let mut duo = Duo::new(master(3_000, &[(1, 2_500, 7)]), parted(100, end, &[]));
        let end = duo.talk(usize::MAX);
        assert!(matches!(end, End::Trouble(Trouble::NothingCommon { .. })), "{end:?}");
        assert_eq!(duo.acked, [], "and it counts for nothing");
    }
    // Beyond the master's first term it may have anything: it is cut there, if it is the same up to there.
    let mut duo = Duo::new(master(3_000, &[(1, 2_500, 7)]), parted(2_500, 2_600, &[]));
    assert_eq!(duo.talk(usize::MAX), End::Cut(2_500));
}

#[test]
fn a_master_that_lost_its_disk_is_not_followed() {
    let mut duo = Duo::new(master(400, &[(1, 0, 99)]), parted(0, 900, &[(1, 0, 7)]));
    let end = duo.talk(usize::MAX);
    assert!(matches!(end, End::Trouble(Trouble::NothingCommon { .. })), "{end:?}");
    let mut duo = Duo::new(Side::new(Vec::new(), &[(1, 0, 99)]), master(900, &[(1, 0, 7)]));
    let end = duo.talk(usize::MAX);
    assert!(matches!(end, End::Trouble(Trouble::NothingCommon { .. })), "{end:?}");
}

#[test]
fn a_damaged_copy_is_named_and_not_cut() {
    let mut slave = master(900, &[(1, 0, 7)]);
    slave.bytes[880] ^= 1;
    let mut duo = Duo::new(master(3_000, &[(1, 0, 7)]), slave);
    assert_eq!(duo.talk(usize::MAX), End::Trouble(Trouble::Differs(900)));
}

#[test]
fn a_slave_below_its_masters_first_byte_is_told_so() {
    let mut upper = master(3_000, &[(1, 0, 7)]);
    upper.min = 2 * SEGMENT;
    upper.bytes.drain(..2 * SEGMENT as usize);
    let mut duo = Duo::new(upper, master(650, &[(1, 0, 7)]));
    let End::Trouble(trouble) = duo.talk(usize::MAX) else { panic!("it follows") };
    assert!(matches!(trouble, Trouble::Refused { reason: 2, offset: 1_024 }), "{trouble:?}");
    assert!(trouble.to_string().contains("nothing before 1024"), "{trouble}");
}

#[test]
fn a_slave_that_parts_below_its_masters_first_byte_is_not_cut_in_vain() {
    let mut upper = master(3_000, &[(1, 0, 7), (2, 700, 8)]);
    upper.min = 2 * SEGMENT;
    upper.bytes.drain(..2 * SEGMENT as usize);
    let mut duo = Duo::new(upper, parted(700, 900, &[(1, 0, 7)]));
    assert_eq!(duo.talk(usize::MAX), End::Trouble(Trouble::Refused { reason: 2, offset: 1_024 }));
}

#[test]
fn an_observer_reads_all_and_counts_for_nothing() {
    let mut duo = Duo::new(master(3_000, &[(1, 0, 7)]), Side::default());
    duo.config.capabilities = duo.config.capabilities.with(Capabilities::OBSERVER);
    assert_eq!(duo.talk(usize::MAX), End::CaughtUp);
    assert_eq!(duo.slave.bytes, duo.master.bytes);
    assert_eq!((duo.admitted.len(), duo.acked.len(), duo.withheld), (0, 0, 1));
}

#[test]
fn a_slave_that_can_less_gets_smaller_frames_without_checksums() {
    let mut duo = Duo::new(master(3_000, &[(1, 0, 7)]), Side::default());
    duo.config.capabilities = Capabilities::none();
    assert_eq!(duo.talk(5), End::CaughtUp);
    assert_eq!(duo.slave.bytes, duo.master.bytes);
    assert_eq!(duo.frames as u64, 3_000u64.div_ceil(128));
}
