//! The documents are whole: every relative link leads to a file and a heading, and the site lists every page. Comments
//! name their subject first. Lines fit the page.
//!
//! The test needs no network, so links to other hosts are not followed. A test with a link checker of mdBook would see
//! the pages of the site alone; the documents beside the code link to each other as well.

mod comments;
mod lines;
mod markdown;
mod names;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use markdown::Page;

#[test]
fn relative_links_lead_to_files_and_headings() {
    let root = repository();
    let mut failures = Vec::new();
    for path in markdown_files(&root) {
        let page = read(&path);
        let place = path.strip_prefix(&root).expect("a file of the repository");
        for link in &page.links {
            if let Err(why) = resolve(&path, &page, &link.target) {
                failures.push(format!(
                    "{}:{}: `{}`: {why}",
                    place.display(),
                    link.line,
                    link.target
                ));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

#[test]
fn the_site_lists_every_page_of_docs_once() {
    let docs = repository().join("docs");
    let mut listed = targets_of(&docs.join("SUMMARY.md"));
    listed.sort();
    let pages: Vec<PathBuf> = markdown_files(&docs)
        .into_iter()
        .filter(|path| path.file_name() != Some("SUMMARY.md".as_ref()))
        .collect();
    assert_eq!(listed, pages, "left: SUMMARY.md, right: the files");
}

#[test]
fn the_index_lists_every_decision_once() {
    let folder = repository().join("docs/decisions");
    let index = folder.join("README.md");
    let mut listed = targets_of(&index);
    listed.retain(|path| path.starts_with(&folder));
    listed.sort();
    let mut records = markdown_files(&folder);
    records.retain(|path| *path != index);
    assert_eq!(listed, records, "left: README.md, right: the files");
    for record in records {
        let text = fs::read_to_string(&record).expect("a record");
        let status = text.lines().nth(2).unwrap_or_default();
        let is_status = status.contains(", accepted.");
        assert!(is_status, "{} has the status {status:?}", record.display());
        for section in [
            "Context",
            "Decision",
            "Measured",
            "Rejected",
            "Consequences",
        ] {
            let heading = format!("\n## {section}\n");
            assert!(
                text.contains(&heading),
                "{} lacks {section}",
                record.display()
            );
        }
    }
}

/// Checks one link of `page`, which stands at `path`.
fn resolve(path: &Path, page: &Page, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let other;
    let page = if file.is_empty() {
        page
    } else {
        let directory = path.parent().expect("a file has a directory");
        let file = directory.join(file);
        if !file.exists() {
            return Err("there is no such file".to_owned());
        }
        if anchor.is_empty() || file.extension() != Some("md".as_ref()) {
            return Ok(());
        }
        other = read(&file);
        &other
    };
    if anchor.is_empty() || page.anchors.contains(anchor) {
        return Ok(());
    }
    let near: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
    Err(format!(
        "there is no such heading; the page has {}",
        near.join(", ")
    ))
}

/// The files that the page at `path` links to, in the order of its links.
fn targets_of(path: &Path) -> Vec<PathBuf> {
    let directory = path.parent().expect("a file has a directory");
    let links = read(path).links;
    links
        .iter()
        .filter(|link| !link.target.contains(['#', ':']))
        .map(|link| normal(&directory.join(&link.target)))
        .collect()
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        if component == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(component);
        }
    }
    normal
}

fn read(path: &Path) -> Page {
    Page::parse(&fs::read_to_string(path).expect("a page"))
}

/// The Markdown files below a directory, sorted. Build output and tools of the benchmark are not ours.
fn markdown_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let is_hidden = name.starts_with('.')
                || ["target", "tools", "bin", "node_modules"].contains(&&*name);
            if path.is_dir() && !is_hidden {
                open.push(path);
            } else if path.extension() == Some("md".as_ref()) {
                found.insert(path);
            }
        }
    }
    found.into_iter().collect()
}

fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}
