//! `tidewire call`: one request to a method by name, and its reply.
//!
//! The exit code has what a script needs: a reply, a refusal by the method, no answer in time, no server. Text is
//! printed as a line, because shells and people expect that; `--raw` writes only the bytes.

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Map, Value, json};
use tidewire::{Client, Disconnected, Event, RequestError};
use tidewire_command::{output, signals};
use tidewire_proto::text::escaped;

use crate::connection::{ConnectionArguments, Need};
use crate::failure::{self, Failure};
use crate::logging::LogArguments;
use crate::payload::{insert_payload, json_text};

/// Flags of `tidewire call`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CallArguments {
    #[command(flatten)]
    connection: ConnectionArguments,

    /// The method's name
    #[arg(value_name = "METHOD", value_parser = NonEmptyStringValueParser::new())]
    method: String,

    /// The payload, empty if it is left out; - reads standard input to its end
    #[arg(value_name = "PAYLOAD", allow_hyphen_values = true)]
    payload: Option<String>,

    /// Print one JSON object: {"method":…,"payload":…,"latency_ms":…}, "payload_base64" if it is not UTF-8, and
    /// "error":{"code":…,"meaning":…,"text":…} if the method answered with one; the code is the number that the codec
    /// has
    #[arg(long, conflicts_with = "raw")]
    pub(crate) json: bool,

    /// Print the reply's bytes as they are, without a line end
    #[arg(long)]
    raw: bool,

    /// Try again while there is no connection, until the timeout: only for methods that may run twice
    #[arg(long)]
    retry: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// Calls once and prints the reply.
pub(crate) fn run(arguments: &CallArguments) -> anyhow::Result<ExitCode> {
    let connection = &arguments.connection;
    Need::Methods.check(&connection.codec(), "a call")?;
    let payload = match arguments.payload.as_deref() {
        None => Vec::new(),
        Some("-") => {
            let mut input = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut input);
            read.context("cannot read standard input")?;
            input
        }
        Some(text) => text.as_bytes().to_vec(),
    };
    let client = if arguments.retry {
        connection.connect_patiently()?
    } else {
        connection.client()?.connect(&connection.address).wait()?
    };
    let closing = client.clone();
    // The request then fails, and a second signal or some seconds end the process.
    signals::watch(WAY_OUT, move || drop(closing.close()), || {})?;
    let mut call = client.request(&payload).method(&arguments.method);
    if arguments.retry {
        call = call.idempotent();
    }
    let start = Instant::now();
    let result = call.wait().map_err(|error| match error {
        // The connection ended, and the client with it, before the request was enqueued.
        RequestError::Shutdown => why_ended(&client).map_or(error, RequestError::Closed),
        error => error,
    });
    let latency = start.elapsed();
    let mut out = io::stdout().lock();
    let printed = match &result {
        Ok(reply) => print_reply(arguments, reply.payload(), latency, &mut out),
        Err(RequestError::Refused { code, number, text }) if arguments.json => {
            let error = json!({"code": number, "meaning": code.to_string(), "text": text});
            let mut object = object(&arguments.method, latency);
            object.insert("error".to_owned(), error);
            failure::note_printed();
            writeln!(out, "{}", json_text(&object.into()))
        }
        Err(_) => Ok(()),
    };
    output::remember(printed.and_then(|()| out.flush()));
    match result {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(_) if let Some(signal) = signals::exit_code() => {
            let what = format!("{} has no reply: it was told to end", arguments.method);
            Err(Failure::interrupted(what, signal).into())
        }
        Err(error) => {
            // The report of a failure escapes it.
            let method = &arguments.method;
            let what = match &error {
                RequestError::Refused { number: 0, .. } => {
                    format!("{method} answered with an error")
                }
                RequestError::Refused { number, .. } => {
                    format!("{method} answered with error {number}")
                }
                _ => format!("{method} has no reply"),
            };
            Err(anyhow::Error::new(error).context(what))
        }
    }
}

/// The maximum time to end after a signal.
const WAY_OUT: Duration = Duration::from_secs(5);

/// Returns why the connection ended, if its client has ended.
fn why_ended(client: &Client) -> Option<Disconnected> {
    loop {
        match client.next_event().wait_for(Duration::ZERO)? {
            Event::Closed { reason, text } => return Some(Disconnected { reason, text }),
            Event::Ended => return None,
            _ => {}
        }
    }
}

fn print_reply(
    arguments: &CallArguments,
    payload: &[u8],
    latency: Duration,
    out: &mut (impl Write + IsTerminal),
) -> io::Result<()> {
    if arguments.raw {
        out.write_all(payload)
    } else if arguments.json {
        let mut object = object(&arguments.method, latency);
        insert_payload(&mut object, payload);
        writeln!(out, "{}", json_text(&object.into()))
    } else if out.is_terminal() {
        // A line feed in a text is kept; all other untrusted bytes are escaped.
        for line in payload.split(|byte| *byte == b'\n') {
            writeln!(out, "{}", escaped(line))?;
        }
        Ok(())
    } else {
        out.write_all(payload)?;
        out.write_all(b"\n")
    }
}

fn object(method: &str, latency: Duration) -> Map<String, Value> {
    // Whole microseconds: neither the clock nor the path to this point is more precise.
    let latency_ms = latency.as_micros() as f64 / 1_000.0;
    let mut object = Map::new();
    object.insert("method".to_owned(), method.into());
    object.insert("latency_ms".to_owned(), latency_ms.into());
    object
}

const EXAMPLES: &str = "\
Examples:
  tidewire serve --app rpc                                  a server to try it with
  tidewire call 127.0.0.1:8080 methods
  tidewire call 127.0.0.1:8080 add '2 40'
  tidewire call 127.0.0.1:8080 echo - < message.bin > reply.bin --raw
  tidewire call 127.0.0.1:8080 sleep 1500 --timeout 1       ends with code 5
  tidewire call 127.0.0.1:8080 time --json --retry
  tidewire call 127.0.0.1:9000 Login '{}' --codec srmp-rpc

Exit codes: 0 a reply came, 2 wrong usage, 3 no server, or the connection ended, 4 the method answered with an \
error, 5 no answer in time, 1 anything else.";
