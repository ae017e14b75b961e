//! MD5 (RFC 1321), which stock's consistent hash places clients and queues by. Nothing here guards anything.

/// Rotations of the four rounds.
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The first four bytes of a text's digest, the first one highest.
pub(super) fn first_word(text: &str) -> u32 {
    digest(text.as_bytes())[0].swap_bytes()
}

/// The digest as four words, each to be written with its lowest byte first.
fn digest(bytes: &[u8]) -> [u32; 4] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - bytes.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let at = padded.len() - 8;
    padded[at..].copy_from_slice(&(bytes.len() as u64 * 8).to_le_bytes());
    let start = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    padded.chunks_exact(64).fold(start, block)
}

fn block(state: [u32; 4], chunk: &[u8]) -> [u32; 4] {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(chunk.chunks_exact(4)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    let [mut a, mut b, mut c, mut d] = state;
    for i in 0..64 {
        let (mix, word) = match i / 16 {
            0 => ((b & c) | (!b & d), i),
            1 => ((d & b) | (!d & c), (5 * i + 1) % 16),
            2 => (b ^ c ^ d, (3 * i + 5) % 16),
            _ => (c ^ (b | !d), (7 * i) % 16),
        };
        // The table of RFC 1321 by its definition.
        let constant = (((i + 1) as f64).sin().abs() * 4_294_967_296.0) as u32;
        let sum = a.wrapping_add(mix).wrapping_add(constant).wrapping_add(words[word]);
        let turned = b.wrapping_add(sum.rotate_left(SHIFTS[i / 16][i % 4]));
        (a, d, c, b) = (d, c, b, turned);
    }
    let [a0, b0, c0, d0] = state;
    [a0.wrapping_add(a), b0.wrapping_add(b), c0.wrapping_add(c), d0.wrapping_add(d)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        let bytes = digest(text.as_bytes()).into_iter().flat_map(u32::to_le_bytes);
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_rfc() {
        for (text, wanted) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            (&"1234567890".repeat(8), "57edf4a22be3c955ac49da2e2107b67a"),
            (&"x".repeat(55), "04364420e25c512fd958a70738aa8f72"),
            (&"x".repeat(56), "668a72d5ba17f08e62dabcafad6db14b"),
        ] {
            assert_eq!(hex(text), wanted, "{text}");
        }
        assert_eq!(first_word("abc"), 0x9001_5098);
    }
}
