//! Ingest over UDP: what both programs do differently there.
//!
//! A datagram that finds no room is gone, so senders keep to a number of messages that are on their way
//! ([`Work::in_flight`]), and the receiver tells each of them now and then how many have come. What is lost in spite of
//! that is lost, and the row fails.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::{MESSAGE_BYTES, parse};
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan};
use crate::probes::datagram_ingest::{self, DatagramSender, PACKED_BYTES};
use crate::probes::ingest::ReceiverCounts;
use crate::probes::{Frame, datagram};
use crate::stage::{OrFailed, Stage};

/// Messages that share datagrams; the limit fills each of them.
pub(super) fn packed(quick: bool, connections: usize) -> RowPlan {
    let work = work(quick, "tw1", connections, PACKED_IN_FLIGHT);
    let limit = in_datagrams(&work, PACKED_BYTES, "");
    let id = format!("udp tw1, {connections}, a send each, coalesced");
    row(id, work, limit)
}

/// A datagram for each message. The limit hands runs of them over at once, or each by itself.
pub(super) fn each(quick: bool, connections: usize, mode: &str) -> RowPlan {
    let work = work(quick, "raw", connections, EACH_IN_FLIGHT);
    let limit = in_datagrams(&work, MESSAGE_BYTES, mode);
    let id = format!("udp raw, {connections}, a datagram each");
    match mode {
        "" => row(id, work, limit),
        mode => row(format!("{id}, beside {mode}"), work, limit.clone()).beside(limit),
    }
}

fn row(id: String, work: Work, limit: Work) -> RowPlan {
    RowPlan::new(id, work, Metric::MESSAGES)
        .with_limit(Some(limit.clone()))
        .with_peers(Some(limit))
}

fn work(quick: bool, codec: &str, connections: usize, in_flight: usize) -> Work {
    Work {
        connections,
        in_flight: in_flight / connections,
        message_bytes: MESSAGE_BYTES,
        ..super::super::timed(quick, &super::SUITE, "udp", codec)
    }
}

fn in_datagrams(work: &Work, write_bytes: usize, mode: &str) -> Work {
    Work {
        write_bytes,
        mode: mode.to_owned(),
        ..work.clone()
    }
}

/// After how many messages a receiver tells a sender how many have come.
pub(super) fn tells_every(work: &Work) -> u64 {
    (work.in_flight as u64 / 8).max(1)
}

/// Plays the bare receiver.
pub(super) fn serve_bare(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let socket = datagram::bind(work.mode != NO_OFFLOAD).or_failed("listen")?;
    let address = format!("udp://{}", socket.local_address());
    let frame = (parse(work)?, work.message_bytes);
    let tells_every = tells_every(work);
    let received = Arc::new(ReceiverCounts::default());
    let counted = Arc::clone(&received);
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn(move || {
        let stop = AtomicBool::new(false);
        datagram_ingest::serve(&socket, frame, tells_every, &stop, &counted)
    });
    super::serve_received(&address, &received, None, stage)
}

/// Plays the bare sender.
pub(super) fn drive_bare(
    server: std::net::SocketAddr,
    work: &Work,
    stage: &mut Stage,
) -> Result<(), RoleError> {
    let frame = Frame::one_way(parse(work)?, work.message_bytes);
    let sender = DatagramSender::open(server, work, frame, work.mode != NO_OFFLOAD);
    let mut sender = sender.or_failed("send")?;
    let measured = super::send(work, stage, |duration| sender.send_for(duration))?;
    stage.measured(Measured {
        sent: Some(sender.sent()),
        ..measured
    })
}

/// The mode of the limit in which each datagram is handed over by itself.
pub(super) const NO_OFFLOAD: &str = "no offload";

/// Messages on their way in all, where they share datagrams: some hundred datagrams.
const PACKED_IN_FLIGHT: usize = 16_384;

/// The same where each is a datagram: as many as a receiver's buffer surely holds, with what the kernel adds to each.
const EACH_IN_FLIGHT: usize = 2_048;
