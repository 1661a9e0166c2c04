//! Ingest, bare: a sender that writes blocks of frames as fast as its sockets take them, and a receiver that counts
//! bytes or finds the frames in them.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewire::io::clock::now_ns;
use tidewire::io::socket::{Listener, SocketAddress, Stream};

use super::echo::connect;
use super::wait::WaitSet;
use super::{BLOCK_BYTES, Frame, Parse};

/// What the sender offers.
#[derive(Clone, Debug)]
pub struct IngestLoad {
    /// Number of connections.
    pub connections: usize,
    /// Bytes of one write; it holds as many whole frames as fit.
    pub write_bytes: usize,
    /// How long it sends.
    pub duration: Duration,
    /// The frame to send.
    pub frame: Frame,
    /// Whether the server speaks TW1 and must be greeted first; a bare one is not.
    pub greets: bool,
}

/// What the sender did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Whole frames that were written.
    pub frames: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// From the first write to the last, in nanoseconds.
    pub elapsed_ns: u64,
}

/// What the receiver found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames, unless only bytes were counted.
    pub frames: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes at the end of connections that were no whole frame.
    pub torn_bytes: u64,
    /// From the first read to the last, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Counts what arrives until `stop` is set, or `connections` have come and gone.
///
/// # Errors
/// What the system says of the listener, the epoll set or a connection.
pub fn serve(
    listener: &Listener,
    parse: Parse,
    connections: usize,
    stop: &AtomicBool,
) -> io::Result<Received> {
    let mut set = WaitSet::new()?;
    set.add(listener.as_fd(), LISTENER)?;
    // A connection and its unfinished frame.
    let mut open: Vec<Option<(Stream, Vec<u8>)>> = Vec::new();
    let mut received = Received::default();
    let mut buffer = vec![0; BLOCK_BYTES * 4];
    let mut ready = Vec::new();
    let (mut gone, mut first_ns) = (0, None);
    while !stop.load(Ordering::Relaxed) && gone < connections {
        set.wait(&mut ready)?;
        for &number in &ready {
            if number == LISTENER {
                while let Ok(accepted) = listener.accept() {
                    set.add(accepted.stream.as_fd(), open.len())?;
                    open.push(Some((accepted.stream, Vec::new())));
                }
                continue;
            }
            let Some((stream, rest)) = open[number].as_mut() else {
                continue;
            };
            first_ns.get_or_insert_with(now_ns);
            if drain(stream, rest, parse, &mut buffer, &mut received)? {
                received.torn_bytes += rest.len() as u64;
                open[number] = None;
                gone += 1;
            }
        }
        received.elapsed_ns = first_ns.map_or(0, |first_ns| now_ns() - first_ns);
    }
    Ok(received)
}

