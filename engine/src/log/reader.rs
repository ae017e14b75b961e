//! Reading the log: recent blocks without a copy, else the cache, else the device.

use super::{
    block::Slice,
    cache::{CACHE_BLOCK_BYTES, CACHE_READ_BYTES_MAX, Join, Lead, ReadHint, ReadRun},
    error::LogError,
    files::UNIT_BYTES,
    shell::Log,
};
use std::rc::Rc;

/// Most bytes one read may ask for: well above the largest record.
pub const READ_BYTES_MAX: usize = 64 << 20;

impl Log {
    /// Bytes `[offset, offset + len)` of the log: all of them visible, whatever records they belong to.
    ///
    /// Without a copy if one block in memory, one cached extent or one device read has all of it; otherwise put together.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`] if any byte was deleted or isn't visible, [`LogError::Io`] if the device fails. A log that
    /// stopped taking writes still reads.
    pub async fn read(&self, offset: u64, len: usize, hint: ReadHint) -> Result<Slice, LogError> {
        self.check_range(offset, len)?;
        if let Some(slice) = self.hot(offset, len) {
            return Ok(slice);
        }
        let first = self.piece(offset, len, hint).await?;
        if first.bytes().len() == len {
            return Ok(first);
        }
        let mut whole = Vec::with_capacity(len);
        whole.extend_from_slice(first.bytes());
        while whole.len() < len {
            let at = offset + whole.len() as u64;
            let piece = self.piece(at, len - whole.len(), hint).await?;
            whole.extend_from_slice(piece.bytes());
        }
        Ok(Slice { owner: Rc::new(whole), range: 0..len })
    }

