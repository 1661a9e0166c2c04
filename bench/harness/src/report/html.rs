//! `bench.html`: the results to look at.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::iter;

use tidewire_load::format::{markup, thousands};
use tidewire_load::page::bars::{self, Bar, Mark};
use tidewire_load::page::dots::{self, Whisker};
use tidewire_load::page::figure::{Chart, Figure, Table};
use tidewire_load::page::scale::{Axis, Scale};
use tidewire_load::page::{Heading, machine_facts, whole_page, write_environment};

use super::markdown::{Column, PEERS, figure, or_none, percent, time_us, times};
use super::{BenchReport, Figures, RowResult, SuiteResult, climb, legend};

impl BenchReport {
    /// The content of `bench.html`: one page that needs nothing else.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        self.write_verdict(&mut page);
        legend::write(&mut page);
        for suite in &self.suites {
            write_suite(suite, &mut page);
        }
        self.write_environment(&mut page);
        let machine = &self.env.machine;
        let heading = Heading {
            title: "Tidewire benchmark",
            name: "Tidewire benchmark",
            about: &format!(
                "{}, {} cores, {}",
                machine.cpu, machine.cores, self.env.started_at
            ),
        };
        whole_page(&heading, &page)
    }

    fn write_verdict(&self, page: &mut String) {
        let faults = self.faults();
        let (class, word, sentence) = if !faults.is_empty() {
            let text = "Messages of some rows are not accounted for; their figures prove nothing.";
            ("bad", "✗ Not verified", text)
        } else if self.env.interrupted {
            (
                "bad",
                "■ Interrupted",
                "The figures cover what ran until then.",
            )
        } else {
            let text =
                "Every message of Tidewire and of the limits was checked, and none is missing.";
            ("ok", "✓ Verified", text)
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
    let head = COLUMNS.iter().map(|(name, _)| *name);
    let mut table = Table::new(head).with_words(4).with_words(6);
    for row in &suite.rows {
        table.row(COLUMNS.iter().map(|(_, cell)| cell(row)).collect());
    }
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
    let loops: Vec<String> = suite
        .rows
        .iter()
        .filter_map(RowResult::other_loops)
        .collect();
    if !loops.is_empty() {
        page.push_str("<h3>Other bare loops</h3>\n");
    }
    for line in loops {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", markup(&line));
    }
    for row in suite.rows.iter().filter(|row| row.climbs()) {
        let (id, unit) = (markup(&row.id), markup(&row.unit));
        let _ = writeln!(page, "<h3>{id} ({unit})</h3>");
        let head = climb::head();
        let last = head.len() - 1;
        let mut table = Table::new(head).with_words(last);
        row.climb_rows()
            .into_iter()
            .for_each(|cells| table.row(cells));
        page.push_str("<details><summary>Everybody, the highest rate first</summary>");
        table.write(page);
        page.push_str("</details>\n");
    }
    let figure = |id: &str, title, content| Figure {
        id: format!("{}-{id}", suite.name),
        title,
        content,
    };
    let limit = figure("limit", "Per cent of the limit", of_the_limit(suite));
    Figure::write_all(&[limit], page);
    let mut figures = Vec::new();
    for unit in units(suite) {
        let id = format!("contenders-{}", figures.len() + 1);
        figures.push(figure(&id, "Everybody in a row", contenders(suite, &unit)));
    }
    figures.push(figure("latency", "Times of messages", latencies(suite)));
    figures.push(figure("cost", "Processor time of a message", costs(suite)));
    // With many rows and peers each of them is longer than all else of the suite.
    page.push_str("<details><summary>Everybody, times and processor time</summary>");
    Figure::write_all(&figures, page);
    page.push_str("</details></section>\n");
}

/// The narrow table: the figures by which a row is judged, the ratio first, because a telephone shows two or three.
const COLUMNS: [Column; 9] = [
    ("row", |row| row.id.clone()),
    ("of the limit", |row| or_none(row.limit_ratio, percent)),
    ("Tidewire", |row| short_median(&row.tidewire)),
    ("limit", |row| or_none(row.limit.as_ref(), short_median)),
    ("unit", |row| row.unit.clone()),
    ("server CPU of the limit", |row| {
        or_none(row.limit_server_cpu_ratio, percent)
    }),
    ("closest peer", closest_peer),
    ("lost", count_of_lost),
    ("marks", |row| row.marks().join(", ")),
];

/// A median without its interval, which is among all columns. A fault is told at the top of the page.
fn short_median(figures: &Figures) -> String {
    match figures.fault() {
        Some(_) => "✗ fault".to_owned(),
        None => or_none(figures.median, figure),
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
    let closest = ratios.min_by(|(_, one), (_, other)| one.total_cmp(other));
    or_none(closest, |(name, ratio)| format!("{name} {}", times(ratio)))
}

/// How much of the bare loop Tidewire reaches.
fn of_the_limit(suite: &SuiteResult) -> Result<Chart, String> {
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
        table.row(vec![
            row.id.clone(),
            text.clone(),
            interval.clone(),
            or_none(row.limit_server_cpu_ratio, percent),
            self::interval(row.limit_server_cpu_ratio_ci95, percent),
            row.marks().join(", "),
        ]);
        bars.push(Bar {
            name: String::new(),
            value: ratio,
            tip: format!("{}\n{text} of the limit\n{interval}", row.id),
            text,
            class: "s1",
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
    Ok(Chart {
        about: "100 % is a bare loop that moves the same bytes in the same run; more is better. If the driver was the slower \
                part (driver-bound), compare the processor time of the servers: the limit's divided by Tidewire's."
            .to_owned(),
        picture: bars::picture("Per cent of the limit", &bars, scale, Some(&hundred)),
        table,
    })
}

/// The units of a suite's figures, in the order in which they appear.
fn units(suite: &SuiteResult) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let units = suite.rows.iter().map(|row| row.unit.clone());
    units.filter(|unit| seen.insert(unit.clone())).collect()
}

/// The figures of all who took part, in one unit.
fn contenders(suite: &SuiteResult, unit: &str) -> Result<Chart, String> {
    let mut table = Table::new(["row", "who", "median", "interval", "Tidewire is"]).with_words(1);
    let mut whiskers = Vec::new();
    for row in suite.rows.iter().filter(|row| row.unit == unit) {
        let mut group = Some(row.id.clone());
        for one in row.contenders() {
            let (Some(median), Some([low, high])) = (one.figures.median, one.figures.ci95) else {
                continue;
            };
            let interval = interval(Some([low, high]), figure);
            let ratio = one.ratio.map(times).unwrap_or_default();
            let shown = figure(median);
            whiskers.push(Whisker {
                name: one.name.clone(),
                value: median,
                low,
                high,
                class: one.class,
                tip: format!("{}: {shown} {unit}\n{interval}", one.name),
                group: group.take(),
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
    Ok(Chart {
        about: format!("Medians with their intervals, in {unit}; {better} is better."),
        picture: dots::picture("Everybody in a row", &whiskers, &axis),
        table,
    })
}

/// From the median to the 99.9th percentile.
fn latencies(suite: &SuiteResult) -> Result<Chart, String> {
    let head = ["row", "who", "p50 µs", "p95 µs", "p99 µs", "p99.9 µs"];
    let mut table = Table::new(head).with_words(1);
    let mut whiskers = Vec::new();
    for row in &suite.rows {
        let mut group = Some(row.id.clone());
        for one in row.contenders() {
            let Some(times) = one.figures.latency else {
                continue;
            };
            let [p50, p95, p99, p999] =
                [times.p50_us, times.p95_us, times.p99_us, times.p999_us].map(time_us);
            whiskers.push(Whisker {
                name: one.name.clone(),
                value: times.p50_us,
                low: times.p50_us,
                high: times.p999_us,
                class: one.class,
                tip: format!("{}: p50 {p50}, p99 {p99}, p99.9 {p999} µs", one.name),
                group: group.take(),
            });
            table.row(vec![row.id.clone(), one.name, p50, p95, p99, p999]);
        }
    }
    if whiskers.is_empty() {
        return Err("this suite takes no times of single messages".to_owned());
    }
    let values = whiskers.iter().flat_map(|one| [one.low, one.high]);
    let axis = Axis::logarithmic("µs", values);
    Ok(Chart {
        about:
            "The dot is the median, the line reaches to the 99.9th percentile; medians of the runs."
                .to_owned(),
        picture: dots::picture("Times of messages", &whiskers, &axis),
        table,
    })
}

/// The cost of a message on each side.
fn costs(suite: &SuiteResult) -> Result<Chart, String> {
    let mut table = Table::new(["row", "who", "ns/msg"]).with_words(1);
    let mut bars = Vec::new();
    let mut most = 0.0_f64;
    for row in &suite.rows {
        let limit = row.limit.iter().map(|limit| ("limit's ", "s0", limit));
        let sides = iter::once(("", "s1", &row.tidewire)).chain(limit);
        let costs = sides.flat_map(|(whose, class, figures)| {
            let server = ("server", figures.server_cpu_ns_per_msg);
            let both = [server, ("client", figures.client_cpu_ns_per_msg)];
            both.map(|(part, cost)| (format!("{whose}{part}"), class, cost))
        });
        let mut group = Some(row.id.clone());
        for (name, class, cost) in costs {
            let Some(cost) = cost else { continue };
            most = most.max(cost);
            table.row(vec![row.id.clone(), name.clone(), figure(cost)]);
            bars.push(Bar {
                tip: format!("{}\n{name}: {} ns", row.id, figure(cost)),
                name,
                value: cost,
                text: format!("{} ns", figure(cost)),
                class,
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
    Ok(Chart {
        about: "Processor time of each process by the kernel's account, divided by the messages."
            .to_owned(),
        picture: bars::picture("Processor time of a message", &bars, scale, None),
        table,
    })
}

fn interval(ends: Option<[f64; 2]>, shown: fn(f64) -> String) -> String {
    or_none(ends, |[low, high]| {
        format!("{} to {}", shown(low), shown(high))
    })
}
