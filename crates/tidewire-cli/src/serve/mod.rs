//! `tidewire serve`: runs a ready-made server until it is stopped.
//!
//! Every event that can end the wait arrives on one channel: a signal, the end of stdin if the server follows its
//! parent, the end of the drain. A second signal is not waited for: it ends the process.

mod admin;
mod announce;
mod apps;
#[cfg(feature = "nats")]
mod backplane;
mod drain;
mod ending;
mod exposure;
mod history;
mod limits;
mod operate;
mod parse;
mod reload;
mod rpc;
mod sink;
mod summary;
mod web;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use serde_json::json;
use tidewire::address::Address;
use tidewire::auth::Chain;
use tidewire::metrics::Inspector;
use tidewire::{AnyCodec, Limits, Policy, Server, ServerBuilder};
use tidewire_admin::{Admin, BoundAdmin};
use tidewire_command::tell::{Stream, tell};
use tidewire_command::{output, threads};
use tidewire_io::poller::{POLLER_VARIABLE, PollerChoice};
use tidewire_load::lane_account::LaneAccount;
use tidewire_proto::codec::Codec;

use crate::config;
use crate::connection::is_udp;
use crate::failure::Failure;
use crate::logging::{self, LogArguments};
use crate::offered::{codecs, policies, pollers};
use crate::otlp::OtlpArguments;
use crate::ready::{Ready, to_connect_to};
use crate::systemd::{self, Notifier};
use crate::tls::ServerTlsArguments;
use crate::units::parse_milliseconds;
use admin::{AdminArguments, AdminServers};
use apps::App;
use drain::DrainArguments;
use ending::{Ending, judge, watch_signals};
use exposure::Protection;
use history::HistoryRule;
use limits::LimitArguments;
use operate::{Operator, Wake};
use parse::{methods, parse_mode, sockets, with_value};
use reload::{ServedUsers, Settings};

/// Flags of `tidewire serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(with_value))]
pub(crate) struct ServeArguments {
    /// The application to serve
    #[arg(long, value_enum, default_value = "chat")]
    app: App,

