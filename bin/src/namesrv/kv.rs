//! The key-value configuration: namespaces of string pairs, kept in one file.
//!
//! Its one use in stock 4.9.8 is the namespace `ORDER_TOPIC_CONFIG`: topic to `broker:queues;broker:queues`.

use std::collections::BTreeMap;

use ringmq_net::json::{Limits, Value, Writer};

/// Topics with a fixed order of queues.
pub const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";
/// Most bytes of names and values together: a namespace must fit one reply.
pub const KV_BYTES_MAX: usize = 8 << 20;

/// What a namespace costs besides its name.
const NAMESPACE_BYTES: usize = 64;

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key-value table holds {KV_BYTES_MAX} bytes already; delete keys first")]
pub struct KvFull;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvTable {
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    bytes: usize,
}

impl KvTable {
    /// Sets a value. Without a value the key goes, but the namespace is made: stock stores a null, which reads as
    /// absent everywhere.
    ///
    /// # Errors
    /// [`KvFull`]; nothing has changed then.
    pub fn put(&mut self, namespace: &str, key: &str, value: Option<&str>) -> Result<(), KvFull> {
        let Some(value) = value else {
            self.delete(namespace, key);
            return self.make_namespace(namespace);
        };
        let more = namespace.len() + key.len() + value.len();
        if self.bytes + more + self.namespace_cost(namespace) > KV_BYTES_MAX {
            return Err(KvFull);
        }
        self.make_namespace(namespace)?;
        self.delete(namespace, key);
        self.bytes += more;
        let pairs = self.namespaces.entry(namespace.to_owned()).or_default();
        pairs.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Makes a namespace. It is never removed, so that it costs its name and a little for good.
    fn make_namespace(&mut self, namespace: &str) -> Result<(), KvFull> {
        let more = self.namespace_cost(namespace);
        if more > 0 {
            if self.bytes + more > KV_BYTES_MAX {
                return Err(KvFull);
            }
            self.bytes += more;
            self.namespaces.insert(namespace.to_owned(), BTreeMap::new());
        }
        Ok(())
    }

    /// What making this namespace would cost; 0 if it is there.
    fn namespace_cost(&self, namespace: &str) -> usize {
        if self.namespaces.contains_key(namespace) { 0 } else { namespace.len() + NAMESPACE_BYTES }
    }

    /// A value.
    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.namespaces.get(namespace)?.get(key).map(String::as_str)
    }

    /// Removes a key; its namespace stays, even when empty (stock 4.9.8).
    pub fn delete(&mut self, namespace: &str, key: &str) {
        if let Some(value) = self.namespaces.get_mut(namespace).and_then(|pairs| pairs.remove(key))
        {
            self.bytes -= namespace.len() + key.len() + value.len();
        }
    }

    /// The pairs of a namespace that was ever made.
    pub fn namespace(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace)
    }

    /// The file's content, as stock writes it.
    pub fn to_json(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.begin_object();
        w.key("configTable");
        w.begin_object();
        for (namespace, pairs) in &self.namespaces {
            w.key(namespace);
            w.begin_object();
            pairs.iter().for_each(|(key, value)| w.field_str(key, value));
            w.end_object();
        }
        w.end_object();
        w.end_object();
        w.finish()
    }

    /// Reads the file's content, ours or a stock name server's.
    ///
    /// # Errors
    /// What is wrong with it, for the log.
    pub fn from_json(text: &[u8]) -> Result<KvTable, String> {
        let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
        let root = Value::parse_within(text, Limits::TRUSTED).map_err(|e| e.to_string())?;
        let config = root.get("configTable").ok_or("it has no configTable")?;
        let mut table = KvTable::default();
        for (namespace, pairs) in config.pairs() {
            let namespace = namespace.to_text().ok_or("a namespace is not a string")?;
            table.make_namespace(&namespace).map_err(|e| e.to_string())?;
            for (key, value) in pairs.pairs() {
                let key = key.to_text().ok_or("a key is not a string")?;
                if let Some(value) = value.to_text() {
                    table.put(&namespace, &key, Some(&value)).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_stocks() {
        let mut kv = KvTable::default();
        kv.put(ORDER_TOPIC_CONFIG, "TopicOrd", Some("broker-a:8")).unwrap();
        let text = r#"{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicOrd":"broker-a:8"}}}"#;
        assert_eq!(kv.to_json(), text.as_bytes());
        assert_eq!(KvTable::from_json(text.as_bytes()).unwrap(), kv);
        assert!(KvTable::from_json(b"{}").is_err());
        assert!(KvTable::from_json(b"{\"configTable\":{").is_err());
    }

    #[test]
    fn a_namespace_outlives_its_keys() {
        let mut kv = KvTable::default();
        assert_eq!(kv.namespace("n"), None);
        kv.put("n", "k", Some("v")).unwrap();
        kv.put("n", "k", Some("w")).unwrap();
        assert_eq!(kv.get("n", "k"), Some("w"));
        kv.delete("n", "k");
        kv.delete("n", "k");
        assert_eq!((kv.get("n", "k"), kv.bytes), (None, 1 + NAMESPACE_BYTES));
        assert!(kv.namespace("n").unwrap().is_empty());
        assert_eq!(KvTable::from_json(&kv.to_json()).unwrap(), kv);
        kv.put("m", "k", None).unwrap();
        assert_eq!((kv.get("m", "k"), kv.namespace("m").map(BTreeMap::len)), (None, Some(0)));
    }

    #[test]
    fn a_full_table_refuses_and_stays() {
        let mut kv = KvTable::default();
        let large = "v".repeat(KV_BYTES_MAX - 3 - NAMESPACE_BYTES);
        kv.put("n", "k", Some(&large)).unwrap();
        assert_eq!(kv.put("n", "j", Some("")), Err(KvFull));
        assert_eq!(kv.get("n", "k").map(str::len), Some(large.len()));
        assert_eq!(kv.put("empty", "k", None), Err(KvFull), "a namespace costs something too");
        kv.delete("n", "k");
        kv.put("n", "j", Some("")).unwrap();
    }
}
