//! A real `nats-server` for a test.
//!
//! Without the program the tests print a reason and pass. `bench/peers/setup nats` builds it. `NATS_SERVER` names
//! another program, and an empty value makes a missing program a failure.

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::wait::wait_until;

/// A `nats-server` on a port of loopback, which ends with the test.
#[derive(Debug)]
pub struct NatsServer {
    program: PathBuf,
    port: u16,
    directory: TempDir,
    process: Option<Child>,
}

impl NatsServer {
    /// Starts a server with this configuration beside the port; `None` if there is no program.
    #[must_use]
    pub fn start(configuration: &str) -> Option<Self> {
        let program = find()?;
        let directory = TempDir::new().expect("a temporary directory");
        fs::write(directory.path().join("nats.conf"), configuration).expect("a written file");
        let mut server = Self {
            program,
            port: free_port(),
            directory,
            process: None,
        };
        server.start_again();
        Some(server)
    }

    /// Finds the program; `None` if there is none.
    #[must_use]
    pub fn program() -> Option<PathBuf> {
        find()
    }

    /// The server's port, which stays the same.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's address for clients without a user.
    #[must_use]
    pub fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Starts a server with JetStream, and this configuration beside it; `None` if there is no program.
    #[must_use]
    pub fn start_with_streams(configuration: &str) -> Option<Self> {
        // A relative path is below the server's directory.
        let streams = "jetstream { store_dir: streams, max_file_store: 1GB }";
        Self::start(&format!("{streams}\n{configuration}"))
    }

    /// Kills it, and removes its streams.
    pub fn lose_streams(&mut self) {
        self.kill();
        // There may be none.
        let _ = fs::remove_dir_all(self.directory.path().join("streams"));
    }

    /// Keeps a copy of its streams. It is killed.
    pub fn save_streams(&self) {
        self.copy_streams("streams", "saved");
    }

    /// Replaces its streams by the copy, as an operator does with a backup. It is killed.
    pub fn restore_streams(&self) {
        self.copy_streams("saved", "streams");
    }

    fn copy_streams(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| self.directory.path().join(name));
        // There may be none.
        let _ = fs::remove_dir_all(&to);
        let status = Command::new("cp").arg("-r").args([from, to]).status();
        assert!(status.expect("the program cp").success());
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a running server");
            process.wait().expect("a server that ends");
        }
    }

    /// Stops its process without ending it, as an overloaded machine does, or lets it continue.
    pub fn pause(&self, is_paused: bool) {
        let process = self.process.as_ref().expect("a running server");
        let signal = if is_paused { "-STOP" } else { "-CONT" };
        let status = Command::new("kill")
            .args([signal, &process.id().to_string()])
            .status();
        assert!(status.expect("the program kill").success());
    }

    /// Changes its configuration, for the next start.
    pub fn configure(&self, configuration: &str) {
        self.file("nats.conf", configuration);
    }

    /// Writes a file into its directory, where a relative path of the configuration finds it. Returns the path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).expect("a written file");
        path
    }

    /// Starts it again after [`kill`](Self::kill).
    pub fn start_again(&mut self) {
        let process = Command::new(&self.program)
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-c"])
            .arg(self.directory.path().join("nats.conf"))
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server starts");
        self.process = Some(process);
        wait_until("nats-server listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Finds the program, or says why the test is skipped.
fn find() -> Option<PathBuf> {
    let chosen = env::var_os("NATS_SERVER");
    if let Some(chosen) = chosen.as_ref().filter(|it| !it.is_empty()) {
        return Some(chosen.into());
    }
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers/tools/nats-server");
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("nats-server"));
    let found = [built].into_iter().chain(on_path).find(|it| it.is_file());
    let advice = "there is no nats-server; build it with bench/peers/setup nats";
    assert!(found.is_some() || chosen.is_none(), "{advice}");
    if found.is_none() {
        // The test passes, so its output is the only place that says it.
        #[expect(clippy::print_stdout, reason = "the reason of a skipped test")]
        {
            println!("skipped: {advice}");
        }
    }
    // The program runs in another directory.
    found.map(|it| it.canonicalize().unwrap_or(it))
}

/// Returns a free port that no outgoing connection gets. A connection from a port of the system's range to the same
/// port would connect to itself while the server is down.
fn free_port() -> u16 {
    wait_until("there is a free port", || {
        let port = fastrand::u16(10_000..30_000);
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    })
}
