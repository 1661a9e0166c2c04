//! Whether the page is whole, says what the report says, and lets nothing from the file become markup.

mod browser;
mod drawn;
mod sample;

use tidewire_testkit::page::{by_id, check, count, parse, text};

use self::sample::HOSTILE;
use crate::report::{Percentile, StepReport};

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
        let class = node.attribute("class");
        class.is_some_and(|class| class.starts_with("heat")) && node.has_attribute("data-tip")
    });
    assert_eq!(cells.count(), 2 * 11 * 4);
}

#[test]
fn the_worst_news_comes_first() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let places = [
        "verdict",
        "tiles",
        "news",
        "step-3-latency",
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
fn a_step_that_could_not_be_measured_is_shorter_and_says_why() {
    let page = sample::failed().to_html();
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
        assert!(text(line).contains("is left out: "));
    }
    let step = text(by_id(&document, "step-1"));
    assert!(
        step.contains("0 of 0 expected") && step.contains("chat over tw1"),
        "{step}"
    );
    let mut empty = sample::failed();
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
        step.steady.receive_tps = Some(f64::MAX);
        (step.lost, step.total_received) = (u64::MAX, u64::MAX);
        let detail = &mut step.detail;
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
    let detail = &mut report.steps[0].detail;
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
    assert_eq!(text(last), "3600.0 ssteady0.5003,600\u{2008}\u{2007}6.00");
    let heat = text(by_id(&document, "step-1-heat"));
    assert!(heat.contains(&crate::format::thousands(20 * 851)), "{heat}");
}

#[test]
fn the_page_opens_with_the_answer_in_large_figures() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let tiles = by_id(&document, "tiles");
    let names: Vec<String> = tiles
        .descendants()
        .filter(|node| node.has_tag_name("dt"))
        .map(text)
        .collect();
    assert_eq!(
        names,
        [
            "received",
            "p50 scheduled",
            "p99 scheduled",
            "p99.9 scheduled",
            "lost"
        ]
    );
    let said = text(tiles);
    assert!(said.contains("4,000 a second"), "{said}");
    assert!(said.contains("700 of 40,700 expected"), "{said}");
    // The first step that did not pass decides; its course and its percentiles stand at the top and nowhere else.
    let answer = by_id(&document, "answer");
    assert!(text(answer).contains("Figures of open 4k, the first step that did not pass"));
    for id in ["step-3-latency", "step-3-rate"] {
        assert!(
            answer.range().contains(&by_id(&document, id).range().start),
            "{id}"
        );
    }
    assert!(
        by_id(&document, "step-1")
            .range()
            .contains(&by_id(&document, "step-1-rate").range().start)
    );
    let good = sample::sweep().to_html();
    let good = parse(&good);
    let said = text(by_id(&good, "answer"));
    assert!(said.contains("the step with the highest rate"), "{said}");
    assert!(said.contains("lostnone"), "{said}");
}

#[test]
fn percentiles_are_visible_under_one_name_for_each_latency() {
    let page = sample::open().to_html();
    let document = parse(&page);
    for id in ["answer", "step-1", "step-2"] {
        let heading = by_id(&document, id)
            .descendants()
            .find(|node| node.has_tag_name("h3"))
            .unwrap();
        assert_eq!(text(heading), "Percentiles", "{id}");
        let table = heading.next_sibling_element().unwrap();
        // It is not folded.
        assert!(!table.ancestors().any(|node| node.has_tag_name("details")));
        let body = table.descendants().find(|node| node.has_tag_name("tbody"));
        let names: Vec<String> = body
            .unwrap()
            .children()
            .filter_map(|row| row.first_element_child())
            .map(text)
            .collect();
        assert_eq!(
            names,
            ["scheduled", "across", "service", "send lag", "write"],
            "{id}"
        );
        let meanings = text(table.next_sibling_element().unwrap());
        for name in names {
            assert!(meanings.contains(&format!("{name}: ")), "{meanings}");
        }
    }
    for page in [page.clone(), sample::failed().to_html()] {
        for other in ["end to end", "write call", "of the client"] {
            assert!(!page.contains(other), "{other}");
        }
    }
}

#[test]
fn losses_beside_faults_are_mistakes_unless_their_causes_are_known() {
    let mut report = sample::open();
    let has_faults = |step: &&mut StepReport| !step.detail.faults.is_empty();
    let step = report.steps.iter_mut().find(has_faults).unwrap();
    step.lost = 700;
    assert_eq!(step.lost_by_mistake(), 0);
    step.detail.losses = None;
    assert_eq!(step.lost_by_mistake(), 700);
}

#[test]
fn a_cluster_has_its_processes_faults_and_causes_of_losses() {
    let page = sample::open().to_html();
    let step = text(by_id(&parse(&page), "step-3"));
    for told in [
        "from one node to another p50",
        "node 1: 5.50 s of processor time",
        "6.0 s: restart node 1, done after 0.25 s",
        "690 announced by the server as a gap, 10 while the receiver had no connection",
    ] {
        assert!(step.contains(told), "{told:?} in {step}");
    }
}

#[test]
fn rare_work_is_none_and_no_power_of_ten() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let calls = text(by_id(&document, "calls"));
    assert!(calls.contains("none"), "{calls}");
    assert!(text(by_id(&document, "step-1")).contains("no allocations a message"));
    let body = document
        .descendants()
        .find(|node| node.has_tag_name("main"))
        .unwrap();
    for shown in body.descendants().filter_map(|node| node.text()) {
        let mut pieces = shown.split("e-");
        let before = pieces.next().unwrap_or_default();
        let is_power = before.ends_with(|last: char| last.is_ascii_digit());
        assert!(!is_power || pieces.next().is_none(), "{shown}");
    }
}

