//! The benchmark's runner against programs that speak its contract well, badly or not at all.
//!
//! They are scripts of a few lines, which is what a contract for rivals in any language must allow for.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

mod climb;
mod window;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tidewire_load::bench::contract::Work;
use tidewire_load::bench::plan::{Metric, RoleError, RowPlan, Side, Suite};
use tidewire_load::bench::program::{PeerChoice, Program};
use tidewire_load::bench::report::RowResult;
use tidewire_load::bench::stage::Stage;
use tidewire_load::bench::{BenchOptions, BenchReport, Patience, Progress, run};
use tidewire_load::environment::Environment;

static SUITE: Suite = Suite {
    name: "fake",
    about: "what scripts say",
    rows: |_| vec![row("first"), row("second")],
    serve: nobody,
    drive: |_, _, _, _| Ok(()),
};

static ONE_ROW: Suite = Suite {
    rows: |_| vec![row("only")],
    ..SUITE
};

static WITHIN: Suite = Suite {
    rows: |_| {
        let mut row = row("within");
        for work in [Some(&mut row.work), row.limit.as_mut(), row.peers.as_mut()] {
            "inproc".clone_into(&mut work.unwrap().transport);
        }
        vec![row]
    },
    ..SUITE
};

fn nobody(_: Side, _: &Work, _: &mut Stage) -> Result<(), RoleError> {
    Ok(())
}

fn row(id: &str) -> RowPlan {
    let work = Work {
        suite: "fake".to_owned(),
        transport: "tcp".to_owned(),
        ..Work::default()
    };
    RowPlan::new(id, work, Metric::MESSAGES)
}

/// The parts of a good program; a test replaces what it wants to be bad.
#[derive(Clone)]
struct Script<'a> {
    describe: &'a str,
    serve: &'a str,
    drive: &'a str,
}

const GOOD: Script<'static> = Script {
    describe: r#"echo '{"name":"'$(basename $0)'","version":"1.0","offers":[{"suite":"fake","transports":["tcp"]}]}'"#,
    serve: r#"echo '{"ready":"127.0.0.1:1"}'; while read -r line; do echo '{}'; done"#,
    drive: r#"echo '{"started":true}'; echo '{"measured":{"messages":1000,"seconds":0.5,"verified":true}}'; cat >/dev/null"#,
};

impl Script<'_> {
    fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        let Script {
            describe,
            serve,
            drive,
        } = self;
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = bench-program ]; then shift 2; fi\ncase \"$1\" in\n\
             describe) {describe};;\nserve) {serve};;\ndrive) {drive};;\nesac\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// Good programs of our own, and these peers.
struct Bench {
    directory: TempDir,
    options: BenchOptions,
}

