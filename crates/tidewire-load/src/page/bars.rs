//! Horizontal bars with their names before and their values behind them, as SVG.

use std::fmt::Write as _;

use super::figure::Picture;
use super::plot::text_width;
use super::scale::Scale;
use crate::format::markup;

/// A bar.
#[derive(Debug)]
pub struct Bar {
    /// Text before the bar.
    pub name: String,
    /// Its length on the scale.
    pub value: f64,
    /// The value as it is written behind the bar.
    pub text: String,
    /// How it looks: a class of `style.css`.
    pub class: &'static str,
    /// Text for the pointer.
    pub tip: String,
    /// Stands in bold above the bar; bars without it belong to the last one that has it.
    pub group: Option<String>,
}

/// A line across all bars at a value to compare them with.
#[derive(Debug)]
pub struct Mark {
    /// Where it stands on the scale.
    pub value: f64,
    /// Text above it.
    pub text: String,
}

/// Draws bars over a scale; a value of 0 has none.
#[must_use]
pub fn picture(label: &str, bars: &[Bar], scale: Scale) -> Picture {
    Picture {
        wide: draw(label, bars, scale, None, 560.0),
        narrow: draw(label, bars, scale, None, 340.0),
    }
}

/// Draws bars over a scale with a line across all of them.
#[must_use]
pub fn picture_with_mark(label: &str, bars: &[Bar], scale: Scale, mark: &Mark) -> Picture {
    Picture {
        wide: draw(label, bars, scale, Some(mark), 560.0),
        narrow: draw(label, bars, scale, Some(mark), 340.0),
    }
}

fn draw(label: &str, bars: &[Bar], scale: Scale, mark: Option<&Mark>, width: f64) -> String {
    let longest = |text: fn(&Bar) -> &str| {
        let widths = bars.iter().map(|bar| text_width(text(bar)));
        widths.fold(0.0, f64::max)
    };
    let names = longest(|bar| &bar.name).min(width * 0.3) + 8.0;
    let values = longest(|bar| &bar.text) + 8.0;
    let room = (width - names - values).max(40.0);
    let mut body = String::new();
    let mut y = if mark.is_some() { 18.0 } else { 4.0 };
    for bar in bars {
        if let Some(group) = &bar.group {
            let text = markup(&shortened(group, width));
            y += 14.0;
            let _ = write!(
                body,
                "<text class=\"group\" x=\"0\" y=\"{y:.1}\">{text}</text>"
            );
            y += 8.0;
        }
        let (name, text) = (markup(&shortened(&bar.name, names)), markup(&bar.text));
        let (class, tip) = (bar.class, markup(&bar.tip));
        let base = y + 12.0;
        let length = if bar.value > 0.0 {
            (scale.share(bar.value) * room).max(2.0)
        } else {
            0.0
        };
        let (before, behind) = (names - 8.0, names + length + 5.0);
        let _ = write!(
            body,
            "<g data-tip=\"{tip}\"><rect class=\"row\" x=\"0\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"17\"/>\
             <text class=\"tick\" text-anchor=\"end\" x=\"{before:.1}\" y=\"{base:.1}\">{name}</text>\
             <rect class=\"bar {class}\" x=\"{names:.1}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"11\" rx=\"2\"/>\
             <text class=\"value\" x=\"{behind:.1}\" y=\"{base:.1}\">{text}</text></g>",
            y + 3.0
        );
        y += 18.0;
    }
    if let Some(mark) = mark {
        let x = names + scale.share(mark.value) * room;
        let text = markup(&mark.text);
        let _ = write!(
            body,
            "<line class=\"mark\" x1=\"{x:.1}\" y1=\"15.0\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick on-top\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"11.0\">{text}</text>"
        );
    }
    let (height, label) = (y + 6.0, markup(label));
    format!(
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">{body}</svg>"
    )
}

/// As much of a text as fits into a width; the table has all of it.
pub(super) fn shortened(text: &str, width: f64) -> String {
    let room = (width / text_width("m")).floor().max(2.0) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room - 1).collect();
    short.push('…');
    short
}
