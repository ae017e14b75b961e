//! Small helpers of the unit tests.

use ringmq_net::record::RecordFields;

use super::{
    Action, BlockBuf, CheckpointTimes, CoreConfig, LogCore, LogState, Recovered, Recovery,
    RecoveryAction, RecoveryError, RecoveryInput, SegmentFile, UNIT, WriteAction,
};

/// Block memory in a vector.
#[derive(Debug)]
pub(super) struct TestBuf(Vec<u8>);

impl AsRef<[u8]> for TestBuf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BlockBuf for TestBuf {
    fn alloc(size: usize) -> Self {
        Self(vec![0xA5; size])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn trim(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

/// Segments of 64 KiB, no zeroing, a write bound that isn't in the way.
pub(super) fn plain_config() -> CoreConfig {
    CoreConfig {
        segment_size: 64 << 10,
        block_bytes_max: 32 << 10,
        zero_ahead: false,
        write_bound_step: 16 << 20,
        ..CoreConfig::default()
    }
}

/// A fresh log of two ready segments.
pub(super) fn fresh(config: &CoreConfig) -> LogCore<TestBuf> {
    let state = LogState {
        segment_size: config.segment_size,
        scan_from: 0,
        durable: 0,
        write_bound: config.write_bound_step,
        zeroed_from: 0,
        zeroed_to: 0,
        clean: false,
    };
    let recovered = Recovered {
        end: 0,
        min_offset: 0,
        partial_unit: Vec::new(),
        ready_end: 2 * config.segment_size,
        state,
        redo_from: None,
        clean: true,
        scanned_records: 0,
        scanned_bytes: 0,
        cut_reason: None,
        zeroed_bytes: 0,
        removed_segments: 0,
    };
    LogCore::new(config.clone(), &recovered).expect("the configuration is right")
}

/// Appends `len` bytes of `byte`.
pub(super) fn put(core: &mut LogCore<TestBuf>, len: usize, byte: u8) -> u64 {
    core.append(len, |out, _| out.fill(byte)).expect("there is room")
}

/// The write that the core wants; other actions are dropped, which is as if they never ended.
pub(super) fn next_write(core: &mut LogCore<TestBuf>) -> Option<WriteAction<TestBuf>> {
    std::iter::from_fn(|| core.poll_action()).find_map(|action| match action {
        Action::Write(write) => Some(write),
        _ => None,
    })
}

/// A record of the given body and properties at its place.
pub(super) fn record(offset: u64, body: &[u8], properties: &[u8]) -> Vec<u8> {
    let host = ([10, 0, 0, 1], 10911).into();
    let fields = RecordFields {
        queue_id: 1,
        flag: 0,
        queue_offset: 7,
        physical_offset: offset as i64,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: host,
        store_timestamp: 1_700_000_000_000 + offset as i64,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        topic: "T",
        properties,
    };
    let mut bytes = vec![0; fields.encoded_len()];
    fields.encode(&mut bytes);
    bytes
}

/// A disk for the planner: segments that keep everything.
pub(super) struct TestStore {
    pub(super) segment_size: u64,
    pub(super) segments: Vec<(u64, Vec<u8>)>,
    pub(super) input: RecoveryInput,
    /// What the planner did, but for reads.
    pub(super) actions: Vec<RecoveryAction>,
}

impl TestStore {
    /// `count` segments of 64 KiB, all zeros; unclean, without a state.
    pub(super) fn new(count: u64) -> Self {
        let segment_size = 64 << 10;
        Self {
            segment_size,
            segments: (0..count)
                .map(|n| (n * segment_size, vec![0; segment_size as usize]))
                .collect(),
            input: RecoveryInput {
                segment_size,
                segments: Vec::new(),
                state: None,
                abort: true,
                checkpoint: CheckpointTimes::default(),
                dispatched: None,
                write_bound_step: 64 << 10,
                read_bytes: 2 * UNIT,
            },
            actions: Vec::new(),
        }
    }

    /// A state: durable to `durable`, scanned from there, bound at `write_bound`.
    pub(super) fn with_state(mut self, durable: u64, write_bound: u64) -> Self {
        self.input.state = Some(LogState {
            segment_size: self.segment_size,
            scan_from: durable,
            durable,
            write_bound,
            zeroed_from: 0,
            zeroed_to: 0,
            clean: false,
        });
        self
    }

    /// Writes bytes at a physical offset and returns the offset behind them.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) -> u64 {
        let (start, data) = &mut self.segments[(offset / self.segment_size) as usize];
        let at = (offset - *start) as usize;
        data[at..at + bytes.len()].copy_from_slice(bytes);
        offset + bytes.len() as u64
    }

    /// Writes `count` records from `offset` on and returns the end of the last.
    pub(super) fn put_records(&mut self, mut offset: u64, count: usize) -> u64 {
        for n in 0..count {
            offset = self.put(offset, &record(offset, &[n as u8 + 1; 700], b"A\x01b"));
        }
        offset
    }

    /// Ends the segment of `offset` and returns the next one's start.
    pub(super) fn put_blank(&mut self, offset: u64) -> u64 {
        let end = offset - offset % self.segment_size + self.segment_size;
        let mut blank = ((end - offset) as u32).to_be_bytes().to_vec();
        blank.extend(0xCBD4_3194u32.to_be_bytes());
        self.put(offset, &blank);
        end
    }

    /// Runs the planner to its end.
    pub(super) fn recover(&mut self) -> Result<Recovered, RecoveryError> {
        let len = self.segment_size;
        self.input.segments =
            self.segments.iter().map(|(start, _)| SegmentFile { start: *start, len }).collect();
        let mut recovery = Recovery::new(self.input.clone())?;
        loop {
            let action = recovery.next_action();
            match &action {
                RecoveryAction::Done(recovered) => return Ok(recovered.clone()),
                RecoveryAction::Read { segment_start, position, len } => {
                    let data = self.segments.iter().find(|(start, _)| start == segment_start);
                    let (_, data) = data.expect("the segment is there");
                    let at = *position as usize;
                    recovery.read_done(&data[at..at + len])?;
                    continue;
                }
                RecoveryAction::Zero { segment_start, position, to, head } => {
                    let data = self.segments.iter_mut().find(|(start, _)| start == segment_start);
                    let (_, data) = data.expect("the segment is there");
                    data[*position as usize..*to as usize].fill(0);
                    data[*position as usize..*position as usize + head.len()].copy_from_slice(head);
                }
                RecoveryAction::Remove { start } => self.segments.retain(|(s, _)| s != start),
                RecoveryAction::Save { state } => self.input.state = Some(*state),
                RecoveryAction::Flush { .. } => {}
            }
            self.actions.push(action);
            recovery.action_done();
        }
    }
}
