//! io_uring: present, allowed, and with every operation that glommio uses.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

use super::Finding;

const SUBJECT: &str = "io_uring";

/// The operations that glommio 0.9 demands, by their numbers in `linux/io_uring.h`. Without one of them it ends the process.
const NEEDED: &[(u8, &str)] = &[
    (0, "NOP"),
    (1, "READV"),
    (2, "WRITEV"),
    (3, "FSYNC"),
    (4, "READ_FIXED"),
    (5, "WRITE_FIXED"),
    (6, "POLL_ADD"),
    (7, "POLL_REMOVE"),
    (9, "SENDMSG"),
    (10, "RECVMSG"),
    (11, "TIMEOUT"),
    (12, "TIMEOUT_REMOVE"),
    (13, "ACCEPT"),
    (15, "LINK_TIMEOUT"),
    (16, "CONNECT"),
    (17, "FALLOCATE"),
    (18, "OPENAT"),
    (19, "CLOSE"),
    (21, "STATX"),
    (22, "READ"),
    (23, "WRITE"),
    (26, "SEND"),
    (27, "RECV"),
];

const REGISTER_PROBE: libc::c_uint = 8;
const OP_SUPPORTED: u16 = 1;
const OPS_MAX: usize = 256;

/// `struct io_uring_params`; only its size matters here.
#[repr(C)]
struct Params([u8; 120]);

/// `struct io_uring_probe_op`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProbeOp {
    op: u8,
    reserved: u8,
    flags: u16,
    reserved2: u32,
}

/// `struct io_uring_probe` with room for every operation.
#[repr(C)]
struct Probe {
    last_op: u8,
    ops_len: u8,
    reserved: u16,
    reserved2: [u32; 3],
    ops: [ProbeOp; OPS_MAX],
}

pub(super) fn check() -> Vec<Finding> {
    vec![match probe() {
        Ok(missing) if missing.is_empty() => {
            Finding::good(SUBJECT, format!("kernel {}", kernel_release()))
        }
        Ok(missing) => Finding::failure(
            SUBJECT,
            format!(
                "kernel {} lacks {}: run on Linux 5.8 or newer",
                kernel_release(),
                missing.join(", ")
            ),
        ),
        Err(errno) => Finding::failure(SUBJECT, remedy(errno, &sysctl_disabled())),
    }]
}

/// The operations that are missing, or the error number of what refused.
fn probe() -> Result<Vec<&'static str>, i32> {
    let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let mut params = Params([0; 120]);
    // SAFETY: the kernel reads and writes at most the 120 bytes of the structure, which outlives the call.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, &mut params) };
    if ring < 0 {
        return Err(errno());
    }
    // SAFETY: the call returned a descriptor that nobody else owns.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let mut probe = Probe {
        last_op: 0,
        ops_len: 0,
        reserved: 0,
        reserved2: [0; 3],
        ops: [ProbeOp::default(); OPS_MAX],
    };
    let raw = std::os::fd::AsRawFd::as_raw_fd(&ring);
    // SAFETY: `probe` has room for the OPS_MAX entries that the last argument states, and outlives the call.
    let outcome = unsafe {
        libc::syscall(libc::SYS_io_uring_register, raw, REGISTER_PROBE, &mut probe, OPS_MAX)
    };
    if outcome < 0 {
        return Err(errno());
    }
    let supported = |op: u8| {
        let entries = &probe.ops[..usize::from(probe.ops_len)];
        entries.iter().any(|entry| entry.op == op && entry.flags & OP_SUPPORTED != 0)
    };
    Ok(NEEDED.iter().filter(|(op, _)| !supported(*op)).map(|(_, name)| *name).collect())
}

fn remedy(errno: i32, sysctl: &str) -> String {
    match (errno, sysctl) {
        (_, "1" | "2") => format!("kernel.io_uring_disabled = {sysctl} forbids it: run `sysctl -w kernel.io_uring_disabled=0`"),
        (libc::ENOSYS, _) => "the kernel has none, or a seccomp profile hides it: run on Linux 5.8 or newer, and in a container with a \
                              profile that allows io_uring_setup, io_uring_enter and io_uring_register"
            .to_owned(),
        (libc::EPERM | libc::EACCES, _) => "a seccomp profile or security module forbids it: allow io_uring_setup, io_uring_enter and \
                                            io_uring_register (Docker: --security-opt seccomp=PROFILE)"
            .to_owned(),
        (libc::ENOMEM, _) => "locked memory is used up: raise the limit with `ulimit -l` or LimitMEMLOCK=".to_owned(),
        (libc::EMFILE | libc::ENFILE, _) => "no file descriptor is left: raise the limit with `ulimit -n` or LimitNOFILE=".to_owned(),
        (libc::EINVAL, _) => "the kernel cannot list its operations: run on Linux 5.8 or newer".to_owned(),
        (other, _) => format!("{}: check the kernel's log", std::io::Error::from_raw_os_error(other)),
    }
}

fn sysctl_disabled() -> String {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default().trim().to_owned()
}

fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_what_glommio_needs() {
        assert_eq!(probe(), Ok(Vec::new()));
    }

    #[test]
    fn each_refusal_has_a_remedy_in_one_line() {
        for (errno, sysctl, part) in [
            (libc::EPERM, "2", "sysctl -w"),
            (libc::EPERM, "0", "seccomp"),
            (libc::ENOSYS, "", "Linux 5.8"),
            (libc::ENOMEM, "", "ulimit -l"),
            (libc::EMFILE, "", "ulimit -n"),
            (libc::EIO, "", "kernel's log"),
        ] {
            let text = remedy(errno, sysctl);
            assert!(
                text.contains(part) && !text.contains('\n') && !text.contains("  "),
                "{errno}: {text}"
            );
        }
    }
}
