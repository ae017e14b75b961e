//! The version of a table: name servers and slaves compare it for equality to see whether to ask.

/// Stock's DataVersion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    /// When the table changed last, ms.
    pub timestamp: i64,
    /// How often it changed.
    pub counter: i64,
}

impl DataVersion {
    /// The table changed.
    pub fn next(&mut self, now_ms: i64) {
        self.timestamp = now_ms;
        self.counter = self.counter.wrapping_add(1);
    }
}
