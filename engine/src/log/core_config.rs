//! Sizes and limits of one log, with their defaults.

#[cfg(doc)]
use super::block::UNIT;
use super::block::UNIT_U64;

/// Sizes and choices of one log. All sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreConfig {
    /// A segment: a multiple of [`UNIT`], at least two units.
    pub segment_size: u64,
    /// Most that may be appended and not yet written; one record may always be, however large.
    pub unwritten_bytes_max: u64,
    /// Most memory that written blocks may keep.
    pub hot_bytes_max: usize,
    /// Smallest block, a multiple of [`UNIT`].
    pub block_bytes_min: usize,
    /// Largest block, except for a record that is larger.
    pub block_bytes_max: usize,
    /// Level `sync`: flush after each write; visible means durable.
    pub sync: bool,
    /// Keep a zeroed frontier. Without it the level `write` survives only the process.
    pub zero_ahead: bool,
    /// How far ahead of the tail zeros may run, within the segments that are ready.
    pub zero_ahead_bytes: u64,
    /// Smallest piece to zero at a time, a multiple of [`UNIT`]. Each costs a flush that log writes share the device with.
    pub zero_step_bytes_min: u64,
    /// Largest piece: a write that needs its first byte waits for all of it.
    pub zero_step_bytes_max: u64,
    /// How far ahead of the tail the write bound is saved: what recovery has to read at most behind the cut.
    pub write_bound_step: u64,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            segment_size: 1 << 30,
            unwritten_bytes_max: 64 << 20,
            hot_bytes_max: 64 << 20,
            block_bytes_min: 8 << 10,
            block_bytes_max: 1 << 20,
            sync: false,
            zero_ahead: true,
            zero_ahead_bytes: 256 << 20,
            zero_step_bytes_min: 8 << 20,
            zero_step_bytes_max: 16 << 20,
            write_bound_step: 64 << 20,
        }
    }
}

/// A configuration that can't work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}, which is not usable: {need}")]
pub struct CoreConfigError {
    /// Which value.
    pub what: &'static str,
    /// What it is.
    pub value: u64,
    /// What it must be.
    pub need: &'static str,
}

impl CoreConfig {
    /// Checks the values against one another.
    pub fn check(&self) -> Result<(), CoreConfigError> {
        let multiple = "it must be a multiple of 4096, and at least 8192 for a segment";
        let unit = |what, value: u64, least: u64| {
            let fits = value >= least && value.is_multiple_of(UNIT_U64);
            if fits { Ok(()) } else { Err(CoreConfigError { what, value, need: multiple }) }
        };
        unit("segment size", self.segment_size, 2 * UNIT_U64)?;
        unit("smallest block", self.block_bytes_min as u64, UNIT_U64)?;
        unit("largest block", self.block_bytes_max as u64, self.block_bytes_min as u64)?;
        unit("smallest zeroing step", self.zero_step_bytes_min, UNIT_U64)?;
        unit("largest zeroing step", self.zero_step_bytes_max, self.zero_step_bytes_min)?;
        unit("write bound step", self.write_bound_step, UNIT_U64)?;
        // BLANK carries the rest of its segment as a positive 32-bit number.
        if self.segment_size > i32::MAX as u64 {
            let need = "segments have at most 2147483647 bytes";
            return Err(CoreConfigError { what: "segment size", value: self.segment_size, need });
        }
        Ok(())
    }
}
