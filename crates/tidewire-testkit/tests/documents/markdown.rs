//! The links and headings of a Markdown page, as far as this repository's pages use Markdown: inline links, and
//! headings that begin with `#`. Code is left out.

use std::collections::BTreeSet;

/// A page, read.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) links: Vec<Link>,
    /// The names that may follow `#` in a link to this page.
    pub(crate) anchors: BTreeSet<String>,
}

/// A link of a page.
#[derive(Debug)]
pub(crate) struct Link {
    /// The line on which it ends, from 1.
    pub(crate) line: usize,
    pub(crate) target: String,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut fence: Option<&str> = None;
        for (index, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            match fence {
                Some(mark) => {
                    if trimmed.starts_with(mark) {
                        fence = None;
                    }
                    continue;
                }
                None => fence = ["```", "~~~"].into_iter().find(|m| trimmed.starts_with(m)),
            }
            if fence.is_some() {
                continue;
            }
            let prose = without_code(line);
            let heading = prose.trim_start_matches('#');
            if heading.len() < prose.len() && heading.starts_with(' ') {
                // The name of an anchor keeps the words of code, so it is made of the unchanged line.
                page.add_anchor(line.trim_start_matches('#').trim());
            }
            page.add_links(&prose, index + 1);
        }
        page
    }

    /// Adds the anchor of a heading, with a number at its end if an earlier heading has the same words.
    fn add_anchor(&mut self, heading: &str) {
        let name = anchor(heading);
        let mut unique = name.clone();
        let mut count = 0;
        while !self.anchors.insert(unique.clone()) {
            count += 1;
            unique = format!("{name}-{count}");
        }
    }

    /// Adds each `](target)`. The text of a link may begin on an earlier line, its target may not.
    fn add_links(&mut self, prose: &str, line: usize) {
        let mut rest = prose;
        while let Some((_, behind)) = rest.split_once("](") {
            let (target, behind) = behind.split_once(')').unwrap_or((behind, ""));
            let target = target.split_whitespace().next().unwrap_or("").to_owned();
            self.links.push(Link { line, target });
            rest = behind;
        }
    }
}

/// The name that GitHub and mdBook give to a heading: lower case, hyphens for spaces, no other punctuation.
fn anchor(heading: &str) -> String {
    let mut words = String::new();
    let mut rest = heading;
    // Of a link only its text counts.
    while let Some((before, behind)) = rest.split_once("](") {
        words.push_str(before);
        rest = behind.split_once(')').map_or("", |(_, behind)| behind);
    }
    words.push_str(rest);
    words
        .to_lowercase()
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        })
        .collect()
}

/// The line with spaces in place of the text between backticks.
fn without_code(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for (index, part) in line.split('`').enumerate() {
        if index % 2 == 0 {
            text.push_str(part);
        } else {
            text.push(' ');
        }
    }
    text
}

#[test]
fn code_has_no_links_and_headings_have_the_names_that_sites_give_them() {
    let text = "# `serve`: a server's *life*\n\nSee [a](b.md#c), `[no](link)` and\n[two\nlines](d.md \"title\").\n\
        ```sh\n# no heading [no](link)\n```\n## Same\n## Same\n## [Linked](x.md) words\n";
    let page = Page::parse(text);
    let targets: Vec<_> = page.links.iter().map(|link| &*link.target).collect();
    assert_eq!(targets, ["b.md#c", "d.md", "x.md"]);
    let lines: Vec<_> = page.links.iter().map(|link| link.line).collect();
    assert_eq!(lines, [3, 5, 11]);
    let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(
        anchors,
        ["linked-words", "same", "same-1", "serve-a-servers-life"]
    );
}
