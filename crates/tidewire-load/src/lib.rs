//! The load instrument of Tidewire: what it offers, how it counts, and what it reports.
//!
//! The modules here are pure: times, seeds and process ids are arguments, so that every figure in a report
//! can be reproduced by a test. The agents that move real messages are built on top of them.
//!
//! ```text
//! scenario ──▶ schedule ──▶ stamp ──▶ (the wire) ──▶ stamp ──▶ ledger ──▶ report
//!   what         when        who, which, when          │         fate       json, md
//!                                                      └──▶ statistics ──▶   table
//! ```

mod agents;
pub mod body;
pub mod clock;
pub mod compare;
pub mod doctor;
pub mod environment;
mod exchange;
pub mod format;
pub mod lane_account;
pub mod ledger;
pub mod levels;
pub mod page;
pub mod process;
pub mod report;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod search;
pub mod segment;
pub mod slo;
pub mod stamp;
pub mod statistics;

pub use self::format::{describe, known_milliseconds};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
