//! Brings bytes from a socket to the service: reads until a short read, decodes in place, and keeps only the partial
//! frame.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tidewire_proto::codec::{Codec, ConnectionState, Decoded};
use tidewire_proto::connection::{FrameFilter, Handled};
use tidewire_proto::layer::{TlsFault, is_tls_record};
use tidewire_proto::message::Message;
use tidewire_proto::with_codec;

use super::partial::{keep_partial, pause, read_into_partial};
use super::predict::{expected_form, form_of, predict};
use super::translated::decode_translated;
use super::{ContainedService, Core, Lane};
use super::{control, metered};
use crate::engine::Origin;
use crate::observe::trace::{Moving, SpanGuard};
use crate::room::GROWTH_STEP_BYTES;
use crate::service::{Context, Service, UpstreamSessions, run_answers};
use crate::session::{CloseReason, Read, Session, close_reason};
use crate::transport::Transport;

/// The outcome of handling a piece of input.
#[derive(Clone, Copy)]
pub(super) enum Flow {
    /// All whole frames were handled. Reading goes on.
    Continue,
    /// Reading of this session stops for now: the session is paused, held or being finished.
    Stop,
    /// The session ends.
    Close(CloseReason),
    /// The session ends already, because its handler panicked.
    Panicked,
}

/// The state of decoding over one or several pieces of input.
pub(super) struct Progress {
    /// Frames decoded.
    pub(super) frames: u64,
    /// The filter for frames that go to the service.
    pub(super) filter: FrameFilter,
    /// Bytes at the front in which the codec has already searched for the end of a frame.
    pub(super) searched: usize,
}

impl Progress {
    #[inline]
    pub(super) fn new(core: &Core, slot: usize) -> Self {
        Self {
            frames: 0,
            filter: metered::filter(core, slot),
            searched: 0,
        }
    }
}

impl<S: Service> Lane<S> {
    /// Reads a session until a short read or its share of the turn is used up.
    pub(crate) fn read_session(&mut self, slot: usize) {
        let session = &self.core.sessions[slot];
        let codec = || self.core.config.codecs.get(session.codec_number()).name();
        let receiving = Moving::receive(session, codec, &self.core.counters);
        let stream = &self.core.sessions[slot].stream;
        if stream.preserves_boundaries() {
            self.datagrams
                .read_session(&mut self.core, &mut self.service, slot);
        } else {
            let has_layers = stream.has_layers();
            let (core, service) = (&mut self.core, &mut self.service);
            let receive = self.receive.as_mut_slice();
            if core.sessions[slot].profile.is_upstream() {
                read_upstream(core, slot, receive);
            } else {
                with_codec!(
                    stream core.config.codecs.get(core.sessions[slot].codec_number()),
                    codec => read_with(core, service, codec, slot, receive)
                );
            }
            if has_layers {
                self.note_layers_read(slot);
            }
        }
        receiving.end(&self.core.counters);
    }
}

/// Reads the session of an upstream. It has few messages, so this is not compiled for each codec.
#[cold]
#[inline(never)]
fn read_upstream(core: &mut Core, slot: usize, receive: &mut [u8]) {
    let config = Arc::clone(&core.config);
    let mut service = ContainedService::new(UpstreamSessions);
    read_with(core, &mut service, config.codecs.main(), slot, receive);
    run_answers(core);
}

