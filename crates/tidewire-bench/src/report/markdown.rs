//! The results as tables in Markdown, which is what a terminal shows, too.

use tidewire_load::format::thousands;

use super::{BenchReport, Figures, RowResult, SuiteResult, climb};
use crate::contract::Times;

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
        let mut text = format!("## {}\n\n", self.name);
        let rows = self.rows.iter().map(|row| self.cells(row));
        write_table(&self.head(), rows, &mut text);
        let lines = self.rows.iter();
        let lines = lines.flat_map(|row| [row.other_loops(), row.passed_limit()]);
        for line in lines.flatten() {
            text.push_str(&format!("\n{line}\n"));
        }
        for row in self.rows.iter().filter(|row| row.climbs()) {
            text.push_str(&format!("\n{} ({}):\n\n", row.id, row.unit));
            write_table(&climb::HEAD, row.climb_rows().into_iter(), &mut text);
        }
        text
    }

    /// The columns of its table.
    pub(super) fn head(&self) -> Vec<&'static str> {
        let mut head = HEAD.to_vec();
        if !self.has_bytes() {
            head.retain(|column| *column != BYTES);
        }
        head
    }

    /// A row of its table.
    pub(super) fn cells(&self, row: &RowResult) -> Vec<String> {
        let mut cells = cells(row);
        if !self.has_bytes() {
            let bytes = HEAD.iter().position(|column| *column == BYTES);
            bytes.map(|bytes| cells.remove(bytes));
        }
        cells
    }

    /// Whether messages have sizes here.
    fn has_bytes(&self) -> bool {
        let limit = |row: &RowResult| row.limit.as_ref().and_then(|limit| limit.bytes_per_sec);
        let of = |row: &RowResult| row.tidewire.bytes_per_sec.or_else(|| limit(row));
        self.rows.iter().any(|row| of(row).is_some())
    }
}

fn write_table(head: &[&str], rows: impl Iterator<Item = Vec<String>>, text: &mut String) {
    text.push_str(&format!("| {} |\n", head.join(" | ")));
    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    for mut row in rows {
        // A text of a program must not end a cell.
        row.iter_mut()
            .for_each(|cell| *cell = cell.replace(['|', '\n'], "/"));
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
}

/// A row with all columns of [`HEAD`].
fn cells(row: &RowResult) -> Vec<String> {
    let ours = &row.tidewire;
    vec![
        format!("{}{}", row.id, marked(&row.marks())),
        row.unit.clone(),
        limit(row),
        median(ours),
        ours.bytes_per_sec
            .map_or_else(none, |bytes| format!("{:.2}", bytes / 1e9)),
        row.limit_ratio
            .map_or_else(none, |ratio| format!("{:.0} %", ratio * 100.0)),
        row.limit_server_cpu_ratio
            .map_or_else(none, |ratio| format!("{:.0} %", ratio * 100.0)),
        peers(row),
        ours.latency.as_ref().map_or_else(none, percentiles),
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

/// The limit, with the loop that it is where there are several.
fn limit(row: &RowResult) -> String {
    let limit = row.limit.as_ref().map_or_else(none, median);
    match &row.limit_loop {
        Some(name) => format!("{limit}: {name}"),
        None => limit,
    }
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
        faults.join(", ")
    }
}

/// Three percentiles, in microseconds.
pub(super) fn percentiles(times: &Times) -> String {
    [times.p50_us, times.p99_us, times.p999_us]
        .map(figure)
        .join(", ")
}

/// The fault of these figures, or else the text that `shown` makes of them.
pub(super) fn unless_fault(figures: &Figures, shown: fn(&Figures) -> String) -> String {
    figures.fault().unwrap_or_else(|| shown(figures))
}

pub(super) fn median(figures: &Figures) -> String {
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

/// The remark after a figure that fell short of the offered rate.
fn unless_held(figures: &Figures) -> &'static str {
    match figures.holds {
        Some(false) => " (does not hold)",
        _ => "",
    }
}

pub(super) fn pair(server: Option<f64>, client: Option<f64>) -> String {
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

pub(super) fn none() -> String {
    "–".to_owned()
}

/// Column of the bytes that came.
const BYTES: &str = "GB/s";

/// Column of the peers.
pub(super) const PEERS: &str = "Tidewire by peer";

const HEAD: [&str; 14] = [
    "row",
    "unit",
    "limit",
    "Tidewire",
    BYTES,
    "of the limit",
    "server CPU of the limit",
    PEERS,
    "p50, p99, p99.9 µs",
    "CPU ns/msg server, client",
    "busy % server, client",
    "bytes/msg server, client",
    "RSS MiB",
    "lost",
];