    /// The bytes from `offset` on for somebody who copies the log: at least one, at most `len_max`, never across a segment's end,
    /// whatever records they belong to; `None` at the end of what is visible. From a block in memory, else by a direct read past the
    /// cache, which stays for consumers; no copy in either case.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub async fn stream(&self, offset: u64, len_max: usize) -> Result<Option<Slice>, LogError> {
        if offset == self.visible() {
            return Ok(None);
        }
        self.check_range(offset, 1)?;
        if let Some(slice) = self.hot_from(offset, len_max) {
            return Ok(Some(slice));
        }
        let start = self.0.table.start_of(offset);
        let end = self.visible().min(start + self.0.config.core.segment_size);
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(len_max).max(1);
        self.exact(start, offset, len.min(READ_BYTES_MAX)).await.map(Some)
    }

    /// Has what a steady reader comes to next read into the cache, in tasks of their own.
    pub fn read_ahead(&self, run: &mut ReadRun) {
        let Some(range) = run.order() else { return };
        let mut at = self.extent_start(range.start);
        while at < range.end && at < self.visible() {
            let start = self.0.table.start_of(at);
            let hot = self.0.core.borrow().hot_from_offset(at, 1).is_some();
            if let Some(mut lead) = (!hot).then(|| self.0.cache.order(at)).flatten() {
                let log = self.clone();
                let read = glommio::spawn_local(async move {
                    // Who needs it reads it again, and hears why it cannot be read.
                    let _ = log.extent(&mut lead, start, at, at, 1, ReadHint::STREAM).await;
                });
                read.detach();
            }
            at = self.extent_start(at + 1);
        }
    }

    /// Where the first extent at or behind `offset` starts that a stream reads: they stand at fixed places of a segment, so that readers of the
    /// same part share them.
    fn extent_start(&self, offset: u64) -> u64 {
        let start = self.0.table.start_of(offset);
        let within = (offset - start).next_multiple_of(CACHE_READ_BYTES_MAX);
        start + within.min(self.0.config.core.segment_size)
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<(), LogError> {
        let (min, max) = (self.min_offset(), self.visible());
        let end = offset.checked_add(len as u64);
        if offset < min || len > READ_BYTES_MAX || end.is_none_or(|end| end > max) {
            return Err(LogError::OutOfRange { offset, len, min, max });
        }
        Ok(())
    }

    /// At least one byte from `offset`, at most `len`.
    async fn piece(&self, offset: u64, len: usize, hint: ReadHint) -> Result<Slice, LogError> {
        if len == 0 {
            return Ok(Slice { owner: Rc::new([0u8; 0]), range: 0..0 });
        }
        if let Some(slice) = self.0.core.borrow().hot_from_offset(offset, len) {
            return Ok(slice);
        }
        let start = self.0.table.start_of(offset);
        let segment_end = start + self.0.config.core.segment_size;
        let len = len.min(usize::try_from(segment_end - offset).unwrap_or(usize::MAX));
        let block = start + (offset - start) / CACHE_BLOCK_BYTES * CACHE_BLOCK_BYTES;
        loop {
            if let Some(slice) = self.0.cache.get(block, offset, len) {
                return Ok(slice);
            }
            if hint.ahead_bytes == 0 {
                return self.exact(start, offset, len).await;
            }
            match self.0.cache.join(block) {
                Join::Follow(follow) => follow.await,
                Join::Lead(mut lead) => {
                    let got = self.extent(&mut lead, start, block, offset, len, hint).await;
                    drop(lead);
                    return match got {
                        // A bad place somewhere in the extent takes no more than the records it lies in.
                        Err(LogError::Io { .. }) => self.exact(start, offset, len).await,
                        other => other,
                    };
                }
            }
        }
    }

    /// Only the range itself, past the cache.
    async fn exact(&self, start: u64, offset: u64, len: usize) -> Result<Slice, LogError> {
        let from = offset - offset % UNIT_BYTES;
        let to = (offset + len as u64).next_multiple_of(UNIT_BYTES);
        let bytes = self.read_segment(start, from, to).await?;
        let at = (offset - from) as usize;
        Ok(Slice { owner: Rc::new(bytes), range: at..at + len })
    }

    /// From the start of the block as far as the hint goes, into the cache.
    async fn extent(
        &self,
        lead: &mut Lead,
        start: u64,
        block: u64,
        offset: u64,
        len: usize,
        hint: ReadHint,
    ) -> Result<Slice, LogError> {
        let segment_end = start + self.0.config.core.segment_size;
        let visible = self.visible();
        let wanted = u64::from(hint.ahead_bytes)
            .clamp(CACHE_BLOCK_BYTES, CACHE_READ_BYTES_MAX)
            .next_multiple_of(CACHE_BLOCK_BYTES);
        let to = (block + wanted).min(self.extent_start(block + 1));
        // What is asked is brought in any case, even a record larger than an extent.
        let end = to.max(offset + len as u64).min(segment_end).min(visible);
        lead.cover(end);
        let mut bytes = self.read_segment(start, block, end.next_multiple_of(UNIT_BYTES)).await?;
        // The last unit may be written again while it is read: only what was visible before is taken.
        bytes.limit((end - block) as usize);
        let owner: Rc<dyn AsRef<[u8]>> = Rc::new(bytes);
        self.0.cache.insert(block, owner.clone());
        let at = (offset - block) as usize;
        Ok(Slice { owner, range: at..at + len })
    }

    /// `[from, to)` of the segment that starts at `start`, both multiples of the unit.
    async fn read_segment(
        &self,
        start: u64,
        from: u64,
        to: u64,
    ) -> Result<super::device::ReadBuf, LogError> {
        let gone = || LogError::OutOfRange {
            offset: from,
            len: (to - from) as usize,
            min: self.min_offset(),
            max: self.visible(),
        };
        let shell = &self.0;
        let segment = shell.table.open(start, &shell.device).await?.ok_or_else(gone)?;
        match shell.device.read(&segment, from - start, (to - from) as usize).await {
            // Retention may shorten the file under a reader.
            Err(LogError::ShortRead { .. }) if !shell.table.contains(start) => Err(gone()),
            other => other,
        }
    }
}
