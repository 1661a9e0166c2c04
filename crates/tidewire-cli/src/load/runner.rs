//! Runs of a scenario, each with a server of its own if it needs one: the common part of `load`, `search` and `sweep`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use tidewire::Endpoint;
use tidewire::address::Address;
use tidewire::tls::ClientTls;
use tidewire_admin::HttpServer;
use tidewire_command::{output, signals};
use tidewire_io::affinity::available_cores;
use tidewire_io::poller::{POLLER_VARIABLE, PollerChoice};
use tidewire_load::environment::Environment;
use tidewire_load::plan::{Plan, PlanError, RunOptions};
use tidewire_load::report::Report;
use tidewire_load::run::RunError;
use tidewire_load::scenario::{NODES_MAX, SEED_DEFAULT, Scenario, Step};
use tidewire_load::segment::Segment;

use super::child::{DevelopmentCertificate, ServerOptions};
use super::cluster::Cluster;
use super::prometheus::{Metrics, MetricsView};
use super::view::View;
use crate::failure::Failure;
use crate::offered::pollers;
use crate::screen;
use crate::security::SecurityArguments;
use crate::units::{parse_milliseconds, parse_seconds};

// Flags of a run, for every command that makes runs. This is no doc comment, because it would become the help of the
// whole command.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// Test the server at this address instead of that of the scenario. With port 0 or --serve, a server is started
    /// there. Give it once for each node of a cluster; every node has an equal share of the agents
    #[arg(long, value_name = "ADDR")]
    pub(super) target: Vec<Address>,
    /// Start a server of the kind that the scenario needs, a fresh process for every run, at --target or a free port of
    /// tcp://127.0.0.1. At a tls:// address it gets a certificate that is made for the run
    #[arg(long)]
    pub(super) serve: bool,
    /// Start so many servers, each in a process of its own. Default: the scenario's, or one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    nodes: Option<u32>,
    /// The broker between servers that are started for the run: "nats" starts nats-server from the PATH or from
    /// bench/peers/tools; an address such as nats://HOST:PORT is of one that runs. Default: the scenario's, or none,
    /// so that each has its own rooms
    #[arg(long, value_name = "nats|ADDR")]
    backplane: Option<String>,
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
    #[arg(long, value_name = "POLLER", env = POLLER_VARIABLE, default_value = "auto", value_parser = pollers())]
    poller: PollerChoice,
    /// Longest time, in milliseconds or as 5ms, that a server started for the run delays a message for others to share
    /// its write.
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = parse_milliseconds)]
    coalesce_ms_max: Duration,
    /// How long the server may take to accept an agent, in seconds or as 500ms.
    #[arg(long, value_name = "TIME", default_value = "15", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    timeout: Duration,
    /// Print a line a second instead of the live view, which needs a terminal anyway.
    #[arg(long)]
    pub(super) plain: bool,
    /// Answer scrapes of Prometheus at this address while the test runs, for example 127.0.0.1:9464.
    #[arg(long, value_name = "HOST:PORT")]
    prometheus: Option<String>,
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
        let metrics = arguments.prometheus.as_deref().map(export).transpose()?;
        Ok(Self {
            arguments,
            segment: Segment::WHOLE,
            start_at: None,
            stop: signals::stop_flag(way_out(scenario), screen::restore)?,
            metrics,
        })
    }

    pub(super) fn has_own_server(&self, scenario: &Scenario) -> anyhow::Result<bool> {
        Ok(matches!(self.server(scenario)?, RunTargets::Own(_)))
    }

    /// Returns the servers of each run: its own by choice, because no address is given, or because one has port 0,
    /// where no server can be.
    fn server(&self, scenario: &Scenario) -> anyhow::Result<RunTargets> {
        let arguments = self.arguments;
        let mut addresses = arguments.target.clone();
        let mut is_own = arguments.serve;
        if addresses.is_empty() {
            let target = scenario.target.as_deref().filter(|_| !is_own);
            is_own |= target.is_none();
            addresses.push(target.unwrap_or(FREE_PORT).parse()?);
        }
        for address in &addresses {
            is_own |= is_free(address)?;
        }
        if !is_own {
            if arguments.nodes.is_some() || arguments.backplane.is_some() {
                let what = "--nodes and --backplane are for servers that are started for the run";
                let remedy = "add --serve, or name each node of a running cluster with --target";
                return Err(Failure::configuration(what, remedy).into());
            }
            return Ok(RunTargets::Running(addresses));
        }
        let given = addresses.len();
        let nodes = arguments.nodes.or((given == 1).then_some(scenario.nodes));
        let nodes = nodes.map_or(given, |nodes| nodes as usize);
        if given == 1 && is_free(&addresses[0])? {
            addresses = vec![addresses[0].clone(); nodes];
        }
        if addresses.len() != nodes {
            let what = format!("{nodes} servers cannot listen at {given} addresses");
            let remedy = "give --target for each of them, or once with port 0";
            return Err(Failure::configuration(what, remedy).into());
        }
        Ok(RunTargets::Own(addresses))
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
        Environment::detect(tidewire_command::VERSION, tidewire_command::COMMIT)
    }

    /// Makes one run of the whole scenario.
    pub(super) fn run(&self, scenario: &Scenario, view: &mut View) -> anyhow::Result<Report> {
        let chosen = self.server(scenario)?;
        let (server_cores, client_cores) = self.cores(&chosen);
        let (mut options, cluster) = match &chosen {
            RunTargets::Own(addresses) => {
                self.arguments.security.refuse_for_own_server()?;
                let (servers, tls) = self.servers(scenario, addresses, &server_cores)?;
                let backplane = self
                    .arguments
                    .backplane
                    .as_ref()
                    .or(scenario.backplane.as_ref());
                let cluster = Cluster::start(
                    servers,
                    backplane.map(String::as_str),
                    scenario.history.as_ref(),
                )?;
                let mut options = self.options(cluster.targets()?, client_cores);
                options.tls = tls;
                options.processes = cluster.processes();
                (options, cluster)
            }
            RunTargets::Running(addresses) => {
                let security = self.arguments.security.or(&scenario.trust);
                let targets = addresses.iter().map(resolve);
                let targets = targets.collect::<anyhow::Result<_>>()?;
                let mut options = self.options(targets, client_cores);
                options.names.clone_from(addresses);
                options.tls = tls_of(&security, addresses)?;
                options.tokens = security.tokens(&codec(scenario).parse()?)?;
                (options, Cluster::default())
            }
        };
        options.seed = self.seed(scenario);
        view.announce(scenario, &options);
        let mut exported = MetricsView::new(view, self.metrics.as_ref().map(|(it, _)| it));
        let plan = Plan::new(scenario, options).map_err(explain)?;
        let result = plan.run(&mut exported);
        view.finish();
        let facts = result.map_err(|error| match error {
            RunError::Tokens(error) => explain(error.into()),
            error => error.into(),
        })?;
        let report = facts.judge();
        // Its processes would hold the dead ones back.
        drop(plan);
        cluster.stop();
        Ok(report)
    }

    /// The settings of the servers of a run, and those of TLS for their clients. All of them have one certificate.
    fn servers(
        &self,
        scenario: &Scenario,
        addresses: &[Address],
        cores: &[usize],
    ) -> anyhow::Result<(Vec<ServerOptions>, ClientTls)> {
        let certificate = DevelopmentCertificate::of(&addresses[0])?.map(Arc::new);
        let tls = certificate
            .as_ref()
            .map_or_else(ClientTls::new, |it| it.client());
        let app = app(scenario)?;
        let server = |(index, bind): (usize, &Address)| ServerOptions {
            app,
            codec: codec(scenario).to_owned(),
            bind: bind.to_string(),
            poller: self.arguments.poller,
            coalesce_max: self.arguments.coalesce_ms_max,
            core: cores.get(index % cores.len().max(1)).copied(),
            certificate: certificate.clone(),
            flags: Vec::new(),
        };
        Ok((addresses.iter().enumerate().map(server).collect(), tls))
    }

    fn options(&self, targets: Vec<Endpoint>, cores: Vec<usize>) -> RunOptions {
        let spare = available_cores().len().saturating_sub(1).max(1);
        let mut options = RunOptions::new(targets);
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

    /// Returns the cores for the servers of a run and those for the agents; none on a machine with one core or by
    /// choice. Nodes have a core each, as far as that leaves one for the agents, and share them in turn.
    fn cores(&self, chosen: &RunTargets) -> (Vec<usize>, Vec<usize>) {
        let mut cores = available_cores();
        let is_off = self.arguments.pin == Pin::Off;
        let nodes = match chosen {
            RunTargets::Own(addresses) => addresses.len(),
            RunTargets::Running(_) if !self.arguments.target.is_empty() => 0,
            RunTargets::Running(_) => 1,
        };
        if is_off || cores.len() < 2 || nodes == 0 {
            return (Vec::new(), Vec::new());
        }
        let clients = cores.split_off(nodes.min(cores.len() - 1));
        (cores, clients)
    }
}

