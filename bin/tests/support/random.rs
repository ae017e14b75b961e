//! Numbers from a seed that is printed and can be given again by `RINGMQ_TEST_SEED`.

/// A small generator (splitmix64): good enough to choose moments and sizes.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The seed of `RINGMQ_TEST_SEED`, or one from the clock; printed in either case.
    pub fn from_env(what: &str) -> Random {
        let seed = match std::env::var("RINGMQ_TEST_SEED") {
            Ok(text) => text.parse().expect("RINGMQ_TEST_SEED is a number"),
            Err(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |d| d.as_nanos() as u64),
        };
        println!("{what}: RINGMQ_TEST_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
