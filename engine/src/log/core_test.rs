//! Properties of the log core, one by one; their combinations are the simulator's.

use std::io;

use super::{
    Action, AppendError, CoreConfig, FailedOperation, UNIT,
    testing::{TestBuf, fresh, next_write, plain_config, put},
};

const SEGMENT: u64 = 64 << 10;

fn error() -> io::Result<()> {
    Err(io::Error::other("simulated"))
}

fn full() -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::StorageFull))
}

#[test]
fn appends_gather_while_a_write_is_in_flight_and_go_out_in_one() {
    let mut core = fresh(&plain_config());
    put(&mut core, 100, 1);
    let first = next_write(&mut core).expect("something to write");
    assert_eq!((first.position, first.buf.as_ref().as_ref().len()), (0, UNIT));
    for byte in 2..5 {
        put(&mut core, 100, byte);
        assert!(next_write(&mut core).is_none(), "one write at a time");
    }
    core.write_done(first.id, Ok(()));
    assert_eq!(core.offsets().written, 100);
    let second = next_write(&mut core).expect("the rest");
    assert_eq!(second.position, 0, "the partial unit is written again");
    let bytes = second.buf.as_ref().as_ref();
    let expected = [vec![1; 100], vec![2; 100], vec![3; 100], vec![4; 100], vec![0; UNIT - 400]];
    assert_eq!(bytes, expected.concat());
    core.write_done(second.id, Ok(()));
    assert_eq!(core.offsets().written, 400);
    assert_eq!(core.unwritten_bytes(), 0);
    assert!(next_write(&mut core).is_none(), "nothing left");
}

#[test]
fn a_sealed_block_never_changes() {
    let mut core = fresh(&plain_config());
    put(&mut core, 5000, 1);
    let write = next_write(&mut core).expect("a write");
    let before = write.buf.as_ref().as_ref().to_vec();
    put(&mut core, 3000, 2);
    core.write_done(write.id, Ok(()));
    let next = next_write(&mut core).expect("a write");
    core.write_done(next.id, Ok(()));
    assert_eq!(write.buf.as_ref().as_ref(), before);
}

#[test]
fn a_record_that_does_not_fit_leaves_a_blank_and_starts_the_next_segment() {
    let mut core = fresh(&plain_config());
    // Exactly eight bytes left is the most that fits; one more byte does not.
    put(&mut core, 30_000, 1);
    put(&mut core, SEGMENT as usize - 30_000 - 100, 2);
    assert_eq!(put(&mut core, 93, 3), SEGMENT);
    assert_eq!(put(&mut core, 50, 4), SEGMENT + 93);
    let mut image = vec![0; 2 * SEGMENT as usize];
    while let Some(write) = next_write(&mut core) {
        let at = (write.segment_start + write.position) as usize;
        let bytes = write.buf.as_ref().as_ref();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        core.write_done(write.id, Ok(()));
    }
    assert_eq!(core.offsets().written, SEGMENT + 143);
    let blank = SEGMENT as usize - 100;
    assert_eq!(image[blank..blank + 8], [0, 0, 0, 100, 0xCB, 0xD4, 0x31, 0x94]);
    assert!(image[blank + 8..SEGMENT as usize].iter().all(|byte| *byte == 0));
    assert_eq!(image[SEGMENT as usize..][..93], [3; 93]);
}

#[test]
fn a_record_may_end_eight_bytes_before_its_segment_and_no_later() {
    let mut core = fresh(&plain_config());
    put(&mut core, 60_000, 1);
    assert_eq!(put(&mut core, SEGMENT as usize - 60_000 - 8, 2), 60_000);
    assert_eq!(put(&mut core, 1, 3), SEGMENT);
    let len = SEGMENT as usize - 7;
    let max = SEGMENT - 8;
    assert_eq!(core.append(len, |_, _| ()), Err(AppendError::TooLarge { len, max }));
    assert_eq!(core.append(0, |_, _| ()), Err(AppendError::Empty));
}

