//! `bench.html`: the results to look at.

use std::fmt::Write as _;

use tidewire_load::format::{markup, thousands};
use tidewire_load::page::bars::{self, Bar, Mark};
use tidewire_load::page::dots::{self, Whisker};
use tidewire_load::page::figure::{Drawn, Figure, Table};
use tidewire_load::page::scale::{Axis, Scale};
use tidewire_load::page::{Heading, machine_facts, whole_page, write_environment};

use super::markdown::{PEERS, figure, none};
use super::{BenchReport, Figures, RowResult, SuiteResult, climb, legend};

impl BenchReport {
    /// The content of `bench.html`: one page that needs nothing else.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        self.write_verdict(&mut page);
        legend::write(&mut page);
        for suite in &self.suites {
            write_suite(suite, &mut page);
        }
        self.write_environment(&mut page);
        let about = format!(
            "{}, {} cores, {}",
            self.env.machine.cpu, self.env.machine.cores, self.env.started_at
        );
        let heading = Heading {
            title: "Tidewire benchmark",
            name: "Tidewire benchmark",
            about: &about,
        };
        whole_page(&heading, &page)
    }

    fn write_verdict(&self, page: &mut String) {
        let faults = self.faults();
        let (class, word, sentence) = if !faults.is_empty() {
            (
                "bad",
                "✗ Not verified",
                "Messages of some rows are not accounted for; their figures prove nothing.",
            )
        } else if self.env.interrupted {
            (
                "bad",
                "■ Interrupted",
                "The figures cover what ran until then.",
            )
        } else {
            (
                "ok",
                "✓ Verified",
                "Every message of Tidewire and of the limits was checked, and none is missing.",
            )
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<section class=\"verdict {class}\"><strong>{word}</strong><span>{sentence}</span></section>"
        );
        let passed = self.passed_limits();
        let notes = faults.iter().chain(&passed);
        for note in notes.chain(&self.env.missing_peers) {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", markup(note));
        }
    }

    fn write_environment(&self, page: &mut String) {
        let env = &self.env;
        let mut rows = vec![("started", env.started_at.clone())];
        rows.extend(machine_facts(&env.machine));
        rows.extend([
            ("pinning", env.pinning.clone()),
            ("rounds", env.repeat.to_string()),
            ("quick", if env.quick { "yes" } else { "no" }.to_owned()),
        ]);
        write_environment(rows, page);
    }
}

fn write_suite(suite: &SuiteResult, page: &mut String) {
    let name = markup(&suite.name);
    let _ = writeln!(page, "<section id=\"{name}\"><h2>{name}</h2>");
    let mut table = Table::new(HEAD).with_words(1).with_words(6);
    suite.rows.iter().for_each(|row| table.row(cells(row)));
    table.write(page);
    // The table of everything is wider than a screen.
    let mut table = Table::new(suite.head()).with_words(1);
    if let Some(column) = suite.head().iter().position(|column| *column == PEERS) {
        table = table.with_words(column);
    }
    for row in &suite.rows {
        table.row(suite.cells(row));
    }
    page.push_str("<details class=\"long\"><summary>All columns</summary>");
    table.write(page);
    page.push_str("</details>\n");
    for line in suite.rows.iter().filter_map(RowResult::other_loops) {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", markup(&line));
    }
    for row in suite.rows.iter().filter(|row| row.climbs()) {
        let (id, unit) = (markup(&row.id), markup(&row.unit));
        let _ = writeln!(page, "<h3>{id} ({unit})</h3>");
        let mut table = Table::new(climb::HEAD).with_words(climb::HEAD.len() - 1);
        row.climb_rows()
            .into_iter()
            .for_each(|cells| table.row(cells));
        page.push_str("<details><summary>Everybody, the highest rate first</summary>");
        table.write(page);
        page.push_str("</details>\n");
    }
    let mut figures = vec![figure_of(
        suite,
        "limit",
        "Per cent of the limit",
        of_the_limit,
    )];
    for unit in units(suite) {
        let id = format!("contenders-{}", figures.len());
        figures.push(Figure {
            id: format!("{}-{id}", suite.name),
            title: "Everybody in a row",
            content: contenders(suite, &unit),
        });
    }
    figures.push(figure_of(suite, "latency", "Times of messages", latencies));
    figures.push(figure_of(
        suite,
        "cost",
        "Processor time of a message",
        costs,
    ));
    Figure::write_all(&figures, page);
    page.push_str("</section>\n");
}

/// A row of the narrow table: the figures by which a row is judged.
fn cells(row: &RowResult) -> Vec<String> {
    let percent = |ratio: Option<f64>| ratio.map_or_else(none, percent);
    vec![
        row.id.clone(),
        row.unit.clone(),
        row.limit.as_ref().map_or_else(none, short_median),
        short_median(&row.tidewire),
        percent(row.limit_ratio),
        percent(row.limit_server_cpu_ratio),
        closest_peer(row),
        count_of_lost(row),
        row.marks().join(", "),
    ]
}

