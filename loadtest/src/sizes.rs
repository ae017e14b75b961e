//! How long messages are: one size, or a distribution of them.
//!
//! ```text
//!   1024  16k  2m              each message has that many bytes
//!   100..4k                    evenly between the two
//!   200:70,1k:25,64k:5         sizes with their weights
//!   lognormal:1k:32k           half below the first, 1 % above the second, none above four times the second
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Sizes that a distribution is kept as: quantiles of equal probability.
const QUANTILES: usize = 4096;
/// Longest body.
const SIZE_MAX: usize = 16 << 20;
/// The 99th percentile of the normal distribution.
const NORMAL_P99: f64 = 2.326_347_9;

/// A distribution of sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    text: String,
    /// Equally probable, rising.
    quantiles: Vec<u32>,
}

impl Sizes {
    /// All of one size.
    #[must_use]
    pub fn fixed(bytes: usize) -> Self {
        Sizes { text: bytes.to_string(), quantiles: vec![bytes.min(SIZE_MAX) as u32] }
    }

    /// The size that a random number stands for.
    #[must_use]
    pub fn at(&self, random: u64) -> usize {
        let count = self.quantiles.len() as u64;
        self.quantiles.get((random % count) as usize).map_or(0, |size| *size as usize)
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> usize {
        self.quantiles.last().map_or(0, |size| *size as usize)
    }

    /// The shortest.
    #[must_use]
    pub fn min(&self) -> usize {
        self.quantiles.first().map_or(0, |size| *size as usize)
    }

    /// The same distribution with shorter ones made as long as this.
    #[must_use]
    pub fn at_least(&self, bytes: usize) -> Self {
        let quantiles = self.quantiles.iter().map(|size| (*size).max(bytes as u32)).collect();
        Sizes { text: self.text.clone(), quantiles }
    }

    /// At most `count` sizes that stand for all, equally probable.
    #[must_use]
    pub fn sample(&self, count: usize) -> Vec<usize> {
        let all = self.quantiles.len();
        let count = count.clamp(1, all);
        let middle = |at: usize| (2 * at + 1) * all / (2 * count);
        (0..count)
            .filter_map(|at| self.quantiles.get(middle(at)))
            .map(|size| *size as usize)
            .collect()
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A number stays one for those who read reports.
        match self.text.parse::<u64>() {
            Ok(bytes) => serializer.serialize_u64(bytes),
            Err(_) => serializer.serialize_str(&self.text),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let quantiles = if let Some(rest) = text.strip_prefix("lognormal:") {
            let (median, p99) =
                pair(rest, ':').ok_or("lognormal wants two sizes: lognormal:1k:32k")?;
            let (median, p99) = (bytes(median)?, bytes(p99)?);
            if median == 0 || p99 <= median {
                return Err("lognormal wants a median above 0 and a larger 99th percentile".into());
            }
            lognormal(median as f64, p99 as f64)
        } else if let Some((from, to)) = text.split_once("..") {
            let (from, to) = (bytes(from)?, bytes(to)?);
            if from > to {
                return Err(format!("{text}: the first size is the smaller one"));
            }
            uniform(from, to)
        } else if text.contains(':') {
            weighted(text)?
        } else {
            vec![bytes(text)? as u32]
        };
        Ok(Sizes { text: text.to_owned(), quantiles })
    }
}

fn pair(text: &str, at: char) -> Option<(&str, &str)> {
    text.split_once(at).filter(|(_, second)| !second.contains(at))
}

/// A number of bytes, with `k` and `m` for 2^10 and 2^20.
fn bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let value = digits.parse::<usize>().ok().and_then(|value| value.checked_mul(unit));
    value.filter(|value| *value <= SIZE_MAX).ok_or_else(|| {
        format!("{text} is no size: a number of bytes up to 16m, or a number with k or m")
    })
}

fn uniform(from: usize, to: usize) -> Vec<u32> {
    let last = QUANTILES - 1;
    (0..QUANTILES).map(|at| (from + (to - from) * at / last) as u32).collect()
}

fn weighted(text: &str) -> Result<Vec<u32>, String> {
    let mut parts = Vec::new();
    for part in text.split(',') {
        let (size, weight) = pair(part, ':').ok_or_else(|| format!("{part} is no SIZE:WEIGHT"))?;
        let weight =
            weight.trim().parse::<f64>().ok().filter(|weight| *weight > 0.0 && weight.is_finite());
        parts.push((
            bytes(size)? as u32,
            weight.ok_or_else(|| format!("{part}: a weight is above 0"))?,
        ));
    }
    parts.sort_unstable_by_key(|(size, _)| *size);
    let total: f64 = parts.iter().map(|(_, weight)| weight).sum();
    let mut quantiles = Vec::new();
    for (size, weight) in parts {
        // What is very rare is not left out.
        let count = ((weight / total * QUANTILES as f64).round() as usize).max(1);
        quantiles.extend(std::iter::repeat_n(size, count));
    }
    Ok(quantiles)
}

fn lognormal(median: f64, p99: f64) -> Vec<u32> {
    let sigma = (p99 / median).ln() / NORMAL_P99;
    let most = (4.0 * p99).min(SIZE_MAX as f64);
    normal_quantiles().map(|z| (median * (sigma * z).exp()).clamp(1.0, most) as u32).collect()
}

/// The normal distribution's quantiles, by summing its density up.
fn normal_quantiles() -> impl Iterator<Item = f64> {
    const STEP: f64 = 1e-3;
    let (mut z, mut below) = (-5.0f64, 0.0f64);
    (0..QUANTILES).map(move |at| {
        let wanted = (at as f64 + 0.5) / QUANTILES as f64;
        while below < wanted && z < 5.0 {
            let middle = z + STEP / 2.0;
            below += STEP * (-middle * middle / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            z += STEP;
        }
        z
    })
}

/// What a message is, drawn, and the same each time: which of `kinds`, and its size.
#[must_use]
pub fn draw(
    run_id: u64,
    connection: usize,
    number: u64,
    kinds: usize,
    sizes: &Sizes,
) -> (usize, usize) {
    let random = mix(run_id ^ (connection as u64) << 48 ^ number);
    ((random >> 32) as usize % kinds.max(1), sizes.at(random & 0xFFFF_FFFF))
}

/// Which of so many keys a message has.
#[must_use]
pub fn draw_key(connection: usize, number: u64, keys: u64) -> u64 {
    mix(number << 16 ^ connection as u64) % keys.max(1)
}

/// A random number for `seed`: splitmix64's finalizer, so that neighbours have nothing in common.
#[must_use]
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> Vec<usize> {
        let sizes: Sizes = text.parse().unwrap();
        let mut drawn: Vec<_> = (0..20_000).map(|number| sizes.at(mix(number))).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= sizes.min() && drawn[drawn.len() - 1] <= sizes.max());
        drawn
    }

