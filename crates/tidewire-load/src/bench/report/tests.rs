//! Results against their schema, on disk, and as a page.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::bench::plan::{Metric, Source};
use crate::page::browser::check_everywhere;
use crate::page::check::{by_id, check, parse, text};

const SCHEMA: &str = include_str!("../../../../../docs/bench.schema.json");

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

fn row(ours: Figures, limit: Option<Figures>, peer: Figures, drops: bool) -> RowResult {
    let peer = PeerFigures {
        version: "1.2".to_owned(),
        ratio: None,
        ratio_ci95: None,
        drops,
        figures: peer,
    };
    let peers = BTreeMap::from([(format!("rival {HOSTILE}"), peer)]);
    RowResult::of(&plan(Metric::MESSAGES), ours, limit, peers)
}

fn figures(outcomes: &[Outcome]) -> Figures {
    Figures::of(&plan(Metric::MESSAGES), outcomes, None)
}

/// Of a run that was offered a thousand messages a second.
fn offered(messages: u64) -> Figures {
    let mut run = outcome(messages, 0, 0);
    let offered = [(crate::bench::hold::OFFERED.to_owned(), 1_000.0)];
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
    report(vec![
        row(
            ours.clone(),
            Some(limit.clone()),
            figures(&outcomes([90, 100, 110])),
            false,
        ),
        row(ours, None, failed(), false),
        row(Figures::default(), Some(limit), Figures::default(), true),
    ])
}

fn valid(report: &BenchReport) -> Result<(), String> {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let value = serde_json::to_value(report).unwrap();
    validator
        .validate(&value)
        .map_err(|error| error.to_string())
}

#[test]
fn who_does_not_hold_a_rate_is_marked_and_does_not_fail_the_suite() {
    let row = row(offered(500), Some(offered(1_000)), offered(900), false);
    let held = [&row.tidewire, row.limit.as_ref().unwrap()].map(|figures| figures.holds);
    assert_eq!(held, [Some(false), Some(true)]);
    let suite = &report(vec![row.clone()]).suites[0];
    let cells = suite.cells(&row);
    assert!(!cells[2].contains("does not hold"), "{cells:?}");
    assert!(cells[3].ends_with("(does not hold)"), "{cells:?}");
    assert!(cells[6].ends_with("(does not hold)"), "{cells:?}");
    let report = report(vec![row]);
    assert_eq!(report.faults(), Vec::<String>::new());
    let page = report.to_html();
    assert!(page.contains("(does not hold)"));
}

#[test]
fn results_follow_the_committed_schema_and_come_back_as_they_were() {
    let report = sample();
    valid(&report).unwrap();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<BenchReport>(&json).unwrap(), report);
}

#[test]
fn the_schema_names_every_key_that_is_written_and_no_other() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let value = serde_json::to_value(sample()).unwrap();
    let row = &value["suites"][0]["rows"][0];
    let peer = row["peers"].as_object().unwrap().values().next().unwrap();
    for (written, described) in [
        (&value, &schema["properties"]),
        (&value["env"], &schema["properties"]["env"]["properties"]),
        (row, &schema["$defs"]["row"]["properties"]),
        (&row["params"], &schema["$defs"]["work"]["properties"]),
        (&row["limit"], &schema["$defs"]["figures"]["properties"]),
        (peer, &schema["$defs"]["peer"]["properties"]),
        (&row["tries"][0], &schema["$defs"]["try"]["properties"]),
        (
            &value["suites"][0],
            &schema["properties"]["suites"]["items"]["properties"],
        ),
        (&row["latency"], &schema["$defs"]["times"]["properties"]),
    ] {
        assert_eq!(keys(written), keys(described));
    }
    let mut spoilt = value.clone();
    spoilt["suites"][0]["rows"][0]["median"] = json!("fast");
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(!validator.is_valid(&spoilt));
}

