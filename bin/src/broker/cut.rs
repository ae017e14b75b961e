//! What a broker does after its log was cut below its end: progress on messages that are gone goes back, and then the cut is settled.

use std::path::PathBuf;
use std::time::Duration;

use ringmq_engine::shard::Shard;
use ringmq_engine::state::offsets::{OffsetOutside, OffsetTable};
use ringmq_engine::state::saver::ConfigSaver;
use ringmq_engine::store::CutDone;

use super::files::Paths;
use super::untold::Untold;

/// How long the files of progress may take.
const SAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A cut, as it is told to those who ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CutNote {
    /// Where the log was cut.
    pub(super) at: u64,
    /// Bytes that were beyond.
    bytes: u64,
    /// Where they are.
    saved: PathBuf,
}

impl std::fmt::Display for CutNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at={} bytes={} kept={}", self.at, self.bytes, self.saved.display())
    }
}

/// Finishes a cut. Nothing is appended before: until it is settled, each start cuts again. Blocks briefly; nothing is served yet.
///
/// # Errors
/// One line.
pub(super) async fn finish_cut(
    name: &str,
    cut: &CutDone,
    (offsets, untold): (&mut OffsetTable, &Untold),
    shard: &Shard,
    saver: &ConfigSaver,
    paths: &Paths,
) -> Result<CutNote, String> {
    tracing::warn!(
        broker = name,
        at = cut.at,
        bytes = cut.bytes,
        removed_segments = cut.removed_segments,
        saved = %cut.saved.display(),
        "the log was cut where it parts from its master's, and what lay beyond is kept: remove the file once nobody needs it"
    );
    for moved in clamp(offsets, shard) {
        tracing::warn!(
            group = moved.group,
            topic = moved.topic,
            queue = moved.queue_id,
            stored = moved.offset,
            used = moved.max,
            "a consumer offset lay behind the cut and was moved to its queue's end"
        );
    }
    // Of these some may be to be told. Saved first: this file is never older than the offsets.
    clamp(&mut untold.table(), shard);
    untold.save_now(saver);
    saver.flush(SAVE_TIMEOUT).map_err(|error| error.to_string())?;
    if offsets.take_dirty() {
        saver.save(&paths.offsets, offsets.to_file());
        saver.flush(SAVE_TIMEOUT).map_err(|error| error.to_string())?;
    }
    shard.settle_cut().await.map_err(|error| error.to_string())?;
    Ok(CutNote { at: cut.at, bytes: cut.bytes, saved: cut.saved.clone() })
}

/// Progress beyond a queue's end would pass by what comes there: it goes back to the end. What lies below a queue's beginning is left to
/// the consumer. Gives what was moved.
fn clamp(offsets: &mut OffsetTable, shard: &Shard) -> Vec<OffsetOutside> {
    let beyond = offsets.audit(|topic, id| {
        let queue = shard.existing_queue(topic, id);
        Some((i64::MIN, queue.map_or(0, |queue| queue.max_offset())))
    });
    for beyond in &beyond {
        let (group, topic) = (&beyond.group, &beyond.topic);
        if let Err(error) = offsets.commit(group, topic, beyond.queue_id, beyond.max) {
            tracing::error!("consumer offsets: {error}");
        }
    }
    beyond
}
