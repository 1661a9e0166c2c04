//! `tidewire pub`: publishes an argument, or every line of stdin.
//!
//! Success means that the server has passed all messages on, and that those with a history of the cluster are stored:
//! the last message is a request that the server answers after all messages before it. The same request, sent at
//! intervals, keeps a fast producer from running ahead of the server, so that no queue can overflow. Rejected: closing
//! the connection without a confirmation.
//!
//! A thread of its own reads stdin, so that a signal ends the command in order while it waits for a line.

use std::io::{self, BufRead, BufReader};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value};
use tidewire::{Backoff, Client, Disconnected, Event, RequestError, RoomError, SendError};
use tidewire_command::tell::{Stream, tell};
use tidewire_command::{output, signals, threads};
use tidewire_proto::text::escaped;

use super::{bad_topic, refused, request_failure};
use crate::connection::{ConnectionArguments, Need};
use crate::failure::{self, Failure};
use crate::logging::LogArguments;
use crate::payload::json_text;

/// Flags of `tidewire pub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PubArguments {
    #[command(flatten)]
    connection: ConnectionArguments,

    /// The topic, segments with dots between them
    #[arg(value_name = "TOPIC")]
    topic: String,

    /// The message; - publishes every line of stdin, without its line end
    #[arg(value_name = "PAYLOAD", default_value = "-", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    payload: String,

    /// Connect again when the connection ends, also to the server that a draining one names, and publish once more what
    /// was not confirmed; some messages may then come twice
    #[arg(long)]
    reconnect: bool,

    /// Print a JSON object at the end: {"topic":…,"published":…}, where only confirmed messages count; with "repeated",
    /// the number of messages that were published once more, and with "error":{"exit_code":…,"text":…} after a failure
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Publishes until the input ends.
pub(crate) fn run(arguments: &PubArguments) -> anyhow::Result<ExitCode> {
    let topic = &*arguments.topic;
    tidewire_proto::topic::validate_topic(topic).map_err(|error| bad_topic(topic, error))?;
    let connection = &arguments.connection;
    Need::Topics.check(&connection.codec(), "`tidewire pub`")?;
    let mut builder = connection.client()?;
    if arguments.reconnect {
        builder = builder.reconnect(Backoff::default());
    }
    let client = builder.connect(&connection.address).wait()?;
    let mut publisher = Publisher {
        client: &client,
        topic,
        reconnects: arguments.reconnect,
        is_open: true,
        published: Arc::default(),
        repeated: 0,
        unconfirmed: Vec::new(),
        unconfirmed_bytes: 0,
        stopped: Arc::default(),
    };
    let result = publisher.run(arguments);
    let (published, repeated) = (publisher.published(), publisher.repeated);
    let result = result.map(|()| signals::exit_code().map_or(ExitCode::SUCCESS, ExitCode::from));
    let is_whole = result.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS);
    if !is_whole && arguments.payload == "-" {
        note_confirmed(published);
    }
    if arguments.json {
        let mut object = Map::new();
        object.insert("topic".to_owned(), topic.into());
        object.insert("published".to_owned(), published.into());
        if repeated > 0 {
            object.insert("repeated".to_owned(), repeated.into());
        }
        if let Err(error) = &result {
            failure::insert(&mut object, error);
        }
        output::print_line(json_text(&Value::from(object)));
    }
    result
}

/// Says how many messages are confirmed, so that a script can go on from there.
fn note_confirmed(published: u64) {
    // If stderr is closed or blocked, nothing can be said.
    let _ = tell(
        Stream::Error,
        format!("confirmed: {published} messages\n").into(),
    );
}

/// An input of the publisher.
enum Input {
    Lines(Vec<Vec<u8>>),
    End,
    Failed(io::Error),
    /// Ctrl-C, or a termination signal.
    Signal,
}

/// Publishes, and waits for a confirmation at intervals.
struct Publisher<'a> {
    client: &'a Client,
    topic: &'a str,
    reconnects: bool,
    /// Whether there is a connection, by the events so far.
    is_open: bool,
    /// Messages that the server has passed on. The thread of signals reads it.
    published: Arc<AtomicU64>,
    /// Messages that were published once more.
    repeated: u64,
    /// Messages without a confirmation, in order.
    unconfirmed: Vec<Vec<u8>>,
    unconfirmed_bytes: usize,
    /// A signal came.
    stopped: Arc<AtomicBool>,
}

