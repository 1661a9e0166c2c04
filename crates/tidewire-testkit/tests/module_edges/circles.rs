//! The files of a crate use each other in no circle.
//!
//! Problem: floors order the folders of a crate, and two files of one folder may still need each other, so that neither
//! is read alone. Approach: every path of a file is followed through the names that modules pass on, to the file that
//! has the item. Uses of a file's own module are no circle, because a folder has its common types in its `mod.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use syn::Item;
use syn::visit::Visit;
use tempfile::TempDir;

use crate::finder::Finder;
use crate::sources::{Files, RootNames, Source};
use crate::syntax::leaves;
use crate::{crates, repository};

/// The crates that still have some. A crate leaves when its last circle does.
const WITH_CIRCLES: [&str; 4] = [
    "tidewire",
    "tidewire-bench",
    "tidewire-proto",
    "tidewire-testkit",
];

#[test]
fn files_use_each_other_in_no_circle() {
    let root = repository();
    let mut failures = Vec::new();
    for (name, directory) in crates(&root) {
        let files = Files::of(&root, &directory);
        let circles = Graph::of(&files).circles();
        if WITH_CIRCLES.contains(&name.as_str()) {
            if circles.is_empty() {
                failures.push(format!(
                    "{name} has no circles any more: remove it from `WITH_CIRCLES`"
                ));
            }
            continue;
        }
        for circle in circles {
            let paths = circle
                .iter()
                .map(|file| files.0[*file].path.strip_prefix(&root));
            let paths: Vec<_> = paths
                .map(|path| {
                    path.expect("a file of the repository")
                        .display()
                        .to_string()
                })
                .collect();
            let paths = paths.join(", ");
            failures.push(format!(
                "{paths} use each other: move what they share into a file below them"
            ));
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

#[test]
fn a_circle_through_a_name_that_the_folder_passes_on_is_found() {
    let circles = |low: &str| {
        let root = TempDir::new().expect("a temporary directory");
        let folder = "mod low;\nmod high;\npub use self::high::High;\npub struct Common;\n";
        let high = "use super::{low::Low, Common};\npub struct High(Low, Common);\n";
        let src = root.path().join("made-up/src");
        fs::create_dir_all(src.join("folder")).expect("a directory");
        for (name, text) in [
            ("lib.rs", "mod folder;\n"),
            ("folder/mod.rs", folder),
            ("folder/high.rs", high),
            ("folder/low.rs", low),
        ] {
            fs::write(src.join(name), text).expect("a file");
        }
        Graph::of(&Files::of(root.path(), "made-up"))
            .circles()
            .len()
    };
    assert_eq!(circles("use super::Common;\npub struct Low(Common);\n"), 0);
    assert_eq!(circles("pub struct Low(Vec<super::High>);\n"), 1);
}

/// The files that each file uses, by their numbers.
struct Graph(Vec<BTreeSet<usize>>);

impl Graph {
    fn of(files: &Files) -> Self {
        let root_names = RootNames::of(&files.0);
        let places = files.0.iter().enumerate();
        let places = places
            .map(|(file, source)| (&source.module[..], file))
            .collect();
        let passed_on = files
            .0
            .iter()
            .map(|source| passed_on(source, &root_names))
            .collect();
        let names = Names { places, passed_on };
        let uses = |source: &Source| {
            let mut finder = Finder::new(String::new(), source.module.clone(), &root_names);
            finder.visit_file(&source.syntax);
            let used = finder
                .paths
                .iter()
                .filter_map(|path| names.file_of(path, STEPS_MAX));
            used.filter(|used| !source.module.starts_with(&files.0[*used].module))
                .collect()
        };
        Self(files.0.iter().map(uses).collect())
    }

    /// The groups of files of which each uses all others, directly or through others.
    fn circles(&self) -> BTreeSet<Vec<usize>> {
        let reached: Vec<BTreeSet<usize>> =
            (0..self.0.len()).map(|file| self.reached(file)).collect();
        let in_circles = (0..self.0.len()).filter(|file| reached[*file].contains(file));
        let circle = |file: usize| {
            let both = reached[file]
                .iter()
                .filter(|other| reached[**other].contains(&file));
            both.copied().collect()
        };
        in_circles.map(circle).collect()
    }

    /// The files that a file uses, directly or through others.
    fn reached(&self, from: usize) -> BTreeSet<usize> {
        let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(file) = left.pop() {
            left.extend(self.0[file].iter().filter(|next| reached.insert(**next)));
        }
        reached
    }
}

/// Where names lead to.
struct Names<'f> {
    /// The file of each module.
    places: BTreeMap<&'f [String], usize>,
    /// The names that each file imports, each with its path from the root on.
    passed_on: Vec<BTreeMap<String, Vec<String>>>,
}

impl Names<'_> {
    /// The file that has the item at a path, if it is in this crate. An import may lead to itself, so there are at most
    /// so many steps.
    fn file_of(&self, path: &[String], steps: usize) -> Option<usize> {
        let modules = (0..=path.len()).rev();
        let module = modules
            .map(|length| &path[..length])
            .find(|module| self.places.contains_key(module))?;
        let file = self.places[module];
        let import = path
            .get(module.len())
            .and_then(|name| self.passed_on[file].get(name));
        match import {
            Some(import) if steps > 0 => {
                let whole = [&import[..], &path[module.len() + 1..]].concat();
                self.file_of(&whole, steps - 1)
            }
            _ => Some(file),
        }
    }
}

fn passed_on(source: &Source, root_names: &RootNames) -> BTreeMap<String, Vec<String>> {
    let finder = Finder::new(String::new(), source.module.clone(), root_names);
    let uses = source.syntax.items.iter().filter_map(|item| match item {
        Item::Use(used) => Some(leaves(used)),
        _ => None,
    });
    let named = uses
        .flatten()
        .filter_map(|leaf| Some((leaf.name?, finder.rooted(&leaf.path)?)));
    named.collect()
}

/// Most modules that pass a name on to each other.
const STEPS_MAX: usize = 8;
