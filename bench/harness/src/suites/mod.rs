//! The suites: what is measured. Each has a file, with its rows and how our two programs play their parts.

#[cfg(feature = "nats")]
mod cluster;
mod composite;
mod course;
mod echo;
mod fanout;
mod frame_link;
mod idle;
mod ingest;
mod inproc;
mod lane_client;
mod locked_log;
mod logging;
mod memory;
mod numbers;
#[cfg(test)]
mod played;
mod pollers;
mod pubsub;
mod rpc;
mod startup;
mod tls;
mod visitors;
mod websocket;
mod workers;

use std::hint::black_box;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::NamedTempFile;
use tidewire::address::Address;
use tidewire::log::LogWriter;
use tidewire::metrics::Metrics;
use tidewire::{AnyCodec, Endpoint, Kind, Limits, Message, Server, ServerBuilder, Service};
use tidewire_io::descriptors::descriptor_limit;
use tidewire_io::socket::{Listener, SocketAddress, SocketOptions};
use tidewire_load::toml_file::nearest_key;
use tidewire_proto::codec::Codec;
use tracing::Dispatch;

use super::contract::{Account, Work};
use super::plan::{RoleError, Side, Suite};
use super::stage::{OrFailed, Stage};

/// All suites, in the order in which they run.
pub static SUITES: &[Suite] = &[
    echo::SUITE,
    ingest::SUITE,
    fanout::SUITE,
    #[cfg(feature = "nats")]
    cluster::SUITE,
    pollers::SUITE,
    workers::SUITE,
    logging::SUITE,
    composite::SUITE,
    rpc::SUITE,
    pubsub::SUITE,
    memory::SUITE,
    startup::SUITE,
    tls::SUITE,
    websocket::SUITE,
];

/// The suite of this name, or else the nearest name.
///
/// # Errors
/// There is no such suite; the name that was probably meant, if any resembles it.
pub fn by_name(name: &str) -> Result<&'static Suite, Option<&'static str>> {
    let suite = SUITES.iter().find(|suite| suite.name == name);
    suite.ok_or_else(|| {
        let names: Vec<&'static str> = SUITES.iter().map(|suite| suite.name).collect();
        nearest_key(name, &names)
    })
}

/// The suite that has the work of a row of `own`, if it is another one.
fn other_suite(own: &Suite, work: &Work) -> Option<&'static Suite> {
    let suite = SUITES.iter().find(|suite| suite.name == work.suite);
    suite.filter(|suite| suite.name != own.name)
}

/// The server of work within one process, which has none.
fn serves_nobody(_: Side, work: &Work, _: &mut Stage) -> Result<(), RoleError> {
    let suite = &work.suite;
    let text = format!("the suite {suite} has no server; its driver does it all");
    Err(RoleError::Unsupported(text))
}

/// A dispatcher that sends `tracing` events to this log.
fn dispatch(writer: LogWriter) -> Dispatch {
    let subscriber = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false);
    Dispatch::new(subscriber.finish())
}

/// The work of a suite over a transport with a codec; everything else is left to the row.
fn work(suite: &Suite, transport: &str, codec: &str) -> Work {
    Work {
        suite: suite.name.to_owned(),
        transport: transport.to_owned(),
        codec: codec.to_owned(),
        ..Work::default()
    }
}

/// The work of a worker on one task: a hundred steps that the compiler cannot leave out.
fn iterate(value: u64) -> u64 {
    let step = |value: u64| {
        value
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1)
    };
    (0..100).fold(value, |value, _| black_box(step(value)))
}

/// The same with the warm-up and the window of timed work: a second, or less when it is to be quick.
fn timed(quick: bool, suite: &Suite, transport: &str, codec: &str) -> Work {
    let (warm_up_ms, measure_ms) = if quick { (50, 150) } else { (200, 1_000) };
    Work {
        warm_up_ms,
        measure_ms,
        ..work(suite, transport, codec)
    }
}

