//! Messages that are checked before the service gets them: against the rate limit of their session, and against the
//! permissions of its peer. The frame filter of such sessions sends every kind of message here. Other sessions do not
//! use this code, so the checks cost them nothing.
//!
//! A message with the kind, channel and name of the session's last message needs no second check of permissions. The
//! same is true of the next frames with an equal header.

use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::connection::FrameFilter;
use tidewire_proto::message::Message;

use super::read::{note_name, serve};
use crate::engine::Core;
use crate::service::{Context, HandlerError, HandlerResult, Service};
use crate::session::CloseReason;

/// The filter for the next frames of a session.
#[inline]
pub(super) fn filter(core: &Core, slot: usize) -> FrameFilter {
    let session = &core.sessions[slot];
    let connection = &session.connection;
    let filter = connection.filter(core.config.codecs.rules(session.codec_number()));
    let admitted = core.sessions[slot].profile.admitted.as_ref();
    let is_limited = core.config.rate.is_some() && !connection.handshake().is_outgoing();
    match is_limited || admitted.is_some_and(|admitted| admitted.is_checked()) {
        true => filter.asking(),
        false => filter,
    }
}

/// Passes a message to the service if its peer may send it, and it is within the rate of its session. Otherwise it
/// applies the action of the limit. Returns whether the service may get frames with an equal header without a check.
#[cold]
#[inline(never)]
pub(super) fn serve_metered<S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    message: &Message<'_>,
    frame_bytes: usize,
) -> bool {
    let is_allowed = may_send(cx, service, slot, message);
    let profile = &cx.core.sessions[slot].profile;
    let own_rate = profile.admitted.as_ref().and_then(|it| it.rate());
    let rate = own_rate.or(cx.core.config.rate);
    let Some(rate) = rate else {
        pass::<S, C, IS_DATAGRAM>(cx, service, codec, slot, (message, frame_bytes), is_allowed);
        let session = cx.core.sessions.table.find(cx.call.id());
        let admitted = session.and_then(|it| it.profile.admitted.as_ref());
        return !cx.call.is_stopped() && admitted.is_some_and(|it| it.is_last(message));
    };
    let now_ns = cx.core.sessions.timers.now_ns();
    if cx.core.sessions[slot].meter(&rate, frame_bytes, now_ns) {
        pass::<S, C, IS_DATAGRAM>(cx, service, codec, slot, (message, frame_bytes), is_allowed);
        // The handler may have closed the session.
        if rate.pauses()
            && cx.core.sessions.table.slot_of(cx.call.id()).is_some()
            && cx.core.sessions.pause_for_rate(slot, &rate)
        {
            cx.call.stop();
        }
    } else if rate.refuses() {
        cx.core.counters.rate_refused.add(1);
        let refusal = HandlerError::new(ErrorCode::LimitReached, TOO_FAST);
        refuse(cx, codec, message, refusal);
    } else {
        cx.call.stop();
        cx.core.sessions.finish(slot, CloseReason::RateLimit, None);
    }
    false
}

/// Passes a message to the service, or refuses it.
fn pass<S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    (message, frame_bytes): (&Message<'_>, usize),
    is_allowed: HandlerResult,
) {
    match is_allowed {
        Ok(()) => {
            serve::<S, C, IS_DATAGRAM>(cx, service, codec, slot, *message, frame_bytes);
        }
        Err(refusal) => {
            let is_forbidden = refusal.code() == ErrorCode::Forbidden;
            cx.core.counters.forbidden.add(u64::from(is_forbidden));
            refuse(cx, codec, message, refusal);
        }
    }
}

