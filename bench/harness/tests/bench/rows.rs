//! Rows and their runs: what is one way, within a process, of our own, stopped, or disturbed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidewire_bench::plan::{Side, Suite};
use tidewire_bench::program::Program;
use tidewire_bench::{Progress, run};
use tidewire_load::environment::Environment;

use crate::{Bench, GOOD, SUITE, Script, error_of, row};

static WITHIN: Suite = Suite {
    rows: |_| {
        let mut row = row("within");
        "inproc".clone_into(&mut row.work.transport);
        let limit = Some(row.work.clone());
        row.peers.clone_from(&limit);
        vec![row.with_limit(limit)]
    },
    ..SUITE
};

#[test]
fn what_is_sent_one_way_is_counted_by_the_server() {
    // Two more with every look, up to 10: of 12 sent, 2 are lost, one of which was dropped.
    let serve = r#"echo '{"ready":"127.0.0.1:1"}'; n=0; while read -r line; do n=$((n + 2)); if [ $n -gt 10 ]; then n=10; fi; echo '{"messages":'$n',"dropped":1}'; done"#;
    let drive = r#"echo '{"started":true}'; echo '{"measured":{"sent":12,"verified":true}}'; cat >/dev/null"#;
    let row = Bench::beside(
        "one-way",
        Script {
            serve,
            drive,
            ..GOOD
        },
    );
    let figures = &row.peers["one-way"].figures;
    assert_eq!((figures.lost, figures.dropped), (4, 2), "in two runs");
    assert_eq!(figures.runs.len(), 2);
    assert!(figures.runs.iter().all(|rate| *rate > Some(0.0)));
    // A server that does not count leaves nobody who knows.
    let row = Bench::beside("one-way", Script { drive, ..GOOD });
    assert!(
        error_of(&row, "one-way").contains("the server does not say how many messages it took")
    );
}

#[test]
fn work_within_one_process_has_no_server() {
    let describe = r#"echo '{"name":"ring","version":"1","offers":[{"suite":"fake","transports":["inproc"]}]}'"#;
    // It drives only the address that stands for none.
    let drive = format!("[ \"$2\" = - ] || exit 9; {}", GOOD.drive);
    let script = Script {
        describe,
        serve: "exit 9",
        drive: &drive,
    };
    let mut bench = Bench::with_peers(&[("ring", script)]);
    bench.options.suites = vec![&WITHIN];
    let report = bench.run();
    let row = &report.suites[0].rows[0];
    assert_eq!(row.peers["ring"].figures.error, None);
    assert_eq!(row.peers["ring"].figures.runs.len(), 2);
    assert_eq!(row.tidewire.server_cpu_ns_per_msg, None);
    assert!(row.tidewire.client_cpu_ns_per_msg.is_some());
}

#[test]
fn memory_is_measured_in_small_pages() {
    static MEMORY: Suite = Suite {
        rows: |_| {
            let mut row = row("sessions").with_limit(None).with_peers(None);
            "memory".clone_into(&mut row.work.suite);
            vec![row]
        },
        ..SUITE
    };
    let mut bench = Bench::with_peers(&[]);
    let serve = format!("[ \"$MIMALLOC_ALLOW_THP\" = 0 ] || exit 9; {}", GOOD.serve);
    bench.own(&Script {
        serve: &serve,
        ..GOOD
    });
    bench.options.suites = vec![&MEMORY];
    let report = bench.run();
    assert!(report.faults().is_empty(), "{:?}", report.faults());
    assert_eq!(report.suites[0].rows[0].tidewire.runs.len(), 2);
}

#[test]
fn a_failure_of_our_own_is_a_fault_of_the_row() {
    let mut bench = Bench::with_peers(&[]);
    let bad = Script {
        serve: "exit 1",
        ..GOOD
    };
    let file = bad.write(bench.directory.path(), "bad");
    bench.options.tidewire = Some(Program::own(&file, Side::Tidewire, "0"));
    let report = bench.run();
    let faults = report.faults();
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].starts_with("fake, only: tidewire failed: the server failed"),
        "{faults:?}"
    );
    assert_eq!(
        report.suites[0].rows[0].limit.as_ref().unwrap().runs.len(),
        2
    );
}

#[test]
fn what_was_measured_before_a_stop_is_kept() {
    let mut bench = Bench::with_peers(&[("rival", GOOD)]);
    bench.options.suites = vec![&SUITE];
    let stop = Arc::clone(&bench.options.stop);
    let report = run(
        &bench.options,
        Environment::detect("0", ""),
        &mut |progress| {
            if let Progress::Run {
                row: "second",
                contender: "tidewire",
                ..
            } = progress
            {
                stop.store(true, Ordering::Relaxed);
            }
        },
    );
    assert!(report.env.interrupted);
    let rows = &report.suites[0].rows;
    assert_eq!(rows[0].peers["rival"].figures.runs.len(), 2);
    assert_eq!(rows[1].limit.as_ref().unwrap().runs.len(), 1);
    assert_eq!(rows[1].tidewire.runs.len(), 0);
    assert!(report.faults().is_empty(), "{:?}", report.faults());
}

#[test]
fn a_run_whose_programs_had_to_wait_for_a_core_is_made_again_and_marked() {
    let mut bench = Bench::with_peers(&[]);
    let core = tidewire_io::affinity::available_cores()[0];
    // Server and driver are put on one core, and both want all of it.
    bench.options.cores = vec![core, core];
    (bench.options.repeat, bench.options.again_max.slow) = (1, 1);
    bench.options.tidewire = None;
    let drive = GOOD.drive.replace(
        "; echo '{\"measured",
        "; n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done; echo '{\"measured",
    );
    let serve = format!("(while :; do :; done) & {}; kill $!", GOOD.serve);
    let greedy = Script {
        serve: &serve,
        drive: &drive,
        ..GOOD
    }
    .write(bench.directory.path(), "greedy");
    bench.options.bare = Program::own(&greedy, Side::Bare, "0");
    let mut again = Vec::new();
    let report = run(
        &bench.options,
        Environment::detect("0", ""),
        &mut |progress| {
            if let Progress::Again { contender, why } = progress {
                again.push(format!("{contender}: {why}"));
            }
        },
    );
    assert_eq!(again.len(), 1, "{again:?}");
    let limit = report.suites[0].rows[0].limit.as_ref().unwrap();
    assert_eq!(limit.runs, [Some(2_000.0)]);
    assert!(limit.marks().contains(&"waited"), "{limit:?}");
    assert!(limit.server_busy_pct > Some(0.0) && limit.client_busy_pct > Some(0.0));
}