/// Where a server of ours listens: a free port, or a name that is nobody else's and leaves no file behind.
fn bind_address(work: &Work) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match work.transport.as_str() {
        transport @ ("ipc" | "inproc") => {
            let process = std::process::id();
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let abstract_mark = if transport == "ipc" { "@" } else { "" };
            format!("{transport}://{abstract_mark}tidewire-bench-{process}-{number}")
        }
        transport => format!("{transport}://127.0.0.1:0"),
    }
}

/// An address with its transport before it, as a program of another kind may leave it out.
fn full_address(work: &Work, address: &str) -> String {
    if address.contains("://") {
        address.to_owned()
    } else {
        format!("{}://{address}", work.transport)
    }
}

/// The endpoint at an address. Of several that a host name has, it is the first that takes a connection.
fn endpoint(address: &str) -> Result<Endpoint, RoleError> {
    let endpoints = address
        .parse::<Address>()
        .and_then(|address| address.resolve_all())
        .or_failed(&format!("use the address {address}"))?;
    let answers = |endpoint: &&Endpoint| {
        let address = endpoint.socket_address();
        endpoints.len() == 1 || address.is_some_and(|it| TcpStream::connect(it).is_ok())
    };
    let chosen = endpoints.iter().find(answers).unwrap_or(&endpoints[0]);
    Ok(chosen.clone())
}

/// The socket at an address, for programs that know no other transport.
fn socket_address(address: &str) -> Result<SocketAddress, RoleError> {
    match endpoint(address)? {
        Endpoint::Tcp(address) | Endpoint::Tls(address) => Ok(SocketAddress::Tcp(address)),
        Endpoint::Unix(path) => Ok(SocketAddress::Unix(path)),
        Endpoint::WebSocket(at) => Ok(SocketAddress::Tcp(at.address())),
        other => Err(RoleError::Unsupported(format!("no bare loop over {other}"))),
    }
}

/// The address with the transport of the work, as a bare server over TLS or WebSocket listens on a plain socket.
fn with_transport(work: &Work, address: &str) -> String {
    match (work.transport.as_str(), address.strip_prefix("tcp://")) {
        (transport @ ("tls" | "ws" | "wss"), Some(rest)) => format!("{transport}://{rest}"),
        _ => address.to_owned(),
    }
}

/// The listener of a bare server, and its address.
fn listen(work: &Work) -> Result<(Listener, String), RoleError> {
    let address = socket_address(&bind_address(work))?;
    let listener = Listener::bind(&address, &SocketOptions::default()).or_failed("listen")?;
    let address = listener.local_address().to_string();
    Ok((listener, with_transport(work, &address)))
}

/// Plays a server of ours that says what its lanes allocated.
fn serve_ours(server: &Server, stage: &mut Stage) -> Result<(), RoleError> {
    stage.serve(&server.to_string(), || Account {
        allocated_bytes: lanes_allocated(&server.metrics()),
        ..Account::default()
    })
}

/// A server of ours with the address of the work, and room for all its connections.
fn builder(work: &Work) -> Result<ServerBuilder, RoleError> {
    let builder = Server::builder().limits(limits(work));
    let builder = match work.transport.as_str() {
        "tls" | "wss" => builder.tls(tls::settings(work)?),
        _ => builder,
    };
    builder.listen(&bind_address(work)).or_failed("listen")
}

/// Lets lanes look for work before they sleep, if the work asks for it.
fn spinning(builder: ServerBuilder, work: &Work) -> ServerBuilder {
    match work.mode == SPIN {
        true => builder.spin_us(SPIN_US),
        false => builder,
    }
}

/// The mode of rows whose lanes and bare loops look for work before they sleep.
const SPIN: &str = "spin";

/// How long they look: about as long as the other side takes to wake on a virtual machine.
const SPIN_US: u32 = 50;

/// Starts such a server. The services here do much more for a message than the indirect call that a boxed service
/// costs, and the lane's loops are not compiled again for each of them.
fn start_server<S: Service>(work: &Work, mut make: impl FnMut() -> S) -> Result<Server, RoleError> {
    spinning(builder(work)?, work)
        .start_boxed(|_| Box::new(make()))
        .or_failed("start the server")
}

