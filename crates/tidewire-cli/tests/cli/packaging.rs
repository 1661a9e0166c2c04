//! The files in `packaging/` use only flags and commands that exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Process, warn};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn files_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_in(&path, found),
            false => found.push(path),
        }
    }
}

/// The words of a text that are flags.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|it: char| it.is_whitespace() || "\"',=`()".contains(it));
    let is_flag = |word: &&str| word.len() > 2 && word.starts_with("--");
    words
        .map(|word| word.trim_end_matches([';', '.', ':']))
        .filter(is_flag)
}

#[test]
fn every_flag_in_the_units_and_the_container_exists() {
    let help = Process::start(&["serve", "--help"]).wait().text();
    let known: Vec<&str> = flags(&help).collect();
    let mut checked = 0;
    let mut files = Vec::new();
    files_in(&packaging().join("systemd"), &mut files);
    files.push(packaging().join("container/compose.yaml"));
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines() {
            for flag in flags(line) {
                checked += 1;
                assert!(known.contains(&flag), "{}: {flag}", file.display());
            }
        }
    }
    assert!(checked > 5, "only {checked} flags were found");
}

/// Regression: the command of the image listened on the loopback of its container, where no client could reach it.
#[test]
fn the_command_of_the_container_starts_a_server_that_others_may_reach() {
    let file = fs::read_to_string(packaging().join("container/Dockerfile")).unwrap();
    let (_, list) = file.split_once("\nCMD ").unwrap();
    let list = list.replace("\\\n", "");
    let words: Vec<String> = serde_json::from_str(list.trim()).unwrap();
    let at = words.iter().position(|word| word == "--bind").unwrap();
    let bind = &words[at + 1];
    let port = bind.strip_prefix("tls://0.0.0.0:").unwrap();
    assert!(file.contains(&format!("\nEXPOSE {port}\n")), "{bind}");
    let folder = tempfile::tempdir().unwrap();
    let secrets = folder.path().display().to_string();
    let settings = packaging().join("../examples/tidewire.toml");
    let here: Vec<String> = words
        .iter()
        .map(|word| match word.as_str() {
            "/etc/tidewire/tidewire.toml" => settings.display().to_string(),
            word if word == bind => "tls://127.0.0.1:0".to_owned(),
            word => word.replace("/run/secrets", &secrets),
        })
        .collect();
    let here: Vec<&str> = here.iter().map(String::as_str).collect();
    // Without its secrets it ends.
    let ended = Process::start(&here).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    let tokens = format!("{secrets}/tokens");
    for make in [
        ["cert", "dev", "--out", &secrets],
        ["token", "new", "ann", &format!("--file={tokens}")],
    ] {
        let made = Process::start(&make).wait();
        assert_eq!(made.status.code(), Some(0), "{}", made.text());
    }
    fs::rename(
        folder.path().join("server.pem"),
        folder.path().join("certificate"),
    )
    .unwrap();
    fs::rename(folder.path().join("server.key"), folder.path().join("key")).unwrap();
    Process::start(&here).expect("listening on tls://127.0.0.1:");
}

#[test]
fn the_service_and_its_socket_fit_together() {
    let read = |name: &str| fs::read_to_string(packaging().join("systemd").join(name)).unwrap();
    let (service, socket) = (read("tidewire.service"), read("tidewire.socket"));
    let values = |text: &str, key: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(key));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(values(&service, "Type="), ["notify"]);
    assert_eq!(values(&service, "ExecReload="), ["/bin/kill -HUP $MAINPID"]);
    // Regression: without /proc/meminfo the server took 1 GiB as the default of its memory limit, on every machine.
    assert!(values(&service, "ProcSubset=").is_empty());
    let address = &values(&socket, "ListenStream=")[0];
    assert!(
        socket.contains(&format!("bind = \"tls://{address}\"")),
        "{socket}"
    );
    assert!(
        values(&socket, "Accept=").is_empty(),
        "one server for all connections"
    );
}

/// Regression: after five failures within 10 s, such as those of a NATS that is away at boot, the unit stayed dead; and
/// a typo in the settings was tried five times.
#[test]
fn the_service_is_started_again_after_failures_that_may_pass() {
    let unit = fs::read_to_string(packaging().join("systemd/tidewire.service")).unwrap();
    for line in [
        "StartLimitIntervalSec=0",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
    ] {
        assert!(unit.lines().any(|it| it == line), "{line}");
    }
    let (head, service) = unit.split_once("[Service]").unwrap();
    assert!(
        head.contains("StartLimitIntervalSec=0"),
        "it is a key of [Unit]"
    );
    assert!(service.contains("RestartPreventExitStatus=2"));
    let reload = fs::read_to_string(packaging().join("systemd/notify-reload.conf")).unwrap();
    assert!(
        reload.contains("[Service]\nType=notify-reload\nExecReload=\n"),
        "{reload}"
    );
}

/// Follows the steps of the README below a folder in place of `/`, and lets systemd verify what they installed. The
/// bug: the steps installed no manual, and the unit refers to it.
#[test]
fn systemd_understands_the_units_after_the_steps_of_the_readme() {
    let Ok(version) = Command::new("systemd-analyze").arg("--version").output() else {
        return warn("no systemd-analyze: the units were NOT verified");
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let version: u32 = version.split_whitespace().nth(1).unwrap().parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display().to_string();
    let readme = fs::read_to_string(packaging().join("README.md")).unwrap();
    let blocks: Vec<&str> = readme
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split_once("```").unwrap().0)
        .collect();
    let block = |word: &str| *blocks.iter().find(|block| block.contains(word)).unwrap();
    let (steps, reload) = (block("usr/bin/tidewire"), block("notify-reload.conf"));
    let binary = env!("CARGO_BIN_EXE_tidewire");
    let mut script = format!("set -e\nmkdir -p {root}/usr/bin {root}/etc/systemd/system\n");
    let reload = if version >= 253 { reload } else { "" };
    for line in steps.lines().chain(reload.lines()) {
        if line.starts_with("systemctl ") {
            continue;
        }
        let line = line.replace("target/dist/tidewire", binary);
        let line = line.replace(" /usr/", &format!(" {root}/usr/"));
        script += &line.replace(" /etc/", &format!(" {root}/etc/"));
        script += "\n";
    }
    let path = format!("{root}/usr/bin:{}", std::env::var("PATH").unwrap());
    let done = Command::new("sh")
        .args(["-c", &script])
        .current_dir(packaging().join(".."))
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    for installed in [
        "usr/share/man/man1/tidewire-serve.1",
        "usr/share/bash-completion/completions/tidewire",
        "etc/tidewire/tidewire.toml",
    ] {
        assert!(folder.path().join(installed).is_file(), "{installed}");
    }
    let units = folder.path().join("etc/systemd/system");
    let (service, socket) = (
        units.join("tidewire.service"),
        units.join("tidewire.socket"),
    );
    let text = fs::read_to_string(&service).unwrap();
    let installed = format!("{root}/usr/bin/tidewire");
    fs::write(&service, text.replace("/usr/bin/tidewire", &installed)).unwrap();
    fs::copy(packaging().join("systemd/tidewire.socket"), &socket).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify
        .arg("verify")
        .env("MANPATH", format!("{root}/usr/share/man"));
    if Command::new("man").arg("--version").output().is_err() {
        verify.arg("--man=no");
    }
    let verified = verify.args([&service, &socket]).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    let about_ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("tidewire"))
        .collect();
    assert!(about_ours.is_empty(), "{said}");
}
