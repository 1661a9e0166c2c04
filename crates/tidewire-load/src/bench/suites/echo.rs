//! Echo: requests of 32 bytes that come back as they were.
//!
//! The driver is the bare client for both, so that a row compares servers alone.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use tidewire::io::socket::{Listener, SocketAddress, SocketOptions};
use tidewire::{Address, AnyCodec, Context, Endpoint, Message, Server};

use super::{timed, times};
use crate::bench::contract::{Account, Measured, Work};
use crate::bench::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::bench::stage::{Stage, allocated_bytes};
use crate::probes::echo::{self, EchoLoad};
use crate::probes::{Frame, Parse};

pub(super) const SUITE: Suite = Suite {
    name: "echo",
    about: "requests of 32 bytes that come back, by codec, connections and messages in flight",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let row = |transport: &str, codec: &str, connections, in_flight| {
        let work = Work {
            suite: SUITE.name.to_owned(),
            transport: transport.to_owned(),
            codec: codec.to_owned(),
            connections,
            in_flight,
            message_bytes: 32,
            ..Work::default()
        };
        let id = format!("{transport} {codec}, {connections} × {in_flight} in flight");
        RowPlan::new(id, timed(quick, work), Metric::MESSAGES)
    };
    let mut rows = Vec::new();
    for connections in [1, 16, 64, 256, 1_024] {
        rows.push(row("tcp", "tw1", connections, 1));
        rows.push(row("tcp", "tw1", connections, 128));
    }
    for connections in [1, 64] {
        rows.push(row("ipc", "tw1", connections, 1));
        rows.push(row("ipc", "tw1", connections, 128));
    }
    if quick {
        rows.retain(|row| row.work.connections <= 16);
    }
    rows
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    match side {
        Side::Bare => serve_bare(work, stage),
        Side::Tidewire => serve_tidewire(work, stage),
    }
}

fn serve_bare(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let address = super::bind_address(work);
    let Endpoint::Socket(address) = super::endpoint(&address)? else {
        return Err(RoleError::Unsupported(format!(
            "no bare echo over {address}"
        )));
    };
    let listener =
        Listener::bind(&address, &SocketOptions::default()).map_err(RoleError::failed("listen"))?;
    let local = Address::from(listener.local_address().clone()).to_string();
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn(move || echo::serve(&listener, &AtomicBool::new(false)));
    stage.serve(&local, || Account {
        allocated_bytes: allocated_bytes(),
        ..Account::default()
    })
}

fn serve_tidewire(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let server = Server::builder()
        .listen(&super::bind_address(work))
        .map_err(RoleError::failed("listen"))?
        .codec(codec(work)?)
        .limits(super::limits(work))
        .start(|_| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))
        .map_err(RoleError::failed("start the server"))?;
    stage.serve(&server.addresses()[0].to_string(), || Account {
        allocated_bytes: allocated_bytes(),
        ..Account::default()
    })
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let Endpoint::Socket(address) = super::endpoint(&super::full_address(work, address))? else {
        return Err(RoleError::Unsupported(format!(
            "no echo over {}",
            work.transport
        )));
    };
    let greets = side == Side::Tidewire && work.codec == "tw1";
    drive_streams(&address, work, greets, stage)
}

fn drive_streams(
    address: &SocketAddress,
    work: &Work,
    greets: bool,
    stage: &mut Stage,
) -> Result<(), RoleError> {
    let load = EchoLoad {
        connections: work.connections,
        in_flight: work.in_flight as u64,
        warm_up: Duration::from_millis(work.warm_up_ms),
        duration: Duration::from_millis(work.measure_ms),
        frame: frame(work)?,
        greets,
    };
    let mut allocated_before = None;
    let outcome = echo::drive(address, &load, &mut || {
        allocated_before = allocated_bytes();
        stage.started().map_err(std::io::Error::other)
    })
    .map_err(RoleError::failed("drive the echo"))?;
    let allocated = allocated_bytes().zip(allocated_before);
    stage.measured(Measured {
        messages: outcome.replies,
        seconds: outcome.seconds,
        verified: true,
        lost: outcome.lost,
        allocated_bytes: allocated.map(|(after, before)| after - before),
        latency: Some(times(&outcome.latency)),
        ..Measured::default()
    })
}

fn codec(work: &Work) -> Result<AnyCodec, RoleError> {
    AnyCodec::by_name(&work.codec)
        .map_err(|_| RoleError::Unsupported(format!("there is no codec {}", work.codec)))
}

/// The frame of the work's codec and size.
fn frame(work: &Work) -> Result<Frame, RoleError> {
    let parse = Parse::by_name(&work.codec)
        .ok_or_else(|| RoleError::Unsupported(format!("no bare frames of {}", work.codec)))?;
    Ok(Frame::one_way(parse, work.message_bytes))
}