impl Publisher<'_> {
    fn run(&mut self, arguments: &PubArguments) -> anyhow::Result<()> {
        // Bounded: a batch is read while another one is published.
        let (sender, inputs) = mpsc::sync_channel(1);
        let (stopped, signal) = (Arc::clone(&self.stopped), sender.clone());
        let published = Arc::clone(&self.published);
        signals::watch(
            WAY_OUT,
            move || {
                stopped.store(true, Ordering::Relaxed);
                // If the channel is full, the publisher is awake and sees the flag.
                let _ = signal.try_send(Input::Signal);
            },
            move || note_confirmed(published.load(Ordering::Relaxed)),
        )?;
        if arguments.payload == "-" {
            threads::start("input", move || read_lines(&sender))?;
            self.publish_lines(&inputs)?;
        } else {
            self.publish(arguments.payload.as_bytes().to_vec())?;
        }
        self.confirm()
    }

    /// Publishes each line until the input ends or a signal comes. What waits for a confirmation while no line comes
    /// gets one.
    fn publish_lines(&mut self, inputs: &Receiver<Input>) -> anyhow::Result<()> {
        loop {
            let input = inputs.recv_timeout(QUIET);
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            match input {
                Ok(Input::Lines(lines)) => {
                    for line in lines {
                        self.publish(line)?;
                    }
                }
                Ok(Input::Failed(error)) => {
                    return Err(error).context("cannot read standard input");
                }
                Err(RecvTimeoutError::Timeout) if !self.unconfirmed.is_empty() => self.confirm()?,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Input::End | Input::Signal) | Err(RecvTimeoutError::Disconnected) => {
                    return Ok(());
                }
            }
        }
    }

    fn publish(&mut self, payload: Vec<u8>) -> anyhow::Result<()> {
        self.send(&payload)?;
        self.unconfirmed_bytes += payload.len();
        self.unconfirmed.push(payload);
        if self.unconfirmed.len() >= UNCONFIRMED_MAX
            || self.unconfirmed_bytes >= UNCONFIRMED_BYTES_MAX
        {
            self.confirm()?;
        }
        Ok(())
    }

    fn send(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        match self.client.publish(self.topic, payload) {
            Ok(()) => Ok(()),
            Err(RoomError::Send(SendError::QueueFull)) => {
                self.confirm()?;
                Ok(self.client.publish(self.topic, payload)?)
            }
            // The connection is gone; its last event has the reason.
            Err(RoomError::Send(SendError::Ended)) => self.confirm(),
            Err(error) => {
                // The messages before it are confirmed first, so that the user can continue from here.
                self.confirm()?;
                let number = self.published() + 1;
                Err(error).with_context(|| format!("message {number} is not published"))
            }
        }
    }

    /// Waits until the server has passed all messages on, and checks whether it refused one. With `--reconnect` it
    /// publishes them once more after a lost connection.
    fn confirm(&mut self) -> anyhow::Result<()> {
        loop {
            let confirmed = self.client.flush().wait();
            while let Some(event) = self.client.next_event().wait_for(Duration::ZERO) {
                if let Some(failure) = self.handle(event) {
                    return Err(failure.into());
                }
            }
            match confirmed {
                Ok(_) => {
                    let count = self.unconfirmed.len() as u64;
                    self.published.fetch_add(count, Ordering::Relaxed);
                    self.unconfirmed.clear();
                    self.unconfirmed_bytes = 0;
                    return Ok(());
                }
                Err(error) if self.reconnects && is_lost_connection(&error) => {
                    self.wait_for_connection()?;
                    self.publish_again();
                }
                Err(error) => return Err(request_failure("the confirmation", error)),
            }
        }
    }

    /// Handles an event of the client. Returns the error that ends the command.
    fn handle(&mut self, event: Event) -> Option<Failure> {
        match event {
            Event::Refused { code, text, .. } => Some(refused("publishing", code, &text)),
            // The confirmation fails, too, and its error or the end of the connection says why. This event may come
            // before that end.
            Event::Lost { .. } => None,
            Event::Opened { .. } => {
                self.is_open = true;
                None
            }
            Event::Closed { reason, text } => {
                self.is_open = false;
                let end = Disconnected { reason, text };
                if self.reconnects && !reason.is_final() {
                    let line = format!("! the connection ended: {end}; connecting again\n");
                    // If stderr is closed or blocked, no error can be reported.
                    let _ = tell(Stream::Error, line.into());
                    return None;
                }
                let remedy = "check that the server still runs, or let --reconnect connect again; what was published since the last \
                              confirmation may be lost";
                Some(failure::ended(
                    format!("the connection ended: {end}"),
                    reason,
                    remedy,
                ))
            }
            Event::Ended if self.reconnects => {
                let remedy = "check what the server is now, and start again";
                Some(Failure::unreachable("the client ended", remedy))
            }
            _ => None,
        }
    }

    /// Waits until there is a connection again, and says each reason why there is none once. A signal ends the wait.
    fn wait_for_connection(&mut self) -> anyhow::Result<()> {
        let mut told = String::new();
        while !self.is_open {
            if self.stopped.load(Ordering::Relaxed) {
                let what = "it was told to end while there was no connection";
                let remedy = "what was published since the last confirmation may be lost";
                return Err(Failure::unreachable(what, remedy).into());
            }
            let Some(event) = self.client.next_event().wait_for(LOOK_EVERY) else {
                continue;
            };
            if let Event::Reconnecting { cause, .. } = &event
                && *cause != told
            {
                let shown = escaped(cause.as_bytes());
                let line = format!("! still no connection: {shown}; trying again\n");
                let _ = tell(Stream::Error, line.into());
                told.clone_from(cause);
            }
            if let Some(failure) = self.handle(event) {
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// Publishes all messages without a confirmation once more. Those that are not taken are lost like a connection,
    /// and the next confirmation finds that.
    fn publish_again(&mut self) {
        for payload in &self.unconfirmed {
            let _ = self.client.publish(self.topic, payload);
        }
        self.repeated += self.unconfirmed.len() as u64;
    }

    fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }
}

/// Whether a flush failed because of the connection, so that another one may help.
fn is_lost_connection(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::MayBeLost { .. }
            | RequestError::Closed(_)
            | RequestError::NotConnected
            | RequestError::CannotConnect { .. }
    )
}

