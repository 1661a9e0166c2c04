//! How long the clients of a server take to come back after it was killed, when each of them costs its lane some
//! milliseconds.
//!
//! `cargo run --release -p tidewire --example handshake_storm [CASE] [CLIENTS...]`. The cases are `rsa4096`, `rsa2048`,
//! `p256`, `slow` (an authenticator that computes for 6 ms on the lane) and `late` (an authenticator that takes 6 ms on
//! a separate thread, one peer after another). Without a case all of them run, with 1,000 and 4,000 clients. `openssl`
//! makes the certificates. Each client has three descriptors: 4,000 need `ulimit -n 20000`.
//!
//! For each row: the cost of a handshake is the processor time of an idle server for one of 50 clients in sequence.
//! Then N clients connect to a server with cheap handshakes. This server is killed, and the costly server starts at the
//! same address. Meanwhile a client without TLS asks the only lane a question every 5 ms. The row ends when all N are
//! back, or after three times the bound of N × cost + 5 s. The exit code is 0 if all rows keep the bound and the p99 of
//! 100 ms.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::auth::{
    AuthOutcome, AuthRequest, Authenticate, Identity, LateAnswer, Permissions, Token,
};
use tidewire::metrics::Inspector;
use tidewire::tls::{ClientTls, Pem, ServerTls};
use tidewire::{
    Backoff, Client, CloseReason, Connecting, Context, HandlerResult, Message, Server, Service,
};
use tidewire_io::clock::process_cpu_ns;

type Failure = Box<dyn Error + Send + Sync>;

const CASES: [&str; 5] = ["rsa4096", "rsa2048", "p256", "slow", "late"];

/// The time that an authenticator takes.
const QUESTION: Duration = Duration::from_millis(6);

/// The time that the bound allows beside the handshakes.
const ALLOWANCE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("serve") => serve(&arguments[1..]).map(|()| true),
        _ => measure(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("handshake_storm: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    // Without a reader of the output, an error cannot be reported.
    let _ = writeln!(std::io::stdout(), "{line}");
}

// The server: `serve CASE FOLDER PORT PLAIN_PORT`.

/// Admits all peers, after a delay except for the probe's token.
struct Login {
    /// The thread that answers. Without it, the lane computes.
    questions: Option<Mutex<mpsc::Sender<LateAnswer>>>,
    takes: Duration,
}

impl Authenticate for Login {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        if request.token() != b"probe" {
            if let Some(questions) = &self.questions {
                let answer = request.later();
                if let Ok(questions) = questions.lock() {
                    // A failed send drops the answer, which refuses the peer.
                    let _ = questions.send(answer);
                }
                return AuthOutcome::Later;
            }
            let began = Instant::now();
            while began.elapsed() < self.takes {}
        }
        AuthOutcome::admit(Identity::new("somebody", Permissions::everything()))
    }
}

impl Login {
    fn of(case: &str) -> Self {
        let takes = if case == "cheap" {
            Duration::ZERO
        } else {
            QUESTION
        };
        let questions = (case == "late").then(|| {
            let (ask, asked) = mpsc::channel::<LateAnswer>();
            thread::spawn(move || {
                for answer in asked {
                    thread::sleep(QUESTION);
                    let identity = Identity::new("somebody", Permissions::everything());
                    answer.send(AuthOutcome::admit(identity));
                }
            });
            Mutex::new(ask)
        });
        Self { questions, takes }
    }
}

static METRICS: OnceLock<Inspector> = OnceLock::new();

/// Numbers of open sessions, of served handshakes, and of handshakes that were left out.
#[derive(Default)]
struct Figures {
    open: usize,
}

impl Service for Figures {
    fn on_open(&mut self, _: &mut Context<'_>) {
        self.open += 1;
    }

    fn on_close(&mut self, _: &mut Context<'_>, _: CloseReason) {
        self.open -= 1;
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match METRICS.get().filter(|_| message.payload == b"figures") {
            None => cx.reply(b"here"),
            Some(metrics) => {
                let it = metrics.metrics();
                let served = it.handshakes_answered.max(it.authenticated);
                let left_out = it.handshakes_abandoned + it.handshakes_expired;
                cx.reply(format!("{} {served} {left_out}", self.open).as_bytes())
            }
        }
    }
}