#[test]
fn the_next_segment_must_be_ready() {
    let mut core = fresh(&plain_config());
    put(&mut core, 60_000, 1);
    put(&mut core, 60_000, 2);
    let start = 2 * SEGMENT;
    assert_eq!(core.append(60_000, |_, _| ()), Err(AppendError::NotReady { start }));
    let prepare = std::iter::from_fn(|| core.poll_action())
        .any(|action| matches!(action, Action::Prepare { start } if start == 2 * SEGMENT));
    assert!(prepare, "it is asked for");
    core.segment_failed(start);
    assert_eq!(core.append(60_000, |_, _| ()), Err(AppendError::NoSpace { start }));
    assert_eq!(put(&mut core, 100, 3), SEGMENT + 60_000, "what fits the open one is taken");
    core.retry();
    let again = std::iter::from_fn(|| core.poll_action())
        .any(|action| matches!(action, Action::Prepare { start } if start == 2 * SEGMENT));
    assert!(again, "it is asked for again");
    core.segment_ready(start, 0);
    assert_eq!(put(&mut core, 60_000, 4), start);
}

#[test]
fn a_flush_covers_only_writes_that_completed_before_it_began() {
    let config = CoreConfig { sync: true, ..plain_config() };
    let mut core = fresh(&config);
    put(&mut core, 100, 1);
    let write = next_write(&mut core).expect("a write");
    core.write_done(write.id, Ok(()));
    put(&mut core, 200, 2);
    let mut flush = None;
    let mut write = None;
    while let Some(action) = core.poll_action() {
        match action {
            Action::Flush(action) => flush = Some(action),
            Action::Write(action) => write = Some(action),
            _ => {}
        }
    }
    let (flush, write) = (flush.expect("a flush"), write.expect("a write beside it"));
    assert_eq!((flush.upto, flush.segments.as_slice()), (100, &[0][..]));
    core.write_done(write.id, Ok(()));
    assert_eq!(core.visible(), 0, "at sync, visible means durable");
    core.flush_done(flush.id, Ok(()));
    let offsets = core.offsets();
    assert_eq!((offsets.written, offsets.durable, offsets.visible), (300, 100, 100));
}

#[test]
fn without_sync_a_flush_comes_when_asked_for() {
    let mut core = fresh(&plain_config());
    put(&mut core, 100, 1);
    let write = next_write(&mut core).expect("a write");
    core.request_flush();
    core.write_done(write.id, Ok(()));
    let action = core.poll_action();
    assert!(matches!(&action, Some(Action::Flush(flush)) if flush.upto == 100), "{action:?}");
    assert_eq!(core.visible(), 100, "written is visible");
}

