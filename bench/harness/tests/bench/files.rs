//! The temporary files of a run, which never stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidewire_bench::plan::Side;
use tidewire_bench::program::Program;

use crate::{Bench, GOOD, Script, error_of};

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
