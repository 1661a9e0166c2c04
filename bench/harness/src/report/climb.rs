//! The table of a row that climbs: who holds how much at most, and how fast.

use tidewire_load::format::thousands;

use super::RowResult;
use super::contender::Contender;
use super::markdown::{figure, median, none, or_none, percentiles, time_us, unless_fault};
use crate::climb::Try;
use crate::hold::OFFERED;

impl RowResult {
    /// Whether contenders were measured at rates of their own.
    pub(super) fn climbs(&self) -> bool {
        self.contenders().any(|one| one.climbs())
    }

    /// Everybody, the highest rate first.
    pub(super) fn climb_rows(&self) -> Vec<Vec<String>> {
        let mut all: Vec<_> = self.contenders().filter(Contender::climbs).collect();
        let rate = |one: &Contender<'_>| one.figures.median.unwrap_or(0.0);
        all.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
        let cells = |one| COLUMNS.iter().map(|(_, cell)| cell(&one)).collect();
        all.into_iter().map(cells).collect()
    }
}

impl Contender<'_> {
    fn climbs(&self) -> bool {
        !self.figures.tries.is_empty()
    }
}

type Column = (&'static str, fn(&Contender<'_>) -> String);

/// The columns of [`RowResult::climb_rows`].
const COLUMNS: [Column; 8] = [
    ("who", |one| one.name.clone()),
    ("highest rate held", |one| unless_fault(one.figures, median)),
    ("p50, p99, p99.9 µs there", |one| {
        or_none(one.figures.latency.as_ref(), percentiles)
    }),
    ("rounds held there", rounds_held),
    ("CPU ns/msg server, client", |one| one.figures.cpu()),
    ("busy % server, client", |one| one.figures.busy()),
    ("Tidewire is", |one| {
        or_none(one.ratio, |ratio| format!("{ratio:.2}×"))
    }),
    ("what it did not hold", |one| not_held(&one.figures.tries)),
];

/// Their names.
pub(super) fn head() -> Vec<&'static str> {
    COLUMNS.iter().map(|(name, _)| *name).collect()
}

/// How many rounds held the rate, such as `4 of 5`. The figures are those of these; the others are among the tries:
/// behind the last run that held on the way up are those that did not hold the next rate, and the rounds that did not
/// hold this one.
fn rounds_held(one: &Contender<'_>) -> String {
    let figures = one.figures;
    let held = figures.runs.len();
    let Some(offered) = figures.figures.get(OFFERED) else {
        return none();
    };
    let behind = figures.tries.iter().rev().take_while(|one| !one.holds);
    let failed = behind.filter(|one| one.offered_per_sec == Some(*offered));
    format!("{held} of {}", held + failed.count())
}

/// The last run that did not hold, and what was wrong with it.
fn not_held(tries: &[Try]) -> String {
    let Some(last) = tries.iter().rev().find(|one| !one.holds) else {
        return "held all".to_owned();
    };
    if let Some(error) = &last.error {
        return error.clone();
    }
    let rate = |rate: Option<f64>| rate.map_or_else(none, figure);
    let mut text = format!(
        "of {} came {}",
        rate(last.offered_per_sec),
        rate(last.delivered_per_sec)
    );
    if last.lost > 0 {
        text.push_str(&format!(", lost {}", thousands(last.lost)));
    }
    if let Some(p99_us) = last.p99_us {
        text.push_str(&format!(", p99 {} µs", time_us(p99_us)));
    }
    text
}
