//! The client meets each kind of broker: the same scenes, with the answers that each kind gives.

use std::net::SocketAddr;

use ringmq_client::{Client, Result};

use crate::support::{Broker, Options, Target, tempdir};
use crate::{consumers, examples, runtime, scenes};

/// What the scenes of one cluster need.
pub(crate) struct Stage {
    pub(crate) target: Target,
    pub(crate) client: Client,
    /// Broker groups by name, with their masters.
    pub(crate) brokers: Vec<(String, SocketAddr)>,
    pub(crate) cluster: String,
    pub(crate) namesrv: SocketAddr,
}

fn meet(target: Target) {
    let dir = tempdir("client-meets");
    let options = Options {
        shards: 2,
        // Stock asks about an open transaction after this many milliseconds.
        stock: vec!["transactionTimeOut=500".into(), "transactionCheckInterval=500".into()],
        ..Options::default()
    };
    let broker = Broker::standalone(target, &dir.sub("broker"), options);
    let brokers: Vec<(String, SocketAddr)> =
        (0..broker.shards()).map(|k| (broker.shard_name(k), broker.address(k))).collect();
    let done: Result<()> = runtime().block_on(async {
        // A JVM that just started on a busy machine may think for longer than an administrator usually waits.
        let builder = Client::builder().name_server(broker.namesrv.to_string());
        let client = builder.call_timeout(scenes::LONG).build()?;
        let info = client.admin().cluster_info().await?;
        let cluster = info.clusters.keys().next().cloned().expect("a cluster");
        let namesrv = broker.namesrv;
        let stage = Stage { target, client, brokers, cluster, namesrv };
        scenes::administration(&stage).await?;
        scenes::sends(&stage).await?;
        scenes::first_send_makes_the_topic(&stage).await?;
        scenes::transactions(&stage).await?;
        scenes::requests(&stage).await?;
        scenes::connections(&stage).await?;
        consumers::scenes::all(&stage).await?;
        scenes::encryption(&stage, broker.namesrv).await?;
        stage.client.shutdown().await
    });
    done.unwrap();
    examples::run_all(target, broker.namesrv);
}

#[test]
fn a_ringmq_broker() {
    meet(Target::RingMq);
}

#[test]
fn a_stock_4_9_7_broker() {
    meet(Target::Stock497);
}

#[test]
fn a_stock_5_5_0_broker() {
    meet(Target::Stock550);
}
