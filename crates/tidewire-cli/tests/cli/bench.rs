//! `tidewire bench`, and reports of benchmarks: the program `tidewire-bench` does the work.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;
use tidewire_testkit::write_script;

use crate::PROGRAM;
use crate::process::{Ended, Process};

/// A directory with `tidewire` alone, so that no program of an earlier build stands beside it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        // A link needs the file system of the binary.
        let directory = tempfile::tempdir_in(Path::new(PROGRAM).parent().unwrap()).unwrap();
        std::fs::hard_link(PROGRAM, directory.path().join("tidewire")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts it with this PATH.
    fn start(&self, path: &Path, arguments: &[&str]) -> Process {
        let tools = std::env::var_os("PATH").unwrap_or_default();
        let shells = std::env::split_paths(&tools).filter(|it| !it.join("tidewire-bench").exists());
        let path = std::env::join_paths(std::iter::once(path.to_owned()).chain(shells)).unwrap();
        let mut command = Command::new(self.path("tidewire"));
        Process::spawn(command.args(arguments).env("PATH", path))
    }

    fn run(&self, path: &Path, arguments: &[&str]) -> Ended {
        self.start(path, arguments).wait()
    }
}

#[test]
fn the_program_gets_all_arguments_and_its_exit_code_is_returned() {
    let place = Place::new();
    let path = place.path("bin");
    std::fs::create_dir(&path).unwrap();
    write_script(
        path.join("tidewire-bench"),
        "printf '<%s>' path \"$@\"; exit 99",
    );
    for arguments in [
        &["echo", "--row", "16 × 128", "--quick"][..],
        &["--help"],
        &["--list"],
    ] {
        let ended = place.run(&path, &[&["bench"], arguments].concat());
        assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
        assert_eq!(ended.text(), format!("<path><{}>", arguments.join("><")));
    }
    // The program in the same folder belongs to this version, so it is preferred.
    write_script(place.path("tidewire-bench"), "echo beside");
    assert_eq!(place.run(&path, &["bench"]).text(), "beside");
}

#[test]
fn signals_reach_the_program_itself() {
    let place = Place::new();
    // A shell cannot trap SIGINT if its parent ignores it, as that of a job in the background does.
    let script = "trap 'exit 143' TERM; echo ready; read -r line";
    write_script(place.path("tidewire-bench"), script);
    let mut bench = place.start(Path::new("/nowhere"), &["bench"]);
    bench.expect("ready");
    bench.signal(Signal::TERM);
    bench.end_input();
    assert_eq!(bench.wait().status.code(), Some(143));
}

#[test]
fn without_the_program_one_line_says_how_to_get_it() {
    let place = Place::new();
    let json = place.path("bench.json").display().to_string();
    std::fs::write(&json, r#"{"schema_version":1,"suites":[]}"#).unwrap();
    // A file that cannot be run is no program.
    std::fs::write(place.path("tidewire-bench"), "x").unwrap();
    for arguments in [
        &["bench", "echo"][..],
        &["bench", "--help"],
        &["report", &json],
    ] {
        let ended = place.run(Path::new("/nowhere"), arguments);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        let lines = [
            "2: error: there is no tidewire-bench beside this program or in the PATH",
            "2:   remedy: build it in a checkout of Tidewire: `cargo install --path bench/harness`",
        ];
        assert_eq!(ended.transcript, lines, "{arguments:?}");
    }
}

#[test]
fn the_report_of_a_benchmark_is_written_again_by_the_program() {
    let place = Place::new();
    write_script(place.path("tidewire-bench"), "printf '<%s>' \"$@\"");
    let json = place.path("bench.json").display().to_string();
    // A full disk leaves a file like this, which is still no load test.
    for text in [
        r#"{"schema_version":1,"suites":[]}"#,
        r#"{"schema_version":1,"env":{"cpu":"AMD"},"suites":[{"na"#,
    ] {
        std::fs::write(&json, text).unwrap();
        let ended = place.run(Path::new("/nowhere"), &["report", &json, "--out", "again"]);
        assert_eq!(ended.text(), format!("<report><{json}><--out><again>"));
    }
}
