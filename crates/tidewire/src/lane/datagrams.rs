//! Brings datagrams from a socket to the service: receives batches, finds the session of each datagram, decodes its
//! frames.

use std::io::ErrorKind;
use std::sync::Arc;

use tidewire_io::datagram::{Datagram, DatagramBatch, DatagramSocket, Datagrams};
use tidewire_proto::codec::Codec;
use tidewire_proto::connection::{Inbound, PauseReason, Phase};
use tidewire_proto::handshake::HandshakeError;
use tidewire_proto::layer::{LayerError, TlsFault};
use tidewire_proto::with_codec;

use super::ContainedService;
use super::read::{self, Flow, Progress};
use crate::engine::Core;
use crate::observe::DatagramDrop;
use crate::room::EARLY_SWEEP_BYTES;
use crate::service::Context;
use crate::service::Service;
use crate::session::{CloseReason, LaneSessions};

/// The socket from which datagrams come.
#[derive(Clone, Copy)]
enum Source {
    /// A socket of the lane.
    Port(usize),
    /// The socket of one session.
    Session(usize),
}

/// Receives datagrams, and brings them to their sessions.
#[derive(Debug, Default)]
pub(super) struct DatagramReader {
    /// `None` until a socket was read.
    batch: Option<Box<DatagramBatch>>,
}

impl DatagramReader {
    /// Receives the datagrams that wait at every shared socket.
    pub(super) fn read_ports<S: Service>(
        &mut self,
        core: &mut Core,
        service: &mut ContainedService<S>,
    ) {
        for port in 0..core.ports.len() {
            self.read_port(core, service, port);
        }
    }

    /// Receives the datagrams that wait at a shared socket.
    pub(super) fn read_port<S: Service>(
        &mut self,
        core: &mut Core,
        service: &mut ContainedService<S>,
        port: usize,
    ) {
        if let Some(socket) = core.ports.socket(port) {
            self.receive(core, service, &socket, Source::Port(port));
            let now_ns = core.sessions.timers.now_ns();
            core.ports.plan_port_drops(port, now_ns);
        }
    }

    /// Reads a session over UDP: the frames that were left over, and its own socket if it has one.
    pub(super) fn read_session<S: Service>(
        &mut self,
        core: &mut Core,
        service: &mut ContainedService<S>,
        slot: usize,
    ) {
        if core.sessions[slot].connection.input().has_frames() {
            // Few sessions have a backlog, so this is not compiled for each codec.
            let config = Arc::clone(&core.config);
            let codec = config.codecs.get(core.sessions[slot].codec_number());
            take_backlog(core, service, codec, slot);
        }
        let session = &core.sessions[slot];
        if !session.connection.may_read() {
            return;
        }
        let Some(peer) = session.stream.datagram() else {
            return;
        };
        if let Some(socket) = peer.own_socket() {
            let id = session.id;
            self.receive(core, service, &socket, Source::Session(slot));
            if core.sessions.table.slot_of(id).is_some() {
                core.ports.plan_own_drops(&mut core.sessions, slot);
            }
        }
    }

    /// Receives until the socket is empty, the share of the turn is used up, or the session of the socket may not be
    /// read.
    fn receive<S: Service>(
        &mut self,
        core: &mut Core,
        service: &mut ContainedService<S>,
        socket: &DatagramSocket,
        source: Source,
    ) {
        let number = match source {
            Source::Port(port) => core.ports.codec_number(port),
            Source::Session(slot) => core.sessions[slot].codec_number(),
        };
        let limits = &core.config.limits.connections;
        let bytes_max = limits.frame_bytes_max().max(limits.datagram_bytes_max());
        let batch = self.batch.get_or_insert_with(|| {
            Box::new(DatagramBatch::with_limit(
                DatagramBatch::SLOTS_MAX,
                bytes_max,
            ))
        });
        for _ in 0..RECEIVES_PER_EVENT {
            if core.exchange.is_backed_up() || !may_receive(&core.sessions, source) {
                return;
            }
            core.counters.system_calls.add(1);
            match socket.receive(batch) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    return match source {
                        Source::Port(_) => core.ports.note_failure(&core.sessions, &error),
                        Source::Session(slot) => core.sessions.handle_unreachable(slot, error),
                    };
                }
            }
            core.sessions.timers.read_clock();
            with_codec!(
                datagrams core.config.codecs.get(number),
                codec => handle_batch(core, service, codec, source, batch)
            );
            if !batch.is_full() {
                return;
            }
        }
    }
}

