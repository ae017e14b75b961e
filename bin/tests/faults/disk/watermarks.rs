//! A disk that fills up and is freed again: sends are refused so that a producer goes elsewhere, reads go on, and sends are taken again
//! without anybody touching the broker.

use std::fs;
use std::time::Duration;

use crate::support::image::LoopFs;
use crate::support::wire::{Conn, Reply, code, eventually, send_ext};
use crate::support::{Broker, Options, Target, exclusive, skip, tempdir};

const DISK_BYTES: u64 = 512 << 20;
/// The disk is looked at each 10 s.
const NOTICED: Duration = Duration::from_secs(40);
const SERVICE_NOT_AVAILABLE: i32 = 14;

#[test]
fn a_full_disk_refuses_sends_serves_reads_and_recovers_by_itself() {
    let _alone = exclusive();
    let target = Target::from_env();
    if target.is_stock() {
        return skip("stock's own watermarks differ in time and place");
    }
    let dir = tempdir("full");
    let disk = match LoopFs::create(dir.path(), "disk", DISK_BYTES) {
        Ok(disk) => disk,
        Err(why) => return skip(&format!("a small disk needs root and loop devices: {why}")),
    };
    let options = Options { segment_bytes: 64 << 20, ..Options::default() };
    let broker = Broker::standalone(target, &disk.mount.join("broker"), options);
    broker.create_topic("Full", 1);
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    for n in 0..10 {
        assert_eq!(send(&mut conn, n).code, 0);
    }

    let filler = disk.mount.join("filler");
    fill(&filler);
    let refused = eventually(NOTICED, || {
        let reply = send(&mut conn, 10);
        (reply.code == SERVICE_NOT_AVAILABLE).then_some(reply)
    });
    let refused = refused.expect("a send is refused with 14 once the disk is full");
    let remark = refused.remark.clone().unwrap_or_default();
    assert!(remark.contains("the broker's disk is full"), "{remark}");
    let taken = count(&mut conn);
    assert!(taken >= 10, "reads go on: {taken} messages");

    fs::remove_file(&filler).expect("the filler goes");
    let sent = eventually(NOTICED, || (send(&mut conn, 11).code == 0).then_some(()));
    sent.expect("sends are taken again");
    assert_eq!(count(&mut conn), taken + 1, "nothing that was refused is there");
    drop(broker);
}

/// Takes all but a few hundred kilobytes of the disk.
fn fill(path: &std::path::Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).expect("the filler");
    let chunk = vec![0x55; 256 << 10];
    while file.write_all(&chunk).is_ok() {}
    // Some of it may be only in memory, and is refused now.
    let _ = file.sync_all();
}

fn send(conn: &mut Conn, n: u32) -> Reply {
    let body = format!("message {n}");
    let ext = send_ext("PG", "Full", "0", "", false);
    conn.call(code::SEND_MESSAGE_V2, &ext, body.as_bytes()).expect("an answer")
}

/// How many messages the queue holds, all of which can be pulled.
fn count(conn: &mut Conn) -> i64 {
    let max = conn
        .call(code::GET_MAX_OFFSET, &[("topic", "Full"), ("queueId", "0")], &[])
        .expect("an answer")
        .number("offset");
    let mut offset = 0;
    while offset < max {
        let from = offset.to_string();
        let ext = [
            ("consumerGroup", "CG"),
            ("topic", "Full"),
            ("queueId", "0"),
            ("queueOffset", from.as_str()),
            ("maxMsgNums", "32"),
            ("sysFlag", "4"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "0"),
            ("subscription", "*"),
            ("subVersion", "0"),
        ];
        let reply = conn.call(code::PULL_MESSAGE, &ext, &[]).expect("an answer");
        assert_eq!(reply.code, 0, "{reply:?}");
        offset = reply.number("nextBeginOffset");
    }
    max
}
