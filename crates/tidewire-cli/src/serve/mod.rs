//! `tidewire serve`: a ready server until somebody stops it.
//!
//! Everything that can end the wait arrives on one channel: a signal, the end of stdin if the server was
//! asked to follow its parent, the end of the drain. The drain runs on a thread of its own so that a second
//! signal can cut it short.

mod rpc;

use std::io::{self, Read};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidewire::io::poller::{POLLER_VARIABLE, ParsePollerError, PollerChoice};
use tidewire::proto::body::ErrorCode;
use tidewire::proto::codec::Codec;
use tidewire::{
    AnyCodec, Chat, CloseReason, Context, DropReason, HandlerError, HandlerResult, Kind, Message,
    Metrics, Policy, PubSub, Server, Stopped,
};

use crate::connection::{Need, parse_codec};
use crate::failure::Failure;
use crate::ready::Ready;
use crate::signals;
use rpc::Methods;

/// Flags of `tidewire serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    /// What to serve
    #[arg(long, value_enum, default_value = "chat")]
    app: App,

    /// Where to listen, tcp://HOST:PORT or ipc://PATH; may be repeated. Port 0 takes a free one
    #[arg(
        long = "bind",
        value_name = "ADDR",
        default_value = "tcp://127.0.0.1:8080"
    )]
    binds: Vec<String>,

    /// How messages look on the wire: tw1 for programs, lines for people with nc; echo and sink also speak srmp,
    /// srmp-rpc, length-field, delimited, raw and uvrpc, with settings as in length-field:size=4
    #[arg(long, value_name = "CODEC", default_value = "tw1", value_parser = parse_codec)]
    codec: AnyCodec,

    /// How many lanes, that is threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: usize,

    /// What tells a lane which sockets are ready: auto, epoll, poll, select or uring
    #[arg(long, env = POLLER_VARIABLE, default_value = "auto", value_parser = parse_poller)]
    poller: PollerChoice,

    /// Longest time a message of a room or topic waits for others to share its write, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value = "5",
        allow_negative_numbers = true
    )]
    #[arg(value_parser = parse_milliseconds)]
    coalesce_ms_max: Duration,

    /// What happens to a subscriber that does not keep up: disconnect, drop_oldest, drop_newest, conflate
    /// or block
    #[arg(long, value_name = "POLICY", default_value_t)]
    slow_subscriber: Policy,

    /// How long sessions may take to finish after Ctrl-C, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value = "2000",
        allow_negative_numbers = true
    )]
    #[arg(value_parser = parse_milliseconds)]
    drain_ms: Duration,

    /// Drain when stdin ends, so that a parent that dies takes this server along
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum App {
    /// Rooms with names, presence and private messages; speaks tw1 and lines
    Chat,
    /// Topics to publish and subscribe to; speaks tw1
    #[value(name = "pubsub")]
    PubSub,
    /// Methods to call by name: add, echo, methods, sleep, time; speaks tw1, srmp-rpc and uvrpc
    Rpc,
    /// Sends every message and request back; speaks every codec
    Echo,
    /// Takes every message and answers nothing; speaks every codec
    Sink,
}

/// What can end a wait.
enum Wake {
    Signal,
    StdinEnded,
    Drained(Box<Stopped>),
}

/// Serves until stopped. A drain that was cut short is a failure, because sessions were not told.
///
/// # Errors
/// The server could not start, a lane failed, or the drain was cut short.
pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    let (sender, wakes) = mpsc::channel();
    // First of all, so that a signal during the start is not the system's to handle.
    let signals = sender.clone();
    signals::watch(move || signals.send(Wake::Signal).is_ok())?;

    let drain = arguments.drain_ms;
    let follow_stdin = arguments.exit_with_stdin;
    let server = start(arguments)?;
    if follow_stdin {
        watch_stdin(sender.clone())?;
    }
    wait(&wakes, &server);

    tracing::info!(deadline = ?drain, "draining; another Ctrl-C stops at once");
    let metrics = server.metrics_reader();
    std::thread::Builder::new()
        .name("tidewire-drain".to_owned())
        .spawn(move || {
            // The main thread waits for this unless it has been told to stop at once.
            let _ = sender.send(Wake::Drained(Box::new(server.shutdown(drain))));
        })?;
    loop {
        match wakes.recv() {
            Ok(Wake::Drained(stopped)) => {
                // A parent that started us has a report of its own.
                if !follow_stdin || tracing::enabled!(tracing::Level::INFO) {
                    print_summary(&stopped.metrics);
                }
                return match stopped.failures.first() {
                    None => Ok(ExitCode::SUCCESS),
                    Some(failure) => {
                        Err(Failure::other(format!("a lane failed: {failure}"), "").into())
                    }
                };
            }
            Ok(Wake::StdinEnded) => {}
            Ok(Wake::Signal) | Err(_) => {
                print_summary(&metrics.read());
                return Err(Failure::other("stopped before the drain was finished", "").into());
            }
        }
    }
}

