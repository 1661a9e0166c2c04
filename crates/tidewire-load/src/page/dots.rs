//! Dots with their intervals as SVG: one line for each, over a common axis.

use super::bars::{shortened, write_group};
use super::figure::Picture;
use super::plot::text_width;
use super::scale::Axis;
use super::svg::{Anchor, Svg};

/// A dot on a line of its own.
#[derive(Debug)]
pub struct Whisker {
    /// Text before the line.
    pub name: String,
    /// Position of the dot on the axis.
    pub value: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// How it looks: a class of `style.css`.
    pub class: &'static str,
    /// Text for the pointer.
    pub tip: String,
    /// A heading in bold above the line. It holds for the following lines without a heading, too.
    pub group: Option<String>,
}

/// Draws the dots over an axis.
pub fn picture(label: &str, whiskers: &[Whisker], axis: &Axis) -> Picture {
    Picture {
        wide: draw(label, whiskers, axis, 560.0),
        narrow: draw(label, whiskers, axis, 340.0),
    }
}

fn draw(label: &str, whiskers: &[Whisker], axis: &Axis, width: f64) -> String {
    let widths = whiskers.iter().map(|whisker| text_width(&whisker.name));
    let names = widths.fold(0.0, f64::max).min(width * 0.3) + 8.0;
    let room = width - names - END;
    let place = |value: f64| names + axis.scale.share(value) * room;
    let mut svg = Svg::default();
    let height = whiskers.iter().fold(4.0, |height, whisker| {
        height + 18.0 + if whisker.group.is_some() { 22.0 } else { 0.0 }
    });
    let mut free_from = f64::NEG_INFINITY;
    for (value, text) in &axis.ticks {
        let (x, half) = (place(*value), text_width(text) / 2.0);
        svg.line("grid", (x, 0.0), (x, height));
        // A text that would overlap its neighbour is left out; its line is drawn.
        if x - half >= free_from {
            free_from = x + half + 4.0;
            svg.text("tick", Anchor::Middle, (x, height + 14.0), text);
        }
    }
    let mut y = 4.0;
    for whisker in whiskers {
        if let Some(group) = &whisker.group {
            write_group(&mut svg, group, &mut y, width);
        }
        let middle = y + 8.5;
        svg.group("", &whisker.tip, |svg| {
            svg.rect("row", (0.0, y), (width, 17.0));
            let name = shortened(&whisker.name, names);
            svg.text("tick", Anchor::End, (names - 8.0, y + 12.0), &name);
            let class = format!("line {}", whisker.class);
            let (low, high) = (place(whisker.low), place(whisker.high));
            svg.line(&class, (low, middle), (high, middle));
            svg.circle(whisker.class, (place(whisker.value), middle), 4.0, "");
        });
        y += 18.0;
    }
    svg.text("quiet", Anchor::End, (width, y + 30.0), &axis.title);
    svg.finish(label, width, y + 36.0)
}

/// Room to the right of the axis for half of its last text.
const END: f64 = 18.0;
