//! Key-value requests, and the name server's own configuration over the wire.

use ringmq_net::body::{Body, KvTable as KvBody, properties};
use ringmq_net::code::response;
use ringmq_net::header::HeaderView;
use ringmq_net::headers::{KvHeader, NamespaceHeader};

use super::answer::{Answer, Reply};
use super::service::NameService;
use super::{IDLE, KV_FILE, PROPERTIES_FILE};

/// The one key that can be changed while it runs.
pub(super) const ORDER_MESSAGE_ENABLE: &str = "orderMessageEnable";
/// Keys that nobody may change over the wire (stock 4.9.8).
const BLACK_LIST: [&str; 4] =
    ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"];

impl NameService {
    /// PUT_KV_CONFIG (100): answered when it is durable.
    pub(super) fn put_kv(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = KvHeader::decode(header)?;
        let (Some(namespace), Some(key)) = (fields.namespace, fields.key) else {
            return Err(Answer::error(response::SYSTEM_ERROR, "namespace or key is null"));
        };
        self.kv
            .borrow_mut()
            .put(namespace, key, fields.value)
            .map_err(|full| Answer::error(response::SYSTEM_ERROR, full.to_string()))?;
        Ok(self.save_kv())
    }

    /// GET_KV_CONFIG (101).
    pub(super) fn get_kv(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = KvHeader::decode(header)?;
        let kv = self.kv.borrow();
        let value = fields.namespace.zip(fields.key).and_then(|(n, k)| kv.get(n, k));
        match value {
            Some(value) => Ok(Answer::ok().with_ext("value", value).into()),
            None => Err(Answer::error(
                response::QUERY_NOT_FOUND,
                format!(
                    "No config item, Namespace: {} Key: {}",
                    fields.namespace.unwrap_or("null"),
                    fields.key.unwrap_or("null")
                ),
            )),
        }
    }

    /// DELETE_KV_CONFIG (102).
    pub(super) fn delete_kv(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let fields = KvHeader::decode(header)?;
        if let (Some(namespace), Some(key)) = (fields.namespace, fields.key) {
            self.kv.borrow_mut().delete(namespace, key);
        }
        Ok(self.save_kv())
    }

    /// GET_KVLIST_BY_NAMESPACE (219).
    pub(super) fn kv_namespace(&self, header: &HeaderView<'_>) -> Result<Reply, Answer> {
        let namespace = NamespaceHeader::decode(header)?.namespace;
        match self.kv.borrow().namespace(namespace) {
            Some(pairs) => Ok(Answer::body(KvBody { table: pairs.clone() }.to_json()).into()),
            None => Err(Answer::error(
                response::QUERY_NOT_FOUND,
                format!("No config item, Namespace: {namespace}"),
            )),
        }
    }

    fn save_kv(&self) -> Reply {
        let content = self.kv.borrow().to_json();
        Reply::Saved { name: KV_FILE, content, answer: Answer::ok() }
    }

    /// UPDATE_NAMESRV_CONFIG (318). Stock takes any known key and most have no effect before a restart; here a key that
    /// can't be changed is refused, unless it is set to what it is.
    pub(super) fn update_config(&self, body: &[u8]) -> Result<Reply, Answer> {
        let pairs = properties::parse(&String::from_utf8_lossy(body));
        if pairs.iter().any(|(key, _)| BLACK_LIST.contains(&key.as_str())) {
            let remark = "Can not update config in black list.";
            return Err(Answer::error(response::NO_PERMISSION, remark));
        }
        let mut order = self.order_enabled.get();
        let fixed = self.config_pairs();
        for (key, value) in &pairs {
            if key == ORDER_MESSAGE_ENABLE {
                order = value.eq_ignore_ascii_case("true");
            } else if let Some((_, current)) = fixed.iter().find(|(name, _)| name == key) {
                if current != value {
                    let remark = format!("{key} can't be changed while the name server runs");
                    return Err(Answer::error(response::SYSTEM_ERROR, remark));
                }
            } else {
                tracing::info!(key, "ignored an unknown key of a configuration update");
            }
        }
        self.order_enabled.set(order);
        let content = properties::print([(ORDER_MESSAGE_ENABLE, order.to_string())]).into_bytes();
        Ok(Reply::Saved { name: PROPERTIES_FILE, content, answer: Answer::ok() })
    }

    /// GET_NAMESRV_CONFIG (319).
    pub(super) fn config_text(&self) -> Answer {
        Answer::body(properties::print(self.config_pairs()).into_bytes())
    }

    /// The keys of a stock name server that have a meaning here.
    fn config_pairs(&self) -> Vec<(&'static str, String)> {
        let path = |file| self.config.data_dir.join(file).display().to_string();
        vec![
            ("listenPort", self.config.listen.port().to_string()),
            ("kvConfigPath", path(KV_FILE)),
            ("configStorePath", path(PROPERTIES_FILE)),
            (ORDER_MESSAGE_ENABLE, self.order_enabled.get().to_string()),
            ("serverChannelMaxIdleTimeSeconds", IDLE.as_secs().to_string()),
        ]
    }
}
