//! The wall clock is set forward and back by hours while the broker runs, and is behind its store at a start. Nothing is lost and
//! nothing refused; delays, deletion by age and the search by time stay sane.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::judge;
use crate::pair::{self, Pair};
use crate::support::checker::{Checker, Rules, pull};
use crate::support::record::Record;
use crate::support::wire::{Conn, code, eventually, frame, send_ext};
use crate::support::{Broker, Options, Target, exclusive, tempdir};

const HOUR: i64 = 3_600;
const TOPIC: &str = "Late";
/// A delayed message that is due comes within this; none of the delays used here comes near it.
const SOON: Duration = Duration::from_secs(30);
const SEARCH_OFFSET: i32 = 29;
const CONSUMER_LIST: i32 = 38;

/// The broker's wall clock.
struct Clock {
    file: std::fs::File,
    path: PathBuf,
    library: PathBuf,
    shift: i64,
}

impl Clock {
    /// Builds what is preloaded into the broker.
    fn build(dir: &Path) -> Clock {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/overload/clock.c");
        let (library, path) = (dir.join("clock.so"), dir.join("clock"));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .status()
            .expect("a C compiler");
        assert!(built.success(), "{source} does not compile");
        let file = std::fs::File::options().write(true).create(true).truncate(true).open(&path);
        let mut clock = Clock { file: file.expect("a file"), path, library, shift: 0 };
        clock.step(0);
        clock
    }

    fn env(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        vec![
            ("LD_PRELOAD".to_owned(), text(&self.library)),
            ("RINGMQ_TEST_CLOCK".to_owned(), text(&self.path)),
        ]
    }

    /// Sets the clock forward, or back.
    fn step(&mut self, seconds: i64) {
        self.shift += seconds;
        self.file.write_all_at(&self.shift.to_ne_bytes(), 0).expect("the clock's file");
    }
}

/// Delayed messages of one test, and their reader.
struct Late {
    conn: Conn,
    reader: Conn,
    next: i64,
    /// What has arrived.
    arrived: Vec<String>,
    /// What may arrive again: the progress of delivery is saved now and then, and a kill forgets the last of it.
    again: Vec<String>,
}

impl Late {
    fn new(broker: &Broker) -> Late {
        broker.create_topic(TOPIC, 1);
        let open = || Conn::open(broker.address(0)).expect("a connection");
        Late { conn: open(), reader: open(), next: 0, arrived: Vec::new(), again: Vec::new() }
    }

    /// The same after the broker was killed and started again.
    fn after_a_kill(self, broker: &Broker) -> Late {
        Late { next: self.next, again: self.arrived, ..Late::new(broker) }
    }

    fn send(&mut self, level: u32, body: &str) {
        let properties = format!("DELAY\u{1}{level}\u{2}WAIT\u{1}true");
        let ext = send_ext("late", TOPIC, "0", &properties, false);
        let reply = self.conn.call(code::SEND_MESSAGE_V2, &ext, body.as_bytes()).expect("a send");
        assert_eq!(reply.code, 0, "{reply:?}");
    }

    /// The next message that arrives is this one, but for what may arrive again.
    fn arrives(&mut self, body: &str) {
        loop {
            let came = eventually(SOON, || {
                let reply = pull(&mut self.reader, TOPIC, 0, self.next, 1_000).expect("a pull");
                (reply.code == 0).then_some(reply.body)
            });
            let bytes = came.unwrap_or_else(|| panic!("{body} did not come within {SOON:?}"));
            let record = Record::decode(&bytes).expect("a record");
            self.next += 1;
            let got = String::from_utf8_lossy(record.body).into_owned();
            if got == body {
                self.arrived.push(got);
                return;
            }
            let again = self.again.iter().position(|known| *known == got);
            let again = again.unwrap_or_else(|| panic!("{got} came where {body} was to come"));
            self.again.swap_remove(again);
        }
    }

    /// A message of one second takes one, by a clock that nobody sets.
    fn takes_its_second(&mut self, body: &str) {
        let began = Instant::now();
        self.send(1, body);
        self.arrives(body);
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(900), "{body} came after {took:?}");
    }
}

/// What a search by time finds: a place in the queue, whatever the store times are.
fn search_is_sane(broker: &Broker, real_ms: i64) {
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let mut ask = |code, ext: &[(&str, &str)]| {
        let reply = conn.call(code, ext, &[]).expect("an answer");
        assert_eq!(reply.code, 0, "{reply:?}");
        reply.number("offset")
    };
    for queue in 0..pair::QUEUES {
        let queue = queue.to_string();
        let base = [("topic", pair::TOPIC), ("queueId", queue.as_str())];
        let times = [0, real_ms - 2 * HOUR * 1_000, real_ms, real_ms + 2 * HOUR * 1_000, i64::MAX];
        for time in times {
            let text = time.to_string();
            let ext = [base[0], base[1], ("timestamp", text.as_str())];
            let found = ask(SEARCH_OFFSET, &ext);
            // Asked for afterwards: the queue grows.
            let max = ask(code::GET_MAX_OFFSET, &base);
            assert!((0..max.max(1)).contains(&found), "{found} of {max} for the time {time}");
            assert!(time > 0 || found == 0, "{found} is not the first");
        }
    }
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_millis() as i64
}

