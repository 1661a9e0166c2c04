//! How charts are drawn: names of axes, texts within the plot, bars that say the same as their figures.

use tidewire_testkit::page::{by_id, parse, text};

use super::sample;
use crate::page::plot::text_width;

/// Regression: "none" stood behind a bar in one step and behind no bar in another.
#[test]
fn a_figure_that_is_told_as_none_has_no_bar() {
    let mut report = sample::open();
    let lanes = &mut report.steps[0].detail.cost.client_lanes;
    let lanes = lanes.as_mut().unwrap();
    lanes.system_calls_per_message = 0.000_5;
    lanes.allocations_per_message = Some(0.0);
    let page = report.to_html();
    let document = parse(&page);
    let rows = by_id(&document, "calls").descendants();
    let rows = rows.filter(|node| {
        let tip = node.attribute("data-tip").unwrap_or_default();
        tip.contains("client") && tip.contains(": none")
    });
    let bars = rows.flat_map(|row| {
        row.descendants().filter(|node| {
            node.attribute("class")
                .is_some_and(|it| it.starts_with("bar "))
        })
    });
    let widths: Vec<&str> = bars.filter_map(|bar| bar.attribute("width")).collect();
    // Calls and allocations, in both drawings; the other steps have some, too.
    assert!(widths.len() >= 4, "{widths:?}");
    assert!(widths.iter().all(|width| *width == "0.0"), "{widths:?}");
}

/// Regression: no logarithmic axis said that it is one.
#[test]
fn a_logarithmic_axis_says_so() {
    let page = sample::open().to_html();
    let document = parse(&page);
    for id in [
        "step-1-latency",
        "step-1-heat",
        "step-1-percentiles",
        "tail",
    ] {
        let figure = text(by_id(&document, id));
        assert!(figure.contains("ms, logarithmic"), "{id}: {figure}");
    }
}

/// Regression: the label 99.9999 stuck out at the right of its plot.
#[test]
fn the_last_text_below_an_axis_stays_within_the_plot() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let mut seen = 0;
    for svg in by_id(&document, "step-1-percentiles")
        .descendants()
        .filter(|node| node.has_tag_name("svg"))
    {
        let number = |text: Option<&str>| -> f64 { text.unwrap().parse().unwrap() };
        let mut nodes = svg.descendants();
        let axis = nodes.find(|node| node.attribute("class") == Some("axis"));
        let right = number(axis.unwrap().attribute("x2"));
        let ticks = svg.descendants().filter(|node| {
            node.attribute("class") == Some("tick")
                && node.attribute("text-anchor") == Some("middle")
        });
        for tick in ticks {
            let half = text_width(tick.text().unwrap_or_default()) / 2.0;
            assert!(
                number(tick.attribute("x")) + half <= right + 8.1,
                "{tick:?}"
            );
            seen += 1;
        }
    }
    assert!(seen > 4, "{seen}");
}
