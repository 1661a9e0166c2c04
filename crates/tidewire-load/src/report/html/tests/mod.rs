//! Whether the page is whole, says what the report says, and lets nothing from the file become markup.

mod browser;
mod sample;

use tidewire_testkit::page::{by_id, check, count, parse, text};

use self::sample::HOSTILE;
use crate::report::Percentile;

#[test]
fn a_report_with_everything_has_every_chart() {
    let report = sample::open();
    let page = report.to_html();
    check(&page);
    let document = parse(&page);
    for id in ["fates", "cost", "calls", "tail"] {
        assert_eq!(by_id(&document, id).tag_name().name(), "figure");
    }
    for id in [
        "percentiles",
        "rate",
        "heat",
        "latency",
        "receivers",
        "runs",
    ] {
        let figure = by_id(&document, &format!("step-3-{id}"));
        assert_eq!(figure.tag_name().name(), "figure", "{id}");
    }
    // In both drawings, and in the sentence above them.
    let percentiles = text(by_id(&document, "step-3-percentiles"));
    assert_eq!(
        percentiles.matches("never arrived").count(),
        3,
        "{percentiles}"
    );
    let rates = by_id(&document, "step-1-rate");
    let lines = rates
        .descendants()
        .filter(|node| node.has_tag_name("polyline"))
        .count();
    assert_eq!(lines, 2 * 3, "offered, sent and received");
    // p99.9 is not known in one second, and three runs are not joined.
    let latencies = by_id(&document, "step-3-latency");
    assert_eq!(count(latencies, "polyline"), 2 * 3 * (1 + 1 + 2));
    assert!(text(by_id(&document, "tail")).contains("limit 5 ms"));
    assert!(text(by_id(&document, "step-3-receivers")).contains("receiver 9"));
    let cells = by_id(&document, "step-1-heat");
    let cells = cells.descendants().filter(|node| {
        node.attribute("class")
            .is_some_and(|class| class.starts_with("heat"))
    });
    assert_eq!(cells.count(), 2 * 11 * 4);
}

#[test]
fn the_worst_news_comes_first() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let places = [
        "verdict",
        "news",
        "overview",
        "slo",
        "whole",
        "step-1",
        "environment",
    ]
    .map(|id| by_id(&document, id).range().start);
    assert!(places.is_sorted(), "{places:?}");
    assert!(text(by_id(&document, "verdict")).contains("Limit broken"));
    let news = text(by_id(&document, "news"));
    let found = [
        "the instrument <sent> late",
        "p99 is infinite",
        "700 expected",
    ]
    .map(|one| news.find(one));
    assert!(
        found.iter().all(Option::is_some) && found.is_sorted(),
        "{news}"
    );
    let limits = text(by_id(&document, "slo"));
    assert_eq!(limits.matches("✗ broken").count(), 2, "{limits}");
}

#[test]
fn a_sweep_has_the_fitted_law_and_its_knee() {
    let page = sample::sweep().to_html();
    check(&page);
    let document = parse(&page);
    let scaling = by_id(&document, "scaling");
    let said = text(scaling);
    assert!(
        said.contains("through 7 levels") && said.contains("knee at 22"),
        "{said}"
    );
    assert_eq!(count(scaling, "polyline"), 2);
    assert_eq!(count(scaling, "circle"), 2 * 7);
    assert!(text(by_id(&document, "step-2-percentiles")).contains("The loop is closed"));
    let mut fewer = sample::sweep();
    fewer.steps.truncate(5);
    let page = fewer.to_html();
    assert!(text(by_id(&parse(&page), "scaling")).contains("too few for a fit"));
}

#[test]
fn texts_from_the_file_stay_texts() {
    let page = sample::sweep().to_html();
    let document = parse(&page);
    assert!(!page.contains("<script>alert"));
    assert!(text(by_id(&document, "step-1")).starts_with(HOSTILE));
    let tips = document
        .descendants()
        .filter_map(|node| node.attribute("data-tip"));
    assert!(tips.filter(|tip| tip.starts_with(HOSTILE)).count() > 2);
}

#[test]
fn an_old_report_is_shorter_and_says_why() {
    let page = sample::old().to_html();
    check(&page);
    let document = parse(&page);
    assert_eq!(by_id(&document, "fates").tag_name().name(), "figure");
    for id in [
        "percentiles",
        "rate",
        "heat",
        "latency",
        "receivers",
        "runs",
    ] {
        let line = by_id(&document, &format!("step-1-{id}"));
        assert_eq!(line.tag_name().name(), "p");
        assert!(text(line).contains("is left out: the report has no details"));
    }
    let step = text(by_id(&document, "step-1"));
    assert!(
        step.contains("end to end") && step.contains("write call"),
        "{step}"
    );
    let mut empty = sample::old();
    empty.steps.clear();
    let page = empty.to_html();
    check(&page);
    assert!(text(by_id(&parse(&page), "overview")).contains("No step was begun"));
}

#[test]
fn impossible_numbers_make_a_poor_chart_and_no_broken_one() {
    let mut report = sample::open();
    for step in &mut report.steps {
        step.theoretical_tps *= 1e300;
        step.steady.receive_tps = f64::MAX;
        (step.lost, step.total_received) = (u64::MAX, u64::MAX);
        let detail = step.detail.as_mut().unwrap();
        detail.cost.server_ns_per_message = Some(-1.0);
        detail.cost.client_ns_per_message = Some(f64::MAX);
        detail.times.scheduled.p99 = Percentile::Infinite;
        for (index, second) in detail.series.iter_mut().enumerate() {
            second.at_secs = [f64::MAX, -5.0, 1e300, 0.0][index % 4];
            second.secs = [f64::MAX, 1e-300, 0.0][index % 3];
            second.offered = Some(f64::MAX);
            second.sent = u64::MAX;
            second.p99_ms = [Some(-1.0), Some(f64::MAX), Some(0.0), None][index % 4];
            second.heat.push((f64::MAX, u64::MAX));
            second.heat.push((-1.0, 1));
        }
        detail
            .times
            .service
            .as_mut()
            .unwrap()
            .histogram
            .hdr_v2_base64 = "no".to_owned();
    }
    let page = report.to_html();
    check(&page);
    let line = text(by_id(&parse(&page), "step-1-percentiles"));
    assert!(line.contains("a histogram cannot be read"), "{line}");
}

#[test]
fn an_hour_is_drawn_in_as_many_points_as_can_be_seen() {
    let mut report = sample::open();
    let detail = report.steps[0].detail.as_mut().unwrap();
    let one = detail.series[3].clone();
    let second = |index: u32| crate::report::Second {
        at_secs: f64::from(index),
        p99_ms: Some(f64::from(index)),
        ..one.clone()
    };
    detail.series = (1..=3_600).map(second).collect();
    let page = report.to_html();
    check(&page);
    let document = parse(&page);
    let latencies = by_id(&document, "step-1-latency");
    let rows = count(latencies, "tr") - 1;
    assert!((150..=180).contains(&rows), "{rows}");
    // The worst second of the last twenty is the last one, and no message is lost on the way.
    assert!(text(latencies).contains("Each point is 20 seconds"));
    let last = latencies
        .descendants()
        .rfind(|node| node.has_tag_name("tr"))
        .unwrap();
    assert_eq!(text(last), "3600.0 ssteady0.500036006.00");
    let heat = text(by_id(&document, "step-1-heat"));
    assert!(heat.contains(&crate::format::thousands(20 * 851)), "{heat}");
}