    /// The methods of --app rpc that this server has, with commas between them [default: all]. With --backplane,
    /// requests for the others go to servers that have them
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = methods())]
    methods: Vec<String>,

    /// Address to listen on, tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH,
    /// udp://HOST:PORT or ipc://PATH; may be repeated. Port 0 takes a free one. ?codec=NAME after an address sets
    /// another codec there, with settings as in --codec. With uvrpc, ?framing=none is for peers that put no length in
    /// front of frames; two parameters have & between them
    #[arg(long = "bind", value_name = "ADDR")]
    #[arg(default_value = "tcp://127.0.0.1:8080")]
    binds: Vec<String>,

    /// The codec of messages: tw1 for programs, json for programs without a library, lines for people with nc; echo and
    /// sink also speak srmp, srmp-rpc, length-field, delimited, raw and uvrpc, with settings as in length-field:size=4
    #[arg(long, value_name = "CODEC", default_value = "tw1", value_parser = codecs(), hide_possible_values = true)]
    codec: AnyCodec,

    /// The number of lanes, which are threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: usize,

    /// The poller of the lanes
    #[arg(long, env = POLLER_VARIABLE, default_value = "auto", value_parser = pollers())]
    poller: PollerChoice,

    /// Longest time a message of a room or topic waits for others to share its write, in milliseconds or as 5ms
    #[arg(long, value_name = "TIME", value_parser = parse_milliseconds)]
    #[arg(default_value = "5", allow_negative_numbers = true)]
    coalesce_ms_max: Duration,

    /// The policy for a subscriber that does not keep up; conflate keeps the latest message, conflate_by_topic the
    /// latest of each topic
    #[arg(long, value_name = "POLICY", default_value_t, value_parser = policies())]
    slow_subscriber: Policy,

    /// Rooms or topics that keep their newest messages for those who join or come back: a name, or a pattern with *
    /// or >, and after commas messages=N (default 50), bytes=SIZE (64k), age=TIME (any) and names=N (1024); may be
    /// repeated, and the first that matches counts
    #[arg(long, value_name = "PATTERN[,LIMITS]", value_parser = HistoryRule::parse)]
    history: Vec<HistoryRule>,

    #[command(flatten)]
    drain: DrainArguments,

    /// Send clients over udp:// more than they sent although their codec cannot validate their addresses: for closed
    /// networks, and rooms with --codec lines
    #[arg(long)]
    trust_datagram_peers: bool,

    /// Drain when stdin ends, so that a parent that dies takes this server along. Each line until then is answered with
    /// a JSON object on stdout: the lanes' system calls and allocations so far
    #[arg(long)]
    exit_with_stdin: bool,

    #[command(flatten)]
    limits: LimitArguments,

    /// The file with the tokens of users, as `tidewire token new` writes it. Only these users may connect, with the
    /// permissions of [auth] and [[users]] in the --config; without those they may do everything. Both are read again
    /// when they change, and at SIGHUP
    #[arg(long, value_name = "FILE")]
    auth_tokens: Option<PathBuf>,

    /// The file with the issuers of JSON Web Tokens and their keys; docs/security.md has its form. Whoever has a valid
    /// token may connect, with the permissions of the user that it names, or else those of [auth.default_permissions]
    #[arg(long, value_name = "FILE")]
    auth_jwt: Option<PathBuf>,

    /// Serve addresses that other machines reach without encryption and users, and ipc://@NAME, which all users of this
    /// machine reach, without users: for closed networks
    #[arg(long)]
    insecure: bool,

    /// The permission bits of the files of ipc:// sockets, in octal. The default, 600, lets only your own user connect;
    /// 660 lets your group connect, too
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    unix_mode: Option<u32>,

    /// Print a JSON object when ready, {"event":"ready","addresses":…}, and one at the end, {"event":"served",…}
    #[arg(long)]
    json: bool,

    /// Read flags from this file; every flag is a key with underscores, and the command line overrides it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Origin whose pages may open the ws:// and wss:// addresses, such as https://example.com or
    /// https://*.example.com; may be repeated, and * allows all. Pages of the server's own host may connect anyway, if
    /// that is an IP address or localhost, and pages of this machine at addresses of this machine
    #[arg(long = "ws-origin", value_name = "ORIGIN")]
    ws_origin: Vec<String>,

    /// Serve a chat page for browsers at the paths of the ws:// and wss:// addresses, for --app chat
    #[arg(long)]
    web: bool,

    /// Address of a proxy, or range of them as 10.0.0.0/8, whose TCP connections begin with a header of the PROXY
    /// protocol; several with commas. The address that the header names is the client's, for limits, users and the log
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    proxy_protocol_from: Vec<String>,

    /// Address of a proxy, or range of them as 10.0.0.0/8, that writes the address of its client into requests, in
    /// X-Forwarded-For or Forwarded, at ws:// and wss:// addresses and at --admin; several with commas
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    forwarded_for_from: Vec<String>,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    backplane: backplane::BackplaneArguments,

    #[command(flatten)]
    tls: ServerTlsArguments,

    #[command(flatten)]
    admin: AdminArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    #[command(flatten)]
    pub(crate) otlp: OtlpArguments,
}

impl ServeArguments {
    /// The command `serve` with its flags, which are the keys of a configuration.
    pub(crate) fn command() -> Command {
        Self::augment_args(Command::new("serve"))
    }

    /// The limits of a server with this configuration file and no flags.
    pub(crate) fn limits_of(file: &Path) -> Limits {
        let command = config::with_defaults_of(Self::command(), file).ok();
        // A file that only has users need not say which app it is for.
        let matches = command.and_then(|it| it.try_get_matches_from(["serve"]).ok());
        let limits = matches.and_then(|it| LimitArguments::from_arg_matches(&it).ok());
        limits.map_or_else(Limits::default, |it| it.limits())
    }

    /// The longest time from the first signal to the end.
    fn ending_time(&self) -> Duration {
        self.drain.time() + OVERTIME
    }
}

