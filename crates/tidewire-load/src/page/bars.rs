//! Horizontal bars as SVG, each with its name on the left and its value on the right.

use super::figure::Picture;
use super::plot::text_width;
use super::scale::Scale;
use super::svg::{Anchor, Svg};

/// A bar.
#[derive(Debug)]
pub struct Bar {
    /// Text before the bar.
    pub name: String,
    /// The value that determines its length.
    pub value: f64,
    /// The value as it is written after the bar.
    pub text: String,
    /// How it looks: a class of `style.css`.
    pub class: &'static str,
    /// Text for the pointer.
    pub tip: String,
    /// A heading in bold above the bar. It holds for the following bars without a heading, too.
    pub group: Option<String>,
}

/// A line across all bars at a value to compare them with.
#[derive(Debug)]
pub struct Mark {
    /// Its position on the scale.
    pub value: f64,
    /// Text above it.
    pub text: String,
}

/// The bars of a group: each has a name, a class and a value. `about` goes on with the text for the pointer.
pub(crate) fn group<'a>(
    name: &str,
    figures: impl Iterator<Item = (&'a str, &'static str, f64)>,
    text: impl Fn(f64) -> String,
    about: impl Fn(f64) -> String,
) -> Vec<Bar> {
    let mut first = Some(name.to_owned());
    let bars = figures.map(|(bar, class, value)| Bar {
        name: bar.to_owned(),
        value,
        text: text(value),
        class,
        tip: format!("{name}\n{bar}: {}{}", text(value), about(value)),
        group: first.take(),
    });
    bars.collect()
}

/// Draws bars over a scale, and a line across all of them; a value of 0 has no bar.
pub fn picture(label: &str, bars: &[Bar], scale: Scale, mark: Option<&Mark>) -> Picture {
    Picture {
        wide: draw(label, bars, scale, mark, 560.0),
        narrow: draw(label, bars, scale, mark, 340.0),
    }
}

fn draw(label: &str, bars: &[Bar], scale: Scale, mark: Option<&Mark>, width: f64) -> String {
    let longest = |text: fn(&Bar) -> &str| {
        let widths = bars.iter().map(|bar| text_width(text(bar)));
        widths.fold(0.0, f64::max)
    };
    let names = longest(|bar| &bar.name).min(width * 0.36) + 8.0;
    let values = longest(|bar| &bar.text) + 8.0;
    let room = (width - names - values).max(40.0);
    let (mut svg, mut values_at) = (Svg::default(), Vec::new());
    let mut y = if mark.is_some() { 18.0 } else { 4.0 };
    for bar in bars {
        if let Some(group) = &bar.group {
            write_group(&mut svg, group, &mut y, width);
        }
        let base = y + 12.0;
        let length = if bar.value > 0.0 {
            (scale.share(bar.value) * room).max(2.0)
        } else {
            0.0
        };
        svg.group("", &bar.tip, |svg| {
            svg.rect("row", (0.0, y), (width, 17.0));
            let name = shortened(&bar.name, names);
            svg.text("tick", Anchor::End, (names - 8.0, base), &name);
            let class = format!("bar {}", bar.class);
            svg.rect(&class, (names, y + 3.0), (length, 11.0));
        });
        values_at.push((names + length + 5.0, y, base, &bar.text));
        y += 18.0;
    }
    if let Some(mark) = mark {
        let x = names + scale.share(mark.value) * room;
        svg.line("mark", (x, 15.0), (x, y));
        svg.text("tick on-top", Anchor::Middle, (x, 11.0), &mark.text);
    }
    // Values are drawn after the mark, so that it does not cross them.
    for (x, y, base, text) in values_at {
        svg.rect("under", (x - 2.0, y + 2.0), (text_width(text) + 2.0, 13.0));
        svg.text("value", Anchor::Start, (x, base), text);
    }
    svg.finish(label, width, y + 6.0)
}

pub(super) fn write_group(svg: &mut Svg, group: &str, y: &mut f64, width: f64) {
    *y += 14.0;
    svg.text("group", Anchor::Start, (0.0, *y), &shortened(group, width));
    *y += 8.0;
}

/// Cuts a text to a width. The table below the chart has the whole text.
pub(super) fn shortened(text: &str, width: f64) -> String {
    let room = (width / text_width("m")).floor().max(2.0) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room - 1).collect();
    short.push('…');
    short
}
