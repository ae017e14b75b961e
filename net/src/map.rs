//! Tables whose keys come from the network.
//!
//! A hash without a secret lets a peer choose names that all fall into one bucket, and then each look-up of a table walks all of
//! them. These tables hash with keys that are drawn at random when the process starts. Tables keyed by numbers that we give out
//! ourselves need none of it, and use a faster hash.

use std::collections::{HashMap, HashSet};

pub use ahash::RandomState as Seed;

/// A table whose keys somebody else chooses.
pub type SeededMap<K, V> = HashMap<K, V, Seed>;

/// A set whose members somebody else chooses.
pub type SeededSet<T> = HashSet<T, Seed>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tables_hash_the_same_name_differently() {
        // Were the keys constants of the library, collisions could be computed at home.
        let (one, other) = (Seed::new(), Seed::new());
        let names = (0..100).map(|n| format!("topic-{n}"));
        let same = names.filter(|name| one.hash_one(name) == other.hash_one(name)).count();
        assert!(same < 3, "{same} of 100 hashes agree");
    }
}
