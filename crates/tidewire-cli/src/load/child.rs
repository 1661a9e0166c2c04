//! Programs in processes of their own: a measured server then runs as users run it, with its own memory, its own
//! threads and its own account of processor time.
//!
//! Each has a process group of its own, because Ctrl-C in the terminal is for this process: the servers must live until
//! the step is closed. Each ends with this process, however that ends: its standard input ends then, and the kernel
//! continues the stopped members of a process group whose parent is gone.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tidewire::address::Address;
use tidewire::tls::ClientTls;
use tidewire_io::affinity::pin_to_core;
use tidewire_io::poller::PollerChoice;
use tidewire_load::lane_account::LaneAccount;

use crate::cert::make_files;
use crate::ready::Ready;

/// The settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    pub(crate) app: &'static str,
    /// Its codec with parameters.
    pub(crate) codec: String,
    pub(crate) poller: PollerChoice,
    pub(crate) coalesce_max: Duration,
    /// The address to listen on, usually with port 0.
    pub(crate) bind: String,
    /// The core to keep it on, if any.
    pub(crate) core: Option<usize>,
    pub(crate) certificate: Option<Arc<DevelopmentCertificate>>,
    /// Further flags, such as those of a node.
    pub(crate) flags: Vec<String>,
}

/// The settings of a server of NATS.
#[derive(Clone, Debug)]
pub(crate) struct NatsOptions {
    pub(crate) program: PathBuf,
    pub(crate) port: u16,
    /// The directory of its streams, if servers keep histories there.
    pub(crate) store: Option<Arc<RunDirectory>>,
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// The process that does the work: the child, or the child of that.
    pid: u32,
    address: String,
    line: Arc<Mutex<Line>>,
}

/// The line for requests to a program. It ends when the line is closed.
#[derive(Debug, Default)]
pub(crate) struct Line {
    questions: Option<ChildStdin>,
    answers: Option<Receiver<LaneAccount>>,
}

impl Running {
    /// Starts `tidewire serve` and waits until it is ready.
    pub(crate) fn server(options: &ServerOptions) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        let certificate = options.certificate.as_deref();
        command
            .args(["serve", "--exit-with-stdin", "--bind", &options.bind])
            .args(["--app", options.app, "--codec", &options.codec])
            .args(["--poller", &options.poller.to_string()])
            .args([
                "--coalesce-ms-max",
                &format!("{}us", options.coalesce_max.as_micros()),
            ])
            .args(certificate.iter().flat_map(|it| it.flags()))
            .args(&options.flags)
            .env(
                "RUST_LOG",
                std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()),
            );
        let mut server = Self::spawn(command, options.core).context("cannot start the server")?;
        let mut output = server.output()?;
        let ready = Ready::parse(&mut output).context("the server did not start")?;
        let (account, answers) = channel();
        // Its output is read to the end, so that it never blocks on a full pipe.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A line that is no answer is ignored. The receiver may be gone.
                let _ = serde_json::from_str(&line).map(|answer| account.send(answer));
            }
        });
        lock(&server.line).answers = Some(answers);
        let mut addresses = ready.addresses.into_iter();
        server.address = addresses.next().context("the server named no address")?;
        Ok(server)
    }

    /// Starts a server of NATS at its port of 127.0.0.1, or at a free one with port 0, and waits until it is ready.
    pub(crate) fn nats(options: &NatsOptions) -> anyhow::Result<Self> {
        let port = match options.port {
            0 => "-1".to_owned(),
            port => port.to_string(),
        };
        let mut command = Command::new("sh");
        // It does not end with its standard input, so a shell waits for that.
        command
            .args(["-c", NATS_SCRIPT, "sh"])
            .arg(&options.program)
            .args(["--addr", "127.0.0.1", "--port", &port])
            .stderr(Stdio::piped());
        if let Some(store) = &options.store {
            command
                .args(["--jetstream", "--store_dir"])
                .arg(store.path());
        }
        let mut server = Self::spawn(command, None).context("cannot start nats-server")?;
        let mut pid = String::new();
        server.output()?.read_line(&mut pid)?;
        server.pid = pid.trim().parse().context("the shell named no process")?;
        let stderr = server.child.stderr.take();
        let mut lines =
            BufReader::new(stderr.context("nats-server has no standard error")?).lines();
        let mut told = String::new();
        loop {
            let Some(Ok(line)) = lines.next() else {
                bail!("nats-server did not start: {}", told.trim());
            };
            if let Some((_, address)) = line.split_once(NATS_LISTENING) {
                server.address = format!("nats://{}", address.trim());
            }
            if line.contains(NATS_READY) {
                break;
            }
            told = line;
        }
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(server)
    }

    fn spawn(mut command: Command, core: Option<usize>) -> anyhow::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        // A process inherits the cores of the thread that starts it. A thread of its own can be pinned without
        // affecting this one.
        let spawned = thread::spawn(move || {
            if let Some(core) = core
                && let Err(error) = pin_to_core(core)
            {
                tracing::warn!(core, %error, "the server could not be pinned");
            }
            command.spawn()
        })
        .join();
        let Ok(child) = spawned else {
            bail!("the thread that starts the process panicked");
        };
        let mut child = child?;
        let line = Line {
            questions: child.stdin.take(),
            answers: None,
        };
        Ok(Self {
            pid: child.id(),
            child,
            address: String::new(),
            line: Arc::new(Mutex::new(line)),
        })
    }

    fn output(&mut self) -> anyhow::Result<BufReader<std::process::ChildStdout>> {
        let stdout = self.child.stdout.take();
        Ok(BufReader::new(
            stdout.context("the process has no standard output")?,
        ))
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The process that does the work.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn line(&self) -> Arc<Mutex<Line>> {
        Arc::clone(&self.line)
    }

    /// Whether the process that does the work has ended. It keeps its number until this value is dropped.
    pub(crate) fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name before the state is in brackets and may have any characters.
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_none_or(|state| state.starts_with(['Z', 'X']))
    }

    /// Signals all its processes.
    pub(crate) fn signal(&self, signal: Signal) -> std::io::Result<()> {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(group.map_or(Ok(()), |group| kill_process_group(group, signal))?)
    }

    /// Lets it end: a server drains.
    pub(crate) fn close(&self) {
        lock(&self.line).questions = None;
        // One that is stopped does not see it. One that has ended has no use for the signal.
        let _ = self.signal(Signal::CONT);
    }

    /// Waits a while until it has ended.
    pub(crate) fn wait(mut self) {
        let deadline = Instant::now() + STOP_MAX;
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let pid = self.pid;
        tracing::warn!(pid, "the process did not end by itself and is killed");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The shell of another program stays to wait for it, so that neither is left behind.
            let worker = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            let _ = worker.map(|worker| kill_process(worker, Signal::KILL));
            self.close();
            let _ = self.child.wait();
        }
    }
}

