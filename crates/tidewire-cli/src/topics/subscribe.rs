//! `tidewire sub`: prints the messages of topics, a line each, until it is stopped.
//!
//! One thread per pattern takes events and passes them to the main thread, which alone writes. A lost connection is
//! made again by itself. This, and dropped messages, are reported on stderr, or in line with `--json`, where a program
//! reads them.
//!
//! When the output has no reader, every stage on the way to it fills to a bound in bytes, and then the client stops
//! reading. The server's policy for slow subscribers then decides, as with any other slow subscriber. Over UDP a client
//! cannot hold a server back, so there it drops the oldest messages itself, because it can count them.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use clap::Args;
use tidewire::{
    Backoff, Client, Disconnected, Event, Policy, Position, RequestError, Subscribe, Subscription,
    TopicEvent, WhenEventsFull,
};
use tidewire_command::tell::{Stream, tell};
use tidewire_command::{output, signals, threads};
use tidewire_proto::body::validate_name;
use tidewire_proto::text::escaped;
use tidewire_proto::topic::Pattern;

use super::view::View;
use super::{bad_topic, request_failure};
use crate::connection::{ConnectionArguments, Need};
use crate::failure::Failure;
use crate::logging::LogArguments;
use crate::offered::policies;
use crate::units::parse_seconds;

/// Flags of `tidewire sub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubArguments {
    #[command(flatten)]
    connection: ConnectionArguments,

    /// Topics to print: a topic, or a pattern that ends in .* (one more segment) or .> (one or more)
    #[arg(value_name = "PATTERN", required = true)]
    patterns: Vec<String>,

    /// Print a JSON object per line: {"topic":…,"payload":…}, or "payload_base64" if it is not UTF-8
    #[arg(long)]
    pub(crate) json: bool,

    /// Stop after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop after this time, in seconds or as 5m; with --count it is an error if fewer messages came
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    duration: Option<Duration>,

    /// Subscribe as a member of this queue group: of the members with one pattern, one gets each message
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// The policy if this subscriber does not keep up; conflate keeps the latest message, conflate_by_topic the latest
    /// of each topic. The server chooses if it is left out
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    policy: Option<Policy>,

    /// Begin after this position of an earlier run, EPOCH:OFFSET as --json prints it, or with the newest N messages
    /// of each topic that the server keeps; without it, with all that it keeps. A position is for one topic without a
    /// wildcard, and a subscriber of a wildcard gets only the newest N, or none
    #[arg(long, value_name = "EPOCH:OFFSET|N", value_parser = parse_since)]
    since: Option<Since>,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Where the messages of a topic begin.
#[derive(Clone, Copy, Debug)]
enum Since {
    Position(Position),
    Last(u64),
}

fn parse_since(text: &str) -> Result<Since, String> {
    if let Ok(count) = text.parse() {
        return Ok(Since::Last(count));
    }
    text.parse().map(Since::Position).map_err(|_| {
        format!("{text:?} is neither a position such as 1234:56 nor a number of messages")
    })
}

/// An event for the main thread.
enum SubInput {
    /// Events of the subscription with this index.
    Events(usize, Vec<TopicEvent>),
    /// Ctrl-C, or a termination signal.
    Interrupt,
}

/// Why printing stopped.
enum End {
    Counted,
    TimedOut,
    Interrupted,
    /// The server refused to renew a subscription.
    Refused(RequestError),
    Ended,
}

impl SubArguments {
    /// Checks the patterns, and what goes with them.
    fn check_topics(&self) -> anyhow::Result<()> {
        for pattern in &self.patterns {
            let parsed = Pattern::parse(pattern).map_err(|error| bad_topic(pattern, error))?;
            if matches!(self.since, Some(Since::Position(_)))
                && (parsed.is_wildcard() || self.patterns.len() > 1)
            {
                return Err(Failure::configuration(
                    "a position is for one topic without a wildcard, because each topic has its own",
                    "subscribe to one topic, or give --since a number of messages",
                )
                .into());
            }
        }
        if let Some(group) = &self.group {
            validate_name(group).map_err(|error| {
                Failure::configuration(
                    format!("--group {group:?} is refused: {error}"),
                    "give a name such as workers",
                )
            })?;
        }
        Ok(())
    }

    /// The subscription to one of the patterns, which is not requested yet.
    fn subscription<'a>(&'a self, client: &'a Client, pattern: &'a str) -> Subscribe<'a> {
        let mut subscribe = client.subscribe(pattern);
        if let Some(group) = &self.group {
            subscribe = subscribe.group(group);
        }
        if let Some(policy) = self.policy {
            subscribe = subscribe.policy(policy);
        }
        subscribe = match self.since {
            Some(Since::Position(position)) => subscribe.since(position),
            Some(Since::Last(count)) => subscribe.last(count),
            None => subscribe,
        };
        subscribe
    }
}