/// The servers of a run.
#[derive(Debug)]
enum RunTargets {
    /// They are started at these addresses, and end with the run.
    Own(Vec<Address>),
    /// They run already.
    Running(Vec<Address>),
}

/// The settings of TLS for all of these servers.
fn tls_of(security: &SecurityArguments, addresses: &[Address]) -> anyhow::Result<ClientTls> {
    let mut settings = ClientTls::new();
    let name = |address: &Address| address.is_tls().then(|| address.host().map(str::to_owned));
    for address in addresses {
        if name(address) != name(&addresses[0]) && !security.has_server_name() {
            let what =
                "the nodes have several names, and the agents expect one in all certificates";
            let remedy = "name it with --server-name, and give all nodes tls:// addresses or none";
            return Err(Failure::configuration(what, remedy).into());
        }
        settings = security.tls(&address.to_string(), address.host())?;
    }
    Ok(settings)
}

/// Whether this is an address with port 0, which stands for any free port.
fn is_free(address: &Address) -> anyhow::Result<bool> {
    let port = resolve(address)?.socket_address().map(|at| at.port());
    Ok(port == Some(0))
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

/// Returns an endpoint of a server. Of a name with several addresses, the plan takes the one that a client reaches.
fn resolve(target: &Address) -> anyhow::Result<Endpoint> {
    if target.framing().is_some() {
        let what = "the codec of a load test sets the framing of streams, not its target";
        let remedy =
            "leave ?framing= out, and write codec = \"uvrpc:legacy_unframed\" in the scenario";
        return Err(Failure::configuration(what, remedy).into());
    }
    Ok(target.resolve_all()?.swap_remove(0))
}

/// Begins to answer scrapes, and prints the address.
fn export(address: &str) -> anyhow::Result<(Metrics, HttpServer)> {
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

fn explain(error: PlanError) -> anyhow::Error {
    match error {
        PlanError::Descriptors { .. }
        | PlanError::Segment { .. }
        | PlanError::Unmatched { .. }
        | PlanError::NoPlaceForTokens { .. }
        | PlanError::NoProcess { .. }
        | PlanError::NoHistory
        | PlanError::Untracked { .. }
        | PlanError::MixedTargets
        | PlanError::TooLarge { .. }
        | PlanError::Unencodable { .. } => Failure::configuration(error.to_string(), "").into(),
        PlanError::Tokens(_) => {
            let remedy = "name a file with one token in each line with --token-file";
            Failure::configuration(error.to_string(), remedy).into()
        }
        PlanError::NoRooms(_, ref source) => {
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
