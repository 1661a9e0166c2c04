//! The plan of a suite: rows to measure, and the functions by which our own programs play their parts in it.
//!
//! Problem: eleven suites differ in what they do and not in how they are measured. Approach: a suite says which rows
//! there are, as values, and has two functions for the two parts of a program; the runner knows nothing else of it.
//! The same functions serve the bare loops and Tidewire, so that a reader finds the two things that are compared in
//! one file. Rejected: a trait, which a table of functions does without.

use super::contract::{Measured, Work};
pub use super::stage::RoleError;
use super::stage::Stage;

/// A family of rows, such as `echo`.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Name on the command line and in [`Work::suite`].
    pub name: &'static str,
    /// The subject of the suite, in a line.
    pub about: &'static str,
    /// Its rows; fewer and shorter ones in a quick run.
    pub rows: fn(quick: bool) -> Vec<RowPlan>,
    /// Plays the server, until the runner ends it.
    pub serve: fn(Side, &Work, &mut Stage) -> Result<(), RoleError>,
    /// Plays the driver, to its end. The address is `-` where the work has no server.
    pub drive: fn(Side, &str, &Work, &mut Stage) -> Result<(), RoleError>,
}

/// The program that plays a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The bare loop: the limit.
    Bare,
    /// Tidewire.
    Tidewire,
}

/// One line of a suite's table.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct RowPlan {
    /// Name within the suite.
    pub id: String,
    /// The work of Tidewire.
    pub work: Work,
    /// The bare loops of the limit, of which the best one counts; empty if there is no limit.
    pub limits: Vec<BareLoop>,
    /// Whether the loop is another way to do the work and no limit, so that a contender may be faster.
    pub is_beside: bool,
    /// The work of the peers; `None` where no peer takes part. Peers whose offers match suite, transport and mode take
    /// part. Those that drop silently have a column of their own.
    pub peers: Option<Work>,
    /// The figure.
    pub metric: Metric,
    /// Whether it offers a higher rate of the same work than the row before it. A peer that did not hold the rate of
    /// such a row (it lost messages, fell behind, or had a p99 above a second) takes no part in the rows after it.
    pub rises: bool,
    /// Rising rates of [`Work::rate_per_sec`]. Each contender is measured at the highest of them that it holds. If
    /// there are none, all are measured at the rate of their work.
    pub climbs: &'static [f64],
    /// Whether messages may be dropped if they are counted. In other rows a drop is a loss.
    pub may_drop: bool,
    /// The shortest useful window, in milliseconds.
    pub measure_ms_min: u64,
}

/// One way to do a row's work without any library.
#[derive(Clone, Debug, PartialEq)]
pub struct BareLoop {
    /// A name that distinguishes it from the row's other loops; empty if it is the only one.
    pub name: String,
    /// The work of this loop.
    pub work: Work,
}

/// The figure of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in JSON, such as `messages_per_sec`.
    pub name: &'static str,
    /// Unit, as tables show it.
    pub unit: &'static str,
    /// Whether a smaller figure is the better one, as for times.
    pub lower_is_better: bool,
    /// The source of the figure.
    pub source: Source,
}

/// The source of a row's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Messages a second. If only the server counts, they come from its accounts.
    Rate,
    /// The mean time of a message, in microseconds.
    MeanTime,
    /// The entry of [`Measured::figures`] with this name.
    Figure(&'static str),
}

