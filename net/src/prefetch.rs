//! Asking for memory before it is needed.

/// Bytes of a cache line on every processor this runs on, or a part of one.
const LINE_BYTES: usize = 64;

/// Most bytes that one call fetches. In longer ones the processor sees by itself where the work goes on.
const BYTES_MAX: usize = 2048;

/// Has the processor bring the beginning of `bytes` into its caches while it goes on. A hint: nothing is read, and nothing else happens where there is no
/// such instruction.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes[..bytes.len().min(BYTES_MAX)].chunks(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch never faults, and this address is inside the slice; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast::<i8>()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
