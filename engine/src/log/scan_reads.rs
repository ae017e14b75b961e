//! The reads of a recovery's scan: it goes through the log from front to back, so what it comes to next is read while it looks at what is
//! there.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use futures_lite::future::poll_once;

use super::block::UNIT;
use super::device::{Device, ReadBuf};
use super::error::LogError;
use super::table::Table;

/// Bytes of one read of the device, at a multiple of itself in the segment.
const CHUNK_BYTES: u64 = 1 << 20;
/// Reads under way beyond what is asked for.
const AHEAD: u64 = 3;

type Reading<'a> = Pin<Box<dyn Future<Output = Result<ReadBuf, LogError>> + 'a>>;

/// A part of the log that was asked for.
struct Chunk<'a> {
    start: u64,
    /// While it comes.
    reading: Option<Reading<'a>>,
    /// Once it is there. Neither: it could not be read.
    bytes: Option<ReadBuf>,
}

/// Reads segments ahead of who asks.
pub(crate) struct ScanReads<'a> {
    device: &'a Device,
    table: &'a Table,
    segment_bytes: u64,
    /// Neighbours, in order.
    chunks: VecDeque<Chunk<'a>>,
    /// What the last answer was put together in.
    whole: Vec<u8>,
}

impl<'a> ScanReads<'a> {
    pub(crate) fn new(device: &'a Device, table: &'a Table, segment_bytes: u64) -> Self {
        ScanReads { device, table, segment_bytes, chunks: VecDeque::new(), whole: Vec::new() }
    }

    /// `len` bytes at `position` of a segment, both multiples of the unit; `None` if there is no such segment.
    ///
    /// # Errors
    /// Only what is asked for is missed: [`LogError::Io`] or [`LogError::ShortRead`] of exactly that.
    pub(crate) async fn read(
        &mut self,
        segment: u64,
        position: u64,
        len: usize,
    ) -> Result<Option<&[u8]>, LogError> {
        let (from, to) = (segment + position, segment + position + len as u64);
        // A single unit is looked at for itself.
        if len > UNIT {
            self.come(from, to).await;
            if self.put_together(from, to) {
                return Ok(Some(&self.whole));
            }
        }
        let Some(open) = self.table.open(segment, self.device).await? else { return Ok(None) };
        let exact = self.device.read(&open, position, len).await?;
        self.whole.clear();
        self.whole.extend_from_slice(exact.as_ref());
        Ok(Some(&self.whole))
    }

    /// What was read may be changed now.
    pub(crate) fn forget(&mut self) {
        self.chunks.clear();
    }

    /// Waits for the chunks of `[from, to)`, with more of them under way.
    async fn come(&mut self, from: u64, to: u64) {
        while self.chunks.front().is_some_and(|chunk| self.end_of(chunk.start) <= from) {
            self.chunks.pop_front();
        }
        if self.chunks.front().is_none_or(|chunk| chunk.start > from) {
            self.chunks.clear();
        }
        self.order(from, to).await;
        for chunk in &mut self.chunks {
            if let Some(reading) = chunk.reading.as_mut().filter(|_| chunk.start < to) {
                chunk.bytes = reading.await.ok();
                chunk.reading = None;
            }
        }
    }

    async fn order(&mut self, from: u64, to: u64) {
        let within = (from % self.segment_bytes) / CHUNK_BYTES * CHUNK_BYTES;
        let first = from - from % self.segment_bytes + within;
        let mut next = self.chunks.back().map_or(first, |chunk| self.end_of(chunk.start));
        while next < to + AHEAD * CHUNK_BYTES {
            let segment = self.table.start_of(next);
            // Whoever needs it asks again, and hears why it cannot be read.
            let Ok(Some(open)) = self.table.open(segment, self.device).await else { break };
            let (device, position) = (self.device, next - segment);
            let len = (self.end_of(next) - next) as usize;
            let mut reading: Reading<'a> =
                Box::pin(async move { device.read(&open, position, len).await });
            // Once it was polled the reactor knows of it.
            let done = poll_once(&mut reading).await;
            let reading = done.is_none().then_some(reading);
            let bytes = done.and_then(Result::ok);
            self.chunks.push_back(Chunk { start: next, reading, bytes });
            next = self.end_of(next);
        }
    }

    fn end_of(&self, chunk: u64) -> u64 {
        let segment_end = self.table.start_of(chunk) + self.segment_bytes;
        (chunk + CHUNK_BYTES).min(segment_end)
    }

    /// Whether all of `[from, to)` was there.
    fn put_together(&mut self, from: u64, to: u64) -> bool {
        self.whole.clear();
        for chunk in &self.chunks {
            let at = from + self.whole.len() as u64;
            let Some(bytes) = chunk.bytes.as_ref().filter(|_| at < to) else { break };
            let bytes = bytes.as_ref();
            let end = (to - chunk.start).min(bytes.len() as u64) as usize;
            let Some(part) = bytes.get((at - chunk.start) as usize..end) else { break };
            self.whole.extend_from_slice(part);
        }
        self.whole.len() as u64 == to - from
    }
}