/// Reads and counts until there is nothing more. Returns whether the connection ended.
fn drain(
    stream: &mut Stream,
    rest: &mut Vec<u8>,
    parse: Parse,
    buffer: &mut [u8],
    received: &mut Received,
) -> io::Result<bool> {
    loop {
        let kept = rest.len();
        buffer[..kept].copy_from_slice(rest);
        let count = match stream.read(&mut buffer[kept..]) {
            Ok(0) => return Ok(true),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let filled = kept + count;
        let (frames, used) = parse.count(&buffer[..filled]);
        received.frames += frames;
        received.bytes += count as u64;
        rest.clear();
        rest.extend_from_slice(&buffer[used..filled]);
        if filled < buffer.len() {
            return Ok(false);
        }
    }
}

/// Connects, writes, and closes.
///
/// # Errors
/// A connection cannot be made, or ends.
pub fn send(address: &SocketAddress, load: &IngestLoad) -> io::Result<Sent> {
    let mut set = WaitSet::new()?;
    let mut streams = Vec::with_capacity(load.connections);
    for number in 0..load.connections {
        let stream = connect(address, load.greets)?;
        set.add(stream.as_fd(), number)?;
        set.watch_output(stream.as_fd(), number, true)?;
        // The stream, and how much of its current block is written.
        streams.push((stream, 0));
    }
    let mut block = Vec::new();
    let frames = (load.write_bytes / load.frame.bytes()).max(1) as u64;
    load.frame.append(&mut block, 0, frames);
    let from_ns = now_ns();
    let until_ns = from_ns + load.duration.as_nanos() as u64;
    let mut sent = Sent::default();
    let mut ready = Vec::new();
    let mut unfinished = 0;
    while now_ns() < until_ns || unfinished > 0 {
        let ending = now_ns() >= until_ns;
        set.wait(&mut ready)?;
        for &number in &ready {
            let (stream, at) = &mut streams[number];
            if ending && *at == 0 {
                set.watch_output(stream.as_fd(), number, false)?;
                continue;
            }
            match stream.write(&block[*at..]) {
                Ok(count) => {
                    sent.bytes += count as u64;
                    *at = (*at + count) % block.len();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        unfinished = streams.iter().filter(|(_, at)| *at > 0).count();
    }
    sent.frames = sent.bytes / load.frame.bytes() as u64;
    sent.elapsed_ns = now_ns() - from_ns;
    Ok(sent)
}

/// The listener's number in the set, which no connection reaches.
const LISTENER: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::echo::{self, EchoLoad};

    fn listener() -> Listener {
        let address = SocketAddress::Tcp(([127, 0, 0, 1], 0).into());
        Listener::bind(&address, &tidewire::io::socket::SocketOptions::default()).unwrap()
    }

    #[test]
    fn every_frame_that_is_sent_is_received() {
        for (parse, write_bytes) in [
            (Parse::Tw1, BLOCK_BYTES),
            (Parse::Srmp, 1_000),
            (Parse::LengthField, 32),
            (Parse::Bytes, BLOCK_BYTES),
        ] {
            let listener = listener();
            let address = listener.local_address().clone();
            let server = std::thread::spawn(move || {
                serve(&listener, parse, 3, &AtomicBool::new(false)).unwrap()
            });
            let load = IngestLoad {
                connections: 3,
                write_bytes,
                duration: Duration::from_millis(50),
                frame: Frame::one_way(parse, 32),
                greets: false,
            };
            let sent = send(&address, &load).unwrap();
            let received = server.join().unwrap();
            assert!(sent.frames > 0);
            assert_eq!((received.bytes, received.torn_bytes), (sent.bytes, 0));
            if parse != Parse::Bytes {
                assert_eq!(received.frames, sent.frames);
            }
        }
    }

    #[test]
    fn a_server_of_tidewire_is_greeted_and_driven_alike() {
        let server = tidewire::serve(
            "tcp://127.0.0.1:0",
            |cx: &mut tidewire::Context<'_>, message: tidewire::Message<'_>| {
                cx.reply(message.payload)
            },
        )
        .unwrap();
        let tidewire::Endpoint::Socket(address) = server.addresses()[0].clone() else {
            panic!("a socket was listened on");
        };
        let load = EchoLoad {
            connections: 2,
            in_flight: 16,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(50),
            frame: Frame::one_way(Parse::Tw1, 32),
            greets: true,
        };
        assert!(
            echo::drive(&address, &load, &mut || Ok(()))
                .unwrap()
                .replies
                > 0
        );
    }

    #[test]
    fn every_reply_is_the_expected_one() {
        let listener = listener();
        let address = listener.local_address().clone();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let server = std::thread::spawn({
            let stop = std::sync::Arc::clone(&stop);
            move || echo::serve(&listener, &stop)
        });
        for (connections, in_flight) in [(1, 1), (3, 128)] {
            let load = EchoLoad {
                connections,
                in_flight,
                warm_up: Duration::ZERO,
                duration: Duration::from_millis(50),
                frame: Frame::one_way(Parse::Tw1, 32),
                greets: false,
            };
            let outcome = echo::drive(&address, &load, &mut || Ok(())).unwrap();
            assert!(outcome.replies > 0 && outcome.latency.count() > 0);
            assert_eq!(outcome.lost, 0);
        }
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap().unwrap();
    }
}
