//! The table of a row that climbs: who holds how much at most, and how fast.

use tidewire_load::format::thousands;

use super::markdown::{figure, median, none, pair, percentiles, unless_fault};
use super::{Figures, RowResult};
use crate::climb::Try;
use crate::hold::OFFERED;

impl RowResult {
    /// Whether contenders were measured at rates of their own.
    pub(super) fn climbs(&self) -> bool {
        let peers = self.peers.values().map(|peer| &peer.figures);
        let all = peers.chain(self.limit.as_ref()).chain([&self.tidewire]);
        all.into_iter().any(|one| !one.tries.is_empty())
    }

    /// Everybody, the highest rate first.
    pub(super) fn climb_rows(&self) -> Vec<Vec<String>> {
        let limit = self.limit.iter();
        let limit = limit.map(|limit| (self.limit_name(), limit, self.limit_ratio));
        let others = self.other_limits.iter();
        let others = others.map(|(name, figures)| (format!("bare loop, {name}"), figures, None));
        let peers = self
            .peers
            .iter()
            .map(|(name, peer)| (name.clone(), &peer.figures, peer.ratio));
        let ours = [("Tidewire".to_owned(), &self.tidewire, None)];
        let mut all: Vec<(String, &Figures, Option<f64>)> = ours
            .into_iter()
            .chain(limit)
            .chain(others)
            .chain(peers)
            .collect();
        all.retain(|(_, figures, _)| !figures.tries.is_empty());
        all.sort_by(|(_, one, _), (_, other, _)| {
            let rate = |figures: &Figures| figures.median.unwrap_or(0.0);
            rate(other).total_cmp(&rate(one))
        });
        let cells = |(name, figures, ratio): (String, &Figures, Option<f64>)| {
            vec![
                name,
                unless_fault(figures, median),
                figures.latency.as_ref().map_or_else(none, percentiles),
                rounds_held(figures),
                pair(figures.server_cpu_ns_per_msg, figures.client_cpu_ns_per_msg),
                pair(figures.server_busy_pct, figures.client_busy_pct),
                ratio.map_or_else(none, |ratio| format!("{ratio:.2}×")),
                not_held(&figures.tries),
            ]
        };
        all.into_iter().map(cells).collect()
    }
}

/// The columns of [`RowResult::climb_rows`].
pub(super) const HEAD: [&str; 8] = [
    "who",
    "highest rate held",
    "p50, p99, p99.9 µs there",
    "rounds held there",
    "CPU ns/msg server, client",
    "busy % server, client",
    "Tidewire is",
    "what it did not hold",
];

/// How many rounds held the rate, such as `4 of 5`. The figures are those of these; the others are among the tries: behind
/// the last run that held on the way up are those that did not hold the next rate, and the rounds that did not hold this one.
fn rounds_held(figures: &Figures) -> String {
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
        text.push_str(&format!(", p99 {} µs", figure(p99_us)));
    }
    text
}