fn read_with<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    slot: usize,
    receive: &mut [u8],
) {
    let step_bytes = core.sessions[slot].stream.step_bytes();
    let turn_bytes_max = core.config.limits.connections.turn_bytes_max();
    let mut budget = turn_bytes_max.min(step_bytes.saturating_mul(STEPS_PER_TURN));
    let connection = &mut core.sessions[slot].connection;
    if !connection.may_read() {
        return;
    }
    if connection.input().bytes().len() >= PARTIAL_DIRECT_BYTES {
        read_into_partial(core, service, codec, slot, budget);
        return;
    }
    let (partial, has_frames) = connection.input_mut().take();
    let mut held = partial.len();
    receive[..held].copy_from_slice(&partial);
    core.sessions.outputs.put_buffer(partial);
    if has_frames {
        match handle_bytes(core, service, codec, slot, &receive[..held], 0) {
            (used, Flow::Continue) => {
                receive.copy_within(used..held, 0);
                held -= used;
                core.sessions[slot].connection.handle_backlog_served();
            }
            (used, flow) => return stop(core, slot, &receive[used..held], flow),
        }
    }
    loop {
        if !core.sessions[slot].connection.may_read() || core.exchange.is_backed_up() {
            return keep_partial(core, slot, &receive[..held]);
        }
        let room = (receive.len() - held).min(step_bytes);
        let sessions = &mut core.sessions;
        let read = sessions.table[slot].read_once(
            &mut receive[held..held + room],
            &mut sessions.timers,
            &sessions.counters,
        );
        let count = match read {
            Read::Bytes(count) => count,
            Read::Nothing => return keep_partial(core, slot, &receive[..held]),
            Read::End => {
                keep_first_bytes(core, slot, &receive[..held]);
                return end(core, slot);
            }
            Read::Failed(error) => {
                keep_first_bytes(core, slot, &receive[..held]);
                return fail(core, slot, &error);
            }
        };
        let filled = held + count;
        match handle_bytes(core, service, codec, slot, &receive[..filled], held) {
            (used, Flow::Continue) => {
                receive.copy_within(used..filled, 0);
                held = filled - used;
            }
            (used, flow) => return stop(core, slot, &receive[used..filled], flow),
        }
        if step_bytes < usize::MAX {
            core.sweep_early(GROWTH_STEP_BYTES);
            if !core.sessions.flush_step(slot) {
                return;
            }
        }
        budget = budget.saturating_sub(count);
        let is_dry = count < room && core.sessions[slot].stream.is_dry_after_short_read();
        if is_dry || budget == 0 || held >= PARTIAL_DIRECT_BYTES {
            return keep_partial(core, slot, &receive[..held]);
        }
    }
}

/// Decodes and handles every whole frame of `input`. The first `searched` bytes have no whole frame.
/// Returns the number of handled bytes. On [`Flow::Continue`] the rest has no whole frame.
pub(super) fn handle_bytes<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    slot: usize,
    input: &[u8],
    searched: usize,
) -> (usize, Flow) {
    let (id, mut progress) = (core.sessions[slot].id, Progress::new(core, slot));
    progress.searched = searched;
    let outcome = service.call(core, id, |core, service| {
        let mut cx = core.context(id);
        decode_frames::<S, C, false>(&mut cx, service, codec, slot, input, &mut progress)
    });
    let outcome = outcome.unwrap_or_else(|| {
        progress.frames += count_frames(codec, input);
        (input.len(), Flow::Panicked)
    });
    core.counters.frames_in.add(progress.frames);
    let session = &mut core.sessions[slot];
    if outcome.0 > 0 {
        session.connection.input_mut().note_end();
    }
    let has_unanswered = session.has_deferred();
    if has_unanswered || core.sessions.outputs.of(slot).held_bytes() >= LARGE_OUTPUT_BYTES {
        core.sessions.charge_kept(slot);
    }
    outcome
}

