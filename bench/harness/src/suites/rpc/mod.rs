//! Calls of a method `add`, by transport, clients and threads.
//!
//! Every thread of the driver has so many clients, each with a connection of its own and a number of calls on their
//! way. The count is of right replies, not of calls that were sent; `success` is their share. Tidewire plays both ends
//! as a user would: a [`Router`] with the method, and clients that are sessions of a lane. The limit is the better one
//! of two loops over frames of 16 bytes without a name.

mod bare;
mod caller;

use tidewire::{Context, HandlerResult, Message, Router, Server};
use tidewire_load::statistics::LatencyHistogram;

use super::course::{self, Course, Part};
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::Stage;

pub(super) const SUITE: Suite = Suite {
    name: "rpc",
    about: "calls of a method, by transport, clients and threads; replies that came",
    rows,
    serve,
    drive,
};

/// The account of a thread's calls.
#[derive(Debug, Default)]
struct Calls {
    /// Calls sent within the window.
    attempts: u64,
    /// Of those, the ones whose right reply came.
    answered: u64,
    /// Right replies that came within the window.
    replies: u64,
    /// Replies that nobody waited for.
    wrong: u64,
    latency: LatencyHistogram,
}

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = Vec::new();
    for transport in ["tcp", "udp", "ipc", "inproc"] {
        for (clients, threads, in_flight) in SHAPES {
            let work = Work {
                connections: clients,
                threads,
                in_flight,
                ..super::timed(quick, &SUITE, transport, "tw1")
            };
            let id = format!("{transport}, {threads} × {clients} clients, {in_flight} in flight");
            // How a rival spreads its clients over threads is its own affair; it has as many as we have in all.
            let peers = Work {
                connections: clients * threads,
                threads: 1,
                ..work.clone()
            };
            let spins = transport != "inproc" && threads == 1 && clients == 5;
            if spins {
                let work = Work {
                    mode: super::SPIN.to_owned(),
                    ..work.clone()
                };
                let limits = bare::loops(&work);
                let row = RowPlan::new(format!("{id}, spin"), work, CALLS).with_limits(limits);
                rows.push(row.with_peers(None));
            }
            let limits = bare::loops(&work);
            let row = RowPlan::new(id, work, CALLS).with_limits(limits);
            rows.push(row.with_peers(Some(peers)));
        }
    }
    if quick {
        rows.retain(|row| (row.work.connections, row.work.threads) == (5, 1));
    }
    rows
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    match side {
        Side::Bare => bare::serve(work, stage),
        Side::Tidewire => super::serve_ours(&start_server(work)?, stage),
    }
}

fn start_server(work: &Work) -> Result<Server, RoleError> {
    super::start_server(work, || Router::new().on(METHOD, add))
}

/// The method: two numbers, and their sum.
fn add(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    let numbers = message.payload.split_first_chunk();
    let Some((&first, Ok(second))) = numbers.map(|(first, rest)| (first, rest.try_into())) else {
        return Err(tidewire::HandlerError::new(
            tidewire_proto::body::ErrorCode::MalformedBody,
            "two numbers of four bytes each are added",
        ));
    };
    let sum = i32::from_le_bytes(first).wrapping_add(i32::from_le_bytes(second));
    cx.reply(&sum.to_le_bytes())
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let start = |part: &Part<Calls>| match side {
        Side::Tidewire => {
            let (server, address) = super::reach(work, address, start_server)?;
            let clients = caller::start(&super::endpoint(&address)?, work, part)?;
            Ok(Some((server, clients)))
        }
        Side::Bare => {
            bare::start(address, work, part)?;
            Ok(None)
        }
    };
    course::drive(work.threads, work, stage, start, |calls| {
        measured(calls, work)
    })
}

