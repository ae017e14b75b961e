//! The 4.x protocol's decisions (stock 4.9.8): what a master does with a report, and a slave with a frame.

use std::time::Duration;

/// What both sides keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Something is sent at least this often (stock: `haSendHeartbeatInterval`, 5 s).
    pub heartbeat: Duration,
    /// A peer that is silent for longer is given up (stock: `haHousekeepingInterval`, 20 s).
    pub housekeeping: Duration,
}

impl Timing {
    /// How often either side looks whether one of the two is due.
    pub fn tick(&self) -> Duration {
        self.heartbeat.min(self.housekeeping) / 4
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing { heartbeat: Duration::from_secs(5), housekeeping: Duration::from_secs(20) }
    }
}

/// A log as its peer may see it. Physical offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRange {
    /// Its first byte.
    pub min: u64,
    /// Its visible end.
    pub max: u64,
    /// Bytes of a segment.
    pub segment: u64,
}

/// Why a slave gets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its log is longer than ours: we lost a part of ours, or it followed another master.
    #[error(
        "the slave's log ends at {slave}, behind this master's end {master}: they differ; stop the one whose log is to go, move its store away, and let it join empty"
    )]
    Ahead {
        /// What it reported.
        slave: u64,
        /// The end of our log.
        master: u64,
    },
    /// What it needs was deleted here.
    #[error(
        "the slave's log ends at {slave}, and this master has nothing before {min} any more: move the slave's store away and let it join empty"
    )]
    Behind {
        /// What it reported.
        slave: u64,
        /// The start of our log.
        min: u64,
    },
    /// It reports what was never sent.
    #[error("the slave reports {slave}, but only {sent} was sent: it is no slave of this master")]
    Forged {
        /// What it reported.
        slave: i64,
        /// How far was sent.
        sent: u64,
    },
}

impl Refused {
    /// Its number in a refusal between RingMQ nodes.
    pub fn code(self) -> u32 {
        match self {
            Refused::Ahead { .. } => 1,
            Refused::Behind { .. } => 2,
            Refused::Forged { .. } => 3,
        }
    }

    /// The offset that it is about, beside that.
    pub fn offset(self) -> i64 {
        match self {
            Refused::Ahead { master, .. } => master as i64,
            Refused::Behind { min, .. } => min as i64,
            Refused::Forged { slave, .. } => slave,
        }
    }
}

/// What a report means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The first one: sending begins here. `acked` is what the slave holds.
    Begin {
        /// First byte to send.
        next: u64,
        /// What it holds.
        acked: u64,
    },
    /// It holds the log up to here.
    Acked(u64),
}

/// A master's side of one connection.
#[derive(Debug, Default)]
pub struct MasterSide {
    /// The next byte to send, once the slave has said where it is.
    next: Option<u64>,
}

impl MasterSide {
    /// The next byte to send; `None` before the first report.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// So much more is on its way.
    pub fn sent(&mut self, bytes: u64) {
        if let Some(next) = &mut self.next {
            *next += bytes;
        }
    }

    /// What a report means. An empty slave gets the last segment, as in stock, or the `oldest` byte there is.
    ///
    /// # Errors
    /// [`Refused`]: nothing is acknowledged by it and nothing may be sent any more.
    pub fn report(&mut self, offset: i64, log: LogRange, oldest: bool) -> Result<Report, Refused> {
        let sent = self.next.unwrap_or(log.max);
        let slave = u64::try_from(offset).map_err(|_| Refused::Forged { slave: offset, sent })?;
        if let Some(next) = self.next {
            if slave > next {
                return Err(Refused::Forged { slave: offset, sent: next });
            }
            return Ok(Report::Acked(slave));
        }
        if slave > log.max {
            return Err(Refused::Ahead { slave, master: log.max });
        }
        let begin = match slave {
            0 if oldest => log.min,
            0 => log.max - log.max % log.segment,
            _ => slave,
        };
        let next = if slave == 0 { begin.max(log.min) } else { begin };
        if next < log.min {
            return Err(Refused::Behind { slave, min: log.min });
        }
        self.next = Some(next);
        Ok(Report::Begin { next, acked: slave })
    }
}

