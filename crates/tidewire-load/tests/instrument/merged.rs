//! Runs and parts put together: disjoint shares, exact sums, and the figures of each beside them.

use tidewire_load::report::{Distribution, MergeKind, Report};
use tidewire_load::segment::Segment;
use tidewire_load::statistics::LatencyHistogram;

use crate::proof::assert_sound;
use crate::workloads::{echo, only, run_against};

#[test]
fn segments_are_disjoint_and_their_merge_is_the_whole() {
    let lines = "pattern = \"request\"\nmodel = \"open\"\nconcurrency = 7\nrate = 700\narrival = \"poisson\"\n\
                 duration_secs = 0.5\n[steps.slo]\ndelivery_ratio_min = 1\n";
    let of = |segment| run_against("tw1", |_| echo, lines, |options| options.segment = segment);
    let whole = of(Segment::WHOLE);
    let parts: Vec<Report> = (1..=3).map(|part| of(Segment { part, parts: 3 })).collect();
    let merged = Report::merge(&parts, MergeKind::Parts).unwrap();
    assert_sound(&merged);
    let (whole, merged_step) = (only(&whole), only(&merged));
    assert_eq!(merged_step.0.total_sent, whole.0.total_sent);
    assert_eq!(merged_step.0.lost, 0);
    assert_eq!(
        merged_step.1.counts.steady_offered,
        whole.1.counts.steady_offered
    );
    // Every histogram of the merge is bucket by bucket the sum of those of the parts.
    let mut sum = LatencyHistogram::new();
    for part in &parts {
        sum.merge(&only(part).1.times.scheduled.histogram.decode().unwrap());
    }
    assert_eq!(
        merged_step.1.times.scheduled,
        Distribution::of(&sum, merged_step.1.times.scheduled.missing)
    );
    assert_eq!(merged_step.1.runs.len(), 3);
    assert_eq!(merged.segment, None);
    // What its lanes did for each message of a part counts as much as it has messages.
    let (mut calls, mut messages) = (0.0, 0.0);
    for part in &parts {
        let detail = only(part).1;
        let of_part = (detail.counts.steady_sent + detail.counts.steady_received) as f64;
        calls += detail.cost.client_lanes.unwrap().system_calls_per_message * of_part;
        messages += of_part;
    }
    let lanes = merged_step.1.cost.client_lanes.unwrap();
    assert!((lanes.system_calls_per_message - calls / messages).abs() < 1e-9);
    assert_eq!(merged_step.1.cost.server_lanes, None);

    for (given, told) in [(&parts[..2], "2 were given of 3"), (&[][..], "no report")] {
        let error = Report::merge(given, MergeKind::Parts).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
    let twice = [parts[0].clone(), parts[1].clone(), parts[0].clone()];
    let error = Report::merge(&twice, MergeKind::Parts).unwrap_err();
    assert!(error.to_string().contains("given twice"), "{error}");
}

#[test]
fn repeats_are_one_report_with_the_figures_of_each_run() {
    let lines = "pattern = \"echo\"\nconcurrency = 2\nduration_secs = 0.2\n";
    let runs: Vec<Report> = (0..3)
        .map(|_| run_against("tw1", |_| echo, lines, |_| {}))
        .collect();
    let merged = Report::merge(&runs, MergeKind::Runs).unwrap();
    assert_sound(&merged);
    let (step, detail) = only(&merged);
    let sent: u64 = runs.iter().map(|run| only(run).0.total_sent).sum();
    assert_eq!(step.total_sent, sent);
    assert_eq!(detail.runs.len(), 3);
    for (figures, run) in detail.runs.iter().zip(&runs) {
        assert_eq!(figures.send_tps, only(run).0.steady.send_tps);
    }
    let secs: f64 = runs.iter().map(|run| only(run).1.window.steady_secs).sum();
    assert_eq!(detail.window.steady_secs, secs);
}
