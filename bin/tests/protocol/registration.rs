//! What name servers hear of a broker: at once after their own restart, under the address that was configured, in few registrations however
//! many topics come, and although another name server hangs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::ext::Ext;
use super::fixture::{Own, Place, soon};
use super::peer::Form;
use crate::support::broker::NameServer;
use crate::support::wire::{Conn, code};
use crate::support::{Broker, Options, Target, ports, tempdir};

fn route(namesrv: SocketAddr, topic: &str) -> Option<serde_json::Value> {
    // A name server that starts tries its port first: a connection at that moment ends.
    let mut conn = Conn::open(namesrv).ok()?;
    let reply = conn.call(code::GET_ROUTE_BY_TOPIC, &[("topic", topic)], &[]).ok()?;
    (reply.code == 0).then(|| serde_json::from_slice(&reply.body).expect("a route in JSON"))
}

#[test]
fn a_restarted_name_server_has_every_route_again_at_once_and_never_half_of_one() {
    let dir = tempdir("ns-restart");
    let mut namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let options = Options { shards: 2, ..Options::default() };
    let broker = Broker::joined(Target::RingMq, &dir.sub("broker"), options, namesrv.address);
    broker.create_topic("Kept", 3);
    namesrv.process.kill();
    let again = NameServer::start_at(Target::RingMq, &dir.sub("namesrv"), namesrv.address.port());
    let began = std::time::Instant::now();
    soon("the whole route", || {
        let route = route(again.address, "Kept")?;
        for queues in route["queueDatas"].as_array().expect("a list") {
            assert_eq!(
                (&queues["readQueueNums"], &queues["writeQueueNums"]),
                (&3.into(), &3.into())
            );
        }
        for data in route["brokerDatas"].as_array().expect("a list") {
            assert!(data["brokerAddrs"]["0"].as_str().is_some_and(|addr| addr.contains(':')));
        }
        (route["queueDatas"].as_array().expect("a list").len() == 2).then_some(())
    });
    println!("whole {:?} after the name server's start", began.elapsed());
}

/// Something that takes connections and never says anything.
fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

#[test]
fn a_name_server_that_hangs_does_not_keep_a_broker_from_the_others() {
    let dir = tempdir("ns-hangs");
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let (_listener, hangs) = silent();
    let nowhere = format!("127.0.0.1:{}", ports::single());
    // Behind one that hangs and one that is not there.
    let options = Options { more_namesrvs: vec![hangs.to_string(), nowhere], ..Options::default() };
    let broker = Broker::joined(Target::RingMq, &dir.sub("broker"), options, namesrv.address);
    let mut peer = Place::of(&broker, 0).peer(Form::Json);
    let began = std::time::Instant::now();
    peer.call(17, &Ext::create_topic("Heard", 1), &[]).ok();
    soon("the new topic's route", || route(namesrv.address, "Heard"));
    println!("heard of {:?} after it was asked for", began.elapsed());
}

/// A name server that takes its time and counts.
fn counting(delay: Duration) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (listener, address) = silent();
    let (count, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, heard) = (Arc::clone(&count), Arc::clone(&bytes));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let (counted, heard) = (Arc::clone(&counted), Arc::clone(&heard));
            std::thread::spawn(move || drop(count_frames(stream, delay, &counted, &heard)));
        }
    });
    (address, count, bytes)
}

fn count_frames(
    mut stream: TcpStream,
    delay: Duration,
    count: &AtomicUsize,
    bytes: &AtomicUsize,
) -> std::io::Result<()> {
    loop {
        let mut word = [0; 4];
        stream.read_exact(&mut word)?;
        let mut frame = vec![0; u32::from_be_bytes(word) as usize];
        stream.read_exact(&mut frame)?;
        let header =
            (u32::from_be_bytes(frame[..4].try_into().expect("four bytes")) & 0xFF_FFFF) as usize;
        let header: serde_json::Value =
            serde_json::from_slice(&frame[4..4 + header]).expect("a header");
        if header["code"] == 103 {
            count.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(frame.len(), Ordering::Relaxed);
        }
        std::thread::sleep(delay);
        let reply = format!(
            r#"{{"code":0,"flag":1,"language":"JAVA","opaque":{},"version":409,"extFields":{{}}}}"#,
            header["opaque"]
        );
        stream.write_all(&(reply.len() as u32 + 4).to_be_bytes())?;
        stream.write_all(&(reply.len() as u32).to_be_bytes())?;
        stream.write_all(reply.as_bytes())?;
    }
}

