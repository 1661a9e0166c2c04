//! The fates of the messages, the receivers that missed some, and their cost.

use crate::format::thousands;
use crate::page::bars::{Bar, group, picture};
use crate::page::figure::{Chart, NO_VALUE, Picture, Table};
use crate::page::scale::Scale;
use crate::report::{Report, StepReport};

/// Draws the delivered, late, lost, unconfirmed, duplicated and reordered messages of each step.
pub(super) fn fates(report: &Report) -> Result<Chart, String> {
    if report.steps.is_empty() {
        return Err("no step was begun".to_owned());
    }
    let mut table = Table::new("step, expected, delivered, late, lost, unconfirmed, duplicated, reordered, corrupt, foreign, invented, lost share".split(", "));
    let mut bars = Vec::new();
    for step in &report.steps {
        let counts = [
            ("delivered", "s1", Some(step.total_received)),
            ("late", "s2", step.late),
            ("lost", "s2", Some(step.lost)),
            ("unconfirmed", "s2", Some(step.unconfirmed)),
            ("duplicated", "s2", step.duplicated),
            ("reordered", "s2", step.reordered),
        ];
        let shown = counts.iter().enumerate();
        let shown = shown.filter(|(index, (.., count))| *index == 0 || *count > Some(0));
        let shown =
            shown.map(|(_, (name, class, count))| (*name, *class, count.unwrap_or(0) as f64));
        let about = |count: f64| {
            let share = share_of(count as u64, step.expected_received);
            format!("\n{share} of the expected")
        };
        bars.extend(group(&step.step_name, shown, count_text, about));
        let mut cells = vec![step.step_name.clone(), thousands(step.expected_received)];
        let others = [step.corrupt, Some(step.foreign), Some(step.invented)];
        let all = counts.map(|(.., count)| count).into_iter().chain(others);
        cells.extend(all.map(|count| count.map_or_else(|| "not checked".to_owned(), thousands)));
        cells.push(share_of(step.lost, step.expected_received));
        table.row(cells);
    }
    Ok(Chart {
        about: "Bars are logarithmic, so that one lost message is seen beside millions of delivered ones. Late ones \
                are delivered, too. Unconfirmed ones may have arrived or not. An outcome without a bar did not occur."
            .to_owned(),
        picture: logarithmic("What became of the messages", &bars),
        table,
    })
}

/// Draws the ten receivers with the most problems.
pub(super) fn worst_receivers(step: &StepReport) -> Result<Chart, String> {
    let receivers = &step.detail.worst_receivers;
    if receivers.is_empty() {
        return Err(
            "no receiver has a problem, or receivers are not counted separately".to_owned(),
        );
    }
    let mut table = Table::new(
        "receiver, expected, delivered, late, lost, unconfirmed, duplicated, reordered, corrupt"
            .split(", "),
    );
    let mut bars = Vec::new();
    for receiver in receivers {
        let counts = [
            ("late", "s0", receiver.late),
            ("lost", "s2", receiver.lost),
            ("unconfirmed", "s2", receiver.unconfirmed),
            ("duplicated", "s2", receiver.duplicated),
            ("reordered", "s2", receiver.reordered),
            ("corrupt", "s2", receiver.corrupt),
        ];
        let shown = counts.into_iter().filter(|(_, _, count)| *count > 0);
        let shown = shown.map(|(name, class, count)| (name, class, count as f64));
        let about = |_| format!(" of {}", thousands(receiver.expected));
        let number = format!("receiver {}", receiver.receiver);
        bars.extend(group(&number, shown, count_text, about));
        let mut cells = vec![receiver.receiver.to_string()];
        cells.extend([receiver.expected, receiver.delivered].map(thousands));
        cells.extend(counts.map(|(_, _, count)| thousands(count)));
        table.row(cells);
    }
    Ok(Chart {
        about: "The ten receivers with the most problems, worst first; logarithmic.".to_owned(),
        picture: logarithmic("The worst receivers", &bars),
        table,
    })
}

fn count_text(count: f64) -> String {
    thousands(count as u64)
}

/// From a half, so that a single message has a bar.
fn logarithmic(label: &str, bars: &[Bar]) -> Picture {
    let high = bars.iter().map(|bar| bar.value).fold(10.0, f64::max);
    picture(label, bars, Scale::Logarithmic { low: 0.5, high }, None)
}

/// A count as a share of all, in percent with the digits that matter.
pub(super) fn share_of(count: u64, all: u64) -> String {
    if all == 0 {
        return NO_VALUE.to_owned();
    }
    let share = count as f64 / all as f64 * 100.0;
    match share {
        _ if count == 0 => "none".to_owned(),
        share if share >= 0.001 => format!("{share:.3} %"),
        _ => "under 0.001 %".to_owned(),
    }
}
