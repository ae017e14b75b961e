//! The file of broker names whose write permission was wiped.
//!
//! Stock keeps a wiped permission in memory only, so that a topic change on the broker, or a restart of the name
//! server, gives it back in the middle of a drain. Here it holds until ADD_WRITE_PERM_OF_BROKER.

use std::collections::BTreeSet;

use ringmq_net::json::{Limits, Value, Writer};

/// The file's content.
pub fn to_json(names: &BTreeSet<String>) -> Vec<u8> {
    let mut w = Writer::new();
    w.begin_object();
    w.field_i64("version", 1);
    w.field_strs("wipedBrokers", names);
    w.end_object();
    w.finish()
}

/// Reads the file's content.
///
/// # Errors
/// What is wrong with it, for the log.
pub fn from_json(text: &[u8]) -> Result<BTreeSet<String>, String> {
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    let root = Value::parse_within(text, Limits::TRUSTED).map_err(|e| e.to_string())?;
    match root.get("version").and_then(Value::as_i64) {
        Some(1) => {}
        Some(newer) => return Err(format!("its version is {newer}, this program reads 1")),
        None => return Err("it has no version".to_owned()),
    }
    let Some(Value::Array(names)) = root.get("wipedBrokers") else {
        return Err("it has no list wipedBrokers".to_owned());
    };
    names.iter().map(|n| n.to_text().ok_or_else(|| "a name is not a string".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_file() {
        let names = BTreeSet::from(["b".to_owned(), "a \"quoted\"".to_owned()]);
        assert_eq!(from_json(&to_json(&names)).unwrap(), names);
        assert!(from_json(&to_json(&BTreeSet::new())).unwrap().is_empty());
        assert!(from_json(br#"{"version":2,"wipedBrokers":[]}"#).unwrap_err().contains('2'));
        assert!(from_json(br#"{"wipedBrokers":[]}"#).is_err());
        assert!(from_json(br#"{"version":1}"#).is_err());
    }
}
