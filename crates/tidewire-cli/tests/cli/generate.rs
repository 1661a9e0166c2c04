//! Completions and manual pages, as a package builds them.

use std::process::Command;

use crate::process::{Process, command};

#[test]
fn every_shell_gets_completions_of_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = command(&["completions", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let script = String::from_utf8(output.stdout).unwrap();
        for word in [
            "serve",
            "call",
            "slow-subscriber",
            "log-lossy",
            "completions",
        ] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
    let ended = Process::start(&["completions", "command.com"]).wait();
    assert_eq!(ended.status.code(), Some(2));
}

/// Bash is available where this project is built. It must accept the script and know the commands.
#[test]
fn bash_completes_with_them() {
    let script = command(&["completions", "bash"]).output().unwrap().stdout;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tidewire.bash");
    std::fs::write(&path, script).unwrap();
    let output = Command::new("bash")
        .arg("-c")
        .arg(
            "source \"$0\"; COMP_WORDS=(tidewire ser); COMP_CWORD=1; _tidewire tidewire ser tidewire; \
             echo \"${COMPREPLY[@]}\"",
        )
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "serve\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn there_is_a_page_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man");
    let out = pages.display().to_string();
    // The second time they exist already.
    for _ in 0..2 {
        let ended = Process::start(&["man", "--out", &out]).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        assert_eq!(ended.text(), format!("21 pages in {out}"));
    }
    for name in [
        "",
        "-serve",
        "-chat",
        "-call",
        "-pub",
        "-sub",
        "-load",
        "-search",
        "-sweep",
        "-compare",
        "-ab",
        "-bench",
        "-doctor",
        "-merge",
        "-report",
        "-top",
        "-check",
        "-token",
        "-cert",
        "-completions",
        "-man",
    ] {
        let page = std::fs::read_to_string(pages.join(format!("tidewire{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    let serve = std::fs::read_to_string(pages.join("tidewire-serve.1")).unwrap();
    assert!(
        serve.contains("slow\\-subscriber") && serve.contains("Exit codes"),
        "{serve}"
    );
    let ended = Process::start(&["man", "--out", "/dev/null/pages"]).wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        ended
            .text()
            .contains("cannot write the pages to /dev/null/pages")
    );
}
