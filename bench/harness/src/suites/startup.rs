//! Starting: from binding to the first reply, from connecting to the first reply, and from a server's end to the first
//! reply of its successor at the same address.
//!
//! Each is done again and again by one client within the window, one after the other; the figure is the median.
//! Tidewire has its blocking client, whose connection has a lane of its own: that thread is part of what starting
//! costs. The limit is a socket and an epoll set, over TCP and Unix sockets.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidewire::{Backoff, Client, Context, Message, Server};
use tidewire_io::clock::now_ns;
use tidewire_io::socket::{Listener, SocketAddress, SocketOptions, Stream};
use tidewire_load::statistics::LatencyHistogram;

use crate::contract::{Account, Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::wait::WaitSet;
use crate::probes::{echo, received};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "startup",
    about: "bind, connect and reconnect, each until the first reply",
    rows,
    serve,
    drive,
};

/// A server within the driver's process.
enum Local {
    Ours(Server),
    /// It looks at the flag every 100 ms, which nobody should have to wait for, and takes its socket along when it
    /// ends.
    Bare(SocketAddress, Arc<AtomicBool>),
}

fn rows(quick: bool) -> Vec<RowPlan> {
    let row = |mode: &str, transport: &str| {
        let work = Work {
            mode: mode.to_owned(),
            connections: 1,
            ..super::timed(quick, &SUITE, transport, "")
        };
        let id = format!("{transport}, {mode} to first reply");
        let has_limit = mode != RECONNECT && matches!(transport, "tcp" | "ipc");
        let limit = has_limit.then(|| work.clone());
        RowPlan::new(id, work, MEDIAN)
            .with_limit(limit)
            .with_peers(None)
    };
    let mut rows = Vec::new();
    for transport in ["tcp", "udp", "ipc", "inproc"] {
        rows.push(row(BIND, transport));
        rows.push(row(CONNECT, transport));
        // Over UDP a client finds out that its server is another one when it next sends, or after a silence.
        if transport != "udp" {
            rows.push(row(RECONNECT, transport));
        }
    }
    if quick {
        rows.retain(|row| row.work.transport == "tcp");
    }
    rows
}

/// The server that connections are made to. Other work binds servers of its own; this one is then left alone.
fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let local = Local::start(side, &super::bind_address(work))?;
    stage.serve(&local.address(), Account::default)
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let address = super::full_address(work, address);
    match work.mode.as_str() {
        BIND => measure(work, stage, || {
            let from_ns = now_ns();
            let local = Local::start(side, &super::bind_address(work))?;
            first_reply(side, &local.address())?;
            Ok(now_ns() - from_ns)
        }),
        RECONNECT => reconnect(work, stage),
        _ => {
            // Within a process the server is here.
            let is_here = work.transport == "inproc";
            let start = || Local::start(side, &super::bind_address(work));
            let local = is_here.then(start).transpose()?;
            let address = local.as_ref().map_or(address, Local::address);
            measure(work, stage, || {
                let from_ns = now_ns();
                first_reply(side, &address)?;
                Ok(now_ns() - from_ns)
            })
        }
    }
}

/// Takes times as long as the work says, three at least.
fn measure(
    work: &Work,
    stage: &mut Stage,
    mut once: impl FnMut() -> Result<u64, RoleError>,
) -> Result<(), RoleError> {
    once()?;
    stage.started()?;
    let from_ns = now_ns();
    let mut times = LatencyHistogram::new();
    while times.count() < 3 || now_ns() - from_ns < work.measure_ms * 1_000_000 {
        times.record(once()?);
    }
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    let measured = Measured::verified(times.count(), seconds, 0).with_times(&times);
    let median_ms = times.quantile_ns(0.5) as f64 / 1e6;
    stage.measured(measured.with_figure(MEDIAN_MS, median_ms))
}

