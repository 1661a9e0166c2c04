//! Bare connections that move frames of one size, over every transport: for limits that need more than an echo.
//!
//! Problem: the limits of calls and of publications do the same over sockets, datagrams and rings, and differ only in
//! how a frame gets from one side to the other. Approach: a [`FrameLink`] is one end of a connection whatever carries
//! it, a [`Server`] all the ends of one side with the waiting for them, and a [`Way`] what a client needs to get there.
//! Over UDP frames share datagrams, and one call sends a run of them. Within a process no side sleeps, as in the other
//! limits there. A side that finds no frame for a long time yields its core between two checks.

mod client;
mod rest;
mod server;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidewire_io::datagram::{DatagramBatch, DatagramSocket};
use tidewire_io::ring::RingStream;
use tidewire_io::socket::Stream;

pub(super) use self::client::{Links, Way};
pub(super) use self::server::{Server, serve, way};
use super::{SPIN, SPIN_US};
use crate::contract::Work;
use crate::probes::datagram::RUN_BYTES_MAX;
use crate::probes::datagram_ingest::PACKED_BYTES;
use crate::probes::wait::WaitSet;
use crate::probes::{PartialFrame, or_none};

/// One end of a connection that moves frames of so many bytes.
pub(super) struct FrameLink<const FRAME_BYTES: usize> {
    wire: Wire,
    unfinished: PartialFrame,
    pub(super) output: Vec<u8>,
}

/// How the bare loops of a row write and wait. None is always the fastest, so a row has several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// They write to each link as soon as it was read: the other side has work early.
    WriteEach,
    /// They write to all links after all were read: the other side wakes less often, and reads more at once.
    WriteTogether,
    /// They write to each link, and look for more for a while before they sleep: the other side need not wake them.
    Spin,
    /// They write to each link, and a publisher waits until half of its window is free: the other side reads more at
    /// once.
    HalfWindow,
}

impl Strategy {
    const ALL: [(Self, &'static str); 4] = [
        (Self::WriteEach, "a write for each link"),
        (Self::WriteTogether, "writes after all reads"),
        (Self::Spin, "looks before sleeping"),
        (Self::HalfWindow, "half a window at once"),
    ];

    /// The bare loops for a row, and their names in the tables: those of `sleeping`, or the one that looks if the row's
    /// lanes do. Within a process all loops look and never sleep.
    pub(super) fn loops(sleeping: &[Self], work: &Work) -> Vec<(String, Work)> {
        let strategies = match work.mode == SPIN {
            true => &[Self::Spin],
            false => sleeping,
        };
        let all = Self::ALL
            .iter()
            .filter(|(strategy, _)| strategies.contains(strategy));
        let loops = all.map(|(_, name)| {
            let mode = (*name).to_owned();
            let work = Work {
                mode,
                ..work.clone()
            };
            ((*name).to_owned(), work)
        });
        loops.collect()
    }

    /// The strategy of the work of such a loop.
    pub(super) fn of(work: &Work) -> Self {
        let found = Self::ALL.iter().find(|(_, name)| work.mode == *name);
        found.map_or(Self::WriteEach, |(strategy, _)| *strategy)
    }

    /// The set in which its threads wait.
    fn wait_set(self) -> io::Result<WaitSet> {
        WaitSet::spinning(match self {
            Self::Spin => Duration::from_micros(SPIN_US.into()),
            _ => Duration::ZERO,
        })
    }
}

/// The carrier of the bytes.
enum Wire {
    Socket(Stream),
    Ring(RingStream),
    Datagrams(Datagrams),
}

/// A socket, and the peer that is meant. A server has one socket for all its peers, and reads it itself.
struct Datagrams {
    socket: Arc<DatagramSocket>,
    peer: SocketAddr,
    batch: Option<Box<DatagramBatch>>,
}

impl<const FRAME_BYTES: usize> FrameLink<FRAME_BYTES> {
    fn new(wire: Wire) -> Self {
        Self {
            wire,
            unfinished: PartialFrame::default(),
            output: Vec::new(),
        }
    }

    /// Reads once into a [`buffer`] that all links of a thread share, lets `handle` answer every whole frame, and
    /// writes its answers, unless that happens [after all reads](Strategy::WriteTogether). Returns how many frames
    /// came.
    pub(super) fn exchange(
        &mut self,
        buffer: &mut [u8],
        strategy: Strategy,
        mut handle: impl FnMut(&[u8; FRAME_BYTES], &mut Vec<u8>),
    ) -> io::Result<usize> {
        let mut count = 0;
        if let Some(filled) = self.unfinished.fill(buffer, |room| self.wire.read(room))? {
            let (frames, rest) = buffer[..filled].as_chunks();
            for frame in frames {
                handle(frame, &mut self.output);
            }
            self.unfinished.keep(rest);
            count = frames.len();
        }
        if strategy != Strategy::WriteTogether {
            self.flush()?;
        }
        Ok(count)
    }

    /// Writes what is taken; the rest stays in `output` for the next time.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match or_none(self.wire.write(&self.output[written..], FRAME_BYTES))? {
                0 => break,
                count => written += count,
            }
        }
        self.output.drain(..written);
        Ok(())
    }
}

impl Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.read(buffer),
            Self::Ring(stream) => stream.read(buffer),
            Self::Datagrams(datagrams) => datagrams.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8], frame_bytes: usize) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.write(bytes),
            Self::Ring(stream) => stream.write(bytes),
            Self::Datagrams(datagrams) => datagrams.write(bytes, frame_bytes),
        }
    }
}

impl Datagrams {
    /// The content of a run of datagrams; each of them has whole frames.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let batch = self
            .batch
            .get_or_insert_with(|| Box::new(DatagramBatch::new(1)));
        self.socket.receive(batch)?;
        let mut filled = 0;
        for datagram in &**batch {
            // A client that greeted twice may get two answers.
            if datagram.bytes == GREETING {
                continue;
            }
            let until = filled + datagram.bytes.len();
            buffer[filled..until].copy_from_slice(datagram.bytes);
            filled = until;
        }
        if filled == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(filled)
    }

    /// Sends a run of datagrams that are as large as may be.
    fn write(&mut self, bytes: &[u8], frame_bytes: usize) -> io::Result<usize> {
        let datagram_bytes = (PACKED_BYTES / frame_bytes * frame_bytes).min(bytes.len());
        let most = RUN_BYTES_MAX / datagram_bytes * datagram_bytes;
        let run = &bytes[..bytes.len().min(most)];
        let datagrams = self.socket.send(self.peer, datagram_bytes, run)?;
        Ok((datagrams * datagram_bytes).min(run.len()))
    }
}

/// A buffer to read into. A thread makes one, for filling it with zeros costs as much as many frames.
fn buffer() -> Box<[u8]> {
    vec![0; BUFFER_BYTES].into_boxed_slice()
}

/// Most bytes of one read: no run of datagrams is larger.
const BUFFER_BYTES: usize = 64 * 1024;

/// Room of a ring in each direction, in bytes.
const RING_BYTES: usize = 256 * 1024;

/// The first datagram of a client over UDP, which the server answers. By it the server learns of the client.
const GREETING: [u8; 1] = [0];
