//! Results as tables and as a page.

use tidewire_testkit::page::{by_id, check, check_everywhere, parse, text};

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