/// Checks whether the peer may send this message.
fn may_send<S: Service>(
    cx: &mut Context<'_>,
    service: &S,
    slot: usize,
    message: &Message<'_>,
) -> HandlerResult {
    let Some(admitted) = &cx.core.sessions[slot].profile.admitted else {
        return Ok(());
    };
    if admitted.is_last(message) || admitted.may_all() {
        return Ok(());
    }
    let kind = service.action(cx, message);
    kind.check(cx, message)?;
    if kind.is_told_by_header()
        && let Some(admitted) = &mut cx.core.sessions[slot].profile.admitted
    {
        admitted.note(message);
    }
    Ok(())
}

/// Refuses a message. The service does not see it.
fn refuse<C: Codec + ?Sized>(
    cx: &mut Context<'_>,
    codec: &C,
    message: &Message<'_>,
    refusal: HandlerError,
) {
    cx.call.begin(message);
    note_name(cx, codec, message.name);
    cx.call.refuse(cx.core, refusal);
}

const TOO_FAST: &str = "this session sends more than it may; send more slowly";

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidewire_proto::codec::Decoded;
    use tidewire_proto::connection::{Inbound, Phase};
    use tidewire_proto::message::Kind;

    use super::*;
    use crate::lane::{Lane, lane};
    use crate::limits::{Limits, RateLimit, WhenExceeded};
    use crate::server::Server;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Makes a lane whose sessions may send 10 messages a second, and the frames of this many requests.
    fn limited(when: WhenExceeded, requests: u32) -> (Lane<impl Service>, Vec<u8>) {
        let limit = RateLimit::new(when).messages_per_second(10);
        let mut limits = Limits::default();
        limits.connections.set_heartbeat(Duration::ZERO);
        let lane = lane(&Server::builder().limits(limits).rate_limit(limit));
        let mut frames = Vec::new();
        for id in 1..=requests {
            let request = Message::with_id(Kind::Request, 0, id, b"question");
            lane.core
                .config
                .codecs
                .main()
                .encode(&request, &mut frames)
                .unwrap();
        }
        (lane, frames)
    }

    fn turn_at(lane: &mut Lane<impl Service>, at_ns: u64) {
        lane.core.sessions.timers.set_time(at_ns);
        lane.turn();
    }

    #[test]
    fn a_session_above_its_rate_is_read_at_its_rate() {
        let (mut lane, frames) = limited(WhenExceeded::Pause, 35);
        let (slot, mut far) = lane.open_session();
        let started_ns = lane.core.sessions.timers.now_ns();
        assert_eq!(far.write(&frames).unwrap(), frames.len());
        lane.read_session(slot);
        let counters = Arc::clone(&lane.core.counters);
        assert_eq!(counters.frames_in.read(), 10, "the burst");
        for tenths in 1..=25 {
            // A pause ends one tick late at most.
            turn_at(&mut lane, started_ns + tenths * SECOND_NS / 10 + 10_000_000);
            assert_eq!(counters.frames_in.read(), 10 + tenths);
        }
        assert_eq!(counters.rate_paused.read(), 26);
        assert_eq!(
            (counters.refused.read(), counters.rate_refused.read()),
            (0, 0)
        );
        // The lane has read everything, so the pause ends, and the session is idle.
        turn_at(&mut lane, started_ns + 10 * SECOND_NS);
        assert_eq!(
            lane.core.sessions[slot].connection.input().state(),
            Inbound::Reading
        );
    }

    /// Regression: the time of a pause counted as the peer's silence.
    #[test]
    fn a_session_paused_for_its_rate_is_not_idle() {
        let (mut lane, frames) = limited(WhenExceeded::Pause, 11);
        let limit = RateLimit::new(WhenExceeded::Pause).bytes_per_second(1);
        let (slot, mut far) = lane.open_session();
        let rate = limit.rate().unwrap();
        let now_ns = lane.core.sessions.timers.now_ns();
        lane.core.sessions[slot].meter(&rate, 1_000, now_ns);
        assert!(lane.core.sessions.pause_for_rate(slot, &rate));
        assert_eq!(far.write(&frames).unwrap(), frames.len());
        let started_ns = lane.core.sessions.timers.now_ns();
        for seconds in [100, 500, 900, 998] {
            turn_at(&mut lane, started_ns + seconds * SECOND_NS);
            let connection = &lane.core.sessions[slot].connection;
            assert_eq!(connection.phase(), Phase::Open);
            assert_eq!(lane.core.counters.frames_in.read(), 0);
        }
        turn_at(&mut lane, started_ns + 1_001 * SECOND_NS);
        assert_eq!(lane.core.counters.frames_in.read(), 10);
        let timers = lane.core.sessions.timers.waiting();
        lane.core.sessions.table.close(slot, CloseReason::Service);
        lane.turn();
        let left = lane.core.sessions.timers.waiting();
        assert_eq!(timers - left, 2, "those of silence and of the rate");
    }

    #[test]
    fn messages_above_the_rate_are_refused_and_the_session_goes_on() {
        let (mut lane, frames) = limited(WhenExceeded::Refuse, 15);
        let (slot, mut far) = lane.open_session();
        let started_ns = lane.core.sessions.timers.now_ns();
        assert_eq!(far.write(&frames).unwrap(), frames.len());
        lane.read_session(slot);
        let counters = Arc::clone(&lane.core.counters);
        assert_eq!(counters.frames_in.read(), 15);
        assert_eq!(
            (counters.refused.read(), counters.rate_refused.read()),
            (5, 5)
        );
        lane.core
            .sessions
            .timers
            .set_time(started_ns + SECOND_NS / 2);
        assert_eq!(far.write(&frames).unwrap(), frames.len());
        lane.read_session(slot);
        assert_eq!(counters.rate_refused.read(), 15, "5 were within the rate");
        lane.turn();
        let mut received = vec![0; 10_000];
        let count = far.read(&mut received).unwrap();
        let mut rest = &received[..count];
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let codec = lane.core.config.codecs.main();
            let decoded = codec.decode(rest, 10_000).unwrap();
            let Decoded::Frame { message, consumed } = decoded else {
                panic!("half a frame");
            };
            kinds.push(message.kind);
            rest = &rest[consumed..];
        }
        let errors = kinds.iter().filter(|kind| **kind == Kind::Error).count();
        assert_eq!((kinds.len(), errors), (30, 15));
    }

    #[test]
    fn a_session_above_its_rate_is_closed_after_its_replies() {
        let (mut lane, frames) = limited(WhenExceeded::Close, 15);
        let (slot, mut far) = lane.open_session();
        assert_eq!(far.write(&frames).unwrap(), frames.len());
        lane.read_session(slot);
        lane.turn();
        let counters = Arc::clone(&lane.core.counters);
        let closed = counters.closed[CloseReason::RateLimit.index()].read();
        assert_eq!((counters.frames_in.read(), closed), (11, 1));
        let mut received = vec![0; 10_000];
        let count = far.read(&mut received).unwrap();
        let text = String::from_utf8_lossy(&received[..count]);
        assert_eq!(text.matches("question").count(), 10);
        assert_eq!(far.read(&mut received).unwrap(), 0, "and then the end");
    }

    #[test]
    fn the_rest_of_a_datagram_above_the_rate_waits() {
        let (mut lane, frames) = limited(WhenExceeded::Pause, 15);
        let (slot, far) = lane.open_datagram_session();
        let near = lane.core.sessions[slot].stream.datagram().unwrap();
        let near = near.own_socket().unwrap().local_address();
        let send = |bytes: &[u8]| {
            far.send(near, bytes.len(), bytes).unwrap();
        };
        send(&frames);
        lane.read_session(slot);
        let counters = Arc::clone(&lane.core.counters);
        assert_eq!(
            counters.frames_in.read(),
            10,
            "the rest of the datagram waits"
        );
        let now_ns = lane.core.sessions.timers.now_ns();
        turn_at(&mut lane, now_ns + 2 * SECOND_NS);
        assert_eq!(counters.frames_in.read(), 15);
    }
}
