//! What a suite is: rows to measure, and how our own programs play their parts in it.
//!
//! Problem: eleven suites differ in what they do and not in how they are measured. Approach: a suite says which rows
//! there are, as values, and has two functions for the two parts of a program; the runner knows nothing else of it.
//! The same functions serve the bare loops and Tidewire, so that a reader finds the two things that are compared in
//! one file. Rejected: a trait, which a table of functions does without.

use thiserror::Error;

use super::contract::{Measured, Work};
use super::stage::Stage;

/// A family of rows, such as `echo`.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Name on the command line and in [`Work::suite`].
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// Its rows; fewer and shorter ones when it is to be quick.
    pub rows: fn(quick: bool) -> Vec<RowPlan>,
    /// Plays the server, until the runner ends it.
    pub serve: fn(Side, &Work, &mut Stage) -> Result<(), RoleError>,
    /// Plays the driver, to its end. The address is `-` where the work has no server.
    pub drive: fn(Side, &str, &Work, &mut Stage) -> Result<(), RoleError>,
}

/// Which of our two programs plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The bare loop: the limit.
    Bare,
    /// Tidewire.
    Tidewire,
}

/// One line of a suite's table.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlan {
    /// Name within the suite, as people read it.
    pub id: String,
    /// What Tidewire does.
    pub work: Work,
    /// What the bare loop does; nothing where there is no limit to compare with.
    pub limit: Option<Work>,
    /// What peers do; nothing where none takes part. Those whose offers match its suite, transport and mode take part, and
    /// those that drop in silence in a column of their own.
    pub peers: Option<Work>,
    /// The figure.
    pub metric: Metric,
    /// Whether it asks for more of the same than the row before it. A peer that did not hold what one such row offered
    /// (lost messages, fell behind, or took a second for one in a hundred) takes no part in those behind it.
    pub rises: bool,
    /// Whether messages may be dropped as long as somebody counts them. Elsewhere a drop is a loss.
    pub may_drop: bool,
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
    /// Where it comes from.
    pub source: Source,
}

/// Where the figure of a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Messages by seconds; where only the server counts, those of its accounts.
    Rate,
    /// The mean time of a message, in microseconds.
    MeanTime,
    /// The entry of [`Measured::figures`] with this name.
    Figure(&'static str),
}

/// A part could not be played. It goes to standard error and ends the program.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RoleError {
    /// Nobody here can do this work.
    #[error("{0}")]
    Unsupported(String),
    /// Something that the work needs failed.
    #[error("cannot {what}")]
    Failed {
        /// What was tried, as a verb and its object.
        what: String,
        /// What the system or the library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Suite {
    /// The rows whose names contain one of these texts; all rows if there is no text.
    #[must_use]
    pub fn chosen_rows(&self, quick: bool, texts: &[String]) -> Vec<RowPlan> {
        let mut rows = (self.rows)(quick);
        rows.retain(|row| texts.is_empty() || texts.iter().any(|text| row.id.contains(text)));
        rows
    }

    /// A row for each offer our programs make, for `describe`.
    #[must_use]
    pub fn all_rows(&self) -> Vec<RowPlan> {
        (self.rows)(false)
    }
}

impl RowPlan {
    /// A row in which all do the same work.
    #[must_use]
    pub fn new(id: impl Into<String>, work: Work, metric: Metric) -> Self {
        Self {
            id: id.into(),
            limit: Some(work.clone()),
            peers: Some(work.clone()),
            work,
            metric,
            rises: false,
            may_drop: false,
        }
    }

    /// The same with another limit, or none.
    #[must_use]
    pub fn with_limit(mut self, limit: Option<Work>) -> Self {
        self.limit = limit;
        self
    }

    /// The same with other work for the peers, or none.
    #[must_use]
    pub fn with_peers(mut self, peers: Option<Work>) -> Self {
        self.peers = peers;
        self
    }

    /// The same as a step of a rise.
    #[must_use]
    pub fn rising(mut self) -> Self {
        self.rises = true;
        self
    }

    /// The same where messages may be dropped, as long as they are counted.
    #[must_use]
    pub fn allowing_drops(mut self) -> Self {
        self.may_drop = true;
        self
    }
}

impl Metric {
    /// Messages a second.
    pub const MESSAGES: Self = Self {
        name: "messages_per_sec",
        unit: "msg/s",
        lower_is_better: false,
        source: Source::Rate,
    };

    /// The figure of a run, where it has one.
    #[must_use]
    pub fn of(&self, measured: &Measured) -> Option<f64> {
        match self.source {
            Source::Rate if measured.seconds > 0.0 => {
                Some(measured.messages as f64 / measured.seconds)
            }
            Source::Rate => None,
            Source::MeanTime => measured.latency.map(|latency| latency.mean_us),
            Source::Figure(name) => measured.figures.get(name).copied(),
        }
    }

    /// How many times as good `this` is as `other`: above 1 it is better, whichever direction that is.
    #[must_use]
    pub fn times_as_good(&self, this: f64, other: f64) -> f64 {
        if self.lower_is_better {
            other / this
        } else {
            this / other
        }
    }
}

impl RoleError {
    /// What was tried, as a verb and its object, and why it failed: for `map_err`.
    pub fn failed<E>(what: &str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        // Made for every message that might fail, so the text is copied only when one does.
        move |source| Self::Failed {
            what: what.to_owned(),
            source: source.into(),
        }
    }
}

impl Side {
    /// Name on the command line and in the tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Tidewire => "tidewire",
        }
    }
}
