//! Messages for later, when the log's writes hang: what is only in memory is neither acknowledged nor taken for delivered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::journal::{Identity, body, properties};
use crate::support::later::DELAYS_CONFIG;
use crate::support::wire::{Conn, Reply, code, eventually, send_ext};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const TOPIC: &str = "Later";
/// What has to come comes within this.
const SOON: Duration = Duration::from_secs(30);
const GET_BROKER_RUNTIME_INFO: i32 = 28;

/// A broker whose log hangs while the file is there.
fn broker(dir: &Path) -> (Broker, PathBuf) {
    let hang = dir.join("hang");
    let options = Options {
        config: DELAYS_CONFIG.to_owned(),
        faults: format!("delay:LogWrite:ms=60000:when={}", hang.display()),
        ..Options::default()
    };
    let broker = Broker::standalone(Target::RingMq, &dir.join("broker"), options);
    broker.create_topic(TOPIC, 1);
    (broker, hang)
}

/// A send of level `delay`, or an ordinary one, that is acknowledged.
fn send(conn: &mut Conn, delay: Option<u32>) -> Reply {
    let id = Identity { conn: 0, seq: 0 };
    let delay = delay.map_or(String::new(), |level| format!("\u{2}DELAY\u{1}{level}"));
    let text = format!("{}\u{2}WAIT\u{1}true{delay}", properties(id));
    let ext = send_ext("later", TOPIC, "0", &text, false);
    let reply = conn.call(code::SEND_MESSAGE_V2, &ext, &body(id)).expect("an answer");
    assert_eq!(reply.code, 0, "{reply:?}");
    reply
}

fn max_offset(conn: &mut Conn) -> i64 {
    let ext = [("topic", TOPIC), ("queueId", "0")];
    conn.call(code::GET_MAX_OFFSET, &ext, &[]).expect("an answer").number("offset")
}

#[test]
fn the_progress_of_delivery_is_not_saved_ahead_of_the_log() {
    if Target::from_env().is_stock() {
        return;
    }
    let _alone = exclusive();
    let dir = tempdir("delivery");
    let (mut broker, hang) = broker(dir.path());
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    send(&mut conn, Some(1));
    std::fs::write(&hang, "").expect("the file that makes the log hang");
    // Delivered in memory: the progress is there, the message is not.
    let delivered = eventually(SOON, || {
        let reply = conn.call(GET_BROKER_RUNTIME_INFO, &[], &[]).expect("an answer");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        text.contains("\"scheduleMessageOffset_1\":\"1,1\"").then_some(())
    });
    assert!(delivered.is_some(), "not delivered within {SOON:?}");
    assert_eq!(max_offset(&mut conn), 0);
    // A stop saves all that there is to save, or says that it cannot. What is not written by then never will be.
    let file = broker.store_dir().join("config/delayOffset.json");
    let before = std::fs::read(&file).unwrap_or_default();
    broker.process().signal(libc::SIGTERM);
    let process = broker.process();
    let done = eventually(SOON, || {
        let says = process.log_text().contains("saving the progress of delayed delivery");
        (says || std::fs::read(&file).unwrap_or_default() != before).then_some(())
    });
    assert!(done.is_some(), "the stopping broker does not come to the progress within {SOON:?}");
    broker.sigkill();
    std::fs::remove_file(&hang).expect("ending the hang");
    broker.start();
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let there = eventually(SOON, || (max_offset(&mut conn) == 1).then_some(()));
    assert!(there.is_some(), "the delayed message is lost");
}

#[test]
fn a_message_sent_back_is_acknowledged_at_the_level_of_a_send() {
    if Target::from_env().is_stock() {
        return;
    }
    let _alone = exclusive();
    let dir = tempdir("sent-back");
    let (broker, hang) = broker(dir.path());
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let sent = send(&mut conn, None);
    let id = sent.ext("msgId").expect("a message id");
    let offset = i64::from_str_radix(&id[16..], 16).expect("an offset").to_string();
    std::fs::write(&hang, "").expect("the file that makes the log hang");
    for delay in ["1", "-1"] {
        let ext = [
            ("group", "group"),
            ("offset", offset.as_str()),
            ("delayLevel", delay),
            ("originMsgId", ""),
            ("originTopic", TOPIC),
            ("unitMode", "false"),
        ];
        let reply = conn.call(code::CONSUMER_SEND_MSG_BACK, &ext, &[]).expect("an answer");
        assert_eq!((reply.code, reply.remark.as_deref()), (1, Some("FLUSH_DISK_TIMEOUT")));
    }
}