/// Reads lines to the end of stdin, a last one without a line end included, and passes them on: all that are there at
/// once.
fn read_lines(inputs: &SyncSender<Input>) {
    let mut input = BufReader::new(io::stdin().lock());
    let mut lines = Vec::new();
    loop {
        let mut line = Vec::new();
        let end = match input.read_until(b'\n', &mut line) {
            Ok(0) => Some(Input::End),
            Ok(_) => None,
            Err(error) => Some(Input::Failed(error)),
        };
        if end.is_none() {
            if line.last() == Some(&b'\n') {
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
            }
            lines.push(line);
        }
        let is_batch = lines.len() >= UNCONFIRMED_MAX || !input.buffer().contains(&b'\n');
        if (end.is_some() || is_batch) && !lines.is_empty() {
            let batch = Input::Lines(std::mem::take(&mut lines));
            // The publisher may have ended.
            if inputs.send(batch).is_err() {
                return;
            }
        }
        if let Some(end) = end {
            let _ = inputs.send(end);
            return;
        }
    }
}

/// The maximum time to end after a signal.
const WAY_OUT: Duration = Duration::from_secs(5);

/// Time without a line after which the messages before are confirmed.
const QUIET: Duration = Duration::from_secs(1);

/// How often a wait for a connection looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Maximum messages between two confirmations: far fewer than the client's queue holds, and enough that waiting costs
/// little.
const UNCONFIRMED_MAX: usize = 1024;

/// Maximum bytes between two confirmations: below the limit of a session's output.
const UNCONFIRMED_BYTES_MAX: usize = 512 * 1024;

const EXAMPLES: &str = "\
Examples:
  tidewire pub 127.0.0.1:8080 sensor.7.temperature 21.5
  tail -f readings.log | tidewire pub 127.0.0.1:8080 readings -
  tail -f readings.log | tidewire pub 127.0.0.1:8080 readings - --reconnect
  tidewire pub 127.0.0.1:8080 readings --json < readings.log

After a failure or a signal a line on stderr, and the JSON object, say how many messages are confirmed, so that a script can go on \
from there.

Exit codes: 0 the server passed every message on to those who were subscribed then, and histories of several servers \
have it stored, 2 wrong usage, 3 no server, or the connection ended, 4 the server refused, or cannot confirm, 5 no \
confirmation in time, 130 and 143 ended by Ctrl-C or SIGTERM, 1 anything else.";
