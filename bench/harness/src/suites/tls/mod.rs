//! TLS: the same work as in other suites, and what only TLS has: handshakes, and the memory of a session.
//!
//! Rows of echo, ingest and fan-out are those of the suites of these names over `tls://`. Their limit is the same bare
//! loop with rustls by hand ([`TlsLink`]). In the other rows a bare server with the same settings is the limit, and one
//! thread of bare clients drives both: it sends one message over each connection, so that a handshake counts only if it
//! was worth something.

mod handshakes;
mod reconnect;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::{ClientConfig, ServerConnection};
use tempfile::TempPath;
use tidewire::Endpoint;
use tidewire::tls::ServerTls;
use tidewire_command::certificates::KeyedCertificate;
use tidewire_io::socket::{SocketAddress, Stream};

use super::visitors::{self, Visitors};
use super::{codec, echo, fanout, idle, ingest};
use crate::certificates::{self, client_config, client_config_of, client_of};
use crate::contract::{Account, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::TlsLink;
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "tls",
    about: "echo, ingest and fan-out over TLS, handshakes, and the memory of a session",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = vec![echo_row(quick, 16, 128), echo_row(quick, 1, 1)];
    let ingest = ingest_row(quick, "", Some(ingest::BLOCKS));
    if quick {
        rows.extend([ingest, fanout_row(fanout::row(quick, TLS, 2.0))]);
    } else {
        rows.push(echo_row(quick, 1, 128));
        let mut each = echo_row(quick, 16, 128);
        each.id += ", beside a write a message";
        if let Some(peers) = &mut each.peers {
            peers.mode = EACH.to_owned();
        }
        rows.push(each);
        rows.push(ingest);
        rows.push(ingest_row(quick, ", beside a send a message", Some("")));
        rows.push(ingest_row(quick, ", beside a write a message", Some(EACH)));
        let steady = [16.0, 24.0].map(|millions| fanout::row(quick, TLS, millions));
        let all = steady.into_iter().chain([fanout::highest(quick, TLS)]);
        rows.extend(all.map(fanout_row));
    }
    rows.extend([FULL, RESUMED, MUTUAL].map(|mode| handshakes::row(quick, mode)));
    rows.push(reconnect::row(quick));
    rows.extend(idle::rows(quick, |mode, connections| {
        work(quick, mode, connections)
    }));
    rows
}

fn echo_row(quick: bool, connections: usize, in_flight: usize) -> RowPlan {
    let mut row = echo::row(quick, TLS, "tw1", "", connections, in_flight);
    row.id = format!("echo, {connections} × {in_flight} in flight");
    row
}

/// The bare client seals 128 messages together. Peers read its blocks, or their own drivers send message by message.
fn ingest_row(quick: bool, beside: &str, mode: Option<&str>) -> RowPlan {
    let work = ingest::in_blocks(&ingest::work(quick, TLS, "tw1", 16), BATCH_BYTES);
    let limits = ingest::limits(&work, &[BATCH_BYTES]);
    let peers = mode.map(|mode| Work {
        mode: mode.to_owned(),
        write_bytes: match mode {
            ingest::BLOCKS => BATCH_BYTES,
            _ => 0,
        },
        ..work.clone()
    });
    let row = RowPlan::new(format!("ingest, 16 × 128{beside}"), work, Metric::MESSAGES);
    row.with_limits(limits).with_peers(peers)
}

/// A row of the fan-out, in which no peer takes part.
fn fanout_row(row: RowPlan) -> RowPlan {
    let id = format!("fan-out, {}", row.id);
    RowPlan { id, ..row }.with_peers(None)
}

/// The work of rows that only TLS has.
fn work(quick: bool, mode: &str, connections: usize) -> Work {
    Work {
        mode: mode.to_owned(),
        connections,
        message_bytes: visitors::MESSAGE_BYTES,
        ..super::timed(quick, &SUITE, TLS, "length-field")
    }
}

/// The certificate of a server of ours.
pub(super) fn settings(work: &Work) -> Result<ServerTls, RoleError> {
    certificates::settings(work.mode == MUTUAL).or_failed("make certificates")
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    if let Some(suite) = super::other_suite(&SUITE, work) {
        return (suite.serve)(side, work, stage);
    }
    super::need_descriptors(work)?;
    match side {
        Side::Bare => serve_bare(work, stage),
        Side::Tidewire => {
            let builder = super::builder(work)?.codec(codec(work)?);
            let server = builder
                .start(|_| idle::answer)
                .or_failed("start the server")?;
            let _client = hand_out_client(&server.to_string())?;
            super::serve_ours(&server, stage)
        }
    }
}

