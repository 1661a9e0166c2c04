//! `tidewire top`: the dashboard of a server in a terminal, from its admin API.

mod client;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tidewire::auth::Token;
use tidewire_command::{output, signals};

use crate::failure::Failure;
use crate::payload::json_text;
use crate::screen::{self, Screen};
use client::AdminClient;
use view::View;

/// Show a running server: rates, lanes, memory, the slowest subscribers. The server needs --admin
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArguments {
    /// Address of the server's --admin: HOST:PORT, http://HOST:PORT/ or, with --admin-tls there, https://HOST:PORT/
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:9090")]
    address: String,

    /// Print the figures of one second and end
    #[arg(long)]
    once: bool,

    /// Print them as JSON: the answer of /api/overview
    #[arg(long, requires = "once")]
    json: bool,

    /// The file with the token of --admin-token-file, which other users may not read
    // A token itself is never an argument, because other users of the machine see those.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Authorities to trust for https://, in PEM, beside those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Send the token to another machine without encryption: for closed networks
    #[arg(long)]
    insecure: bool,
}

/// Shows the server until Ctrl-C or q, or once.
pub(crate) fn run(arguments: &TopArguments) -> anyhow::Result<ExitCode> {
    let token = arguments.token_file.as_deref().map(Token::read).transpose();
    let token = token.map_err(|error| {
        Failure::configuration(error.to_string(), "name the file that the server has, too")
    })?;
    let client = AdminClient::new(
        &arguments.address,
        token,
        arguments.ca.as_deref(),
        arguments.insecure,
    )?;
    match arguments.once {
        true => show_once(&client, arguments.json),
        false => show(&client, &arguments.address),
    }
}

fn show_once(client: &AdminClient, is_json: bool) -> anyhow::Result<ExitCode> {
    // The first look has no rates.
    client.overview()?;
    thread::sleep(EVERY);
    let overview = client.overview()?;
    match is_json {
        true => output::print_line(json_text(&overview)),
        false => output::print(View::new(client.name()).to_text(&overview)),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(client: &AdminClient, name: &str) -> anyhow::Result<ExitCode> {
    if !Screen::is_possible() {
        let what = "standard error is no terminal that can show a view";
        return Err(Failure::configuration(what, "use --once, with --json for a script").into());
    }
    // A server that cannot be reached is an error, and one that goes away later is waited for.
    let first = client.overview()?;
    let stop = signals::stop_flag(Duration::from_secs(10), screen::restore)?;
    let mut view = View::new(name);
    view.add(first);
    let mut screen = Screen::start()?;
    while !stop.load(Ordering::Relaxed) {
        screen.draw(|frame| view.render(frame))?;
        let next = Instant::now() + EVERY;
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            if screen::wait_for_quit(STOP_CHECK) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        match client.overview() {
            Ok(overview) => view.add(overview),
            Err(error) => view.lose(error.to_string()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// The interval in which Ctrl-C and keys are noticed.
const STOP_CHECK: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Examples:
  tidewire top                      after: tidewire serve --admin 127.0.0.1:9090
  tidewire top 127.0.0.1:9090 --once
  tidewire top 127.0.0.1:9090 --once --json | jq '.rates.delivered'
  ssh -L 9090:127.0.0.1:9090 HOST   and then: tidewire top --token-file admin.token

q or Ctrl-C ends it.

Exit codes: 0 shown, 2 wrong usage, 3 there is no admin server at the address, 4 the token is missing or wrong.";
