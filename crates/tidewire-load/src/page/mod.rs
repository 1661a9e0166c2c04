//! What pages to look at are made of: one file, with charts that stand in it.
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

pub(crate) mod bars;
pub(crate) mod dots;
pub(crate) mod figure;
pub(crate) mod plot;
pub(crate) mod scale;

use self::figure::Table;
use crate::environment::Environment;
use crate::format::markup;

/// What stands above everything else. Plain texts.
pub(crate) struct Heading<'a> {
    /// Of the browser's window.
    pub(crate) title: &'a str,
    pub(crate) name: &'a str,
    pub(crate) about: &'a str,
}

/// A page with this markup as its content.
pub(crate) fn whole_page(heading: &Heading<'_>, content: &str) -> String {
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

/// What the machine and the build are, by name.
pub(crate) fn machine_facts(machine: &Environment) -> [(&'static str, String); 5] {
    [
        ("processor", machine.cpu.clone()),
        ("cores", machine.cores.to_string()),
        ("kernel", machine.kernel.clone()),
        ("version", machine.version.clone()),
        ("commit", machine.commit.clone()),
    ]
}

/// The section that says of which run and machine the page is.
pub(crate) fn write_environment(rows: Vec<(&str, String)>, page: &mut String) {
    let mut table = Table::new(["what", "value"]).with_words(1);
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
