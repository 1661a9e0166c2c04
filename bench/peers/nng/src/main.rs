//! nng from Debian's package: the successor of nanomsg, asynchronous through callbacks on its own threads.
//!
//! `echo` and `rpc` are REQ and REP, with a context for each request in flight, which is nng's form of pipelining.
//! `ingest` is PUSH and PULL. `fanout` is PUB, which drops messages that a subscriber's queue has no room for. Work
//! within one process uses PAIR sockets.

mod calls;
mod inproc;

use std::ffi::CStr;
use std::process::ExitCode;
use std::sync::mpsc::channel;

use anyhow::{Context as _, Result, bail};
use nng::options::{Options, RecvBufferSize, SendBufferSize};
use nng::{PipeEvent, Protocol, Socket};
use peer_common::{
    Console, Description, Driver, Exchange, Intake, Measured, Peer, Publication, Source, Window,
    Work, address, not_offered, now_ns, offer, sent,
};

fn main() -> ExitCode {
    peer_common::run(&Nng)
}

struct Nng;

impl Peer for Nng {
    fn describe(&self) -> Result<Description> {
        let (all, streams) = (["tcp", "ipc", "inproc"], ["tcp", "ipc"]);
        Ok(Description {
            name: "nng".to_owned(),
            version: version(),
            offers: vec![
                offer("echo", &all, "", Driver::Own),
                offer("rpc", &streams, "", Driver::Own),
                offer("ingest", &all, "", Driver::Own),
                offer("fanout", &["tcp"], "drops", Driver::Sp),
            ],
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        let address = match work.transport.as_str() {
            "tcp" => format!("tcp://127.0.0.1:{}", address::free_port()?),
            "ipc" => {
                let path = address::socket_path();
                console.remove_at_end(&path);
                format!("ipc://{}", path.display())
            }
            _ => return Err(not_offered(work)),
        };
        match work.suite.as_str() {
            "echo" | "rpc" => calls::serve(&address, Exchange::of(work)?, work, console),
            "ingest" => {
                let socket = socket(Protocol::Pull0)?;
                let mut intake = Intake::new(work);
                console.count_by(intake.counts());
                socket.listen(&address).context("listening")?;
                console.ready(&address)?;
                loop {
                    intake.take(&socket.recv().context("receiving")?);
                    intake.publish();
                }
            }
            "fanout" => publish(&address, work, console),
            _ => Err(not_offered(work)),
        }
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        if work.transport == "inproc" {
            return inproc::drive(work);
        }
        match work.suite.as_str() {
            "echo" | "rpc" => calls::drive(address, work),
            "ingest" => push(address, work),
            _ => Err(not_offered(work)),
        }
    }
}

/// A socket with room for the messages in flight. By default there is room for one message or none.
fn socket(protocol: Protocol) -> Result<Socket> {
    let socket = Socket::new(protocol).context("making a socket")?;
    if !matches!(protocol, Protocol::Req0 | Protocol::Rep0) {
        // PUSH and PULL each support only one of the two options.
        let _ = socket.set_opt::<SendBufferSize>(BUFFER_MESSAGES);
        let _ = socket.set_opt::<RecvBufferSize>(BUFFER_MESSAGES);
    }
    Ok(socket)
}

/// Sends one-way messages over all connections in turns.
fn push(address: &str, work: &Work) -> Result<Measured> {
    let mut connections = Vec::with_capacity(work.connections);
    for connection in 0..work.connections {
        let socket = socket(Protocol::Push0)?;
        socket
            .dial(address)
            .with_context(|| format!("connecting to {address}"))?;
        connections.push((socket, Source::new(work, connection)?));
    }
    let window = Window::begin(work);
    while !window.is_over(now_ns()) {
        for (socket, source) in &mut connections {
            if let Err((_, error)) = socket.send(source.message()) {
                bail!("sending: {error}");
            }
        }
    }
    let messages = connections.iter().map(|(_, source)| source.sent()).sum();
    // Closing a socket drops its queued messages, so sockets stay open until the program ends.
    std::mem::forget(connections);
    Ok(sent(messages, &window))
}

/// Publishes at the work's rate as soon as all are connected. A publisher cannot see subscriptions, only connections. A
/// subscriber whose queue is full loses its oldest messages.
fn publish(address: &str, work: &Work, console: &Console) -> Result<()> {
    let socket = socket(Protocol::Pub0)?;
    let (connected, connections) = channel();
    socket.pipe_notify(move |_, event| {
        if event == PipeEvent::AddPost {
            // After the last connection the count has no reader.
            let _ = connected.send(());
        }
    })?;
    socket.listen(address).context("listening")?;
    console.ready(address)?;
    for _ in 0..work.subscribers {
        connections.recv().context("the socket is gone")?;
    }
    let mut publication = Publication::begin(work)?;
    loop {
        for _ in 0..publication.due(now_ns()) {
            if let Err((_, error)) = socket.send(publication.message()) {
                bail!("publishing: {error}");
            }
        }
        std::thread::sleep(publication.until_tick(now_ns()));
    }
}

/// The version of the library that is linked.
#[expect(unsafe_code, reason = "the binding has no safe getter for it")]
fn version() -> String {
    // SAFETY: it returns a constant text that ends with a 0 and lives as long as the program.
    let version = unsafe { CStr::from_ptr(nng_sys::nng_version()) };
    version.to_string_lossy().into_owned()
}

/// Messages that a socket's queue holds, in each direction.
const BUFFER_MESSAGES: i32 = 1_024;
