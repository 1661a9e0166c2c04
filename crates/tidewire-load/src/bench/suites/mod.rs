//! The suites: what is measured. Each has a file, with its rows and how our two programs play their parts.

mod echo;

use std::sync::atomic::{AtomicU32, Ordering};

use tidewire::{Address, Endpoint, Limits};

use super::contract::{Times, Work};
use super::plan::{RoleError, Suite};
use crate::scenario::nearest_key;
use crate::statistics::LatencyHistogram;

/// All suites, in the order in which they run.
pub static SUITES: &[Suite] = &[echo::SUITE];

/// The suite of this name, or else the nearest name.
///
/// # Errors
/// There is no such suite; the name that was probably meant, if any resembles it.
pub fn by_name(name: &str) -> Result<&'static Suite, Option<&'static str>> {
    SUITES
        .iter()
        .find(|suite| suite.name == name)
        .ok_or_else(|| {
            let names: Vec<&'static str> = SUITES.iter().map(|suite| suite.name).collect();
            nearest_key(name, &names)
        })
}

/// Warm-up and window of timed work: a second, or less when it is to be quick.
fn timed(quick: bool, work: Work) -> Work {
    let (warm_up_ms, measure_ms) = if quick { (50, 150) } else { (200, 1_000) };
    Work {
        warm_up_ms,
        measure_ms,
        ..work
    }
}

/// Where a server of ours listens: a free port, or a name that is nobody else's and leaves no file behind.
fn bind_address(work: &Work) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match work.transport.as_str() {
        transport @ ("ipc" | "inproc") => {
            let process = std::process::id();
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let abstract_mark = if transport == "ipc" { "@" } else { "" };
            format!("{transport}://{abstract_mark}tidewire-bench-{process}-{number}")
        }
        transport => format!("{transport}://127.0.0.1:0"),
    }
}

/// An address with its transport before it, as a program of another kind may leave it out.
fn full_address(work: &Work, address: &str) -> String {
    if address.contains("://") {
        address.to_owned()
    } else {
        format!("{}://{address}", work.transport)
    }
}

fn endpoint(address: &str) -> Result<Endpoint, RoleError> {
    address
        .parse::<Address>()
        .and_then(|address| address.resolve())
        .map_err(RoleError::failed(&format!("use the address {address}")))
}

/// The limits of a server of ours: all connections come from one address here.
fn limits(work: &Work) -> Limits {
    let mut limits = Limits::default();
    limits.sessions_max = limits.sessions_max.max(work.connections + 16);
    limits.sessions_per_address_max = limits.sessions_per_address_max.max(work.connections + 16);
    limits
}

/// Times of a histogram, as the contract has them.
fn times(histogram: &LatencyHistogram) -> Times {
    let at = |quantile| histogram.quantile_ns(quantile) as f64 / 1e3;
    let summary = histogram.summary();
    Times {
        samples: histogram.count(),
        mean_us: summary.mean_ms * 1e3,
        p50_us: at(0.5),
        p95_us: at(0.95),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: at(1.0),
    }
}
