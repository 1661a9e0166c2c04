//! The fates of the messages, the receivers that missed some, and their cost.

use super::latency::detail;
use crate::format::thousands;
use crate::page::bars::{Bar, picture};
use crate::page::figure::{Drawn, NO_VALUE, Table};
use crate::page::scale::Scale;
use crate::report::{Report, StepReport};

/// Draws the delivered, late, lost, unconfirmed, duplicated and reordered messages of each step.
pub(super) fn fates(report: &Report) -> Result<Drawn, String> {
    if report.steps.is_empty() {
        return Err("no step was begun".to_owned());
    }
    let mut table = Table::new("step, expected, delivered, late, lost, unconfirmed, duplicated, reordered, corrupt, foreign, invented, lost share".split(", "));
    let mut bars = Vec::new();
    let mut most = 10_u64;
    for step in &report.steps {
        let counts = [
            ("delivered", "s1", Some(step.total_received)),
            ("late", "s2", step.late),
            ("lost", "s2", Some(step.lost)),
            ("unconfirmed", "s2", Some(step.unconfirmed)),
            ("duplicated", "s2", step.duplicated),
            ("reordered", "s2", step.reordered),
        ];
        let shown = counts
            .iter()
            .enumerate()
            .filter(|(index, (.., count))| *index == 0 || *count > Some(0));
        for (index, (name, class, count)) in shown {
            let count = count.unwrap_or(0);
            most = most.max(count);
            let share = share_of(count, step.expected_received);
            bars.push(Bar {
                name: (*name).to_owned(),
                value: count as f64,
                text: thousands(count),
                class,
                tip: format!(
                    "{}\n{name}: {}\n{share} of the expected",
                    step.step_name,
                    thousands(count)
                ),
                group: (index == 0).then(|| step.step_name.clone()),
            });
        }
        let mut cells = vec![step.step_name.clone(), thousands(step.expected_received)];
        let others = [step.corrupt, Some(step.foreign), Some(step.invented)];
        let all = counts.map(|(.., count)| count).into_iter().chain(others);
        cells.extend(all.map(|count| count.map_or_else(|| "not checked".to_owned(), thousands)));
        cells.push(share_of(step.lost, step.expected_received));
        table.row(cells);
    }
    // The scale begins at a half, so that a single message has a bar.
    let scale = Scale::Logarithmic {
        low: 0.5,
        high: most as f64,
    };
    Ok(Drawn {
        about: "Bars are logarithmic, so that one lost message is seen beside millions of delivered ones. Late ones \
                are delivered too. Of unconfirmed ones nobody can know whether they arrived. What has no bar did not happen."
            .to_owned(),
        picture: picture("What became of the messages", &bars, scale, None),
        table,
    })
}

/// Draws the ten receivers with the most problems.
pub(super) fn worst_receivers(step: &StepReport) -> Result<Drawn, String> {
    let receivers = &detail(step)?.worst_receivers;
    if receivers.is_empty() {
        return Err("no receiver has anything amiss, or receivers are not told apart".to_owned());
    }
    let mut table = Table::new(
        "receiver, expected, delivered, late, lost, unconfirmed, duplicated, reordered, corrupt"
            .split(", "),
    );
    let mut bars = Vec::new();
    let mut most = 10.0_f64;
    for receiver in receivers {
        let counts = [
            ("late", "s0", receiver.late),
            ("lost", "s2", receiver.lost),
            ("unconfirmed", "s2", receiver.unconfirmed),
            ("duplicated", "s2", receiver.duplicated),
            ("reordered", "s2", receiver.reordered),
            ("corrupt", "s2", receiver.corrupt),
        ];
        let number = format!("receiver {}", receiver.receiver);
        let mut group = Some(number.clone());
        for (name, class, count) in counts.into_iter().filter(|(_, _, count)| *count > 0) {
            most = most.max(count as f64);
            bars.push(Bar {
                name: name.to_owned(),
                value: count as f64,
                text: thousands(count),
                class,
                tip: format!(
                    "{number}\n{name}: {} of {}",
                    thousands(count),
                    thousands(receiver.expected)
                ),
                group: group.take(),
            });
        }
        let mut cells = vec![receiver.receiver.to_string()];
        cells.extend([receiver.expected, receiver.delivered].map(thousands));
        cells.extend(counts.map(|(_, _, count)| thousands(count)));
        table.row(cells);
    }
    let scale = Scale::Logarithmic {
        low: 0.5,
        high: most,
    };
    Ok(Drawn {
        about: "The ten receivers with most amiss, worst first; logarithmic.".to_owned(),
        picture: picture("The worst receivers", &bars, scale, None),
        table,
    })
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
