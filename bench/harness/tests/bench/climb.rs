//! Rows that look for the highest rate that each contender holds.

use std::path::Path;
use std::time::Duration;

use tidewire_bench::plan::Suite;
use tidewire_bench::report::RowResult;

use crate::{Bench, GOOD, SUITE, Script, row};

static CLIMBING: Suite = Suite {
    rows: |_| {
        let mut row = row("highest").climbing(&[100.0, 200.0, 400.0, 800.0]);
        row.work.rate_per_sec = 100.0;
        let work = Some(row.work.clone());
        vec![row.with_limit(work.clone()).with_peers(work)]
    },
    ..SUITE
};

/// A driver that delivers what its work asks for up to a rate, and half of anything above it.
fn holding(most: u32) -> String {
    failing_if(&format!("[ $rate -gt {most} ]"))
}

/// A driver that delivers what its work asks for, or half of it where this is true of its `$rate`.
fn failing_if(condition: &str) -> String {
    // Everything before and behind the number is cut off.
    format!(
        "rate=${{3#*rate_per_sec\\\":}}; rate=${{rate%%.*}}; came=$rate; lost=0; \
         if {condition}; then came=$((rate / 2)); lost=$((rate - came)); fi; \
         echo '{{\"started\":true}}'; \
         echo '{{\"measured\":{{\"messages\":'$came',\"seconds\":1,\"verified\":true,\"lost\":'$lost',\"figures\":{{\"offered_per_sec\":'$rate'}}}}}}'; \
         cat >/dev/null"
    )
}

/// Runs the row beside a peer with this driver. Ours hold 400.
fn climb(drive: &str) -> RowResult {
    let mut bench = Bench::with_peers(&[("rival", Script { drive, ..GOOD })]);
    let drive = holding(400);
    bench.own(&Script {
        drive: &drive,
        ..GOOD
    });
    bench.options.suites = vec![&CLIMBING];
    bench.options.timeouts.slack = Duration::from_secs(20);
    bench.options.timeouts.grace = Duration::from_millis(50);
    let mut report = bench.run();
    assert!(report.faults().is_empty(), "{:?}", report.faults());
    assert!(report.to_markdown().contains("what it did not hold"));
    report.suites.remove(0).rows.remove(0)
}

#[test]
fn each_contender_is_measured_at_the_highest_rate_that_it_holds() {
    let row = climb(&holding(200));
    assert_eq!(row.tidewire.runs, [Some(400.0), Some(400.0)]);
    assert_eq!((row.tidewire.lost, row.tidewire.holds), (0, Some(true)));
    assert_eq!(row.limit_ratio, Some(1.0));
    let rival = &row.peers["rival"];
    assert_eq!(rival.figures.runs, [Some(200.0), Some(200.0)]);
    assert_eq!(rival.ratio, Some(2.0));
    let tries = |tries: &[tidewire_bench::Try]| -> Vec<(Option<f64>, bool)> {
        let of = |one: &tidewire_bench::Try| (one.offered_per_sec, one.holds);
        tries.iter().map(of).collect()
    };
    assert_eq!(
        tries(&rival.figures.tries),
        [(100.0, true), (200.0, true), (400.0, false), (400.0, false)]
            .map(|(rate, holds)| (Some(rate), holds))
    );
    assert_eq!(rival.figures.tries[2].lost, 200);
    assert_eq!(tries(&row.tidewire.tries).len(), 5);
}

/// A driver that holds 200, but for its runs with these numbers at that rate, of which the first is on the way up.
fn failing_at_times(directory: &Path, numbers: &str) -> String {
    let runs = directory.join("runs").display().to_string();
    let is_one = format!("case $(wc -l <{runs}) in {numbers}) true;; *) false;; esac");
    failing_if(&format!(
        "[ $rate -gt 200 ] || {{ [ $rate = 200 ] && echo x >>{runs} && {is_one}; }}"
    ))
}

#[test]
fn a_round_that_does_not_hold_is_told_and_the_second_costs_the_rate() {
    let directory = tempfile::tempdir().unwrap();
    let rival = |numbers| {
        let row = climb(&failing_at_times(directory.path(), numbers));
        std::fs::remove_file(directory.path().join("runs")).unwrap();
        row.peers["rival"].figures.clone()
    };
    let once = rival("3");
    assert_eq!(once.runs, [Some(200.0), Some(200.0)]);
    let last = once.tries.last().unwrap();
    assert_eq!((last.offered_per_sec, last.holds), (Some(200.0), false));
    assert_eq!((once.lost, last.lost), (0, 100));
    // With one that held between them.
    let twice = rival("2|4");
    assert_eq!(twice.runs, [Some(100.0), Some(100.0)]);
}

#[test]
fn who_holds_nothing_or_breaks_ends_only_its_own_climb() {
    let row = climb(&holding(50));
    let rival = &row.peers["rival"].figures;
    assert!(rival.runs.is_empty() && rival.tries.len() == 2);
    let error = rival.error.as_deref().unwrap();
    assert!(error.contains("the lowest rate, 100 a second"), "{error}");
    // At 400 it ends instead of answering.
    let breaks = format!(
        "case \"$3\" in *'\"rate_per_sec\":400.0'*) echo 'too much' >&2; exit 4;; esac; {}",
        holding(800)
    );
    let row = climb(&breaks);
    let rival = &row.peers["rival"].figures;
    assert_eq!((rival.runs.len(), &rival.error), (2, &None));
    assert_eq!(rival.median, Some(200.0));
    let errors = rival.tries.iter().filter_map(|one| one.error.as_deref());
    assert_eq!(errors.clone().count(), 2);
    assert!(errors.clone().all(|error| error.contains("too much")));
    assert_eq!(row.tidewire.median, Some(400.0));
}