fn serve(arguments: &[String]) -> Result<(), Failure> {
    let [case, folder, port, plain_port] = arguments else {
        return Err("serve CASE FOLDER PORT PLAIN_PORT".into());
    };
    let (folder, has_login) = (
        Path::new(folder),
        ["slow", "late", "cheap"].contains(&case.as_str()),
    );
    let builder = Server::builder().lanes(1);
    let builder = match has_login {
        true => builder
            .authenticate(Login::of(case))
            .listen(&format!("tcp://127.0.0.1:{port}"))?,
        false => {
            let [chain, key] = ["pem", "key"].map(|it| folder.join(format!("{case}.{it}")));
            builder
                .tls(ServerTls::new(Pem::File(chain), Pem::File(key)))
                .listen(&format!("tls://127.0.0.1:{port}"))?
        }
    };
    let server = builder
        .listen(&format!("tcp://127.0.0.1:{plain_port}"))?
        .start(|_| Figures::default())?;
    let _ = METRICS.set(server.inspector());
    say("ready");
    // It runs until its parent ends it.
    loop {
        thread::park();
    }
}

// The measurement.

/// A server in a separate process.
struct Running {
    child: Child,
    pid: u32,
}

impl Running {
    fn start(case: &str, ground: &Ground) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", case])
            .arg(&ground.folder)
            .args([ground.port.to_string(), ground.plain_port.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let pid = child.id();
        match line.trim() {
            "ready" => Ok(Self { child, pid }),
            other => Err(format!("the server said: {other}").into()),
        }
    }

    fn cpu(&self) -> Result<Duration, Failure> {
        Ok(Duration::from_nanos(process_cpu_ns(self.pid)?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The folder of the certificates, and the ports of the servers.
struct Ground {
    folder: PathBuf,
    port: u16,
    plain_port: u16,
    tls: ClientTls,
}

impl Ground {
    fn new() -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(format!("handshake-storm-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut authorities = Vec::new();
        for (case, key) in [
            ("rsa4096", &["rsa:4096"][..]),
            ("rsa2048", &["rsa:2048"]),
            ("p256", &["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]),
        ] {
            let [chain, key_file] = ["pem", "key"].map(|it| folder.join(format!("{case}.{it}")));
            let made = Command::new("openssl")
                .args(["req", "-x509", "-nodes", "-days", "2", "-newkey"])
                .args(key)
                .args(["-subj", &format!("/CN={case}")])
                .args(["-addext", "subjectAltName=IP:127.0.0.1"])
                .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                .arg("-out")
                .arg(&chain)
                .arg("-keyout")
                .arg(&key_file)
                .stderr(Stdio::null())
                .status()?;
            if !made.success() {
                return Err(format!("openssl could not make the certificate of {case}").into());
            }
            authorities.extend(std::fs::read(&chain)?);
        }
        let [port, plain_port] = [free_port()?, free_port()?];
        Ok(Self {
            folder,
            port,
            plain_port,
            tls: ClientTls::new().only_ca(Pem::bytes(authorities)),
        })
    }

    fn connect(&self, has_login: bool) -> Connecting {
        let builder = Client::builder().reconnect(Backoff::default());
        let scheme = if has_login { "tcp" } else { "tls" };
        let builder = match has_login {
            true => builder.credentials(token("client")),
            false => builder.tls(self.tls.clone()),
        };
        builder.connect(&format!("{scheme}://127.0.0.1:{}", self.port))
    }

    fn probe(&self) -> Result<Client, Failure> {
        let builder = Client::builder().reconnect(Backoff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(5),
        });
        let builder = builder.credentials(token("probe"));
        let address = format!("tcp://127.0.0.1:{}", self.plain_port);
        Ok(builder.connect(&address).wait()?)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A thread that sends a request every 5 ms, and stores the time of each answer.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Duration>>,
}

impl Watch {
    fn begin(probe: &Arc<Client>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (probe, ends) = (Arc::clone(probe), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let mut times = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                if probe.request(b"here?").wait().is_ok() {
                    times.push(began.elapsed());
                }
                thread::sleep(Duration::from_millis(5));
            }
            times.sort_unstable();
            times
        });
        Self { is_over, thread }
    }

    /// Returns the times, the shortest first.
    fn end(self) -> Result<Vec<Duration>, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        let times = self.thread.join();
        let times = times.map_err(|_| "the thread of the probe failed")?;
        if times.is_empty() {
            return Err("the probe got no answer".into());
        }
        Ok(times)
    }
}

fn token(text: &str) -> Token {
    Token::new(text).expect("a token of plain letters")
}

fn free_port() -> std::io::Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

fn measure(arguments: &[String]) -> Result<bool, Failure> {
    let (cases, counts) = match arguments {
        [] => (CASES.to_vec(), &[][..]),
        [case, counts @ ..] => (vec![case.as_str()], counts),
    };
    let counts = counts
        .iter()
        .map(|it| it.parse::<usize>())
        .collect::<Result<Vec<_>, _>>()?;
    let counts = if counts.is_empty() {
        vec![1_000, 4_000]
    } else {
        counts
    };
    let ground = Ground::new()?;
    say(
        "| case | clients | cost of a handshake | bound | all back after | processor of the server | served | left out \
         | another session: p50, p99, max |",
    );
    say("|---|---|---|---|---|---|---|---|---|");
    let mut are_kept = true;
    for case in cases {
        let has_login = ["slow", "late"].contains(&case);
        let cost = cost_of(case, has_login, &ground)?;
        for &count in &counts {
            are_kept &= storm(case, has_login, count, cost, &ground)?;
        }
    }
    Ok(are_kept)
}

/// The time of one handshake at an idle server.
fn cost_of(case: &str, has_login: bool, ground: &Ground) -> Result<Duration, Failure> {
    const SAMPLES: u32 = 50;
    let server = Running::start(case, ground)?;
    ground.connect(has_login).wait()?;
    let before = server.cpu()?;
    for _ in 0..SAMPLES {
        ground.connect(has_login).wait()?;
    }
    let cost = (server.cpu()? - before) / SAMPLES;
    // An authenticator takes its time also on a busy machine. The thread of the late answers sleeps and uses no
    // processor.
    Ok(match case {
        "late" => cost + QUESTION,
        "slow" => cost.max(QUESTION),
        _ => cost,
    })
}

/// Measures one row. Returns whether it keeps the bounds.
fn storm(
    case: &str,
    has_login: bool,
    count: usize,
    cost: Duration,
    ground: &Ground,
) -> Result<bool, Failure> {
    let cheap = Running::start(if has_login { "cheap" } else { "p256" }, ground)?;
    let mut clients = Vec::with_capacity(count);
    while clients.len() < count {
        let batch = (count - clients.len()).min(100);
        let connecting: Vec<_> = (0..batch).map(|_| ground.connect(has_login)).collect();
        for one in connecting {
            clients.push(one.wait()?);
        }
    }
    drop(cheap);
    let server = Running::start(case, ground)?;
    let began = Instant::now();
    let probe = Arc::new(ground.probe()?);
    let watch = Watch::begin(&probe);
    let bound = cost * u32::try_from(count)? + ALLOWANCE;
    let mut figures = [0; 3];
    let all_back = loop {
        thread::sleep(Duration::from_millis(50));
        if let Ok(reply) = probe.request(b"figures").wait() {
            let text = String::from_utf8_lossy(reply.payload()).into_owned();
            for (figure, word) in figures.iter_mut().zip(text.split(' ')) {
                *figure = word.parse::<u64>()?;
            }
        }
        // One session is the probe's.
        if figures[0] > count as u64 {
            break Some(began.elapsed());
        }
        if began.elapsed() > 3 * bound {
            break None;
        }
    };
    let used = server.cpu()?;
    let times = watch.end()?;
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let [_, served, left_out] = figures;
    let took = all_back.map_or("never".to_owned(), |it| {
        format!("{:.1} s", it.as_secs_f64())
    });
    say(&format!(
        "| {case} | {count} | {:.2} ms | {:.1} s | {took} | {:.1} s | {served} | {left_out} | {:.1}, {:.1}, {:.1} ms |",
        cost.as_secs_f64() * 1e3,
        bound.as_secs_f64(),
        used.as_secs_f64(),
        at(0.5).as_secs_f64() * 1e3,
        at(0.99).as_secs_f64() * 1e3,
        at(1.0).as_secs_f64() * 1e3,
    ));
    Ok(all_back.is_some_and(|it| it <= bound) && at(0.99) < Duration::from_millis(100))
}
