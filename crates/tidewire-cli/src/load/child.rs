//! A server in a process of its own: the measured server then runs as users run it, with its own memory, its own
//! threads and its own account of processor time.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tidewire::tls::ClientTls;
use tidewire::{Address, Endpoint};
use tidewire_io::affinity::pin_to_core;
use tidewire_io::poller::PollerChoice;
use tidewire_load::lane_account::{LaneAccount, ServerProbe};

use crate::cert::make_files;
use crate::ready::Ready;

/// The settings of such a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildOptions<'o> {
    pub(crate) app: &'o str,
    /// Its codec with parameters.
    pub(crate) codec: &'o str,
    pub(crate) poller: PollerChoice,
    pub(crate) coalesce_ms_max: f64,
    /// The address to listen on, usually with port 0.
    pub(crate) bind: &'o str,
    /// The core to keep it on, if any.
    pub(crate) core: Option<usize>,
}

/// A running server. It ends with this process: its standard input ends, and it drains.
#[derive(Debug)]
pub(crate) struct ChildServer {
    child: Child,
    address: Endpoint,
    certificate: Option<DevelopmentCertificate>,
    line: Arc<Mutex<Line>>,
}

/// The line for requests to it. The server ends when it is closed.
#[derive(Debug, Default)]
struct Line {
    questions: Option<ChildStdin>,
    answers: Option<Receiver<LaneAccount>>,
}

impl ChildServer {
    /// Starts `tidewire serve` and waits until it is ready.
    pub(crate) fn start(options: &ChildOptions<'_>) -> anyhow::Result<Self> {
        let core = options.core;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let certificate = DevelopmentCertificate::of(options.bind)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--exit-with-stdin", "--bind", options.bind])
            .args(["--app", options.app, "--codec", options.codec])
            .args(["--poller", &options.poller.to_string()])
            .args(["--coalesce-ms-max", &options.coalesce_ms_max.to_string()])
            .args(certificate.iter().flat_map(DevelopmentCertificate::flags))
            .env(
                "RUST_LOG",
                std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in the terminal is for this process; the server must live until the step is closed.
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
        let child = match spawned {
            Ok(child) => child.context("cannot start the server")?,
            Err(_) => bail!("the thread that starts the server panicked"),
        };
        // From here on dropping `server` ends the process.
        let mut server = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            certificate,
            line: Arc::default(),
        };
        server.address = server.wait_until_ready()?;
        Ok(server)
    }

    /// The address of its listener.
    pub(crate) fn address(&self) -> &Endpoint {
        &self.address
    }

    /// The settings of TLS for its clients: they trust its own certificate only. Without TLS they have no settings.
    pub(crate) fn tls(&self) -> ClientTls {
        let certificate = self.certificate.as_ref();
        certificate.map_or_else(ClientTls::new, DevelopmentCertificate::client)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a probe for the account of its lanes.
    pub(crate) fn probe(&self) -> ServerProbe {
        let line = Arc::clone(&self.line);
        ServerProbe::new(move || lock(&line).ask())
    }

    /// Lets it drain and end.
    pub(crate) fn stop(mut self) {
        lock(&self.line).questions = None;
        let deadline = Instant::now() + STOP_MAX;
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        tracing::warn!("the server did not end by itself and is killed");
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<Endpoint> {
        let stdout = self
            .child
            .stdout
            .take()
            .context("the server has no standard output")?;
        let mut output = BufReader::new(stdout);
        let ready = Ready::parse(&mut output).context("the server did not start")?;
        let (account, answers) = channel();
        // Its output is read to the end, so that it never blocks on a full pipe.
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // A line that is no answer is ignored. The receiver may be gone.
                let _ = serde_json::from_str(&line).map(|answer| account.send(answer));
            }
        });
        *lock(&self.line) = Line {
            questions: self.child.stdin.take(),
            answers: Some(answers),
        };
        let address = ready
            .addresses
            .first()
            .context("the server named no address")?;
        Ok(address.parse::<Address>()?.resolve()?)
    }
}

/// Certificates that are made for one server, in a directory that only this user can read. Dropping it removes them.
#[derive(Debug)]
struct DevelopmentCertificate {
    directory: PathBuf,
    host: String,
}

impl DevelopmentCertificate {
    /// Makes one, if the address asks for TLS.
    fn of(bind: &str) -> anyhow::Result<Option<Self>> {
        let address: Address = bind.parse()?;
        let Some(host) = address.host().filter(|_| address.is_tls()) else {
            return Ok(None);
        };
        let name = format!("tidewire-{:016x}", fastrand::u64(..));
        let directory = std::env::temp_dir().join(name);
        // It fails if somebody else has made it.
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.with_context(|| format!("cannot make the directory {}", directory.display()))?;
        let certificate = Self {
            directory,
            host: host.to_owned(),
        };
        let hosts = std::slice::from_ref(&certificate.host);
        make_files(&certificate.directory, hosts)?;
        Ok(Some(certificate))
    }

    /// The flags of its server.
    fn flags(&self) -> [OsString; 4] {
        let file = |name: &str| self.directory.join(name).into();
        let [cert, key] = ["server.pem", "server.key"].map(file);
        ["--tls-cert".into(), cert, "--tls-key".into(), key]
    }

    fn client(&self) -> ClientTls {
        let settings = ClientTls::new().only_ca(self.directory.join("ca.pem"));
        settings.server_name(&self.host)
    }
}

impl Drop for DevelopmentCertificate {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            let directory = self.directory.display();
            tracing::warn!(%directory, %error, "cannot remove the certificates of this run");
        }
    }
}

impl Line {
    /// Requests the server's account. Returns `None` if it has ended or does not answer for a second.
    fn ask(&mut self) -> Option<LaneAccount> {
        let (questions, answers) = (self.questions.as_mut()?, self.answers.as_ref()?);
        // A late answer to an earlier request does not belong to this one.
        while answers.try_recv().is_ok() {}
        questions.write_all(b"\n").ok()?;
        answers.recv_timeout(ANSWER_MAX).ok()
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A panic on another thread leaves the pipes unchanged.
fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum wait for an answer of the server: it has a thread for them, but perhaps no core.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Maximum wait for the server to drain.
const STOP_MAX: Duration = Duration::from_secs(5);