#[test]
fn figures_are_medians_and_ratios_say_how_many_times_as_good() {
    let report = sample();
    let row = &report.suites[0].rows[0];
    assert_eq!(row.tidewire.median, Some(1_000.0));
    assert_eq!(row.tidewire.ci95, Some([900.0, 1_100.0]));
    // The median of 0.9, 0.8 and 0.846, and not 1,000 by 1,250.
    assert_eq!(row.limit_ratio, Some(1_100.0 / 1_300.0));
    assert_eq!(row.limit_ratio_ci95, Some([0.8, 0.9]));
    assert_eq!(row.peers.values().next().unwrap().ratio, Some(10.0));
    assert_eq!(row.tidewire.server_cpu_ns_per_msg, Some(5e5));
    assert_eq!(row.tidewire.allocated_bytes_per_msg.client, Some(2.0));
    assert_eq!(row.tidewire.figures["bytes_per_session"], 512.0);
    // Of times, the smaller is the better one.
    let metric = Metric {
        name: "mean_us",
        unit: "µs",
        lower_is_better: true,
        source: Source::MeanTime,
    };
    let of = |rates| Figures::of(&plan(metric), &outcomes(rates), None);
    let limit = Some(of([200, 200, 200]));
    let row = RowResult::of(&plan(metric), of([100, 100, 100]), limit, BTreeMap::new());
    assert_eq!(row.limit_ratio, Some(0.5));
}

#[test]
fn a_round_without_a_figure_is_left_out_and_shifts_no_other() {
    let metric = Metric {
        source: Source::Figure("speed"),
        ..Metric::MESSAGES
    };
    let of = |speeds: [Option<f64>; 4]| {
        let outcomes = speeds.map(|speed| {
            let mut run = outcome(1_000, 0, 0);
            run.measured.figures = speed
                .map(|speed| ("speed".to_owned(), speed))
                .into_iter()
                .collect();
            run
        });
        Figures::of(&plan(metric), &outcomes, None)
    };
    // The machine is ten times as fast in every next round.
    let ours = of([Some(5.0), None, Some(500.0), Some(5_000.0)]);
    let limit = of([Some(10.0), Some(100.0), Some(1_000.0), Some(10_000.0)]);
    let row = RowResult::of(&plan(metric), ours, Some(limit), BTreeMap::new());
    assert_eq!(row.limit_ratio, Some(0.5));
    assert_eq!(row.limit_ratio_ci95, Some([0.5, 0.5]));
    assert_eq!(
        row.tidewire.runs,
        [Some(5.0), None, Some(500.0), Some(5_000.0)]
    );
    assert_eq!(row.tidewire.median, Some(500.0));
    let nothing = of([Some(0.0); 4]);
    let row = RowResult::of(
        &plan(metric),
        nothing.clone(),
        Some(nothing),
        BTreeMap::new(),
    );
    assert_eq!((row.limit_ratio, row.limit_ratio_ci95), (None, None));
}

#[test]
fn the_servers_are_compared_by_their_own_time_where_the_driver_was_the_bound() {
    let with = |server_cpu_ns: f64, busy: (f64, f64)| {
        let mut run = outcome(1_000, 0, 0);
        run.server_cpu_ns = Some(server_cpu_ns);
        (run.server_busy_pct, run.driver_busy_pct) = (Some(busy.0), busy.1);
        figures(&[run])
    };
    let limit = with(4e5, (40.0, 99.0));
    let bound = row(
        with(5e5, (50.0, 99.0)),
        Some(limit.clone()),
        limit.clone(),
        false,
    );
    assert_eq!(bound.limit_server_cpu_ratio, Some(0.8));
    assert_eq!(
        (bound.limit_ratio, bound.marks()),
        (Some(1.0), vec!["driver-bound"])
    );
    // Who is faster may be bound by the server, and the other not: the ratio says nothing all the same.
    let free = with(9e5, (99.0, 90.0));
    assert!(free.marks().is_empty());
    assert_eq!(
        row(free.clone(), Some(limit), failed(), false).marks(),
        ["driver-bound"]
    );
    assert!(row(free.clone(), None, failed(), false).marks().is_empty());
    assert_eq!(
        row(free, None, failed(), false).limit_server_cpu_ratio,
        None
    );
    let mut within = outcome(1_000, 0, 0);
    (within.server_busy_pct, within.driver_busy_pct) = (None, 199.0);
    assert!(figures(&[within]).marks().is_empty(), "it has no server");
}

