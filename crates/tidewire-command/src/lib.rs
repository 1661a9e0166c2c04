//! The parts that the programs `tidewire` and `tidewire-bench` share, so that both end, print and fail in the same way.
//!
//! Problem: the benchmark is a separate program, and its command line must behave like `tidewire`. Approach: the
//! general parts are here, below both programs. Rejected: a library in the package of `tidewire`, which would bring all
//! dependencies of the binary to the benchmark, and a module of the load test, which has no part in signals and output.

pub mod certificates;
pub mod failure;
pub mod generate;
pub mod output;
pub mod report_directory;
pub mod signals;
pub mod tell;
pub mod threads;

/// The commit that the program was built from, or `unknown`.
pub const COMMIT: &str = env!("TIDEWIRE_COMMIT");

/// The version of the program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version of the program, and the commit that it was built from.
pub const VERSION_AND_COMMIT: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TIDEWIRE_COMMIT"),
    ")"
);

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
