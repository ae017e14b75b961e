//! Reading messages otherwise than by queue: by physical offset (33) and by key (12).

use std::rc::Rc;

use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{QueryMessageHeader, ViewMessageHeader};
use ringmq_net::record::index_hash;
use ringmq_net::reply::ExtValue;
use ringmq_net::server::Conn;

use super::{Broker, Refusal};

/// Most messages one query by key returns (stock `maxMsgsNumBatch`).
const QUERY_MESSAGES_MAX: usize = 64;
/// The same for a query by unique key (stock `defaultQueryMaxNum`).
const UNIQUE_QUERY_MESSAGES_MAX: usize = 32;
/// Most bytes of records one query returns: well below the frame limit.
const QUERY_BYTES_MAX: usize = 8 << 20;

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
        let hash = index_hash(header.topic, header.key);
        let (begin, end) = (header.begin_timestamp, header.end_timestamp);
        self.answer_slowly(conn, view, async move |broker: Rc<Broker>, answer| {
            let found = match broker.shard.query_index(hash, asked, begin, end).await {
                Ok(found) => found,
                Err(error) => return answer.refuse(&broker.read_refusal(&error)),
            };
            let mut body = Vec::new();
            for offset in &found.physical_offsets {
                let record = match broker.read_record(*offset).await {
                    Ok(Some(record)) => record,
                    Ok(None) => continue,
                    // Less than all there is would look like all there is.
                    Err(error) => return answer.refuse(&broker.read_refusal(&error)),
                };
                if !body.is_empty() && body.len() + record.bytes().len() > QUERY_BYTES_MAX {
                    break;
                }
                body.extend_from_slice(record.bytes());
            }
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
}
