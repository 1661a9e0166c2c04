//! Lines, dots and cells over two axes, as SVG.
//! A plot is described once and drawn twice, for a desk and for a phone. Each line has its name at its end, so the
//! reader need not compare colours with a legend. The attribute `data-tip` holds the text that the pointer shows.

use super::figure::{Drawn, Picture, Table};
use super::scale::Axis;
use super::svg::{Anchor, Svg};

pub(crate) struct Plot {
    /// A description for readers who cannot see the drawing.
    pub(crate) label: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    bands: Vec<Band>,
    pub(crate) cells: Vec<Heat>,
    rules: Vec<Rule>,
    lines: Vec<Line>,
    dots: Vec<Dot>,
    columns: Vec<Column>,
    /// The scale of the cells' colours.
    pub(crate) shades: Option<Shades>,
}

/// The scale of a heat map, from its faintest shade to its fullest.
pub(crate) struct Shades {
    /// Text before the faintest shade.
    pub(crate) least: String,
    /// Text behind the fullest shade.
    pub(crate) most: String,
}

/// A shaded part of the width, with its name.
struct Band {
    from: f64,
    to: f64,
    name: String,
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
struct Rule {
    y: f64,
    /// How it looks: a class of `style.css`.
    class: &'static str,
    name: String,
}

/// A line, possibly interrupted, with its name at its end.
struct Line {
    name: String,
    /// How it looks: a class of `style.css`.
    class: &'static str,
    pieces: Vec<Vec<(f64, f64)>>,
}

/// A measured point.
struct Dot {
    place: (f64, f64),
    class: &'static str,
    tip: String,
}

/// A part of the width with a text for the pointer.
struct Column {
    from: f64,
    to: f64,
    tip: String,
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

    pub(crate) fn band(&mut self, from: f64, to: f64, name: &str) {
        let name = name.to_owned();
        self.bands.push(Band { from, to, name });
    }

    pub(crate) fn rule(&mut self, y: f64, class: &'static str, name: String) {
        self.rules.push(Rule { y, class, name });
    }

    pub(crate) fn line(&mut self, name: &str, class: &'static str, pieces: Vec<Vec<(f64, f64)>>) {
        let name = name.to_owned();
        self.lines.push(Line {
            name,
            class,
            pieces,
        });
    }

    pub(crate) fn dot(&mut self, place: (f64, f64), class: &'static str, tip: String) {
        self.dots.push(Dot { place, class, tip });
    }

    pub(crate) fn column(&mut self, from: f64, to: f64, tip: String) {
        self.columns.push(Column { from, to, tip });
    }

    /// The chart, with the sentence above it and the table below it.
    pub(crate) fn drawn(&self, about: impl Into<String>, table: Table) -> Drawn {
        Drawn {
            about: about.into(),
            picture: self.picture(),
            table,
        }
    }

    fn picture(&self) -> Picture {
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
        let mut svg = Svg::default();
        canvas.bands(&mut svg);
        canvas.axes(&mut svg);
        canvas.cells(&mut svg);
        canvas.lines(&mut svg);
        canvas.band_names(&mut svg);
        canvas.rules(&mut svg);
        canvas.columns(&mut svg);
        canvas.dots(&mut svg);
        canvas.shades(&mut svg);
        svg.finish(&self.label, frame.width, frame.height)
    }
}

/// The size of a drawing in its own units, which are pixels at its intended width.
struct Frame {
    width: f64,
    height: f64,
}

/// A plot and the rectangle between its axes.
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

    /// The rectangle over the whole height between two values.
    fn column(&self, from: f64, to: f64) -> ((f64, f64), (f64, f64)) {
        let (from, to) = (self.x(from), self.x(to));
        ((from, self.top), (to - from, self.bottom - self.top))
    }

    fn bands(&self, svg: &mut Svg) {
        for band in &self.plot.bands {
            let (corner, size) = self.column(band.from, band.to);
            svg.rect("band", corner, size);
        }
    }

    /// Writes the names of bands that are wide enough. They are drawn after the lines, so that no line crosses them.
    fn band_names(&self, svg: &mut Svg) {
        for band in &self.plot.bands {
            let ((x, _), (width, _)) = self.column(band.from, band.to);
            if width >= text_width(&band.name) + 6.0 {
                let place = (x + 4.0, self.top + 12.0);
                svg.text("quiet on-top", Anchor::Start, place, &band.name);
            }
        }
    }

