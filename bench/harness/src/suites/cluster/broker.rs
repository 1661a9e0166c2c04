//! The nats-server between the nodes, which ends with them.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A running nats-server at a port of loopback. Dropping it kills it.
pub(super) struct Broker {
    process: Child,
    address: String,
}

impl Broker {
    /// Starts one, and waits until it takes connections.
    pub(super) fn start() -> io::Result<Self> {
        let Some(program) = program() else {
            let text = "there is no nats-server in the PATH or in bench/peers/tools; `bench/peers/setup nats` makes one";
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        let mut process = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", "-1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = process.stderr.take();
        let mut broker = Self {
            process,
            address: String::new(),
        };
        let mut lines = BufReader::new(output.ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let mut told = String::new();
        while broker.address.is_empty() {
            let Some(line) = lines.next().transpose()? else {
                return Err(io::Error::other(format!("it did not start: {told}")));
            };
            if let Some((_, address)) = line.split_once(LISTENING) {
                broker.address = format!("nats://{}", address.trim());
            }
            told = line;
        }
        // Its log must not fill the pipe.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(broker)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // `kill` fails if the process has ended by itself. `wait` is needed all the same, so that no zombie stays.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program: the one that `NATS_SERVER` names, one in the PATH, or the one that `bench/peers/setup nats` makes.
pub(super) fn program() -> Option<PathBuf> {
    let named = env::var_os("NATS_SERVER").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = env::split_paths(&path).collect();
    let places = directories.into_iter().chain(TOOLS.map(PathBuf::from));
    let mut files = named
        .into_iter()
        .chain(places.map(|it| it.join("nats-server")));
    files.find(|file| file.is_file())
}

/// Where `bench/peers/setup` puts it, from the top of the repository and from this crate.
const TOOLS: [&str; 2] = ["bench/peers/tools", "../peers/tools"];

/// The text before its address in the log of nats-server.
const LISTENING: &str = "Listening for client connections on ";
