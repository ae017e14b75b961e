//! Limits of the process: descriptors, locked memory, and the memory that the budgets promise to use.

use std::fs;

use super::Finding;
use crate::config::Settings;
use crate::reactor::LOCKED_BYTES_PER_REACTOR;

/// Descriptors of one shard besides its connections: segments, consume queues, index, sockets, rings.
const FILES_PER_SHARD: u64 = 1_024;

/// Memory of one shard besides its budgets: tables of topics, offsets and connections, and the program itself.
const MEMORY_PER_SHARD: u64 = 64 << 20;

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let reactors = settings.shards.len().max(1) as u64;
    let mut findings = vec![check_locked(reactors), check_files(settings)];
    if !settings.shards.is_empty() {
        findings.push(check_budgets(settings));
    }
    findings
}

fn check_locked(reactors: u64) -> Finding {
    const SUBJECT: &str = "locked memory";
    let need = reactors * LOCKED_BYTES_PER_REACTOR;
    if may_lock_without_limit() {
        return Finding::good(SUBJECT, format!("{} needed, no limit (CAP_IPC_LOCK)", kib(need)));
    }
    match raise(libc::RLIMIT_MEMLOCK, need) {
        Ok(limit) if limit >= need => {
            Finding::good(SUBJECT, format!("{} needed, limit {}", kib(need), kib(limit)))
        }
        Ok(limit) => Finding::failure(
            SUBJECT,
            format!(
                "{} needed and the limit is {}: run `ulimit -l {}` or set LimitMEMLOCK={}K",
                kib(need),
                kib(limit),
                need >> 10,
                need >> 10
            ),
        ),
        Err(error) => Finding::failure(SUBJECT, format!("the limit cannot be read: {error}")),
    }
}

/// Connections that each shard (or the name server alone) may accept: the configured limit, or fewer if the limit on open files,
/// raised as far as it goes, leaves fewer. At least 16.
pub fn connections_per_shard(settings: &Settings) -> u64 {
    let configured = settings.config.limits.connections;
    match raise(libc::RLIMIT_NOFILE, u64::MAX) {
        Ok(limit) => {
            configured.min(connections_that_fit(limit, settings.shards.len().max(1) as u64)).max(16)
        }
        Err(_) => configured,
    }
}

fn connections_that_fit(files_limit: u64, shards: u64) -> u64 {
    // A limit too low for the usual reserve is shared half and half.
    (files_limit / shards).saturating_sub(FILES_PER_SHARD).max(files_limit / shards / 2)
}

fn check_files(settings: &Settings) -> Finding {
    const SUBJECT: &str = "open files";
    let shards = settings.shards.len().max(1) as u64;
    let least = shards * 256 + 256;
    let need = shards * (FILES_PER_SHARD + settings.config.limits.connections);
    match raise(libc::RLIMIT_NOFILE, u64::MAX) {
        Ok(limit) if limit >= need => {
            Finding::good(SUBJECT, format!("{need} at most, limit {limit}"))
        }
        Ok(limit) if limit >= least => {
            let fit = connections_that_fit(limit, shards);
            Finding::warning(
                SUBJECT,
                format!(
                    "the limit of {limit} leaves {fit} connections per shard: run `ulimit -n {need}` or set LimitNOFILE={need}"
                ),
            )
        }
        Ok(limit) => Finding::failure(
            SUBJECT,
            format!(
                "the limit of {limit} is too low: run `ulimit -n {need}` or set LimitNOFILE={need}"
            ),
        ),
        Err(error) => Finding::failure(SUBJECT, format!("the limit cannot be read: {error}")),
    }
}

fn check_budgets(settings: &Settings) -> Finding {
    const SUBJECT: &str = "memory";
    let limits = &settings.config.limits;
    let each = limits.block_budget_bytes
        + limits.cache_budget_bytes
        + limits.connections_bytes
        + MEMORY_PER_SHARD;
    let need = each.saturating_mul(settings.shards.len() as u64);
    let have = settings.machine.memory_bytes;
    if need > have {
        return Finding::failure(
            SUBJECT,
            format!(
                "{} shards of {} need more than the {} within reach: lower limits.block_budget_bytes, limits.cache_budget_bytes or limits.connections_bytes",
                settings.shards.len(),
                mib(each),
                mib(have)
            ),
        );
    }
    Finding::good(SUBJECT, format!("{} budgeted of {} within reach", mib(need), mib(have)))
}

/// Raises a soft limit to `want` or to the hard limit, whichever is less; never lowers it. Returns the soft limit.
fn raise(resource: libc::__rlimit_resource_t, want: u64) -> std::io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let target = want.min(limit.rlim_max);
    if target > limit.rlim_cur {
        let raised = libc::rlimit { rlim_cur: target, rlim_max: limit.rlim_max };
        // SAFETY: `raised` outlives the call. A refusal leaves the limit as it was, which is what is then returned.
        if unsafe { libc::setrlimit(resource, &raised) } == 0 {
            return Ok(target);
        }
    }
    Ok(limit.rlim_cur)
}

/// Whether this process has CAP_IPC_LOCK, to which RLIMIT_MEMLOCK does not apply.
fn may_lock_without_limit() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

fn kib(bytes: u64) -> String {
    if bytes == u64::MAX { "none".to_owned() } else { format!("{} KiB", bytes >> 10) }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
