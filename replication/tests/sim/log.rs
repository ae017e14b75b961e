//! A log of small records, and what of it survives.

use crc32c::crc32c;

/// Bytes of a segment: no frame crosses its end, and no record either.
pub(crate) const SEGMENT: u64 = 2_048;
/// Bytes of a record's head: its whole length. 0 fills the rest of a segment.
const HEAD: usize = 2;

/// From physical offset 0 on.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimLog {
    pub(crate) bytes: Vec<u8>,
    /// Survives the process.
    pub(crate) written: u64,
    /// Survives a power loss.
    pub(crate) durable: u64,
}

impl SimLog {
    pub(crate) fn end(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Appends a record of `body`; returns what was appended, filler included.
    pub(crate) fn append(&mut self, body: &[u8]) -> Vec<u8> {
        let from = self.bytes.len();
        let room = SEGMENT - self.end() % SEGMENT;
        let size = HEAD + body.len();
        if (size as u64) > room {
            self.bytes.resize(from + room as usize, 0);
        }
        self.bytes.extend_from_slice(&(size as u16).to_be_bytes());
        self.bytes.extend_from_slice(body);
        self.bytes[from..].to_vec()
    }

    /// The last boundary between records at or before `limit`.
    pub(crate) fn whole(&self, limit: u64) -> u64 {
        let limit = limit.min(self.end());
        let mut at = 0;
        loop {
            let segment_end = at - at % SEGMENT + SEGMENT;
            let rest = &self.bytes[at as usize..];
            let next = match rest.first_chunk::<HEAD>() {
                _ if segment_end - at < HEAD as u64 => segment_end,
                None => return at,
                Some([0, 0]) => segment_end,
                Some(size) => at + u64::from(u16::from_be_bytes(*size)),
            };
            if next > limit {
                return at;
            }
            at = next;
        }
    }

    /// What a start finds of `kept` bytes: whole records alone, all of them durable.
    pub(crate) fn restart(&mut self, kept: u64) {
        let whole = self.whole(kept);
        self.cut(whole);
    }

    pub(crate) fn cut(&mut self, at: u64) {
        self.bytes.truncate(at as usize);
        self.written = at;
        self.durable = at;
    }

    pub(crate) fn crc(&self, offset: u64, len: u32) -> Option<u32> {
        let from = offset.checked_sub(u64::from(len))?;
        self.bytes.get(from as usize..offset as usize).map(crc32c)
    }
}

#[test]
fn records_end_where_they_were_put() {
    let mut log = SimLog::default();
    let mut ends = vec![0];
    for n in 0..100 {
        log.append(&vec![n; 10 + usize::from(n) * 7 % 300]);
        ends.push(log.end());
    }
    for limit in 0..=log.end() {
        let want = ends.iter().copied().filter(|end| *end <= limit).max().unwrap();
        let got = log.whole(limit);
        assert!(got >= want && got <= limit && got - got % SEGMENT <= got, "{limit}: {got} {want}");
        assert!(got == want || got.is_multiple_of(SEGMENT), "{limit}: {got} {want}");
    }
}