#[test]
fn who_was_disturbed_is_marked_rivals_as_well() {
    let disturbed = |stolen_pct, waited_pct| {
        let mut run = outcome(1_000, 0, 0);
        (run.stolen_pct, run.waited_pct) = (stolen_pct, waited_pct);
        (run.disturbance(), figures(&[outcome(1_000, 0, 0), run]))
    };
    let (none, good) = disturbed(Some(3.0), Some(5.0));
    assert!(none.is_none() && good.marks().is_empty());
    assert_eq!(disturbed(None, None).0, None);
    let (why, stolen) = disturbed(Some(3.1), Some(9.0));
    assert_eq!(why.unwrap().to_string(), "the host took 3.1 % of the time");
    assert_eq!(stolen.marks(), ["stolen", "waited"]);
    let (why, waited) = disturbed(Some(0.0), Some(9.0));
    assert!(why.unwrap().to_string().starts_with("it waited 9.0 %"));
    let mut lossy = outcome(1_000, 3, 3);
    lossy.waited_pct = Some(50.0);
    let table =
        |ours, limit, peer, drops| report(vec![row(ours, limit, peer, drops)]).to_markdown();
    let all = table(good.clone(), Some(waited), stolen, false);
    assert!(all.contains("| tcp, 1 × 1 (waited) |"), "{all}");
    assert!(all.contains(" 1.00× (stolen, waited) |"), "{all}");
    let all = table(good.clone(), None, figures(&[lossy.clone()]), false);
    let told = " 1.00× (lost 3 messages, 3 of them counted as dropped, waited) |";
    assert!(all.contains(told), "{all}");
    let all = table(good, None, figures(&[lossy]), true);
    assert!(all.contains(" 1.00× (waited) |"), "{all}");
}

#[test]
fn what_is_lost_unverified_or_failed_is_a_fault_of_ours_alone() {
    let good = || figures(&outcomes([1, 2, 3]));
    let lost = figures(&[outcome(10, 3, 1)]);
    let dropped = figures(&[outcome(10, 3, 3)]);
    let mut unchecked = outcome(10, 0, 0);
    unchecked.measured.verified = false;
    let unchecked = figures(&[unchecked]);
    let faults = |ours: Figures, limit, peer| report(vec![row(ours, limit, peer, false)]).faults();
    assert!(faults(good(), Some(good()), good()).is_empty());
    assert_eq!(
        faults(dropped, None, good()),
        ["echo, tcp, 1 × 1: tidewire lost 3 messages, 3 of them counted as dropped"]
    );
    let allowing = plan(Metric::MESSAGES).allowing_drops();
    let dropped = Figures::of(&allowing, &[outcome(10, 3, 3)], None);
    assert!(faults(dropped, None, good()).is_empty());
    let dropped = Figures::of(&allowing, &[outcome(10, 3, 1)], None);
    assert_eq!(faults(dropped, None, good()).len(), 1);
    assert!(
        faults(good(), None, failed()).is_empty(),
        "a rival's failure is not ours"
    );
    let found = faults(lost.clone(), None, good());
    assert_eq!(
        found,
        ["echo, tcp, 1 × 1: tidewire lost 3 messages, 1 of them counted as dropped"]
    );
    assert!(faults(unchecked, None, good())[0].contains("was not verified"));
    assert!(faults(failed(), None, good())[0].contains("failed: it"));
    assert!(faults(good(), Some(lost), good())[0].contains("bare lost 3"));
}

