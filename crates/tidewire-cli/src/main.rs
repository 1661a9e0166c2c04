//! The binary `tidewire`: it reads flags, calls the libraries and reports errors. Nothing else.
//!
//! Each subcommand has a file. `failure` has the exit codes and the form of error messages, `ready` the lines by which
//! a started server announces itself.

mod ab;
mod bench;
mod call;
mod cert;
mod chart;
mod chat;
mod check;
mod compare;
mod config;
mod connection;
mod doctor;
mod failure;
mod load;
mod logging;
mod offered;
mod otlp;
mod payload;
mod ready;
mod screen;
mod security;
mod serve;
mod systemd;
mod tls;
mod token;
mod top;
mod topics;
mod units;
mod users;

use std::path::Path;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use mimalloc::MiMalloc;
use tidewire::log::Log;
use tidewire_command::{generate, output, tell};
use tidewire_io::allocation::CountingAllocator;

use logging::LogArguments;
use otlp::SpanExport;

/// Moves small messages fast over TCP, UDP and Unix sockets, and proves its numbers
#[derive(Debug, Parser)]
#[command(name = "tidewire", version = tidewire_command::VERSION_AND_COMMIT, max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server until Ctrl-C.
    Serve(Box<serve::ServeArguments>),
    /// Talk to the people in a room of a chat server.
    Chat(chat::ChatArguments),
    /// Call a method of a server and print its reply.
    Call(call::CallArguments),
    /// Publish messages to a topic.
    Pub(topics::PubArguments),
    /// Print the messages of topics.
    Sub(topics::SubArguments),
    /// Make a token by which a server knows a user.
    Token(token::TokenArguments),
    /// Show what the users of a server may do, and find what has no effect.
    Check(check::CheckArguments),
    /// Show a running server: rates, lanes, memory, the slowest subscribers.
    Top(top::TopArguments),
    /// Run a load test and write a report.
    Load(load::LoadArguments),
    /// Find the highest rate that keeps its limits.
    Search(load::SearchArguments),
    /// Measure at several levels of concurrency and fit the Universal Scalability Law.
    Sweep(load::SweepArguments),
    /// Compare reports of load tests.
    Compare(compare::CompareArguments),
    /// Run two binaries in turns and compare them.
    Ab(ab::AbArguments),
    /// Measure this machine's limits, Tidewire and its rivals side by side.
    Bench(bench::BenchArguments),
    /// Examine this machine for what would spoil a measurement.
    Doctor(doctor::DoctorArguments),
    /// Put the reports of the parts of a load test together.
    Merge(load::MergeArguments),
    /// Write the report of a load test once more.
    Report(load::ReportArguments),
    /// Make certificates for development.
    Cert(cert::CertArguments),
    /// Print the completions of a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(generate::CompletionsArguments),
    /// Write the manual pages.
    #[command(after_help = MAN_EXAMPLES)]
    Man(generate::ManArguments),
}

#[global_allocator]
static ALLOCATOR: CountingAllocator<MiMalloc> = CountingAllocator::over(MiMalloc);

fn main() -> ExitCode {
    // Wrong usage ends here with clap's exit code 2, which is also that of a wrong configuration.
    let matches = Arguments::command().get_matches();
    let (arguments, logging) = match prepare(matches) {
        Ok(prepared) => prepared,
        Err(error) => return failure::report(&error, false),
    };
    let is_json = arguments.command.is_json();
    let has_log_file = arguments
        .command
        .log()
        .is_some_and(|(log, _)| log.has_file());
    let result = run(arguments.command);
    let result = result.and_then(|code| Ok(output::check().map(|()| code)?));
    if let (Err(error), true) = (&result, has_log_file) {
        // Standard error has it, too; but who looks for a server that did not start looks into its log.
        tracing::error!("{}", failure::line(error));
    }
    if let Some((log, export)) = logging {
        finish(log, export);
    }
    result.unwrap_or_else(|error| failure::report(&error, is_json))
}

/// The log of a command, and its export of spans.
type Logging = (Log, Option<SpanExport>);

/// Reads the configuration file, if there is one, and starts the log, if the command has one.
fn prepare(mut matches: ArgMatches) -> anyhow::Result<(Arguments, Option<Logging>)> {
    let file = matches
        .subcommand_matches("serve")
        .and_then(|serve| serve.get_one::<std::path::PathBuf>("config"));
    if let Some(path) = file {
        matches = matches_with_file(path)?;
    }
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Some((log, default_level)) = arguments.command.log() else {
        return Ok((arguments, None));
    };
    let is_flag = matches.subcommand().is_some_and(|(_, command)| {
        command.value_source("log_level") == Some(ValueSource::CommandLine)
    });
    let spans = match &arguments.command {
        Command::Serve(serve) => Some(&serve.otlp),
        _ => None,
    };
    let logging = log.start(is_flag, default_level, spans)?;
    Ok((arguments, Some(logging)))
}

