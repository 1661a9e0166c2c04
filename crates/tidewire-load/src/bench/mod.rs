//! The benchmark: bare loops, Tidewire and its rivals side by side, in one run.
//!
//! ```text
//! suites ──▶ rows ──▶ runner ──▶ one run: a server, a driver ──▶ report ──▶ json, md, html
//!            plan      ABBA       child, cost, contract           statistics
//! ```

mod child;
mod climb;
mod contender;
pub mod contract;
mod cost;
mod disturbance;
mod estimate;
mod hold;
mod pace;
pub mod plan;
pub mod program;
pub mod publication;
pub mod report;
mod run;
mod runner;
pub mod stage;
pub mod subscriber;
pub mod suites;

pub use self::child::ChildError;
pub use self::climb::Try;
pub use self::disturbance::Disturbance;
pub use self::estimate::estimates;
pub use self::report::BenchReport;
pub use self::run::{Patience, RunError};
pub use self::runner::{BenchOptions, Progress, run};
