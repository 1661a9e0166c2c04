//! Work within one process, of the suites `echo` and `ingest`: no server apart, one or two threads.
//!
//! Tidewire's two ends are lanes as everywhere, one for each thread; with one lane it has both ends of every session.
//! Threads inherit the cores of the thread that starts them, so each lane is started from its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::{Context, Endpoint, HandlerResult, Message, Moment, Server, ServerBuilder, Service};
use tidewire_io::affinity::pin_to_core;

use super::lane_client::{self, LaneClient, Link, Task};
use super::numbers::Numbers;
use super::{bind_address, codec, endpoint, limits};
use crate::contract::{Measured, Work};
use crate::plan::{RoleError, Side};
use crate::probes::BLOCK_BYTES;
use crate::probes::ring;
use crate::stage::{OrFailed, Stage};

/// The mode in which one thread plays both ends.
pub(super) const ONE_LANE: &str = "one-lane";

/// Plays both parts. Without messages in flight, it is one way.
pub(super) fn drive(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let measured = match side {
        Side::Bare => {
            ring::drive(work, work.mode == ONE_LANE, stage).or_failed("drive the ring")?
        }
        Side::Tidewire if work.mode == ONE_LANE => drive_one_lane(work, stage)?,
        Side::Tidewire => drive_two_lanes(work, stage)?,
    };
    stage.measured(measured)
}

fn drive_one_lane(work: &Work, stage: &mut Stage) -> Result<Measured, RoleError> {
    pin(work, 0)?;
    let (link, news) = Link::new();
    let address = bind_address(work);
    let client = service(endpoint(&address)?, work, &link)?;
    let builder = builder(work)?.listen(&address).or_failed("listen")?;
    let server = builder.start(|_| client()).or_failed("start the lane")?;
    let counted = || link.taken.load(Ordering::Acquire);
    let taken: Option<&dyn Fn() -> u64> = (work.in_flight == 0).then_some(&counted);
    link.drive(&news, work, &server.waker(0), stage, taken)
}

fn drive_two_lanes(work: &Work, stage: &mut Stage) -> Result<Measured, RoleError> {
    pin(work, 0)?;
    let taken = Arc::new(AtomicU64::new(0));
    let server = builder(work)?
        .listen(&bind_address(work))
        .or_failed("listen")?
        .start(|_| FarEnd {
            answers: work.in_flight > 0,
            numbers: Numbers::new(),
            count: 0,
            taken: Arc::clone(&taken),
        })
        .or_failed("start the server's lane")?;
    pin(work, 1)?;
    let (link, news) = Link::new();
    let service = service(server.addresses()[0].clone(), work, &link)?;
    let client = builder(work)?
        .start(|_| service())
        .or_failed("start the client's lane")?;
    let counted = || taken.load(Ordering::Acquire);
    let taken: Option<&dyn Fn() -> u64> = (work.in_flight == 0).then_some(&counted);
    let before = super::lanes_allocated(&server.metrics());
    let mut measured = link.drive(&news, work, &client.waker(0), stage, taken)?;
    // The other lane's share, with its warm-up, in which it takes its buffers: an upper bound.
    let after = super::lanes_allocated(&server.metrics());
    if let (Some(bytes), Some(before), Some(after)) = (&mut measured.allocated_bytes, before, after)
    {
        *bytes += after - before;
    }
    Ok(measured)
}

/// Makes the service of the client's lane.
fn service<'a>(
    endpoint: Endpoint,
    work: &'a Work,
    link: &'a Arc<Link>,
) -> Result<impl Fn() -> LaneClient + 'a, RoleError> {
    let task = match work.in_flight as u64 {
        0 => Task::Send {
            flushes_each: false,
            window: None,
        },
        in_flight => Task::Echo { in_flight },
    };
    lane_client::service(endpoint, work, task, link)
}

/// Answers, or counts what comes once and in order.
struct FarEnd {
    answers: bool,
    numbers: Numbers,
    count: u64,
    taken: Arc<AtomicU64>,
}

impl Service for FarEnd {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.numbers.open(cx);
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if self.answers {
            // The client checks the answer.
            return cx.reply(message.payload);
        }
        self.count += u64::from(self.numbers.take(cx, message.payload));
        Ok(())
    }

    fn on_turn(&mut self, _: &mut Context<'_>) -> Option<Moment> {
        self.taken.store(self.count, Ordering::Release);
        None
    }
}

fn builder(work: &Work) -> Result<ServerBuilder, RoleError> {
    let mut limits = limits(work);
    if work.in_flight == 0 {
        limits.connections.set_queue_bytes_max(BLOCK_BYTES);
    }
    Ok(Server::builder().codec(codec(work)?).limits(limits))
}

/// Keeps this thread, and those it starts from now on, on one of the work's cores.
fn pin(work: &Work, thread: usize) -> Result<(), RoleError> {
    match work.cores.get(thread) {
        Some(core) => pin_to_core(*core).or_failed("pin a thread"),
        None => Ok(()),
    }
}