/// Decodes and handles every whole frame of a piece of a stream, or of a datagram. Returns the number of handled bytes.
#[inline]
pub(super) fn decode_frames<S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    input: &[u8],
    progress: &mut Progress,
) -> (usize, Flow) {
    let format = codec.format();
    if format.translates() {
        return decode_translated::<S, C, IS_DATAGRAM>(cx, service, codec, slot, input, progress);
    }
    let mut filter = progress.filter;
    let (mut rest, mut frames) = (input, 0);
    let mut searched = std::mem::take(&mut progress.searched);
    let keeps_state = format.keeps_state();
    let flow = loop {
        if rest.is_empty() {
            break Flow::Continue;
        }
        let searched = std::mem::take(&mut searched);
        let limit = filter.frame_bytes_max();
        let decoded = if keeps_state {
            let state = cx.core.sessions[slot].codec_state();
            codec.decode_next(state, rest, searched, limit)
        } else {
            codec.decode_next(&mut ConnectionState::default(), rest, searched, limit)
        };
        let (message, consumed) = match decoded {
            Ok(Decoded::Frame { message, consumed }) => (message, consumed),
            Ok(Decoded::Incomplete { .. }) => break Flow::Continue,
            // `refuse_input` decodes again for the error, so that the loop keeps no registers for it.
            Err(_) => break refuse_input(cx, codec, rest, filter, frames == 0),
        };
        let (frame, behind) = rest.split_at(consumed);
        (rest, frames) = (behind, frames + 1);
        if filter.serves(message.kind) {
            let form = expected_form(cx, codec, (frame, &message), rest);
            serve::<S, C, IS_DATAGRAM>(cx, service, codec, slot, message, consumed);
            if let Some(form) = form
                && !cx.call.is_stopped()
            {
                let predicted = ((frame, &message), form);
                let served =
                    predict::<S, C, IS_DATAGRAM>(cx, service, codec, slot, predicted, rest);
                (rest, frames) = (served.0, frames + served.1);
            }
        } else if filter.is_asking() && cx.core.sessions[slot].connection.serves(message.kind) {
            // A copy keeps the message in registers, as below.
            let copy = Message { ..message };
            let may_repeat = metered::serve_metered::<S, C, IS_DATAGRAM>(
                cx, service, codec, slot, &copy, consumed,
            );
            if may_repeat
                && !rest.is_empty()
                && let Some(form) = form_of(codec, frame, &message)
            {
                let predicted = ((frame, &copy), form);
                let served =
                    predict::<S, C, IS_DATAGRAM>(cx, service, codec, slot, predicted, rest);
                (rest, frames) = (served.0, frames + served.1);
            }
        } else {
            // A message that is passed by reference must be in memory. The copy keeps all others in registers. The
            // lane's kinds have no names.
            let name = "";
            let handled = control::handle(cx, slot, &Message { name, ..message });
            if let Handled::Closed(reason) = handled {
                break Flow::Close(reason);
            }
            // The session may have opened, or have got other permissions.
            filter = metered::filter(cx.core, slot);
            if matches!(handled, Handled::Opened) {
                service.on_open(cx);
            }
        }
        if cx.call.is_stopped() {
            break Flow::Stop;
        }
    };
    progress.frames += frames;
    progress.filter = filter;
    (input.len() - rest.len(), flow)
}

/// Counts the whole frames of input whose handler panicked. The loop over frames keeps its count in a register, and the
/// panic has lost it. Frames after the one of the panic count, too: they came, and are dropped with their session.
#[cold]
#[inline(never)]
pub(super) fn count_frames<C: Codec + ?Sized>(codec: &C, input: &[u8]) -> u64 {
    let count = || {
        let (mut rest, mut frames) = (input, 0);
        let mut state = ConnectionState::default();
        while let Ok(Decoded::Frame { consumed, .. }) =
            codec.decode_next(&mut state, rest, 0, usize::MAX)
            && consumed > 0
        {
            rest = rest.get(consumed..).unwrap_or_default();
            frames += 1;
        }
        frames
    };
    // The panic may have been that of a program's own codec.
    catch_unwind(AssertUnwindSafe(count)).unwrap_or(0)
}

/// Passes a message to the service.
#[inline(always)]
pub(super) fn serve<S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    message: Message<'_>,
    frame_bytes: usize,
) {
    if IS_DATAGRAM && Origin::new(message.kind, message.channel).asks() {
        let (session, counters) = (&mut cx.core.sessions[slot], &cx.core.counters);
        if session.is_repeated(codec.format().ids, message.id, counters) {
            return;
        }
    }
    cx.call.begin(&message);
    note_name(cx, codec, message.name);
    let handling = SpanGuard::handle(
        cx.core.sessions.table.get(slot),
        || cx.codec().name(),
        message.kind,
        frame_bytes,
    );
    if let Err(error) = service.on_message(cx, message) {
        cx.call.refuse(cx.core, error);
    }
    handling.end();
}

