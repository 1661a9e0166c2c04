//! The limit of a row: the best of its bare loops, and whether anybody is faster.
//!
//! Problem: a single loop is the fastest way only as long as nobody finds a better one, and then ratios to it say
//! nothing. Approach: a row may have several loops that differ in what decides the rate, such as bytes of a write or
//! time between two writes. The best of them counts, by its median. Whoever is faster than that is named, because a
//! limit that somebody passes is a defect of the benchmark.

use std::collections::BTreeMap;

use super::markdown::{median, unless_fault};
use super::{BenchReport, Figures, PeerFigures, Ratio, RowResult};
use crate::plan::RowPlan;
use tidewire_proto::text::visible;

/// The figures of a row's bare loops.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LimitFigures {
    /// Name of the best one; nothing where there is only one.
    pub(super) name: Option<String>,
    /// The best one.
    pub(super) best: Option<Figures>,
    /// All others.
    pub(super) others: BTreeMap<String, Figures>,
}

impl LimitFigures {
    /// Adds a loop, whose name is empty where it is the only one. Of two that are equally good the first one counts.
    pub(crate) fn add(&mut self, plan: &RowPlan, name: &str, figures: Figures) {
        let name = (!name.is_empty()).then(|| name.to_owned());
        let is_better = self.best.as_ref().is_none_or(|best| {
            let passes =
                |new| worth(best).is_none_or(|old| plan.metric.times_as_good(new, old) > 1.0);
            worth(&figures).is_some_and(passes)
        });
        if !is_better {
            self.others.insert(name.unwrap_or_default(), figures);
            return;
        }
        let name = std::mem::replace(&mut self.name, name);
        if let Some(figures) = self.best.replace(figures) {
            self.others.insert(name.unwrap_or_default(), figures);
        }
    }
}

impl BenchReport {
    /// A line for each row whose limit somebody passed.
    pub(super) fn passed_limits(&self) -> Vec<String> {
        let rows = self.suites.iter().flat_map(|suite| &suite.rows);
        rows.filter_map(RowResult::passed_limit).collect()
    }
}

impl RowResult {
    /// The contenders that passed the limit, as a line of text.
    pub(super) fn passed_limit(&self) -> Option<String> {
        let names = self.limit_passed_by.join(", ");
        let text = format!(
            "{}: the bare loop is no limit here, because it was slower than {names}",
            self.id
        );
        (!names.is_empty()).then(|| visible(text.as_bytes()))
    }

    /// The bare loops that are not the limit, as a line of text.
    pub(super) fn other_loops(&self) -> Option<String> {
        let others = self.other_limits.iter();
        let others = others.map(|(name, one)| format!("{name}: {}", unless_fault(one, median)));
        let others: Vec<String> = others.collect();
        let text = format!("{}, other bare loops: {}", self.id, others.join("; "));
        (!others.is_empty()).then(|| visible(text.as_bytes()))
    }

    /// The limit's name with its loop.
    pub(super) fn limit_name(&self) -> String {
        match &self.limit_loop {
            Some(name) => format!("limit ({name})"),
            None => "limit".to_owned(),
        }
    }
}

/// The median of a loop that may count: it lost nothing and held what it was offered.
fn worth(figures: &Figures) -> Option<f64> {
    let counts = figures.fault().is_none() && figures.holds != Some(false);
    figures.median.filter(|_| counts)
}

/// Names of those who are faster than the limit, beyond doubt.
pub(super) fn passed_by(
    ours: Option<Ratio>,
    peers: &BTreeMap<String, PeerFigures>,
    ratio_to_limit: impl Fn(&Figures) -> Option<Ratio>,
) -> Vec<String> {
    let passes = |ratio: Option<Ratio>| {
        ratio.is_some_and(|ratio| ratio.value > PASSED_FROM && ratio.ci95[0] > 1.0)
    };
    let ours = passes(ours).then(|| "tidewire".to_owned());
    let peers = peers.iter().filter(|(_, peer)| {
        let counts = peer.figures.fault().is_none() && !peer.drops;
        counts && passes(ratio_to_limit(&peer.figures))
    });
    let peers = peers.map(|(name, _)| name.clone());
    ours.into_iter().chain(peers).collect()
}

/// A contender that is this many times as good as the limit has passed it. Two runs of one program differ by less.
const PASSED_FROM: f64 = 1.05;
