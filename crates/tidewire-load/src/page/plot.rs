//! Lines, dots and cells over two axes, as SVG.
//!
//! A plot is described once and drawn twice, for a desk and for a phone. Each line is named at its own end, so that no
//! legend has to be matched by colour. Whatever has a text for the pointer carries it as `data-tip`.

use std::fmt::Write as _;

use super::figure::Picture;
use super::scale::Axis;
use crate::format::markup;

/// The content of a plot.
pub(crate) struct Plot {
    /// A description for readers who cannot see the drawing.
    pub(crate) label: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) bands: Vec<Band>,
    pub(crate) cells: Vec<Heat>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) lines: Vec<Line>,
    pub(crate) dots: Vec<Dot>,
    pub(crate) columns: Vec<Column>,
    /// The scale of the cells' colours.
    pub(crate) shades: Option<Shades>,
}

/// The scale of a heat map, from its faintest shade to its fullest.
pub(crate) struct Shades {
    /// Text before the faintest shade.
    pub(crate) least: String,
    /// Text behind the fullest one.
    pub(crate) most: String,
}

/// A part of the width that is shaded and named.
pub(crate) struct Band {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) name: String,
}

/// A rectangle of a heat map.
pub(crate) struct Heat {
    pub(crate) x: (f64, f64),
    pub(crate) y: (f64, f64),
    /// From 1, faint, to 6, full.
    pub(crate) level: u8,
    pub(crate) tip: String,
}

/// A named line across the whole width, such as a limit.
pub(crate) struct Rule {
    pub(crate) y: f64,
    /// How it looks: a class of `style.css`.
    pub(crate) class: &'static str,
    pub(crate) name: String,
}

/// A line in pieces, named at its end.
pub(crate) struct Line {
    pub(crate) name: String,
    /// How it looks: a class of `style.css`.
    pub(crate) class: &'static str,
    pub(crate) pieces: Vec<Vec<(f64, f64)>>,
}

/// A measured point.
pub(crate) struct Dot {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) class: &'static str,
    pub(crate) tip: String,
}

/// A part of the width with a text for the pointer.
pub(crate) struct Column {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) tip: String,
}

impl Plot {
    pub(crate) fn new(label: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self {
            label: label.into(),
            x,
            y,
            bands: Vec::new(),
            cells: Vec::new(),
            rules: Vec::new(),
            lines: Vec::new(),
            dots: Vec::new(),
            columns: Vec::new(),
            shades: None,
        }
    }

    pub(crate) fn picture(&self) -> Picture {
        Picture {
            wide: self.draw(&WIDE),
            narrow: self.draw(&NARROW),
        }
    }

    fn draw(&self, frame: &Frame) -> String {
        let names = self.lines.iter().map(|line| text_width(&line.name));
        let right = names.fold(RIGHT, |right, name| right.max(name + 10.0));
        let canvas = Canvas {
            plot: self,
            left: LEFT,
            right: frame.width - right,
            top: TOP,
            bottom: frame.height - BOTTOM,
        };
        let (width, height, label) = (frame.width, frame.height, markup(&self.label));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">"
        );
        canvas.bands(&mut svg);
        canvas.axes(&mut svg);
        canvas.cells(&mut svg);
        canvas.lines(&mut svg);
        canvas.band_names(&mut svg);
        canvas.rules(&mut svg);
        canvas.columns(&mut svg);
        canvas.dots(&mut svg);
        canvas.shades(&mut svg);
        svg.push_str("</svg>");
        svg
    }
}

/// The size of a drawing in its own units, which are pixels at its intended width.
struct Frame {
    width: f64,
    height: f64,
}

