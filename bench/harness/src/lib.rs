//! The benchmark of Tidewire: bare loops, Tidewire and its rivals side by side, in one run.
//!
//! ```text
//! suites ──▶ rows ──▶ runner ──▶ one run: a server, a driver ──▶ report ──▶ json, md, html
//!            plan      ABBA       child, cost, contract           tidewire_load: statistics, page
//! ```
//!
//! It is for maintainers of Tidewire and for the programs of rivals, which speak its [`contract`]. Statistics, pages
//! and formats are those of the load test, [`tidewire_load`], so that a figure means the same in both reports.

pub mod certificates;
mod child;
mod climb;
pub mod contract;
mod cost;
mod hold;
mod pace;
pub mod plan;
mod probes;
pub mod program;
mod publication;
pub mod report;
mod run;
mod runner;
pub mod stage;
mod subscriber;
pub mod suites;

pub use self::child::ChildError;
pub use self::climb::Try;
pub use self::report::BenchReport;
pub use self::run::{Disturbance, RunError, Timeouts};
pub use self::runner::{AgainMax, BenchOptions, Progress, estimates, run};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
