//! A chart on a terminal: curves over the seconds until now, with a scale.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};
use tidewire_load::page::scale;

/// A line of a chart.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) colour: Color,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws curves over one scale, with their names and last figures above, and the seconds until now below.
pub(crate) fn render(
    unit: &str,
    curves: &[Curve],
    seconds: f64,
    area: Rect,
    frame: &mut Frame<'_>,
) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let mut names = Vec::new();
    for curve in curves {
        let last = curve.points.last().map_or(0.0, |(_, value)| *value);
        let text = format!("{} {}  ", curve.name, in_few_letters(last));
        names.push(Span::styled(text, Style::new().fg(curve.colour)));
    }
    names.push(Span::raw(unit.to_owned()));
    frame.render_widget(Paragraph::new(Line::from(names)), head);
    let points = curves.iter().flat_map(|curve| &curve.points);
    let most = points.map(|(_, value)| *value).fold(0.0, f64::max);
    let y = scale::Axis::from_zero(unit, most);
    let datasets = curves.iter().map(|curve| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(curve.colour))
            .data(&curve.points)
    });
    let (low, high) = y.scale.ends();
    // More labels than every other row has would run into each other.
    let is_low = usize::from(body.height) < 2 * y.ticks.len() + 2;
    let ends = [y.ticks.first(), y.ticks.last()];
    let labels: Vec<String> = if is_low {
        ends.into_iter()
            .flatten()
            .map(|(_, text)| text.clone())
            .collect()
    } else {
        y.ticks.into_iter().map(|(_, text)| text).collect()
    };
    let chart = Chart::new(datasets.collect())
        .legend_position(None)
        .x_axis(
            Axis::default()
                .bounds([0.0, seconds])
                .labels([format!("{seconds:.0} s ago"), "now".to_owned()]),
        )
        .y_axis(Axis::default().bounds([low, high]).labels(labels));
    frame.render_widget(chart, body);
}

/// A rate or a time beside the name of its curve.
fn in_few_letters(value: f64) -> String {
    if value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}