/// The columns of [`cells`].
const HEAD: [&str; 9] = [
    "row",
    "unit",
    "limit",
    "Tidewire",
    "of the limit",
    "server CPU of the limit",
    "closest peer",
    "lost",
    "marks",
];

/// A median without its interval, which is among all columns. A fault is told at the top of the page.
fn short_median(figures: &Figures) -> String {
    match figures.fault() {
        Some(_) => "✗ fault".to_owned(),
        None => figures.median.map_or_else(none, figure),
    }
}

fn count_of_lost(row: &RowResult) -> String {
    match row.tidewire.lost {
        0 => "none".to_owned(),
        lost => thousands(lost),
    }
}

/// The peer that is best beside Tidewire, and how many times as good as it Tidewire is.
fn closest_peer(row: &RowResult) -> String {
    let ratios = row.peers.iter().filter(|(_, peer)| !peer.drops);
    let ratios = ratios.filter_map(|(name, peer)| Some((name, peer.ratio?)));
    ratios
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .map_or_else(
            || "–".to_owned(),
            |(name, ratio)| format!("{name} {ratio:.2}×"),
        )
}

fn figure_of(
    suite: &SuiteResult,
    id: &str,
    title: &'static str,
    content: fn(&SuiteResult) -> Result<Drawn, String>,
) -> Figure {
    Figure {
        id: format!("{}-{id}", suite.name),
        title,
        content: content(suite),
    }
}

/// How much of the bare loop Tidewire reaches.
fn of_the_limit(suite: &SuiteResult) -> Result<Drawn, String> {
    let head = [
        "row",
        "of the limit",
        "interval",
        "server CPU",
        "interval",
        "marks",
    ];
    let mut table = Table::new(head).with_words(1);
    let mut bars = Vec::new();
    let mut most = 1.0_f64;
    for row in &suite.rows {
        let Some(ratio) = row.limit_ratio else {
            continue;
        };
        most = most.max(ratio);
        let text = percent(ratio);
        let interval = interval(row.limit_ratio_ci95, percent);
        let cpu = row.limit_server_cpu_ratio;
        table.row(vec![
            row.id.clone(),
            text.clone(),
            interval.clone(),
            cpu.map_or_else(|| "–".to_owned(), percent),
            self::interval(row.limit_server_cpu_ratio_ci95, percent),
            row.marks().join(", "),
        ]);
        bars.push(Bar {
            name: String::new(),
            value: ratio,
            tip: format!("{}\n{text} of the limit\n{interval}", row.id),
            text,
            class: if ratio >= 1.0 { "s1" } else { "s2" },
            group: Some(row.id.clone()),
        });
    }
    if bars.is_empty() {
        return Err("no row has both a limit and Tidewire".to_owned());
    }
    let scale = Scale::Linear {
        low: 0.0,
        high: most.min(1e6),
    };
    let hundred = Mark {
        value: 1.0,
        text: "100 %".to_owned(),
    };
    Ok(Drawn {
        about: "100 % is a bare loop that does the same bytes in the same run; more is better. Where the driver was the \
                slower part (driver-bound), the processor time of the servers tells more: the limit's by Tidewire's."
            .to_owned(),
        picture: bars::picture("Per cent of the limit", &bars, scale, Some(&hundred)),
        table,
    })
}

/// The units of a suite's figures, in the order in which they appear.
fn units(suite: &SuiteResult) -> Vec<String> {
    let mut units = Vec::new();
    for row in &suite.rows {
        if !units.contains(&row.unit) {
            units.push(row.unit.clone());
        }
    }
    units
}

/// The figures of all who took part, in one unit.
fn contenders(suite: &SuiteResult, unit: &str) -> Result<Drawn, String> {
    let mut table = Table::new(["row", "who", "median", "interval", "Tidewire is"]).with_words(1);
    let mut whiskers = Vec::new();
    for row in suite.rows.iter().filter(|row| row.unit == unit) {
        for (index, one) in entries(row).into_iter().enumerate() {
            let interval = interval(Some([one.low, one.high]), figure);
            let ratio = one
                .ratio
                .map_or(String::new(), |ratio| format!("{ratio:.2}×"));
            let shown = figure(one.median);
            whiskers.push(Whisker {
                name: one.name.clone(),
                value: one.median,
                low: one.low,
                high: one.high,
                class: one.class,
                tip: format!("{}: {shown} {unit}\n{interval}", one.name),
                group: (index == 0).then(|| row.id.clone()),
            });
            table.row(vec![row.id.clone(), one.name, shown, interval, ratio]);
        }
    }
    if whiskers.is_empty() {
        return Err("nothing was measured".to_owned());
    }
    let values = whiskers.iter().flat_map(|one| [one.low, one.high]);
    let axis = Axis::logarithmic(unit, values);
    let better = match suite.rows.iter().find(|row| row.unit == unit) {
        Some(row) if row.lower_is_better => "less",
        _ => "more",
    };
    Ok(Drawn {
        about: format!("Medians with their intervals, in {unit}; {better} is better."),
        picture: dots::picture("Everybody in a row", &whiskers, &axis),
        table,
    })
}

