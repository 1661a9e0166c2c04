//! libzmq, ZeroMQ's own library. Its binding `zmq` builds it from source.
//!
//! `echo` and `rpc` are DEALER and ROUTER, `ingest` is PUSH and PULL, `fanout` is an XPUB that waits instead of
//! dropping; mode `drops` is XPUB with its defaults. Work within one process uses PAIR sockets.

mod driver;
mod inproc;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use peer_common::{
    Console, Description, Driver, Exchange, Intake, Measured, Peer, Publication, Work, address,
    not_offered, now_ns, offer,
};
use zmq::{Context, DONTWAIT, Message, SNDMORE, Socket, SocketType};

fn main() -> ExitCode {
    peer_common::run(&Libzmq)
}

struct Libzmq;

impl Peer for Libzmq {
    fn describe(&self) -> Result<Description> {
        let (major, minor, patch) = zmq::version();
        let (all, streams) = (["tcp", "ipc", "inproc"], ["tcp", "ipc"]);
        Ok(Description {
            name: "libzmq".to_owned(),
            version: format!("{major}.{minor}.{patch}"),
            offers: vec![
                offer("echo", &all, "", Driver::Own),
                offer("rpc", &streams, "", Driver::Own),
                offer("ingest", &all, "", Driver::Own),
                offer("fanout", &streams, "", Driver::Zmtp),
                offer("fanout", &streams, "drops", Driver::Zmtp),
            ],
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        let context = Context::new();
        match work.suite.as_str() {
            "echo" | "rpc" => {
                let exchange = Exchange::of(work)?;
                let socket = listen(&context, zmq::ROUTER, work, console)?;
                answer(&socket, exchange)
            }
            "ingest" => {
                let mut intake = Intake::new(work);
                console.count_by(intake.counts());
                let socket = listen(&context, zmq::PULL, work, console)?;
                pull(&socket, &mut intake)
            }
            "fanout" => {
                let socket = listen(&context, zmq::XPUB, work, console)?;
                publish(&socket, work)
            }
            _ => Err(not_offered(work)),
        }
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        if work.transport == "inproc" {
            return inproc::drive(work);
        }
        match work.suite.as_str() {
            "echo" | "rpc" => driver::ask(address, work),
            "ingest" => driver::push(address, work),
            _ => Err(not_offered(work)),
        }
    }
}

/// A socket that waits for its queued messages when it closes.
fn socket(context: &Context, kind: SocketType) -> Result<Socket> {
    let socket = context.socket(kind).context("making a socket")?;
    socket.set_linger(LINGER_MS)?;
    socket.set_backlog(BACKLOG)?;
    Ok(socket)
}

/// Binds and returns the address.
fn listen(context: &Context, kind: SocketType, work: &Work, console: &Console) -> Result<Socket> {
    let mut socket = socket(context, kind)?;
    if kind == zmq::XPUB {
        // Otherwise XPUB would not report the second of two equal subscriptions.
        switch_on(&mut socket, zmq_sys::ZMQ_XPUB_VERBOSE)?;
        if work.mode != "drops" {
            // A send then waits while the queue of any subscriber is full.
            switch_on(&mut socket, zmq_sys::ZMQ_XPUB_NODROP)?;
        }
    }
    match work.transport.as_str() {
        "tcp" => socket.bind("tcp://127.0.0.1:*")?,
        "ipc" => {
            let path = address::socket_path();
            console.remove_at_end(&path);
            socket.bind(&format!("ipc://{}", path.display()))?;
        }
        _ => return Err(not_offered(work)),
    }
    let Ok(address) = socket.get_last_endpoint()? else {
        return Err(anyhow::anyhow!("the bound address is no text"));
    };
    console.ready(&address)?;
    Ok(socket)
}

/// Sets an option for which the binding has no setter.
#[expect(unsafe_code, reason = "the binding has no setter for these options")]
fn switch_on(socket: &mut Socket, option: u32) -> Result<()> {
    let yes: i32 = 1;
    // SAFETY: the socket is open for as long as it is borrowed, and the options that are switched on here take an int,
    // which is read during the call only.
    let code = unsafe {
        zmq_sys::zmq_setsockopt(
            socket.as_mut_ptr(),
            option as i32,
            (&raw const yes).cast(),
            size_of::<i32>(),
        )
    };
    ensure!(code == 0, "option {option} of libzmq was refused");
    Ok(())
}

/// Answers requests. Each is a message of two parts: the requester and the content.
fn answer(socket: &Socket, exchange: Exchange) -> Result<()> {
    let mut body = Vec::new();
    loop {
        let asking = socket.recv_msg(0)?;
        let mut message = socket.recv_msg(0)?;
        if exchange == Exchange::Add {
            body.clear();
            body.extend_from_slice(&message);
            exchange.answer(&mut body);
            message = Message::from(body.as_slice());
        }
        socket.send(asking, SNDMORE)?;
        socket.send(message, 0)?;
    }
}

/// Receives one-way messages, and publishes the counts when no more are available.
fn pull(socket: &Socket, intake: &mut Intake) -> Result<()> {
    let mut message = Message::new();
    loop {
        match socket.recv(&mut message, DONTWAIT) {
            Ok(()) => intake.take(&message),
            Err(zmq::Error::EAGAIN) => {
                intake.publish();
                socket.recv(&mut message, 0).context("receiving")?;
                intake.take(&message);
            }
            Err(error) => return Err(error).context("receiving"),
        }
        if intake.right().is_multiple_of(PUBLISH_EVERY) {
            intake.publish();
        }
    }
}

/// Publishes at the work's rate as soon as all have subscribed.
fn publish(socket: &Socket, work: &Work) -> Result<()> {
    let mut subscribed = 0;
    while subscribed < work.subscribers {
        // A subscription is a 1 and its prefix.
        subscribed += usize::from(socket.recv_msg(0)?.first() == Some(&1));
    }
    let mut publication = Publication::begin(work)?;
    loop {
        for _ in 0..publication.due(now_ns()) {
            socket
                .send(publication.message(), 0)
                .context("publishing")?;
        }
        std::thread::sleep(publication.until_tick(now_ns()));
    }
}

/// The longest time that a closing socket waits for its queued messages.
const LINGER_MS: i32 = 3_000;

/// All connections may come at once.
const BACKLOG: i32 = 4_096;

/// The most messages between two publications of the counts.
const PUBLISH_EVERY: u64 = 1_024;
