//! Tests of the checker itself, on small made-up crates.

use std::fs;

use tempfile::TempDir;

use crate::floors::{Floors, violations};
use crate::sources::Sources;

/// Checks a crate `made-up` with these files below `src` against these floors, and returns its failures.
fn check(floors: &str, files: &[(&str, &str)]) -> Vec<String> {
    let root = TempDir::new().expect("a temporary directory");
    for (name, text) in files {
        let path = root.path().join("made-up/src").join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    let document = format!("# A document\n\n```floors\nmade-up\n{floors}\n```\n\nMore of it.\n");
    let floors = &Floors::of_all_crates(&document)["made-up"];
    violations(&Sources::read(root.path(), "made-up"), floors)
}

fn edge(at: &str, used: &str, stands: &str) -> String {
    format!(
        "made-up/src/{at} uses `{used}`, which stands {stands} in docs/tree.md; move what both need down"
    )
}

const TWO: (&str, &str) = ("lib.rs", "mod low;\nmod high;\n");

#[test]
fn a_module_may_use_modules_of_lower_floors() {
    let high = "use crate::low::f;\n\nfn g() {\n    f();\n    self::own();\n}\n\nfn own() {}\n";
    let files = [TWO, ("low.rs", "pub(crate) fn f() {}\n"), ("high.rs", high)];
    assert_eq!(check("low\nhigh", &files), [""; 0]);
}

#[test]
fn an_edge_up_and_one_sideways_are_found() {
    let files = [
        TWO,
        ("low.rs", "\nuse std::fmt;\nuse crate::high::{self, f};\n"),
        ("high.rs", "pub(crate) fn f() {}\n"),
    ];
    assert_eq!(
        check("low\nhigh", &files),
        [edge("low.rs:3", "high", "above it")]
    );
    assert_eq!(
        check("low high", &files),
        [edge("low.rs:3", "high", "beside it")]
    );
    assert_eq!(check("high\nlow", &files), [""; 0]);
}

#[test]
fn a_cycle_has_no_floors_that_pass() {
    let files = [
        ("main.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "use crate::b::B;\n"),
        ("b/mod.rs", "mod inner;\n"),
        ("b/inner.rs", "use crate::c::C;\n"),
        ("c.rs", "use crate::a::A;\n"),
    ];
    for floors in [
        "a b c", "a\nb\nc", "a\nc\nb", "b\na\nc", "b\nc\na", "c\na\nb", "c\nb\na", "a b\nc",
    ] {
        assert!(!check(floors, &files).is_empty(), "{floors}");
    }
    assert_eq!(
        check("c\nb\na", &files),
        [edge("c.rs:1", "a", "above it")],
        "only the edge that closes the cycle"
    );
}

#[test]
fn every_module_is_listed_once_and_exists() {
    let files = [TWO, ("low.rs", ""), ("high.rs", "use crate::low::f;\n")];
    assert_eq!(
        check("low", &files),
        [
            "docs/tree.md lists no floor for `high` of made-up; add it above all that it uses"
                .to_owned()
        ]
    );
    assert_eq!(
        check("low\nhigh gone\nlow", &files),
        [
            "docs/tree.md lists `low` of made-up twice".to_owned(),
            "docs/tree.md lists `gone`, which is no module of made-up".to_owned(),
        ]
    );
}

/// Each line of code uses `high` once.
#[test]
fn edges_are_found_wherever_a_path_may_stand() {
    let lines = [
        "fn a() { crate::high::f(); }",
        "fn b(value: crate::high::T) {}",
        "fn c() -> Vec<Option<crate::high::T>> { Vec::new() }",
        "fn d() { if let crate::high::Some(_) = 1 {} }",
        "impl crate::high::Trait for () {}",
        "fn e() { <u8 as crate::high::Trait>::f(); }",
        "fn f() { assert_eq!(1, { crate::high::f() }); }",
        "fn g() { use crate::{high as h}; }",
        "fn h() { crate::high::m!(); }",
        "fn i() { super::high::f(); }",
        "mod inner { use super::super::high::f; }",
        "mod inmost { mod most { pub(in crate::low) fn f() { super::super::super::high::f(); } } }",
        "macro_rules! j { () => { $crate::high::f() } }",
        "macro_rules! k { () => { use $crate::{high::f, low}; } }",
        "#[serde(with = \"crate::high\")] struct L;",
        "#[arg(value_parser = crate::high::parse)] struct M;",
        "#[crate::high::attribute] struct N;",
        "#[cfg(not(test))] fn o() { crate::high::f(); }",
        "#[cfg(any(test, unix))] fn p() { crate::high::f(); }",
        "fn q() { let _: [u8; crate::high::N] = array(crate::r#high::X); }",
    ];
    let low = lines.join("\n");
    let files = [TWO, ("low.rs", low.as_str()), ("high.rs", "")];
    let expected: Vec<String> = (1..=lines.len())
        .map(|line| edge(&format!("low.rs:{line}"), "high", "above it"))
        .collect();
    assert_eq!(check("low\nhigh", &files), expected);
}

#[test]
fn modules_within_the_root_are_modules() {
    let root = "mod low { fn f() { crate::high::g(); } }\nmod high {}\nuse low::f;\n";
    assert_eq!(
        check("low\nhigh", &[("lib.rs", root)]),
        [edge("lib.rs:1", "high", "above it")]
    );
}

#[test]
fn names_that_the_root_passes_on_lead_to_their_modules() {
    let root = "mod low;\nmod high;\npub use high::{T as Renamed, deep};\n\
                pub use deep::U;\npub use other as io;\n";
    let low = "use crate::Renamed;\nfn f() { crate::U::new(crate::io::X); crate::exported!(); }\n";
    let high = "#[macro_export]\nmacro_rules! exported { () => {} }\n";
    let files = [("lib.rs", root), ("low.rs", low), ("high.rs", high)];
    assert_eq!(
        check("low\nhigh", &files),
        [
            edge("low.rs:1", "high", "above it"),
            edge("low.rs:2", "high", "above it")
        ]
    );
}

#[test]
fn the_root_is_above_all_modules() {
    let root = "mod low;\nfn helper() {}\n";
    let low = "use super::*;\nuse crate as all;\nfn f() { crate::helper(); }\n";
    let of_root = |at: &str, name: &str| {
        format!(
            "made-up/src/low.rs:{at} uses `{name}` of the crate's root, which stands above all modules; move it into \
             a module"
        )
    };
    assert_eq!(
        check("low", &[("lib.rs", root), ("low.rs", low)]),
        [of_root("1", "*"), of_root("2", "*"), of_root("3", "helper")]
    );
}

#[test]
fn tests_may_use_everything() {
    let low = "#[cfg(test)]\nmod tests;\n\
               #[cfg(test)]\n#[path = \"elsewhere.rs\"]\nmod more_tests;\n\
               #[cfg(all(test, not(loom)))]\nmod inline { use crate::high::f; }\n\
               #[test]\nfn works() { crate::high::f(); }\n\
               struct S { #[cfg(test)] hook: crate::high::Hook }\n\
               impl S {\n    #[cfg(test)]\n    fn testing(_: crate::high::T) {}\n}\n\
               fn f() {\n    #[cfg(test)]\n    let seen = crate::high::seen();\n}\n";
    let files = [
        (
            "lib.rs",
            "mod low;\nmod high;\n#[cfg(test)]\nmod only_tests;\n",
        ),
        ("low.rs", low),
        ("low/tests.rs", "use crate::high::f;\n"),
        ("elsewhere.rs", "use crate::high::f;\n"),
        ("only_tests.rs", "use crate::high::f;\n"),
        ("high/mod.rs", "mod testing;\n"),
        ("high/testing.rs", "#![cfg(test)]\nuse crate::none::f;\n"),
    ];
    assert_eq!(check("low\nhigh", &files), [""; 0]);
}
