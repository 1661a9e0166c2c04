//! The parts of an HTML report: one file that contains its charts.
//!
//! The file is all there is: styles, drawings and a few lines of script stand in it, and a policy in its head forbids
//! the browser to fetch anything. So it opens from a mail, a build server or a drive, today and in ten years.
//!
//! Charts are drawn here, as SVG, when the file is written: they show without script and print as they are. A chart
//! library was rejected: it is larger than all of this, draws only when it runs, and knows neither heat maps nor bars of
//! this kind. Every drawing is made twice, for a desk and for a phone, because a shrunken one has letters too small to
//! read.
//!
//! Whatever comes from a file goes through [`markup`] on its way into the page, and through a [`scale::Scale`], which
//! takes every number, on its way into a drawing.

pub mod bars;
pub mod dots;
pub mod figure;
pub(crate) mod plot;
pub mod scale;
mod svg;

use self::figure::Table;
use crate::environment::Environment;
use crate::format::{markup, mebibytes};

/// The head of a page. Plain texts.
#[derive(Debug)]
pub struct Heading<'a> {
    /// Title of the browser's window.
    pub title: &'a str,
    /// Heading of the page.
    pub name: &'a str,
    /// One line below the heading.
    pub about: &'a str,
}

/// A page with this markup as its content.
pub fn whole_page(heading: &Heading<'_>, content: &str) -> String {
    let [title, name, about] = [heading.title, heading.name, heading.about].map(markup);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <link rel=\"icon\" href=\"data:,\"/>\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<header><h1>{name}</h1><p>{about}</p></header>\n<main>\n{content}</main>\n\
         <div id=\"tip\" role=\"status\"></div>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// Names and values that describe the machine, the build and the command.
pub fn machine_facts(machine: &Environment) -> [(&'static str, String); 8] {
    // Reports of older builds do not know them.
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "not recorded".to_owned());
    [
        ("processor", machine.cpu.clone()),
        ("cores", machine.cores.to_string()),
        ("memory", or_unknown(machine.memory_bytes.map(mebibytes))),
        ("virtualisation", or_unknown(machine.virtualisation.clone())),
        ("kernel", machine.kernel.clone()),
        ("version", machine.version.clone()),
        ("commit", machine.commit.clone()),
        ("command line", or_unknown(machine.command_line.clone())),
    ]
}

/// Writes the section that says of which run and machine the page is.
pub fn write_environment(rows: Vec<(&str, String)>, page: &mut String) {
    let mut table = Table::new("what, value".split(", ")).with_words(1);
    for (name, value) in rows {
        table.row(vec![name.to_owned(), value]);
    }
    page.push_str("<section id=\"environment\"><h2>Run and environment</h2>\n");
    table.write(page);
    page.push_str("</section>\n");
}

/// Nothing may be fetched; what stands in the page may be used.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

const STYLE: &str = include_str!("style.css");

const SCRIPT: &str = include_str!("script.js");