/// Prints until it is told to stop.
pub(crate) fn run(arguments: &SubArguments) -> anyhow::Result<ExitCode> {
    let deadline = arguments.duration.map(|duration| Instant::now() + duration);
    Need::Topics.check(&arguments.connection.codec(), "`tidewire sub`")?;
    arguments.check_topics()?;
    let (sender, happenings) = mpsc::sync_channel(HAPPENINGS_MAX);
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_signals(sender.clone(), Arc::clone(&interrupted))?;
    let connection = &arguments.connection;
    let when_events_full = match connection.is_udp() {
        true => WhenEventsFull::DropOldest,
        false => WhenEventsFull::PauseReading,
    };
    let client = connection
        .client()?
        .reconnect(Backoff::default())
        .when_events_full(when_events_full)
        .event_bytes_max((EVENT_BYTES_MAX / arguments.patterns.len()).max(EVENT_BYTES_MIN))
        .connect(&connection.address)
        .wait()?;
    watch_connection(client.clone())?;
    for (index, pattern) in arguments.patterns.iter().enumerate() {
        let subscription = arguments.subscription(&client, pattern).wait();
        let what = format!("the subscription to {pattern:?}");
        let subscription = subscription.map_err(|error| request_failure(&what, error))?;
        pump(index, subscription, sender.clone())?;
    }
    drop(sender);
    let mut printer = Printer::new(arguments, &interrupted);
    // The connection ends with the process: it has no output to write first.
    let result = printer.print(&happenings, deadline);
    let printed = printer.printed;
    match result {
        Err(error) => {
            output::remember(Err(error));
            Ok(ExitCode::SUCCESS)
        }
        Ok(End::Refused(error)) => Err(request_failure("the renewed subscription", error)),
        Ok(End::Ended) => {
            let remedy = "check what the server is now, and start again";
            Err(Failure::unreachable("the client ended", remedy).into())
        }
        Ok(End::Counted) => Ok(ExitCode::SUCCESS),
        Ok(End::TimedOut | End::Interrupted) => match arguments.count {
            None => Ok(ExitCode::SUCCESS),
            Some(count) => {
                let what = format!("only {printed} of {count} messages came");
                let remedy = "wait longer with --duration, or check the topic's name";
                Err(Failure::other(what, remedy).into())
            }
        },
    }
}

/// Writes lines to stdout, and notices to their destination.
struct Printer<'a> {
    arguments: &'a SubArguments,
    interrupted: &'a AtomicBool,
    view: View,
    printed: u64,
}

impl<'a> Printer<'a> {
    fn new(arguments: &'a SubArguments, interrupted: &'a AtomicBool) -> Self {
        let single = match &arguments.patterns[..] {
            [pattern] => Pattern::parse(pattern).is_ok_and(|pattern| !pattern.is_wildcard()),
            _ => false,
        };
        Self {
            arguments,
            interrupted,
            view: View {
                json: arguments.json,
                with_topic: !single,
                escape: io::stdout().is_terminal(),
            },
            printed: 0,
        }
    }

    fn print(
        &mut self,
        happenings: &Receiver<SubInput>,
        deadline: Option<Instant>,
    ) -> io::Result<End> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        loop {
            // Waiting lines are written before each wait, and only then, so that a flood costs few writes.
            let happening = match happenings.try_recv() {
                Ok(happening) => Ok(happening),
                Err(_) => {
                    out.flush()?;
                    wait(happenings, deadline)
                }
            };
            if self.interrupted.load(Ordering::Relaxed) {
                out.flush()?;
                return Ok(End::Interrupted);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                out.flush()?;
                return Ok(End::TimedOut);
            }
            let (index, events) = match happening {
                Ok(SubInput::Events(index, events)) => (index, events),
                // The next iteration finds the reason.
                Ok(SubInput::Interrupt) | Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(End::Ended),
            };
            for event in events {
                if let Some(end) = self.print_event(index, event, &mut out)? {
                    out.flush()?;
                    return Ok(end);
                }
            }
        }
    }

    /// Prints an event. Returns the reason if no event follows.
    fn print_event(
        &mut self,
        index: usize,
        event: TopicEvent,
        out: &mut impl Write,
    ) -> io::Result<Option<End>> {
        match event {
            TopicEvent::Message(message) => {
                self.view.message(&message, out)?;
                self.printed += 1;
                let is_enough = Some(self.printed) == self.arguments.count;
                return Ok(is_enough.then_some(End::Counted));
            }
            TopicEvent::Refused(error) => return Ok(Some(End::Refused(error))),
            TopicEvent::Ended => return Ok(Some(End::Ended)),
            event => {
                let pattern = &self.arguments.patterns[index];
                self.view.notice(pattern, &event, out)?;
            }
        }
        Ok(None)
    }
}

