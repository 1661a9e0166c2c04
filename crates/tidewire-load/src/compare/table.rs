//! A comparison as plain text, with the worse metrics first.

use std::fmt::Write as _;

use tidewire_proto::text::visible;

use super::{Comparison, Metric, MetricComparison, Side, StepComparison, Verdict};
use crate::statistics::{MedianInterval, Outliers, RatioInterval};

pub(super) fn render(comparison: &Comparison) -> String {
    let mut text = String::new();
    let (base, new) = (side(&comparison.base), side(&comparison.new));
    let how = if comparison.paired {
        "in pairs"
    } else {
        "not paired"
    };
    let _ = writeln!(text, "base {base}, new {new}, {how}");
    let mut steps: Vec<&StepComparison> = comparison.steps.iter().collect();
    // A stable sort: otherwise the order of the scenario stays.
    steps.sort_by_key(|step| {
        let worst = step.metrics.iter().map(|metric| metric.verdict).min();
        (worst.is_none(), worst)
    });
    for step in steps {
        render_step(&mut text, step);
    }
    text.push('\n');
    for note in &comparison.notes {
        let _ = writeln!(text, "note: {}", visible(note.as_bytes()));
    }
    summary(&mut text, comparison);
    text
}

fn render_step(text: &mut String, step: &StepComparison) {
    let _ = writeln!(text, "\n{}", visible(step.step_name.as_bytes()));
    if let Some(obstacle) = &step.obstacle {
        let obstacle = obstacle.to_string();
        let _ = writeln!(text, "  not comparable: {}", visible(obstacle.as_bytes()));
    }
    for note in &step.notes {
        let _ = writeln!(text, "  ! {}", visible(note.as_bytes()));
    }
    if step.metrics.is_empty() {
        return;
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    let mut metrics: Vec<&MetricComparison> = step.metrics.iter().collect();
    metrics.sort_by_key(|metric| metric.verdict);
    rows.extend(metrics.into_iter().map(row));
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    });
    for row in rows {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Names and verdicts are read from the left, numbers compared from the right.
            let _ = if column == 0 || column + 1 == COLUMNS.len() {
                write!(line, " {cell:<width$} ")
            } else {
                write!(line, " {cell:>width$} ")
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for compared in &step.metrics {
        let sides = [
            ("base", &compared.base_outliers),
            ("new", &compared.new_outliers),
        ];
        for (side, outliers) in sides {
            if let Some(outliers) = outliers.as_ref().filter(|found| !found.flagged.is_empty()) {
                let _ = writeln!(text, "  {}", outlier_line(compared.metric, side, outliers));
            }
        }
    }
}

/// Such as `base p99: run 3 lies far from the others; iqr_mean 4.21 ms (1 of 6 runs set aside in this mean only)`.
fn outlier_line(metric: Metric, side: &str, outliers: &Outliers) -> String {
    let numbers: Vec<String> = outliers
        .flagged
        .iter()
        .map(|index| (index + 1).to_string())
        .collect();
    let lies = if numbers.len() == 1 {
        "run {} lies"
    } else {
        "runs {} lie"
    };
    format!(
        "{side} {}: {} far from the others; iqr_mean {} ({} of {} runs set aside in this mean only)",
        metric.name(),
        lies.replace("{}", &numbers.join(", ")),
        metric.show(outliers.iqr_mean),
        numbers.len(),
        outliers.runs,
    )
}

fn row(compared: &MetricComparison) -> [String; COLUMNS.len()] {
    let metric = compared.metric;
    let median = |side: &Option<MedianInterval>| match side {
        Some(interval) => metric.show(interval.median),
        None => "n/a".to_owned(),
    };
    let (ratio, interval) = match compared.ratio {
        Some(RatioInterval { ratio, low, high }) if compared.obstacle.is_none() => {
            (format!("{ratio:.3}"), format!("{low:.3} to {high:.3}"))
        }
        Some(RatioInterval { ratio, .. }) => (format!("{ratio:.3}"), "none".to_owned()),
        None => ("n/a".to_owned(), "none".to_owned()),
    };
    let verdict = match (&compared.obstacle, compared.verdict) {
        (Some(obstacle), _) => format!("not comparable: {obstacle}"),
        (None, Verdict::Worse) => "WORSE".to_owned(),
        (None, Verdict::Better) => "better".to_owned(),
        (None, _) => "no change found".to_owned(),
    };
    let is_recorded = compared.noise_is_recorded;
    let assumed = if is_recorded { "" } else { "assumed " };
    [
        metric.name().to_owned(),
        median(&compared.base),
        median(&compared.new),
        ratio,
        interval,
        format!("{assumed}{:.1} %", compared.noise * 100.0),
        verdict,
    ]
}

fn summary(text: &mut String, comparison: &Comparison) {
    let judged = comparison.judged();
    let [worse, better] =
        [Verdict::Worse, Verdict::Better].map(|verdict| comparison.count(verdict));
    if judged == 0 {
        text.push_str("nothing could be judged\n");
        return;
    }
    let _ = writeln!(
        text,
        "{worse} worse, {better} better, {} without a change found; of {judged} intervals chance alone would put \
         about {:.1} beside 1",
        comparison.count(Verdict::NoChangeFound),
        judged as f64 * 0.05,
    );
}

fn side(side: &Side) -> String {
    let runs = side.runs;
    let [version, commit] = [&side.version, &side.commit].map(|text| visible(text.as_bytes()));
    let word = if runs == 1 { "run" } else { "runs" };
    format!("{version} ({commit}) with {runs} {word}")
}

const COLUMNS: [&str; 7] = ["metric", "base", "new", "ratio", "95 %", "noise", "verdict"];