#[test]
fn a_bulk_write_goes_beyond_the_zeros_and_counts_when_a_flush_has_covered_it() {
    let mut core = fresh(&CoreConfig {
        zero_ahead: true,
        zero_ahead_bytes: 0,
        zero_step_bytes_min: 8192,
        zero_step_bytes_max: 8192,
        ..plain_config()
    });
    put(&mut core, 5_000, 1);
    let Some(Action::Zero(zero)) = core.poll_action() else { panic!("zeros come first") };
    core.set_bulk(true);
    put(&mut core, 5_000, 2);
    assert!(next_write(&mut core).is_none(), "zeros under way would overwrite it");
    core.zero_done(zero.id, Ok(()));
    let write = next_write(&mut core).expect("into the zeros");
    core.write_done(write.id, Ok(()));
    let write = next_write(&mut core).expect("beyond them");
    core.write_done(write.id, Ok(()));
    assert_eq!((core.on_device(), core.offsets().written, core.visible()), (10_000, 5_000, 5_000));
    let Some(Action::Flush(flush)) = core.poll_action() else { panic!("nothing else is to do") };
    // What is written meanwhile is not covered.
    put(&mut core, 100, 3);
    let write = next_write(&mut core).expect("the next one");
    core.write_done(write.id, Ok(()));
    core.flush_done(flush.id, Ok(()));
    assert_eq!((core.offsets().written, core.offsets().durable), (10_000, 10_000));
    assert_eq!(core.state().zeroed_to, 12_288, "nothing has to be zeroed there any more");
    let Some(Action::Flush(flush)) = core.poll_action() else {
        panic!("the rest is to be covered")
    };
    core.flush_done(flush.id, Ok(()));
    assert_eq!((core.offsets().written, core.offsets().durable), (10_100, 10_100));
    put(&mut core, 5_000, 4);
    let write = next_write(&mut core).expect("beyond once more");
    core.set_bulk(false);
    assert!(!matches!(core.poll_action(), Some(Action::Zero(_))), "they would overwrite it");
    core.write_done(write.id, Ok(()));
    let Some(Action::Flush(flush)) = core.poll_action() else { panic!("it counts then") };
    assert_eq!(core.offsets().written, 10_100);
    core.flush_done(flush.id, Ok(()));
    assert_eq!((core.offsets().written, core.offsets().durable), (15_100, 15_100));
    // From here on zeros go first again.
    put(&mut core, 5_000, 5);
    let Some(Action::Zero(zero)) = core.poll_action() else { panic!("zeros come first") };
    assert_eq!((zero.from, zero.to), (16_384, 24_576));
    core.zero_done(zero.id, Ok(()));
    let write = next_write(&mut core).expect("into zeros");
    core.write_done(write.id, Ok(()));
    assert_eq!(core.offsets().written, 20_100);
}

#[test]
fn a_write_never_crosses_the_zeroed_frontier() {
    let config = CoreConfig {
        zero_ahead: true,
        zero_ahead_bytes: 0,
        zero_step_bytes_min: 8192,
        ..plain_config()
    };
    let mut core = fresh(&config);
    put(&mut core, 10_000, 1);
    let Some(Action::Zero(first)) = std::iter::from_fn(|| core.poll_action()).last() else {
        panic!("zeros come first")
    };
    assert_eq!((first.from, first.to, first.urgent), (0, 8192, true));
    core.zero_done(first.id, Ok(()));
    let Some(Action::Zero(second)) = core.poll_action() else { panic!("still short of zeros") };
    assert_eq!(
        (second.from, second.to),
        (8192, 8192 + 16_384),
        "a step that was waited for doubles"
    );
    core.zero_done(second.id, full());
    assert!(core.poll_action().is_none(), "a full disk is tried again when told");
    assert!(core.failure().is_none());
    core.retry();
    let Some(Action::Zero(third)) = core.poll_action() else { panic!("zeros again") };
    core.zero_done(third.id, Ok(()));
    assert!(next_write(&mut core).is_some());
}

#[test]
fn a_frontier_that_left_a_segment_does_not_vouch_for_the_rest_of_it() {
    let config = CoreConfig {
        zero_ahead: true,
        zero_ahead_bytes: 0,
        zero_step_bytes_min: 8192,
        zero_step_bytes_max: 8192,
        ..plain_config()
    };
    let mut core = fresh(&config);
    put(&mut core, 5000, 1);
    // Too large for the rest of the first segment, which is not zeroed that far.
    assert_eq!(put(&mut core, 63_000, 2), SEGMENT);
    for _ in 0..50 {
        match core.poll_action() {
            Some(Action::Zero(zero)) => core.zero_done(zero.id, Ok(())),
            Some(Action::Write(write)) => core.write_done(write.id, Ok(())),
            _ => {}
        }
    }
    assert_eq!(core.offsets().written, SEGMENT + 63_000);
    assert_eq!(core.state().zeroed_from, SEGMENT);
}

