//! Finding bytes of interest, 64 at a time: one bit for each byte of a block.
//!
//! Strings in headers and property texts end every few bytes, and where one ends decides where the next search begins. With a search per
//! string that chain goes through memory each time; with a word of bits it is a shift and a count.

/// Bytes that one word of bits stands for.
pub(crate) const BLOCK: usize = 64;

/// A bit for each byte that is `a` or `b`; bit 0 is the first byte.
#[inline]
pub(crate) fn either(block: &[u8; BLOCK], a: u8, b: u8) -> u64 {
    lanes::either(block, a, b)
}

/// A bit for each byte that is at most `max`.
#[inline]
pub(crate) fn at_most(block: &[u8; BLOCK], max: u8) -> u64 {
    lanes::at_most(block, max)
}

/// The block at `at`, filled up with `fill` behind the end of `bytes`, and handed to `f`.
#[inline]
pub(crate) fn with_block<T>(
    bytes: &[u8],
    at: usize,
    fill: u8,
    f: impl FnOnce(&[u8; BLOCK]) -> T,
) -> T {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.first_chunk::<BLOCK>() {
        Some(whole) => f(whole),
        None => {
            let mut padded = [fill; BLOCK];
            padded[..rest.len()].copy_from_slice(rest);
            f(&padded)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8,
    };

    use super::BLOCK;

    #[inline]
    pub(super) fn either(block: &[u8; BLOCK], a: u8, b: u8) -> u64 {
        // SAFETY: SSE2 is part of x86-64, and these have no other demand.
        let (a, b) = unsafe { (_mm_set1_epi8(a as i8), _mm_set1_epi8(b as i8)) };
        // SAFETY: as above.
        bits(block, |lane| unsafe {
            _mm_or_si128(_mm_cmpeq_epi8(lane, a), _mm_cmpeq_epi8(lane, b))
        })
    }

    #[inline]
    pub(super) fn at_most(block: &[u8; BLOCK], max: u8) -> u64 {
        // SAFETY: SSE2 is part of x86-64, and these have no other demand.
        let max = unsafe { _mm_set1_epi8(max as i8) };
        // SAFETY: as above.
        bits(block, |lane| unsafe { _mm_cmpeq_epi8(_mm_min_epu8(lane, max), lane) })
    }

    #[inline]
    fn bits(block: &[u8; BLOCK], matches: impl Fn(__m128i) -> __m128i) -> u64 {
        let (lanes, _) = block.as_chunks::<16>();
        let mut bits = 0;
        for (at, lane) in lanes.iter().enumerate() {
            // SAFETY: a lane is 16 bytes, which is what an unaligned load reads; SSE2 is part of x86-64.
            let mask = unsafe {
                _mm_movemask_epi8(matches(_mm_loadu_si128(lane.as_ptr().cast::<__m128i>())))
            };
            bits |= u64::from(mask as u16) << (16 * at);
        }
        bits
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod lanes {
    use super::BLOCK;

    pub(super) fn either(block: &[u8; BLOCK], a: u8, b: u8) -> u64 {
        super::plain(block, |byte| byte == a || byte == b)
    }

    pub(super) fn at_most(block: &[u8; BLOCK], max: u8) -> u64 {
        super::plain(block, |byte| byte <= max)
    }
}

/// The same byte by byte: the definition, and what other processors run.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain(block: &[u8; BLOCK], matches: impl Fn(u8) -> bool) -> u64 {
    let bits = block.iter().enumerate();
    bits.fold(0, |bits, (at, byte)| bits | u64::from(matches(*byte)) << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_find_what_a_search_byte_by_byte_finds() {
        let mut block = [0; BLOCK];
        let mut state = 1u32;
        for _ in 0..20_000 {
            for byte in &mut block {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // All values, the low ones often.
                *byte = if state & 1 == 0 { (state >> 24) as u8 } else { (state >> 24) as u8 & 7 };
            }
            for value in [0, 1, 2, 5, b'"', 127, 128, 255] {
                assert_eq!(at_most(&block, value), plain(&block, |b| b <= value));
                let other = value ^ 7;
                assert_eq!(
                    either(&block, value, other),
                    plain(&block, |b| b == value || b == other)
                );
            }
        }
    }

    #[test]
    fn behind_the_end_only_the_filler_is_seen() {
        for len in 0..BLOCK {
            let bytes = vec![b'x'; len];
            let bits = with_block(&bytes, 0, 0xFF, |block| either(block, b'x', b'y'));
            assert_eq!(bits, (1u64 << len) - 1);
            assert_eq!(with_block(&bytes, len + 9, 0xFF, |block| either(block, b'x', b'y')), 0);
        }
    }
}
