//! The load instrument of Tidewire: what it offers, how it counts, and what it reports.
//!
//! The modules here are pure: times, seeds and process ids are arguments, so that every figure in a report
//! can be reproduced by a test. The agents that move real messages are built on top of them.
//!
//! ```text
//! scenario ──▶ plan ──▶ run: schedule ──▶ stamp ──▶ (the wire) ──▶ stamp ──▶ ledger ──▶ facts ──▶ report
//!   what     checked           when    who, which, when              │        fate    verdict   json, md
//!                                                                    └──▶ statistics ──▶         table
//! ```

/// Adds the named fields of one account to those of another.
macro_rules! add_fields {
    ($sum:expr, $other:expr; $($field:ident)+) => { $($sum.$field += $other.$field;)+ };
}

/// Defines an enum of which every variant has a word for scenarios, reports and tables.
macro_rules! worded {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$attribute:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$attribute])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word for it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

mod agents;
mod body;
pub mod clock;
pub mod compare;
pub mod credentials;
pub mod doctor;
pub mod environment;
mod exchange;
pub mod facts;
pub mod format;
pub mod lane_account;
mod ledger;
pub mod levels;
pub mod page;
pub mod plan;
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
pub mod toml_file;

pub use self::format::{describe, known_milliseconds};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
