//! The binary `tidewire`: it reads flags, calls the libraries and says what went wrong. Nothing else.
//!
//! Each subcommand has a file. Exit codes and the shape of error messages are in `failure`, the lines by
//! which a started server announces itself in `ready`.

mod call;
mod chat;
mod connection;
mod failure;
mod load;
mod payload;
mod ready;
mod serve;
mod signals;
mod topics;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Moves small messages fast over TCP and Unix sockets, and proves its numbers.
#[derive(Debug, Parser)]
#[command(name = "tidewire", version = VERSION, max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server until Ctrl-C.
    Serve(serve::ServeArguments),
    /// Talk to the people in a room of a chat server.
    Chat(chat::ChatArguments),
    /// Call a method of a server and print its reply.
    Call(call::CallArguments),
    /// Publish messages to a topic.
    Pub(topics::PubArguments),
    /// Print what is published to topics.
    Sub(topics::SubArguments),
    /// Run a load test and write a report.
    Load(load::LoadArguments),
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Wrong usage ends here with clap's exit code 2, which is also ours for a wrong configuration.
    let arguments = Arguments::parse();
    start_logging(arguments.command.log_level());
    // A session costs a descriptor, and the usual soft limit of 1,024 is for programs that use a fixed set.
    if let Err(error) = tidewire::io::descriptors::raise_descriptor_limit() {
        tracing::warn!(%error, "the descriptor limit stays as it is; raise it with `ulimit -n`");
    }
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Chat(arguments) => chat::run(arguments),
        Command::Call(arguments) => call::run(&arguments),
        Command::Pub(arguments) => topics::run_publish(&arguments),
        Command::Sub(arguments) => topics::run_subscribe(&arguments),
        Command::Load(arguments) => load::run(&arguments),
    };
    result.unwrap_or_else(|error| failure::report(&error))
}

impl Command {
    /// What is logged unless `RUST_LOG` says otherwise.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Serve(_) => "info",
            // The conversation, or what is said beside the messages, tells what happens to the connection; log lines would garble it.
            Self::Chat(_) | Self::Call(_) | Self::Pub(_) | Self::Sub(_) => "error",
            Self::Load(_) => "warn",
        }
    }
}

/// Logs to stderr, because stdout belongs to what a program may want to read.
fn start_logging(default_level: &str) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(false)
        // It would complain on the very stream that failed, and panic.
        .log_internal_errors(false)
        .init();
}

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TIDEWIRE_COMMIT"),
    ")"
);

const EXAMPLES: &str = "\
Examples:
  tidewire load                     test a server of our own
  tidewire serve --app chat
  tidewire chat 127.0.0.1:8080 --name alice
  tidewire serve --app pubsub
  tidewire sub 127.0.0.1:8080 'sensor.>'
  tidewire pub 127.0.0.1:8080 sensor.7.temperature 21.5
  tidewire serve --app rpc
  tidewire call 127.0.0.1:8080 add '2 40'

Exit codes: 0 success, 2 wrong usage or configuration, 3 the server cannot be reached or the connection ended,
4 the server refused, 5 no answer in time, 1 anything else.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }
}