impl Bench {
    fn with_peers(peers: &[(&str, Script<'_>)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let own = GOOD.write(directory.path(), "own");
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for (name, script) in peers {
            script.write(&bin, name);
        }
        let (peers, errors) = Program::peers(&bin, &PeerChoice::All);
        let options = BenchOptions {
            suites: vec![&ONE_ROW],
            quick: true,
            row_texts: Vec::new(),
            measure_ms: None,
            repeat: 2,
            bare: Program::own(&own, Side::Bare, "0"),
            tidewire: Some(Program::own(&own, Side::Tidewire, "0")),
            peers,
            missing_peers: errors.iter().map(ToString::to_string).collect(),
            cores: Vec::new(),
            patience: Patience {
                quiet: Duration::from_millis(50),
                // However busy the machine is.
                end: Duration::from_secs(60),
                grace: Duration::from_secs(60),
                ..Patience::default()
            },
            again_max: 0,
            stop: Arc::new(AtomicBool::new(false)),
        };
        Self { directory, options }
    }

    /// Lets this script play both programs of our own.
    fn own(&mut self, script: &Script<'_>) {
        let own = script.write(self.directory.path(), "own-2");
        self.options.bare = Program::own(&own, Side::Bare, "0");
        self.options.tidewire = Some(Program::own(&own, Side::Tidewire, "0"));
    }

    fn run(&self) -> BenchReport {
        run(&self.options, Environment::detect("0", ""), &mut |_| {})
    }

    /// Runs beside a peer whose script is this, and lets nothing of it touch the others.
    fn beside(name: &str, script: Script<'_>) -> RowResult {
        let mut bench = Self::with_peers(&[(name, script), ("zz-good", GOOD)]);
        if name == "stays" {
            bench.options.patience.end = Duration::from_millis(200);
        }
        if name == "silent" {
            bench.options.patience.ready = Duration::from_millis(500);
            bench
                .options
                .peers
                .retain(|peer| peer.description.name == "silent");
            bench.options.tidewire = None;
            bench.options.suites = vec![&ONLY_PEERS];
        }
        let mut report = bench.run();
        assert!(report.faults().is_empty(), "{:?}", report.faults());
        let row = report.suites.remove(0).rows.remove(0);
        if name != "silent" {
            assert_eq!(row.tidewire.runs, [Some(2_000.0), Some(2_000.0)]);
            assert_eq!(
                row.limit.as_ref().unwrap().runs,
                [Some(2_000.0), Some(2_000.0)]
            );
            assert_eq!(
                row.peers["zz-good"].figures.runs,
                [Some(2_000.0), Some(2_000.0)]
            );
            assert_eq!(row.peers["zz-good"].ratio, Some(1.0));
        }
        row
    }
}

static ONLY_PEERS: Suite = Suite {
    rows: |_| vec![row("peers").with_limit(None)],
    ..SUITE
};

fn error_of(row: &RowResult, peer: &str) -> String {
    let figures = &row.peers[peer].figures;
    assert!(figures.runs.is_empty() && figures.median.is_none());
    figures.error.clone().unwrap()
}

#[test]
fn good_programs_are_measured_in_turns() {
    let bench = Bench::with_peers(&[("rival", GOOD)]);
    let mut order = Vec::new();
    let report = run(
        &bench.options,
        Environment::detect("0", ""),
        &mut |progress| {
            if let Progress::Run {
                contender, round, ..
            } = progress
            {
                order.push(format!("{contender} {round}"));
            }
        },
    );
    assert_eq!(
        order,
        [
            "limit 1",
            "tidewire 1",
            "rival 1",
            "rival 2",
            "tidewire 2",
            "limit 2"
        ]
    );
    let row = &report.suites[0].rows[0];
    assert_eq!(row.limit_ratio, Some(1.0));
    assert!(row.tidewire.verified && row.tidewire.lost == 0);
    assert!(row.tidewire.rss_bytes_max.unwrap() > 0);
    assert_eq!(row.peers["rival"].version, "1.0");
    assert!(!report.env.interrupted);
}

#[test]
fn what_is_wrong_with_a_peer_is_said_and_touches_nobody_else() {
    let cases = [
        (
            "garbled",
            Script {
                serve: "echo ready",
                ..GOOD
            },
            "the contract does not know: \"ready",
        ),
        (
            "dies",
            Script {
                serve: "echo 'no license' >&2; exit 7",
                ..GOOD
            },
            "no license",
        ),
        (
            "dies",
            Script {
                drive: "echo '{\"started\":true}'; exit 3",
                ..GOOD
            },
            "exit status: 3",
        ),
        (
            "hasty",
            Script {
                drive: "echo '{\"measured\":{}}'; cat >/dev/null",
                ..GOOD
            },
            "said \"measured\" where started",
        ),
        (
            "mute",
            Script {
                serve: "echo '{\"ready\":\"x\"}'",
                ..GOOD
            },
            "ended too early",
        ),
        (
            "fails-late",
            Script {
                drive: "echo '{\"started\":true}'; echo '{\"measured\":{}}'; cat >/dev/null; exit 5",
                ..GOOD
            },
            "exit status: 5",
        ),
        (
            "silent",
            Script {
                serve: "cat",
                ..GOOD
            },
            "said nothing for",
        ),
    ];
    for (name, script, expected) in cases {
        let row = Bench::beside(name, script);
        let error = error_of(&row, name);
        assert!(error.contains(expected), "{name}: {error}");
        assert!(error.contains("to see it alone: "), "{name}: {error}");
        assert!(
            error.contains("/bin/") && error.contains("\"suite\":\"fake\""),
            "{error}"
        );
    }
}

#[test]
fn a_peer_that_loses_messages_is_marked_and_its_figures_stay() {
    let drive = r#"echo '{"started":true}'; echo '{"measured":{"messages":10,"seconds":1,"verified":true,"lost":3,"dropped":1}}'; cat >/dev/null"#;
    let row = Bench::beside("lossy", Script { drive, ..GOOD });
    let lossy = &row.peers["lossy"];
    assert_eq!((lossy.figures.lost, lossy.figures.dropped), (6, 2));
    assert!(!lossy.figures.verified && lossy.ratio == Some(200.0));
    assert!(!lossy.drops);
}

#[test]
fn a_mode_that_drops_in_silence_stands_apart() {
    let describe = r#"echo '{"name":"nn","version":"1","offers":[{"suite":"fake","transports":["tcp"]},{"suite":"fake","transports":["tcp"],"mode":"drops"},{"suite":"fake","transports":["udp"],"mode":"other"}]}'"#;
    let row = Bench::beside("nn", Script { describe, ..GOOD });
    assert!(row.peers["nn (drops)"].drops && !row.peers["nn"].drops);
    assert_eq!(row.peers.len(), 3, "{:?}", row.peers.keys());
}

#[test]
fn a_peer_that_does_not_end_is_ended_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("children");
    let drive = format!(
        "{}; sleep 1000 & echo $! >>{}; wait",
        GOOD.drive,
        file.display()
    );
    // The shell that drives ignores the end of its input and waits for its child.
    let drive = drive.replace("; cat >/dev/null", "");
    let row = Bench::beside(
        "stays",
        Script {
            drive: &drive,
            ..GOOD
        },
    );
    assert_eq!(row.peers["stays"].figures.runs.len(), 2);
    let children = fs::read_to_string(&file).unwrap();
    assert_eq!(children.lines().count(), 2);
    for child in children.lines() {
        // Killed, though whoever reaps orphans here may not have come by yet.
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
}

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
fn peers_that_cannot_take_part_are_left_out_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let (peers, errors) = Program::peers(&missing, &PeerChoice::All);
    assert!(peers.is_empty());
    assert!(
        errors[0].to_string().contains("peers/setup"),
        "{}",
        errors[0]
    );
    GOOD.write(directory.path(), "good");
    let garbled = Script {
        describe: "echo hello",
        ..GOOD
    };
    garbled.write(directory.path(), "garbled");
    fs::write(directory.path().join("not-executable"), "x").unwrap();
    let names = |choice| -> (Vec<String>, Vec<String>) {
        let (peers, errors) = Program::peers(directory.path(), &choice);
        (
            peers
                .into_iter()
                .map(|peer| peer.description.name)
                .collect(),
            errors.iter().map(ToString::to_string).collect(),
        )
    };
    let (peers, errors) = names(PeerChoice::All);
    assert_eq!(peers, ["good"]);
    assert_eq!(errors.len(), 2);
    assert!(errors[0].contains("`garbled`") && errors[1].contains("`not-executable`"));
    let named = vec!["good".to_owned(), "nobody".to_owned()];
    let (peers, errors) = names(PeerChoice::Named(named));
    assert_eq!(peers, ["good"]);
    assert!(errors[0].contains("`nobody`"), "{errors:?}");
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

/// The directory that each program was given for its files, and what it said when its input ended.
fn told(file: &Path) -> (Vec<PathBuf>, usize) {
    let text = fs::read_to_string(file).unwrap();
    let (ends, directories): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| *line == "ended");
    (
        directories.into_iter().map(PathBuf::from).collect(),
        ends.len(),
    )
}

#[test]
fn no_file_of_a_run_stays_even_if_the_run_fails() {
    let directory = tempfile::tempdir().unwrap();
    let told_in = directory.path().join("told");
    let leave = format!(
        "echo \"$TMPDIR\" >>{0}; echo x >\"$TMPDIR/$1\"",
        told_in.display()
    );
    let serve = format!(
        "{leave}; {}; echo ended >>{}",
        GOOD.serve,
        told_in.display()
    );
    let drive = format!("{leave}; {}", GOOD.drive);
    let good = Script {
        serve: &serve,
        drive: &drive,
        ..GOOD
    };
    let row = Bench::beside("tidy", good.clone());
    assert_eq!(row.peers["tidy"].figures.runs.len(), 2);
    let (directories, ends) = told(&told_in);
    assert_eq!((directories.len(), ends), (4, 2));
    assert_eq!(
        directories[0], directories[1],
        "both parts of a run share one"
    );
    assert_ne!(directories[0], directories[2], "each run has its own");
    fs::remove_file(&told_in).unwrap();
    let drive = format!("{leave}; exit 3");
    let row = Bench::beside(
        "untidy",
        Script {
            drive: &drive,
            ..good
        },
    );
    assert!(error_of(&row, "untidy").contains("exit status: 3"));
    let (more, ends) = told(&told_in);
    assert_eq!((more.len(), ends), (2, 1), "the server could end by itself");
    for one in directories.iter().chain(&more) {
        assert!(one.is_absolute() && !one.exists(), "{}", one.display());
    }
}

#[test]
fn no_file_of_a_run_stays_when_it_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name).display().to_string();
    let (told_in, started) = (path("told"), path("started"));
    let made = std::process::Command::new("mkfifo").arg(&started).status();
    assert!(made.unwrap().success());
    let leave = format!("echo \"$TMPDIR\" >>{told_in}; echo x >\"$TMPDIR/$1\"");
    let drive = format!(
        "{leave}; echo '{{\"started\":true}}'; echo x >{started}; cat >/dev/null; echo ended >>{told_in}"
    );
    let mut bench = Bench::with_peers(&[]);
    let never_measures = Script {
        drive: &drive,
        ..GOOD
    }
    .write(bench.directory.path(), "own-2");
    bench.options.bare = Program::own(&never_measures, Side::Bare, "0");
    let stop = Arc::clone(&bench.options.stop);
    // Returns when the driver has written into the pipe.
    let user = std::thread::spawn(move || {
        fs::read(started).unwrap();
        stop.store(true, Ordering::Relaxed);
    });
    let report = bench.run();
    user.join().unwrap();
    assert!(report.env.interrupted && report.suites.is_empty());
    let (directories, ends) = told(Path::new(&told_in));
    assert_eq!(
        (directories.len(), ends),
        (1, 1),
        "the driver could end by itself"
    );
    assert!(!directories[0].exists(), "{}", directories[0].display());
}