/// Parses the command line once more, with the file's values for flags that are left out.
fn matches_with_file(path: &Path) -> anyhow::Result<ArgMatches> {
    let mut error = None;
    let command = Arguments::command().mut_subcommand("serve", |serve| {
        config::with_defaults_of(serve.clone(), path).unwrap_or_else(|cause| {
            error = Some(cause);
            serve
        })
    });
    match error {
        None => Ok(command.get_matches()),
        Some(error) => Err(error.into()),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    // A session costs a descriptor, and the usual soft limit of 1,024 is for programs that use a fixed set.
    if let Err(error) = tidewire_io::descriptors::raise_descriptor_limit() {
        tracing::warn!(%error, "the descriptor limit stays as it is; raise it with `ulimit -n`");
    }
    match command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Call(arguments) => call::run(&arguments),
        Command::Pub(arguments) => topics::run_publish(&arguments),
        Command::Sub(arguments) => topics::run_subscribe(&arguments),
        Command::Token(arguments) => token::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Search(arguments) => load::run_search(&arguments),
        Command::Sweep(arguments) => load::run_sweep(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Ab(arguments) => ab::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Merge(arguments) => load::run_merge(&arguments),
        Command::Report(arguments) => load::run_report(&arguments),
        Command::Cert(arguments) => cert::run(&arguments),
        Command::Completions(arguments) => {
            Ok(generate::completions(Arguments::command(), &arguments))
        }
        Command::Man(arguments) => Ok(generate::man(Arguments::command(), &arguments)?),
    }
}

/// Exports the waiting spans and writes the waiting lines of the log, and reports lost ones.
fn finish(log: Log, export: Option<SpanExport>) {
    // The export logs how it goes.
    if let Some(text) = export.and_then(otlp::finish) {
        // If stderr is closed or blocked, no error can be reported.
        let _ = tell::tell(tell::Stream::Error, text.into());
    }
    let metrics = log.finish();
    if metrics.dropped + metrics.failed > 0 {
        let text = format!(
            "log: offered={} written={} dropped={} failed={}\n",
            metrics.offered, metrics.written, metrics.dropped, metrics.failed
        );
        // If stderr is closed or blocked, no error can be reported.
        let _ = tell::tell(tell::Stream::Error, text.into());
    }
}

impl Command {
    /// Whether programs read the output, and its last object is the error if the command fails.
    fn is_json(&self) -> bool {
        match self {
            Self::Chat(arguments) => arguments.json,
            Self::Call(arguments) => arguments.json,
            Self::Pub(arguments) => arguments.json,
            Self::Sub(arguments) => arguments.json,
            _ => false,
        }
    }

    /// Returns the command's flags about its log, and its default level.
    fn log(&self) -> Option<(&LogArguments, &'static str)> {
        // These commands print the events of the connection themselves; log lines would garble their output.
        match self {
            Self::Serve(arguments) => Some((&arguments.log, serve::LOG_LEVEL)),
            Self::Chat(arguments) => Some((&arguments.log, "error")),
            Self::Call(arguments) => Some((&arguments.log, "error")),
            Self::Pub(arguments) => Some((&arguments.log, "error")),
            Self::Sub(arguments) => Some((&arguments.log, "error")),
            Self::Load(arguments) => Some((&arguments.log, "warn")),
            Self::Search(arguments) => Some((&arguments.levels.log, "warn")),
            Self::Sweep(arguments) => Some((&arguments.levels.log, "warn")),
            _ => None,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidewire load                     test a server of its own
  tidewire serve --app chat
  tidewire chat 127.0.0.1:8080 --name alice
  tidewire serve --app pubsub
  tidewire sub 127.0.0.1:8080 'sensor.>'
  tidewire pub 127.0.0.1:8080 sensor.7.temperature 21.5
  tidewire serve --app rpc
  tidewire call 127.0.0.1:8080 add '2 40'
  tidewire doctor                   what to fix before measuring

Exit codes: 0 success, 2 wrong usage or configuration, 3 the server cannot be reached or the connection ended, \
4 the server refused, 5 no answer in time, 90 an invalid measurement, 99 a limit or a comparison failed or a benchmark lost messages, 130 and 143 ended by a (second) \
Ctrl-C or SIGTERM, 1 anything else.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  tidewire completions bash > ~/.local/share/bash-completion/completions/tidewire
  tidewire completions zsh > \"${fpath[1]}/_tidewire\"
  tidewire completions fish > ~/.config/fish/completions/tidewire.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  tidewire man --out ~/.local/share/man/man1    and then: man tidewire-serve";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }

    /// Regression: shells completed `--poller` and `--policy` with the names of files.
    #[test]
    fn every_flag_whose_values_have_names_offers_them() {
        let mut command = Arguments::command();
        command.build();
        let mut offering = 0;
        for command in command.get_subcommands() {
            let flags = command.get_arguments();
            for flag in flags.filter(|flag| flag.get_action().takes_values()) {
                let name = flag.get_value_names().unwrap_or_default();
                let name = name.first().map_or("", |name| name.as_str());
                let is_open = OPEN.contains(&name);
                let offers = flag.get_possible_values().len() > 1;
                let whole = format!("{} {flag}", command.get_name());
                assert!(is_open || offers, "{whole} offers no names");
                assert!(!is_open || !offers || name == "BOOL", "{whole}");
                offering += u32::from(!is_open);
            }
        }
        assert!(offering > 30, "{offering}");
    }

    /// Names of values that are open: numbers, texts, files and addresses. The rows and peers of the benchmark are
    /// open, too.
    const OPEN: &[&str] = &[
        "ADDR",
        "ARGUMENT",
        "BASE",
        "BIN",
        "BOOL",
        "BYTES",
        "CIDR",
        "DIR",
        "EPOCH:OFFSET|N",
        "FILE",
        "HOST",
        "HOST:PORT",
        "ID",
        "IP:PORT",
        "K/N",
        "LIMITS",
        "METHOD",
        "MODE",
        "N",
        "N,N,…",
        "NAME",
        "NEW",
        "ORIGIN",
        "PARTS",
        "PATTERN",
        "PATTERN[,LIMITS]",
        "PAYLOAD",
        "PERCENT",
        "PREFIX",
        "RATE",
        "ROOM",
        "S",
        "SCENARIO",
        "SUITE",
        "T",
        "TEXT",
        "TIME",
        "TOKENS",
        "TOPIC",
        "URL",
        "all|NAME,...",
        "nats|ADDR",
    ];
}