#[test]
fn a_write_never_crosses_the_saved_write_bound() {
    let config = CoreConfig { write_bound_step: 8192, ..plain_config() };
    let mut core = fresh(&config);
    put(&mut core, 10_000, 1);
    let Some(Action::Save { id, state }) = core.poll_action() else { panic!("a save comes first") };
    assert_eq!(state.write_bound, 12_288 + 8192);
    assert!(next_write(&mut core).is_none());
    core.state_saved(id, full());
    assert!(next_write(&mut core).is_none());
    core.retry();
    let Some(Action::Save { id, .. }) = core.poll_action() else { panic!("a save again") };
    core.state_saved(id, Ok(()));
    assert!(next_write(&mut core).is_some());
}

#[test]
fn after_a_failed_write_nothing_is_ever_reported_again_and_reads_go_on() {
    let config = CoreConfig { sync: true, ..plain_config() };
    let mut core = fresh(&config);
    put(&mut core, 100, 1);
    let write = next_write(&mut core).expect("a write");
    core.write_done(write.id, Ok(()));
    let Some(Action::Flush(flush)) = core.poll_action() else { panic!("a flush") };
    put(&mut core, 100, 2);
    let write = next_write(&mut core).expect("a write");
    core.write_done(write.id, error());
    let failure = core.failure().cloned().expect("it failed");
    assert_eq!((failure.operation, failure.upto), (FailedOperation::Write, 200));
    core.flush_done(flush.id, Ok(()));
    let offsets = core.offsets();
    assert_eq!((offsets.written, offsets.durable), (100, 0));
    assert!(core.poll_action().is_none());
    assert_eq!(core.append(1, |_, _| ()), Err(AppendError::Failed(failure)));
    assert_eq!(core.hot(0, 100).expect("in memory").bytes(), [1; 100]);
    assert!(core.hot(100, 100).is_none(), "what isn't written isn't shown");
}

#[test]
fn a_failed_flush_stops_the_log() {
    let config = CoreConfig { sync: true, ..plain_config() };
    let mut core = fresh(&config);
    put(&mut core, 100, 1);
    let write = next_write(&mut core).expect("a write");
    core.write_done(write.id, Ok(()));
    let Some(Action::Flush(flush)) = core.poll_action() else { panic!("a flush") };
    core.flush_done(flush.id, error());
    assert_eq!(core.failure().map(|failure| failure.operation), Some(FailedOperation::Flush));
    assert_eq!(core.offsets().durable, 0);
    assert!(core.poll_action().is_none(), "no second try makes it durable");
}

#[test]
fn the_budget_of_unwritten_bytes_refuses_but_one_record_always_passes() {
    let config = CoreConfig { unwritten_bytes_max: 1000, ..plain_config() };
    let mut core = fresh(&config);
    put(&mut core, 5000, 1);
    let busy = AppendError::Busy { unwritten: 5000, max: 1000 };
    assert_eq!(core.admits(1), Err(busy.clone()));
    assert_eq!(core.append(1, |_, _| ()), Err(busy));
    let write = next_write(&mut core).expect("a write");
    core.write_done(write.id, Ok(()));
    assert_eq!(core.admits(1), Ok(()));
    put(&mut core, 1, 2);
}

#[test]
fn at_level_sync_what_waits_for_its_flush_is_in_the_budget_too() {
    let config = CoreConfig { sync: true, unwritten_bytes_max: 1000, ..plain_config() };
    let mut core = fresh(&config);
    put(&mut core, 900, 1);
    let write = next_write(&mut core).expect("a write");
    core.write_done(write.id, Ok(()));
    assert_eq!(core.unwritten_bytes(), 0);
    let busy = AppendError::Busy { unwritten: 900, max: 1000 };
    assert_eq!(core.admits(200), Err(busy), "a flush that hangs must not let records gather");
    let Some(Action::Flush(flush)) = core.poll_action() else { panic!("a flush") };
    core.flush_done(flush.id, Ok(()));
    assert_eq!(core.admits(200), Ok(()));
}

