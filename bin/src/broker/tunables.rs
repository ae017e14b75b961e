//! Settings that an administrator can change while the broker runs (requests 25 and 26).

use ringmq_engine::retention::RetentionRules;

/// What can be changed. By their stock names; see [`Tunables::set`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tunables {
    /// `brokerPermission`: 4 read, 2 write.
    pub(super) permission: i32,
    /// Retention, several keys.
    pub(super) retention: RetentionRules,
    /// `notifyConsumerIdsChangedEnable`.
    pub(super) notify_ids_changed: bool,
}

/// Why a setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TunableError {
    /// No such key, or not while the broker runs.
    #[error(
        "{key} cannot be changed while the broker runs; these can: {known}. Set others in the configuration file and restart"
    )]
    Unknown {
        /// The key.
        key: String,
        /// Those that can.
        known: String,
    },
    /// A value that the key does not take.
    #[error("{key}={value} is refused: {need}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What it takes.
        need: &'static str,
    },
}

/// The keys, by their stock names.
const KEYS: [&str; 5] = [
    "brokerPermission",
    "fileReservedTime",
    "deleteWhen",
    "diskMaxUsedSpaceRatio",
    "notifyConsumerIdsChangedEnable",
];

impl Tunables {
    /// Everything allowed, with these retention rules.
    pub(super) fn new(retention: RetentionRules) -> Self {
        Tunables { permission: 6, retention, notify_ids_changed: true }
    }

    /// Changes one setting.
    ///
    /// # Errors
    /// [`TunableError`]; nothing is changed then.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), TunableError> {
        let value = value.trim();
        let bad = |need| TunableError::Value { key: key.to_owned(), value: value.to_owned(), need };
        match key {
            "brokerPermission" => {
                self.permission = match value {
                    "2" => 2,
                    "4" => 4,
                    "6" => 6,
                    _ => return Err(bad("6 is read and write, 4 read only, 2 write only")),
                };
            }
            "fileReservedTime" => {
                let hours = value.parse().ok().filter(|hours| (1..=87_600).contains(hours));
                self.retention.hours = hours.ok_or_else(|| bad("hours, 1 to 87600"))?;
            }
            "deleteWhen" => {
                let hours: Option<Vec<u8>> = value
                    .split(';')
                    .map(|hour| hour.trim().parse().ok().filter(|hour| *hour < 24))
                    .collect();
                self.retention.delete_when =
                    hours.ok_or_else(|| bad("hours of the day, 0 to 23, joined by ;"))?;
            }
            "diskMaxUsedSpaceRatio" => {
                let percent = value.parse().ok().filter(|percent| (10..=95).contains(percent));
                self.retention.aged_percent = percent.ok_or_else(|| bad("percent, 10 to 95"))?;
            }
            "notifyConsumerIdsChangedEnable" => {
                self.notify_ids_changed = value.parse().map_err(|_| bad("true or false"))?;
            }
            _ => {
                return Err(TunableError::Unknown { key: key.to_owned(), known: KEYS.join(", ") });
            }
        }
        Ok(())
    }

    /// The settings as `key=value` pairs.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let hours: Vec<String> =
            self.retention.delete_when.iter().map(|hour| format!("{hour:02}")).collect();
        vec![
            ("brokerPermission", self.permission.to_string()),
            ("fileReservedTime", self.retention.hours.to_string()),
            ("deleteWhen", hours.join(";")),
            ("diskMaxUsedSpaceRatio", self.retention.aged_percent.to_string()),
            ("notifyConsumerIdsChangedEnable", self.notify_ids_changed.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_that_is_listed_can_be_set_to_what_it_is() {
        let mut tunables = Tunables::new(RetentionRules::default());
        let before = tunables.clone();
        assert_eq!(tunables.pairs().iter().map(|(key, _)| *key).collect::<Vec<_>>(), KEYS);
        for (key, value) in before.pairs() {
            tunables.set(key, &value).unwrap();
        }
        assert_eq!(tunables, before);
    }

    #[test]
    fn unknown_keys_and_wild_values_change_nothing() {
        let mut tunables = Tunables::new(RetentionRules::default());
        let before = tunables.clone();
        for (key, value) in [
            ("brokerName", "x"),
            ("storePathRootDir", "/tmp"),
            ("brokerPermission", "7"),
            ("fileReservedTime", "0"),
            ("fileReservedTime", "-1"),
            ("deleteWhen", "04;24"),
            ("diskMaxUsedSpaceRatio", "96"),
            ("notifyConsumerIdsChangedEnable", "maybe"),
        ] {
            assert!(tunables.set(key, value).is_err(), "{key}={value}");
        }
        assert_eq!(tunables, before);
    }
}
