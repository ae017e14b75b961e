//! How the C library's allocator is told to treat the log's blocks.

/// Allocations up to this size come from the heap and go back to it. The largest that glibc accepts.
const MMAP_THRESHOLD_BYTES: libc::c_int = 32 << 20;
/// Free memory at the end of a heap that is kept rather than given back to the kernel.
const TRIM_THRESHOLD_BYTES: libc::c_int = 512 << 20;

/// Keeps freed blocks in the process.
///
/// A log block is 8 KiB to 1 MiB and lives until the budget of recent blocks pushes it out, so blocks are freed as fast as they
/// are made. By default glibc maps and unmaps each large one, and the kernel clears every page anew: a third of a broker's time
/// under load. The memory kept is bounded by the configured budgets.
pub fn keep_freed_blocks() {
    // SAFETY: these calls only set the allocator's parameters; they are made before any thread is started.
    let set = unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
            & libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    };
    if set == 0 {
        tracing::warn!("the allocator refused its parameters: expect more CPU time per message");
    }
}