#[test]
fn a_run_whose_programs_had_to_wait_for_a_core_is_made_again_and_marked() {
    let mut bench = Bench::with_peers(&[]);
    let core = tidewire::io::affinity::available_cores()[0];
    // Server and driver are put on one core, and both want all of it.
    bench.options.cores = vec![core, core];
    (bench.options.repeat, bench.options.again_max) = (1, 1);
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

#[test]
fn a_peer_may_be_driven_by_the_bare_client() {
    let describe = r#"echo '{"name":"served","version":"1","offers":[{"suite":"fake","transports":["tcp"],"driver":"redis"}]}'"#;
    let script = Script {
        describe,
        drive: "exit 9",
        ..GOOD
    };
    let mut bench = Bench::with_peers(&[("served", script)]);
    // Our driver is told whose protocol it is to speak.
    let drive = format!(
        "case \"$3\" in *'\"codec\":\"redis\"'*) n=3;; *) n=1;; esac; {}",
        GOOD.drive.replace("1000", "'$n'000")
    );
    let own = Script {
        drive: &drive,
        ..GOOD
    }
    .write(bench.directory.path(), "own-2");
    bench.options.bare = Program::own(&own, Side::Bare, "0");
    let report = bench.run();
    let row = &report.suites[0].rows[0];
    assert_eq!(
        row.peers["served"].figures.runs,
        [Some(6_000.0), Some(6_000.0)]
    );
    assert_eq!(
        row.limit.as_ref().unwrap().runs,
        [Some(2_000.0), Some(2_000.0)]
    );
}
