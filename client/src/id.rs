//! Unique message ids in stock's layout, which consumers and tools can read the time from.
//!
//! ```text
//!  ip 4|16   pid 2   random 4   ms since the month began 4   counter 2      as upper case hex
//! ```
//! Stock takes the month's start in the sender's time zone; here it is UTC, as there is no zone that sender and
//! reader agree on.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 for a clock before that.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// A source of ids. Two sources differ in their random part.
#[derive(Debug)]
pub(crate) struct UniqueIds {
    prefix: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// No id is older than one before it, whatever the clock does.
    last_ms: i64,
    counter: u16,
}

impl UniqueIds {
    pub(crate) fn new(ip: IpAddr, pid: u32, random: u32) -> Self {
        let mut prefix = String::with_capacity(44);
        match ip {
            IpAddr::V4(ip) => push_hex(&mut prefix, &ip.octets()),
            IpAddr::V6(ip) => push_hex(&mut prefix, &ip.octets()),
        }
        push_hex(&mut prefix, &(pid as u16).to_be_bytes());
        push_hex(&mut prefix, &random.to_be_bytes());
        UniqueIds { prefix, state: Mutex::new(State::default()) }
    }

    /// The next id. Unique for 65536 ids a millisecond.
    pub(crate) fn next(&self, now_ms: i64) -> String {
        let (ms, counter) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.last_ms = state.last_ms.max(now_ms);
            state.counter = state.counter.wrapping_add(1);
            (state.last_ms, state.counter)
        };
        let since = (ms - month_start_ms(ms)) as u32;
        let mut id = String::with_capacity(self.prefix.len() + 12);
        id.push_str(&self.prefix);
        push_hex(&mut id, &since.to_be_bytes());
        push_hex(&mut id, &counter.to_be_bytes());
        id
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02X}");
    }
}

const DAY_MS: i64 = 86_400_000;

/// When the month of `ms` began, UTC, in milliseconds since 1970.
fn month_start_ms(ms: i64) -> i64 {
    let day = ms.div_euclid(DAY_MS);
    (day - i64::from(day_of_month(day)) + 1) * DAY_MS
}

/// Day of the month, from 1, of a day counted from 1970-01-01: years are counted from March, so that February ends one.
fn day_of_month(day: i64) -> u32 {
    let era_day = (day + 719_468).rem_euclid(146_097);
    let year = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
    let year_day = era_day - (365 * year + year / 4 - year / 100);
    let month = (5 * year_day + 2) / 153;
    (year_day - (153 * month + 2) / 5 + 1) as u32
}

/// When an id was made, in milliseconds since 1970, read at `now_ms`; `None` for a text of another form. Right for ids
/// younger than a month.
#[must_use]
pub fn unique_id_time_ms(id: &str, now_ms: i64) -> Option<i64> {
    if !matches!(id.len(), 32 | 56) || !id.is_ascii() {
        return None;
    }
    let from = id.len() - 12;
    let since = u32::from_str_radix(id.get(from..from + 8)?, 16).ok()?;
    let month = month_start_ms(now_ms);
    let made = month + i64::from(since);
    Some(if made > now_ms { month_start_ms(month - 1) + i64::from(since) } else { made })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// 2024-02-29T12:34:56.789Z, 2024-03-01T00:00:00Z, 2023-12-31T23:59:59.999Z.
    const LEAP: i64 = 1_709_210_096_789;
    const MARCH: i64 = 1_709_251_200_000;
    const NEW_YEARS_EVE: i64 = 1_704_067_199_999;

    fn ids() -> UniqueIds {
        UniqueIds::new(IpAddr::from([10, 1, 2, 3]), 0x1_2345, 0xDEAD_BEEF)
    }

    #[test]
    fn a_unique_id_has_the_layout_of_stock() {
        let id = ids().next(MARCH + 0x0102_0304);
        assert_eq!(id, "0A0102032345DEADBEEF010203040001");
        let v6 = UniqueIds::new("::1".parse().unwrap(), 1, 2).next(MARCH);
        assert_eq!(v6.len(), 56);
    }

    #[test]
    fn months_begin_at_the_first_day() {
        for (ms, days) in [(LEAP, 28), (MARCH, 0), (NEW_YEARS_EVE, 30), (0, 0)] {
            assert_eq!((ms - month_start_ms(ms)) / DAY_MS, days, "{ms}");
        }
    }

    #[test]
    fn the_time_is_read_back_within_the_month_and_across_its_border() {
        for (made, read) in [(LEAP, LEAP + 5), (LEAP, MARCH + 1000), (MARCH, MARCH)] {
            assert_eq!(unique_id_time_ms(&ids().next(made), read), Some(made));
        }
        assert_eq!(unique_id_time_ms("short", 0), None);
        assert_eq!(unique_id_time_ms(&"Z".repeat(32), 0), None);
    }

    #[test]
    fn ids_stay_unique_when_the_clock_goes_backwards() {
        let ids = ids();
        let made: HashSet<String> = (0..50_000).map(|i| ids.next(LEAP - i % 7)).collect();
        assert_eq!(made.len(), 50_000);
    }
}