    fn axes(&self, svg: &mut Svg) {
        let (left, right, bottom) = (self.left, self.right, self.bottom);
        for (value, text) in &self.plot.y.ticks {
            let y = self.y(*value);
            svg.line("grid", (left, y), (right, y));
            svg.text("tick", Anchor::End, (left - 6.0, y + 3.5), text);
        }
        let mut free_from = f64::NEG_INFINITY;
        for (value, text) in &self.plot.x.ticks {
            let x = self.x(*value);
            let half = text_width(text) / 2.0;
            svg.line("grid", (x, bottom), (x, bottom + 4.0));
            // A text that would overlap its neighbour is left out; its mark is drawn.
            if x - half >= free_from {
                free_from = x + half + 4.0;
                svg.text("tick", Anchor::Middle, (x, bottom + 16.0), text);
            }
        }
        svg.line("axis", (left, bottom), (right, bottom));
        let (above, below) = ((0.0, self.top - 10.0), (right, bottom + 32.0));
        svg.text("quiet", Anchor::Start, above, &self.plot.y.title);
        svg.text("quiet", Anchor::End, below, &self.plot.x.title);
    }

    fn cells(&self, svg: &mut Svg) {
        for cell in &self.plot.cells {
            let (left, right) = (self.x(cell.x.0), self.x(cell.x.1));
            let (bottom, top) = (self.y(cell.y.0), self.y(cell.y.1));
            let size = ((right - left).max(0.5), (bottom - top).max(0.5));
            let class = format!("heat h{}", cell.level);
            svg.tipped_rect(&class, (left, top), size, &cell.tip);
        }
    }

    /// Draws the scale of the colours, above the right end of the plot.
    fn shades(&self, svg: &mut Svg) {
        let Some(shades) = &self.plot.shades else {
            return;
        };
        let base = self.top - 10.0;
        let boxes_end = self.right - text_width(&shades.most) - 4.0;
        let boxes_begin = boxes_end - f64::from(SHADES) * SHADE_WIDTH;
        svg.group("shades", "", |svg| {
            let least = (boxes_begin - 4.0, base);
            svg.text("quiet", Anchor::End, least, &shades.least);
            svg.text("quiet", Anchor::End, (self.right, base), &shades.most);
            for level in 1..=SHADES {
                let x = boxes_begin + f64::from(level - 1) * SHADE_WIDTH;
                let class = format!("heat h{level}");
                svg.rect(&class, (x, base - 8.5), (SHADE_WIDTH, 9.0));
            }
        });
    }

    fn lines(&self, svg: &mut Svg) {
        for line in &self.plot.lines {
            for piece in &line.pieces {
                let points = piece.iter().map(|(x, y)| (self.x(*x), self.y(*y)));
                svg.polyline(line.class, points.clone());
                // A browser does not draw a line of a single point.
                if piece.len() == 1 {
                    points.for_each(|point| svg.circle(line.class, point, 2.5, ""));
                }
            }
        }
        self.line_names(svg);
    }

    /// Writes the names at the ends of the lines, and moves them apart where they would overlap.
    fn line_names(&self, svg: &mut Svg) {
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
            let class = format!("name {}", line.class);
            let place = (self.right + 6.0, y + 3.5);
            svg.text(&class, Anchor::Start, place, &line.name);
        }
    }

    fn rules(&self, svg: &mut Svg) {
        for rule in &self.plot.rules {
            let (class, y) = (rule.class, self.y(rule.y));
            svg.line(&format!("rule {class}"), (self.left, y), (self.right, y));
            // A dot on the line must not cover the name.
            let place = (self.right - 4.0, y - 8.0);
            let class = format!("rule-name on-top {class}");
            svg.text(&class, Anchor::End, place, &rule.name);
        }
    }

    fn columns(&self, svg: &mut Svg) {
        for column in &self.plot.columns {
            let (corner, size) = self.column(column.from, column.to);
            svg.tipped_rect("hit", corner, size, &column.tip);
        }
    }

    fn dots(&self, svg: &mut Svg) {
        for dot in &self.plot.dots {
            let place = (self.x(dot.place.0), self.y(dot.place.1));
            svg.circle(dot.class, place, 4.0, &dot.tip);
        }
    }
}

/// Estimates the width of a text. Fonts differ, and the estimate is rather too wide.
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
/// The number of shades of a heat map.
pub(crate) const SHADES: u8 = 6;
const SHADE_WIDTH: f64 = 16.0;
