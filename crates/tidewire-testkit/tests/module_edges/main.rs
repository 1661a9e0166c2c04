//! In every crate, a top-level module uses only modules of lower floors. docs/tree.md lists the floors.
//!
//! Problem: the compiler accepts modules that use each other in a circle, and then none of them can be read, tested or
//! moved alone. Approach: [`sources`] and [`finder`] parse the sources and find every path that leads from one
//! top-level module to another; [`floors`] compares these edges with the blocks of docs/tree.md. Any circle has an edge
//! that leads up or sideways, so a crate that passes has none. [`circles`] finds circles between the files of a folder.
//! Rejected: a search of the text, which does not see paths with `super`, or names that the crate's root re-exports.

mod circles;
mod finder;
mod floors;
mod made_up;
mod plain_data;
mod sources;
mod syntax;
mod walls;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use floors::{Floors, violations};
use sources::Sources;

#[test]
fn modules_use_only_modules_of_lower_floors() {
    let root = repository();
    let document = fs::read_to_string(root.join("docs/tree.md")).expect("docs/tree.md");
    let floors = Floors::of_all_crates(&document);
    let crates = crates(&root);

    let mut failures = Vec::new();
    for name in floors.keys() {
        if !crates.contains_key(name) {
            failures.push(format!(
                "docs/tree.md has floors of {name}, which is no crate"
            ));
        }
    }
    for (name, directory) in &crates {
        match floors.get(name) {
            Some(floors) => {
                let sources = Sources::read(&root, directory);
                failures.extend(violations(&sources, floors));
            }
            None => failures.push(format!("docs/tree.md has no floors of {name}")),
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

/// The crates of this workspace and the benchmark, each with its directory.
fn crates(root: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(root.join("crates")).expect("the crates");
    let directories = entries.map(|entry| entry.expect("a crate's directory"));
    directories
        .filter(|directory| directory.path().join("Cargo.toml").is_file())
        .map(|directory| directory.file_name().into_string().expect("a crate's name"))
        .map(|name| (name.clone(), format!("crates/{name}")))
        .chain([("tidewire-bench".to_owned(), "bench/harness".to_owned())])
        .collect()
}

fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}