/// A file for the log of a run.
fn log_file() -> Result<NamedTempFile, RoleError> {
    NamedTempFile::new().or_failed("make a file for the log")
}

/// The address that clients of ours connect to. If the work is within a process, its server starts here and is
/// returned, too.
fn reach(
    work: &Work,
    address: &str,
    start: impl FnOnce(&Work) -> Result<Server, RoleError>,
) -> Result<(Option<Server>, String), RoleError> {
    if work.transport != "inproc" {
        return Ok((None, full_address(work, address)));
    }
    let server = start(work)?;
    let address = server.to_string();
    Ok((Some(server), address))
}

/// The limits of a server of ours: all connections come from one address here.
fn limits(work: &Work) -> Limits {
    let mut limits = Limits::default();
    limits
        .sessions
        .set_max(limits.sessions.max().max(work.connections + 16));
    limits
        .sessions
        .set_per_address_max(limits.sessions.per_address_max().max(work.connections + 16));
    limits
}

/// Whether this process may have as many descriptors as the work needs.
fn need_descriptors(work: &Work) -> Result<(), RoleError> {
    let needed = work.connections as u64 + DESCRIPTORS_BESIDE;
    let limit = descriptor_limit().soft;
    if limit >= needed {
        return Ok(());
    }
    let connections = work.connections;
    Err(RoleError::Unsupported(format!(
        "{connections} connections need {needed} descriptors, and this process may have {limit}: raise the limit with \
         `ulimit -n {needed}`"
    )))
}

fn codec(work: &Work) -> Result<AnyCodec, RoleError> {
    AnyCodec::by_name(&work.codec)
        .map_err(|_| RoleError::Unsupported(format!("there is no codec {}", work.codec)))
}

/// Bytes of the payload with which a one-way message has the size of the work.
fn payload_bytes(work: &Work) -> Result<usize, RoleError> {
    let mut frame = Vec::new();
    codec(work)?
        .encode(&Message::new(Kind::OneWay, 0, &[0; 8]), &mut frame)
        .or_failed("frame a message")?;
    Ok((work.message_bytes + 8).saturating_sub(frame.len()).max(8))
}

/// Turns what ours do with a codec into what a rival with a format of its own does: the same payload, to which it adds
/// a framing of its own.
pub(super) fn in_own_format(work: &mut Work) {
    if ![echo::SUITE.name, ingest::SUITE.name].contains(&work.suite.as_str()) {
        return;
    }
    if let Ok(bytes) = payload_bytes(work) {
        work.message_bytes = bytes;
        work.codec.clear();
    }
}

/// The environment variables of programs that do this work. The allocator takes pages of 2 MiB where it can, and the
/// first session in a new page would be charged for all of it. Programs whose memory is measured use small pages
/// instead.
pub(super) fn environment(work: &Work) -> &'static [(&'static str, &'static str)] {
    if work.suite == memory::SUITE.name || idle::measures_memory(work) {
        &[("MIMALLOC_ALLOW_THP", "0")]
    } else {
        &[]
    }
}

/// Bytes that a server's lanes have allocated, where the program counts them.
fn lanes_allocated(metrics: &Metrics) -> Option<u64> {
    tidewire_io::allocation::is_counting().then_some(metrics.allocated_bytes)
}

/// Descriptors of a process that are no connections.
const DESCRIPTORS_BESIDE: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_with_a_format_of_their_own_send_what_ours_have_within_their_frames() {
        for (suite, codec, bytes) in [
            ("echo", "tw1", 24),
            ("ingest", "srmp", 28),
            ("ingest", "raw", 32),
            ("fanout", "tw1", 32),
        ] {
            let mut work = Work {
                suite: suite.to_owned(),
                codec: codec.to_owned(),
                message_bytes: 32,
                ..Work::default()
            };
            in_own_format(&mut work);
            assert_eq!(work.message_bytes, bytes, "{suite} {codec}");
            assert_eq!(work.codec.is_empty(), suite != "fanout");
        }
    }
}
