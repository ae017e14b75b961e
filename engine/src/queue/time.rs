//! The queue offset for a point in time, as stock 4.9.8 answers it.
//!
//! "Nearest", not "first not before": an exact hit is any one of equal times, else the nearer neighbour, a tie goes to the
//! earlier; before all is the first, after all the *last* message. Stock first picks a file by modification time and then
//! searches that file; the search here goes over the whole queue, so that copied stores answer alike.

use super::QueueError;
use super::core::QueueRef;
use super::store::QueueStore;
use super::unit::Unit;

pub(super) async fn offset_by_time(
    store: &QueueStore,
    queue: &QueueRef,
    timestamp: i64,
    log_min: i64,
    store_time: impl AsyncFn(i64, i32) -> Option<i64>,
) -> Result<i64, QueueError> {
    let first = queue.min_offset();
    let mut low = first;
    let mut high = queue.max_offset() - 1;
    let mut earlier: Option<(i64, i64)> = None;
    let mut later: Option<(i64, i64)> = None;
    while low <= high {
        let middle = low + (high - low) / 2;
        let Some(unit) = unit_at(store, queue, middle).await? else {
            // Trimmed while we searched: what is below is gone.
            low = middle + 1;
            continue;
        };
        if unit.physical_offset < log_min || unit.is_blank() {
            low = middle + 1;
            continue;
        }
        let Some(time) = store_time(unit.physical_offset, unit.size).await else {
            return Ok(0);
        };
        match time.cmp(&timestamp) {
            std::cmp::Ordering::Equal => return Ok(middle),
            std::cmp::Ordering::Greater => {
                high = middle - 1;
                later = Some((middle, time));
            }
            std::cmp::Ordering::Less => {
                low = middle + 1;
                earlier = Some((middle, time));
            }
        }
    }
    Ok(match (earlier, later) {
        (None, None) => first,
        (None, Some((offset, _))) | (Some((offset, _)), None) => offset,
        (Some((before, before_time)), Some((after, after_time))) => {
            if timestamp.abs_diff(before_time) > timestamp.abs_diff(after_time) {
                after
            } else {
                before
            }
        }
    })
}

async fn unit_at(
    store: &QueueStore,
    queue: &QueueRef,
    offset: i64,
) -> Result<Option<Unit>, QueueError> {
    Ok(store.read(queue, offset, 1).await?.first().copied())
}
