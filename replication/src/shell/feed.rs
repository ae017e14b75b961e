//! What one slave is sent of the log: from blocks in memory, else by large reads, each under way while the former one is sent.

use glommio::task::JoinHandle;
use ringmq_engine::log::{Log, LogError, Slice};

/// Bytes of one read. Frames are cut from it, however small they have to be.
const READ_BYTES: usize = 1 << 20;

type Reading = JoinHandle<Result<Option<Slice>, LogError>>;

/// The slice that is being sent, and the one behind it.
#[derive(Default)]
pub(super) struct Feed {
    here: Option<(u64, Slice)>,
    next: Option<(u64, Reading)>,
}

impl Feed {
    /// The bytes from `from` on: at least one, at most `max`, never across a segment's end; `None` at the end of what is visible. They are
    /// asked for in order, after it was seen that `from` was not deleted.
    ///
    /// # Errors
    /// As [`Log::stream`].
    pub(super) async fn take(
        &mut self,
        log: &Log,
        from: u64,
        max: usize,
    ) -> Result<Option<Slice>, LogError> {
        if let Some(recent) = log.hot_from(from, max) {
            // It keeps up: no memory is held for it.
            *self = Feed::default();
            return Ok(Some(recent));
        }
        if let Some(part) = self.part(from, max) {
            return Ok(Some(part));
        }
        let ordered = self.next.take().filter(|(at, _)| *at == from);
        let read = match ordered {
            Some((_, reading)) => reading.await,
            None => None,
        };
        // A read ahead that failed is tried again, and so is one whose task is gone.
        self.here = match read {
            Some(Ok(Some(slice))) => Some((from, slice)),
            _ => log.stream(from, READ_BYTES).await?.map(|slice| (from, slice)),
        };
        self.read_on(log);
        Ok(self.part(from, max))
    }

    /// What is at hand from `from` on.
    fn part(&self, from: u64, max: usize) -> Option<Slice> {
        let (start, slice) = self.here.as_ref()?;
        let skip = usize::try_from(from.checked_sub(*start)?).ok()?;
        let left = slice.bytes().len().checked_sub(skip).filter(|left| *left > 0)?;
        let begin = slice.range.start + skip;
        Some(Slice { owner: slice.owner.clone(), range: begin..begin + left.min(max) })
    }

    /// Reads what comes behind the slice at hand, unless that is in memory.
    fn read_on(&mut self, log: &Log) {
        let Some((start, slice)) = &self.here else { return };
        let at = start + slice.bytes().len() as u64;
        if at >= log.visible() || log.hot_from(at, 1).is_some() {
            return;
        }
        let log = log.clone();
        let reading = glommio::spawn_local(async move { log.stream(at, READ_BYTES).await });
        self.next = Some((at, reading.detach()));
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn frames_of_any_size_are_cut_from_one_read_in_order_and_nothing_beyond_it() {
        let log: Vec<u8> = (0..1_000u32).map(|n| (n % 251) as u8).collect();
        let slice = Slice { owner: Rc::new(log.clone()), range: 200..900 };
        let feed = Feed { here: Some((5_000, slice)), next: None };
        for max in [1, 7, 64, 699, 700, 10_000] {
            let (mut at, mut sent) = (5_000, Vec::new());
            while let Some(part) = feed.part(at, max) {
                assert!((1..=max).contains(&part.bytes().len()));
                sent.extend_from_slice(part.bytes());
                at += part.bytes().len() as u64;
            }
            assert_eq!((at, &sent[..]), (5_700, &log[200..900]), "frames of {max}");
        }
        assert!(feed.part(4_999, 10).is_none() && feed.part(5_701, 10).is_none());
        assert!(Feed::default().part(0, 10).is_none());
    }
}