/// Why a slave can't take what its master sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The offsets differ.
    #[error(
        "the master sends physical offset {master}, this log ends at {own}: if this repeats, they differ; move the store of the one that is to follow away and let it join empty"
    )]
    Offset {
        /// What came.
        master: u64,
        /// Our end.
        own: u64,
    },
    /// An empty log begins with a segment.
    #[error(
        "the master sends physical offset {master} first, which begins no segment of {segment} bytes: give both the same segment size"
    )]
    Unaligned {
        /// What came.
        master: u64,
        /// Bytes of our segments.
        segment: u64,
    },
    /// A frame lies in one segment.
    #[error(
        "the master sends {len} bytes for physical offset {master}, over the end of a segment: give both the same segment size"
    )]
    Crosses {
        /// What came.
        master: u64,
        /// Its bytes.
        len: usize,
    },
}

/// Where a frame's body goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the log's end.
    End,
    /// The log is empty and must begin there first.
    BeginAt(u64),
}

/// What a slave does with a frame of `size` bytes for `offset`. `own` is where its log ends, `empty` whether that holds nothing.
///
/// # Errors
/// [`Mismatch`]: the connection is of no use.
pub fn place(
    offset: u64,
    size: usize,
    own: u64,
    empty: bool,
    segment: u64,
) -> Result<Place, Mismatch> {
    if offset == own {
        return Ok(Place::End);
    }
    if !empty {
        return Err(Mismatch::Offset { master: offset, own });
    }
    match (size, offset.is_multiple_of(segment)) {
        // A heartbeat to an empty slave tells where the master is: nothing has to be done about it.
        (0, _) => Ok(Place::End),
        (_, true) => Ok(Place::BeginAt(offset)),
        (_, false) => Err(Mismatch::Unaligned { master: offset, segment }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogRange = LogRange { min: 2_048, max: 5_000, segment: 1_024 };

    #[test]
    fn the_first_report_sets_the_start_as_stock_does() {
        let begin = |report| MasterSide::default().report(report, LOG, false);
        assert_eq!(begin(0), Ok(Report::Begin { next: 4_096, acked: 0 }), "the last segment");
        assert_eq!(begin(2_048), Ok(Report::Begin { next: 2_048, acked: 2_048 }));
        assert_eq!(begin(5_000), Ok(Report::Begin { next: 5_000, acked: 5_000 }));
        assert_eq!(begin(5_001), Err(Refused::Ahead { slave: 5_001, master: 5_000 }));
        assert_eq!(begin(2_047), Err(Refused::Behind { slave: 2_047, min: 2_048 }));
        assert!(matches!(begin(-1), Err(Refused::Forged { slave: -1, .. })));
        let oldest = MasterSide::default().report(0, LOG, true);
        assert_eq!(oldest, Ok(Report::Begin { next: 2_048, acked: 0 }));
    }

    #[test]
    fn nothing_is_acknowledged_that_was_not_sent() {
        let mut master = MasterSide::default();
        assert!(master.report(i64::MAX, LOG, false).is_err());
        assert_eq!(master.next(), None, "and nothing will be sent");
        assert!(master.report(4_096, LOG, false).is_ok());
        master.sent(100);
        assert_eq!(master.report(4_196, LOG, false), Ok(Report::Acked(4_196)));
        assert!(matches!(
            master.report(4_197, LOG, false),
            Err(Refused::Forged { sent: 4_196, .. })
        ));
        assert!(matches!(master.report(i64::MIN, LOG, false), Err(Refused::Forged { .. })));
    }

    #[test]
    fn an_empty_log_begins_where_its_master_does_and_another_goes_on() {
        assert_eq!(place(0, 10, 0, true, 1_024), Ok(Place::End));
        assert_eq!(place(4_096, 10, 0, true, 1_024), Ok(Place::BeginAt(4_096)));
        assert_eq!(place(4_100, 0, 0, true, 1_024), Ok(Place::End), "a heartbeat");
        assert!(matches!(place(4_100, 1, 0, true, 1_024), Err(Mismatch::Unaligned { .. })));
        assert_eq!(place(77, 10, 77, false, 1_024), Ok(Place::End));
        assert!(matches!(place(78, 10, 77, false, 1_024), Err(Mismatch::Offset { .. })));
        assert!(matches!(place(78, 0, 77, false, 1_024), Err(Mismatch::Offset { .. })));
    }
}
