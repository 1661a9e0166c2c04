//! The shapes of a drawing. Coordinates have one decimal: less than a pixel is not seen.

use std::fmt::Write as _;

use crate::format::markup;

/// A drawing that grows shape by shape. Classes are those of `style.css`.
#[derive(Default)]
pub(super) struct Svg(String);

/// The end of a text that stands at its place.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// A rectangle from its upper left corner.
    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        self.tipped_rect(class, (x, y), (width, height), "");
    }

    /// The same with a text for the pointer.
    pub(super) fn tipped_rect(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        tip: &str,
    ) {
        let tip = data_tip(tip);
        // Writing to a string cannot fail.
        let _ = write!(
            self.0,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"{tip}/>"
        );
    }

    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = write!(
            self.0,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    pub(super) fn polyline(&mut self, class: &str, points: impl Iterator<Item = (f64, f64)>) {
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let _ = write!(
            self.0,
            "<polyline class=\"line {class}\" points=\"{points}\"/>"
        );
    }

    pub(super) fn circle(&mut self, class: &str, (x, y): (f64, f64), radius: f64, tip: &str) {
        let tip = data_tip(tip);
        let _ = write!(
            self.0,
            "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"{tip}/>"
        );
    }

    pub(super) fn text(&mut self, class: &str, anchor: Anchor, (x, y): (f64, f64), text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = markup(text);
        let _ = write!(
            self.0,
            "<text class=\"{class}\"{anchor} x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        );
    }

    /// Draws several shapes as one, with a text for the pointer.
    pub(super) fn group(&mut self, class: &str, tip: &str, draw: impl FnOnce(&mut Self)) {
        let tip = data_tip(tip);
        let _ = write!(self.0, "<g class=\"{class}\"{tip}>");
        draw(self);
        self.0.push_str("</g>");
    }

    /// The whole drawing; `label` describes it to readers who cannot see it.
    pub(super) fn finish(self, label: &str, width: f64, height: f64) -> String {
        let (label, content) = (markup(label), self.0);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">{content}</svg>"
        )
    }
}

fn data_tip(tip: &str) -> String {
    if tip.is_empty() {
        return String::new();
    }
    format!(" data-tip=\"{}\"", markup(tip))
}
