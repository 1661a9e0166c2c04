//! `serve --config`: the file, the environment and the command line, in ascending order of precedence.

use rustix::process::Signal;

use crate::process::{Ended, Process, command};

struct File {
    directory: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("tidewire.toml"), text).unwrap();
        Self { directory }
    }

    fn path(&self) -> String {
        self.directory
            .path()
            .join("tidewire.toml")
            .display()
            .to_string()
    }

    fn refused(&self) -> Ended {
        let ended = Process::start(&["serve", "--config", &self.path()]).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        ended
    }
}

#[test]
fn a_server_has_the_settings_of_its_file() {
    let file = File::new(
        "app = \"rpc\"\nbind = [\"tcp://127.0.0.1:0\", \"tcp://127.0.0.1:0\"]\ncodec = \"uvrpc\"\nlanes = 2\n\
         poller = \"poll\"\nlog_level = \"off\"\n",
    );
    let mut server = Process::start(&["serve", "--config", &file.path()]);
    let first = server.expect("listening on tcp://127.0.0.1:");
    server.expect("listening on tcp://127.0.0.1:");
    server.expect("ready codec=uvrpc lanes=2 poller=poll");
    let address = first.trim_start_matches("listening on ");
    let ended = Process::start(&["call", address, "add", "1 2", "--codec", "uvrpc"]).wait();
    assert_eq!(ended.text(), "3");
    server.signal(Signal::INT);
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0));
    assert!(
        !ended.text().contains("draining"),
        "the log is off: {}",
        ended.text()
    );
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let file = File::new(
        "bind = \"ipc:///nowhere/at/all.sock\"\npoller = \"select\"\nlanes = 3\nlog_level = \"off\"\n",
    );
    let path = file.path();
    let mut server = Process::spawn(
        command(&["serve", "--config", &path, "--bind", "tcp://127.0.0.1:0"])
            .env("TIDEWIRE_POLLER", "poll")
            .env("RUST_LOG", "debug"),
    );
    server.expect("ready codec=tw1 lanes=3 poller=poll");
    server.signal(Signal::INT);
    let ended = server.wait();
    assert!(ended.text().contains("DEBUG"), "{}", ended.text());
    let mut server = Process::spawn(
        command(&["serve", "--bind", "tcp://127.0.0.1:0", "--poller", "epoll"])
            .args(["--lanes", "1", "--log-level", "off", "--config", &path])
            .env("TIDEWIRE_POLLER", "poll")
            .env("RUST_LOG", "debug"),
    );
    server.expect("ready codec=tw1 lanes=1 poller=epoll");
    server.signal(Signal::INT);
    let ended = server.wait();
    assert!(!ended.text().contains("DEBUG"), "{}", ended.text());
}

#[test]
fn the_sample_serves() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/tidewire.toml");
    let (mut server, _) = Process::server(&["--config", sample]);
    server.signal(Signal::INT);
    server.expect("served: ");
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn mistakes_end_it_with_file_line_and_key() {
    for (text, told) in [
        (
            "app = \"rpc\"\nslow_subscribr = \"block\"\n",
            ":2: unknown key `slow_subscribr`; did you mean `slow_subscriber`?",
        ),
        (
            "\n\nlanes = \"many\"",
            ":3: `lanes` must be a whole number, but it is the string \"many\"",
        ),
        ("codec = \"xml\"", ":1: `codec`: invalid value 'xml'"),
        ("app = ", ":1: not valid TOML"),
    ] {
        let file = File::new(text);
        let ended = file.refused();
        let expected = format!("2: error: {}{told}", file.path());
        assert!(
            ended.transcript[0].starts_with(&expected),
            "{}",
            ended.text()
        );
    }
    let file = File::new("lanes = 65");
    assert!(file.refused().text().contains("use 1 to 62"));
    let ended = Process::start(&["serve", "--config", "/nowhere/tidewire.toml"]).wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        ended
            .text()
            .contains("cannot read the configuration /nowhere/tidewire.toml")
    );
}
