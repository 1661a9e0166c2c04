//! The content of a row, a file and a page, and the results that these tests build.

mod faults;
mod figures;
mod limits;
mod schema;
mod tables;

use std::collections::BTreeMap;

use super::*;
use crate::plan::Metric;

const HOSTILE: &str = "</script><b>&'\"|\u{1}";

fn times(scale: f64) -> Times {
    Times {
        samples: 1_000,
        mean_us: 21.0 * scale,
        p50_us: 20.0 * scale,
        p95_us: 40.0 * scale,
        p99_us: 60.0 * scale,
        p999_us: 200.0 * scale,
        max_us: 900.0 * scale,
    }
}

/// A run with this many messages in a second.
fn outcome(messages: u64, lost: u64, dropped: u64) -> Outcome {
    Outcome {
        measured: Measured {
            messages,
            seconds: 1.0,
            verified: true,
            lost,
            dropped,
            allocated_bytes: Some(messages * 2),
            latency: Some(times(1_000.0 / messages as f64)),
            figures: BTreeMap::from([("bytes_per_session".to_owned(), 512.0)]),
            ..Measured::default()
        },
        server_cpu_ns: Some(5e8),
        driver_cpu_ns: 7e8,
        server_allocated_bytes: Some(0),
        server_rss_bytes_max: Some(12 << 20),
        driver_rss_bytes_max: 10 << 20,
        stolen_pct: Some(0.5),
        server_busy_pct: Some(50.0),
        driver_busy_pct: 70.0,
        waited_pct: Some(1.0),
    }
}

fn outcomes(rates: [u64; 3]) -> Vec<Outcome> {
    rates.map(|rate| outcome(rate, 0, 0)).to_vec()
}

fn plan(metric: Metric) -> RowPlan {
    RowPlan::new("tcp, 1 × 1", Work::default(), metric)
}

/// A limit of a single loop.
fn only(limit: Option<Figures>) -> LimitFigures {
    let mut limits = LimitFigures::default();
    if let Some(limit) = limit {
        limits.add(&plan(Metric::MESSAGES), "", limit);
    }
    limits
}

fn row(ours: Figures, limit: Option<Figures>, peer: Figures, drops: bool) -> RowResult {
    let peer = PeerFigures {
        version: "1.2".to_owned(),
        ratio: None,
        ratio_ci95: None,
        drops,
        figures: peer,
    };
    let peers = BTreeMap::from([(format!("rival {HOSTILE}"), peer)]);
    RowResult::of(&plan(Metric::MESSAGES), ours, only(limit), peers)
}

fn figures(outcomes: &[Outcome]) -> Figures {
    Figures::of(&plan(Metric::MESSAGES), outcomes, None)
}

/// Of a run that was offered a thousand messages a second.
fn offered(messages: u64) -> Figures {
    let mut run = outcome(messages, 0, 0);
    let offered = [(crate::hold::OFFERED.to_owned(), 1_000.0)];
    run.measured.figures = BTreeMap::from(offered);
    figures(&[run])
}

fn failed() -> Figures {
    let error = Some(format!("it {HOSTILE}"));
    Figures::of(&plan(Metric::MESSAGES), &[], error)
}

fn report(rows: Vec<RowResult>) -> BenchReport {
    BenchReport {
        schema_version: BenchReport::SCHEMA_VERSION,
        env: BenchEnvironment {
            machine: Environment::detect("0.1.0", ""),
            started_at: "2026-11-22T00:00:00.000Z".to_owned(),
            pinning: "not pinned".to_owned(),
            repeat: 3,
            quick: true,
            interrupted: false,
            missing_peers: vec![format!("nobody {HOSTILE}")],
        },
        suites: vec![SuiteResult {
            name: "echo".to_owned(),
            elapsed_secs: 12.5,
            rows,
        }],
    }
}

/// One of the runs in search of the highest rate.
fn tried(holds: bool) -> Try {
    Try {
        offered_per_sec: Some(1_000.0),
        delivered_per_sec: Some(if holds { 1_000.0 } else { 900.0 }),
        p99_us: Some(60.0),
        lost: if holds { 0 } else { 1_234 },
        holds,
        error: None,
    }
}

/// With and without everything that may be missing.
fn sample() -> BenchReport {
    let mut ours = figures(&outcomes([900, 1_000, 1_100]));
    let mut limit = figures(&outcomes([1_000, 1_250, 1_300]));
    for one in [&mut ours, &mut limit] {
        one.tries = vec![tried(true), tried(false)];
        one.weigh(&plan(Metric::MESSAGES), 32);
    }
    let mut first = row(
        ours.clone(),
        Some(limit.clone()),
        figures(&outcomes([90, 100, 110])),
        false,
    );
    first.limit_loop = Some("every 5 ms".to_owned());
    first.other_limits = BTreeMap::from([(format!("every {HOSTILE}"), failed())]);
    first.limit_passed_by = vec![format!("rival {HOSTILE}")];
    report(vec![
        first,
        row(ours, None, failed(), false),
        row(Figures::default(), Some(limit), Figures::default(), true),
    ])
}