impl Calls {
    /// A call that was sent then has come to its end: its right reply came, or none did. It is counted here and not
    /// when it is sent, because the window may be laid down in between.
    fn resolve(&mut self, course: &Course, sent_ns: u64, answered_ns: Option<u64>) {
        if course.counts(sent_ns) {
            self.attempts += 1;
            if let Some(answered_ns) = answered_ns {
                self.answered += 1;
                self.latency.record(answered_ns.saturating_sub(sent_ns));
            }
        }
        if let Some(answered_ns) = answered_ns {
            self.replies += u64::from(course.counts(answered_ns));
        }
    }

    fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.answered += other.answered;
        self.replies += other.replies;
        self.wrong += other.wrong;
        self.latency.merge(&other.latency);
    }
}

/// The account of all threads.
fn measured(threads: &[Calls], work: &Work) -> Measured {
    let mut all = Calls::default();
    for calls in threads {
        all.add(calls);
    }
    let lost = all.attempts - all.answered + all.wrong;
    Measured::verified(all.replies, work.measure_ms as f64 / 1e3, lost)
        .with_times(&all.latency)
        .with_figure("success", all.answered as f64 / all.attempts.max(1) as f64)
}

/// The numbers that a call with this number adds.
fn numbers(call: u32) -> (i32, i32) {
    (call.cast_signed(), call.rotate_left(13).cast_signed())
}

/// A call without a reply for this long has none, and its place is used for another. Over a stream a reply cannot get
/// lost, only late, which it may be on a machine that does something else.
fn call_timeout_ns(work: &Work) -> u64 {
    match work.transport.as_str() {
        "udp" => 5_000_000_000,
        _ => 20_000_000_000,
    }
}

const CALLS: Metric = Metric::rate("calls_per_sec", "calls/s");

/// Clients of a thread, threads, and calls on their way.
const SHAPES: [(usize, usize, usize); 7] = [
    (1, 1, 1),
    (5, 1, 1),
    (10, 1, 1),
    (1, 4, 1),
    (5, 4, 1),
    (10, 4, 1),
    (5, 1, 64),
];

const METHOD: &str = "add";

#[cfg(test)]
mod tests {
    use super::super::played::{loses_nothing, play_until};
    use super::*;

    fn small(work: &mut Work) {
        (work.warm_up_ms, work.measure_ms) = (5, 50);
    }

    #[test]
    fn every_call_is_answered_rightly() {
        loses_nothing(&SUITE, small);
    }

    #[test]
    fn rivals_have_as_many_clients_as_our_threads_together() {
        for row in rows(false) {
            let ours = &row.work;
            let Some(peers) = row.peers else {
                assert_eq!(ours.mode, super::super::SPIN, "rivals sleep");
                continue;
            };
            assert_eq!(peers.connections, ours.connections * ours.threads);
            assert_eq!((peers.threads, peers.in_flight), (1, ours.in_flight));
        }
    }

    #[test]
    fn several_threads_add_up() {
        for (side, transport) in [
            (Side::Bare, "tcp"),
            (Side::Bare, "udp"),
            (Side::Bare, "inproc"),
            (Side::Tidewire, "tcp"),
            (Side::Tidewire, "inproc"),
        ] {
            let rows = rows(false);
            let row = rows.iter().find(|row| {
                row.work.transport == transport
                    && (row.work.connections, row.work.threads) == (5, 4)
            });
            let mut work = row.unwrap().work.clone();
            small(&mut work);
            let measured = play_until(&SUITE, side, work, |measured| {
                measured.messages > 0 && measured.figures["success"] > 0.0
            });
            assert_eq!(measured.figures["success"], 1.0, "{side:?}");
        }
    }

    #[test]
    fn what_is_not_answered_is_lost_and_what_is_early_does_not_count() {
        let course = Course::new();
        let mut calls = Calls::default();
        calls.resolve(&course, 5, Some(10));
        assert_eq!((calls.answered, calls.replies), (0, 0));
        course.lay_down(100, 200);
        calls.resolve(&course, 90, Some(110));
        calls.resolve(&course, 110, Some(120));
        calls.resolve(&course, 150, None);
        calls.resolve(&course, 190, Some(210));
        let measured = measured(&[calls], &Work::default());
        assert_eq!((measured.messages, measured.lost), (2, 1));
    }
}
