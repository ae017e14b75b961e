//! What the documents say of the crate, held against its code.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All Rust code below a directory.
fn code(dir: &Path, into: &mut String) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            code(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).expect("a file in UTF-8"));
        }
    }
}

#[test]
fn every_trap_has_a_test_that_exists() {
    let mut tests = String::new();
    for dir in ["client/src", "client/tests", "bin/tests/client"] {
        code(&root().join(dir), &mut tests);
    }
    let document = read("docs/client.md");
    let (_, table) = document.split_once("## Traps of other clients").expect("the section");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= 30);
    for row in rows {
        let name = row.trim_end_matches([' ', '|', '`']).rsplit('`').next().unwrap_or_default();
        assert!(!name.is_empty() && tests.contains(&format!("fn {name}(")), "no test: {row}");
    }
}

#[test]
fn the_readme_shows_the_program_that_the_crates_documentation_compiles() {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("```rust\n").expect("a program in the README");
    let (program, _) = rest.split_once("```").expect("its end");
    let documented: String = read("client/src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect();
    assert!(documented.contains(program), "lib.rs does not have:\n{program}");
}

#[test]
fn every_example_is_listed_and_run() {
    let (document, runner) = (read("docs/client.md"), read("bin/tests/client/examples.rs"));
    for entry in fs::read_dir(root().join("client/examples")).expect("the examples").flatten() {
        let path = entry.path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        assert!(document.contains(&format!("| `{name}` |")), "docs/client.md lacks {name}");
        assert!(runner.contains(&format!("(\"{name}\",")), "no test runs {name}");
    }
}
