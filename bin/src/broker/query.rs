//! Reading messages otherwise than by queue: by physical offset (33) and by key (12).

use std::rc::Rc;

use ringmq_engine::log::Slice;
use ringmq_engine::shard::IndexFound;
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{QueryMessageHeader, ViewMessageHeader};
use ringmq_net::record::{Properties, decode, index_hash, name as property};
use ringmq_net::reply::ExtValue;
use ringmq_net::server::Conn;

use super::{Broker, Refusal};

/// Most messages one query by key returns (stock `maxMsgsNumBatch`).
const QUERY_MESSAGES_MAX: usize = 64;
/// The same for a query by unique key (stock `defaultQueryMaxNum`).
const UNIQUE_QUERY_MESSAGES_MAX: usize = 32;
/// Most bytes of records one query returns: well below the frame limit.
const QUERY_BYTES_MAX: usize = 8 << 20;
/// Index entries that are looked at, and at most: others may have the hash of the key.
const CANDIDATES: usize = 128;
const CANDIDATES_MAX: usize = 128 << 8;
/// An index entry's time is rounded down by less than this, milliseconds.
const INDEX_MS: i64 = 1_000;

impl Broker {
    pub(super) fn view_message(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let offset = ViewMessageHeader::decode(view)?.offset;
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            match broker.read_record(offset).await {
                Ok(Some(record)) => answer.record(&record),
                Ok(None) => answer.refuse(&Refusal::new(
                    response::SYSTEM_ERROR,
                    format!("can not find message by the offset, {offset}"),
                )),
                Err(error) => answer.refuse(&broker.read_refusal(&error)),
            }
        })
    }

    pub(super) fn query_message(
        self: &Rc<Self>,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        let header = QueryMessageHeader::decode(view)?;
        let asked = if header.unique_key {
            UNIQUE_QUERY_MESSAGES_MAX
        } else {
            usize::try_from(header.max_num).unwrap_or(0).min(QUERY_MESSAGES_MAX)
        };
        // Ids are made from the client's clock, and tools ask from the time in them on: by the broker's clock it may still be to come.
        let window = if header.unique_key {
            (i64::MIN, i64::MAX)
        } else {
            (header.begin_timestamp, header.end_timestamp)
        };
        let wanted = Wanted { topic: header.topic.to_owned(), key: header.key.to_owned(), window };
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let (found, body) = match broker.find_by_key(&wanted, asked).await {
                Ok(found) => found,
                Err(refusal) => return answer.refuse(&refusal),
            };
            let ext = |time, offset| {
                [
                    ("indexLastUpdateTimestamp", ExtValue::I64(time)),
                    ("indexLastUpdatePhyoffset", ExtValue::I64(offset)),
                ]
            };
            if body.is_empty() {
                let refusal = Refusal::new(
                    response::QUERY_NOT_FOUND,
                    "can not find message, maybe time range not correct",
                );
                answer.refuse_with(&refusal, &ext(0, 0));
            } else {
                let ext = ext(found.last_update_timestamp, found.last_update_physical_offset);
                answer.ext_and_body(&ext, &body);
            }
        })
    }

    /// The records that have the key, at most `asked` of the newest, oldest first. The index knows hashes and whole seconds, so that
    /// what it names is looked at.
    async fn find_by_key(
        &self,
        wanted: &Wanted,
        asked: usize,
    ) -> Result<(IndexFound, Vec<u8>), Refusal> {
        let hash = index_hash(&wanted.topic, &wanted.key);
        let (begin, end) = wanted.window;
        let mut candidates = CANDIDATES;
        loop {
            let begin = begin.saturating_sub(INDEX_MS);
            let found = self.shard.query_index(hash, candidates, begin, end).await;
            let found = found.map_err(|error| self.read_refusal(&error))?;
            let (records, full) = self.matching(&found.physical_offsets, wanted, asked).await?;
            if full || found.physical_offsets.len() < candidates || candidates >= CANDIDATES_MAX {
                let body = records.iter().rev().flat_map(|record| record.bytes()).copied();
                return Ok((found, body.collect()));
            }
            candidates *= 16;
        }
    }

    /// Those of the records that are wanted, newest first; and whether no more would fit.
    async fn matching(
        &self,
        offsets: &[i64],
        wanted: &Wanted,
        asked: usize,
    ) -> Result<(Vec<Slice>, bool), Refusal> {
        let mut records: Vec<Slice> = Vec::new();
        let mut bytes = 0;
        for offset in offsets.iter().rev() {
            if records.len() >= asked {
                return Ok((records, true));
            }
            // Less than all there is would look like all there is.
            let record = self.read_record(*offset).await;
            let record = record.map_err(|error| self.read_refusal(&error))?;
            let Some(record) = record else { continue };
            if !wanted.is(record.bytes()) {
                continue;
            }
            bytes += record.bytes().len();
            if bytes > QUERY_BYTES_MAX && !records.is_empty() {
                return Ok((records, true));
            }
            records.push(record);
        }
        let full = records.len() >= asked;
        Ok((records, full))
    }
}

/// What a query by key is for.
struct Wanted {
    topic: String,
    key: String,
    /// First and last store time, milliseconds since 1970.
    window: (i64, i64),
}

impl Wanted {
    fn is(&self, record: &[u8]) -> bool {
        let Ok(record) = decode(record) else { return false };
        let (begin, end) = self.window;
        if record.topic() != self.topic || !(begin..=end).contains(&record.store_timestamp()) {
            return false;
        }
        let Ok(text) = std::str::from_utf8(record.properties()) else { return false };
        // All entries of a name, also those that a later one hides: a batch's key stands behind its messages' own.
        Properties::new(text).iter().any(|(name, value)| match name {
            property::KEYS => value.split(' ').any(|key| key == self.key),
            property::UNIQ_KEY => value == self.key,
            _ => false,
        })
    }
}