#[test]
fn blocks_grow_under_load_and_shrink_when_it_is_gone() {
    let mut core = fresh(&plain_config());
    // One record at a time: the smallest blocks.
    for _ in 0..4 {
        put(&mut core, 100, 1);
        let write = next_write(&mut core).expect("a write");
        core.write_done(write.id, Ok(()));
    }
    assert_eq!(core.hot_bytes(), 8192, "four flushes of one unit leave one block");
    put(&mut core, 100, 1);
    let stuck = next_write(&mut core).expect("a write");
    for _ in 0..10 {
        put(&mut core, 4000, 2);
    }
    core.write_done(stuck.id, Ok(()));
    let mut sizes = Vec::new();
    while let Some(write) = next_write(&mut core) {
        sizes.push(write.buf.as_ref().as_ref().len());
        core.write_done(write.id, Ok(()));
    }
    assert_eq!(sizes, [8192, 16_384, 24_576], "blocks doubled while appends ran ahead");
}

#[test]
fn hot_blocks_keep_to_their_budget_and_hold_whole_records() {
    let config = CoreConfig { hot_bytes_max: 16 << 10, ..plain_config() };
    let mut core = fresh(&config);
    let mut placed = Vec::new();
    for n in 0..40u8 {
        placed.push((put(&mut core, 1500, n), n));
        let write = next_write(&mut core).expect("a write");
        core.write_done(write.id, Ok(()));
        assert!(core.hot_bytes() <= 16 << 10);
    }
    for (offset, n) in placed {
        match core.hot(offset, 1500) {
            Some(slice) => assert_eq!(slice.bytes(), [n; 1500]),
            None => assert!(offset < core.hot_from(), "{offset} should be in memory"),
        }
    }
    let from = core.hot_from();
    let part = core.hot_from_offset(from + 10, 1 << 20).expect("bytes in memory");
    assert!(!part.bytes().is_empty());
    assert!(core.hot_from_offset(core.offsets().written, 10).is_none());
}

#[test]
fn closing_writes_and_flushes_everything_before_the_state_says_clean() {
    let mut core = fresh(&plain_config());
    put(&mut core, 100, 1);
    core.close();
    assert_eq!(core.append(1, |_, _| ()), Err(AppendError::Closed));
    let mut order = Vec::new();
    while let Some(action) = core.poll_action() {
        match action {
            Action::Write(write) => {
                order.push("write");
                core.write_done(write.id, Ok(()));
            }
            Action::Flush(flush) => {
                order.push("flush");
                core.flush_done(flush.id, Ok(()));
            }
            Action::Save { id, state } => {
                order.push("save");
                assert!(state.clean && state.durable == 100 && state.write_bound == 100);
                assert!(!core.is_closed());
                core.state_saved(id, Ok(()));
            }
            other => panic!("{other:?} at close"),
        }
    }
    assert_eq!(order, ["write", "flush", "save"]);
    assert!(core.is_closed() && core.is_idle());
}

#[test]
fn unusable_sizes_are_refused_by_name() {
    let refused = |config: CoreConfig| config.check().expect_err("not usable").to_string();
    let odd = CoreConfig { segment_size: 5000, ..CoreConfig::default() };
    assert!(refused(odd).starts_with("segment size is 5000"));
    let small = CoreConfig { block_bytes_max: 4096, ..CoreConfig::default() };
    assert!(refused(small).starts_with("largest block is 4096"));
    let huge = CoreConfig { segment_size: 1 << 31, ..CoreConfig::default() };
    assert!(refused(huge).contains("at most"));
    assert!(CoreConfig::default().check().is_ok());
}

#[test]
fn memory_is_asked_for_once_a_block_and_never_for_an_append() {
    let mut core = fresh(&plain_config());
    let before = core.append(100, |out, _| out.fill(1)).map(|_| core.hot_bytes());
    assert_eq!(before, Ok(0));
    // All of these go into the block that the first one opened: the write is one.
    for _ in 0..70 {
        put(&mut core, 100, 2);
    }
    let write = next_write(&mut core).expect("a write");
    assert_eq!(<TestBuf as AsRef<[u8]>>::as_ref(&write.buf).len(), 8192);
}
