//! What was promised, and whether it holds.

use std::collections::{BTreeMap, BTreeSet};

use ringmq_engine::log::Offsets;

use crate::{
    disk::{Crash, Disk, is_zero},
    message::{Found, Message, read},
};

/// A broken promise, in a sentence.
pub(crate) type Violation = String;

/// Returns the sentence unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err(format!($($sentence)+));
        }
    };
}
pub(crate) use hold;

/// Everything that the log was given and that it told. See [`Oracle::recovered`] for what is checked.
pub(crate) struct Oracle {
    segment_size: u64,
    sync: bool,
    zero_ahead: bool,
    /// Also look at what a later crash could bring, not only at what a reader sees.
    settled: bool,
    pub(crate) min_offset: u64,
    /// In log order, from `min_offset` on.
    pub(crate) messages: Vec<Message>,
    pub(crate) told: Offsets,
    /// Messages told visible: all before this index.
    visible_messages: usize,
    /// Queue and queue offset of what somebody has seen: never to be given to another message.
    seen: BTreeSet<(u32, u64)>,
    pub(crate) next_queue_offset: BTreeMap<u32, u64>,
    /// The worst crashes since the log last served.
    crashes: Vec<Crash>,
    closed_at: Option<u64>,
}

impl Oracle {
    pub(crate) fn new(segment_size: u64, sync: bool, zero_ahead: bool, settled: bool) -> Self {
        Self {
            segment_size,
            sync,
            zero_ahead,
            settled,
            min_offset: 0,
            messages: Vec::new(),
            told: Offsets { appended: 0, written: 0, durable: 0, visible: 0 },
            visible_messages: 0,
            seen: BTreeSet::new(),
            next_queue_offset: BTreeMap::new(),
            crashes: Vec::new(),
            closed_at: None,
        }
    }

    /// A message was taken. Its queue offset must not be one that was seen.
    pub(crate) fn appended(&mut self, message: Message) -> Result<(), Violation> {
        let (queue, queue_offset) = (message.queue, message.queue_offset);
        hold!(
            !self.seen.contains(&(queue, queue_offset)),
            "queue {queue} offset {queue_offset} was seen and is given to another message"
        );
        if let Some(last) = self.messages.last() {
            hold!(message.offset >= last.end(), "messages overlap at {}", message.offset);
        }
        self.messages.push(message);
        Ok(())
    }

    /// The log told how far it is: each acknowledgement up to there is out, each reader has read up to `visible`.
    pub(crate) fn told(&mut self, offsets: Offsets) -> Result<(), Violation> {
        let before = self.told;
        hold!(
            before.appended <= offsets.appended
                && before.written <= offsets.written
                && before.durable <= offsets.durable
                && before.visible <= offsets.visible,
            "offsets went back: {before:?}, then {offsets:?}"
        );
        hold!(
            offsets.durable <= offsets.written && offsets.written <= offsets.appended,
            "offsets out of order: {offsets:?}"
        );
        self.told = offsets;
        while let Some(message) = self.messages.get(self.visible_messages) {
            if message.end() > offsets.visible {
                break;
            }
            self.seen.insert((message.queue, message.queue_offset));
            self.visible_messages += 1;
        }
        Ok(())
    }

    /// Retention removed everything before `offset`.
    pub(crate) fn dropped_before(&mut self, offset: u64) {
        let count = self.messages.partition_point(|message| message.offset < offset);
        self.messages.drain(..count);
        self.visible_messages -= count;
        self.min_offset = offset;
    }

    pub(crate) fn crashed(&mut self, kind: Crash) {
        self.crashes.push(kind);
    }

    pub(crate) fn closed(&mut self) {
        self.closed_at = Some(self.told.appended);
    }

    /// Whether what a completed write covered survives the crashes since.
    fn written_survives(&self) -> bool {
        self.crashes.iter().all(|crash| match crash {
            Crash::Kill => true,
            Crash::Kernel => self.zero_ahead,
            Crash::Power => false,
        })
    }

