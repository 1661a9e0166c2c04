//! Results as tables and as a page.

use tidewire_testkit::page::{
    Browser, LOOK, by_id, check, check_everywhere, chromium, count, parse, text,
};

use super::*;

#[test]
fn a_row_that_climbs_has_a_table_of_everybody_with_the_highest_first() {
    let mut ours = offered(1_000);
    let mut limit = offered(2_000);
    let mut peer = offered(200);
    for one in [&mut ours, &mut limit] {
        one.tries = vec![tried(true)];
    }
    // Offered the same again, behind the next rate: a round that did not hold.
    let next = Try {
        offered_per_sec: Some(2_000.0),
        ..tried(false)
    };
    peer.tries = vec![tried(true), next.clone(), next, tried(false)];
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
    // No figure counts the loss of a round that did not hold, so the table mentions that round.
    assert_eq!(
        (rows[2][3].as_str(), rows[1][3].as_str()),
        ("1 of 2", "1 of 1")
    );
    let markdown = report.to_markdown();
    assert!(
        markdown.contains("| who | highest rate held |"),
        "{markdown}"
    );
    assert!(report.to_html().contains("highest rate held"));
}

/// The bug: the times of a table had up to seven digits, of which the fourth differs from run to run.
#[test]
fn times_of_messages_have_three_digits() {
    for (us, shown) in [
        (0.5, "0.50"),
        (38.64, "38.6"),
        (999.6, "1000"),
        (1_004.9, "1,000"),
        (12_059.0, "12,100"),
        (3_150_612.0, "3,150,000"),
        (f64::INFINITY, "18,446,744,073,709,551,615"),
        (f64::NAN, "NaN"),
    ] {
        assert_eq!(markdown::time_us(us), shown);
    }
    let mut report = sample();
    let times = report.suites[0].rows[0].tidewire.latency.as_mut().unwrap();
    times.p99_us = 12_059.0;
    assert!(report.to_markdown().contains(", 12,100, "));
    let page = report.to_html();
    assert!(page.contains("12,100") && !page.contains("12,059"));
}

/// The bug: on a telephone the share of the limit was outside the screen, and bars had a second colour without a
/// legend.
#[test]
fn the_share_of_the_limit_stands_first_and_bars_have_one_colour() {
    let page = sample().to_html();
    // The first table is the narrow one.
    let head = page.split("<thead>").nth(1).unwrap();
    let head = head.split("</thead>").next().unwrap();
    let place = |name: &str| head.find(name).unwrap();
    let names = ["row", "of the limit", "Tidewire", "unit"].map(place);
    assert!(names.is_sorted(), "{head}");
    let bars = page.split("id=\"echo-limit\"").nth(1).unwrap();
    let bars = bars.split("</svg>").next().unwrap();
    assert!(bars.contains("s1") && !bars.contains("s2"), "{bars}");
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
fn the_page_explains_its_marks_and_how_a_ratio_is_made() {
    let page = sample().to_html();
    let document = parse(&page);
    let words = text(by_id(&document, "words"));
    for part in [
        "waitedin one of the runs the server or the driver waited for a core",
        "for more than 5 % of the window",
        "stolenthe host took more than 3 %",
        "driver-boundthe driver was 90 % busy or more",
        "the median of the rounds' ratios",
        "It is not the ratio of the two medians",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
}

#[test]
fn the_chart_of_the_limit_has_a_line_at_a_hundred_percent() {
    let page = sample().to_html();
    let document = parse(&page);
    let figure = by_id(&document, "echo-limit");
    let marks = figure
        .descendants()
        .filter(|node| node.attribute("class") == Some("mark"));
    assert_eq!(marks.count(), 2, "one in each drawing");
    let names = figure
        .descendants()
        .filter(|node| node.text() == Some("100 %"));
    assert!(names.count() >= 2);
}

#[test]
fn the_table_of_a_suite_is_narrow_and_its_details_are_folded() {
    let page = sample().to_html();
    let document = parse(&page);
    let suite = by_id(&document, "echo");
    let tables = suite
        .descendants()
        .filter(|node| node.has_tag_name("table"));
    let (folded, open): (Vec<_>, Vec<_>) =
        tables.partition(|table| table.ancestors().any(|node| node.has_tag_name("details")));
    assert_eq!(open.len(), 1);
    let head = open[0]
        .descendants()
        .find(|node| node.has_tag_name("thead"));
    assert_eq!(count(head.unwrap(), "th"), 9);
    let mut folded = folded.into_iter().map(text);
    assert!(folded.any(|one| one.contains("p50, p99, p99.9 µs")));
    let is_folded = |id| {
        let figure = by_id(&document, id);
        figure.ancestors().any(|node| node.has_tag_name("details"))
    };
    assert!(!is_folded("echo-limit"));
    for id in ["echo-contenders-1", "echo-latency", "echo-cost"] {
        assert!(is_folded(id), "{id}");
    }
}

/// Committed results have longer names and larger numbers than a sample.
#[test]
fn the_columns_of_real_results_fit_a_screen_of_1280_pixels() {
    let Some(program) = chromium() else {
        return;
    };
    let results = "../../bench-results/2026-11-22-epyc-2core/bench/full/bench.json";
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(results);
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("bench.html");
    std::fs::write(&page, BenchReport::read(&results).unwrap().to_html()).unwrap();
    let mut browser = Browser::start(&program, &directory.path().join("profile"));
    browser.open(&page, 1_280, "light", "");
    let found = browser.evaluate(LOOK);
    assert_eq!(found["wideTables"], serde_json::json!([]));
    assert_eq!(found["brokenWords"], serde_json::json!([]));
}
