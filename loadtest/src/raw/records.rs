//! The body of a pull's answer: records back to back, checked for what the protocol promises of every one of them.

use ringmq_net::record::{self, RecordView};

use crate::tally::Tally;

/// Calls `each` for the records of `body` and returns how many there were. Queue `queue` was asked from `offset` on; when
/// everything in it was asked for (`whole`), queue offsets must follow one another. What is wrong goes to `tally`.
pub fn walk<'a>(
    body: &'a [u8],
    queue: i32,
    offset: u64,
    whole: bool,
    tally: &mut Tally,
    mut each: impl FnMut(&RecordView<'a>),
) -> u64 {
    let (mut rest, mut count, mut expected) = (body, 0, offset as i64);
    while !rest.is_empty() {
        let record = match record::decode(rest) {
            Ok(record) => record,
            Err(error) => {
                // There is no way to find the next one.
                tally
                    .bad_record(|| format!("queue {queue}, near queue offset {expected}: {error}"));
                return count;
            }
        };
        let got = record.queue_offset();
        if record.queue_id() != queue {
            tally.bad_record(|| {
                format!(
                    "queue {queue}, queue offset {got}: record is of queue {}",
                    record.queue_id()
                )
            });
        } else if got < expected || (whole && got > expected) {
            tally.bad_record(|| {
                format!("queue {queue}: queue offset {got} where {expected} was to come")
            });
        }
        each(&record);
        (expected, count) = (got + 1, count + 1);
        rest = rest.get(record.total_size()..).unwrap_or_default();
    }
    count
}

#[cfg(test)]
mod tests {
    use ringmq_net::record::RecordFields;

    use super::*;

    fn record(queue_id: i32, queue_offset: i64) -> Vec<u8> {
        let host = "127.0.0.1:10911".parse().unwrap();
        let fields = RecordFields {
            queue_id,
            flag: 0,
            queue_offset,
            physical_offset: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_timestamp: 0,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            topic: "T",
            properties: b"",
        };
        let mut out = vec![0; fields.encoded_len()];
        fields.encode(&mut out);
        out
    }

    fn check(records: &[Vec<u8>], whole: bool) -> (u64, u64) {
        let mut tally = Tally::default();
        let count = walk(&records.concat(), 3, 10, whole, &mut tally, |_| {});
        (count, tally.bad_records)
    }

    #[test]
    fn wrong_queues_gaps_repetitions_and_cut_records_are_noticed() {
        let good = [record(3, 10), record(3, 11), record(3, 12)];
        assert_eq!(check(&good, true), (3, 0));
        assert_eq!(check(&[record(3, 10), record(2, 11)], true), (2, 1));
        assert_eq!(check(&[record(3, 10), record(3, 12)], true), (2, 1));
        assert_eq!(check(&[record(3, 10), record(3, 12)], false), (2, 0));
        assert_eq!(check(&[record(3, 10), record(3, 10)], false), (2, 1));
        assert_eq!(check(&[record(3, 9)], false), (1, 1));
        let cut = record(3, 11)[..50].to_vec();
        assert_eq!(check(&[record(3, 10), cut], true), (1, 1));
    }
}
