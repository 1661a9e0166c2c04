//! Echo: messages of 32 bytes that come back as they were.
//!
//! In most rows the driver is the bare client for both sides, so that a row compares servers alone. Three kinds of rows
//! compare more: `lane` has Tidewire's own lane as the client, `client` the threaded `Client` with its futures, and
//! within a process there are lanes at both ends anyway. Over UDP Tidewire's driver is its lane with TW1, too, since
//! that server asks an address for a proof that a bare client does not give; with codecs that prove no addresses it is
//! the bare client.

mod client;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tidewire::{Context, Endpoint, Kind, Message};
use tidewire_proto::codec::Codec;

use super::codec;
use super::inproc::{self, ONE_LANE};
use super::lane_client::{self, Task};
use crate::contract::{Account, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::echo::{self, EchoLoad};
use crate::probes::{Frame, Parse, datagram, with_link};
use crate::stage::{OrFailed, Stage, allocated_bytes};

pub(super) const SUITE: Suite = Suite {
    name: "echo",
    about: "messages of 32 bytes that come back, by transport, codec, connections and messages in flight",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let row = |transport: &str, codec: &str, connections, in_flight| {
        row(quick, transport, codec, "", connections, in_flight)
    };
    let with_mode = |transport: &str, mode: &str, connections, in_flight| {
        with_limit(self::row(
            quick,
            transport,
            "tw1",
            mode,
            connections,
            in_flight,
        ))
    };
    if quick {
        return vec![
            row("tcp", "tw1", 1, 1),
            row("tcp", "tw1", 16, 128),
            row("tcp", "srmp", 16, 255).with_peers(None),
            with_mode("tcp", CLIENT, 1, 128).with_peers(None),
            row("ipc", "tw1", 1, 128),
            row("udp", "tw1", 1, 64),
            row("udp", UVRPC, 1, 64).with_peers(None),
            row("inproc", "tw1", 1, 128),
        ];
    }
    let mut rows = Vec::new();
    for connections in [1, 16, 64, 256, 1_024] {
        rows.extend([1, 128].map(|in_flight| row("tcp", "tw1", connections, in_flight)));
    }
    let of_codec = |transport: &str, codec: &str, connections, in_flight| {
        row(transport, codec, connections, in_flight).with_peers(None)
    };
    // To rivals a codec of ours is no difference; once is enough.
    let other_codecs = [("srmp", 255), ("length-field", 128), ("uvrpc", 128)];
    for (codec, many) in other_codecs {
        for connections in [1, 64, 1_024] {
            rows.extend([1, many].map(|in_flight| of_codec("tcp", codec, connections, in_flight)));
        }
    }
    rows.extend(
        [(1, 1), (64, 128)].map(|(many, in_flight)| with_mode("tcp", LANE, many, in_flight)),
    );
    let shapes = [(1, 1), (1, 128), (4, 128)];
    rows.extend(shapes.map(|(many, in_flight)| with_mode("tcp", CLIENT, many, in_flight)));
    for transport in ["ipc", "udp"] {
        rows.push(with_mode(transport, CLIENT, 1, 64));
    }
    for connections in [1, 16] {
        rows.extend([1, 128].map(|in_flight| row("ipc", "tw1", connections, in_flight)));
        rows.extend([1, 64].map(|in_flight| row("udp", "tw1", connections, in_flight)));
    }
    for codec in ["srmp", UVRPC] {
        let shapes = [(1, 1), (1, 64), (16, 64)];
        rows.extend(shapes.map(|(many, in_flight)| of_codec("udp", codec, many, in_flight)));
    }
    rows.extend([1, 128].map(|in_flight| row("inproc", "tw1", 1, in_flight)));
    rows.push(self::row(quick, "inproc", "tw1", ONE_LANE, 1, 128).with_peers(None));
    rows
}

pub(super) fn row(
    quick: bool,
    transport: &str,
    codec: &str,
    mode: &str,
    connections: usize,
    in_flight: usize,
) -> RowPlan {
    let message_bytes = if codec == UVRPC {
        uvrpc_frames(transport).map_or(0, |(request, _)| request.len())
    } else {
        32
    };
    let work = Work {
        mode: mode.to_owned(),
        connections,
        in_flight,
        message_bytes,
        ..super::timed(quick, &SUITE, transport, codec)
    };
    let separator = if mode.is_empty() { "" } else { " " };
    let id = format!("{transport} {codec}{separator}{mode}, {connections} × {in_flight} in flight");
    RowPlan::new(id, work, Metric::MESSAGES)
}

/// Adds the bare loop and the rivals to a row. Modes exist in Tidewire only, so the others do the same work without
/// one.
fn with_limit(row: RowPlan) -> RowPlan {
    let plain = Work {
        mode: String::new(),
        ..row.work.clone()
    };
    row.with_limit(Some(plain.clone())).with_peers(Some(plain))
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    match side {
        Side::Bare => serve_bare(work, stage),
        Side::Tidewire => serve_tidewire(work, stage),
    }
}

fn serve_bare(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let allocated = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&allocated);
    let address = match work.transport.as_str() {
        "udp" => {
            let socket = datagram::bind(true).or_failed("listen")?;
            let address = format!("udp://{}", socket.local_address());
            thread::spawn(move || datagram::serve(&socket, &AtomicBool::new(false), &counted));
            address
        }
        _ => {
            let (listener, local) = super::listen(work)?;
            // It ends with the process: the runner's last word is the end of our input.
            let serve = with_link!(work, echo::serve);
            thread::spawn(move || serve(&listener, &AtomicBool::new(false), &counted));
            local
        }
    };
    stage.serve(&address, || Account {
        allocated_bytes: allocated_bytes().map(|_| allocated.load(Ordering::Relaxed)),
        ..Account::default()
    })
}

