//! Pages that explain every name of a kind have all of them.

use std::fs;

use tidewire::{CloseReason, DatagramDrop, DropReason, Policy};

use crate::repository;

#[test]
fn the_operators_page_explains_every_reason_and_policy() {
    let page = repository().join("docs/operating.md");
    let page = fs::read_to_string(page).expect("the page");
    let names = CloseReason::NAMES
        .iter()
        .chain(&DropReason::NAMES)
        .chain(&DatagramDrop::NAMES)
        .copied()
        .chain(Policy::ALL.iter().map(|policy| policy.name()));
    let missing: Vec<&str> = names
        .filter(|name| !page.contains(&format!("\n| `{name}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/operating.md has no row for {missing:?}"
    );
}

#[test]
fn the_architecture_stays_on_one_page() {
    let page = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("the page");
    let lines = page.lines().count();
    assert!(
        lines <= 120,
        "ARCHITECTURE.md has {lines} lines; what is longer than a page belongs into docs/"
    );
}
