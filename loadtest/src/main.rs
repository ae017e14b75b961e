//! The load harness.

fn main() {}
