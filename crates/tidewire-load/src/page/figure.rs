//! A chart in the page: title, explanation, the drawing in two widths, and the same figures as a table.

use std::fmt::Write as _;

use crate::format::{decimals, fixed, markup};
use crate::statistics::Percentile;

/// A chart, or the reason why there is none.
#[derive(Debug)]
pub struct Figure {
    /// The `id` of the chart, unique in the page.
    pub id: String,
    /// Heading of the chart.
    pub title: &'static str,
    /// The chart, or the reason why there is none.
    pub content: Result<Chart, String>,
}

/// The content of a chart.
#[derive(Debug)]
pub struct Chart {
    /// An explanation in a sentence or two, as plain text.
    pub about: String,
    /// The drawing.
    pub picture: Picture,
    /// The same figures as a table.
    pub table: Table,
}

/// A chart drawn for a desk and again for a phone. A single drawing would be shrunk to the width of a phone together
/// with its letters.
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

/// Rows of cells under a heading. The first column is a name, the others are numbers unless said otherwise.
#[derive(Debug, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<Cell>>,
    words: Vec<usize>,
}

/// The content of a cell.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A text, written as it is.
    Text(String),
    /// A number, written with three significant digits. The numbers of a column have their points below each other.
    Number(f64),
    /// A link within the page.
    Link {
        /// The text to select.
        text: String,
        /// The `id` of the place that it leads to.
        id: String,
    },
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<f64>> for Cell {
    /// A dash stands for a number that is not known.
    fn from(number: Option<f64>) -> Self {
        number.map_or_else(|| Self::Text(NO_VALUE.to_owned()), Self::Number)
    }
}

impl From<Percentile> for Cell {
    fn from(percentile: Percentile) -> Self {
        match percentile {
            Percentile::Known { ms } => Self::Number(ms),
            other => Self::Text(other.to_string()),
        }
    }
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new<'a>(head: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            head: head.into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// Marks a column that holds words and not numbers.
    pub fn with_words(mut self, column: usize) -> Self {
        self.words.push(column);
        self
    }

    /// Appends a row, with a cell for each column.
    pub fn row(&mut self, cells: Vec<impl Into<Cell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the table.
    pub fn write(&self, page: &mut String) {
        page.push_str("<div class=\"scroll\"><table><thead><tr>");
        for (column, cell) in self.head.iter().enumerate() {
            self.write_cell(page, "th scope=\"col\"", "th", column, &markup(cell));
        }
        page.push_str("</tr></thead><tbody>\n");
        let decimals: Vec<usize> = (0..self.head.len())
            .map(|column| self.decimals(column))
            .collect();
        for row in &self.rows {
            page.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let (open, close) = match column {
                    0 => ("th scope=\"row\"", "th"),
                    _ => ("td", "td"),
                };
                let content = match cell {
                    Cell::Text(text) => markup(text),
                    Cell::Number(number) => aligned(*number, decimals[column]),
                    Cell::Link { text, id } => format!("<a href=\"#{id}\">{}</a>", markup(text)),
                };
                self.write_cell(page, open, close, column, &content);
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table></div>");
    }

    fn write_folded(&self, page: &mut String) {
        // On paper a folded table is shown open, and a table of many seconds would take whole pages.
        let class = if self.rows.len() > ROWS_PRINTED_MAX {
            " class=\"long\""
        } else {
            ""
        };
        let _ = write!(page, "<details{class}><summary>Table</summary>");
        self.write(page);
        page.push_str("</details>");
    }

    /// Returns the decimals of a column: as many as one of its numbers has.
    fn decimals(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let numbers = cells.filter_map(|cell| match cell {
            Cell::Number(number) => Some(decimals(*number)),
            _ => None,
        });
        numbers.max().unwrap_or(0)
    }

    fn write_cell(&self, page: &mut String, open: &str, close: &str, column: usize, cell: &str) {
        let class = if column == 0 || self.words.contains(&column) {
            ""
        } else {
            " class=\"n\""
        };
        let _ = write!(page, "<{open}{class}>{cell}</{close}>");
    }
}

/// A number with three significant digits, and blanks as wide as the decimals that others of its column have, so that
/// the points stand below each other in a column that is aligned to the right.
fn aligned(number: f64, decimals_of_column: usize) -> String {
    let own = decimals(number);
    let mut text = fixed(number, own);
    if own == 0 && decimals_of_column > 0 {
        text.push(POINT_BLANK);
    }
    text.extend(std::iter::repeat_n(
        DIGIT_BLANK,
        decimals_of_column.saturating_sub(own),
    ));
    text
}

/// A blank as wide as a digit.
const DIGIT_BLANK: char = '\u{2007}';

/// A blank as wide as a point.
const POINT_BLANK: char = '\u{2008}';

/// The text of a cell without a figure.
pub(crate) const NO_VALUE: &str = "–";

const ROWS_PRINTED_MAX: usize = 24;
