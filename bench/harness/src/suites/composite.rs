//! All together: a request that goes through a worker pool and the log before it is answered, at up to 10,000
//! connections.
//!
//! Each connection has one request on its way. A worker does a hundred iterations and logs a line, and then the answer
//! goes back. The limit is the same way put together by hand: an epoll loop, a channel, a [locked buffered
//! file](super::locked_log), and workers that write the answers to the sockets themselves. The driver is the bare
//! client for both, and checks every answer.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tidewire::log::LogBuilder;
use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire::{Context, Deferred, HandlerResult, Kind, Message};
use tidewire_io::socket::{Listener, Stream};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::{Codec, Tw1};

use super::locked_log::LockedLog;
use crate::contract::{Account, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::Frame;
use crate::probes::echo::{self, EchoLoad};
use crate::probes::wait::{AcceptSet, TIMEOUT};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "composite",
    about: "request, worker pool, log, reply: at 100 to 10,000 connections",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let connections: &[usize] = if quick {
        &[100, 1_000]
    } else {
        &[100, 500, 1_000, 2_000, 10_000]
    };
    let row = |&connections: &usize| {
        let work = Work {
            connections,
            in_flight: 1,
            message_bytes: FRAME_BYTES,
            threads: 2,
            ..super::timed(quick, &SUITE, "tcp", "tw1")
        };
        RowPlan::new(format!("{connections} connections"), work, REQUESTS).with_peers(None)
    };
    connections.iter().map(row).collect()
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let file = super::log_file()?;
    match side {
        Side::Bare => serve_bare(work, file.path(), stage),
        Side::Tidewire => serve_tidewire(work, file.path(), stage),
    }
}

fn serve_tidewire(work: &Work, file: &Path, stage: &mut Stage) -> Result<(), RoleError> {
    let (writer, log) = LogBuilder::new()
        .file(file)
        .open()
        .or_failed("open the log")?;
    let dispatch = super::dispatch(writer);
    // As many places as there can be requests: each connection has one.
    let pool = WorkerPool::new(
        work.threads,
        work.connections,
        WhenPoolFull::Refuse,
        move |(deferred, payload): (Deferred, [u8; PAYLOAD_BYTES])| {
            let result = super::iterate(payload.len() as u64);
            tracing::dispatcher::with_default(&dispatch, || tracing::info!(result, "worked"));
            if let Err(error) = deferred.reply(&payload) {
                tracing::error!(%error, "cannot answer");
            }
        },
    );
    let pool = Arc::new(pool.or_failed("start the workers")?);
    let submit = Arc::clone(&pool);
    let service = move |cx: &mut Context<'_>, message: Message<'_>| enqueue(&submit, cx, &message);
    let server = super::builder(work)?
        .start_boxed(move |_| Box::new(service.clone()))
        .or_failed("start the server")?;
    stage.serve(&server.to_string(), || Account {
        messages: Some(pool.metrics().completed),
        dropped: Some(pool.metrics().refused),
        ..Account::default()
    })?;
    drop(server);
    drop(log);
    Ok(())
}

type Pool = WorkerPool<(Deferred, [u8; PAYLOAD_BYTES])>;

fn enqueue(pool: &Pool, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
    let Ok(payload) = message.payload.try_into() else {
        return Err(tidewire::HandlerError::new(
            ErrorCode::MalformedBody,
            "a payload of another size",
        ));
    };
    if let Err((deferred, _)) = pool.submit((cx.defer(), payload)) {
        deferred.refuse(ErrorCode::LimitReached, "too busy");
    }
    Ok(())
}

/// A request on its way to a worker, with the way back.
type BareTask = (Arc<Mutex<Stream>>, [u8; FRAME_BYTES]);

fn serve_bare(work: &Work, file: &Path, stage: &mut Stage) -> Result<(), RoleError> {
    let (listener, local) = super::listen(work)?;
    let log = Arc::new(LockedLog::open(file).or_failed("open the log")?);
    let (sender, receiver) = channel();
    let receiver = Arc::new(Mutex::new(receiver));
    // All of them end with the process: the runner's last word is the end of our input.
    for _ in 0..work.threads {
        let (receiver, log) = (Arc::clone(&receiver), Arc::clone(&log));
        thread::spawn(move || work_bare(&receiver, &log));
    }
    thread::spawn(move || read_bare(&listener, &sender));
    stage.serve(&local, Account::default)
}

/// Reads requests and hands them over. A request is one read: each connection has one on its way.
fn read_bare(listener: &Listener, workers: &Sender<BareTask>) -> std::io::Result<()> {
    let mut set = AcceptSet::new(listener)?;
    let mut connections: Vec<Arc<Mutex<Stream>>> = Vec::new();
    let mut ready = Vec::new();
    loop {
        set.wait_for(&mut ready, TIMEOUT, |stream| {
            connections.push(Arc::new(Mutex::new(stream)));
        })?;
        for &number in &ready {
            let connection = &connections[number];
            let mut stream = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let mut frame = [0; FRAME_BYTES];
            match stream.read(&mut frame) {
                Ok(FRAME_BYTES) => {
                    if workers.send((Arc::clone(connection), frame)).is_err() {
                        return Ok(());
                    }
                }
                // It ended; whatever was cut short is missed by the client.
                Ok(_) => set.set().remove(stream.as_fd())?,
                Err(_) => {}
            }
        }
    }
}

fn work_bare(tasks: &Mutex<Receiver<BareTask>>, log: &LockedLog) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((connection, frame)) = task else {
            return;
        };
        let result = super::iterate(frame.len() as u64);
        // The log is not what is verified here, the suite `logging` does that.
        log.log(format_args!("worked result={result}"));
        let mut stream = connection.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer fits a socket that holds nothing else. One that is not written is missed by the client.
        let _ = stream.write(&frame);
    }
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::need_descriptors(work)?;
    let address = super::socket_address(&super::full_address(work, address))?;
    let load = EchoLoad {
        work,
        frame: frame(side)?,
        greets: side == Side::Tidewire,
    };
    let measured = echo::drive::<Stream>(&address, &load, stage).or_failed("drive the echo")?;
    // On a machine that does something else nothing at all may come within a short window.
    let attempts = (measured.messages + measured.lost).max(1) as f64;
    let success = measured.messages as f64 / attempts;
    stage.measured(measured.with_figure("success", success))
}

/// A request whose answer has the same length and repeats its payload, in which the number is.
fn frame(side: Side) -> Result<Frame, RoleError> {
    let number_at = FRAME_BYTES - PAYLOAD_BYTES;
    let encoded = |kind| {
        let mut frame = Vec::new();
        let message = Message::with_id(kind, 0, 1, &[b'.'; PAYLOAD_BYTES]);
        Tw1.encode(&message, &mut frame)
            .or_failed("frame a request")?;
        Ok(frame)
    };
    let frame = Frame::new(encoded(Kind::Request)?, number_at);
    // A bare server sends back the request.
    Ok(match side {
        Side::Bare => frame,
        Side::Tidewire => frame.with_reply(encoded(Kind::Reply)?, number_at),
    })
}

const REQUESTS: Metric = Metric::rate("requests_per_sec", "req/s");

const PAYLOAD_BYTES: usize = 32;

/// With the header of a request.
const FRAME_BYTES: usize = PAYLOAD_BYTES + 12;

#[cfg(test)]
mod tests {
    use super::super::played::loses_nothing;
    use super::*;

    #[test]
    fn every_request_is_answered() {
        loses_nothing(&SUITE, |work| {
            work.connections = work.connections.min(50);
            (work.warm_up_ms, work.measure_ms) = (10, 50);
        });
    }
}
