//! Appending records of 1 KiB to the log's core: encoding in place, sealing blocks, deciding writes. The device answers at once, every
//! 64 appends: a window of requests.

#![expect(missing_docs, reason = "criterion's macros define items without")]

use std::cell::RefCell;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ringmq_benches::{BODY_BYTES, record};
use ringmq_engine::log::{Action, BlockBuf, CoreConfig, LogCore, LogState, Recovered};
use ringmq_net::record::RecordFields;

/// Appends between two looks of the device.
const WINDOW: u64 = 64;

thread_local! {
    /// Blocks that were given back, as the shell pools its own: fresh memory costs page faults.
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of a block.
struct Block(Vec<u8>);

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BlockBuf for Block {
    fn alloc(size: usize) -> Self {
        let mut buf = POOL.with_borrow_mut(Vec::pop).unwrap_or_default();
        buf.resize(size, 0);
        Block(buf)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn trim(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.0);
        // The pool may be gone when the thread ends.
        let _ = POOL.try_with(|pool| pool.borrow_mut().push(buf));
    }
}

fn empty_log() -> LogCore<Block> {
    let config = CoreConfig { zero_ahead: false, hot_bytes_max: 8 << 20, ..CoreConfig::default() };
    let recovered = Recovered {
        end: 0,
        min_offset: 0,
        partial_unit: Vec::new(),
        ready_end: 2 * config.segment_size,
        state: LogState {
            segment_size: config.segment_size,
            scan_from: 0,
            durable: 0,
            write_bound: config.write_bound_step,
            zeroed_from: 0,
            zeroed_to: 0,
            clean: false,
        },
        redo_from: Some(0),
        clean: false,
        scanned_records: 0,
        scanned_bytes: 0,
        cut_reason: None,
        zeroed_bytes: 0,
        removed_segments: 0,
    };
    LogCore::new(config, &recovered).unwrap_or_else(|error| panic!("{error}"))
}

/// A device that does everything at once and well.
fn serve_device(core: &mut LogCore<Block>) {
    while let Some(action) = core.poll_action() {
        match action {
            Action::Write(write) => core.write_done(write.id, Ok(())),
            Action::Flush(flush) => core.flush_done(flush.id, Ok(())),
            Action::Zero(zero) => core.zero_done(zero.id, Ok(())),
            Action::Prepare { start } => core.segment_ready(start, start),
            Action::Save { id, .. } => core.state_saved(id, Ok(())),
        }
    }
}

fn append(criterion: &mut Criterion) {
    let body = vec![b'x'; BODY_BYTES];
    let fields = record(&body);
    let len = fields.encoded_len();
    let mut group = criterion.benchmark_group("log core");
    group.throughput(Throughput::Bytes(len as u64));
    group.bench_function("append a record of 1 KiB", |bencher| {
        let mut core = empty_log();
        let mut count = 0u64;
        bencher.iter(|| {
            let appended = core.append(len, |out, offset| {
                RecordFields { physical_offset: offset as i64, ..fields }.encode(out);
            });
            assert!(appended.is_ok(), "{appended:?}");
            count += 1;
            if count.is_multiple_of(WINDOW) {
                serve_device(&mut core);
            }
            black_box(core.offsets().written)
        });
    });
    group.finish();
}

criterion_group!(benches, append);
criterion_main!(benches);