/// Serves until stopped. A drain that was cut short is a failure, because its sessions got no go-away.
pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<ExitCode> {
    let (sender, wakes) = mpsc::channel();
    let ending = Arc::new(Ending::default());
    // The handler is installed first, so that the system does not handle a signal during the start.
    watch_signals(arguments, sender.clone(), &ending)?;
    announce::begin(arguments);
    let settings = Settings::read(arguments);
    let mut users = ServedUsers::read(arguments)?;
    let tls = arguments.tls.certificate();
    let forwarders = &arguments.forwarded_for_from;
    let admin = arguments.admin.bind(tls, &arguments.binds, forwarders)?;

    let drain = arguments.drain.clone();
    let follow_stdin = arguments.exit_with_stdin;
    // The admin server answers until this function returns.
    let (server, _admin) = start(arguments, users.take_authenticator(), admin, &ending)?;
    if follow_stdin {
        watch_stdin(sender.clone(), server.inspector())?;
    }
    let notifier = Notifier::start(&server)?;
    let mut operator = Operator::new(server, users, settings, notifier);
    operator.run(&wakes);
    operator.leave_service(&wakes, arguments);

    logging::hurry();
    tracing::info!(deadline = ?drain.deadline(), "draining; another Ctrl-C stops at once");
    let server = operator.server;
    threads::start("drain", move || {
        // The main thread waits for this.
        let _ = sender.send(Wake::Drained(Box::new(drain.end(server))));
    })?;
    loop {
        match wakes.recv() {
            Ok(Wake::Drained(stopped)) => {
                // The program that started this server has a report of its own.
                ending.is_told.store(true, Ordering::SeqCst);
                if arguments.log.has_file() {
                    tracing::info!("{}", summary::line(&stopped.metrics));
                }
                if arguments.json || !follow_stdin || tracing::enabled!(tracing::Level::INFO) {
                    summary::print(&stopped.metrics, arguments.json);
                }
                return judge(&stopped);
            }
            Ok(Wake::Reload) => {
                operate::RELOAD_WAITS.store(false, Ordering::SeqCst);
                logging::reopen();
            }
            // The drain is in progress already, and the summary comes at its end.
            Ok(Wake::StdinEnded | Wake::Signal | Wake::Summary) => {}
            Err(_) => {
                let remedy = "start it again, and please report it as a bug";
                return Err(Failure::other("the drain failed", remedy).into());
            }
        }
    }
}

/// Starts the server with the service of its app.
fn start_app(arguments: &ServeArguments, builder: ServerBuilder) -> anyhow::Result<Server> {
    let (policy, kept) = (arguments.slow_subscriber, &arguments.history);
    #[cfg(feature = "nats")]
    let is_node = arguments.backplane.is_node();
    #[cfg(not(feature = "nats"))]
    let is_node = false;
    let app = arguments.app;
    app.start(builder, policy, kept, &arguments.methods, is_node)
}

/// Names the proxies in front of a server.
fn behind_proxies(
    mut builder: ServerBuilder,
    arguments: &ServeArguments,
) -> anyhow::Result<ServerBuilder> {
    for (flag, networks) in [
        ("--proxy-protocol-from", &arguments.proxy_protocol_from),
        ("--forwarded-for-from", &arguments.forwarded_for_from),
    ] {
        exposure::check_proxies(flag, networks, arguments.insecure)?;
    }
    for network in &arguments.forwarded_for_from {
        builder = builder.forwarded_for_from(network).map_err(|error| {
            Failure::configuration(format!("--forwarded-for-from: {error}"), "")
        })?;
    }
    for network in &arguments.proxy_protocol_from {
        builder = builder.proxy_protocol_from(network).map_err(|error| {
            let remedy = "correct --proxy-protocol-from";
            Failure::configuration(error.to_string(), remedy)
        })?;
    }
    Ok(builder)
}

