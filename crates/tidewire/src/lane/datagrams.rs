//! Brings datagrams from a socket to the service: receives batches, finds the session of each datagram, decodes its frames.

use std::io::ErrorKind;
use std::sync::Arc;

use tidewire_io::datagram::{Datagram, DatagramBatch, DatagramSocket, Datagrams};
use tidewire_io::poller::Event;
use tidewire_proto::codec::Codec;
use tidewire_proto::handshake::HandshakeError;
use tidewire_proto::layer::{LayerError, TlsFault};
use tidewire_proto::with_codec;

use super::read::{self, Flow, Progress};
use super::{Lane, Served};
use crate::engine::Core;
use crate::observe::DatagramDrop;
use crate::room::EARLY_SWEEP_BYTES;
use crate::service::Context;
use crate::service::Service;
use crate::session::CloseReason;

/// The socket from which datagrams come.
#[derive(Clone, Copy)]
enum Source {
    /// A socket of the lane.
    Port(usize),
    /// The socket of one session.
    Session(usize),
}

impl<S: Service> Lane<S> {
    /// Handles an event of a shared socket.
    pub(crate) fn handle_port_event(&mut self, port: usize, event: Event) {
        if event.writable {
            self.core.flush_blocked(port);
        }
        if event.readable {
            self.receive_at_port(port);
        }
    }

    /// Receives the datagrams that wait at every shared socket.
    pub(crate) fn receive_at_ports(&mut self) {
        for port in 0..self.core.ports.all.len() {
            self.receive_at_port(port);
        }
    }

    fn receive_at_port(&mut self, port: usize) {
        if let Some(shared) = self.core.ports.all.get(port) {
            let socket = Arc::clone(&shared.socket);
            self.receive(&socket, Source::Port(port));
            self.core.plan_port_drops(port);
        }
    }

    /// Reads a session over UDP: the frames that were left over, and its own socket if it has one.
    pub(crate) fn read_datagrams(&mut self, slot: usize) {
        let (core, service) = (&mut self.core, &mut self.service);
        if core.sessions[slot].connection.input().has_frames() {
            // Few sessions have a backlog, so this is not compiled for each codec.
            let config = Arc::clone(&core.config);
            take_backlog(core, service, &config.codec, slot);
        }
        let session = &core.sessions[slot];
        if !session.connection.may_read() {
            return;
        }
        let Some(peer) = session.stream.datagram() else {
            return;
        };
        if peer.port.is_none() {
            let (socket, id) = (Arc::clone(&peer.socket), session.id);
            self.receive(&socket, Source::Session(slot));
            if self.core.sessions.slot_of(id).is_some() {
                self.core.plan_own_drops(slot);
            }
        }
    }

    /// Receives until the socket is empty, the share of the turn is used up, or the session of the socket may not be read.
    fn receive(&mut self, socket: &DatagramSocket, source: Source) {
        let Self {
            core,
            service,
            datagrams,
            ..
        } = self;
        let limits = &core.config.limits;
        let bytes_max = limits
            .connections
            .frame_bytes_max()
            .max(limits.connections.datagram_bytes_max());
        let batch = datagrams.get_or_insert_with(|| {
            Box::new(DatagramBatch::with_limit(
                DatagramBatch::SLOTS_MAX,
                bytes_max,
            ))
        });
        for _ in 0..RECEIVES_PER_EVENT {
            if core.exchange.is_backed_up() || !core.may_receive(source) {
                return;
            }
            core.counters.system_calls.add(1);
            match socket.receive(batch) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return core.handle_receive_failure(source, error),
            }
            core.sessions.timers.read_clock();
            with_codec!(datagrams core.config.codec, codec => handle_batch(core, service, codec, source, batch));
            if !batch.is_full() {
                return;
            }
        }
    }
}