fn serve_tidewire(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let server = super::builder(work)?
        .codec(codec(work)?)
        // As in a closed network: to those who cannot prove their address and are not trusted, each datagram would be
        // sent by itself, and none that is larger than what came.
        .trust_datagram_peers(work.codec != "tw1")
        .start(|_| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))
        .or_failed("start the server")?;
    super::serve_ours(&server, stage)
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::need_descriptors(work)?;
    if work.transport == "inproc" {
        return inproc::drive(side, work, stage);
    }
    let address = super::full_address(work, address);
    if work.mode == CLIENT {
        return client::drive(&address, work, stage);
    }
    let endpoint = super::endpoint(&address)?;
    let proves_address = matches!(endpoint, Endpoint::Udp(_)) && side == Side::Tidewire;
    if work.mode == LANE || proves_address && work.codec == "tw1" {
        return drive_lane(&endpoint, work, stage);
    }
    let load = EchoLoad {
        work,
        frame: frame(side, work)?,
        greets: side == Side::Tidewire && work.codec == "tw1",
    };
    let measured = match endpoint {
        Endpoint::Udp(address) => datagram::drive(address, &load, stage),
        _ => {
            let server = super::socket_address(&address)?;
            with_link!(work, echo::drive)(&server, &load, stage)
        }
    };
    stage.measured(measured.or_failed("drive the echo")?)
}

/// Drives by a lane of Tidewire.
fn drive_lane(endpoint: &Endpoint, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let task = Task::Echo {
        in_flight: work.in_flight as u64,
    };
    lane_client::run(endpoint, work, task, super::limits(work), stage, |_| {})
}

/// The frame of the work's codec and size.
fn frame(side: Side, work: &Work) -> Result<Frame, RoleError> {
    if work.codec == UVRPC {
        let (request, reply) = uvrpc_frames(&work.transport)
            .ok_or_else(|| RoleError::Unsupported("no frame of uvrpc can be made".to_owned()))?;
        let place = |frame: &[u8]| frame.windows(8).position(|bytes| bytes == MARK);
        let (Some(number_at), Some(reply_number_at)) = (place(&request), place(&reply)) else {
            let text = "a frame of uvrpc has no payload";
            return Err(RoleError::Unsupported(text.to_owned()));
        };
        let frame = Frame::new(request, number_at);
        // A bare server sends back what it got, and Tidewire a response, which names no method.
        return Ok(match side {
            Side::Bare => frame,
            Side::Tidewire => frame.with_reply(reply, reply_number_at),
        });
    }
    let parse = Parse::by_name(&work.codec)
        .ok_or_else(|| RoleError::Unsupported(format!("no bare frames of {}", work.codec)))?;
    Ok(Frame::one_way(parse, work.message_bytes))
}

/// A request and its response in UVRPC, with marks where their numbers go. The number of the request within the codec
/// is always 1: it is free again as soon as it is answered. A datagram has no length before it.
fn uvrpc_frames(transport: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut codec = tidewire::AnyCodec::by_name(UVRPC).ok()?;
    if transport == "udp" {
        codec = codec.for_datagrams();
    }
    let mut payload = [b'.'; 28];
    payload[..8].copy_from_slice(&MARK);
    let framed = |message: &Message<'_>| {
        let mut frame = Vec::new();
        codec.encode(message, &mut frame).ok()?;
        Some(frame)
    };
    Some((
        framed(&Message::with_id(Kind::Request, 0, 1, &payload).with_name("echo"))?,
        framed(&Message::with_id(Kind::Reply, 0, 1, &payload))?,
    ))
}

/// The codec whose requests and responses differ in size.
const UVRPC: &str = "uvrpc";

/// The mode in which Tidewire's own lane is the client.
const LANE: &str = "lane";

/// The mode in which the threaded client is.
const CLIENT: &str = "client";

const MARK: [u8; 8] = [0xEE; 8];

#[cfg(test)]
mod tests {
    use super::super::played::{loses_nothing, play_long_rows, play_until};
    use super::*;

    #[test]
    fn everything_that_is_sent_comes_back() {
        loses_nothing(&SUITE, |work| {
            (work.warm_up_ms, work.measure_ms) = (5, 20);
        });
    }

    #[test]
    fn every_codec_mode_and_transport_of_the_long_rows_works() {
        play_long_rows(&SUITE, 4);
    }

    /// The bug: on a busy machine the lane saw the window before it had seen the warm-up, and never sent anything.
    #[test]
    fn a_lane_that_misses_the_warm_up_begins_all_the_same() {
        let mut work = row(true, "inproc", "tw1", ONE_LANE, 1, 128).work;
        (work.warm_up_ms, work.measure_ms) = (0, 10);
        play_until(&SUITE, Side::Tidewire, work, |measured| {
            measured.messages > 0
        });
    }

    #[test]
    fn frames_of_every_codec_in_the_rows_can_be_made() {
        for quick in [true, false] {
            for row in rows(quick) {
                for side in [Side::Bare, Side::Tidewire] {
                    let frame = frame(side, &row.work).unwrap();
                    assert_eq!(frame.bytes(), row.work.message_bytes, "{}", row.id);
                }
            }
        }
    }
}
