//! Pollers: what it costs to find out who has something to say.
//!
//! A number of socket pairs, whose far ends say one byte: all of them, or one of all. Only finding and reading them is
//! timed, not the writing. The limit is the same loop over the system's calls themselves, for epoll and poll; those of
//! select and io_uring are unsafe to make, which only the I/O crate does, so these have no limit of their own.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidewire_io::clock::now_ns;
use tidewire_io::poller::{self, Events, Interest, Poller, PollerChoice, PollerKind, Token};

use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::wait::WaitSet;
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "pollers",
    about: "finding the active of 1,000 and 9,900 descriptors, by poller",
    rows,
    serve: super::serves_nobody,
    drive,
};

/// Something that finds out which descriptors are ready.
trait Waits<'d> {
    fn add(&mut self, descriptor: BorrowedFd<'d>, number: usize) -> io::Result<()>;

    /// Puts the numbers of those that are ready into `ready`.
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()>;
}

struct Ours {
    poller: Box<dyn Poller>,
    events: Events,
}

struct BarePoll<'d>(Vec<PollFd<'d>>);

#[derive(Default)]
struct Rounds {
    events: u64,
    busy_ns: u64,
    /// Bytes that were said and not found, or found and not said.
    wrong: u64,
}

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = Vec::new();
    for kind in PollerKind::ALL {
        for connections in [1_000, 9_900] {
            for active in [connections, 1] {
                let work = Work {
                    mode: kind.to_string(),
                    connections,
                    in_flight: active,
                    ..super::timed(quick, &SUITE, "inproc", "")
                };
                let which = if active == 1 { "one" } else { "all" };
                let id = format!("{kind}, {connections} descriptors, {which} active");
                let has_limit = matches!(kind, PollerKind::Epoll | PollerKind::Poll);
                let limit = has_limit.then(|| work.clone());
                let row = RowPlan::new(id, work, EVENTS).with_limit(limit);
                rows.push(row.with_peers(None));
            }
        }
    }
    if quick {
        rows.retain(|row| row.work.connections == 1_000);
    }
    rows
}

fn drive(side: Side, _: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let kind: PollerKind = work.mode.parse().or_failed("choose a poller")?;
    let pairs = (0..work.connections).map(|_| UnixStream::pair());
    let pairs = pairs
        .collect::<io::Result<Vec<_>>>()
        .or_failed("make so many sockets; raise the limit with `ulimit -n`")?;
    let (near, far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let mut waits: Box<dyn Waits<'_> + '_> = match (side, kind) {
        (Side::Tidewire, kind) => Box::new(Ours {
            poller: poller::open(PollerChoice::Only(kind)).or_failed("open the poller")?,
            events: Events::with_capacity(EVENTS_MAX),
        }),
        (Side::Bare, PollerKind::Epoll) => {
            Box::new(WaitSet::taking(EVENTS_MAX).or_failed("open an epoll set")?)
        }
        (Side::Bare, PollerKind::Poll) => Box::new(BarePoll(Vec::new())),
        (Side::Bare, kind) => {
            return Err(RoleError::Unsupported(format!("no bare loop over {kind}")));
        }
    };
    let before_ns = now_ns();
    for (number, stream) in near.iter().enumerate() {
        waits.add(stream.as_fd(), number).or_failed("poll")?;
    }
    let set_up_secs = (now_ns() - before_ns) as f64 / 1e9;
    let mut run = |length_ms: u64| {
        run(waits.as_mut(), &near, &far, work.in_flight, length_ms).or_failed("poll")
    };
    run(work.warm_up_ms)?;
    stage.started()?;
    let rounds = run(work.measure_ms)?;
    stage.stopped()?;
    let busy_ns = rounds.busy_ns as f64;
    let measured = Measured::verified(rounds.events, busy_ns / 1e9, rounds.wrong)
        .with_figure("set_ups_per_sec", near.len() as f64 / set_up_secs)
        .with_figure("ns_per_event", busy_ns / rounds.events as f64);
    stage.measured(measured)
}

/// Says something at `active` far ends, other ones each time, and finds it; as long as it is told, and once at least.
fn run<'d>(
    waits: &mut (dyn Waits<'d> + 'd),
    near: &[UnixStream],
    far: &[UnixStream],
    active: usize,
    length_ms: u64,
) -> io::Result<Rounds> {
    let mut rounds = Rounds::default();
    let mut ready = Vec::new();
    let until_ns = now_ns() + length_ms * 1_000_000;
    let mut first = 0;
    while rounds.events == 0 || now_ns() < until_ns {
        for offset in 0..active {
            // The byte tells whose it is, as far as a byte can.
            let number = (first + offset) % far.len();
            (&far[number]).write_all(&[number as u8])?;
        }
        let from_ns = now_ns();
        let mut found = 0;
        while found < active {
            waits.wait(&mut ready)?;
            if ready.is_empty() {
                break;
            }
            for &number in &ready {
                let mut byte = [0; 2];
                let count = (&near[number]).read(&mut byte)?;
                rounds.wrong += u64::from((count, byte[0]) != (1, number as u8));
                found += 1;
            }
        }
        rounds.busy_ns += now_ns() - from_ns;
        rounds.events += found as u64;
        rounds.wrong += active.abs_diff(found) as u64;
        first = (first + active) % far.len();
    }
    Ok(rounds)
}

impl<'d> Waits<'d> for Ours {
    fn add(&mut self, descriptor: BorrowedFd<'d>, number: usize) -> io::Result<()> {
        self.poller
            .add(descriptor, Token(number), Interest::READ)
            .map_err(io::Error::other)
    }

    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        self.poller
            .wait(&mut self.events, Some(TIMEOUT))
            .map_err(io::Error::other)?;
        ready.extend(self.events.iter().map(|event| event.token.0));
        Ok(())
    }
}

impl<'d> Waits<'d> for WaitSet {
    fn add(&mut self, descriptor: BorrowedFd<'d>, number: usize) -> io::Result<()> {
        Self::add(self, descriptor, number)
    }

    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.wait_for(ready, TIMEOUT)
    }
}

impl<'d> Waits<'d> for BarePoll<'d> {
    fn add(&mut self, descriptor: BorrowedFd<'d>, _: usize) -> io::Result<()> {
        self.0
            .push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: TIMEOUT.subsec_nanos().into(),
        };
        poll(&mut self.0, Some(&timeout))?;
        let numbered = self.0.iter().enumerate();
        let is_ready =
            |(number, one): (usize, &PollFd<'_>)| (!one.revents().is_empty()).then_some(number);
        ready.extend(numbered.filter_map(is_ready));
        Ok(())
    }
}

const EVENTS: Metric = Metric::rate("events_per_sec", "events/s");

/// Events taken in one call, by ours and by the bare epoll loop.
const EVENTS_MAX: usize = 1_024;

/// Longest wait for a message. It is there at once, so one that is not found within this time is lost.
const TIMEOUT: Duration = Duration::from_millis(900);

#[cfg(test)]
mod tests {
    use super::super::played::loses_nothing;
    use super::*;

    #[test]
    fn every_poller_finds_every_byte() {
        loses_nothing(&SUITE, |work| {
            work.connections = 50;
            work.in_flight = work.in_flight.min(50);
            (work.warm_up_ms, work.measure_ms) = (1, 10);
        });
    }
}
