//! Names of index files: the local time of their making.

/// Digits of a name: `yyyyMMddHHmmssSSS`.
const NAME_DIGITS: usize = 17;

/// Whether a name is that of an index file.
pub(super) fn is_index_name(name: &str) -> bool {
    name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// A name for a file made at `now_ms` (milliseconds since 1970), in the local time zone as stock has it, but always above `last`:
/// the order of names is the order of files, also when clocks or summer time go back.
pub(super) fn next_name(now_ms: i64, last: Option<&str>) -> String {
    let name = local_name(now_ms);
    match last {
        Some(last) if name.as_str() <= last => match last.parse::<u64>() {
            Ok(number) => format!("{:017}", number.saturating_add(1)),
            Err(_) => name,
        },
        _ => name,
    }
}

fn local_name(now_ms: i64) -> String {
    let seconds: libc::time_t = now_ms.div_euclid(1000);
    // SAFETY: an all-zero `tm` is a valid value of this plain C structure.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers live over the call, which writes `time` only. It may fail and leave zeros.
    unsafe { libc::localtime_r(&seconds, &mut time) };
    format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}{:03}",
        (time.tm_year + 1900).clamp(0, 9999),
        time.tm_mon + 1,
        time.tm_mday,
        time.tm_hour,
        time.tm_min,
        time.tm_sec.min(59),
        now_ms.rem_euclid(1000)
    )
}
