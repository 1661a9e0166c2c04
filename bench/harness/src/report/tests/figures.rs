//! From the runs of all to one figure of each, and to ratios.

use super::*;

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
    let row = RowResult::of(
        &plan(metric),
        of([100, 100, 100]),
        only(limit),
        BTreeMap::new(),
    );
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
    let row = RowResult::of(&plan(metric), ours, only(Some(limit)), BTreeMap::new());
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
        only(Some(nothing)),
        BTreeMap::new(),
    );
    assert_eq!((row.limit_ratio, row.limit_ratio_ci95), (None, None));
}

#[test]
fn rounds_of_a_row_that_climbs_are_not_paired() {
    let times = Metric {
        lower_is_better: true,
        ..Metric::MESSAGES
    };
    for (metric, better) in [(Metric::MESSAGES, 2.0), (times, 0.5)] {
        let plan = plan(metric).climbing(&[1.0]);
        let of = |rates| Figures::of(&plan, &outcomes(rates), None);
        // Round by round it would be 1.33 and not 2.
        let (ours, limit) = (of([400, 100, 800]), of([300, 200, 100]));
        let row = RowResult::of(&plan, ours, only(Some(limit)), BTreeMap::new());
        assert_eq!(row.limit_ratio, Some(better));
        let [low, high] = row.limit_ratio_ci95.unwrap();
        assert!(low < better && better < high, "{low} to {high}");
        // A server that does twice as much in the same time takes half of it for a message.
        assert_eq!(row.limit_server_cpu_ratio, Some(2.0));
    }
    let plan = plan(Metric::MESSAGES).climbing(&[1.0]);
    let nothing = Figures::of(&plan, &[], None);
    let ours = figures(&outcomes([1, 2, 3]));
    let row = RowResult::of(&plan, ours, only(Some(nothing)), BTreeMap::new());
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
    // The faster side may be bound by its server and the other not: the ratio has no meaning all the same.
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
    assert!(markdown.contains("| GB/s |") && markdown.contains("| 128 |"));
    assert!(report.to_html().contains(">128<"));
    let mut without = report;
    let tiny = &mut without.suites[0].rows[0].tidewire;
    tiny.bytes_per_sec = Some(4e6);
    (
        tiny.allocated_bytes_per_msg.server,
        tiny.allocated_bytes_per_msg.client,
    ) = (Some(0.0), Some(0.000_2));
    let markdown = without.to_markdown();
    assert!(markdown.contains("| 0.0040 |") && markdown.contains("| none, none |"));
    without.suites[0].rows[0].tidewire.bytes_per_sec = None;
    assert!(!without.to_markdown().contains("GB/s"));
}
