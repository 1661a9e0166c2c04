//! The benchmark: bare loops, Tidewire and its rivals side by side, in one run.
//!
//! ```text
//! suites ──▶ rows ──▶ runner ──▶ one run: a server, a driver ──▶ results ──▶ table, bench.json
//!            plan      ABBA       child, cost, contract           statistics
//! ```

mod child;
pub mod contract;
mod cost;
mod pace;
pub mod plan;
pub mod program;
pub mod publication;
mod results;
mod run;
mod runner;
pub mod stage;
pub mod subscriber;
pub mod suites;
mod table;

pub use self::child::ChildError;
pub use self::results::{
    BenchEnvironment, BenchReport, Figures, PeerFigures, RowResult, SuiteResult,
};
pub use self::run::RunError;
pub use self::runner::{BenchOptions, Progress, estimate_secs, run};
