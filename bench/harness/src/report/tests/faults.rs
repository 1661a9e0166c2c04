//! Faults that make a benchmark fail, and disturbances that are only marked.

use super::*;

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
    let mut allowing = plan(Metric::MESSAGES);
    allowing.may_drop = true;
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
