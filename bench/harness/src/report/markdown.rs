//! The results as tables in Markdown, which is what a terminal shows, too.

use tidewire_load::format::{each, few, thousands};

use super::{BenchReport, Figures, PeerFigures, RowResult, SuiteResult, climb};
use crate::contract::Times;

impl BenchReport {
    /// A heading and a table for each suite.
    pub fn to_markdown(&self) -> String {
        let env = &self.env;
        let (machine, repeat, pinning) = (&env.machine, env.repeat, &env.pinning);
        let quick = if env.quick {
            " Quick: not to be quoted."
        } else {
            ""
        };
        let interrupted = if env.interrupted { " Interrupted." } else { "" };
        let mut text = format!(
            "{}, {} cores, kernel {}; {repeat} rounds; {pinning}.{quick}{interrupted}\n\n",
            machine.cpu, machine.cores, machine.kernel,
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
            write_table(&climb::head(), row.climb_rows().into_iter(), &mut text);
        }
        text
    }

    /// The columns of its table; that of the bytes only if messages have sizes here.
    fn columns(&self) -> impl Iterator<Item = &'static Column> {
        let mut all = self
            .rows
            .iter()
            .flat_map(|row| row.limit.iter().chain([&row.tidewire]));
        let has_bytes = all.any(|one| one.bytes_per_sec.is_some());
        COLUMNS
            .iter()
            .filter(move |(name, _)| has_bytes || *name != BYTES)
    }

    /// Their names.
    pub(super) fn head(&self) -> Vec<&'static str> {
        self.columns().map(|(name, _)| *name).collect()
    }

    /// A row of its table.
    pub(super) fn cells(&self, row: &RowResult) -> Vec<String> {
        self.columns().map(|(_, cell)| cell(row)).collect()
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

/// The limit, with the loop that it is where there are several.
fn limit(row: &RowResult) -> String {
    let limit = or_none(row.limit.as_ref(), median);
    match &row.limit_loop {
        Some(name) => format!("{limit}: {name}"),
        None => limit,
    }
}

fn peers(row: &RowResult) -> String {
    let text = |(name, peer): (&String, &PeerFigures)| {
        let figures = &peer.figures;
        if figures.error.is_some() {
            return format!("{name} failed");
        }
        let ratio = or_none(peer.ratio, times);
        // Of a mode that drops in silence nothing else is expected.
        let fault = figures.fault().filter(|_| !peer.drops);
        let held = fault.as_ref().map_or_else(|| unless_held(figures), |_| "");
        let marks: Vec<&str> = fault
            .as_deref()
            .into_iter()
            .chain(figures.marks())
            .collect();
        format!("{name} {ratio}{held}{}", marked(&marks))
    };
    let peers: Vec<String> = row.peers.iter().map(text).collect();
    or_none((!peers.is_empty()).then_some(peers), |peers| {
        peers.join(", ")
    })
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
    if !faults.is_empty() {
        return faults.join(", ");
    }
    let mark = if row.tidewire.counted {
        " (counted)"
    } else {
        ""
    };
    format!("{}{mark}", thousands(row.tidewire.lost))
}

/// Three percentiles, in microseconds.
pub(super) fn percentiles(times: &Times) -> String {
    [times.p50_us, times.p99_us, times.p999_us]
        .map(time_us)
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
    let [median, low, high] = [median, low, high].map(figure);
    format!("{median} [{low}–{high}]{}", unless_held(figures))
}

/// The remark after a figure that fell short of the offered rate.
fn unless_held(figures: &Figures) -> &'static str {
    match figures.holds {
        Some(false) => " (does not hold)",
        _ => "",
    }
}

/// The figures of the server and of the client.
pub(super) fn pair(server: Option<f64>, client: Option<f64>, shown: fn(f64) -> String) -> String {
    if server.or(client).is_none() {
        return none();
    }
    format!("{}, {}", or_none(server, shown), or_none(client, shown))
}

pub(super) fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

/// A text of what is there.
pub(super) fn or_none<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(none, shown)
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

/// A time of single messages: three significant digits, because the next one differs from run to run.
pub(super) fn time_us(value: f64) -> String {
    // Casts saturate, so that no number of a peer ends the report.
    let digits = value.max(1.0).log10() as u32;
    let unit = 10_u64.pow(digits.saturating_sub(2).min(18));
    match value {
        value if value >= 1_000.0 => {
            let units = (value / unit as f64).round() as u64;
            thousands(units.saturating_mul(unit))
        }
        value => figure(value),
    }
}

pub(super) fn none() -> String {
    "–".to_owned()
}

/// Column of the bytes that came.
const BYTES: &str = "GB/s";

/// Column of the peers.
pub(super) const PEERS: &str = "Tidewire by peer";

/// A column of the table: its name, and the cell of a row.
pub(super) type Column = (&'static str, fn(&RowResult) -> String);

const COLUMNS: [Column; 14] = [
    ("row", |row| format!("{}{}", row.id, marked(&row.marks()))),
    ("unit", |row| row.unit.clone()),
    ("limit", limit),
    ("Tidewire", |row| median(&row.tidewire)),
    (BYTES, |row| {
        or_none(row.tidewire.bytes_per_sec, |bytes| few(bytes / 1e9))
    }),
    ("of the limit", |row| or_none(row.limit_ratio, percent)),
    ("server CPU of the limit", |row| {
        or_none(row.limit_server_cpu_ratio, percent)
    }),
    (PEERS, peers),
    ("p50, p99, p99.9 µs", |row| {
        or_none(row.tidewire.latency.as_ref(), percentiles)
    }),
    ("CPU ns/msg server, client", |row| row.tidewire.cpu()),
    ("busy % server, client", |row| row.tidewire.busy()),
    ("bytes/msg server, client", |row| {
        let bytes = row.tidewire.allocated_bytes_per_msg;
        pair(bytes.server, bytes.client, each)
    }),
    ("RSS MiB", |row| {
        let mebibytes = |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        or_none(row.tidewire.rss_bytes_max, mebibytes)
    }),
    ("lost", loss),
];

impl Figures {
    pub(super) fn cpu(&self) -> String {
        pair(
            self.server_cpu_ns_per_msg,
            self.client_cpu_ns_per_msg,
            figure,
        )
    }

    pub(super) fn busy(&self) -> String {
        pair(self.server_busy_pct, self.client_busy_pct, figure)
    }
}
