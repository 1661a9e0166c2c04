//! The cost of a message on each side: processor time, system calls, allocations.

use crate::format::{NONE_BELOW, each, thousands};
use crate::page::bars::{Bar, group, picture};
use crate::page::figure::{Cell, Chart, Picture, Table};
use crate::page::scale::Scale;
use crate::report::{Cost, Report};

/// Draws the processor time for each message, of both sides.
pub(super) fn processor(report: &Report) -> Result<Chart, String> {
    let mut table =
        Table::new("step, client ns, server ns, client CPU %, server CPU %, steal %".split(", "));
    let mut bars = Vec::new();
    for (name, cost) in costs(report) {
        let nanoseconds = |figure: f64| format!("{} ns", thousands(figure.round() as u64));
        let (client, server) = (cost.client_ns_per_message, cost.server_ns_per_message);
        let figures = known([("server", "s1", server), ("client", "s0", client)]);
        bars.extend(group(name, figures, nanoseconds, a_message));
        let [client_pct, server_pct] = [cost.client_cpu_pct, cost.server_cpu_pct];
        let figures = [client, server, client_pct, server_pct, cost.steal_pct];
        let mut cells = vec![Cell::from(name.to_owned())];
        cells.extend(figures.map(|figure| figure.map_or_else(|| figure.into(), some_or_none)));
        table.row(cells);
    }
    let reason = "the report has no processor time of either side by the message";
    let picture = linear("Processor time a message", &bars, reason)?;
    Ok(Chart {
        about: "Processor time of the steady window, divided by the messages sent and received. CPU is in percent of the cores of \
                each side's lanes. Only a server that this program started is observed."
            .to_owned(),
        picture,
        table,
    })
}

/// Draws the system calls and allocations for each message, of both sides.
pub(super) fn calls(report: &Report) -> Result<Chart, String> {
    let mut table = Table::new("step, client calls, server calls, client allocations, server allocations, client bytes, server bytes".split(", "));
    let mut bars = Vec::new();
    for (name, cost) in costs(report) {
        let [client, server] = [cost.client_lanes, cost.server_lanes];
        let calls = [client, server].map(|lanes| Some(lanes?.system_calls_per_message));
        let allocations = [client, server].map(|lanes| lanes?.allocations_per_message);
        let bytes = [client, server].map(|lanes| lanes?.allocated_bytes_per_message);
        let figures = known([
            ("server calls", "s1", calls[1]),
            ("client calls", "s0", calls[0]),
            ("server allocations", "s1", allocations[1]),
            ("client allocations", "s0", allocations[0]),
        ]);
        // A figure that is told as none has no bar.
        let figures = figures.map(|(bar, class, value)| match value {
            value if value < NONE_BELOW => (bar, class, 0.0),
            value => (bar, class, value),
        });
        bars.extend(group(name, figures, each, a_message));
        let mut cells = vec![Cell::from(name.to_owned())];
        let figures = [calls, allocations, bytes].concat();
        let told = figures.into_iter().map(|figure| {
            // Reports of older builds do not have the figure.
            figure.map_or_else(|| "not known".to_owned().into(), some_or_none)
        });
        cells.extend(told);
        table.row(cells);
    }
    let reason = "the report does not say what lanes did by the message";
    let picture = linear("System calls and allocations a message", &bars, reason)?;
    Ok(Chart {
        about: "System calls to wait, read and write, and allocations, of the lanes of each side in the steady window, divided by \
                the messages sent and received. None means fewer than one in a thousand messages. Only a server that this \
                program started can be asked."
            .to_owned(),
        picture,
        table,
    })
}

/// A number, or "none" in place of zeros down to the last decimal.
fn some_or_none(figure: f64) -> Cell {
    if figure < NONE_BELOW {
        each(figure).into()
    } else {
        figure.into()
    }
}

fn costs(report: &Report) -> impl Iterator<Item = (&str, &Cost)> {
    let steps = report.steps.iter();
    steps.map(|step| (step.step_name.as_str(), &step.detail.cost))
}

/// The figures that are known. An impossible one is none.
fn known<const COUNT: usize>(
    figures: [(&'static str, &'static str, Option<f64>); COUNT],
) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
    let possible = |figure: Option<f64>| figure.filter(|figure| *figure >= 0.0);
    let figures = figures.into_iter();
    figures.filter_map(move |(name, class, figure)| Some((name, class, possible(figure)?)))
}

/// Draws bars from 0, or gives the reason why there are none.
fn linear(label: &str, bars: &[Bar], reason: &str) -> Result<Picture, String> {
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let high = if most > 0.0 { most } else { 1.0 };
    let scale = Scale::Linear { low: 0.0, high };
    let drawn = || picture(label, bars, scale, None);
    (!bars.is_empty())
        .then(drawn)
        .ok_or_else(|| reason.to_owned())
}

fn a_message(_: f64) -> String {
    " a message".to_owned()
}
