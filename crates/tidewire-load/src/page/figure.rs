//! A chart as it stands in the page: title, one sentence, the drawing in two widths, and the same figures as a table.

use std::fmt::Write as _;

use crate::format::markup;

/// A chart, or the reason why there is none.
#[derive(Debug)]
pub struct Figure {
    /// Name in links, unique in the page.
    pub id: String,
    /// Heading of the chart.
    pub title: &'static str,
    /// The chart, or why there is none.
    pub content: Result<Drawn, String>,
}

/// The content of a chart.
#[derive(Debug)]
pub struct Drawn {
    /// How it is to be read, in a sentence or two. Plain text.
    pub about: String,
    /// The drawing.
    pub picture: Picture,
    /// The same figures as a table.
    pub table: Table,
}

/// A drawing for a column of a desk's width and one for a phone. A single drawing would have to be shrunk to a phone's
/// width together with its letters.
#[derive(Debug)]
pub struct Picture {
    pub(super) wide: String,
    pub(super) narrow: String,
}

impl Figure {
    fn write(&self, page: &mut String) {
        let Ok(drawn) = &self.content else { return };
        let (id, title) = (&self.id, self.title);
        let about = markup(&drawn.about);
        let Picture { wide, narrow } = &drawn.picture;
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "<figure id=\"{id}\"><figcaption><h4>{title}</h4><p>{about}</p></figcaption>\
             <div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div>"
        );
        drawn.table.write_folded(page);
        page.push_str("</figure>\n");
    }

    /// Writes the figures that can be drawn in a grid, then a line for each that cannot.
    pub fn write_all(figures: &[Self], page: &mut String) {
        if figures.iter().any(|figure| figure.content.is_ok()) {
            page.push_str("<div class=\"figures\">\n");
            for figure in figures {
                figure.write(page);
            }
            page.push_str("</div>\n");
        }
        for figure in figures {
            if let Err(reason) = &figure.content {
                let (id, title, reason) = (&figure.id, figure.title, markup(reason));
                let _ = writeln!(
                    page,
                    "<p class=\"left-out\" id=\"{id}\"><b>{title}</b> is left out: {reason}.</p>"
                );
            }
        }
    }
}

/// Rows of texts under a heading. The first column is a name, the others are numbers unless said otherwise.
#[derive(Debug, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    words: Vec<usize>,
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            head: head.into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// Says that a column holds words and not numbers.
    #[must_use]
    pub fn with_words(mut self, column: usize) -> Self {
        self.words.push(column);
        self
    }

    /// Appends a row, with a text for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes the table.
    pub fn write(&self, page: &mut String) {
        page.push_str("<div class=\"scroll\"><table><thead><tr>");
        for (column, cell) in self.head.iter().enumerate() {
            self.write_cell(page, "th scope=\"col\"", "th", column, cell);
        }
        page.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            page.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let (open, close) = match column {
                    0 => ("th scope=\"row\"", "th"),
                    _ => ("td", "td"),
                };
                self.write_cell(page, open, close, column, cell);
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table></div>");
    }

    fn write_folded(&self, page: &mut String) {
        // On paper a table cannot be opened, and one of many seconds would bury the charts.
        let class = if self.rows.len() > ROWS_PRINTED_MAX {
            " class=\"long\""
        } else {
            ""
        };
        let _ = write!(page, "<details{class}><summary>Table</summary>");
        self.write(page);
        page.push_str("</details>");
    }

    fn write_cell(&self, page: &mut String, open: &str, close: &str, column: usize, cell: &str) {
        let class = if column == 0 || self.words.contains(&column) {
            ""
        } else {
            " class=\"n\""
        };
        let _ = write!(page, "<{open}{class}>{}</{close}>", markup(cell));
    }
}

const ROWS_PRINTED_MAX: usize = 24;
