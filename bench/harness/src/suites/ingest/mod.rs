//! Ingest: messages of 32 bytes one way, as fast as the connections take them.
//!
//! The server counts; the runner asks it for its count at the beginning, at the end, and once everything must have
//! come. Rows named `a send each` are driven by Tidewire's own lane, which is given every message by itself; what it
//! then makes of them is its affair, as it is a rival's. Rows with blocks are driven by the bare client on both sides,
//! so that they compare servers alone. In the former each message has a number that the server checks, as rivals do;
//! blocks are the same bytes again and again, so that only their number is known in the end, which such rows say
//! (`counted`). Over UDP, where nothing waits, senders keep to a [window](datagrams).

mod datagrams;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidewire::{Context, Endpoint, HandlerResult, Kind, Message, Moment, Service};
use tidewire_io::socket::SocketAddress;

use super::codec;
use super::inproc::{self, ONE_LANE};
use super::lane_client::{self, Task};
use super::numbers::Numbers;
use crate::contract::{Account, Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::ingest::{self, ReceiverCounts, Sender};
use crate::probes::{BLOCK_BYTES, Frame, Link, Parse, with_link};
use crate::stage::{OrFailed, Stage, allocated_bytes};

pub(super) const SUITE: Suite = Suite {
    name: "ingest",
    about: "messages of 32 bytes one way, by connections, batches and codec",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    if quick {
        return vec![
            coalesced(quick, "tw1", 1),
            coalesced(quick, "tw1", 16),
            each(quick, "tw1", 1),
            batched(quick, "raw", 16, BLOCK_BYTES),
            batched(quick, "srmp", 16, BLOCK_BYTES),
            datagrams::packed(quick, 1),
            within(quick, ""),
        ];
    }
    let mut rows = Vec::new();
    let blocks = [8 << 10, BLOCK_BYTES];
    for connections in [1, 4, 16, 64, 100, 256, 1_000, 10_000] {
        rows.push(coalesced(quick, "tw1", connections));
        rows.push(each(quick, "tw1", connections));
        rows.extend(blocks.map(|bytes| batched(quick, "tw1", connections, bytes)));
    }
    // The other codecs differ in what a message costs, which the number of connections does not change much.
    for codec in ["srmp", "length-field", "raw"] {
        rows.extend([1, 16, 64].map(|connections| coalesced(quick, codec, connections)));
        rows.push(each(quick, codec, 16));
        for connections in [16, 1_000] {
            rows.extend(blocks.map(|bytes| batched(quick, codec, connections, bytes)));
        }
    }
    rows.extend([1, 16].map(|connections| datagrams::packed(quick, connections)));
    rows.extend([1, 16].map(|connections| datagrams::each(quick, connections, "")));
    rows.push(datagrams::each(quick, 1, datagrams::NO_OFFLOAD));
    rows.push(within(quick, ""));
    rows.push(within(quick, ONE_LANE).with_peers(None));
    rows
}

/// Our client is given every message by itself, and so are the rivals', who batch as they see fit; the limit is blocks.
fn coalesced(quick: bool, codec: &str, connections: usize) -> RowPlan {
    let work = work(quick, "tcp", codec, connections);
    let limits = limits(&work, &[BLOCK_BYTES, 16 << 10]);
    let id = format!("{codec}, {connections}, a send each, coalesced");
    RowPlan::new(id, work, Metric::MESSAGES).with_limits(limits)
}

/// Every message is a write.
fn each(quick: bool, codec: &str, connections: usize) -> RowPlan {
    let work = Work {
        mode: FLUSH.to_owned(),
        ..work(quick, "tcp", codec, connections)
    };
    let limit = in_blocks(&work, MESSAGE_BYTES);
    let id = format!("{codec}, {connections}, a write each");
    let row = RowPlan::new(id, work, Metric::MESSAGES).with_limit(Some(limit));
    row.with_peers(None)
}

/// The bare client sends blocks to every server, also of rivals who take frames that they did not make.
fn batched(quick: bool, codec: &str, connections: usize, write_bytes: usize) -> RowPlan {
    let work = in_blocks(&work(quick, "tcp", codec, connections), write_bytes);
    let id = format!(
        "{codec}, {connections}, {} KiB batches",
        write_bytes / 1_024
    );
    let mode = BLOCKS.to_owned();
    let peers = Work {
        mode,
        ..work.clone()
    };
    let limits = limits(&work, &[write_bytes]);
    let row = RowPlan::new(id, work, Metric::MESSAGES).with_limits(limits);
    row.with_peers(Some(peers))
}

/// Bare loops with writes of so many bytes, and reads of several sizes: large reads save system calls, small ones leave
/// the bytes in the processor's nearest cache. Which is better depends on how many connections have something at a
/// time.
pub(super) fn limits(work: &Work, writes: &[usize]) -> Vec<(String, Work)> {
    let mut limits = Vec::new();
    for &write_bytes in writes {
        for read_bytes in READS {
            let read = format!("{} KiB", read_bytes / 1_024);
            let name = format!("writes of {} KiB, reads of {read}", write_bytes / 1_024);
            let mode = format!("{READS_MODE}{read}");
            limits.push((
                name,
                Work {
                    mode,
                    ..in_blocks(work, write_bytes)
                },
            ));
        }
    }
    limits
}

/// Bytes of a read that the mode of bare work names, or else the largest.
fn read_bytes(work: &Work) -> Result<usize, RoleError> {
    let Some(size) = work.mode.strip_prefix(READS_MODE) else {
        return Ok(READS[0]);
    };
    match size.strip_suffix(" KiB").map(str::parse::<usize>) {
        // Below it an unfinished frame and a read do not fit, above it nothing changes.
        Some(Ok(kibibytes @ 1..=1_024)) => Ok(kibibytes * 1_024),
        _ => {
            let text = format!("the bare receiver has no mode `{}`", work.mode);
            Err(RoleError::Unsupported(text))
        }
    }
}

/// From one end of a connection within a process to the other.
fn within(quick: bool, mode: &str) -> RowPlan {
    let work = Work {
        transport: "inproc".to_owned(),
        mode: mode.to_owned(),
        ..work(quick, "tcp", "tw1", 1)
    };
    let separator = if mode.is_empty() { "" } else { " " };
    let id = format!("tw1{separator}{mode}, within a process");
    RowPlan::new(id, work, Metric::MESSAGES)
}

pub(super) fn work(quick: bool, transport: &str, codec: &str, connections: usize) -> Work {
    Work {
        connections,
        message_bytes: MESSAGE_BYTES,
        ..super::timed(quick, &SUITE, transport, codec)
    }
}

pub(super) fn in_blocks(work: &Work, write_bytes: usize) -> Work {
    Work {
        write_bytes,
        mode: String::new(),
        ..work.clone()
    }
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::need_descriptors(work)?;
    match side {
        Side::Bare if work.transport == "udp" => datagrams::serve_bare(work, stage),
        Side::Bare => serve_bare(work, stage),
        Side::Tidewire => serve_tidewire(work, stage),
    }
}

fn serve_bare(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let (listener, local) = super::listen(work)?;
    let (parse, read_bytes) = (parse(work)?, read_bytes(work)?);
    let received = Arc::new(ReceiverCounts::default());
    let counted = Arc::clone(&received);
    let serve = with_link!(work, ingest::serve);
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn(move || {
        let stop = AtomicBool::new(false);
        serve(&listener, parse, read_bytes, usize::MAX, &stop, &counted)
    });
    let message_bytes = (parse == Parse::Bytes).then_some(work.message_bytes as u64);
    serve_received(&local, &received, message_bytes, stage)
}

/// Tells what a bare receiver counted: its frames, or its bytes as messages of so many.
fn serve_received(
    address: &str,
    received: &ReceiverCounts,
    message_bytes: Option<u64>,
    stage: &mut Stage,
) -> Result<(), RoleError> {
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    stage.serve(address, || Account {
        messages: Some(match message_bytes {
            Some(message_bytes) => read(&received.bytes) / message_bytes,
            None => read(&received.frames),
        }),
        allocated_bytes: allocated_bytes().map(|_| read(&received.allocated_bytes)),
        ..Account::default()
    })
}

/// Counts, and lets others see the count once a turn.
struct Counter {
    counts: Counts,
    count: u64,
    shared: Arc<AtomicU64>,
}

/// The way to count.
// With a tag of its own instead of one hidden in a vector: it is looked at for every message.
#[repr(u8)]
enum Counts {
    /// Raw bytes, as such.
    Bytes,
    /// Frames, whatever they hold: blocks are the same again and again.
    Frames,
    /// Messages that come once and in order.
    Numbers(Numbers),
    /// The same, with a word to the sender whenever it is another so many.
    Told(Numbers, u64),
}

impl Counts {
    fn of(parse: Parse, work: &Work) -> Self {
        match parse {
            _ if work.transport == "udp" => {
                Self::Told(Numbers::new(), datagrams::tells_every(work))
            }
            Parse::Bytes => Self::Bytes,
            _ if is_numbered(work) => Self::Numbers(Numbers::new()),
            _ => Self::Frames,
        }
    }
}

impl Service for Counter {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        match &mut self.counts {
            Counts::Numbers(numbers) | Counts::Told(numbers, _) => numbers.open(cx),
            Counts::Bytes | Counts::Frames => {}
        }
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.count += match &mut self.counts {
            Counts::Bytes => message.payload.len() as u64,
            Counts::Frames => 1,
            Counts::Numbers(numbers) => u64::from(numbers.take(cx, message.payload)),
            Counts::Told(numbers, every) => {
                let is_right = numbers.take(cx, message.payload);
                let come = numbers.next();
                if is_right && come.is_multiple_of(*every) {
                    cx.send(Message::new(Kind::OneWay, 0, &come.to_le_bytes()))?;
                }
                u64::from(is_right)
            }
        };
        Ok(())
    }

    fn on_turn(&mut self, _: &mut Context<'_>) -> Option<Moment> {
        self.shared.store(self.count, Ordering::Relaxed);
        None
    }
}

