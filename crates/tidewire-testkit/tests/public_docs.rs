//! Every type, trait and function that `tidewire` exports shows a compiled example, or links to an item that shows one.
//!
//! Problem: the compiler asks for a doc comment, not for a useful one. Approach: the listing `.ci/public-api.txt` names
//! what is exported; a scan of the sources finds the doc comment of each name. `rustfmt` fixes the layout, so that a
//! scan of lines is enough, and it sees items inside macros, too. Sections `# Errors` are clippy's part:
//! `missing_errors_doc` is on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The documentation of an item, by `Type`, `Type::method` or `function`.
type Docs = BTreeMap<String, Vec<String>>;

const KINDS: [&str; 5] = ["struct", "enum", "trait", "type", "fn"];

#[test]
fn every_exported_item_has_an_example_or_links_to_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listing = fs::read_to_string(root.join(".ci/public-api.txt")).expect("the listing");
    let mut docs = Docs::new();
    for file in sources(&root.join("crates/tidewire/src")) {
        scan(&fs::read_to_string(file).expect("a source file"), &mut docs);
    }

    let exported = exported(&listing);
    assert!(exported.len() > 50, "the listing is not read: {exported:?}");
    let failures: Vec<_> = exported
        .into_iter()
        .filter_map(|name| failure(&name, &docs))
        .collect();
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

#[test]
fn an_item_without_example_is_found() {
    let source = "\
/// A door.
pub struct Door;

impl Door {
    /// Opens it.
    ///
    /// ```
    /// Door.open();
    /// ```
    pub fn open(&self) {}
}

/// A key of a door; see [its example](Door::open).
#[derive(Debug)]
#[error(
    transparent
)]
pub struct Key;

/// A lock. See [`Door`].
pub enum Lock {}

/// ```text
/// a drawing
/// ```
pub trait Wall {
    /// ```no_run
    /// panic!();
    /// ```
    fn fall(&self);
}

pub trait Gate {}

/// See [`Self::fall`] and [`Wall::fall`].
pub type Walls = Vec<Box<dyn Wall>>;
";
    let mut docs = Docs::new();
    scan(source, &mut docs);
    let fails = |name| failure(name, &docs).is_some();
    assert!(fails("Door"));
    assert!(!fails("Key"));
    assert!(fails("Lock"));
    assert!(fails("Wall"));
    assert!(!fails("Walls"));
    assert!(fails("Window"), "a name that is in no source");
}

/// Says how an item breaks the rule.
fn failure(name: &str, docs: &Docs) -> Option<String> {
    let Some(own) = docs.get(name) else {
        return Some(format!("{name}: no source declares it as `pub`"));
    };
    let is_example = |target: &String| docs.get(target).is_some_and(|docs| has_example(docs));
    if has_example(own) || links(own, name).iter().any(is_example) {
        return None;
    }
    Some(format!(
        "{name}: its documentation has no compiled example and no link to an item that has one"
    ))
}

/// The names of the types, traits and functions that are listed; methods, fields and variants are left out.
fn exported(listing: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in listing.lines() {
        let line = without_parameters(line);
        let item = line.split_once("pub ").map_or("", |(_, item)| item);
        let (kind, path) = item.split_once(' ').unwrap_or_default();
        let end = path.find(|c| !(is_name(c) || c == ':'));
        let path = path[..end.unwrap_or(path.len())].trim_end_matches(':');
        let (modules, name) = path.rsplit_once("::").unwrap_or_default();
        let mut modules = modules.split("::");
        if KINDS.contains(&kind) && modules.next() == Some("tidewire") && !modules.any(is_type) {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The text without its parts in angle brackets.
fn without_parameters(text: &str) -> String {
    let mut depth = 0;
    let outside = |c: &char| {
        let before = depth;
        depth += i32::from(*c == '<') - i32::from(*c == '>');
        before == 0 && depth == 0
    };
    text.replace("->", "").chars().filter(outside).collect()
}

fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Adds the documentation of the `pub` items of a file, of its methods, and of the methods of its traits.
fn scan(source: &str, docs: &mut Docs) {
    let mut comment = Vec::new();
    // The type or trait of the current block, and the block's indentation.
    let mut block: Option<(usize, String)> = None;
    let mut in_attribute = false;
    for line in source.lines() {
        let code = line.trim_start();
        let indentation = line.len() - code.len();
        if let Some(text) = code.strip_prefix("///") {
            comment.push(text.strip_prefix(' ').unwrap_or(text).to_owned());
            continue;
        }
        if in_attribute || code.starts_with("#[") {
            in_attribute = !code.ends_with(']');
            continue;
        }
        let comment = std::mem::take(&mut comment);
        if let Some(header) = code.strip_prefix("impl") {
            block = implemented(header).map(|name| (indentation, name));
            continue;
        }
        if code.starts_with('}')
            && block
                .as_ref()
                .is_some_and(|(begin, _)| *begin == indentation)
        {
            block = None;
        }
        let item = match code.strip_prefix("pub ") {
            Some(item) => item,
            None if block.is_some() => code,
            None => continue,
        };
        let Some((kind, name)) = declared(item) else {
            continue;
        };
        let key = match &block {
            Some((_, owner)) => format!("{owner}::{name}"),
            None => name.to_owned(),
        };
        docs.entry(key).or_default().extend(comment);
        if kind == "trait" && !code.ends_with("{}") {
            block = Some((indentation, name.to_owned()));
        }
    }
}

/// The kind and the name of a declared item.
fn declared(code: &str) -> Option<(&str, &str)> {
    let code = code.strip_prefix("const ").unwrap_or(code);
    let (kind, rest) = code.split_once(' ')?;
    let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
    KINDS.contains(&kind).then_some((kind, name))
}

/// The type of an `impl` without a trait, from the text after this word.
fn implemented(header: &str) -> Option<String> {
    let header = without_parameters(header);
    let header = header.trim_start();
    let end = header.find(|c| !is_name(c)).unwrap_or(header.len());
    (!header.contains(" for ")).then(|| header[..end].to_owned())
}

/// Whether the documentation has a block of code that `cargo test --doc` compiles.
fn has_example(docs: &[String]) -> bool {
    let fences = docs
        .iter()
        .filter_map(|line| line.trim().strip_prefix("```"));
    let is_compiled = |word| ["", "no_run", "rust"].contains(&word);
    // Every second fence ends a block.
    fences
        .step_by(2)
        .any(|info| info.split(',').all(is_compiled))
}

/// The items that the documentation of `owner` links to, by the keys of [`Docs`].
fn links(docs: &[String], owner: &str) -> Vec<String> {
    let text = docs.join(" ");
    let mut found = Vec::new();
    for (begin, _) in text.match_indices('[') {
        let Some((label, rest)) = text[begin + 1..].split_once(']') else {
            continue;
        };
        let target = rest
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map_or(label, |(target, _)| target);
        let target = target.trim_matches('`').trim_end_matches("()");
        let mut names = target.rsplit("::");
        let name = names.next().unwrap_or_default();
        found.push(match names.next() {
            Some("Self") => format!("{owner}::{name}"),
            Some(of) if is_type(of) => format!("{of}::{name}"),
            _ => name.to_owned(),
        });
    }
    found
}

/// The files below a directory that hold no tests.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            found.push(path);
        }
    }
    found
}
