//! The statistics of measured times, and how sure they are.
//! Two kinds of numbers must not be confused. *Latencies* are the times of single messages. They are kept in
//! histograms and added exactly, and none is removed, because users feel the outliers. *Figures of runs*, such as the
//! p99 of each of six runs, are few. Their median has an interval that says how far chance alone may have moved it.
//! Everything here is pure: seeds are arguments, so that a report can be recomputed.
//!
//! ```text
//! histogram ──▶ percentile ──▶ one figure per run ──▶ interval, outlier, ratio of two sides, scalability
//! one per lane   enough samples?                       how sure over several runs?
//! ```

mod bootstrap;
mod encoded;
mod histogram;
mod interval;
pub(crate) mod json_number;
mod law;
mod outlier;
mod percentile;
mod ratio;
mod scalability;

pub use self::bootstrap::Bootstrap;
pub use self::encoded::{DecodeError, EncodedHistogram};
pub use self::histogram::{Latency, LatencyHistogram};
pub use self::interval::MedianInterval;
pub use self::law::ScalePoint;
pub use self::outlier::Outliers;
pub use self::percentile::{Percentile, Quantile};
pub use self::ratio::{PAIRS_MIN, RUNS_MIN, RatioInterval, Sides};
pub use self::scalability::{Estimate, Knee, LEVELS_MIN, ScalabilityError, ScalabilityFit};
