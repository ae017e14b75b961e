//! Implementation languages and version numbers that travel in every header.

/// The version that RingMQ states in every command: that of 4.9.8, whose behaviour it has. Stock Java
/// consumers with a non-TAG expression need at least 232 in the heartbeat's reply.
pub const VERSION: i32 = 409;

/// First version whose requests may set `maxReconsumeTimes` (3.4.9).
pub const VERSION_MAX_RECONSUME: i32 = 121;
/// First version that understands a reset of consumer offsets by the broker (3.0.7 snapshot).
pub const VERSION_RESET_OFFSET: i32 = 28;
/// First version that answers GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY (3.1.8 snapshot).
pub const VERSION_RUNNING_INFO: i32 = 62;
/// First version that reads the strict JSON form of route data (4.9.4).
pub const VERSION_STRICT_ROUTE: i32 = 401;
/// First broker version whose registration carries filter servers (3.0.11).
pub const VERSION_REGISTER_FILTER: i32 = 37;
/// First version whose compressed registration has a tail of queue mappings (5.0.0).
pub const VERSION_REGISTER_MAPPING: i32 = 413;

/// Text of a version number as administrators know it, for the versions that matter here.
///
/// Stock computes it from an enumeration of two entries per release; a number outside the table is
/// shown as `V<number>`.
#[must_use]
pub fn version_text(version: i32) -> std::borrow::Cow<'static, str> {
    match version {
        121 => "V3_4_9".into(),
        212 => "V4_0_0_SNAPSHOT".into(),
        313 => "V4_5_0".into(),
        317 => "V4_5_2".into(),
        333 => "V4_6_0".into(),
        393 => "V4_9_0".into(),
        395 => "V4_9_1".into(),
        397 => "V4_9_2".into(),
        399 => "V4_9_3".into(),
        401 => "V4_9_4".into(),
        403 => "V4_9_5".into(),
        405 => "V4_9_6".into(),
        407 => "V4_9_7".into(),
        409 => "V4_9_8".into(),
        413 => "V5_0_0".into(),
        479 => "V5_3_3".into(),
        other => format!("V{other}").into(),
    }
}

/// The language of a command's sender: a byte in binary headers, a name in JSON ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Language(pub u8);

impl Language {
    /// Java; also what an absent field means, and what RingMQ answers with.
    pub const JAVA: Language = Language(0);
    /// C++: its clients read the list form of reset offsets only.
    pub const CPP: Language = Language(1);
    /// Python over the C++ client.
    pub const PYTHON: Language = Language(3);
    /// Go.
    pub const GO: Language = Language(9);
    /// Rust.
    pub const RUST: Language = Language(12);
    /// A name or number that nobody knows; stock reads it as null.
    pub const UNKNOWN: Language = Language(u8::MAX);

    /// Names by code, 0 to 13 (13 since 5.x).
    const NAMES: [&'static str; 14] = [
        "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO",
        "PHP", "OMS", "RUST", "NODE_JS",
    ];

    /// The enumeration name, `None` for an unknown code.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::NAMES.get(usize::from(self.0)).copied()
    }

    /// From an enumeration name or, as fastjson allows, its ordinal; [`Language::UNKNOWN`] otherwise.
    #[must_use]
    pub fn from_text(text: &str) -> Language {
        let at = Self::NAMES.iter().position(|name| *name == text);
        let at = at.or_else(|| text.parse().ok().filter(|at| *at < Self::NAMES.len()));
        at.map_or(Language::UNKNOWN, |at| Language(at as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ordinals_are_read_and_the_rest_is_unknown() {
        assert_eq!(Language::from_text("JAVA"), Language::JAVA);
        assert_eq!(Language::from_text("GO"), Language::GO);
        assert_eq!(Language::from_text("12"), Language::RUST);
        assert_eq!(Language::from_text("COBOL"), Language::UNKNOWN);
        assert_eq!(Language::from_text("99"), Language::UNKNOWN);
        assert_eq!(Language::UNKNOWN.name(), None);
        assert_eq!(Language::CPP.name(), Some("CPP"));
    }
}
