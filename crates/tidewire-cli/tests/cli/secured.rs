//! Load tests of servers with TLS and tokens: the flags, the keys of a scenario, and what a run says of its mistakes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::identity::write_secret;
use crate::process::{Process, command};

/// A directory with certificates, the tokens of three agents, and a server that knows them.
struct Secured {
    directory: TempDir,
    address: String,
    _server: Process,
}

impl Secured {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| path(&directory, name);
        assert!(
            run(command(&["cert", "dev", "--out", &at("c")]))
                .status
                .success()
        );
        let mut tokens = String::new();
        for name in ["a", "b", "c"] {
            let made = run(command(&["token", "new", name, "--file", &at("hashes")]));
            tokens += &String::from_utf8(made.stdout).unwrap();
        }
        write_secret(at("tokens"), tokens);
        let flags = [
            "--app",
            "pubsub",
            "--tls-cert",
            &at("c/server.pem"),
            "--tls-key",
            &at("c/server.key"),
            "--auth-tokens",
            &at("hashes"),
        ];
        let (server, address) = Process::server_at("tls://127.0.0.1:0", &flags);
        Self {
            directory,
            address,
            _server: server,
        }
    }

    fn path(&self, name: &str) -> String {
        path(&self.directory, name)
    }

    /// Writes a scenario with these keys of the file, and returns its path.
    fn scenario(&self, keys: &str) -> String {
        let file = self.path("scenario.toml");
        fs::write(&file, scenario(&self.address, keys)).unwrap();
        file
    }

    fn load(&self, keys: &str, flags: &[&str]) -> Command {
        let mut command = command(&["load", &self.scenario(keys), "--plain"]);
        command.args(["--out", &self.path("report")]).args(flags);
        command
    }
}

fn scenario(target: &str, keys: &str) -> String {
    format!(
        "version = 2\ntarget = \"{target}\"\n{keys}\n[guard]\non_violation = \"warn\"\n[[steps]]\nname = \"tiny\"\n\
         pattern = \"pubsub\"\nconcurrency = 3\nduration_secs = 0.3\nwarmup_secs = 0\nthink_time_ms = [10, 20]\n"
    )
}