/// Whether a session ends because bytes did not decode. Anybody can send a datagram with the address of an open
/// session, so bytes of another protocol end only a session that is not open.
fn is_undecodable(cx: &Context<'_>, slot: usize, reason: CloseReason) -> bool {
    let is_open = || cx.core.sessions[slot].connection.is_open();
    match reason {
        CloseReason::Decode(_) => true,
        CloseReason::Handshake(HandshakeError::OtherProtocol { .. })
        | CloseReason::Layer(LayerError::Tls(TlsFault::UnexpectedTls)) => is_open(),
        _ => false,
    }
}

/// Passes every datagram of a batch to its session.
#[inline]
fn handle_batch<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    source: Source,
    batch: &DatagramBatch,
) {
    let mut datagrams = batch.iter();
    let mut next = datagrams.next();
    while let Some(first) = next {
        let slot = match source {
            Source::Session(slot) => Some(slot),
            Source::Port(port) => core
                .ports
                .slot_of(port, first.peer)
                .or_else(|| admit_and_announce(core, service, codec, port, &first)),
        };
        next = match slot {
            Some(slot) => handle_run(core, service, codec, slot, first, &mut datagrams),
            None => datagrams.next(),
        };
        core.sweep_early(EARLY_SWEEP_BYTES);
    }
}

/// Makes a session for a peer that has none, if it may have one.
#[cold]
fn admit_and_announce<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    port: usize,
    first: &Datagram<'_>,
) -> Option<usize> {
    let Some(slot) = core.admit(port, first, codec) else {
        core.counters.datagrams_in.add(1);
        core.counters.bytes_in.add(first.bytes.len() as u64);
        return None;
    };
    let phase = core.sessions[slot].connection.phase();
    let is_admitted = phase == Phase::Authenticating && core.guard().authenticate(slot, &[]);
    if is_admitted || core.sessions[slot].connection.is_open() {
        service.announce(core, slot);
    }
    Some(slot)
}

/// The outcome of handling a datagram.
#[derive(Clone, Copy)]
enum DatagramOutcome {
    Whole,
    /// The session must not be read further now. The rest of the datagram is kept.
    Stopped,
    Ended,
    Close(CloseReason),
    /// The session ends already.
    Panicked,
}

/// Handles consecutive datagrams of one peer. Returns the next one of another peer, or of this peer if the session
/// stopped.
fn handle_run<'a, S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    slot: usize,
    first: Datagram<'a>,
    rest: &mut Datagrams<'a>,
) -> Option<Datagram<'a>> {
    let mut current = Some(first);
    // Frames that were left over come first. The session may be read again since its output was sent.
    take_backlog(core, service, codec, slot);
    // A datagram is a sign of life, even if the session must not be read now.
    let now_ns = core.sessions.timers.now_ns();
    core.sessions[slot]
        .connection
        .timing_mut()
        .note_input(now_ns);
    if let Some(reason) = core.sessions[slot].drop_reason(&first) {
        core.counters.drop_datagram(reason);
        core.counters.datagrams_in.add(1);
        return rest.next();
    }
    let (ports, sessions) = (&mut core.ports, &mut core.sessions);
    if ports.is_looping(sessions, slot, &first, codec) {
        return skip_run(core, first, rest);
    }
    let (id, mut progress) = (core.sessions[slot].id, Progress::new(core, slot));
    let (mut count, mut bytes, mut ending) = (0, 0, DatagramOutcome::Whole);
    let mut handling: &[u8] = &[];
    let called = service.call(core, id, |core, service| {
        let mut cx = core.context(id);
        while let Some(datagram) = current.filter(|datagram| datagram.peer == first.peer) {
            count += 1;
            bytes += datagram.bytes.len() as u64;
            if let Some(peer) = cx.core.sessions[slot].stream.datagram_mut() {
                peer.allow(datagram.bytes.len());
            }
            current = rest.next();
            handling = datagram.bytes;
            ending = take_datagram(&mut cx, service, codec, slot, &datagram, &mut progress);
            if !matches!(ending, DatagramOutcome::Whole) {
                break;
            }
        }
    });
    if called.is_none() {
        ending = DatagramOutcome::Panicked;
        progress.frames += read::count_frames(codec, handling);
    }
    core.counters.datagrams_in.add(count);
    core.counters.bytes_in.add(bytes);
    core.counters.frames_in.add(progress.frames);
    finish_run(core, slot, ending);
    current
}

/// Applies the outcome of handling datagrams to their session.
fn finish_run(core: &mut Core, slot: usize, ending: DatagramOutcome) {
    match ending {
        DatagramOutcome::Whole | DatagramOutcome::Panicked => {}
        DatagramOutcome::Ended => read::end(core, slot),
        DatagramOutcome::Close(reason) => core.sessions.table.close(slot, reason),
        DatagramOutcome::Stopped => {
            let connection = &mut core.sessions[slot].connection;
            if connection.is_closed() || connection.input().state() == Inbound::Ended {
                return;
            }
            if !connection.input().is_paused() {
                connection.input_mut().pause(PauseReason::Output);
            }
            core.counters.reads_paused.add(1);
            core.sessions.update_interest(slot);
            core.sessions.flush(slot);
        }
    }
}

