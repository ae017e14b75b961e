//! The configuration at run time: 25, 26, and 329.

use std::rc::Rc;

use ringmq_engine::state::topic_name::TRACE_TOPIC;
use ringmq_net::body::properties;
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::reply::{ExtValue, ReplyHead, encode_reply_with_body};
use ringmq_net::server::Conn;

use crate::broker::retention::MANUAL_ROUNDS;
use crate::broker::{Broker, Refusal};

impl Broker {
    pub(super) fn get_config(&self, conn: &Rc<Conn>, view: &HeaderView<'_>) -> Result<(), Refusal> {
        let config = &self.config;
        let (ha_host, ha_port) = config.told_ha.rsplit_once(':').unwrap_or_default();
        let mut pairs: Vec<(&str, String)> = vec![
            ("brokerName", config.name.clone()),
            ("brokerClusterName", config.cluster.clone()),
            ("brokerId", config.broker_id.to_string()),
            ("brokerIP1", config.store_host.ip().to_string()),
            ("brokerIP2", ha_host.to_owned()),
            ("listenPort", config.store_host.port().to_string()),
            ("haListenPort", ha_port.to_owned()),
            ("namesrvAddr", config.namesrv_addrs.join(";")),
            ("brokerRole", config.role.stock_name().to_owned()),
            ("flushDiskType", self.flush_disk_type().to_owned()),
            ("storePathRootDir", config.store_dir.display().to_string()),
            ("storePathCommitLog", self.shard.layout().commit_log().display().to_string()),
            ("mappedFileSizeCommitLog", self.shard.segment_bytes().to_string()),
            ("maxMessageSize", config.message_bytes_max.to_string()),
            ("autoCreateTopicEnable", config.auto_create_topics.to_string()),
            ("autoCreateSubscriptionGroup", config.auto_create_groups.to_string()),
            ("defaultTopicQueueNums", config.topic_queues.to_string()),
            ("regionId", config.region.clone()),
            ("traceOn", config.trace_on.to_string()),
            ("messageDelayLevel", config.delay_levels_text.clone()),
            ("msgTraceTopicName", TRACE_TOPIC.to_owned()),
            ("traceTopicEnable", config.trace_topic.to_string()),
            // What this broker does not have, as a stock broker without it tells: `exportConfigs` fails where one is missing.
            ("useTLS", "false".to_owned()),
            ("filterServerNums", "0".to_owned()),
            // `exportMetrics` takes this for the number of processors: a shard works on one.
            ("clientCallbackExecutorThreads", "1".to_owned()),
            ("enablePropertyFilter", "false".to_owned()),
            ("slaveReadEnable", "false".to_owned()),
        ];
        pairs.extend(self.tunables.borrow().pairs());
        let version = self.config_version.borrow().clone();
        let body = properties::print(pairs);
        if !view.is_oneway() {
            let ext = [("version", ExtValue::Str(&version))];
            let head = ReplyHead::to(view, response::SUCCESS).ext(&ext);
            conn.push(|out| encode_reply_with_body(out, &head, body.as_bytes()));
        }
        Ok(())
    }

    fn flush_disk_type(&self) -> &'static str {
        match self.config.level {
            crate::broker::Level::Sync => "SYNC_FLUSH",
            _ => "ASYNC_FLUSH",
        }
    }

    /// Changes settings, all or none. Keys that fix identity or paths, and unknown ones, are refused: stock takes any key and
    /// says nothing.
    pub(super) fn update_config(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let text = std::str::from_utf8(body)
            .map_err(|_| Refusal::new(response::SYSTEM_ERROR, "the configuration is not UTF-8"))?;
        let mut changed = self.tunables.borrow().clone();
        let pairs = properties::parse(text);
        for (key, value) in &pairs {
            changed
                .set(key, value)
                .map_err(|error| Refusal::new(response::NO_PERMISSION, error.to_string()))?;
        }
        let permission_changed = changed.permission != self.tunables.borrow().permission;
        *self.tunables.borrow_mut() = changed;
        if !pairs.is_empty() {
            let now_ms = self.clock.now_ms();
            let counter = self.config_changes.get() + 1;
            self.config_changes.set(counter);
            *self.config_version.borrow_mut() =
                format!("{{\"counter\":{counter},\"timestamp\":{now_ms}}}");
            tracing::info!(
                ?pairs,
                "configuration changed by an administrator, until the next start"
            );
        }
        if permission_changed {
            self.topics.borrow_mut().touch_all(self.clock.now_ms());
            self.topics_changed();
        }
        self.reply_done(conn, view);
        Ok(())
    }

    /// Lets the retention delete what is expired, at any hour, for a while.
    pub(super) fn delete_expired(
        &self,
        conn: &Rc<Conn>,
        view: &HeaderView<'_>,
    ) -> Result<(), Refusal> {
        self.manual_rounds.set(MANUAL_ROUNDS);
        self.retention_asked.raise();
        self.reply_done(conn, view);
        Ok(())
    }
}