/// Returns the suites with the rows that a user asked for, by their names or by a part of their names. A text that is
/// the whole name of a row selects only that row. Without a text all rows are selected.
pub fn choose(
    suites: &[&'static Suite],
    quick: bool,
    texts: &[String],
) -> Vec<(&'static Suite, Vec<RowPlan>)> {
    let mut chosen: Vec<_> = suites
        .iter()
        .map(|suite| (*suite, (suite.rows)(quick)))
        .collect();
    let is_name = |text: &String| {
        let mut rows = chosen.iter().flat_map(|(_, rows)| rows);
        rows.any(|row| row.id == *text)
    };
    let (names, parts): (Vec<&String>, Vec<&String>) = texts.iter().partition(|text| is_name(text));
    let is_chosen = |row: &RowPlan| {
        let by_part = parts.iter().any(|part| row.id.contains(part.as_str()));
        texts.is_empty() || by_part || names.iter().any(|name| row.id == **name)
    };
    for (_, rows) in &mut chosen {
        rows.retain(is_chosen);
    }
    chosen.retain(|(_, rows)| !rows.is_empty());
    chosen
}

impl RowPlan {
    /// Creates a row in which all contenders do the same work.
    pub fn new(id: impl Into<String>, work: Work, metric: Metric) -> Self {
        Self {
            id: id.into(),
            limits: BareLoop::only(Some(work.clone())),
            peers: Some(work.clone()),
            is_beside: false,
            work,
            metric,
            rises: false,
            climbs: &[],
            may_drop: false,
            measure_ms_min: 0,
        }
    }

    /// Returns the row with another limit of a single loop, or none.
    pub fn with_limit(mut self, limit: Option<Work>) -> Self {
        self.limits = BareLoop::only(limit);
        self
    }

    /// Returns the row with the best of these loops as its limit.
    pub fn with_limits(mut self, limits: impl IntoIterator<Item = (String, Work)>) -> Self {
        let limits = limits.into_iter();
        self.limits = limits.map(|(name, work)| BareLoop { name, work }).collect();
        self
    }

    /// Returns the row with another way to do the work, which is no limit.
    pub fn beside(mut self, other: Work) -> Self {
        self.is_beside = true;
        self.with_limit(Some(other))
    }

    /// Returns the row with other work for the peers, or none.
    pub fn with_peers(mut self, peers: Option<Work>) -> Self {
        self.peers = peers;
        self
    }

    /// Sets the window of all contenders to this length, or to the shortest of the row if that is longer. Work
    /// without a window is unchanged.
    pub fn measure_for(&mut self, measure_ms: u64) {
        let limits = self.limits.iter_mut().map(|limit| &mut limit.work);
        let works = limits.chain([&mut self.work]).chain(&mut self.peers);
        let timed = works.filter(|work| work.measure_ms > 0);
        let measure_ms = measure_ms.max(self.measure_ms_min);
        timed.for_each(|work| work.measure_ms = measure_ms);
    }

    /// Returns the row at the highest of these rates that each contender holds.
    pub fn climbing(mut self, rates: &'static [f64]) -> Self {
        self.climbs = rates;
        self
    }
}

impl BareLoop {
    fn only(work: Option<Work>) -> Vec<Self> {
        let only = |work| Self {
            name: String::new(),
            work,
        };
        work.map(only).into_iter().collect()
    }
}

impl Metric {
    /// Messages a second.
    pub const MESSAGES: Self = Self::rate("messages_per_sec", "msg/s");

    /// Deliveries a second.
    pub const DELIVERIES: Self = Self::rate("deliveries_per_sec", "deliveries/s");

    /// Another count by the second.
    pub const fn rate(name: &'static str, unit: &'static str) -> Self {
        Self {
            name,
            unit,
            lower_is_better: false,
            source: Source::Rate,
        }
    }

    /// A figure of the driver; less is better.
    pub const fn least(name: &'static str, unit: &'static str) -> Self {
        Self {
            name,
            unit,
            lower_is_better: true,
            source: Source::Figure(name),
        }
    }

    /// Returns the figure of a run, if it has one.
    pub fn of(&self, measured: &Measured) -> Option<f64> {
        match self.source {
            Source::Rate => measured.rate(),
            Source::MeanTime => measured.latency.map(|latency| latency.mean_us),
            Source::Figure(name) => measured.figures.get(name).copied(),
        }
    }

    /// Returns how many times as good `this` is as `other`. Above 1 it is better, in either direction.
    pub fn times_as_good(&self, this: f64, other: f64) -> f64 {
        if self.lower_is_better {
            other / this
        } else {
            this / other
        }
    }
}

impl Side {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Bare, Self::Tidewire];

    /// Name on the command line and in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Tidewire => "tidewire",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SUITE: Suite = Suite {
        name: "rates",
        about: "rows whose names contain each other",
        rows: |_| {
            let row = |id: &str| RowPlan::new(id, Work::default(), Metric::MESSAGES);
            ["4 M/s", "24 M/s", "24 M/s, twice"].map(row).to_vec()
        },
        serve: |_, _, _| Ok(()),
        drive: |_, _, _, _| Ok(()),
    };

    fn names(texts: &[&str]) -> Vec<String> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let chosen = choose(&[&SUITE], false, &texts);
        let rows = chosen.into_iter().flat_map(|(_, rows)| rows);
        rows.map(|row| row.id).collect()
    }

    #[test]
    fn a_whole_name_chooses_one_row_and_a_part_all_that_contain_it() {
        assert_eq!(names(&["4 M/s"]), ["4 M/s"]);
        assert_eq!(names(&["M/s"]), ["4 M/s", "24 M/s", "24 M/s, twice"]);
        assert_eq!(names(&["4 M/s", "twice"]), ["4 M/s", "24 M/s, twice"]);
        assert_eq!(names(&[]).len(), 3);
        assert!(choose(&[&SUITE], false, &["5 M/s".to_owned()]).is_empty());
    }

    #[test]
    fn only_windows_that_are_given_as_a_time_get_another_length() {
        let timed = Work {
            measure_ms: 1_000,
            ..Work::default()
        };
        let mut row = RowPlan::new("one", timed, Metric::MESSAGES);
        row = row.with_limit(Some(Work::default()));
        row.measure_for(250);
        assert_eq!(row.work.measure_ms, 250);
        assert_eq!(row.limits[0].work.measure_ms, 0);
        assert_eq!(row.peers.as_ref().unwrap().measure_ms, 250);
        row.measure_ms_min = 3_000;
        row.measure_for(250);
        assert_eq!(row.work.measure_ms, 3_000, "as long as it takes to happen");
    }
}
