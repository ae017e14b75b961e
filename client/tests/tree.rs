//! The crate's dependencies: nothing that ties a program to one operating system or to one kind of I/O.

use std::process::Command;

#[test]
fn no_part_of_the_dependency_tree_is_bound_to_io_uring() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--manifest-path", manifest, "--all-features"])
        .args(["--edges", "normal,build,dev", "--prefix", "none", "--offline", "--locked"])
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(tree.contains("ringmq-net ") && tree.contains("tokio "), "{tree}");
    for name in ["glommio", "io-uring", "uring-sys", "iou ", "ringmq-engine", "nix "] {
        assert!(!tree.lines().any(|line| line.starts_with(name)), "{name} is in it:\n{tree}");
    }
}
