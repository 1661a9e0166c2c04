//! Keeps the rest of a read: a partial frame, or whole frames that must not be handled yet.
//!
//! A short partial frame is copied, and the next read appends to it in the lane's receive buffer. A long one has a
//! buffer of its own, into which the rest of the frame is read. So a peer that sends a long frame in small pieces
//! cannot make the lane copy it for each piece.

use tidewire_proto::codec::Codec;
use tidewire_proto::connection::{Inbound, PauseReason};

use super::ContainedService;
use super::read::{Flow, PARTIAL_DIRECT_BYTES, end, fail, handle_bytes, stop};
use crate::engine::Core;
use crate::service::Service;
use crate::session::Read;
use crate::transport::Transport;

/// Reads a long partial frame into the session's own buffer.
pub(super) fn read_into_partial<S: Service, C: Codec + ?Sized>(
    core: &mut Core,
    service: &mut ContainedService<S>,
    codec: &C,
    slot: usize,
    mut budget: usize,
) {
    let (mut partial, mut try_first) = core.sessions[slot].connection.input_mut().take();
    loop {
        // The buffer grows by a quarter and is not doubled: its memory should be close to the bytes that have come.
        if partial.capacity() - partial.len() < PARTIAL_STEP_BYTES {
            partial.reserve_exact(PARTIAL_STEP_BYTES.max(partial.len() / 4));
        }
        let searched = if try_first { 0 } else { partial.len() };
        let mut short = false;
        if !std::mem::take(&mut try_first) {
            let held = partial.len();
            partial.resize(held + PARTIAL_STEP_BYTES, 0);
            let sessions = &mut core.sessions;
            let read = sessions.table[slot].read_once(
                &mut partial[held..],
                &mut sessions.timers,
                &sessions.counters,
            );
            let count = if let Read::Bytes(count) = read {
                count
            } else {
                0
            };
            partial.truncate(held + count);
            match read {
                Read::Bytes(_) => {}
                Read::Nothing => break,
                Read::End => return end(core, slot),
                Read::Failed(error) => return fail(core, slot, &error),
            }
            budget = budget.saturating_sub(count);
            short =
                count < PARTIAL_STEP_BYTES && core.sessions[slot].stream.is_dry_after_short_read();
        }
        let (used, flow) = handle_bytes(core, service, codec, slot, &partial, searched);
        if !matches!(flow, Flow::Continue) {
            return stop(core, slot, &partial[used..], flow);
        }
        core.sessions[slot].connection.handle_backlog_served();
        partial.drain(..used);
        if short
            || budget == 0
            || partial.len() < PARTIAL_DIRECT_BYTES
            || !core.sessions[slot].connection.may_read()
        {
            break;
        }
    }
    if partial.len() < PARTIAL_DIRECT_BYTES {
        keep_partial(core, slot, &partial);
        return core.sessions.outputs.put_buffer(partial);
    }
    let now_ns = core.sessions.timers.now_ns();
    core.sessions[slot]
        .connection
        .input_mut()
        .keep(partial, now_ns);
    core.sessions.charge_kept(slot);
}

/// Keeps the unhandled rest of a read until the session may be read again.
pub(super) fn pause(core: &mut Core, slot: usize, rest: &[u8]) {
    let is_full = core.sessions.outputs.is_full(slot);
    let connection = &mut core.sessions[slot].connection;
    if connection.input().state() == Inbound::Ended || connection.is_closed() {
        return;
    }
    if is_full || !connection.input().is_paused() {
        connection.input_mut().pause(PauseReason::Output);
    }
    let mut kept = core.sessions.outputs.take_buffer();
    kept.extend_from_slice(rest);
    core.sessions[slot].connection.input_mut().keep_frames(kept);
    core.counters.reads_paused.add(1);
    core.sessions.charge_kept(slot);
    core.sessions.update_interest(slot);
    // Reading goes on when the output is written. A handler may have flushed it already, so the session is marked here.
    core.sessions.outputs.list(slot);
}

/// Keeps the partial frame at the end of a read.
pub(super) fn keep_partial(core: &mut Core, slot: usize, rest: &[u8]) {
    if rest.is_empty() {
        let sessions = &mut core.sessions;
        return sessions
            .relief
            .charge_kept_nothing(slot, &sessions.table, &sessions.outputs);
    }
    let mut kept = core.sessions.outputs.take_buffer();
    kept.extend_from_slice(rest);
    let now_ns = core.sessions.timers.now_ns();
    core.sessions[slot]
        .connection
        .input_mut()
        .keep(kept, now_ns);
    core.sessions.charge_kept(slot);
}

/// Bytes that are read at once into a long partial frame.
const PARTIAL_STEP_BYTES: usize = 64 * 1024;
