//! Reports to draw: one with everything, made without a run.

use std::time::SystemTime;

use crate::format::utc;
use crate::report::{
    Cost, Distribution, Environment, FaultFigures, LATENCY_KIND_END_TO_END, LaneCost, Losses,
    ProcessFigures, ReceiverFigures, Report, RunFigures, Second, SloReport, SlowReceivers,
    StepDetail, StepReport, StepTimes, Verdict, Window, WorkCounts, Workload,
};
use crate::scenario::{Step, ThinkTime};
use crate::slo::Slo;
use crate::statistics::LatencyHistogram;

/// A name that would be a program if it were not escaped.
pub(super) const HOSTILE: &str = "<script>alert('\"1&2\"')</script>";

/// Seven closed steps that make a sweep with a knee, the first with a hostile name.
pub(super) fn sweep() -> Report {
    let mut steps = Vec::new();
    for (index, concurrency) in [1, 2, 4, 8, 16, 32, 64].into_iter().enumerate() {
        let agents = f64::from(concurrency);
        let rate =
            1_000.0 * agents / (1.0 + 0.05 * (agents - 1.0) + 0.002 * agents * (agents - 1.0));
        let name = if index == 0 { HOSTILE } else { "sweep" };
        let mut step = step(name, concurrency, rate, 0.2 * agents);
        let workload = &mut step.detail.workload;
        (workload.model, workload.offered_tps) = ("closed".to_owned(), None);
        steps.push(step);
    }
    report(steps)
}

/// Three open steps at rising rates. The last one lost messages, broke its limits, and was run in three runs.
pub(super) fn open() -> Report {
    let mut steps = vec![
        step("open 1k", 16, 1_000.0, 0.5),
        step("open 2k", 16, 2_000.0, 1.0),
        step("open 4k", 16, 4_000.0, 20.0),
    ];
    let last = &mut steps[2];
    last.lost = 700;
    (last.duplicated, last.reordered, last.late) = (Some(3), Some(2), Some(40));
    last.expected_received += 700;
    last.problems
        .push("700 expected deliveries were lost".to_owned());
    last.notes.push("a note <with> letters".to_owned());
    let detail = &mut last.detail;
    detail.times.scheduled = Distribution::of(&histogram(20.0), 700);
    detail
        .verdict
        .reasons
        .push("the instrument <sent> late".to_owned());
    detail.slo.violations.push("p99 is infinite".to_owned());
    detail.worst_receivers = (0..10).map(worst_receiver).collect();
    detail.slow_receivers = Some(SlowReceivers {
        receivers: 2,
        expected: 100,
        delivered: 90,
        lost: 10,
        unconfirmed: 0,
        disconnected: 1,
    });
    detail.processes = vec![ProcessFigures {
        name: "node 1".to_owned(),
        cpu_secs: Some(5.5),
        rss_bytes_max: Some(12 << 20),
    }];
    detail.faults = vec![FaultFigures {
        at_secs: 6.0,
        took_secs: 0.25,
        what: "restart node 1".to_owned(),
    }];
    detail.losses = Some(Losses {
        told: 690,
        away: 10,
        ..Losses::default()
    });
    detail.series = (1..=3).flat_map(seconds).collect();
    detail.runs = (1..=3).map(|run| run_figures(run, detail)).collect();
    report(steps)
}

/// A step that could not be measured.
pub(super) fn failed() -> Report {
    let think_time = ThinkTime {
        min_ms: 1.0,
        max_ms: 1.0,
    };
    let step = Step::chat("failed", 50, 10.0, think_time);
    report(vec![StepReport::failed(
        &step,
        "a client lane failed".to_owned(),
    )])
}

fn report(steps: Vec<StepReport>) -> Report {
    let facts = Report {
        target_server: "tcp://127.0.0.1:1".to_owned(),
        start_time_utc: utc(SystemTime::UNIX_EPOCH),
        end_time_utc: utc(SystemTime::UNIX_EPOCH),
        total_duration_secs: 42.0,
        seed: 1,
        env: Environment {
            cpu: "A <processor> with a very long name that has to be broken somewhere".repeat(3),
            cores: 2,
            kernel: "6.18.0".to_owned(),
            version: "0.1.0".to_owned(),
            commit: "0123456789abcdef".repeat(8),
            memory_bytes: Some(8 << 30),
            virtualisation: Some("virtual machine (Maker)".to_owned()),
            command_line: Some("tidewire load 'a <scenario>.toml'".to_owned()),
        },
        scenario_version: 2,
        ..Report::default()
    };
    facts.with_steps(steps, false)
}