/// Keeps the name of the current message, if the codec repeats names in replies.
#[inline(always)]
pub(super) fn note_name<C: Codec + ?Sized>(cx: &mut Context<'_>, codec: &C, name: &str) {
    /// A function of its own, because a call within the loop over frames of a custom codec costs registers there.
    #[cold]
    #[inline]
    fn keep<C: Codec + ?Sized>(cx: &mut Context<'_>, codec: &C, name: &str) {
        if codec.format().repeats_names {
            cx.call.remember_name(&mut cx.core.replies, name);
        }
    }
    if !name.is_empty() {
        keep(cx, codec, name);
    }
}

/// Returns the reason to close a session whose input was refused. It is a function of its own, because the loop over
/// frames needs the registers.
#[cold]
#[inline(never)]
pub(super) fn refuse_input<C: Codec + ?Sized>(
    cx: &mut Context<'_>,
    codec: &C,
    rest: &[u8],
    filter: FrameFilter,
    is_first: bool,
) -> Flow {
    let session = cx.core.sessions.table.find(cx.call.id());
    if let Some((session, terms)) = session.and_then(|it| Some((it, it.profile.listener.as_ref()?)))
    {
        terms.note_refused(
            rest,
            filter.frame_bytes_max(),
            session.profile.peer.as_deref(),
        );
    }
    let mut none = ConnectionState::default();
    let session = cx.core.sessions.table.find_mut(cx.call.id());
    let is_plain = |session: &&mut Session| !session.stream.has_layers();
    if is_tls_record(rest) && session.as_ref().is_some_and(is_plain) {
        return Flow::Close(CloseReason::Layer(TlsFault::UnexpectedTls.into()));
    }
    let is_first = is_first
        && session
            .as_ref()
            .is_some_and(|it| !it.connection.input().has_ended());
    let state = session.map_or(&mut none, Session::codec_state);
    Flow::Close(filter.refuse(codec, state, rest, is_first))
}

pub(super) fn stop(core: &mut Core, slot: usize, rest: &[u8], flow: Flow) {
    match flow {
        Flow::Close(reason) => core.sessions.table.close(slot, reason),
        Flow::Continue => keep_partial(core, slot, rest),
        Flow::Stop => pause(core, slot, rest),
        Flow::Panicked => {}
    }
}

/// Handles the end of the peer's output. The session's own output is written before the session ends.
pub(super) fn end(core: &mut Core, slot: usize) {
    let rules = core.config.codecs.rules(core.sessions[slot].codec_number());
    core.sessions.table.change(slot, |connection| {
        connection.handle_input_end(rules);
    });
    core.sessions.update_interest(slot);
    core.sessions.outputs.list(slot);
}

/// Keeps the unfinished first bytes of a peer whose connection ends in its handshake. They may say which protocol it
/// speaks.
#[cold]
fn keep_first_bytes(core: &mut Core, slot: usize, held: &[u8]) {
    if !core.sessions[slot].connection.is_open() {
        keep_partial(core, slot, held);
    }
}

#[cold]
pub(super) fn fail(core: &mut Core, slot: usize, error: &io::Error) {
    core.sessions.table.close(slot, close_reason(error));
}

/// The length from which a partial frame is read into its own buffer instead of the lane's.
pub(super) const PARTIAL_DIRECT_BYTES: usize = 16 * 1024;

/// Most steps of a stream in one turn. Its peer may answer the replies of each step at once, so its input might never
/// end while others wait. With 512 KiB a turn, three publishers within a process waited 2 ms for each other.
const STEPS_PER_TURN: usize = 32;

/// The capacity from which an output is charged before the turn ends, because one turn may fill such an output for each
/// of many sessions.
const LARGE_OUTPUT_BYTES: usize = 256 * 1024;