fn start(
    arguments: &ServeArguments,
    authenticator: Option<Chain>,
    admin: AdminServers<BoundAdmin>,
    ending: &Ending,
) -> anyhow::Result<(Server, AdminServers<Admin>)> {
    let protection = Protection {
        authenticates: authenticator.is_some(),
        is_waived: arguments.insecure,
    };
    exposure::check(&arguments.binds, protection)?;
    let mut builder = Server::builder()
        .codec(arguments.codec.clone())
        .lanes(arguments.lanes)
        .poller(arguments.poller)
        .limits(arguments.limits.limits())
        .coalesce_max(arguments.coalesce_ms_max)
        .slow_subscribers(arguments.slow_subscriber)
        .trust_datagram_peers(arguments.trust_datagram_peers);
    builder = arguments.limits.limit_age(builder);
    builder = behind_proxies(builder, arguments)?;
    builder = with_tls(arguments, builder)?;
    #[cfg(feature = "nats")]
    {
        let services = arguments.app.services(&arguments.methods);
        builder = arguments
            .backplane
            .join(builder, &arguments.history, services)?;
    }
    if let Some(mode) = arguments.unix_mode {
        builder = builder.socket_options(sockets(mode));
    }
    if !arguments.ws_origin.is_empty() {
        builder = builder
            .websocket_origins(&arguments.ws_origin)
            .map_err(|error| Failure::configuration(error.to_string(), "correct --ws-origin"))?;
    }
    if let Some(page) = web::page(arguments)? {
        builder = builder.websocket_page(page);
    }
    if let Some(authenticator) = authenticator {
        builder = builder.authenticate(authenticator);
    }
    for socket in systemd::passed_sockets()? {
        builder = builder.passed_socket(socket);
    }
    for bind in &arguments.binds {
        if bind.starts_with("inproc://") {
            let what =
                format!("no client could connect to {bind}: an inproc name belongs to one process");
            let remedy = "use --bind ipc://PATH for clients on this machine";
            return Err(Failure::configuration(what, remedy).into());
        }
        builder = builder.listen(bind)?;
    }
    for bind in &arguments.binds {
        for codec in arguments.codecs_at(bind)? {
            arguments.app.check(&codec)?;
        }
    }
    arguments.app.check_history(&arguments.history)?;
    arguments.app.check_methods(&arguments.methods)?;
    let server = start_app(arguments, builder)?;
    // From here on a signal drains. Only this line sets it.
    let _ = ending.inspector.set(server.inspector());
    // A name may have another address now than at the first check.
    exposure::check_endpoints(server.addresses(), protection)?;
    for bind in arguments.binds.iter().filter(|bind| is_udp(bind)) {
        for codec in arguments.codecs_at(bind)? {
            warn_of_short_budgets(arguments, &codec);
        }
    }
    arguments.drain.warn_if_none_follows(&arguments.binds);
    let admin = admin.serve(&server)?;
    tell_ready(arguments, &server, &admin)?;
    Ok((server, admin))
}

fn with_tls(arguments: &ServeArguments, builder: ServerBuilder) -> anyhow::Result<ServerBuilder> {
    let Some(tls) = arguments.tls.settings()? else {
        return Ok(builder);
    };
    let is_encrypted = |bind: &String| bind.starts_with("tls://") || bind.starts_with("wss://");
    if !arguments.binds.iter().any(is_encrypted) && !arguments.admin.is_encrypted() {
        tracing::warn!(
            "nothing is encrypted: no address to listen on begins with tls:// or wss://, and there is no --admin-tls"
        );
    }
    Ok(builder.tls(tls))
}

/// Tells on stdout where the server listens.
fn tell_ready(
    arguments: &ServeArguments,
    server: &Server,
    admin: &AdminServers<Admin>,
) -> anyhow::Result<()> {
    let ready = Ready {
        addresses: to_connect_to(&arguments.binds, server.addresses())?,
        codec: arguments.codec.name().to_owned(),
        lanes: arguments.lanes,
        poller: server.poller().to_string(),
        admin: admin.admin.as_ref().map(|it| it.url().to_owned()),
        health: admin.health.as_ref().map(|it| it.url().to_owned()),
    };
    web::tell(arguments, &ready.addresses);
    announce::listening(arguments, &ready, server);
    let text = match arguments.json {
        true => ready.to_json(),
        false => ready.to_string(),
    };
    if let Err(error) = tell(Stream::Out, text.into()) {
        // The reader of the line is gone; the sessions may still need the server.
        tracing::warn!(%error, "cannot say on stdout where this server listens");
        tracing::info!("listening on {}", ready.addresses.join(", "));
        output::remember(Err(error));
    }
    Ok(())
}