fn path(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

/// Checks that a run passed: everything that was offered arrived. Returns how it was encrypted.
fn encryption_of_passed(output: &Output, report: &Path) -> Option<String> {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = fs::read(report.join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    let step = &report["steps"][0];
    assert!(step["total_sent"].as_u64().unwrap() > 0);
    assert_eq!(step["total_received"], step["expected_received"]);
    step["server"]["encryption"].as_str().map(str::to_owned)
}

/// Checks that a run passed over TLS.
fn assert_passed(output: &Output, report: &Path) {
    let encryption = encryption_of_passed(output, report).unwrap();
    assert!(encryption.starts_with("TLSv1.3 TLS13_"), "{encryption}");
}

#[test]
fn a_load_test_takes_flags_keys_and_standard_input() {
    let secured = Secured::start();
    let (ca, tokens) = (secured.path("c/ca.pem"), secured.path("tokens"));
    let report = secured.directory.path().join("report");
    let flags = ["--ca", &ca, "--token-file", &tokens];
    assert_passed(&run(secured.load("", &flags)), &report);
    let keys = format!("ca = \"{ca}\"\ntoken_file = \"{tokens}\"");
    let output = run(secured.load(&keys, &[]));
    assert_passed(&output, &report);
    let mut by_input = secured.load(&keys, &["--token-file", "-", "--repeat", "2"]);
    by_input.stdin(Stdio::from(fs::File::open(&tokens).unwrap()));
    let output = run(by_input);
    assert_passed(&output, &report);
    let text = fs::read_to_string(&tokens).unwrap();
    let shown = format!("{output:?}") + &fs::read_to_string(report.join("report.json")).unwrap();
    for token in text.lines() {
        assert!(!shown.contains(token));
    }
}

#[test]
fn a_search_and_a_sweep_take_them_too() {
    let secured = Secured::start();
    let (ca, tokens) = (secured.path("c/ca.pem"), secured.path("tokens"));
    let (scenario, out) = (secured.scenario(""), secured.path("report"));
    let common = [
        &*scenario,
        "--plain",
        "--out",
        &out,
        "--ca",
        &ca,
        "--token-file",
        &tokens,
    ];
    let levels = ["--concurrency", "1,2,3,4,5,6"];
    let swept = run(command(&[&["sweep"][..], &common, &levels].concat()));
    assert_passed(&swept, &secured.directory.path().join("report"));
    let open = fs::read_to_string(&scenario).unwrap();
    let open = open.replace("think_time_ms = [10, 20]", "model = \"open\"\nrate = 100");
    fs::write(&scenario, open).unwrap();
    let limits = ["--slo", "loss<50%", "--min", "100", "--max", "101"];
    let found = run(command(&[&["search"][..], &common, &limits].concat()));
    assert_passed(&found, &secured.directory.path().join("report"));
}

#[test]
fn a_server_that_is_started_for_the_run_may_have_tls_and_websocket() {
    let directory = tempfile::tempdir().unwrap();
    let (file, out) = (path(&directory, "s.toml"), path(&directory, "report"));
    let temporary = path(&directory, "temporary");
    fs::create_dir(&temporary).unwrap();
    let load = |target: &str, flags: &[&str]| {
        fs::write(&file, scenario(target, "")).unwrap();
        let mut command = command(&["load", &file, "--plain", "--out", &out]);
        command.args(flags).env("TMPDIR", &temporary);
        run(command)
    };
    let cases: [(&str, &[&str]); 4] = [
        ("tls://localhost:0", &[]),
        ("ws://127.0.0.1:0/chat", &[]),
        (
            "tcp://127.0.0.1:1",
            &["--serve", "--target", "wss://localhost:0"],
        ),
        (
            "tcp://127.0.0.1:1",
            &["--serve", "--target", "tls://[::1]:0"],
        ),
    ];
    for (target, flags) in cases {
        let output = load(target, flags);
        match target.starts_with("ws://") {
            true => assert_eq!(encryption_of_passed(&output, Path::new(&out)), None),
            false => assert_passed(&output, Path::new(&out)),
        }
        let left = fs::read_dir(&temporary).unwrap().count();
        assert_eq!(left, 0, "its certificates are removed");
    }
    for flags in [&["--ca", "ca.pem"][..], &["--token-file", "tokens"]] {
        let output = load("tls://127.0.0.1:0", flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("is for a server that runs already"),
            "{stderr}"
        );
    }
}

#[test]
fn each_mistake_ends_the_run_with_its_code_and_remedy() {
    let secured = Secured::start();
    let (ca, tokens) = (secured.path("c/ca.pem"), secured.path("tokens"));
    let wrong = secured.path("wrong");
    write_secret(&wrong, "guessed\n");
    let broken = secured.path("broken");
    write_secret(&broken, "two words\n");
    let plain = secured.address.replace("tls://", "tcp://");
    let mistakes: [(&[&str], i32, &str); 9] = [
        (&["--token-file", &tokens], 3, "--ca FILE"),
        (&["--ca", &ca], 4, "--token-file FILE"),
        (
            &["--ca", &ca, "--token-file", &wrong],
            4,
            "the credentials are wrong",
        ),
        (&["--ca", &ca, "--token-file", &broken], 2, "has a space"),
        (
            &["--ca", &ca, "--token-file", "/nowhere"],
            2,
            "cannot use the token file /nowhere",
        ),
        (
            &["--ca", "/nowhere", "--token-file", &tokens],
            2,
            "check the path",
        ),
        (
            &[
                "--ca",
                &ca,
                "--server-name",
                "elsewhere",
                "--token-file",
                &tokens,
            ],
            3,
            "--server-name NAME",
        ),
        (
            &["--target", &plain, "--token-file", &tokens],
            3,
            "the peer speaks TLS",
        ),
        (
            &["--target", &plain, "--ca", &ca],
            2,
            "nothing would be encrypted",
        ),
    ];
    for (flags, code, text) in mistakes {
        let output = run(secured.load("", flags));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {stderr}");
        assert!(stderr.contains(text), "{flags:?}: {stderr}");
        assert!(!stderr.contains("guessed") && !stderr.contains("two words"));
    }
}
