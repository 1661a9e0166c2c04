//! The benchmark's runner against programs that speak its contract well, badly or not at all.
//!
//! They are scripts of a few lines, which is what a contract for rivals in any language must allow for.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

mod climb;
mod files;
mod peers;
mod rows;
mod window;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tempfile::TempDir;
use tidewire_bench::contract::Work;
use tidewire_bench::plan::{Metric, RoleError, RowPlan, Side, Suite};
use tidewire_bench::program::{PeerChoice, Program};
use tidewire_bench::report::RowResult;
use tidewire_bench::stage::Stage;
use tidewire_bench::{AgainMax, BenchOptions, BenchReport, Progress, Timeouts, run};
use tidewire_load::environment::Environment;
use tidewire_testkit::write_script;

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
        let Script {
            describe,
            serve,
            drive,
        } = self;
        let text = format!(
            "if [ \"$1\" = program ]; then shift 2; fi\ncase \"$1\" in\n\
             describe) {describe};;\nserve) {serve};;\ndrive) {drive};;\nesac\n"
        );
        write_script(directory.join(name), &text)
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
            timeouts: Timeouts {
                quiet: Duration::from_millis(50),
                // However busy the machine is.
                end: Duration::from_secs(60),
                grace: Duration::from_secs(60),
                ..Timeouts::default()
            },
            again_max: AgainMax::default(),
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
            bench.options.timeouts.end = Duration::from_millis(200);
        }
        if name == "silent" {
            bench.options.timeouts.ready = Duration::from_millis(500);
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