    #[test]
    fn each_form_draws_the_sizes_that_it_names() {
        assert!(drawn("1k").iter().all(|size| *size == 1024));
        let uniform = drawn("100..300");
        assert!(uniform[0] < 105 && (195..205).contains(&uniform[10_000]) && uniform[19_999] > 295);
        let weighted = drawn("64k:1,200:9");
        let long = weighted.iter().filter(|size| **size == 65_536).count();
        assert!((1_800..2_200).contains(&long), "{long}");
        assert!(weighted.iter().all(|size| [200, 65_536].contains(size)));
        let rare: Sizes = "10:1000000,20:1".parse().unwrap();
        assert_eq!(rare.max(), 20);
        let lognormal = drawn("lognormal:1k:32k");
        assert!((950..1_100).contains(&lognormal[10_000]), "{}", lognormal[10_000]);
        assert!((28_000..37_000).contains(&lognormal[19_800]), "{}", lognormal[19_800]);
        assert!(lognormal[19_999] <= 4 << 15);
    }

    #[test]
    fn a_sample_stands_for_all() {
        let sizes: Sizes = "0..1600".parse().unwrap();
        let sample = sizes.sample(16);
        assert_eq!(sample.len(), 16);
        assert!(
            sample.iter().zip(0..).all(|(size, at)| size.abs_diff(50 + 100 * at) < 2),
            "{sample:?}"
        );
        assert_eq!(Sizes::fixed(7).sample(16), [7]);
        let raised = sizes.at_least(100);
        assert_eq!((raised.min(), raised.max(), raised.sample(16)[1]), (100, 1600, sample[1]));
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in [
            "",
            "x",
            "-1",
            "17m",
            "5..1",
            "1:",
            "1:0",
            "1:x",
            "lognormal:5",
            "lognormal:9:3",
            "1:1:1",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
