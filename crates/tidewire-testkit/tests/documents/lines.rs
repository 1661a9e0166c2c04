//! Prose of documents has lines of at most 120 columns, like the sources.

use std::fs;

use crate::{markdown_files, repository};

/// The columns of a line, as in the sources.
const COLUMNS_MAX: usize = 120;

#[test]
fn lines_of_prose_have_120_columns_at_most() {
    let root = repository();
    let mut long = Vec::new();
    for path in markdown_files(&root) {
        // The benchmark writes these tables with their notes.
        if path.ends_with("bench.md") && path.starts_with(root.join("bench-results")) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a page");
        let place = path.strip_prefix(&root).expect("a file of the repository");
        long.extend(long_lines(&text).map(|line| format!("{}:{line}", place.display())));
    }
    assert!(
        long.is_empty(),
        "lines with more than {COLUMNS_MAX} columns:\n{}",
        long.join("\n")
    );
}

/// The numbers of the long lines, from 1. Rows of a table cannot be broken, and neither can code.
fn long_lines(text: &str) -> impl Iterator<Item = usize> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let begin = line.trim_start();
        let is_fence = begin.starts_with("```") || begin.starts_with("~~~");
        is_code ^= is_fence;
        let is_prose = !is_code && !begin.starts_with('|');
        (is_prose && line.chars().count() > COLUMNS_MAX).then_some(index + 1)
    })
}

#[test]
fn tables_and_code_may_have_long_lines_and_prose_may_not() {
    let long = "ä".repeat(COLUMNS_MAX + 1);
    let fits = "ä".repeat(COLUMNS_MAX);
    let text = format!("{fits}\n{long}\n| {long} |\n```sh\n{long}\n```\n- {long}\n");
    let found: Vec<_> = long_lines(&text).collect();
    assert_eq!(found, [2, 7]);
}