/// Whether messages carry numbers: those that Tidewire's lane sends one by one, where the codec has messages at all, or
/// they are datagrams.
fn is_numbered(work: &Work) -> bool {
    work.write_bytes == 0 && (work.codec != "raw" || work.transport == "udp")
}

fn serve_tidewire(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let shared = Arc::new(AtomicU64::new(0));
    let parse = parse(work)?;
    let divisor = match parse {
        Parse::Bytes if !is_numbered(work) => work.message_bytes as u64,
        _ => 1,
    };
    let server = super::builder(work)?
        .codec(codec(work)?)
        .start(|_| Counter {
            counts: Counts::of(parse, work),
            count: 0,
            shared: Arc::clone(&shared),
        })
        .or_failed("start the server")?;
    stage.serve(&server.to_string(), || Account {
        messages: Some(shared.load(Ordering::Relaxed) / divisor),
        allocated_bytes: super::lanes_allocated(&server.metrics()),
        ..Account::default()
    })
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    super::need_descriptors(work)?;
    if work.transport == "inproc" {
        return inproc::drive(side, work, stage);
    }
    let address = super::full_address(work, address);
    let endpoint = super::endpoint(&address)?;
    if side == Side::Tidewire && work.write_bytes == 0 {
        let task = Task::Send {
            flushes_each: work.mode == FLUSH,
            window: (work.transport == "udp").then_some(work.in_flight as u64),
        };
        return drive_lane(&endpoint, work, task, stage);
    }
    match endpoint {
        Endpoint::Udp(server) => datagrams::drive_bare(server, work, stage),
        _ => {
            let server = super::socket_address(&address)?;
            with_link!(work, drive_bare)(side, &server, work, stage)
        }
    }
}

