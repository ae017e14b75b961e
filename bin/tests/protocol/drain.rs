//! SIGTERM: served on for a while, then refused so that producers go elsewhere, waiting pulls released, exit 0.

use std::time::{Duration, Instant};

use super::ext::Ext;
use super::fixture::Own;
use super::peer::{Form, Peer};

/// `[drain] serve_ms` of the broker below.
const SERVE: Duration = Duration::from_millis(1_500);

#[test]
fn a_broker_that_is_told_to_stop_serves_on_for_a_while_and_then_sends_clients_elsewhere() {
    let mut own = Own::start("drain", "[drain]\nserve_ms = 1500\n");
    let mut producer = own.place.peer(Form::Json);
    let mut namesrv = Peer::open(own.place.namesrv, Form::Json);
    producer.call(17, &Ext::create_topic("Drain", 1), &[]).ok();
    producer.send("Drain", &[], b"before");
    let mut waiting: Vec<Peer> = (0..3).map(|_| own.place.peer(Form::Binary)).collect();
    for peer in &mut waiting {
        peer.post(
            11,
            0,
            &Ext::pull("G", "Drain", 0, 1_000).waiting(60_000).with("queueOffset", 1),
            &[],
        );
        peer.post(30, 0, &Ext::queue("Drain", 0), &[]);
        assert_eq!(peer.reply().number("offset"), 1);
    }
    let route = Ext::new([("topic", "Drain")]);
    assert_eq!(namesrv.call(105, &route, &[]).code, 0);
    let began = Instant::now();
    own.broker.process().signal(libc::SIGTERM);
    // It leaves the name server first.
    super::fixture::soon("the route to go", || {
        (namesrv.call(105, &route, &[]).code == 17).then_some(())
    });
    let left = began.elapsed();
    assert!(left < SERVE, "the route was there {left:?} after the signal");
    // Sends of clients that have not heard of it yet are taken, and wake who waits.
    producer.send("Drain", &[], b"during");
    assert!(
        began.elapsed() < SERVE,
        "this machine was too slow for this test: {:?}",
        began.elapsed()
    );
    for peer in &mut waiting {
        assert_eq!(peer.reply().code, 0);
        peer.post(11, 0, &Ext::pull("G", "Drain", 0, 2).waiting(60_000), &[]);
    }
    let refused = loop {
        let reply = producer.call(310, &Ext::send("Drain"), b"late");
        if reply.code != 0 {
            break reply;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let served = began.elapsed();
    assert!(served >= SERVE, "refused after {served:?} already");
    assert_eq!(refused.code, 14, "{refused:?}");
    assert!(refused.remark().starts_with("service not available now."), "{refused:?}");
    assert_eq!(refused.ext("TRACE_ON"), Some("true"));
    for peer in &mut waiting {
        let reply = peer.reply_within(Duration::from_secs(5)).expect("released");
        // A send that was taken in between woke it.
        assert!([0, 19].contains(&reply.code), "{reply:?}");
    }
    let status = own.broker.process().wait(Duration::from_secs(10)).expect("the end");
    println!("ended {:?} after the signal", began.elapsed());
    assert_eq!(status.code(), Some(0));
    assert!(!own.broker.shard_dir(0).join("abort").exists());
}
