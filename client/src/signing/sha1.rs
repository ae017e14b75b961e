//! SHA-1 (RFC 3174) and HMAC by it (RFC 2104), by which RocketMQ 4.x signs requests.

const BLOCK_BYTES: usize = 64;
const START: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];

/// A digest that bytes are added to.
#[derive(Clone)]
struct Sha1 {
    state: [u32; 5],
    /// The beginning of a block that is not full.
    rest: [u8; BLOCK_BYTES],
    bytes: u64,
}

impl Sha1 {
    fn new() -> Self {
        Sha1 { state: START, rest: [0; BLOCK_BYTES], bytes: 0 }
    }

    fn add(&mut self, mut bytes: &[u8]) {
        let filled = (self.bytes % BLOCK_BYTES as u64) as usize;
        self.bytes += bytes.len() as u64;
        if filled > 0 {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - filled));
            self.rest[filled..filled + now.len()].copy_from_slice(now);
            if filled + now.len() < BLOCK_BYTES {
                return;
            }
            self.state = block(self.state, &self.rest);
            bytes = later;
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        self.state = blocks.iter().fold(self.state, block);
        self.rest[..rest.len()].copy_from_slice(rest);
    }

    fn finish(mut self) -> [u8; 20] {
        let bits = self.bytes * 8;
        let filled = (self.bytes % BLOCK_BYTES as u64) as usize;
        let padding = if filled < 56 { 56 - filled } else { 120 - filled };
        let mut end = [0; BLOCK_BYTES];
        end[0] = 0x80;
        self.add(&end[..padding]);
        self.add(&bits.to_be_bytes());
        let mut digest = [0; 20];
        for (out, word) in digest.chunks_exact_mut(4).zip(self.state) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }
}

fn block(state: [u32; 5], bytes: &[u8; BLOCK_BYTES]) -> [u32; 5] {
    let mut words = [0; 80];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for t in 16..80 {
        words[t] = (words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = state;
    for (t, word) in words.into_iter().enumerate() {
        let (mix, constant) = match t / 20 {
            0 => ((b & c) | (!b & d), 0x5a82_7999),
            1 => (b ^ c ^ d, 0x6ed9_eba1),
            2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc_u32),
            _ => (b ^ c ^ d, 0xca62_c1d6),
        };
        let sum = a.rotate_left(5).wrapping_add(mix).wrapping_add(e);
        let sum = sum.wrapping_add(word).wrapping_add(constant);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, sum);
    }
    let mut next = state;
    for (word, add) in next.iter_mut().zip([a, b, c, d, e]) {
        *word = word.wrapping_add(add);
    }
    next
}

/// An HMAC whose key is set: it is copied for each message.
#[derive(Clone)]
pub(super) struct Hmac {
    inner: Sha1,
    outer: Sha1,
}

impl Hmac {
    pub(super) fn new(key: &[u8]) -> Self {
        let mut padded = [0; BLOCK_BYTES];
        if key.len() > BLOCK_BYTES {
            let mut long = Sha1::new();
            long.add(key);
            padded[..20].copy_from_slice(&long.finish());
        } else {
            padded[..key.len()].copy_from_slice(key);
        }
        let keyed = |pad: u8| {
            let mut digest = Sha1::new();
            digest.add(&padded.map(|byte| byte ^ pad));
            digest
        };
        Hmac { inner: keyed(0x36), outer: keyed(0x5c) }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.inner.add(bytes);
    }

    pub(super) fn finish(mut self) -> [u8; 20] {
        self.outer.add(&self.inner.finish());
        self.outer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_standard_however_bytes_come() {
        let million = vec![b'a'; 1_000_000];
        for (text, expected) in [
            (&b""[..], "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            (b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
            ),
            (&million, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
        ] {
            for part in [1, 7, 63, 64, 65, 1000] {
                let mut digest = Sha1::new();
                text.chunks(part).for_each(|bytes| digest.add(bytes));
                assert_eq!(hex(&digest.finish()), expected, "in parts of {part}");
            }
        }
    }

    #[test]
    fn authentication_codes_are_those_of_rfc_2202() {
        for (key, text, expected) in [
            (&[0x0b; 20][..], &b"Hi There"[..], "b617318655057264e28bc0b6fb378c8ef146be00"),
            (b"Jefe", b"what do ya want for nothing?", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (
                &[0xaa; 80],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "aa4ae5e15272d00e95705637ce8a3b55ed402112",
            ),
        ] {
            let mut code = Hmac::new(key);
            code.add(text);
            assert_eq!(hex(&code.finish()), expected);
        }
    }
}
