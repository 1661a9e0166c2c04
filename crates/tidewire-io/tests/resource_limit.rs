//! The memory of a process with a resource limit. The limit belongs to the process, so the test runs itself in a shell.

use std::io::Write;
use std::process::Command;

use tidewire_io::memory::memory_bytes;

/// Regression: the default memory limit of a server did not know `ulimit -v`, and two clients made an allocation fail,
/// which ends the process.
#[test]
fn a_resource_limit_of_the_process_bounds_its_memory() {
    const INSIDE: &str = "TIDEWIRE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let mut out = std::io::stdout();
        return writeln!(out, "memory={}", memory_bytes().unwrap()).unwrap();
    }
    let whole = memory_bytes().unwrap();
    for flag in ["-v", "-d"] {
        let kibibytes = whole / 1024 / 2;
        let output = Command::new("sh")
            .args(["-c", "ulimit $1 $2 && exec \"$0\" --nocapture"])
            .arg(std::env::current_exe().unwrap())
            .args([flag, &kibibytes.to_string()])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let expected = format!("memory={}", kibibytes * 1024);
        assert!(text.contains(&expected), "{flag}: {text}");
    }
}