    /// The log was recovered and ends at `end`. Checked:
    /// - what was acknowledged at a level that covers the crashes is there: durable always, written after kills and (with
    ///   zeroed space) kernel crashes;
    /// - what was seen, if the level covers the crashes (at `sync` any), is there;
    /// - the log is byte for byte a prefix of what was appended: in order, none invented, none with other offsets;
    /// - (unless told not to look) all of it is settled: no later crash can change it; and so is that only zeros follow.
    pub(crate) fn recovered(&mut self, disk: &Disk, end: u64) -> Result<(), Violation> {
        let crashes = std::mem::take(&mut self.crashes);
        self.crashes = crashes.clone();
        let told = self.told;
        hold!(
            end >= told.durable,
            "after {crashes:?} the log ends at {end}, but was durable up to {}",
            told.durable
        );
        if self.written_survives() {
            hold!(
                end >= told.written,
                "after {crashes:?} the log ends at {end}, but was written up to {}",
                told.written
            );
        }
        if self.sync || self.written_survives() {
            hold!(
                end >= told.visible,
                "after {crashes:?} the log ends at {end}, but was seen up to {}",
                told.visible
            );
        }
        if let Some(closed_at) = self.closed_at.take() {
            hold!(end == closed_at, "closed at {closed_at}, but the log ends at {end}");
        }
        self.check_content(disk, end)?;
        if self.settled {
            self.check_rest(disk, end)?;
        }
        let kept = self.messages.partition_point(|message| message.offset < end);
        for message in self.messages.drain(kept..) {
            // Seen and lost where the level doesn't cover it; who saw it was told so.
            self.seen.remove(&(message.queue, message.queue_offset));
        }
        // What was found is visible from now on.
        for message in &self.messages[self.visible_messages.min(kept)..] {
            self.seen.insert((message.queue, message.queue_offset));
        }
        self.visible_messages = kept;
        self.told = Offsets { appended: end, written: end, durable: end, visible: end };
        self.crashes.clear();
        Ok(())
    }

    /// Walks the log as a reader does, and compares.
    fn check_content(&mut self, disk: &Disk, end: u64) -> Result<(), Violation> {
        let mut at = self.min_offset;
        let mut messages = self.messages.iter().peekable();
        while at < end {
            let start = at - at % self.segment_size;
            let position = (at - start) as usize;
            let file = disk.segments.get(&start);
            let Some(file) = file else { return Err(format!("segment {start} is gone")) };
            match read(&file.cache[position..]) {
                Found::Blank { room } => {
                    hold!(
                        room as u64 == start + self.segment_size - at,
                        "end of segment mark at {at} says {room}"
                    );
                    at = start + self.segment_size;
                }
                Found::Message { len, queue, queue_offset, offset } => {
                    let Some(message) = messages.next() else {
                        return Err(format!("a message at {at} was never appended"));
                    };
                    hold!(
                        message.offset == at && offset == at,
                        "a message at {at} says {offset}; the next one appended was at {}",
                        message.offset
                    );
                    hold!(
                        (queue, queue_offset) == (message.queue, message.queue_offset),
                        "the message at {at} has queue offset {queue_offset} of queue {queue}, told was {} of {}",
                        message.queue_offset,
                        message.queue
                    );
                    let bytes = match self.settled {
                        true => disk.settled(start, position, position + len),
                        false => file.cache.get(position..position + len),
                    };
                    let Some(bytes) = bytes else {
                        return Err(format!("the message at {at} may still be lost or change"));
                    };
                    hold!(bytes == message.bytes, "the message at {at} has other bytes");
                    at += len as u64;
                }
                Found::Nothing => return Err(format!("the log has a hole at {at}")),
            }
        }
        hold!(at == end, "the log ends at {end}, inside a record");
        if let Some(message) = messages.peek() {
            hold!(message.offset >= end, "the message at {} is missing", message.offset);
        }
        Ok(())
    }

    /// Only zeros behind the end, for good.
    fn check_rest(&self, disk: &Disk, end: u64) -> Result<(), Violation> {
        for start in disk.segments.keys() {
            let from = end.saturating_sub(*start).min(self.segment_size) as usize;
            let rest = disk.settled(*start, from, self.segment_size as usize);
            hold!(
                rest.is_some_and(is_zero),
                "segment {start} has, or may get back, bytes behind the end {end}"
            );
        }
        Ok(())
    }

    /// Queue offsets come from the records.
    pub(crate) fn rebuild_queues(&mut self) {
        for (queue, next) in &mut self.next_queue_offset {
            let last = self.messages.iter().rev().find(|message| message.queue == *queue);
            // With no record left (retention), the queue's own files would know.
            if let Some(last) = last {
                *next = last.queue_offset + 1;
            } else if self.min_offset == 0 {
                *next = 0;
            }
        }
    }
}