impl ServeArguments {
    /// The codecs at an address to listen on.
    fn codecs_at(&self, bind: &str) -> anyhow::Result<Vec<AnyCodec>> {
        let mut codecs: Vec<_> = bind.parse::<Address>()?.codecs().collect();
        if codecs.is_empty() {
            codecs.push(self.codec.clone());
        }
        Ok(match is_udp(bind) {
            true => codecs.into_iter().map(AnyCodec::for_datagrams).collect(),
            false => codecs,
        })
    }
}

/// Warns at the start about answers that will be missing, because clients see only that none comes. The codec is that
/// of an address over UDP.
fn warn_of_short_budgets(arguments: &ServeArguments, spoken: &AnyCodec) {
    if spoken.format().proves_addresses() || arguments.trust_datagram_peers {
        return;
    }
    if arguments.app.has_subscribers() && spoken.format().registers_subscribers {
        tracing::warn!(
            codec = spoken.name(),
            "every subscriber over udp:// is refused, because this codec proves no address; use --trust-datagram-peers in \
             a closed network"
        );
    } else if arguments.app.says_more_than_it_hears() {
        tracing::warn!(
            codec = spoken.name(),
            "over udp:// whatever is longer than what the client sent is dropped, because this codec proves no \
             address; use --codec tw1, or --trust-datagram-peers in a closed network"
        );
    }
}

fn watch_stdin(sender: Sender<Wake>, inspector: Inspector) -> io::Result<()> {
    threads::start("stdin", move || {
        let mut buffer = [0; 256];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(count @ 1..) => {
                    // Each line is answered with the lanes' account so far.
                    let lines = buffer[..count].iter().filter(|byte| **byte == b'\n');
                    lines.for_each(|_| {
                        output::print_line(json!(LaneAccount::of(&inspector.metrics())));
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        // The main thread is gone only if the server has stopped already.
        let _ = sender.send(Wake::StdinEnded);
    })
}

/// The additional time of a server to end after its drain: lanes wait for each other, and for a log that is not read.
const OVERTIME: Duration = Duration::from_secs(15);

/// The log level of a server for which none is set.
pub(crate) const LOG_LEVEL: &str = "info";

const EXAMPLES: &str = "\
Examples:
  tidewire serve --app chat
  tidewire serve --app rpc --codec srmp-rpc
  tidewire serve --app pubsub --slow-subscriber drop_oldest
  tidewire serve --config examples/tidewire.toml --lanes 2 --log-file serve.log
  tidewire serve --bind tcp://127.0.0.1:8080 --bind ipc:///tmp/chat.sock
  tidewire serve --auth-tokens tokens     after: tidewire token new ann --file tokens
  tidewire serve --bind tls://0.0.0.0:8443 --tls-cert server.pem --tls-key server.key --auth-tokens tokens
  tidewire serve --bind tls://0.0.0.0:8443 --tls-cert server.pem --tls-key server.key --auth-jwt jwt.toml
  tidewire serve --bind ws://127.0.0.1:8080/chat     for pages in browsers, and then: tidewire chat ws://127.0.0.1:8080/chat
  tidewire serve --bind ws://127.0.0.1:8080 --web     then open http://127.0.0.1:8080 in a browser
  tidewire serve --codec lines --bind tcp://127.0.0.1:8081     then: nc 127.0.0.1 8081
  tidewire serve --app rpc --codec uvrpc --bind tcp://127.0.0.1:5555 --bind 'ipc:///tmp/uvrpc.sock?framing=none'
  tidewire serve --app echo --codec raw --bind udp://127.0.0.1:8082     then: nc -u 127.0.0.1 8082

Ctrl-C drains: sessions are told and may finish. A second Ctrl-C stops at once. SIGHUP, which a terminal that is closed \
sends, too, opens the --log-file again, reads the log level and the limits of the --config, certificate, users, tokens and keys again, and \
stops nothing. SIGUSR1 logs the counters. Under systemd it says when it is ready, and takes the sockets that a socket unit \
passes for the --bind addresses that they have.

Exit codes: 0 it was told to stop, 1 a lane failed or the drain reached its deadline, 2 wrong usage or configuration, 3 the \
backplane cannot be reached, 4 it refuses this server, 130 a second Ctrl-C (143 a second SIGTERM), or a drain that did not end.";
