//! Properties of the recovery planner, one by one; crashes inside it are the simulator's.

use super::{
    CheckpointTimes, LogState, RecoveryAction, RecoveryError,
    testing::{TestStore, record},
};

const SEGMENT: u64 = 64 << 10;

fn zeroes(store: &TestStore) -> usize {
    let is_zero = |action: &&RecoveryAction| matches!(action, RecoveryAction::Zero { .. });
    store.actions.iter().filter(is_zero).count()
}

fn kinds(store: &TestStore) -> Vec<&'static str> {
    store
        .actions
        .iter()
        .map(|action| match action {
            RecoveryAction::Read { .. } => "read",
            RecoveryAction::Zero { .. } => "zero",
            RecoveryAction::Flush { .. } => "flush",
            RecoveryAction::Remove { .. } => "remove",
            RecoveryAction::Save { .. } => "save",
            RecoveryAction::Done(_) => "done",
        })
        .collect()
}

#[test]
fn an_empty_store_starts_at_zero() {
    let mut store = TestStore::new(0);
    let recovered = store.recover().expect("an empty store is fine");
    assert_eq!((recovered.end, recovered.ready_end, recovered.min_offset), (0, 0, 0));
    assert_eq!(kinds(&store), ["save"]);
}

#[test]
fn the_cut_is_where_no_whole_record_follows_and_the_rest_is_zeroed_before_the_state_is_saved() {
    let mut store = TestStore::new(3).with_state(0, 2 * SEGMENT);
    let end = store.put_records(0, 20);
    // A torn record, behind it a whole one, and more in a later segment.
    let torn = record(end, &[9; 3000], b"");
    store.put(end, &torn[..2000]);
    let behind = end + torn.len() as u64;
    store.put(behind, &record(behind, &[8; 100], b""));
    store.put(SEGMENT, &record(SEGMENT, &[7; 100], b""));
    let recovered = store.recover().expect("a torn tail is cut");
    assert_eq!((recovered.end, recovered.scanned_records), (end, 20));
    assert!(recovered.cut_reason.is_some());
    assert_eq!(kinds(&store), ["zero", "flush", "remove", "remove", "save"]);
    assert!(store.segments[0].1[end as usize..].iter().all(|byte| *byte == 0));
    let unit = end as usize - end as usize % 4096;
    assert_eq!(recovered.partial_unit, store.segments[0].1[unit..end as usize]);
    let state = store.input.state.expect("saved");
    assert_eq!((state.durable, state.clean), (end, false));
    assert!(state.scan_from < end && state.zeroed_to >= end);
    // Once more: nothing is left to do but to look.
    store.actions.clear();
    let again = store.recover().expect("a recovered log recovers");
    assert_eq!((again.end, again.zeroed_bytes, again.removed_segments), (end, 0, 0));
    assert_eq!(kinds(&store), ["flush", "save"], "what was read may so far be in a cache only");
}

#[test]
fn a_record_torn_in_its_properties_is_cut() {
    let mut store = TestStore::new(1).with_state(0, SEGMENT);
    let end = store.put_records(0, 3);
    let mut torn = record(end, b"body", &[b'x'; 5000]);
    let (len, sector) = (torn.len(), 512 - end as usize % 512 + 4 * 512);
    torn[sector..sector + 512].fill(0);
    assert!(sector + 512 < len);
    store.put(end, &torn);
    let recovered = store.recover().expect("cut");
    assert_eq!(recovered.end, end);
    assert!(recovered.cut_reason.is_some_and(|why| why.contains("zero in the sector")));
}

#[test]
fn a_bad_record_below_the_durable_offset_stops_recovery_and_is_named() {
    let mut store = TestStore::new(1).with_state(0, SEGMENT);
    let end = store.put_records(0, 5);
    store.segments[0].1[1000] ^= 1;
    let state = store.input.state.as_mut().expect("a state");
    state.durable = end;
    let before = store.segments.clone();
    let error = store.recover().expect_err("damage is no torn tail");
    assert!(
        matches!(error, RecoveryError::Damaged { segment: 0, offset: 795, durable, .. } if durable == end),
        "{error:?}"
    );
    assert!(error.to_string().contains("00000000000000000000"));
    assert_eq!(store.segments, before, "nothing was touched");
    assert_eq!(kinds(&store), Vec::<&str>::new());
}

#[test]
fn a_log_that_is_shorter_than_it_was_durable_stops_recovery() {
    let mut store = TestStore::new(1).with_state(3 * SEGMENT, 4 * SEGMENT);
    assert!(matches!(store.recover(), Err(RecoveryError::Missing { .. })));
    let mut store = TestStore::new(1).with_state(0, SEGMENT);
    let end = store.put_records(0, 2);
    store.input.state.as_mut().expect("a state").durable = end + 4000;
    assert!(matches!(store.recover(), Err(RecoveryError::Damaged { .. })));
}

