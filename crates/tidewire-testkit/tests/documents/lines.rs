//! Sources and the prose of documents have lines of at most 120 columns.

use std::{fs, iter};

use crate::{files_of_git, markdown_files, repository};

const COLUMNS_MAX: usize = 120;

/// Folders whose sources still have long lines, and how many. A number may only fall, and a folder without long lines
/// leaves the list. The first folder that contains a file counts its lines.
const FOLDERS_WITH_LONG_LINES: [(&str, usize); 2] = [
    ("crates/tidewire-cli/src", 45),
    ("crates/tidewire-load/src", 30),
];

#[test]
fn lines_of_sources_have_120_columns_at_most() {
    let root = repository();
    let mut counts = [0; FOLDERS_WITH_LONG_LINES.len()];
    let mut long = Vec::new();
    let sources = files_of_git(&root, &["crates/*.rs", "examples/*.rs"]);
    assert!(sources.len() > 500, "{} sources", sources.len());
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source");
        let file = path.strip_prefix(&root).expect("a file of the repository");
        let lines = text.lines().zip(1..);
        let lines = lines.filter(|(line, _)| line.chars().count() > COLUMNS_MAX);
        let mut folders = FOLDERS_WITH_LONG_LINES.iter();
        match folders.position(|(folder, _)| file.starts_with(folder)) {
            Some(folder) => counts[folder] += lines.count(),
            None => long.extend(lines.map(|(_, number)| format!("{}:{number}", file.display()))),
        }
    }
    for ((folder, allowed), count) in iter::zip(FOLDERS_WITH_LONG_LINES, counts) {
        if count > allowed {
            long.push(format!("{folder}: {count} lines instead of {allowed}"));
        }
    }
    assert!(
        long.is_empty(),
        "lines with more than {COLUMNS_MAX} columns:\n{}",
        long.join("\n")
    );
}

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