/// Someone in a row.
struct Entry {
    name: String,
    class: &'static str,
    median: f64,
    low: f64,
    high: f64,
    ratio: Option<f64>,
}

fn entries(row: &RowResult) -> Vec<Entry> {
    let entry = |name: &str, class, figures: &Figures, ratio| {
        let (median, [low, high]) = (figures.median?, figures.ci95?);
        Some(Entry {
            name: name.to_owned(),
            class,
            median,
            low,
            high,
            ratio,
        })
    };
    let limit = row.limit.as_ref();
    let limit = limit.and_then(|figures| entry(&row.limit_name(), "s0", figures, row.limit_ratio));
    let others = row.other_limits.iter();
    let others =
        others.filter_map(|(name, one)| entry(&format!("bare loop, {name}"), "s0", one, None));
    let ours = entry("Tidewire", "s1", &row.tidewire, None);
    let peers = row
        .peers
        .iter()
        .filter_map(|(name, peer)| entry(name, "s2", &peer.figures, peer.ratio));
    limit
        .into_iter()
        .chain(others)
        .chain(ours)
        .chain(peers)
        .collect()
}

/// From the median to the 99.9th percentile.
fn latencies(suite: &SuiteResult) -> Result<Drawn, String> {
    let head = ["row", "who", "p50 µs", "p95 µs", "p99 µs", "p99.9 µs"];
    let mut table = Table::new(head).with_words(1);
    let mut whiskers = Vec::new();
    for row in &suite.rows {
        let ours = [
            ("limit", row.limit.as_ref()),
            ("Tidewire", Some(&row.tidewire)),
        ];
        let peers = row
            .peers
            .iter()
            .map(|(name, peer)| (name.as_str(), Some(&peer.figures)));
        let mut group = Some(row.id.clone());
        for (name, figures) in ours.into_iter().chain(peers) {
            let Some(times) = figures.and_then(|figures| figures.latency) else {
                continue;
            };
            let shown = [times.p50_us, times.p95_us, times.p99_us, times.p999_us].map(figure);
            whiskers.push(Whisker {
                name: name.to_owned(),
                value: times.p50_us,
                low: times.p50_us,
                high: times.p999_us,
                class: match name {
                    "limit" => "s0",
                    "Tidewire" => "s1",
                    _ => "s2",
                },
                tip: format!(
                    "{name}: p50 {}, p99 {}, p99.9 {} µs",
                    shown[0], shown[2], shown[3]
                ),
                group: group.take(),
            });
            let mut cells = vec![row.id.clone(), name.to_owned()];
            cells.extend(shown);
            table.row(cells);
        }
    }
    if whiskers.is_empty() {
        return Err("this suite takes no times of single messages".to_owned());
    }
    let values = whiskers.iter().flat_map(|one| [one.low, one.high]);
    Ok(Drawn {
        about:
            "The dot is the median, the line reaches to the 99.9th percentile; medians of the runs."
                .to_owned(),
        picture: dots::picture(
            "Times of messages",
            &whiskers,
            &Axis::logarithmic("µs", values),
        ),
        table,
    })
}

/// The cost of a message on each side.
fn costs(suite: &SuiteResult) -> Result<Drawn, String> {
    let mut table = Table::new(["row", "who", "ns/msg"]).with_words(1);
    let mut bars = Vec::new();
    let mut most = 0.0_f64;
    for row in &suite.rows {
        let ours = &row.tidewire;
        let limit = row.limit.as_ref();
        let costs = [
            ("server", "s1", ours.server_cpu_ns_per_msg),
            ("client", "s1", ours.client_cpu_ns_per_msg),
            (
                "limit's server",
                "s0",
                limit.and_then(|one| one.server_cpu_ns_per_msg),
            ),
            (
                "limit's client",
                "s0",
                limit.and_then(|one| one.client_cpu_ns_per_msg),
            ),
        ];
        let mut group = Some(row.id.clone());
        for (name, class, cost) in costs {
            let Some(cost) = cost else { continue };
            most = most.max(cost);
            table.row(vec![row.id.clone(), name.to_owned(), figure(cost)]);
            bars.push(Bar {
                name: name.to_owned(),
                value: cost,
                text: format!("{} ns", figure(cost)),
                class,
                tip: format!("{}\n{name}: {} ns", row.id, figure(cost)),
                group: group.take(),
            });
        }
    }
    if bars.is_empty() {
        return Err("nothing was measured".to_owned());
    }
    let scale = Scale::Linear {
        low: 0.0,
        high: most.clamp(1.0, 1e15),
    };
    Ok(Drawn {
        about: "Processor time of each process by the kernel's account, divided by the messages."
            .to_owned(),
        picture: bars::picture("Processor time of a message", &bars, scale, None),
        table,
    })
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

fn interval(ends: Option<[f64; 2]>, shown: fn(f64) -> String) -> String {
    ends.map_or_else(
        || "–".to_owned(),
        |[low, high]| format!("{} to {}", shown(low), shown(high)),
    )
}
