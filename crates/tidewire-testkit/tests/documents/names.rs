//! Pages that explain every name of a kind have all of them.

use std::collections::BTreeSet;
use std::fs;

use tidewire::metrics::Metrics;
use tidewire::{CloseReason, Policy};

use crate::repository;

#[test]
fn the_operators_page_explains_every_reason_and_policy() {
    let policies = Policy::ALL.iter().map(|policy| policy.name());
    let names = CloseReason::NAMES.into_iter().chain(policies);
    assert_explained("docs/operating.md", names);
}

#[test]
fn the_page_of_counters_explains_every_counter() {
    let metrics = format!("{:#?}", Metrics::default());
    // The fields are indented by one level; the counts of an array have two.
    let fields = metrics.lines().filter_map(|line| {
        let field = line.strip_prefix("    ")?.split_once(": ")?.0;
        (!field.starts_with(' ')).then_some(field)
    });
    let reasons = Metrics::ROOM_DROP_REASONS
        .into_iter()
        .chain(Metrics::DATAGRAM_DROP_REASONS);
    assert_explained("docs/counters.md", fields.chain(reasons));
}

/// Asserts that the first cell of a row of the page has each name.
fn assert_explained<'a>(page: &str, names: impl Iterator<Item = &'a str>) {
    let text = fs::read_to_string(repository().join(page)).expect("the page");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" |").next());
    // Code stands between the first and the second backtick, the third and the fourth, and so on.
    let explained: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let mut names = names.peekable();
    assert!(names.peek().is_some(), "no name to look for in {page}");
    let missing: Vec<&str> = names.filter(|name| !explained.contains(name)).collect();
    assert!(missing.is_empty(), "{page} has no row for {missing:?}");
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
