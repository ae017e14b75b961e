//! Unknown keys are errors that name the nearest key: a misspelt limit must not be a limit that silently does not hold.

use serde::de::{self, DeserializeOwned, Visitor};

use super::model::*;

/// The sections, each with its keys, as serde knows them.
pub fn sections() -> Vec<(&'static str, &'static [&'static str])> {
    vec![
        ("broker", fields::<BrokerSection>()),
        ("store", fields::<StoreSection>()),
        ("durability", fields::<DurabilitySection>()),
        ("topics", fields::<TopicsSection>()),
        ("limits", fields::<LimitsSection>()),
        ("retention", fields::<RetentionSection>()),
        ("shards", fields::<ShardsSection>()),
        ("namesrv", fields::<NamesrvSection>()),
        ("ha", fields::<HaSection>()),
        ("log", fields::<LogSection>()),
        ("metrics", fields::<MetricsSection>()),
        ("drain", fields::<DrainSection>()),
        ("reactor", fields::<ReactorSection>()),
    ]
}

/// The first key or section that the model lacks, as a one-line message with the nearest one that exists.
pub(super) fn find_unknown(table: &toml::Table) -> Option<String> {
    let sections = sections();
    for (name, value) in table {
        let Some((_, keys)) = sections.iter().find(|(section, _)| section == name) else {
            return Some(unknown_section(name, value, &sections));
        };
        let Some(section) = value.as_table() else {
            return Some(format!("`{name}` is a section: write [{name}] on a line of its own"));
        };
        for key in section.keys() {
            if !keys.contains(&key.as_str()) {
                return Some(unknown_key(name, key, keys, &sections));
            }
        }
    }
    None
}

fn unknown_section(
    name: &str,
    value: &toml::Value,
    sections: &[(&'static str, &'static [&'static str])],
) -> String {
    if !value.is_table()
        && let Some((home, key)) = nearest(
            name,
            sections.iter().flat_map(|(s, keys)| keys.iter().map(move |k| (*s, *k))),
            |p| p.1,
        )
    {
        return format!(
            "unknown key `{name}` outside of any section: did you mean `{key}` in [{home}]?"
        );
    }
    match nearest(name, sections.iter().map(|(s, _)| *s), |s| s) {
        Some(section) => format!("unknown section [{name}]: did you mean [{section}]?"),
        None => {
            let all: Vec<&str> = sections.iter().map(|(s, _)| *s).collect();
            format!("unknown section [{name}]: the sections are {}", all.join(", "))
        }
    }
}

fn unknown_key(
    section: &str,
    key: &str,
    keys: &[&'static str],
    sections: &[(&'static str, &'static [&'static str])],
) -> String {
    // A right key in a wrong section is told as such; the second most frequent mistake after a misspelling.
    if let Some((home, _)) = sections.iter().find(|(_, others)| others.contains(&key)) {
        return format!("unknown key `{key}` in [{section}]: it belongs in [{home}]");
    }
    match nearest(key, keys.iter().copied(), |k| k) {
        Some(best) => format!("unknown key `{key}` in [{section}]: did you mean `{best}`?"),
        None => format!("unknown key `{key}` in [{section}]: its keys are {}", keys.join(", ")),
    }
}

/// The candidate with the least edit distance, if less than half of the name would have to change.
fn nearest<T: Copy>(
    name: &str,
    candidates: impl Iterator<Item = T>,
    text: impl Fn(T) -> &'static str,
) -> Option<T> {
    candidates
        .map(|candidate| (edit_distance(name, text(candidate)), candidate))
        .filter(|(distance, candidate)| {
            *distance * 2 <= text(*candidate).len().max(name.len().min(40))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours between two names; each costs one. Names beyond 64 bytes are
/// compared by their first 64, so a hostile file costs nothing.
fn edit_distance(a: &str, b: &str) -> usize {
    let fold = |s: &str| -> Vec<u8> {
        s.bytes().take(64).map(|c| if c == b'-' { b'_' } else { c.to_ascii_lowercase() }).collect()
    };
    let (a, b) = (fold(a), fold(b));
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

/// The keys of one section, asked of its own `Deserialize`, so that the model stays the only list.
fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // The call always ends in an error: the deserializer only listens.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

/// The keys of [`Config`] itself: the sections.
#[cfg(test)]
fn section_names() -> &'static [&'static str] {
    fields::<Config>()
}

struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> serde::Deserializer<'de> for FieldNames<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only structs have field names"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("field names taken"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Option<String> {
        find_unknown(&text.parse::<toml::Table>().expect("test input is TOML"))
    }

    #[test]
    fn every_section_of_the_model_is_listed() {
        let listed: Vec<&str> = sections().iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, section_names());
        assert!(sections().iter().all(|(_, keys)| !keys.is_empty()));
    }

    #[test]
    fn a_misspelt_key_names_the_nearest() {
        assert_eq!(
            message("[durability]\nack_timout_ms = 1").as_deref(),
            Some("unknown key `ack_timout_ms` in [durability]: did you mean `ack_timeout_ms`?")
        );
        assert_eq!(
            message("[store]\ndata-dir = 'x'").as_deref(),
            Some("unknown key `data-dir` in [store]: did you mean `data_dir`?")
        );
    }

    #[test]
    fn a_key_in_the_wrong_section_is_sent_home() {
        assert_eq!(
            message("[store]\nlevel = 'write'").as_deref(),
            Some("unknown key `level` in [store]: it belongs in [durability]")
        );
    }

    #[test]
    fn a_key_unlike_any_lists_the_section() {
        let text = message("[drain]\nzzzzzzzzzzzzzzzzzzz = 1").expect("unknown");
        assert!(text.ends_with("its keys are serve_ms, exit_ms"), "{text}");
    }

    #[test]
    fn a_misspelt_section_names_the_nearest() {
        assert_eq!(
            message("[brokers]\nname = 'a'").as_deref(),
            Some("unknown section [brokers]: did you mean [broker]?")
        );
        assert_eq!(
            message("data_dir = 'a'").as_deref(),
            Some(
                "unknown key `data_dir` outside of any section: did you mean `data_dir` in [store]?"
            )
        );
    }

    #[test]
    fn a_section_given_as_a_value_is_explained() {
        assert_eq!(
            message("log = 'json'").as_deref(),
            Some("`log` is a section: write [log] on a line of its own")
        );
    }

    #[test]
    fn known_keys_pass() {
        assert_eq!(message("[broker]\nname = 'a'\n[log]\nlevel = 'debug'"), None);
    }

    #[test]
    fn swapped_neighbours_cost_one() {
        assert_eq!(edit_distance("cluster", "clutser"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("same", "same"), 0);
    }
}
