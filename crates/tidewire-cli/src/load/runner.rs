//! Runs of a scenario, each with a server of its own if it needs one: the common part of `load`, `search` and `sweep`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use tidewire::{Address, Endpoint};
use tidewire_admin::HttpServer;
use tidewire_io::affinity::available_cores;
use tidewire_io::poller::{POLLER_VARIABLE, PollerChoice};
use tidewire_load::environment::Environment;
use tidewire_load::report::Report;
use tidewire_load::run::{RunError, RunOptions};
use tidewire_load::scenario::{SEED_DEFAULT, Scenario, Step};
use tidewire_load::segment::Segment;

use super::child::{ChildOptions, ChildServer};
use super::progress::View;
use super::prometheus::{Exported, Metrics};
use crate::connection::parse_seconds;
use crate::failure::Failure;
use crate::security::SecurityArguments;
use crate::{output, screen, signals};

// Flags of a run, for every command that makes runs. This is no doc comment, because it would become the help of the
// whole command.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// Test the server at this address instead of that of the scenario. With port 0 or --serve, a server is started there
    #[arg(long, value_name = "ADDR")]
    pub(super) target: Option<Address>,
    /// Start a server of the kind that the scenario needs, a fresh process for every run, at --target or a free port of
    /// tcp://127.0.0.1. At a tls:// address it gets a certificate that is made for the run
    #[arg(long)]
    pub(super) serve: bool,
    #[command(flatten)]
    security: SecurityArguments,
    /// Seed of all random choices; the same seed offers the same load. Default: the scenario's, or 42.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Threads that carry the agents. Default: the cores that are left beside the server, at least 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    client_lanes: Option<u16>,
    /// Keep server and agents on cores of their own, where there are two.
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pin: Pin,
    /// Poller of the agents and of a server that is started for the run.
    #[arg(long, value_name = "auto|epoll|poll|select|uring", env = POLLER_VARIABLE, default_value = "auto")]
    poller: PollerChoice,
    /// Longest time, in milliseconds, that a server started for the run delays a message for others to share its write.
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    coalesce_ms_max: f64,
    /// How long the server may take to accept an agent, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    timeout: Duration,
    /// Print a line a second instead of the live view, which needs a terminal anyway.
    #[arg(long)]
    pub(super) plain: bool,
    /// Answer scrapes of Prometheus at this address while the test runs, for example 127.0.0.1:9464.
    #[arg(long, value_name = "HOST:PORT")]
    prometheus: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pin {
    Auto,
    Off,
}

#[derive(Debug)]
pub(super) struct Runner<'a> {
    arguments: &'a RunArguments,
    /// The share of the scenario.
    pub(super) segment: Segment,
    /// The time when the share begins to send.
    pub(super) start_at: Option<SystemTime>,
    stop: Arc<AtomicBool>,
    /// The figures for scrapes, and the server that answers them.
    metrics: Option<(Metrics, HttpServer)>,
}

impl<'a> Runner<'a> {
    /// Creates a runner. From now on the first signal ends the run early, with a report, and the second one the
    /// program.
    pub(super) fn new(arguments: &'a RunArguments, scenario: &Scenario) -> anyhow::Result<Self> {
        let metrics = arguments.prometheus.map(export).transpose()?;
        Ok(Self {
            arguments,
            segment: Segment::WHOLE,
            start_at: None,
            stop: signals::stop_flag(way_out(scenario), screen::restore)?,
            metrics,
        })
    }

    /// Whether each run has a server of its own.
    pub(super) fn has_own_server(&self, scenario: &Scenario) -> anyhow::Result<bool> {
        Ok(matches!(self.server(scenario)?, Chosen::Own(_)))
    }

    /// Returns the server of each run: one of its own by choice, because no address is given, or because that has port 0,
    /// where no server can be.
    fn server(&self, scenario: &Scenario) -> anyhow::Result<Chosen> {
        let free = || -> anyhow::Result<Address> { Ok(FREE_PORT.parse()?) };
        let address = match (&self.arguments.target, &scenario.target) {
            (Some(target), _) => target.clone(),
            (None, Some(target)) if !self.arguments.serve => target.parse()?,
            (None, _) => return Ok(Chosen::Own(free()?)),
        };
        let is_own = self.arguments.serve
            || resolve(&address)?
                .socket_address()
                .is_some_and(|at| at.port() == 0);
        Ok(match is_own {
            true => Chosen::Own(address),
            false => Chosen::Running(address),
        })
    }

    /// Whether the user stopped the command.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The seed of every run of this scenario.
    pub(super) fn seed(&self, scenario: &Scenario) -> u64 {
        self.arguments
            .seed
            .or(scenario.seed)
            .unwrap_or(SEED_DEFAULT)
    }

    pub(super) fn environment() -> Environment {
        Environment::detect(env!("CARGO_PKG_VERSION"), env!("TIDEWIRE_COMMIT"))
    }