/// A directory of one run that only this user can read. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct RunDirectory(PathBuf);

impl RunDirectory {
    pub(crate) fn create() -> anyhow::Result<Self> {
        let name = format!("tidewire-{:016x}", fastrand::u64(..));
        let directory = std::env::temp_dir().join(name);
        // It fails if somebody else has made it.
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.with_context(|| format!("cannot make the directory {}", directory.display()))?;
        Ok(Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            let directory = self.0.display();
            tracing::warn!(%directory, %error, "cannot remove the directory of this run");
        }
    }
}

/// Certificates that are made for one run.
#[derive(Debug)]
pub(crate) struct DevelopmentCertificate {
    directory: RunDirectory,
    host: String,
}

impl DevelopmentCertificate {
    /// Makes one, if the address asks for TLS.
    pub(crate) fn of(address: &Address) -> anyhow::Result<Option<Self>> {
        let Some(host) = address.host().filter(|_| address.is_tls()) else {
            return Ok(None);
        };
        let certificate = Self {
            directory: RunDirectory::create()?,
            host: host.to_owned(),
        };
        let hosts = std::slice::from_ref(&certificate.host);
        make_files(certificate.directory.path(), hosts)?;
        Ok(Some(certificate))
    }

    fn flags(&self) -> [OsString; 4] {
        let file = |name: &str| self.directory.path().join(name).into();
        let [cert, key] = ["server.pem", "server.key"].map(file);
        ["--tls-cert".into(), cert, "--tls-key".into(), key]
    }

    /// The settings of its clients, which trust nothing else.
    pub(crate) fn client(&self) -> ClientTls {
        let settings = ClientTls::new().only_ca(self.directory.path().join("ca.pem"));
        settings.server_name(&self.host)
    }
}

impl Line {
    /// Requests a server's account. Returns `None` if it has ended or does not answer for a second.
    pub(crate) fn ask(&mut self) -> Option<LaneAccount> {
        let (questions, answers) = (self.questions.as_mut()?, self.answers.as_ref()?);
        // A late answer to an earlier request does not belong to this one.
        while answers.try_recv().is_ok() {}
        questions.write_all(b"\n").ok()?;
        answers.recv_timeout(ANSWER_MAX).ok()
    }
}

/// A panic on another thread leaves the pipes unchanged.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program, says its process id, and ends it with the standard input. When this process dies while both are
/// stopped, the kernel sends them a hang-up before it continues them; the shell must outlive that.
const NATS_SCRIPT: &str = "trap '' HUP; \"$@\" </dev/null & child=$!; echo $child; exec 2>/dev/null; read line; kill -9 $child; wait";

/// The text before its address in the log of nats-server.
const NATS_LISTENING: &str = "Listening for client connections on ";

/// The last line of its start.
const NATS_READY: &str = "Server is ready";

/// Maximum wait for an answer of the server: it has a thread for them, but perhaps no core.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Maximum wait for the server to drain.
const STOP_MAX: Duration = Duration::from_secs(5);
