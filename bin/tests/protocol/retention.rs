//! What clients see of queues whose oldest messages are gone.

use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

use super::ext::Ext;
use super::fixture::{Own, soon};
use super::peer::Form;
use crate::support::Options;

/// Segments of the store below, so small that a test fills some.
const SEGMENT: u64 = 1 << 20;

/// Fills the log until a few segments lie behind its end, and lets all but the last seem four days old.
fn age(own: &mut Own) {
    let mut peer = own.place.peer(Form::Json);
    let body = vec![b'f'; 100_000];
    for _ in 0..40 {
        // So small a segment may be full before the next one is ready: then the broker is busy for a moment.
        soon("room for a message", || {
            (peer.call(310, &Ext::send("Filler"), &body).code == 0).then_some(())
        });
    }
    // How old a segment is, the broker learns at its start.
    own.broker.sigkill();
    let dir = own.broker.shard_dir(0).join("commitlog");
    let mut segments: Vec<_> = std::fs::read_dir(&dir)
        .expect("the log")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    segments.sort();
    let old = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(4 * 86_400));
    for segment in &segments[..segments.len() - 2] {
        File::options()
            .write(true)
            .open(segment)
            .and_then(|f| f.set_times(old))
            .expect("a segment");
    }
    own.broker.start();
    own.place.peer(Form::Json).call(329, &Ext::none(), &[]).ok();
}

#[test]
fn a_queue_whose_messages_are_all_gone_is_empty_and_goes_on_where_it_was() {
    let options = Options {
        segment_bytes: SEGMENT,
        config: "[limits]\nmessage_bytes = 262144\n".to_owned(),
        ..Options::default()
    };
    let mut own = Own::start_with("expired", options);
    let mut peer = own.place.peer(Form::Json);
    for _ in 0..7 {
        peer.send("Quiet", &[], b"old");
    }
    age(&mut own);
    let mut peer = own.place.peer(Form::Json);
    soon("the oldest segments to go", || (peer.min_offset("Quiet", 0) > 0).then_some(()));
    for restarted in [false, true] {
        assert_eq!((peer.min_offset("Quiet", 0), peer.max_offset("Quiet", 0)), (7, 7));
        let (min, max) = (peer.min_offset("Filler", 0), peer.max_offset("Filler", 0));
        assert!(0 < min && min <= max, "{min} {max}");
        let mut pull = |topic: &str, offset: i64| {
            let reply = peer.call(11, &Ext::pull("Slow", topic, 0, offset), &[]);
            (reply.code, reply.number("nextBeginOffset"))
        };
        // Below the beginning: go there. Beyond the end: go there. Nobody asks for the same for ever.
        assert_eq!(pull("Quiet", 3), (21, 7), "restarted: {restarted}");
        assert_eq!(pull("Quiet", 7), (19, 7));
        assert_eq!(pull("Quiet", 1_007), (21, 7));
        assert_eq!(pull("Filler", min - 1), (21, min));
        assert_eq!(pull("Filler", max + 1_000), (21, max));
        // A group without progress is not sent to 0, where nothing is: its own rule decides.
        assert_eq!(peer.committed("New", "Quiet", 0), None);
        let ext = Ext::queue("Quiet", 0);
        assert_eq!(peer.call(32, &ext, &[]).ok().number("timestamp"), -1);
        let ext = ext.with("timestamp", 0);
        let at = peer.call(29, &ext, &[]).ok().number("offset");
        assert!((0..=7).contains(&at), "{at}");
        // Asked to, the broker looks for files of queues that are of no more use; a queue does not begin anew for it.
        peer.call(306, &Ext::none(), &[]).ok();
        if !restarted {
            own.broker.sigkill();
            own.broker.start();
            peer = own.place.peer(Form::Json);
        }
    }
    assert_eq!(peer.send("Quiet", &[], b"new").number("queueOffset"), 7);
    assert_eq!(peer.pull("Quiet", 0, 7)[0].text(), "new");
}