    /// Makes one run of the whole scenario.
    pub(super) fn run(&self, scenario: &Scenario, view: &mut View) -> anyhow::Result<Report> {
        let chosen = self.server(scenario)?;
        let (server_core, client_cores) = self.cores(&chosen);
        let (mut options, child) = match &chosen {
            Chosen::Own(bind) => {
                self.arguments.security.refuse_for_own_server()?;
                let child = ChildServer::start(&ChildOptions {
                    app: app(scenario)?,
                    codec: codec(scenario),
                    bind: &bind.to_string(),
                    poller: self.arguments.poller,
                    coalesce_ms_max: self.arguments.coalesce_ms_max,
                    core: server_core,
                })?;
                let mut options = self.options(child.address().clone(), client_cores);
                options.tls = child.tls();
                (options, Some(child))
            }
            Chosen::Running(address) => {
                let security = self.arguments.security.or(&scenario.trust);
                let mut options = self.options(resolve(address)?, client_cores);
                options.tls = security.tls(&address.to_string(), address.host())?;
                options.tokens = security.tokens(&codec(scenario).parse()?)?;
                (options, None)
            }
        };
        options.seed = self.seed(scenario);
        options.server_pid = child.as_ref().map(ChildServer::pid);
        options.server_probe = child.as_ref().map(ChildServer::probe);
        view.announce(scenario, &options);
        let mut exported = Exported::new(view, self.metrics.as_ref().map(|(it, _)| it));
        let result = tidewire_load::run::run(scenario, &options, &mut exported);
        view.finish();
        let report = result.map_err(explain)?;
        if let Some(child) = child {
            child.stop();
        }
        Ok(report)
    }

    fn options(&self, address: Endpoint, cores: Vec<usize>) -> RunOptions {
        let spare = available_cores().len().saturating_sub(1).max(1);
        let mut options = RunOptions::new(address);
        options.answer_timeout = self.arguments.timeout;
        options.segment = self.segment;
        options.start_at = self.start_at;
        options.lanes = self.arguments.client_lanes.map_or(spare, usize::from);
        options.cores = cores;
        options.poller = self.arguments.poller;
        options.environment = Self::environment();
        options.stop = Arc::clone(&self.stop);
        options
    }

    /// Returns the core for the server of a run and those for the agents; none on a machine with one core or by choice.
    fn cores(&self, chosen: &Chosen) -> (Option<usize>, Vec<usize>) {
        let mut cores = available_cores();
        let is_off = self.arguments.pin == Pin::Off;
        let is_elsewhere = self.arguments.target.is_some() && matches!(chosen, Chosen::Running(_));
        if is_off || cores.len() < 2 || is_elsewhere {
            return (None, Vec::new());
        }
        let server = cores.remove(0);
        (Some(server), cores)
    }
}

/// The server of a run.
#[derive(Debug)]
enum Chosen {
    /// It is started at this address, and ends with the run.
    Own(Address),
    /// It runs already.
    Running(Address),
}

/// The codec that all steps speak.
fn codec(scenario: &Scenario) -> &str {
    scenario.steps.first().map_or("tw1", |step| &step.codec)
}

/// Returns the application of a server that all steps can be run against.
fn app(scenario: &Scenario) -> anyhow::Result<&'static str> {
    let mut apps = scenario.steps.iter().map(|step| step.pattern.app());
    let first = apps.next().unwrap_or("chat");
    if let Some(other) = apps.find(|app| *app != first) {
        let what = format!("the steps need servers of two kinds, {first} and {other}");
        let remedy = "give them scenarios of their own, or test a running server with --target";
        return Err(Failure::configuration(what, remedy).into());
    }
    Ok(first)
}

fn resolve(target: &Address) -> anyhow::Result<Endpoint> {
    if target.framing().is_some() {
        let what = "the codec of a load test sets the framing of streams, not its target";
        let remedy =
            "leave ?framing= out, and write codec = \"uvrpc:legacy_unframed\" in the scenario";
        return Err(Failure::configuration(what, remedy).into());
    }
    Ok(target.resolve()?)
}

/// Begins to answer scrapes, and prints the address.
fn export(address: SocketAddr) -> anyhow::Result<(Metrics, HttpServer)> {
    let (metrics, server) = Metrics::serve(address).map_err(|error| {
        let what = format!("cannot answer scrapes at {address}: {error}");
        let remedy = "name another address with --prometheus, such as 127.0.0.1:0";
        Failure::configuration(what, remedy)
    })?;
    output::note(format_args!(
        "metrics at http://{}/metrics",
        server.address()
    ));
    Ok((metrics, server))
}

fn explain(error: RunError) -> anyhow::Error {
    match error {
        RunError::Descriptors { .. }
        | RunError::Segment { .. }
        | RunError::Unmatched { .. }
        | RunError::NoPlaceForTokens { .. }
        | RunError::TooLarge { .. } => Failure::configuration(error.to_string(), "").into(),
        RunError::Tokens(_) => {
            let remedy = "name a file with one token in each line with --token-file";
            Failure::configuration(error.to_string(), remedy).into()
        }
        RunError::NoRooms(_, ref source) => {
            let what = format!("{error}: {source}");
            let remedy = "test a chat server: start it with `tidewire serve --app chat`";
            Failure::refused(what, remedy).into()
        }
        error => anyhow::Error::from(error),
    }
}

/// The maximum time of a run to end and to write its report after it was told to end: the longest drain of a step, and
/// a moment more. Its output does not count, because it is not waited for any more.
fn way_out(scenario: &Scenario) -> Duration {
    let drains = scenario.steps.iter().map(Step::drain_max);
    WAY_OUT + drains.max().unwrap_or_default()
}

/// The address of a server that is started when nothing names one.
const FREE_PORT: &str = "tcp://127.0.0.1:0";

/// The maximum time of a run to end, in addition to its drain.
const WAY_OUT: Duration = Duration::from_secs(15);