/// A plot and the rectangle its axes enclose.
struct Canvas<'p> {
    plot: &'p Plot,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Canvas<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + self.plot.x.scale.share(value) * (self.right - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.plot.y.scale.share(value) * (self.bottom - self.top)
    }

    fn bands(&self, svg: &mut String) {
        for band in &self.plot.bands {
            let (from, to) = (self.x(band.from), self.x(band.to));
            let (top, width, height) = (self.top, to - from, self.bottom - self.top);
            let _ = write!(
                svg,
                "<rect class=\"band\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            );
        }
    }

    /// Names of the bands that are wide enough, above the lines so that none runs through them.
    fn band_names(&self, svg: &mut String) {
        for band in &self.plot.bands {
            let (from, to) = (self.x(band.from), self.x(band.to));
            if to - from >= text_width(&band.name) + 6.0 {
                let (x, y, name) = (from + 4.0, self.top + 12.0, markup(&band.name));
                let _ = write!(
                    svg,
                    "<text class=\"quiet on-top\" x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>"
                );
            }
        }
    }

    fn axes(&self, svg: &mut String) {
        let (left, right, top, bottom) = (self.left, self.right, self.top, self.bottom);
        for (value, text) in &self.plot.y.ticks {
            let (y, text) = (self.y(*value), markup(text));
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
                left - 6.0,
                y + 3.5
            );
        }
        let mut free_from = f64::NEG_INFINITY;
        for (value, text) in &self.plot.x.ticks {
            let x = self.x(*value);
            let half = text_width(text) / 2.0;
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{bottom:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>",
                bottom + 4.0
            );
            // A text that would run into its neighbour is left out; its mark stays.
            if x - half < free_from {
                continue;
            }
            free_from = x + half + 4.0;
            let _ = write!(
                svg,
                "<text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 16.0,
                markup(text)
            );
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{left:.1}\" y1=\"{bottom:.1}\" x2=\"{right:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"quiet\" x=\"0\" y=\"{:.1}\">{}</text>\
             <text class=\"quiet\" text-anchor=\"end\" x=\"{right:.1}\" y=\"{:.1}\">{}</text>",
            top - 10.0,
            markup(&self.plot.y.title),
            bottom + 32.0,
            markup(&self.plot.x.title)
        );
    }

    fn cells(&self, svg: &mut String) {
        for cell in &self.plot.cells {
            let (left, right) = (self.x(cell.x.0), self.x(cell.x.1));
            let (bottom, top) = (self.y(cell.y.0), self.y(cell.y.1));
            let (width, height) = ((right - left).max(0.5), (bottom - top).max(0.5));
            let (level, tip) = (cell.level, markup(&cell.tip));
            let _ = write!(
                svg,
                "<rect class=\"heat h{level}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                 height=\"{height:.1}\" data-tip=\"{tip}\"/>"
            );
        }
    }

    /// The scale of the colours, above the right end of the drawing.
    fn shades(&self, svg: &mut String) {
        let Some(shades) = &self.plot.shades else {
            return;
        };
        let (bottom, least, most) = (self.top - 10.0, markup(&shades.least), markup(&shades.most));
        let boxes_end = self.right - text_width(&shades.most) - 4.0;
        let boxes_begin = boxes_end - f64::from(SHADES) * SHADE_WIDTH;
        let _ = write!(
            svg,
            "<g class=\"shades\"><text class=\"quiet\" text-anchor=\"end\" x=\"{:.1}\" y=\"{bottom:.1}\">{least}</text>\
             <text class=\"quiet\" text-anchor=\"end\" x=\"{:.1}\" y=\"{bottom:.1}\">{most}</text>",
            boxes_begin - 4.0,
            self.right
        );
        for level in 1..=SHADES {
            let x = boxes_begin + f64::from(level - 1) * SHADE_WIDTH;
            let _ = write!(
                svg,
                "<rect class=\"heat h{level}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{SHADE_WIDTH:.1}\" height=\"9\"/>",
                bottom - 8.5
            );
        }
        svg.push_str("</g>");
    }

    fn lines(&self, svg: &mut String) {
        for line in &self.plot.lines {
            let class = line.class;
            for piece in &line.pieces {
                let mut path = String::new();
                for (x, y) in piece {
                    let _ = write!(path, "{:.1},{:.1} ", self.x(*x), self.y(*y));
                }
                let _ = write!(
                    svg,
                    "<polyline class=\"line {class}\" points=\"{}\"/>",
                    path.trim_end()
                );
                // A lone point has no length, and a line of none is not drawn.
                if let [(x, y)] = piece.as_slice() {
                    let (x, y) = (self.x(*x), self.y(*y));
                    let _ = write!(
                        svg,
                        "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"
                    );
                }
            }
        }
        self.line_names(svg);
    }

    /// Names at the ends of the lines, moved apart where they would cover each other.
    fn line_names(&self, svg: &mut String) {
        let mut names: Vec<(f64, &Line)> = Vec::new();
        for line in &self.plot.lines {
            let end = line.pieces.iter().rev().find_map(|piece| piece.last());
            if let Some((_, y)) = end.filter(|_| !line.name.is_empty()) {
                names.push((self.y(*y), line));
            }
        }
        names.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut free_from = self.top;
        for (y, _) in &mut names {
            *y = y.max(free_from);
            free_from = *y + LINE_HEIGHT;
        }
        let mut free_to = self.bottom;
        for (y, _) in names.iter_mut().rev() {
            *y = y.min(free_to);
            free_to = *y - LINE_HEIGHT;
        }
        for (y, line) in names {
            let (class, name) = (line.class, markup(&line.name));
            let (x, y) = (self.right + 6.0, y + 3.5);
            let _ = write!(
                svg,
                "<text class=\"name {class}\" x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>"
            );
        }
    }

    fn rules(&self, svg: &mut String) {
        for rule in &self.plot.rules {
            let (left, right, y) = (self.left, self.right, self.y(rule.y));
            let (x, above, name) = (right - 4.0, y - 4.0, markup(&rule.name));
            let class = rule.class;
            let _ = write!(
                svg,
                "<line class=\"rule {class}\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"rule-name on-top {class}\" text-anchor=\"end\" x=\"{x:.1}\" y=\"{above:.1}\">{name}</text>"
            );
        }
    }

    fn columns(&self, svg: &mut String) {
        for column in &self.plot.columns {
            let (from, to) = (self.x(column.from), self.x(column.to));
            let (top, width, height) = (self.top, to - from, self.bottom - self.top);
            let tip = markup(&column.tip);
            let _ = write!(
                svg,
                "<rect class=\"hit\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 data-tip=\"{tip}\"/>"
            );
        }
    }

    fn dots(&self, svg: &mut String) {
        for dot in &self.plot.dots {
            let (x, y) = (self.x(dot.x), self.y(dot.y));
            let (class, tip) = (dot.class, markup(&dot.tip));
            let _ = write!(
                svg,
                "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" data-tip=\"{tip}\"/>"
            );
        }
    }
}

/// About how wide a text is: letters differ by font, and a little too much room is better than too little.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.8
}

const WIDE: Frame = Frame {
    width: 560.0,
    height: 280.0,
};
const NARROW: Frame = Frame {
    width: 340.0,
    height: 260.0,
};
const LEFT: f64 = 42.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const RIGHT: f64 = 14.0;
const LINE_HEIGHT: f64 = 14.0;
/// Shades of a heat map.
pub(crate) const SHADES: u8 = 6;
const SHADE_WIDTH: f64 = 16.0;