/// Whether a session ends because bytes did not decode. Anybody can send a datagram with the address of an open session, so bytes of
/// another protocol end only a session that is not open.
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
    service: &mut Served<S>,
    codec: &C,
    source: Source,
    batch: &DatagramBatch,
) {
    let mut datagrams = batch.iter();
    let mut next = datagrams.next();
    while let Some(first) = next {
        let slot = match source {
            Source::Session(slot) => Some(slot),
            Source::Port(port) => core.ports.all[port]
                .peers
                .get(&first.peer)
                .copied()
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
    service: &mut Served<S>,
    codec: &C,
    port: usize,
    first: &Datagram<'_>,
) -> Option<usize> {
    let Some(slot) = core.admit(port, first, codec) else {
        core.counters.datagrams_in.add(1);
        core.counters.bytes_in.add(first.bytes.len() as u64);
        return None;
    };
    let is_admitted = core.is_authenticating(slot) && core.authenticate(slot, &[]);
    if is_admitted || core.sessions[slot].connection.is_open() {
        read::announce(core, service, slot);
    }
    Some(slot)
}

/// The outcome of handling a datagram.
enum Taken {
    Whole,
    /// The session must not be read further now. Holds the number of handled bytes of the datagram.
    Stopped(usize),
    Ended,
    Close(CloseReason),
    /// The session ends already.
    Panicked,
}

/// Handles consecutive datagrams of one peer. Returns the next one of another peer, or of this peer if the session stopped.
fn handle_run<'a, S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut Served<S>,
    codec: &C,
    slot: usize,
    first: Datagram<'a>,
    rest: &mut Datagrams<'a>,
) -> Option<Datagram<'a>> {
    let mut current = Some(first);
    // Frames that were left over come first. The session may be read again since its output was sent.
    take_backlog(core, service, codec, slot);
    // A datagram is a sign of life, even if the session must not be read now.
    let now_ns = core.sessions.now_ns();
    core.sessions[slot]
        .connection
        .timing_mut()
        .note_input(now_ns);
    if !core.may_take(slot, &first) {
        core.counters.datagrams_in.add(1);
        return rest.next();
    }
    if core.is_looping(slot, &first, codec) {
        return skip_run(core, first, rest);
    }
    let (id, mut progress) = (core.sessions[slot].id, Progress::new(core, slot));
    let (mut count, mut bytes, mut ending) = (0, 0, Taken::Whole);
    let mut handling: &[u8] = &[];
    let called = service.call(core, id, |core, service| {
        let mut cx = core.context(id);
        while let Some(datagram) = current.filter(|datagram| datagram.peer == first.peer) {
            count += 1;
            bytes += datagram.bytes.len() as u64;
            cx.core.allow(slot, datagram.bytes.len());
            current = rest.next();
            handling = datagram.bytes;
            ending = take_datagram(&mut cx, service, codec, slot, &datagram, &mut progress);
            if let Taken::Stopped(used) = ending {
                // The session may go on once its output is sent.
                cx.core.keep_rest(slot, &datagram.bytes[used..]);
            }
            if !matches!(ending, Taken::Whole) {
                break;
            }
        }
    });
    if called.is_none() {
        ending = Taken::Panicked;
        progress.frames += read::count_frames(codec, handling);
    }
    core.counters.datagrams_in.add(count);
    core.counters.bytes_in.add(bytes);
    core.counters.frames_in.add(progress.frames);
    match ending {
        Taken::Whole | Taken::Panicked => {}
        Taken::Stopped(_) => core.stop_datagrams(slot),
        Taken::Ended => read::end(core, slot),
        Taken::Close(reason) => core.sessions.close(slot, reason),
    }
    current
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
        core.sessions.drop_datagram(DatagramDrop::Loop);
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
) -> Taken {
    if datagram.truncated {
        cx.core.sessions.drop_datagram(DatagramDrop::Truncated);
        return Taken::Whole;
    }
    if datagram.bytes.is_empty() {
        return Taken::Ended;
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
) -> Taken {
    let (used, flow) = read::decode_frames::<S, C, true>(cx, service, codec, slot, bytes, progress);
    match flow {
        Flow::Continue if used == bytes.len() => Taken::Whole,
        Flow::Continue => {
            cx.core.sessions.drop_datagram(DatagramDrop::Unfinished);
            Taken::Whole
        }
        Flow::Stop => Taken::Stopped(used),
        Flow::Close(reason) if is_undecodable(cx, slot, reason) => {
            tracing::debug!(session = %cx.id, %reason, "cannot decode the rest of a datagram");
            cx.core.sessions.drop_datagram(DatagramDrop::Malformed);
            Taken::Whole
        }
        Flow::Close(reason) => Taken::Close(reason),
        Flow::Panicked => Taken::Panicked,
    }
}

/// Handles the frames that were left when the session stopped, unless it still must not be read.
fn take_backlog<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut Served<S>,
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
    service: &mut Served<S>,
    codec: &C,
    slot: usize,
    rest: &[u8],
) {
    let (id, mut progress) = (core.sessions[slot].id, Progress::new(core, slot));
    let taken = service.call(core, id, |core, service| {
        let mut cx = core.context(id);
        let taken = take_frames(&mut cx, service, codec, slot, rest, &mut progress);
        if let Taken::Stopped(used) = taken {
            cx.core.keep_rest(slot, &rest[used..]);
        }
        taken
    });
    if taken.is_none() {
        progress.frames += read::count_frames(codec, rest);
    }
    core.counters.frames_in.add(progress.frames);
    match taken.unwrap_or(Taken::Panicked) {
        Taken::Whole | Taken::Ended | Taken::Panicked => {}
        Taken::Stopped(_) => core.stop_datagrams(slot),
        Taken::Close(reason) => core.sessions.close(slot, reason),
    }
}

impl Core {
    /// Whether datagrams of this socket can be handled now. A session's own socket keeps them while it must not be read.
    fn may_receive(&self, source: Source) -> bool {
        match source {
            Source::Port(_) => true,
            Source::Session(slot) => self
                .sessions
                .get(slot)
                .is_some_and(|session| session.connection.may_read()),
        }
    }

    /// Checks a datagram of an unvalidated address for a loop. Returns whether to ignore it.
    #[inline]
    pub(crate) fn is_looping<C: Codec + ?Sized>(
        &mut self,
        slot: usize,
        datagram: &Datagram<'_>,
        codec: &C,
    ) -> bool {
        let Some(peer) = self.sessions[slot].stream.datagram_mut() else {
            return false;
        };
        if peer.budget.is_none() {
            return false;
        }
        let is_looping = peer.loop_watch.look(datagram.bytes, codec);
        let standing = peer.standing;
        if self.may_be_established(standing) {
            self.establish(slot);
        }
        is_looping
    }

    fn handle_receive_failure(&mut self, source: Source, error: std::io::Error) {
        match source {
            Source::Port(_) => {
                // No peer can make a shared socket fail. A lasting failure is met again at the next read.
                if let Some(unlogged) = self.acceptor.error_log.may_log(self.sessions.now_ns()) {
                    tracing::error!(%error, unlogged, "cannot receive datagrams");
                }
                self.counters.accept_errors.add(1);
            }
            Source::Session(slot) => self.sessions.handle_unreachable(slot, error),
        }
    }
}

/// Batches received from a socket at one event: at most 8 × 32 runs of up to 64 KiB. So a flood at one socket does not
/// starve the rest of the lane.
const RECEIVES_PER_EVENT: usize = 8;
