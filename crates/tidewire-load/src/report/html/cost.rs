//! The cost of a message on each side: processor time, system calls, allocations.

use crate::format::{NONE_BELOW, each, thousands};
use crate::page::bars::{Bar, picture};
use crate::page::figure::{Cell, Drawn, Table};
use crate::page::scale::Scale;
use crate::report::{Cost, Report};

/// Draws the processor time for each message, of both sides.
pub(super) fn processor(report: &Report) -> Result<Drawn, String> {
    let mut table =
        Table::new("step, client ns, server ns, client CPU %, server CPU %, steal %".split(", "));
    let mut bars = Bars::default();
    for (name, cost) in costs(report) {
        let nanoseconds = |figure: f64| format!("{} ns", thousands(figure.round() as u64));
        bars.add(
            name,
            nanoseconds,
            [
                ("server", "s1", cost.server_ns_per_message),
                ("client", "s0", cost.client_ns_per_message),
            ],
        );
        let figures = [
            cost.client_ns_per_message,
            cost.server_ns_per_message,
            cost.client_cpu_pct,
            cost.server_cpu_pct,
            cost.steal_pct,
        ];
        let mut cells = vec![Cell::from(name.to_owned())];
        cells.extend(figures.map(Cell::from));
        table.row(cells);
    }
    let Some(picture) = bars.picture("Processor time a message") else {
        return Err("the report has no processor time of either side by the message".to_owned());
    };
    Ok(Drawn {
        about: "Processor time of the steady window by messages sent and received. CPU is of the cores of each \
                side's lanes; a server that is not ours is not observed."
            .to_owned(),
        picture,
        table,
    })
}

/// Draws the system calls and allocations for each message, of both sides.
pub(super) fn calls(report: &Report) -> Result<Drawn, String> {
    let mut table = Table::new("step, client calls, server calls, client allocations, server allocations, client bytes, server bytes".split(", "));
    let mut bars = Bars::default();
    for (name, cost) in costs(report) {
        let [client, server] = [cost.client_lanes, cost.server_lanes];
        let calls = [client, server].map(|lanes| Some(lanes?.system_calls_per_message));
        let allocations = [client, server].map(|lanes| lanes?.allocations_per_message);
        let bytes = [client, server].map(|lanes| lanes?.allocated_bytes_per_message);
        bars.add(
            name,
            each,
            [
                ("server calls", "s1", calls[1]),
                ("client calls", "s0", calls[0]),
                ("server allocations", "s1", allocations[1]),
                ("client allocations", "s0", allocations[0]),
            ],
        );
        let mut cells = vec![Cell::from(name.to_owned())];
        let figures = [calls, allocations, bytes].concat();
        let told = figures.into_iter().map(|figure| {
            // Reports of older builds do not have the figure.
            match figure {
                None => Cell::from("not known".to_owned()),
                Some(figure) if figure < NONE_BELOW => each(figure).into(),
                Some(figure) => figure.into(),
            }
        });
        cells.extend(told);
        table.row(cells);
    }
    let Some(picture) = bars.picture("System calls and allocations a message") else {
        return Err("the report does not say what lanes did by the message".to_owned());
    };
    Ok(Drawn {
        about: "System calls to wait, read and write, and allocations, of the lanes of each side in the steady window, by \
                messages sent and received; none is fewer than one in a thousand messages. Only a server that this program started can be asked."
            .to_owned(),
        picture,
        table,
    })
}

fn costs(report: &Report) -> impl Iterator<Item = (&str, &Cost)> {
    let steps = report.steps.iter();
    steps.filter_map(|step| Some((step.step_name.as_str(), &step.detail.as_ref()?.cost)))
}

/// Bars of several steps, with the name of each step above its bars.
#[derive(Default)]
struct Bars(Vec<Bar>);

impl Bars {
    /// Adds the known figures of a step. Impossible figures are left out.
    fn add<const SIDES: usize>(
        &mut self,
        step: &str,
        text: impl Fn(f64) -> String,
        figures: [(&str, &'static str, Option<f64>); SIDES],
    ) {
        let mut group = Some(step.to_owned());
        for (name, class, figure) in figures {
            let Some(value) = figure.filter(|figure| *figure >= 0.0) else {
                continue;
            };
            let text = text(value);
            self.0.push(Bar {
                name: name.to_owned(),
                value,
                tip: format!("{step}\n{name}: {text} a message"),
                text,
                class,
                group: group.take(),
            });
        }
    }

    /// Returns `None` if there is no bar.
    fn picture(&self, label: &str) -> Option<crate::page::figure::Picture> {
        let most = self.0.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let high = if most > 0.0 { most } else { 1.0 };
        let scale = Scale::Linear { low: 0.0, high };
        (!self.0.is_empty()).then(|| picture(label, &self.0, scale, None))
    }
}
