//! Lines, dots and cells over two axes, as SVG.
//! A plot is described once and drawn twice, for a desk and for a phone. Each line has its name at its end, so the
//! reader need not compare colours with a legend. The attribute `data-tip` holds the text that the pointer shows.

use super::figure::{Chart, Picture, Table};
use super::scale::Axis;
use super::svg::{Anchor, Svg};

pub(crate) struct Plot {
    /// A description for readers who cannot see the drawing.
    label: String,
    pub(crate) x: Axis,
    y: Axis,
    lines: Vec<Line>,
    /// Everything but lines and axes.
    shapes: Vec<(Layer, Shape)>,
    /// The scale of the cells' colours.
    pub(crate) shades: Option<Shades>,
}

/// The scale of a heat map, from its faintest shade to its fullest.
pub(crate) struct Shades {
    /// Text before the faintest shade.
    pub(crate) least: String,
    /// Text after the fullest shade.
    pub(crate) most: String,
}

/// A line, possibly interrupted, with its name at its end.
struct Line {
    name: String,
    /// How it looks: a class of `style.css`.
    class: &'static str,
    pieces: Vec<Vec<(f64, f64)>>,
}

/// Draws itself where the canvas has its values.
type Shape = Box<dyn Fn(&Canvas<'_>, &mut Svg)>;

/// Shapes of a later layer are drawn over those of an earlier one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Bands,
    Cells,
    /// After the lines, so that no line crosses a name.
    BandNames,
    Rules,
    Columns,
    Dots,
}

impl Plot {
    pub(crate) fn new(label: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self {
            label: label.into(),
            x,
            y,
            lines: Vec::new(),
            shapes: Vec::new(),
            shades: None,
        }
    }

    /// Shades a part of the width, and names it if it is wide enough.
    pub(crate) fn band(&mut self, from: f64, to: f64, name: &str) {
        self.shape(Layer::Bands, move |canvas, svg| {
            let (corner, size) = canvas.column(from, to);
            svg.rect("band", corner, size);
        });
        let name = name.to_owned();
        self.shape(Layer::BandNames, move |canvas, svg| {
            let ((x, _), (width, _)) = canvas.column(from, to);
            if width >= text_width(&name) + 6.0 {
                let place = (x + 4.0, canvas.top + 12.0);
                svg.text("quiet on-top", Anchor::Start, place, &name);
            }
        });
    }

    /// A rectangle of a heat map. Its level is from 1, faint, to [`SHADES`], full.
    pub(crate) fn cell(&mut self, x: (f64, f64), y: (f64, f64), level: u8, tip: String) {
        self.shape(Layer::Cells, move |canvas, svg| {
            let (left, right) = (canvas.x(x.0), canvas.x(x.1));
            let (bottom, top) = (canvas.y(y.0), canvas.y(y.1));
            let size = ((right - left).max(0.5), (bottom - top).max(0.5));
            let class = format!("heat h{level}");
            svg.tipped_rect(&class, (left, top), size, &tip);
        });
    }

    /// A named line across the whole width, such as a limit.
    pub(crate) fn rule(&mut self, y: f64, class: &'static str, name: String) {
        self.shape(Layer::Rules, move |canvas, svg| {
            let (left, right, y) = (canvas.left, canvas.right, canvas.y(y));
            svg.line(&format!("rule {class}"), (left, y), (right, y));
            // A dot on the line must not cover the name.
            let class = format!("rule-name on-top {class}");
            svg.text(&class, Anchor::End, (right - 4.0, y - 8.0), &name);
        });
    }

    pub(crate) fn line(&mut self, name: &str, class: &'static str, pieces: Vec<Vec<(f64, f64)>>) {
        let name = name.to_owned();
        self.lines.push(Line {
            name,
            class,
            pieces,
        });
    }

    /// A measured point.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), class: &'static str, tip: String) {
        self.shape(Layer::Dots, move |canvas, svg| {
            svg.circle(class, (canvas.x(x), canvas.y(y)), 4.0, &tip);
        });
    }

    /// A part of the width with a text for the pointer.
    pub(crate) fn column(&mut self, from: f64, to: f64, tip: String) {
        self.shape(Layer::Columns, move |canvas, svg| {
            let (corner, size) = canvas.column(from, to);
            svg.tipped_rect("hit", corner, size, &tip);
        });
    }

    fn shape(&mut self, layer: Layer, shape: impl Fn(&Canvas<'_>, &mut Svg) + 'static) {
        self.shapes.push((layer, Box::new(shape)));
    }

    /// The chart, with the sentence above it and the table below it.
    pub(crate) fn drawn(&self, about: impl Into<String>, table: Table) -> Chart {
        Chart {
            about: about.into(),
            picture: Picture {
                wide: self.draw(560.0, 280.0),
                narrow: self.draw(340.0, 260.0),
            },
            table,
        }
    }

    /// Draws in units that are pixels at this width.
    fn draw(&self, width: f64, height: f64) -> String {
        let names = self.lines.iter().map(|line| text_width(&line.name));
        let right = names.fold(RIGHT, |right, name| right.max(name + 10.0));
        let canvas = Canvas {
            plot: self,
            left: LEFT,
            right: width - right,
            top: TOP,
            bottom: height - BOTTOM,
        };
        let mut svg = Svg::default();
        canvas.draw(Layer::Bands, &mut svg);
        canvas.axes(&mut svg);
        canvas.draw(Layer::Cells, &mut svg);
        canvas.lines(&mut svg);
        for layer in [Layer::BandNames, Layer::Rules, Layer::Columns, Layer::Dots] {
            canvas.draw(layer, &mut svg);
        }
        canvas.shades(&mut svg);
        svg.finish(&self.label, width, height)
    }
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

    fn draw(&self, layer: Layer, svg: &mut Svg) {
        let shapes = self.plot.shapes.iter();
        for (_, shape) in shapes.filter(|(its, _)| *its == layer) {
            shape(self, svg);
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
            // A long text at the right end does not stick out of the plot.
            let at = x.min(right + OVERHANG - half);
            // A text that would overlap its neighbour is left out; its mark is drawn.
            if at - half >= free_from {
                free_from = at + half + 4.0;
                svg.text("tick", Anchor::Middle, (at, bottom + 16.0), text);
            }
        }
        svg.line("axis", (left, bottom), (right, bottom));
        let (above, below) = ((0.0, self.top - 10.0), (right, bottom + 32.0));
        svg.text("quiet", Anchor::Start, above, &self.plot.y.title);
        svg.text("quiet", Anchor::End, below, &self.plot.x.title);
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
}

/// Estimates the width of a text. Fonts differ, and the estimate is rather too wide.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.8
}

const LEFT: f64 = 42.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
const RIGHT: f64 = 14.0;
const LINE_HEIGHT: f64 = 14.0;
/// The number of shades of a heat map.
pub(crate) const SHADES: u8 = 6;
const SHADE_WIDTH: f64 = 16.0;

/// The part of a text below the axis that may be right of the plot.
const OVERHANG: f64 = 8.0;