fn serve_bare(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let config = certificates::server_config(work.mode == MUTUAL);
    let config = Arc::new(config.or_failed("make certificates")?);
    let (listener, address) = super::listen(work)?;
    let accept = move |stream: Stream| {
        let tls = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        Ok(TlsLink::new(stream, tls))
    };
    idle::serve_bare(listener, accept);
    let _client = hand_out_client(&address)?;
    stage.serve(&address, Account::default)
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    if let Some(suite) = super::other_suite(&SUITE, work) {
        return (suite.drive)(side, address, work, stage);
    }
    super::need_descriptors(work)?;
    let address = super::full_address(work, address);
    let Endpoint::Tls(server) = super::endpoint(&address)? else {
        let text = format!("no TLS at {address}");
        return Err(RoleError::Unsupported(text));
    };
    let config = driver_config(work, server).or_failed("make a client")?;
    let measured = match work.mode.as_str() {
        FULL | RESUMED | MUTUAL => handshakes::drive(server, &config, work, stage),
        RECONNECT => reconnect::drive(server, config, work, stage),
        idle::IDLE => visitors(server, vec![config], work)
            .and_then(|visitors| idle::drive(visitors, work, stage)),
        other => {
            return Err(RoleError::Unsupported(format!(
                "there is no mode `{other}`"
            )));
        }
    };
    stage.measured(measured.or_failed("drive the clients")?)
}

/// The clients of a row, whose slots share these settings in turn.
fn visitors(
    server: SocketAddr,
    configs: Vec<ClientConfig>,
    work: &Work,
) -> io::Result<Visitors<TlsLink>> {
    let configs: Vec<_> = configs.into_iter().map(Arc::new).collect();
    let dial = move |slot: usize, stream| {
        let tls = client_of(&configs[slot % configs.len()])?;
        Ok(TlsLink::new(stream, tls))
    };
    Visitors::new(SocketAddress::Tcp(server), work.connections, dial)
}

fn driver_config(work: &Work, server: SocketAddr) -> io::Result<ClientConfig> {
    if work.mode == MUTUAL {
        let text = std::fs::read_to_string(client_file(server))?;
        let client = KeyedCertificate {
            certificate: text.clone(),
            key: text,
        };
        return client_config_of(&client);
    }
    client_config()
}

/// Writes the certificate of clients and its key to a file that a driver finds by the server's address.
fn hand_out_client(address: &str) -> Result<TempPath, RoleError> {
    let what = "hand out the certificate of clients";
    let Endpoint::Tls(address) = super::endpoint(address)? else {
        return Err(RoleError::failed(what, "the server has no TLS"));
    };
    let client = &certificates::own().or_failed(what)?.client;
    let path = TempPath::try_from_path(client_file(address)).or_failed(what)?;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let text = format!("{}{}", client.certificate, client.key);
    let written = file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.or_failed(what).map(|()| path)
}

fn client_file(server: SocketAddr) -> PathBuf {
    let port = server.port();
    std::env::temp_dir().join(format!("tidewire-bench-client-{port}.pem"))
}

/// The transport.
const TLS: &str = "tls";

/// Bytes of 128 messages.
const BATCH_BYTES: usize = 128 * 32;

/// The mode of peers that write every message by itself.
const EACH: &str = "each";

/// Handshakes with a certificate of the server, one after the other.
const FULL: &str = "full";

/// Handshakes with a ticket of the one before.
const RESUMED: &str = "resumed";

/// Handshakes in which the client shows a certificate, too.
const MUTUAL: &str = "mutual";

/// All clients come back at the same time.
const RECONNECT: &str = "reconnect";

#[cfg(test)]
mod tests {
    use super::super::played::{play, play_few_clients, play_long_rows_with_few_clients};
    use super::*;

    #[test]
    fn every_row_loses_nothing() {
        play_few_clients(&SUITE);
    }

    #[test]
    fn the_long_rows_are_those_of_the_quick_ones_with_other_numbers() {
        play_long_rows_with_few_clients(&SUITE);
    }

    #[test]
    fn idle_sessions_cost_memory_on_both_sides() {
        for side in Side::ALL {
            let work = Work {
                warm_up_ms: 1,
                ..work(true, idle::IDLE, 20)
            };
            let measured = play(&SUITE, side, &work).measured;
            assert_eq!((measured.messages, measured.lost), (20, 0));
            assert!(measured.figures.contains_key(idle::USER_BYTES));
        }
    }

    #[test]
    fn a_client_without_a_certificate_is_refused_where_one_is_asked_for() {
        let work = work(true, MUTUAL, 1);
        let server = super::super::builder(&work).unwrap();
        let server = server
            .codec(codec(&work).unwrap())
            .start(|_| idle::answer)
            .unwrap();
        let Endpoint::Tls(address) = server.addresses()[0].clone() else {
            panic!("it listens with TLS");
        };
        let without = client_config().unwrap();
        let with = client_config_of(&certificates::own().unwrap().client).unwrap();
        for (config, is_accepted) in [(without, false), (with, true)] {
            let mut visitors = visitors(address, vec![config], &work).unwrap();
            visitors.begin(0).unwrap();
            let events = loop {
                let events = visitors.turn().unwrap();
                if !events.is_empty() {
                    break events;
                }
            };
            let answered: Vec<bool> = events.iter().map(|(_, ns)| ns.is_some()).collect();
            assert_eq!(answered, [is_accepted]);
        }
    }
}