#[test]
fn numbers_of_a_column_have_three_digits_and_their_points_below_each_other() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let mut seen = 0;
    for table in document
        .descendants()
        .filter(|node| node.has_tag_name("table"))
    {
        let mut decimals: Vec<Option<usize>> = Vec::new();
        for row in table.descendants().filter(|node| node.has_tag_name("tr")) {
            for (column, cell) in row.children().filter(|node| node.is_element()).enumerate() {
                if decimals.len() <= column {
                    decimals.push(None);
                }
                let shown = text(cell);
                // A percentile is a name, and a number behind the letter.
                let number = match column {
                    0 => shown.strip_prefix('p'),
                    _ => (cell.attribute("class") == Some("n")).then_some(shown.as_str()),
                };
                let number = number.map(|number| number.trim_end_matches(BLANKS).replace(',', ""));
                let value = number.as_deref().and_then(|number| number.parse().ok());
                if !value.is_some_and(f64::is_finite) {
                    continue;
                }
                if let Some((whole, part)) = number.as_deref().unwrap_or_default().split_once('.') {
                    let whole = whole.trim_start_matches('0').len();
                    assert!(column == 0 || whole + part.len() <= 4, "{shown}");
                }
                let point = shown.find(['.', BLANKS[1]]).unwrap_or(shown.len());
                let found = shown[point..].chars().count();
                assert_eq!(
                    *decimals[column].get_or_insert(found),
                    found,
                    "{}",
                    text(table)
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 200, "{seen}");
}

/// Blanks as wide as a digit and as a point.
const BLANKS: [char; 2] = ['\u{2007}', '\u{2008}'];

#[test]
fn a_heat_map_has_a_scale() {
    let page = sample::open().to_html();
    let document = parse(&page);
    let heat = by_id(&document, "step-1-heat");
    let scales: Vec<_> = heat
        .descendants()
        .filter(|node| node.attribute("class") == Some("shades"))
        .collect();
    assert_eq!(scales.len(), 2, "one in each drawing");
    for scale in scales {
        assert_eq!(count(scale, "rect"), 6);
        assert!(text(scale).contains("800 messages/s"), "{}", text(scale));
    }
}

#[test]
fn tiny_figures_have_words() {
    let mut report = sample::open();
    let step = &mut report.steps[0];
    (step.expected_received, step.lost, step.unconfirmed) = (100_000_000, 1, 0);
    let detail = &mut step.detail;
    detail.slo.limits.loss_pct = Some(1.0);
    for second in &mut detail.series {
        second.heat.truncate(1);
        second.heat[0].1 = 1;
    }
    let page = report.to_html();
    let document = parse(&page);
    let limits = text(by_id(&document, "slo"));
    assert!(limits.contains("loss ≤ 1 %under 0.001 %"), "{limits}");
    let heat = text(by_id(&document, "step-1-heat"));
    assert!(heat.contains("under 0.01"), "{heat}");
    report.steps[0].lost = 0;
    for step in &mut report.steps {
        step.detail.cost.steal_pct = Some(0.0);
    }
    let page = report.to_html();
    let document = parse(&page);
    let limits = text(by_id(&document, "slo"));
    assert!(limits.contains("loss ≤ 1 %none"), "{limits}");
    let processor = text(by_id(&document, "cost"));
    assert!(!processor.contains("0.0000"), "{processor}");
    assert!(processor.contains("none"), "{processor}");
}

#[test]
fn steps_and_limits_lead_to_the_steps() {
    let page = sample::open().to_html();
    let document = parse(&page);
    for (id, links) in [("overview", 3), ("slo", 6)] {
        let table = by_id(&document, id);
        let found = table.descendants().filter(|node| {
            node.attribute("href")
                .is_some_and(|href| href.starts_with("#step-"))
        });
        assert_eq!(found.count(), links, "{id}");
    }
}

#[test]
fn the_last_part_of_a_second_is_not_drawn_as_a_fall() {
    let mut report = sample::open();
    let detail = &mut report.steps[0].detail;
    // Ten whole seconds, then a part in which sending ended and little arrived.
    let last = detail.series.last_mut().unwrap();
    (last.at_secs, last.secs) = (10.4, 0.4);
    (last.sent, last.received, last.p99_ms) = (20, Some(30), Some(0.1));
    let page = report.to_html();
    check(&page);
    let document = parse(&page);
    for id in ["step-1-rate", "step-1-latency"] {
        let figure = by_id(&document, id);
        let said = text(figure);
        assert!(
            said.contains("The part of a second at the end is in the table only"),
            "{said}"
        );
        assert!(said.contains("10.4 s"), "{said}");
        let lines = figure
            .descendants()
            .filter(|node| node.has_tag_name("polyline"));
        for line in lines {
            let points = line.attribute("points").unwrap();
            assert!(points.split(' ').count() <= 10, "{points}");
        }
    }
    // Also where the last second is whole, all lines end with the sending.
    let whole = sample::open().to_html();
    let whole = parse(&whole);
    let rate = by_id(&whole, "step-1-rate");
    let points: Vec<usize> = rate
        .descendants()
        .filter_map(|node| node.attribute("points"))
        .map(|points| points.split(' ').count())
        .collect();
    assert_eq!(points, [10; 6]);
}

#[test]
fn the_environment_tells_memory_virtualisation_and_command() {
    let page = sample::open().to_html();
    let said = text(by_id(&parse(&page), "environment"));
    for part in [
        "memory8.0 GiB",
        "virtualisationvirtual machine (Maker)",
        "command linetidewire load 'a <scenario>.toml'",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let mut older = sample::failed();
    older.env.memory_bytes = None;
    let page = older.to_html();
    assert!(text(by_id(&parse(&page), "environment")).contains("memorynot recorded"));
}