#[test]
fn a_clock_that_is_set_loses_nothing_and_makes_nothing_late() {
    let _alone = exclusive();
    let dir = tempdir("clock");
    let mut clock = Clock::build(dir.path());
    // Segments that roll, and would all go if an hour passed.
    let options = Options {
        segment_bytes: 1 << 20,
        config: "[limits]\nmessage_bytes = 262144\n\n[retention]\nhours = 1\ndelete_when = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]\n".to_owned(),
        env: clock.env(),
        ..Options::default()
    };
    let mut broker = Broker::standalone(Target::RingMq, &dir.sub("broker"), options);
    let pair = Pair::start(&broker, dir.path(), 300);
    let mut late = Late::new(&broker);
    let mut member = join(&broker);
    // More than one segment, so that there is something to delete.
    judge::await_number(&broker, "commitLogMaxOffset", |n| n > 3 << 20);

    late.takes_its_second("before any step");
    // Forward: what waits is due at once, and no segment is older for it.
    late.send(5, "a minute, set forward");
    clock.step(2 * HOUR);
    let forward = Instant::now();
    late.arrives("a minute, set forward");
    late.takes_its_second("after a step forward");
    age_is_what_has_passed(&mut broker, &pair);
    search_is_sane(&broker, now_ms());
    // Back, and back again: what waits is neither early for it, nor waits for the hour to come round again.
    for step in ["once", "twice"] {
        let body = format!("five seconds, set back {step}");
        let began = Instant::now();
        late.send(2, &body);
        clock.step(-2 * HOUR);
        late.takes_its_second(&format!("after a step back, {step}"));
        late.arrives(&body);
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(4_900), "{body} came after {took:?}");
        pair.await_more(20);
        search_is_sane(&broker, now_ms());
    }
    // A client that was silent for hours by the wall clock was not.
    clock.step(2 * HOUR);
    still_a_member(&mut member, forward);
    let refused = pair.journal.refused_by_kind();
    // 10 is a slow disk's.
    assert!(refused.keys().all(|(code, _)| *code == 10), "sends were refused: {refused:?}");

    // A start with the clock an hour behind the store.
    late.send(2, "five seconds, over a start");
    let journal = std::sync::Arc::clone(&pair.journal);
    pair.judge(&mut broker);
    clock.step(-HOUR);
    broker.start();
    let rules = Rules::of(broker.target, "write");
    Checker::new().check(&broker.addresses(), pair::TOPIC, pair::QUEUES, &journal, rules);
    let mut late = late.after_a_kill(&broker);
    late.arrives("five seconds, over a start");
    late.takes_its_second("after a start behind the store");
    search_is_sane(&broker, now_ms());
    judge::assert_calm_log(&broker.process().log_text(), 500);
}

/// The broker sees the step, says so, and deletes nothing.
fn age_is_what_has_passed(broker: &mut Broker, pair: &Pair) {
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    // Each asks for a look at the segments now.
    let seen = eventually(SOON, || {
        conn.call(code::DELETE_EXPIRED_COMMITLOG, &[], &[]).expect("an answer");
        broker.process().log_text().contains("the clock was set forward").then_some(())
    });
    assert!(seen.is_some(), "the step was not seen");
    for _ in 0..3 {
        conn.call(code::DELETE_EXPIRED_COMMITLOG, &[], &[]).expect("an answer");
        pair.await_more(20);
    }
    assert_eq!(judge::number(broker, "commitLogMinOffset"), 0, "segments were deleted");
}

/// A consumer that sends one heartbeat.
fn join(broker: &Broker) -> Conn {
    let mut conn = Conn::open(broker.address(0)).expect("a connection");
    let body = r#"{"clientID":"10.0.0.1@clock","consumerDataSet":[{"groupName":"clock","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[]}],"producerDataSet":[]}"#;
    conn.write(&frame(code::HEART_BEAT, 1, &[], body.as_bytes())).expect("a heartbeat");
    assert_eq!(conn.read_reply().expect("an answer").code, 0);
    conn
}

/// Registrations are looked at each ten seconds: after one look since the step at `forward` the consumer is still there.
fn still_a_member(member: &mut Conn, forward: Instant) {
    std::thread::sleep(Duration::from_secs(11).saturating_sub(forward.elapsed()));
    let list = member.call(CONSUMER_LIST, &[("consumerGroup", "clock")], &[]);
    let list = list.expect("the connection lives");
    assert_eq!(list.code, 0, "the consumer was thrown out: {list:?}");
}