/// Drops consecutive datagrams of one peer. Returns the next one of another peer.
#[cold]
fn skip_run<'a>(
    core: &mut Core,
    first: Datagram<'a>,
    rest: &mut Datagrams<'a>,
) -> Option<Datagram<'a>> {
    let mut current = Some(first);
    while let Some(datagram) = current.filter(|datagram| datagram.peer == first.peer) {
        core.counters.datagrams_in.add(1);
        core.counters.bytes_in.add(datagram.bytes.len() as u64);
        core.counters.drop_datagram(DatagramDrop::Loop);
        current = rest.next();
    }
    current
}

/// Decodes one datagram.
fn take_datagram<'a, S: Service, C: Codec + ?Sized>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    datagram: &Datagram<'a>,
    progress: &mut Progress,
) -> DatagramOutcome {
    if datagram.truncated {
        cx.core.counters.drop_datagram(DatagramDrop::Truncated);
        return DatagramOutcome::Whole;
    }
    if datagram.bytes.is_empty() {
        return DatagramOutcome::Ended;
    }
    take_frames(cx, service, codec, slot, datagram.bytes, progress)
}

#[inline]
fn take_frames<S: Service, C: Codec + ?Sized>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    bytes: &[u8],
    progress: &mut Progress,
) -> DatagramOutcome {
    let (used, flow) = read::decode_frames::<S, C, true>(cx, service, codec, slot, bytes, progress);
    match flow {
        Flow::Continue if used == bytes.len() => DatagramOutcome::Whole,
        Flow::Continue => {
            cx.core.counters.drop_datagram(DatagramDrop::Unfinished);
            DatagramOutcome::Whole
        }
        Flow::Stop => {
            // The session may go on once its output is sent.
            keep_rest(&mut cx.core.sessions, slot, &bytes[used..]);
            DatagramOutcome::Stopped
        }
        Flow::Close(reason) if is_undecodable(cx, slot, reason) => {
            tracing::debug!(session = %cx.call.id(), %reason, "cannot decode the rest of a datagram");
            cx.core.counters.drop_datagram(DatagramDrop::Malformed);
            DatagramOutcome::Whole
        }
        Flow::Close(reason) => DatagramOutcome::Close(reason),
        Flow::Panicked => DatagramOutcome::Panicked,
    }
}

/// Handles the frames that were left when the session stopped, unless it still must not be read.
fn take_backlog<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    slot: usize,
) {
    // Each pass handles at least one frame.
    while core.sessions[slot].may_read_on() {
        let (rest, _) = core.sessions[slot].connection.input_mut().take();
        take_rest(core, service, codec, slot, &rest);
        core.sessions[slot].connection.handle_backlog_served();
        core.sessions.outputs.put_buffer(rest);
    }
}

fn take_rest<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    slot: usize,
    rest: &[u8],
) {
    let (id, mut progress) = (core.sessions[slot].id, Progress::new(core, slot));
    let taken = service.call(core, id, |core, service| {
        let mut cx = core.context(id);
        take_frames(&mut cx, service, codec, slot, rest, &mut progress)
    });
    if taken.is_none() {
        progress.frames += read::count_frames(codec, rest);
    }
    core.counters.frames_in.add(progress.frames);
    finish_run(core, slot, taken.unwrap_or(DatagramOutcome::Panicked));
}

/// Keeps whole frames of a datagram that must not be handled yet.
#[cold]
fn keep_rest(sessions: &mut LaneSessions, slot: usize, rest: &[u8]) {
    if rest.is_empty() || sessions[slot].connection.input().state() == Inbound::Ended {
        return;
    }
    let mut kept = sessions.outputs.take_buffer();
    kept.extend_from_slice(rest);
    sessions[slot].connection.input_mut().keep_frames(kept);
}

/// Whether datagrams of this socket can be handled now. A session's own socket keeps them while it must not be read.
fn may_receive(sessions: &LaneSessions, source: Source) -> bool {
    match source {
        Source::Port(_) => true,
        Source::Session(slot) => {
            let session = sessions.table.get(slot);
            session.is_some_and(|session| session.connection.may_read())
        }
    }
}

/// Batches received from a socket at one event: at most 8 × 32 runs of up to 64 KiB. So a flood at one socket does not
/// starve the rest of the lane.
const RECEIVES_PER_EVENT: usize = 8;