#[test]
fn runs_that_prove_nothing_are_a_fault() {
    let good = || figures(&outcomes([1, 2, 3]));
    let fault = |ours: Figures| {
        let faults = report(vec![row(ours, Some(good()), good(), false)]).faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap()
    };
    let mut endless = outcome(10, 0, 0);
    endless.measured.seconds = 0.0;
    assert_eq!(
        fault(figures(&[outcome(10, 0, 0), endless.clone(), endless])),
        "echo, tcp, 1 × 1: tidewire has no figure in 2 of 3 runs"
    );
    let nothing = figures(&[outcome(10, 0, 0), outcome(0, 0, 0)]);
    assert!(!nothing.verified);
    assert_eq!(
        fault(nothing),
        "echo, tcp, 1 × 1: tidewire got no message in 1 of 2 runs"
    );
    // The same is found in what was written.
    let mut silent = outcome(0, 0, 0);
    silent.measured.latency = None;
    silent.measured.figures = BTreeMap::from([("speed".to_owned(), 3.0)]);
    let metric = Metric {
        source: Source::Figure("speed"),
        ..Metric::MESSAGES
    };
    let silent = Figures::of(&plan(metric), &[silent], None);
    assert_eq!(silent.median, Some(3.0));
    let json = serde_json::to_string(&silent).unwrap();
    assert!(fault(serde_json::from_str(&json).unwrap()).contains("got no message in 1 of 1"));
}

#[test]
fn bytes_a_second_stand_where_messages_have_a_size() {
    let weighed = |message_bytes, metric| {
        let mut figures = Figures::of(&plan(metric), &outcomes([900, 1_000, 1_100]), None);
        figures.weigh(&plan(metric), message_bytes);
        figures.bytes_per_sec
    };
    assert_eq!(weighed(32, Metric::MESSAGES), Some(32_000.0));
    assert_eq!(weighed(0, Metric::MESSAGES), None);
    let time = Metric {
        source: Source::MeanTime,
        ..Metric::MESSAGES
    };
    assert_eq!(weighed(32, time), None);
    let mut ours = figures(&outcomes([4_000_000_000; 3]));
    ours.weigh(&plan(Metric::MESSAGES), 32);
    let report = report(vec![row(ours, None, failed(), false)]);
    let markdown = report.to_markdown();
    assert!(markdown.contains("| GB/s |") && markdown.contains("| 128.00 |"));
    assert!(report.to_html().contains("128.00"));
    let mut without = report;
    without.suites[0].rows[0].tidewire.bytes_per_sec = None;
    assert!(!without.to_markdown().contains("GB/s"));
}

#[test]
fn a_row_that_climbs_has_a_table_of_everybody_with_the_highest_first() {
    let mut ours = offered(1_000);
    let mut limit = offered(2_000);
    let mut peer = offered(200);
    for one in [&mut ours, &mut limit] {
        one.tries = vec![tried(true)];
    }
    peer.tries = vec![tried(true), tried(false)];
    let report = report(vec![row(ours, Some(limit), peer, false)]);
    let rows = report.suites[0].rows[0].climb_rows();
    let firsts: Vec<&str> = rows.iter().map(|cells| cells[0].as_str()).collect();
    assert_eq!(firsts[..2], ["limit", "Tidewire"]);
    assert!(firsts[2].starts_with("rival"), "{firsts:?}");
    assert_eq!(
        (rows[2][6].as_str(), rows[1][7].as_str()),
        ("5.00×", "held all")
    );
    assert_eq!(rows[2][7], "of 1,000 came 900, lost 1,234, p99 60.0 µs");
    let markdown = report.to_markdown();
    assert!(
        markdown.contains("| who | highest rate held |"),
        "{markdown}"
    );
    assert!(report.to_html().contains("highest rate held"));
}