#[test]
fn shapes_that_cannot_be_a_log_are_refused_by_name() {
    let mut store = TestStore::new(3);
    store.segments.remove(1);
    assert_eq!(store.recover(), Err(RecoveryError::Gap { missing: SEGMENT }));
    let mut store = TestStore::new(1).with_state(0, 0);
    store.input.state.as_mut().expect("a state").segment_size = 2 * SEGMENT;
    let (store_size, configured) = (2 * SEGMENT, SEGMENT);
    let changed = RecoveryError::SegmentSizeChanged { store: store_size, configured };
    assert_eq!(store.recover(), Err(changed));
    let mut store = TestStore::new(1);
    store.segments[0].0 = 100;
    assert!(matches!(store.recover(), Err(RecoveryError::SegmentShape { start: 100, .. })));
}

#[test]
fn a_clean_stock_store_is_only_looked_at() {
    let mut store = TestStore::new(3);
    store.input.abort = false;
    let next = store.put_records(0, 10);
    let next = store.put_blank(next);
    let end = store.put_records(next, 4);
    let recovered = store.recover().expect("a stock store opens");
    assert_eq!((recovered.end, recovered.clean, recovered.redo_from), (end, true, None));
    assert_eq!(zeroes(&store), 0);
    // Its preallocated segment goes, as with stock.
    assert_eq!(recovered.removed_segments, 1);
    assert_eq!(recovered.ready_end, 2 * SEGMENT);
}

#[test]
fn stale_bytes_behind_a_stock_end_are_zeroed_to_the_segment_end() {
    let mut store = TestStore::new(1);
    store.input.abort = false;
    let end = store.put_records(0, 3);
    store.put(SEGMENT - 5, &[1]);
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.end, recovered.zeroed_bytes), (end, SEGMENT - 4 - end));
    assert!(store.segments[0].1[end as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn the_checkpoint_chooses_the_segment_that_an_unclean_stock_store_is_read_from() {
    let mut store = TestStore::new(4);
    let mut end = 0;
    for segment in 0..4 {
        end = store.put_records(segment * SEGMENT, 3);
        if segment < 3 {
            store.put_blank(end);
        }
    }
    // First records were stored at 1,700,000,000,000 plus their offset; the margin is three seconds.
    let between = 1_700_000_000_000 + SEGMENT as i64 + 3000;
    store.input.checkpoint = CheckpointTimes { physic: between + 9, logics: between, index: 0 };
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.end, recovered.redo_from), (end, Some(SEGMENT)));
    assert_eq!(recovered.scanned_records, 9);
    // Without a usable checkpoint, from the first one on.
    store.input = TestStore::new(0).input;
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.redo_from, recovered.scanned_records), (Some(0), 12));
}

#[test]
fn derived_data_is_redone_from_where_it_is_durable_but_never_behind_the_end() {
    let mut store = TestStore::new(1).with_state(0, SEGMENT);
    let end = store.put_records(0, 3);
    store.input.dispatched = Some(795);
    assert_eq!(store.recover().expect("opens").redo_from, Some(795));
    store.input.dispatched = Some(end + 500);
    assert_eq!(store.recover().expect("opens").redo_from, Some(end));
}

#[test]
fn a_segment_that_was_never_written_is_kept() {
    let mut store = TestStore::new(2).with_state(0, SEGMENT);
    let end = store.put_records(0, 3);
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.end, recovered.ready_end), (end, 2 * SEGMENT));
    assert_eq!(recovered.removed_segments, 0);
}

#[test]
fn a_log_may_end_with_its_segment() {
    let mut store = TestStore::new(1).with_state(0, SEGMENT);
    let next = store.put_records(0, 3);
    let next = store.put_blank(next);
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.end, recovered.ready_end), (next, next));
    assert!(recovered.partial_unit.is_empty());
}

#[test]
fn a_record_larger_than_a_read_is_read_whole() {
    let mut store = TestStore::new(1).with_state(0, SEGMENT);
    let next = store.put_records(0, 1);
    let next = store.put(next, &record(next, &[5; 40_000], b"K\x01v"));
    let end = store.put_records(next, 1);
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.end, recovered.scanned_records), (end, 3));
}

#[test]
fn a_clean_log_is_not_flushed_nor_zeroed() {
    let mut store = TestStore::new(2);
    store.input.abort = false;
    let end = store.put_records(0, 3);
    store.input.state = Some(LogState {
        segment_size: SEGMENT,
        scan_from: 0,
        durable: end,
        write_bound: end,
        zeroed_from: 0,
        zeroed_to: SEGMENT + 8192,
        clean: true,
    });
    let recovered = store.recover().expect("opens");
    assert_eq!((recovered.end, recovered.clean, recovered.ready_end), (end, true, 2 * SEGMENT));
    assert_eq!(kinds(&store), ["save"]);
    let state = recovered.state;
    assert_eq!((state.zeroed_from, state.zeroed_to, state.clean), (0, SEGMENT + 8192, false));
}
