//! Runs the binary and waits for its output. The tests of `tidewire-bench` use this file, too.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A running `tidewire`. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All its output, for the message of a failed test.
    transcript: Vec<String>,
}

/// The output and the status of a `tidewire` that has ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) transcript: Vec<String>,
}

impl Process {
    /// Starts the binary. Its output is read from both streams; lines of stderr begin with `2: `.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(&mut command(arguments))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::spawn_with_stdin(command, Stdio::piped())
    }

    pub(crate) fn spawn_with_stdin(command: &mut Command, stdin: Stdio) -> Self {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            read_lines(stdout, "", sender.clone());
        }
        read_lines(child.stderr.take().unwrap(), "2: ", sender);
        Self {
            stdin: child.stdin.take(),
            child,
            lines,
            transcript: Vec::new(),
        }
    }

    /// A chat server on a free port, and its first address.
    pub(crate) fn server(arguments: &[&str]) -> (Self, String) {
        Self::server_at("tcp://127.0.0.1:0", arguments)
    }

    /// As [`Process::server`], with another address.
    pub(crate) fn server_at(bind: &str, arguments: &[&str]) -> (Self, String) {
        let mut all = vec!["serve", "--bind", bind];
        all.extend_from_slice(arguments);
        let mut server = Self::start(&all);
        let line = server.expect("listening on ");
        server.expect("ready codec=");
        (server, line.trim_start_matches("listening on ").to_owned())
    }

    /// A server of methods on a free port, and its address.
    pub(crate) fn rpc_server(arguments: &[&str]) -> (Self, String) {
        let mut all = vec!["--app", "rpc"];
        all.extend_from_slice(arguments);
        Self::server(&all)
    }

    /// Starts a chat client, and waits until it is in the room.
    pub(crate) fn chat(address: &str, name: &str) -> Self {
        let mut client = Self::start(&["chat", address, "--name", name]);
        client.expect(&format!("* you are in lobby as {name}"));
        client
    }

    /// Reads on until a line that contains `text`, and returns it.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(deadline - Instant::now()) {
                Ok(line) => {
                    self.transcript.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(_) => panic!("no line with {text:?} came, only {:#?}", self.transcript),
            }
        }
    }

    /// Whether a line that contains `text` has come already.
    pub(crate) fn has_line(&mut self, text: &str) -> bool {
        self.transcript.extend(self.lines.try_iter());
        self.transcript.iter().any(|line| line.contains(text))
    }

    /// The lines that [`Process::expect`] has read so far.
    pub(crate) fn transcript(&self) -> &[String] {
        &self.transcript
    }

    pub(crate) fn type_line(&mut self, line: &str) {
        self.try_type_line(line).unwrap();
    }

    /// Types a line to a program that may end at the same time.
    pub(crate) fn try_type_line(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}")?;
        stdin.flush()
    }

    pub(crate) fn end_input(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(self) -> Ended {
        self.wait_for(DEADLINE)
    }

    /// Waits so long until it ends by itself.
    pub(crate) fn wait_for(mut self, patience: Duration) -> Ended {
        // The output ends with the process, or shortly before.
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(deadline - Instant::now()) {
                Ok(line) => self.transcript.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("it did not end; it said {:#?}", self.transcript)
                }
            }
        }
        let status = self.child.wait().unwrap();
        let transcript = std::mem::take(&mut self.transcript);
        Ended { status, transcript }
    }

    /// Ends it without a signal handler, like a crash.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The whole of both streams.
    pub(crate) fn text(&self) -> String {
        self.transcript.join("\n")
    }
}

/// A user with `nc`.
pub(crate) struct Netcat {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Netcat {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self {
            stream,
            received: Vec::new(),
        }
    }

    /// Reads byte by byte until the bytes since the last call end with `text`, and returns them.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        while !self.received.ends_with(text.as_bytes()) {
            let mut byte = [0];
            let count = self.stream.read(&mut byte);
            let so_far = String::from_utf8_lossy(&self.received);
            assert!(
                matches!(count, Ok(1)),
                "{text:?} did not come ({count:?}), only {so_far:?}"
            );
            self.received.push(byte[0]);
        }
        String::from_utf8(std::mem::take(&mut self.received)).unwrap()
    }

    pub(crate) fn type_line(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    /// Reads to the end of the stream.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        let mut bytes = self.received;
        self.stream.read_to_end(&mut bytes).unwrap();
        bytes
    }
}

/// Returns the command with these arguments, without the environment variables that would change its output.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command
        .args(arguments)
        .env_remove("TIDEWIRE_POLLER")
        .env_remove("TIDEWIRE_TOKEN")
        .env_remove("RUST_LOG")
        .env_remove("NO_COLOR");
    command
}

fn read_lines(stream: impl Read + Send + 'static, prefix: &'static str, lines: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if lines.send(format!("{prefix}{line}")).is_err() {
                return;
            }
        }
    });
}

/// Far longer than any test takes. It only ends a failed test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Says in the output of the tests that something was not tried.
pub(crate) fn warn(text: &str) {
    // Writing can fail only without a reader of the output.
    let _ = writeln!(io::stderr(), "warning: {text}");
}