#[test]
fn a_table_says_what_failed_and_stays_a_table() {
    let mut report = sample();
    report.suites[0].rows[1].tidewire = failed();
    let markdown = report.to_markdown();
    let rows: Vec<&str> = markdown
        .lines()
        .filter(|line| line.starts_with("| tcp"))
        .collect();
    assert_eq!(rows.len(), 3);
    assert!(
        rows[0].contains("| 85 % | 85 % |") && rows[0].contains("10.00×"),
        "{}",
        rows[0]
    );
    assert!(rows[1].contains("**failed: it"), "{}", rows[1]);
}

#[test]
fn the_page_is_whole_and_lets_nothing_become_markup() {
    let mut report = sample();
    let page = report.to_html();
    check(&page);
    let document = parse(&page);
    for id in [
        "echo-limit",
        "echo-contenders-1",
        "echo-latency",
        "echo-cost",
    ] {
        assert_eq!(by_id(&document, id).tag_name().name(), "figure", "{id}");
    }
    let verdict = |report: &BenchReport| {
        let page = report.to_html();
        text(parse(&page).root())
    };
    assert!(verdict(&report).contains("✓ Verified"));
    report.env.interrupted = true;
    assert!(verdict(&report).contains("■ Interrupted"));
    report.suites[0].rows[0].tidewire = failed();
    assert!(verdict(&report).contains("✗ Not verified"));
    check(&report.to_html());
    report.suites.clear();
    check(&report.to_html());
}

#[test]
fn impossible_numbers_break_no_page() {
    let mut report = sample();
    for value in [0.0, -1.0, 1e300, f64::MAX] {
        let row = &mut report.suites[0].rows[0];
        row.limit_ratio = Some(value);
        row.tidewire.median = Some(value);
        row.tidewire.ci95 = Some([-value, value]);
        row.tidewire.server_cpu_ns_per_msg = Some(value);
        row.tidewire.latency = Some(times(value));
        check(&report.to_html());
    }
}

#[test]
fn a_browser_shows_the_page_without_complaint_at_every_width() {
    check_everywhere(&[("bench", sample().to_html())]);
}

#[test]
fn written_results_are_read_again_and_others_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let report = sample();
    let written = report
        .write_to(&directory.path().join("deep/down"))
        .unwrap();
    assert_eq!(BenchReport::read(&written.json).unwrap(), report);
    assert!(written.html.is_file() && written.markdown.is_file());
    let missing = BenchReport::read(&directory.path().join("none")).unwrap_err();
    assert!(matches!(missing, ReadBenchError::File { .. }), "{missing}");
    assert!(BenchReport::is_meant_by(&written.json));
    assert!(!BenchReport::is_meant_by(&written.markdown));
    let other = BenchReport::read(&written.markdown).unwrap_err();
    assert!(matches!(other, ReadBenchError::Format { .. }), "{other}");
    let mut value = serde_json::to_value(&report).unwrap();
    value["schema_version"] = json!(9);
    std::fs::write(&written.json, value.to_string()).unwrap();
    let newer = BenchReport::read(&written.json).unwrap_err();
    assert!(newer.to_string().contains("has version 9"), "{newer}");
    assert!(BenchReport::is_meant_by(&written.json));
    let whole = value.to_string();
    // Cut off in its middle it is still known for what it was; a report of a load test never is.
    std::fs::write(&written.json, &whole[..whole.len() / 2]).unwrap();
    assert!(BenchReport::is_meant_by(&written.json));
    for other in [
        r#"{"schema_version":1,"target_server":"x","env":{"cpu"#,
        "[1",
        "",
    ] {
        std::fs::write(&written.json, other).unwrap();
        assert!(!BenchReport::is_meant_by(&written.json), "{other}");
    }
    // A file is where the directory should be.
    let blocked = report.write_to(&written.json).unwrap_err();
    assert!(
        blocked.to_string().contains("a file is in the way"),
        "{blocked}"
    );
}
