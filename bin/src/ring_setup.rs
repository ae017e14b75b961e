//! How the program's io_urings are made.
//!
//! glommio asks for no flags and has no way to ask for any. Without IORING_SETUP_COOP_TASKRUN, each completion interrupts the reactor
//! wherever it runs, by an interrupt from the processor on which it was noticed; with it, completions wait for the reactor's next system
//! call, which a busy reactor makes every few microseconds, and the metronome's signal bounds it for one that makes none. That is a tenth
//! of the processor time of small requests. The linker sends the call here: see `build.rs`.

use std::ffi::{c_int, c_uint};

/// Kernel 5.19 and later.
const IORING_SETUP_COOP_TASKRUN: u32 = 1 << 8;

/// `struct io_uring_params` as the kernel has it; only the flags matter here.
#[repr(C)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    rest: [u32; 27],
}

/// In place of the `io_uring_setup` of glommio's liburing: -1 and `errno` on failure.
///
/// # Safety
/// `params` points to the kernel's structure, which nobody else uses meanwhile.
#[unsafe(export_name = "__wrap___sys_io_uring_setup")]
unsafe extern "C" fn io_uring_setup(entries: c_uint, params: *mut Params) -> c_int {
    // SAFETY: the caller's promise. A field is written, so no reference to memory that the kernel writes is made.
    unsafe {
        let asked = (*params).flags;
        (*params).flags = asked | IORING_SETUP_COOP_TASKRUN;
        let ring = libc::syscall(libc::SYS_io_uring_setup, entries, params);
        if ring >= 0 || *libc::__errno_location() != libc::EINVAL {
            return ring as c_int;
        }
        // An older kernel, or a ring that this does not go with.
        (*params).flags = asked;
        libc::syscall(libc::SYS_io_uring_setup, entries, params) as c_int
    }
}
