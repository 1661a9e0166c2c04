//! What may be said about measured times, and how surely.
//!
//! Two kinds of numbers must not be confused. *Latencies* are the times of single messages: they are kept in
//! histograms, added exactly and never thinned out, because their outliers are what a user feels. *Figures of
//! runs*, such as the p99 of each of six runs, are few, and a median with an interval says how far chance
//! alone could have moved it. Everything here is pure: seeds are arguments, so that a report can be recomputed.
//!
//! ```text
//! histogram ──▶ percentile ──▶ one figure per run ──▶ (interval, outliers, fit)
//! one per lane   enough samples?                       how sure over several runs?
//! ```

mod encoded;
mod histogram;
mod percentile;

pub use self::encoded::{DecodeError, EncodedHistogram};
pub use self::histogram::{Latency, LatencyHistogram};
pub use self::percentile::{Percentile, Quantile, QuantileError};
