//! `tidewire pub`: publishes an argument, or every line of stdin.
//!
//! Success means that the server has passed all messages on, and that those with a history in a stream are stored: the last message
//! is a request that the server answers after all messages before it. The same request, sent at intervals, keeps a fast producer from running ahead of the
//! server, so that no queue can overflow. Rejected: closing the connection without a confirmation.

use std::io::{self, BufRead};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tidewire::{Client, Disconnected, EnqueueError, Event, Kind, PublishError};
use tidewire_proto::body::{ErrorBody, ErrorCode};

use super::{bad_topic, refused, request_failure};
use crate::connection::{ConnectionArguments, Need};
use crate::failure::Failure;
use crate::logging::LogArguments;
use crate::output;
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

    /// Print a JSON object at the end: {"topic":…,"published":…}
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Publishes until the input ends.
pub(crate) fn run(arguments: &PubArguments) -> anyhow::Result<ExitCode> {
    let topic = &*arguments.topic;
    tidewire_proto::topic::validate_topic(topic).map_err(|error| bad_topic(topic, error))?;
    let connection = &arguments.connection;
    Need::Topics.check(&connection.codec(), "`tidewire pub`")?;
    let client = connection.client()?.connect(&connection.address).wait()?;
    let mut publisher = Publisher {
        client: &client,
        topic,
        published: 0,
        unconfirmed: 0,
        unconfirmed_bytes: 0,
    };
    if arguments.payload == "-" {
        publisher.publish_lines(&mut io::stdin().lock())?;
    } else {
        publisher.publish(arguments.payload.as_bytes())?;
    }
    publisher.confirm()?;
    if arguments.json {
        let object = json!({"topic": topic, "published": publisher.published});
        output::print_line(json_text(&object));
    }
    Ok(ExitCode::SUCCESS)
}

/// Publishes, and waits for a confirmation at intervals.
struct Publisher<'a> {
    client: &'a Client,
    topic: &'a str,
    /// Messages that the server has passed on.
    published: u64,
    unconfirmed: usize,
    unconfirmed_bytes: usize,
}

impl Publisher<'_> {
    /// Publishes each line, including a last one without a line end.
    fn publish_lines(&mut self, input: &mut impl BufRead) -> anyhow::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.read_until(b'\n', &mut line);
            if read.context("cannot read standard input")? == 0 {
                return Ok(());
            }
            if line.last() == Some(&b'\n') {
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
            }
            self.publish(&line)?;
        }
    }

    fn publish(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        match self.client.publish(self.topic, payload) {
            Ok(()) => {}
            Err(PublishError::Enqueue(EnqueueError::QueueFull)) => {
                self.confirm()?;
                self.client.publish(self.topic, payload)?;
            }
            // The connection is gone; its last event has the reason.
            Err(PublishError::Enqueue(EnqueueError::Ended)) => return self.confirm(),
            Err(error) => {
                // The messages before it are confirmed first, so that the user can continue from here.
                self.confirm()?;
                let number = self.published + 1;
                return Err(error).with_context(|| format!("message {number} is not published"));
            }
        }
        self.unconfirmed += 1;
        self.unconfirmed_bytes += payload.len();
        if self.unconfirmed >= UNCONFIRMED_MAX || self.unconfirmed_bytes >= UNCONFIRMED_BYTES_MAX {
            self.confirm()?;
        }
        Ok(())
    }

    /// Waits until the server has passed all messages on, and checks whether it refused one.
    fn confirm(&mut self) -> anyhow::Result<()> {
        let confirmed = self.client.flush().wait();
        // A refusal came before the confirmation, on the same connection.
        while let Some(event) = self.client.next_event().wait_for(Duration::ZERO) {
            match event {
                Event::Message(message) if message.kind == Kind::Error => {
                    let body = ErrorBody::decode(&message.payload);
                    let (code, text) = body
                        .map_or((ErrorCode::UNKNOWN, "it does not say why"), |body| {
                            (body.code, body.text)
                        });
                    return Err(refused("publishing", code, text).into());
                }
                Event::Lost { count } => {
                    let what = format!("{count} messages were not sent");
                    let remedy = "messages must fit a frame, which is 1 MiB unless the server's limit is lower";
                    return Err(Failure::other(what, remedy).into());
                }
                Event::Closed { reason, text } => {
                    let what = format!("the connection ended: {}", Disconnected { reason, text });
                    let remedy = "check that the server still runs; what was published since the last \
                                  confirmation may be lost";
                    return Err(Failure::ended(what, reason, remedy).into());
                }
                Event::Ended => break,
                _ => {}
            }
        }
        confirmed.map_err(|error| request_failure("the confirmation", error))?;
        self.published += self.unconfirmed as u64;
        (self.unconfirmed, self.unconfirmed_bytes) = (0, 0);
        Ok(())
    }
}

/// Maximum messages between two confirmations: far fewer than the client's queue holds, and enough that waiting costs
/// little.
const UNCONFIRMED_MAX: usize = 1024;

/// Maximum bytes between two confirmations: below the limit of a session's output.
const UNCONFIRMED_BYTES_MAX: usize = 512 * 1024;

const EXAMPLES: &str = "\
Examples:
  tidewire pub 127.0.0.1:8080 sensor.7.temperature 21.5
  tail -f readings.log | tidewire pub 127.0.0.1:8080 readings -
  tidewire pub 127.0.0.1:8080 readings --json < readings.log

Exit codes: 0 the server passed every message on to those who were subscribed then, and histories of several servers \
have it stored, 2 wrong usage, 3 no server, or the connection ended, 4 the server refused, or cannot confirm, 5 no \
confirmation in time, 1 anything else.";