fn start(arguments: &ServeArguments) -> anyhow::Result<Server> {
    let codec = arguments.codec.name().to_owned();
    let lanes = arguments.lanes;
    let mut builder = Server::builder()
        .codec(arguments.codec.clone())
        .lanes(lanes)
        .poller(arguments.poller)
        .coalesce_max(arguments.coalesce_ms_max)
        .slow_subscribers(arguments.slow_subscriber);
    for bind in &arguments.binds {
        if bind.starts_with("inproc://") {
            let what = format!("nobody could connect to {bind}: inproc names are per process");
            let remedy = "use --bind ipc://PATH for clients on this machine";
            return Err(Failure::configuration(what, remedy).into());
        }
        builder = builder.listen(bind)?;
    }
    match arguments.app {
        App::PubSub => Need::Topics.check(&arguments.codec, "a pubsub server")?,
        App::Rpc => Need::Methods.check(&arguments.codec, "an rpc server")?,
        App::Chat | App::Echo | App::Sink => {}
    }
    let server = match arguments.app {
        App::Echo => builder.start(|_| echo)?,
        App::Sink => builder.start(|_| sink)?,
        App::Chat if !["tw1", "lines"].contains(&codec.as_str()) => {
            let what = format!("codec {codec} has no rooms, so a chat cannot speak it");
            return Err(
                Failure::configuration(what, "use --codec tw1 or lines, or --app echo").into(),
            );
        }
        App::Rpc => {
            let methods = Methods::start()?;
            builder.start(|_| methods.router())?
        }
        App::PubSub => {
            // Where holding publishers is the rule, a subscriber may as well ask for it.
            let blocking = arguments.slow_subscriber == Policy::Block;
            builder.start(|_| PubSub::new().allow_blocking(blocking))?
        }
        App::Chat => {
            let chat = Chat::new().policy(arguments.slow_subscriber);
            builder.start(|_| chat.clone())?
        }
    };
    let ready = Ready {
        addresses: server.addresses().iter().map(ToString::to_string).collect(),
        codec,
        lanes,
        poller: server.poller().to_string(),
    };
    if let Err(error) = ready.print(&mut io::stdout().lock()) {
        // Whoever wanted to know is gone; the sessions need not be.
        tracing::warn!(%error, "cannot say on stdout where this server listens");
        tracing::info!("listening on {server}");
    }
    Ok(server)
}

/// Answers with what was said.
fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    match message.kind {
        Kind::Request | Kind::OneWay => cx.reply(message.payload),
        _ => Err(HandlerError::new(
            ErrorCode::Unsupported,
            "an echo server has no such request",
        )),
    }
}

/// Takes everything; the counters at the end say how much that was. A request is refused, because its caller
/// would wait for ever.
fn sink(_cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    match message.kind {
        Kind::Request => Err(HandlerError::new(
            ErrorCode::Unsupported,
            "a sink answers nothing",
        )),
        _ => Ok(()),
    }
}

/// Returns when the server is to drain, or has lost a lane.
fn wait(wakes: &Receiver<Wake>, server: &Server) {
    loop {
        match wakes.recv_timeout(LANES_CHECK_INTERVAL) {
            Err(RecvTimeoutError::Timeout) if server.is_running() => {}
            _ => return,
        }
    }
}

