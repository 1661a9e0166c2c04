//! The results as tables in Markdown, which is what a terminal shows, too.

use super::{BenchReport, Figures, RowResult, SuiteResult};
use crate::format::thousands;

impl BenchReport {
    /// A heading and a table for each suite.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let env = &self.env;
        let mut text = format!(
            "{}, {} cores, kernel {}; {} rounds; {}.{}{}\n\n",
            env.machine.cpu,
            env.machine.cores,
            env.machine.kernel,
            env.repeat,
            env.pinning,
            if env.quick {
                " Quick: not to be quoted."
            } else {
                ""
            },
            if env.interrupted { " Interrupted." } else { "" },
        );
        for suite in &self.suites {
            text.push_str(&suite.to_markdown());
            text.push('\n');
        }
        text
    }
}

impl SuiteResult {
    /// A heading and its table.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let head = head();
        let mut text = format!("## {}\n\n| {} |\n", self.name, head.join(" | "));
        text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
        for row in &self.rows {
            text.push_str(&format!("| {} |\n", cells(row).join(" | ")));
        }
        text
    }
}

/// The columns of a suite's table.
pub(super) fn head() -> [&'static str; 13] {
    [
        "row",
        "unit",
        "limit",
        "Tidewire",
        "of the limit",
        "server CPU of the limit",
        "Tidewire by peer",
        "p50, p99, p99.9 µs",
        "CPU ns/msg server, client",
        "busy % server, client",
        "bytes/msg server, client",
        "RSS MiB",
        "lost",
    ]
}

/// A row of it.
pub(super) fn cells(row: &RowResult) -> Vec<String> {
    let ours = &row.tidewire;
    vec![
        format!("{}{}", row.id, marked(&row.marks())),
        row.unit.clone(),
        row.limit.as_ref().map_or_else(none, median),
        median(ours),
        row.limit_ratio
            .map_or_else(none, |ratio| format!("{:.0} %", ratio * 100.0)),
        row.limit_server_cpu_ratio
            .map_or_else(none, |ratio| format!("{:.0} %", ratio * 100.0)),
        peers(row),
        ours.latency.map_or_else(none, |times| {
            [times.p50_us, times.p99_us, times.p999_us]
                .map(figure)
                .join(", ")
        }),
        pair(ours.server_cpu_ns_per_msg, ours.client_cpu_ns_per_msg),
        pair(ours.server_busy_pct, ours.client_busy_pct),
        pair(
            ours.allocated_bytes_per_msg.server,
            ours.allocated_bytes_per_msg.client,
        ),
        ours.rss_bytes_max.map_or_else(none, |bytes| {
            format!("{:.1}", bytes as f64 / f64::from(1 << 20))
        }),
        loss(row),
    ]
}

fn peers(row: &RowResult) -> String {
    let peers: Vec<String> = row
        .peers
        .iter()
        .map(|(name, peer)| {
            let ratio = match peer.ratio {
                _ if peer.figures.error.is_some() => return format!("{name} failed"),
                Some(ratio) => format!("{name} {ratio:.2}×"),
                None => format!("{name} –"),
            };
            // Of a mode that drops in silence nothing else is expected.
            let fault = peer.figures.fault().filter(|_| !peer.drops);
            let held = match &fault {
                Some(_) => "",
                None => unless_held(&peer.figures),
            };
            let marks = peer.figures.marks();
            let marks: Vec<&str> = fault.as_deref().into_iter().chain(marks).collect();
            format!("{ratio}{held}{}", marked(&marks))
        })
        .collect();
    if peers.is_empty() {
        none()
    } else {
        peers.join(", ")
    }
}

/// Marks behind what they are of.
fn marked(marks: &[&str]) -> String {
    if marks.is_empty() {
        String::new()
    } else {
        format!(" ({})", marks.join(", "))
    }
}

fn loss(row: &RowResult) -> String {
    let faults: Vec<String> = [("", Some(&row.tidewire)), ("limit ", row.limit.as_ref())]
        .into_iter()
        .filter_map(|(who, figures)| Some(format!("**{who}{}**", figures?.fault()?)))
        .collect();
    if faults.is_empty() {
        let mark = if row.tidewire.counted {
            " (counted)"
        } else {
            ""
        };
        format!("{}{mark}", thousands(row.tidewire.lost))
    } else {
        // A text of a program must not end a cell.
        faults.join(", ").replace(['|', '\n'], "/")
    }
}

fn median(figures: &Figures) -> String {
    let (Some(median), Some([low, high])) = (figures.median, figures.ci95) else {
        return none();
    };
    let mark = unless_held(figures);
    format!(
        "{} [{}–{}]{mark}",
        figure(median),
        figure(low),
        figure(high)
    )
}

/// What stands behind a figure that is not what was offered.
fn unless_held(figures: &Figures) -> &'static str {
    match figures.holds {
        Some(false) => " (does not hold)",
        _ => "",
    }
}

fn pair(server: Option<f64>, client: Option<f64>) -> String {
    if server.is_none() && client.is_none() {
        return none();
    }
    let one = |value: Option<f64>| value.map_or_else(none, figure);
    format!("{}, {}", one(server), one(client))
}

/// Three significant digits, or all of a large number with separators.
pub(super) fn figure(value: f64) -> String {
    match value {
        value if value >= 1_000.0 => thousands(value.round() as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn none() -> String {
    "–".to_owned()
}