/// Sends blocks.
fn drive_bare<L: Link>(
    side: Side,
    address: &SocketAddress,
    work: &Work,
    stage: &mut Stage,
) -> Result<(), RoleError> {
    let frame = Frame::one_way(parse(work)?, work.message_bytes);
    let greets = side == Side::Tidewire && work.codec == "tw1";
    let mut sender = Sender::<L>::connect(address, work, &frame, greets).or_failed("send")?;
    let measured = send(work, stage, |duration| sender.write_for(duration))?;
    let sent = Some(sender.finish().or_failed("send")?);
    stage.measured(Measured { sent, ..measured })
}

/// Lets a bare sender warm up and send for the length of the window. Only the receiver counts.
fn send(
    work: &Work,
    stage: &mut Stage,
    mut send_for: impl FnMut(Duration) -> io::Result<()>,
) -> Result<Measured, RoleError> {
    let mut send_for = |ms| send_for(Duration::from_millis(ms)).or_failed("send");
    send_for(work.warm_up_ms)?;
    let window = stage.begin()?;
    send_for(work.measure_ms)?;
    Ok(Measured {
        verified: true,
        counted: true,
        allocated_bytes: window.end()?,
        ..Measured::default()
    })
}

fn drive_lane(
    endpoint: &Endpoint,
    work: &Work,
    task: Task,
    stage: &mut Stage,
) -> Result<(), RoleError> {
    let mut limits = super::limits(work);
    // Largest output that is written together. A session that holds more is full and waits for its socket.
    limits.connections.set_queue_bytes_max(BLOCK_BYTES);
    lane_client::run(endpoint, work, task, limits, stage, |measured| {
        measured.counted = !is_numbered(work);
    })
}

fn parse(work: &Work) -> Result<Parse, RoleError> {
    Parse::by_name(&work.codec)
        .ok_or_else(|| RoleError::Unsupported(format!("no bare frames of {}", work.codec)))
}

/// The mode of rivals in which the bare client sends them blocks.
pub(super) const BLOCKS: &str = "blocks";

/// Bytes of the bare receiver's reads.
const READS: [usize; 2] = [256 << 10, 64 << 10];

/// The text before the size of its reads in the mode of bare work.
const READS_MODE: &str = "reads of ";

/// The mode in which every message is written by itself.
const FLUSH: &str = "flush";

const MESSAGE_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::played::{loses_nothing, play_long_rows};
    use super::*;

    #[test]
    fn every_codec_way_and_transport_of_the_long_rows_works() {
        play_long_rows(&SUITE, 16);
    }

    #[test]
    fn every_number_of_connections_is_sent_to_in_every_way() {
        let rows = rows(false);
        for connections in [1, 4, 16, 64, 100, 256, 1_000, 10_000] {
            let here = |row: &&RowPlan| {
                let work = &row.work;
                (
                    work.connections,
                    work.codec.as_str(),
                    work.transport.as_str(),
                ) == (connections, "tw1", "tcp")
            };
            let ways: Vec<(usize, &str)> = rows
                .iter()
                .filter(here)
                .map(|row| (row.work.write_bytes, row.work.mode.as_str()))
                .collect();
            assert_eq!(
                ways,
                [(0, ""), (0, FLUSH), (8 << 10, ""), (BLOCK_BYTES, "")]
            );
        }
    }

    #[test]
    fn everything_that_is_sent_is_counted() {
        loses_nothing(&SUITE, |work| {
            (work.warm_up_ms, work.measure_ms) = (5, 20);
        });
    }
}
