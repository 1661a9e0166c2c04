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
use std::process::Command;

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

/// The Markdown files below a directory, sorted.
fn markdown_files(directory: &Path) -> Vec<PathBuf> {
    files_of_git(directory, &["*.md"])
}

/// The files below a directory that match a pattern and that git does not ignore, sorted. Programs write reports and
/// build output to folders that git ignores.
fn files_of_git(directory: &Path, patterns: &[&str]) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .args(patterns)
        .current_dir(directory)
        .output()
        .expect("git lists the files of the repository");
    let listed = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let files = listed
        .split_terminator('\0')
        .map(|file| directory.join(file));
    // A removed file that is not yet committed is still listed.
    let found: BTreeSet<_> = files.filter(|file| file.exists()).collect();
    found.into_iter().collect()
}

/// Regression: the README's first command writes a report with long lines, and its second command then failed.
#[test]
fn a_report_that_git_ignores_is_no_document() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let root = directory.path();
    let made = Command::new("git").args(["init", "-q"]).arg(root).status();
    assert!(made.expect("git runs").success());
    fs::create_dir(root.join("report")).expect("a folder");
    for (file, text) in [
        (".gitignore", "/report\n"),
        ("report/report.md", ""),
        ("guide.md", ""),
    ] {
        fs::write(root.join(file), text).expect("a file");
    }
    assert_eq!(markdown_files(root), [root.join("guide.md")]);
}

fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}