#[test]
fn topics_that_come_together_are_told_together() {
    const TOPICS: usize = 400;
    let dir = tempdir("coalesce");
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let (slow, count, bytes) = counting(Duration::from_millis(100));
    let options = Options { more_namesrvs: vec![slow.to_string()], ..Options::default() };
    let broker = Broker::joined(Target::RingMq, &dir.sub("broker"), options, namesrv.address);
    let mut peer = Place::of(&broker, 0).peer(Form::Json);
    let before = count.load(Ordering::Relaxed);
    // Each group's first heartbeat makes a retry topic.
    let groups: Vec<String> = (0..TOPICS)
        .map(|n| format!(r#"{{"groupName":"Group{n}","subscriptionDataSet":[]}}"#))
        .collect();
    for groups in groups.chunks(20) {
        let beat = format!(
            r#"{{"clientID":"c","consumerDataSet":[{}],"producerDataSet":[]}}"#,
            groups.join(",")
        );
        peer.post(34, 0, &Ext::none(), beat.as_bytes());
    }
    for _ in groups.chunks(20) {
        peer.reply().ok();
    }
    soon("the last retry topic's route", || {
        route(namesrv.address, &format!("%RETRY%Group{}", TOPICS - 1))
    });
    // What the slow one hears comes one after the other, each a tenth of a second: whatever came meanwhile goes with the next.
    std::thread::sleep(Duration::from_millis(500));
    let (count, bytes) = (count.load(Ordering::Relaxed) - before, bytes.load(Ordering::Relaxed));
    println!("{count} registrations, {bytes} bytes");
    assert!((1..=TOPICS / 10).contains(&count), "{count} registrations for {TOPICS} topics");
}

#[test]
fn clients_are_told_the_name_and_the_port_that_were_configured() {
    let port = ports::single();
    let options = Options {
        args: ["--advertise".to_owned(), format!("localhost:{port}")].to_vec(),
        ..Options::default()
    };
    let mut own = Own::start_with("by-name", options);
    let told = format!("localhost:{port}");
    let mut peer = own.place.peer(Form::Json);
    peer.call(17, &Ext::create_topic("Named", 1), &[]).ok();
    let route = route(own.place.namesrv, "Named").expect("the route");
    assert_eq!(route["brokerDatas"][0]["brokerAddrs"]["0"], told);
    // A message id holds an address in any case.
    let reply = peer.send("Named", &[], b"x");
    assert!(reply.ext("msgId").expect("an id").starts_with("7F000001"));
    let log = own.broker.process().log_text();
    assert!(log.contains(&told), "the log does not name {told}");
}

#[test]
fn a_broker_under_a_new_name_takes_its_old_name_out_of_the_routes() {
    let dir = tempdir("renamed");
    let namesrv = NameServer::start(Target::RingMq, &dir.sub("namesrv"));
    let options = Options::default();
    let mut broker = Broker::joined(Target::RingMq, &dir.sub("broker"), options, namesrv.address);
    let names = |route: &serde_json::Value| {
        let datas = route["brokerDatas"].as_array().expect("a list").iter();
        datas.map(|data| data["brokerName"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    broker.create_topic("Renamed", 1);
    assert_eq!(names(&route(namesrv.address, "Renamed").expect("the route")), ["broker-a"]);
    // Killed: nobody says goodbye for the old name.
    broker.sigkill();
    broker.options.name = "broker-b".to_owned();
    broker.start();
    soon("the new name alone in the route", || {
        (names(&route(namesrv.address, "Renamed")?) == ["broker-b"]).then_some(())
    });
}
