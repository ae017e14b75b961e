//! What brokers ask, and what administrators ask about brokers.

use std::hash::Hasher;

use ringmq_net::body::{Body, DataVersion, KvTable as KvBody, RegisterBroker, body_crc32};
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{
    BrokerNameHeader, QueryDataVersionHeader, RegisterBrokerHeader, UnregisterBrokerHeader,
};

use super::answer::{Answer, Reply};
use super::kv::ORDER_TOPIC_CONFIG;
use super::service::NameService;
use super::table::{Queues, Registration};
use super::{WIPED_FILE, wiped};

impl NameService {
    /// REGISTER_BROKER (103).
    pub(super) fn register_broker(
        &self,
        conn: u64,
        header: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<Reply, Answer> {
        let fields = RegisterBrokerHeader::decode(header)?;
        if fields.body_crc32 != 0 && fields.body_crc32 != body_crc32(body) {
            return Err(Answer::error(response::SYSTEM_ERROR, "crc32 not match"));
        }
        let mut reg = Registration {
            cluster: fields.cluster_name,
            name: fields.broker_name,
            addr: fields.broker_addr,
            id: fields.broker_id,
            ha_addr: fields.ha_server_addr,
            version: DataVersion::default(),
            conn,
            mark: mark(header.version(), body),
        };
        let now_ms = self.now_ms();
        let mut table = self.table.borrow_mut();
        if let Some(other) = table.other_cluster(&reg) {
            let remark = format!(
                "broker name {} is taken in cluster {other}: give the brokers of cluster {} names of their own",
                reg.name, reg.cluster
            );
            tracing::error!(addr = reg.addr, "a registration is refused: {remark}");
            return Err(Answer::error(response::SYSTEM_ERROR, remark));
        }
        // Brokers register the same table every 30 s; reading a large one again would hold the reactor for nothing.
        let master = if table.is_repeated(&reg) {
            table.touch(&reg, now_ms)
        } else {
            let body = RegisterBroker::decode(header.version(), fields.compressed, body)?;
            reg.version = body.topics.data_version;
            if let Some(other) = table.displaced(&reg) {
                tracing::warn!(
                    name = reg.name,
                    id = reg.id,
                    addr = reg.addr,
                    other,
                    "a broker takes the place of another one in the routes: if both run, give them different names or ids"
                );
            }
            if table.live(reg.addr).is_none() {
                tracing::info!(
                    cluster = reg.cluster,
                    name = reg.name,
                    id = reg.id,
                    addr = reg.addr,
                    topics = body.topics.topics.len(),
                    "a broker registered"
                );
            }
            let topics = body.topics.topics.iter().map(|topic| {
                let queues = Queues {
                    read: topic.read_queue_nums,
                    write: topic.write_queue_nums,
                    perm: topic.perm,
                    sys_flag: topic.topic_sys_flag,
                };
                (topic.topic_name.as_str(), queues)
            });
            table.register(&reg, topics, body.filter_servers, now_ms)?
        };
        let mut answer = Answer::ok();
        // Absent rather than empty: a Java slave would try to connect to an empty address.
        if let Some(ha_addr) = master.ha_addr.filter(|addr| !addr.is_empty()) {
            answer = answer.with_ext("haServerAddr", ha_addr);
        }
        if let Some(master_addr) = master.master_addr {
            answer = answer.with_ext("masterAddr", master_addr);
        }
        if let Some(pairs) = self.kv.borrow().namespace(ORDER_TOPIC_CONFIG) {
            answer.body = KvBody { table: pairs.clone() }.to_json();
        }
        Ok(answer.into())
    }

    /// UNREGISTER_BROKER (104).
    pub(super) fn unregister_broker(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = UnregisterBrokerHeader::decode(header)?;
        tracing::info!(name = fields.broker_name, addr = fields.broker_addr, "a broker left");
        self.table.borrow_mut().unregister(fields.broker_name, fields.broker_addr);
        Ok(Answer::ok().into())
    }

    /// QUERY_DATA_VERSION (322).
    pub(super) fn query_data_version(
        &self,
        header: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<Reply, Answer> {
        let fields = QueryDataVersionHeader::decode(header)?;
        let sent =
            if body.is_empty() { DataVersion::default() } else { DataVersion::from_json(body)? };
        let now_ms = self.now_ms();
        let (changed, stored) =
            self.table.borrow_mut().query_version(fields.broker_addr, sent, now_ms);
        let body = stored.map(|version| version.to_json()).unwrap_or_default();
        Ok(Answer::body(body).with_ext("changed", changed).into())
    }

    /// WIPE_WRITE_PERM_OF_BROKER (205): answered when it will outlive a restart.
    pub(super) fn wipe_write_perm(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let name = BrokerNameHeader::decode(header)?.broker_name;
        let count = self.table.borrow_mut().wipe_write(name)?;
        tracing::info!(
            name,
            topics = count,
            "write permission of a broker wiped until it is given back"
        );
        Ok(self.save_wiped(Answer::ok().with_ext("wipeTopicCount", count)))
    }

    /// ADD_WRITE_PERM_OF_BROKER (327).
    pub(super) fn add_write_perm(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let name = BrokerNameHeader::decode(header)?.broker_name;
        let count = self.table.borrow_mut().add_write(name);
        tracing::info!(name, topics = count, "write permission of a broker given back");
        Ok(self.save_wiped(Answer::ok().with_ext("addTopicCount", count)))
    }

    fn save_wiped(&self, answer: Answer) -> Reply {
        let content = wiped::to_json(self.table.borrow().wiped());
        Reply::Saved { name: WIPED_FILE, content, answer }
    }
}

/// Tells a repeated registration body from another one. Never 0, which no body has.
fn mark(version: i32, body: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write_i32(version);
    hasher.write(body);
    hasher.write_i32(body_crc32(body));
    hasher.finish() | 1
}