fn wait(
    happenings: &Receiver<SubInput>,
    until: Option<Instant>,
) -> Result<SubInput, RecvTimeoutError> {
    match until {
        None => happenings.recv().map_err(RecvTimeoutError::from),
        Some(until) => happenings.recv_timeout(until.saturating_duration_since(Instant::now())),
    }
}

/// Watches signals: the first one ends the printing in order. If that waits for a reader of the output, the second one
/// or a few seconds end the process.
fn watch_signals(happenings: SyncSender<SubInput>, interrupted: Arc<AtomicBool>) -> io::Result<()> {
    let begin = move || {
        interrupted.store(true, Ordering::Relaxed);
        // If the channel is full, the printer is awake and will check the flag.
        let _ = happenings.try_send(SubInput::Interrupt);
    };
    signals::watch(WAY_OUT, begin, || {})
}

/// Takes the client's own events, so that they fill no queue, and says why there is still no connection: each reason
/// once, however often it is tried. The subscriptions say that and why the connection ended.
fn watch_connection(client: Client) -> io::Result<()> {
    threads::start("events", move || {
        let mut told = String::new();
        loop {
            match client.next_event().wait() {
                Event::Ended => return,
                Event::Closed { reason, text } => {
                    told = Disconnected { reason, text }.to_string();
                }
                Event::Reconnecting { cause, .. } if cause != told => {
                    let shown = escaped(cause.as_bytes());
                    let line = format!("! still no connection: {shown}; trying again\n");
                    // If stderr is closed or blocked, no error can be reported.
                    let _ = tell(Stream::Error, line.into());
                    told = cause;
                }
                _ => {}
            }
        }
    })
}

/// Passes a subscription's events on, on a thread of its own: all that are available at once, so that a flood costs few
/// wake-ups.
fn pump(
    index: usize,
    subscription: Subscription,
    happenings: SyncSender<SubInput>,
) -> io::Result<()> {
    threads::start("topic", move || {
        let mut is_over = false;
        while !is_over {
            let (mut events, mut bytes) = (Vec::new(), 0);
            let mut next = Some(subscription.next_event().wait());
            while let Some(event) = next.take() {
                is_over = event == TopicEvent::Ended;
                bytes += EVENT_BYTES + payload_bytes(&event);
                events.push(event);
                if !is_over && bytes < BATCH_BYTES_MAX {
                    next = subscription.next_event().wait_for(Duration::ZERO);
                }
            }
            if happenings.send(SubInput::Events(index, events)).is_err() {
                return;
            }
        }
    })
}

/// The maximum time to end after a signal.
const WAY_OUT: Duration = Duration::from_secs(5);

fn payload_bytes(event: &TopicEvent) -> usize {
    match event {
        TopicEvent::Message(message) => message.payload.len(),
        _ => 0,
    }
}

/// Bytes that the client holds for a printer that waits, divided among the patterns.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// Each pattern's minimum share of them.
const EVENT_BYTES_MIN: usize = 64 << 10;

/// Maximum batches between the pumps and the printer. When they are full, the library's queues fill.
const HAPPENINGS_MAX: usize = 4;

/// Maximum bytes of a batch, which it may exceed by one message.
const BATCH_BYTES_MAX: usize = 64 << 10;

/// Bytes that an event adds to its queue's size, in addition to its payload.
const EVENT_BYTES: usize = 64;

const EXAMPLES: &str = "\
Examples:
  tidewire sub 127.0.0.1:8080 sensor.7.temperature
  tidewire sub 127.0.0.1:8080 'sensor.>' 'alarm.*' --json
  tidewire sub 127.0.0.1:8080 build.done --count 1 --duration 600 && deploy

If the output has no reader, the client stops reading, and the server applies its policy, or --policy. \
With drop_oldest, drop_newest, conflate and conflate_by_topic a note on stderr says how many messages are missing. With disconnect, the \
usual policy of a server, the connection is closed and made again; the messages until then are missing, and their \
number is unknown. Over udp:// the oldest messages are dropped here.

Lines are the payload alone for one topic, and else the topic, a space and the payload. On a terminal control \
characters are escaped. A message that matches two of the patterns is printed twice.

Exit codes: 0 all was printed, or the output has no reader any more, 1 fewer messages came than --count requires, 2 wrong \
usage, 3 no server, 4 the server refused, 5 no answer in time.";