fn step(name: &str, concurrency: u32, rate: f64, scale_ms: f64) -> StepReport {
    let think_time = ThinkTime {
        min_ms: 1.0,
        max_ms: 1.0,
    };
    let scenario = Step::chat(name, concurrency, 10.0, think_time);
    let mut report = StepReport::failed(&scenario, "to be replaced".to_owned());
    report.problems.clear();
    report.test_duration_secs = 11.0;
    report.total_sent = (rate * 10.0) as u64;
    (report.total_received, report.expected_received) = (report.total_sent, report.total_sent);
    (report.success_rate, report.error_rate) = (1.0, 0.0);
    report.steady.send_tps = rate;
    report.steady.receive_tps = Some(rate);
    report.theoretical_tps = rate;
    report.attainment = 1.0;
    report.latency_kind = LATENCY_KIND_END_TO_END.to_owned();
    *report.detail = detail(&scenario, rate, scale_ms);
    report
}

fn detail(step: &Step, rate: f64, scale_ms: f64) -> StepDetail {
    let mut workload = Workload::of(step);
    workload.model = "open".to_owned();
    workload.pattern = "request".to_owned();
    workload.think_time_ms = None;
    workload.offered_tps = Some(rate);
    StepDetail {
        workload,
        counts: WorkCounts::default(),
        window: Window {
            warmup_secs: 2.0,
            steady_secs: 8.0,
            ..Window::default()
        },
        times: StepTimes {
            scheduled: Distribution::of(&histogram(scale_ms), 0),
            across: Some(Distribution::of(&histogram(scale_ms * 1.5), 0)),
            service: Some(Distribution::of(&histogram(scale_ms / 3.0), 0)),
            send_lag: Distribution::of(&histogram(0.01), 0),
            client_lag: None,
            write: Distribution::of(&histogram(0.002), 0),
        },
        cost: Cost {
            client_cpu_pct: Some(40.0),
            server_cpu_pct: Some(35.5),
            client_ns_per_message: Some(2_400.0),
            server_ns_per_message: Some(1_900.0),
            steal_pct: Some(0.1),
            client_lanes: Some(LaneCost {
                system_calls_per_message: 1.5,
                allocations_per_message: Some(0.000_2),
                allocated_bytes_per_message: Some(0.05),
            }),
            server_lanes: Some(LaneCost {
                system_calls_per_message: 1.25,
                allocations_per_message: None,
                allocated_bytes_per_message: None,
            }),
        },
        verdict: Verdict::default(),
        slo: SloReport {
            limits: Slo {
                p99_ms: Some(5.0),
                loss_pct: Some(0.01),
                ..Slo::default()
            },
            violations: Vec::new(),
        },
        series: seconds(1),
        worst_receivers: Vec::new(),
        slow_receivers: None,
        fan_out_share: None,
        processes: Vec::new(),
        faults: Vec::new(),
        losses: None,
        runs: Vec::new(),
    }
}

/// Fifty thousand times with a long tail.
fn histogram(scale_ms: f64) -> LatencyHistogram {
    let mut histogram = LatencyHistogram::new();
    for index in 0..50_000_u32 {
        let above = 1.0 - (f64::from(index) + 0.5) / 50_000.0;
        let ms = scale_ms * (0.2 - above.ln() + 0.01 / above.sqrt());
        histogram.record((ms * 1e6) as u64);
    }
    histogram
}

fn seconds(run: u32) -> Vec<Second> {
    let second = |index: u32| {
        let at_secs = f64::from(index);
        let slowness = if index == 6 { 30.0 } else { 1.0 };
        Second {
            run,
            at_secs,
            secs: 1.0,
            phase: match index {
                1..=2 => "warm_up",
                3..=10 => "steady",
                _ => "drain",
            }
            .to_owned(),
            offered: (index <= 10).then_some(1_000.0),
            sent: if index <= 10 { 1_000 } else { 0 },
            received: Some(if index == 6 { 400 } else { 990 }),
            p50_ms: Some(0.5 * slowness),
            p99_ms: Some(3.0 * slowness),
            // A second in which nothing was that slow breaks the line.
            p999_ms: (index != 8).then_some(6.0 * slowness),
            send_lag_p99_ms: Some(0.01),
            client_cpu_pct: None,
            server_cpu_pct: None,
            connected: vec![250, if index == 6 { 0 } else { 250 }],
            heat: vec![
                (0.1, 10),
                (0.1 * 10_f64.powf(0.1), 800),
                (3.0 * slowness, 40),
                (100.0, 1),
            ],
            scheduled: None,
        }
    };
    (1..=11).map(second).collect()
}

fn worst_receiver(receiver: u32) -> ReceiverFigures {
    ReceiverFigures {
        receiver,
        expected: 4_000,
        delivered: 3_900,
        lost: 100 - u64::from(receiver),
        unconfirmed: 0,
        duplicated: 3,
        reordered: 0,
        late: 7,
        corrupt: 0,
    }
}

fn run_figures(run: u32, detail: &StepDetail) -> RunFigures {
    let times = &detail.times.scheduled;
    RunFigures {
        run,
        send_tps: 4_000.0,
        receive_tps: Some(3_900.0 + 10.0 * f64::from(run)),
        expected: 13_000,
        lost: 233,
        unconfirmed: 0,
        p50: times.p50,
        p99: times.p99,
        p999: times.p999,
        server_ns_per_message: Some(1_900.0),
        disturbed: false,
        valid: run != 2,
    }
}