fn watch_stdin(sender: Sender<Wake>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("tidewire-stdin".to_owned())
        .spawn(move || {
            let mut buffer = [0; 256];
            let mut stdin = io::stdin().lock();
            loop {
                match stdin.read(&mut buffer) {
                    Ok(1..) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => break,
                }
            }
            // The main thread is gone only if the server has stopped already.
            let _ = sender.send(Wake::StdinEnded);
        })?;
    Ok(())
}

/// One line of what happened, on stderr.
fn print_summary(metrics: &Metrics) {
    use io::Write;
    // With stderr closed there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{}", summary(metrics));
}

fn summary(metrics: &Metrics) -> String {
    let mut text = format!(
        "served: sessions={} refused={} frames_in={} said={} offered={} delivered={} dropped={}",
        metrics.sessions_opened,
        metrics.sessions_refused,
        metrics.frames_in,
        metrics.said,
        metrics.room_offered,
        metrics.room_delivered,
        metrics.room_dropped_total(),
    );
    if metrics.published > 0 {
        use std::fmt::Write;
        // Writing to a string cannot fail.
        let _ = write!(text, " published={}", metrics.published);
    }
    push_counts(
        &mut text,
        "dropped",
        &DropReason::NAMES,
        &metrics.room_dropped,
    );
    push_counts(&mut text, "closed", &CloseReason::NAMES, &metrics.closed);
    text
}

/// Appends the counts that are not zero, each as ` what.name=count`.
fn push_counts(text: &mut String, what: &str, names: &[&str], counts: &[u64]) {
    use std::fmt::Write;
    for (name, count) in names.iter().zip(counts).filter(|(_, count)| **count > 0) {
        // Writing to a string cannot fail.
        let _ = write!(text, " {what}.{name}={count}");
    }
}

/// A poller's name. Empty means that the variable is set to nothing, which is as good as unset.
fn parse_poller(text: &str) -> Result<PollerChoice, ParsePollerError> {
    match text {
        "" => Ok(PollerChoice::Auto),
        name => name.parse(),
    }
}

fn parse_milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of milliseconds"))?;
    if !(0.0..=MILLISECONDS_MAX).contains(&milliseconds) {
        return Err(format!(
            "{text} is not between 0 and {MILLISECONDS_MAX} milliseconds"
        ));
    }
    Ok(Duration::from_secs_f64(milliseconds / 1_000.0))
}

/// An hour: longer waits are mistakes.
const MILLISECONDS_MAX: f64 = 3_600_000.0;

/// How soon a server that lost a lane to a panic or a failing poller notices and ends.
const LANES_CHECK_INTERVAL: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  tidewire serve --app chat
  tidewire serve --app rpc --codec srmp-rpc
  tidewire serve --app pubsub --slow-subscriber drop_oldest
  tidewire serve --bind tcp://0.0.0.0:8080 --bind ipc:///tmp/chat.sock
  tidewire serve --codec lines --bind tcp://127.0.0.1:8081     then: nc 127.0.0.1 8081

Ctrl-C drains: sessions are told and may finish. A second Ctrl-C stops at once, with exit code 1.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_may_have_fractions_and_have_bounds() {
        assert_eq!(parse_milliseconds("0.5"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_milliseconds("0"), Ok(Duration::ZERO));
        for text in ["-1", "NaN", "inf", "3600001", "5ms", ""] {
            assert!(parse_milliseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_empty_poller_variable_is_as_good_as_unset() {
        assert_eq!(parse_poller(""), Ok(PollerChoice::Auto));
        assert!(parse_poller("kqueue").is_err());
    }

    #[test]
    fn the_summary_names_only_the_reasons_that_occurred() {
        let mut metrics = Metrics {
            sessions_opened: 3,
            said: 2,
            room_offered: 4,
            room_delivered: 3,
            ..Metrics::default()
        };
        metrics.closed[CloseReason::PeerClosed.index()] = 3;
        metrics.room_dropped[DropReason::Closed as usize] = 1;
        assert_eq!(
            summary(&metrics),
            "served: sessions=3 refused=0 frames_in=0 said=2 offered=4 delivered=3 dropped=1 \
             dropped.closed=1 closed.peer_closed=3"
        );
    }
}