/// A client that stays while its server ends and another one takes its place.
fn reconnect(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let first = Local::start(Side::Tidewire, &super::bind_address(work))?;
    let address = first.address();
    let mut local = Some(first);
    let client = Client::builder()
        .reconnect(Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(10),
        })
        .connect(&address)
        .wait()
        .or_failed("connect")?;
    measure(work, stage, || {
        let from_ns = now_ns();
        drop(local.take());
        local = Some(Local::start(Side::Tidewire, &address)?);
        loop {
            match client.request(WORD).wait() {
                Ok(reply) if reply.payload() == WORD => return Ok(now_ns() - from_ns),
                Ok(_) => return Err(wrong_reply()),
                Err(error) if now_ns() - from_ns > TIMEOUT_NS => {
                    return Err(RoleError::failed("reconnect", error));
                }
                // It is not connected yet, or the old connection took the request along.
                Err(_) => thread::sleep(Duration::from_micros(50)),
            }
        }
    })
}

/// Connects, and hears the first reply.
fn first_reply(side: Side, address: &str) -> Result<(), RoleError> {
    let is_right = match side {
        Side::Tidewire => {
            let client = Client::connect(address).wait().or_failed("connect")?;
            client.request(WORD).wait().or_failed(GET)?.payload() == WORD
        }
        Side::Bare => bare_reply(&super::socket_address(address)?).or_failed(GET)? == WORD,
    };
    is_right.then_some(()).ok_or_else(wrong_reply)
}

fn wrong_reply() -> RoleError {
    RoleError::failed(GET, "it is not what was asked")
}

fn bare_reply(address: &SocketAddress) -> io::Result<Vec<u8>> {
    let mut stream: Stream = echo::connect(address, false)?;
    let mut set = WaitSet::new()?;
    set.add(stream.as_fd(), 0)?;
    stream.write(WORD)?;
    let (mut reply, mut buffer, mut ready) = (Vec::new(), [0; WORD.len()], Vec::new());
    while reply.len() < WORD.len() {
        set.wait(&mut ready)?;
        let count = received(stream.read(&mut buffer))?.unwrap_or_default();
        reply.extend_from_slice(&buffer[..count]);
    }
    Ok(reply)
}

impl Local {
    fn start(side: Side, address: &str) -> Result<Self, RoleError> {
        if side == Side::Tidewire {
            let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
            return Server::builder()
                .listen(address)
                .or_failed("listen")?
                .start_boxed(|_| Box::new(echo))
                .map(Self::Ours)
                .or_failed("start the server");
        }
        let address = super::socket_address(address)?;
        let listener = Listener::bind(&address, &SocketOptions::default()).or_failed("listen")?;
        let address = listener.local_address().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::spawn(move || echo::serve::<Stream>(&listener, &stopped, &AtomicU64::new(0)));
        Ok(Self::Bare(address, stop))
    }

    fn address(&self) -> String {
        match self {
            Self::Ours(server) => server.to_string(),
            Self::Bare(address, _) => address.to_string(),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if let Self::Bare(_, stop) = self {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

const MEDIAN: Metric = Metric::least(MEDIAN_MS, "ms");

const MEDIAN_MS: &str = "median_ms";

const GET: &str = "get the first reply";

const BIND: &str = "bind";
const CONNECT: &str = "connect";
const RECONNECT: &str = "reconnect";

/// The payload that is sent and comes back.
const WORD: &[u8; 32] = b"the first word of a conversation";

/// A client that has not reconnected after this long does not.
const TIMEOUT_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::played::{loses_nothing, play};
    use super::*;

    #[test]
    fn every_start_has_its_first_reply() {
        loses_nothing(&SUITE, |work| {
            (work.warm_up_ms, work.measure_ms) = (1, 20);
        });
    }

    #[test]
    fn so_it_has_over_the_other_transports() {
        for RowPlan { id, mut work, .. } in rows(false) {
            if work.transport == "tcp" {
                continue;
            }
            work.measure_ms = 5;
            let measured = play(&SUITE, Side::Tidewire, &work).measured;
            assert!(measured.messages >= 3, "{id}");
            assert!(measured.figures[MEDIAN_MS] > 0.0, "{id}");
        }
    }
}
