//! The parts of an HTML report: one file that contains its charts.
//! The file contains everything: styles, drawings and a few lines of script. A policy in its head forbids the browser
//! to fetch anything. So it can be opened from a mail, a build server or a drive, also years later.
//! Charts are drawn as SVG when the file is written, so they need no script and can be printed. A chart library was
//! rejected: it is larger than this module, draws only when its script runs, and has neither heat maps nor bars of
//! this kind. Every chart is drawn twice, for a desk and for a phone, because the letters of a shrunken drawing are
//! too small to read.
//! Texts from a file pass through [`markup`] before they enter the page. Numbers from a file pass through a
//! [`scale::Scale`], which accepts every number, before they enter a drawing.

pub mod bars;
pub mod dots;
pub mod figure;
pub(crate) mod plot;
pub mod scale;
mod svg;

use self::figure::Table;
use crate::environment::Environment;
use crate::format::{gibibytes, markup};

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

/// Returns a page with this markup as its content.
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
        ("memory", or_unknown(machine.memory_bytes.map(gibibytes))),
        ("virtualisation", or_unknown(machine.virtualisation.clone())),
        ("kernel", machine.kernel.clone()),
        ("version", machine.version.clone()),
        ("commit", machine.commit.clone()),
        ("command line", or_unknown(machine.command_line.clone())),
    ]
}

/// Writes the section about the run and the machine.
pub fn write_environment(rows: Vec<(&str, String)>, page: &mut String) {
    let mut table = Table::new("what, value".split(", ")).with_words(1);
    for (name, value) in rows {
        table.row(vec![name.to_owned(), value]);
    }
    page.push_str("<section id=\"environment\"><h2>Run and environment</h2>\n");
    table.write(page);
    page.push_str("</section>\n");
}

/// The browser may use the parts of the page and fetch nothing else.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

const STYLE: &str = include_str!("style.css");

const SCRIPT: &str = include_str!("script.js");
