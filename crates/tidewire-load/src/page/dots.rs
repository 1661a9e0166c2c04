//! Dots with their intervals, a line each over one axis, as SVG.

use std::fmt::Write as _;

use super::bars::shortened;
use super::figure::Picture;
use super::plot::text_width;
use super::scale::Axis;
use crate::format::markup;

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
    /// Stands in bold above the line; lines without it belong to the last one that has it.
    pub group: Option<String>,
}

/// Draws them over an axis.
#[must_use]
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
    let mut body = String::new();
    let mut y = 4.0;
    for whisker in whiskers {
        if let Some(group) = &whisker.group {
            y += 14.0;
            let text = markup(&shortened(group, width));
            let _ = write!(
                body,
                "<text class=\"group\" x=\"0\" y=\"{y:.1}\">{text}</text>"
            );
            y += 8.0;
        }
        let name = markup(&shortened(&whisker.name, names));
        let (class, tip) = (whisker.class, markup(&whisker.tip));
        let (low, at, high) = (
            place(whisker.low),
            place(whisker.value),
            place(whisker.high),
        );
        let (before, middle) = (names - 8.0, y + 8.5);
        let _ = write!(
            body,
            "<g data-tip=\"{tip}\"><rect class=\"row\" x=\"0\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"17\"/>\
             <text class=\"tick\" text-anchor=\"end\" x=\"{before:.1}\" y=\"{:.1}\">{name}</text>\
             <line class=\"line {class}\" x1=\"{low:.1}\" y1=\"{middle:.1}\" x2=\"{high:.1}\" y2=\"{middle:.1}\"/>\
             <circle class=\"dot {class}\" cx=\"{at:.1}\" cy=\"{middle:.1}\" r=\"4\"/></g>",
            y + 12.0
        );
        y += 18.0;
    }
    let mut marks = String::new();
    let mut free_from = f64::NEG_INFINITY;
    for (value, text) in &axis.ticks {
        let (x, half) = (place(*value), text_width(text) / 2.0);
        let _ = write!(
            marks,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>"
        );
        // A text that would run into its neighbour is left out; its line stays.
        if x - half >= free_from {
            free_from = x + half + 4.0;
            let (base, text) = (y + 14.0, markup(text));
            let _ = write!(
                marks,
                "<text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{base:.1}\">{text}</text>"
            );
        }
    }
    let (base, height) = (y + 30.0, y + 36.0);
    let (title, label) = (markup(&axis.title), markup(label));
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">{marks}{body}\
         <text class=\"quiet\" text-anchor=\"end\" x=\"{width:.1}\" y=\"{base:.1}\">{title}</text></svg>"
    )
}

/// Room behind the axis for half of its last text.
const END: f64 = 18.0;
