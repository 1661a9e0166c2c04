//! Tests of service timers with a clock that the test sets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Lane, lane_of};
use crate::limits::Limits;
use crate::server::Server;
use crate::service::{Context, HandlerError, HandlerResult, Service};
use crate::session::{CloseReason, SessionId, TimerId};
use tidewire_io::clock::Moment;
use tidewire_proto::message::Message;

const SECOND_NS: u64 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

/// A service that records its calls. Token 9 cancels the timer `to_cancel`, and token 8 sets itself again.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    fired: Vec<(SessionId, u64)>,
    at_close: Vec<String>,
    to_cancel: Option<TimerId>,
}

impl Log {
    fn fired(&self) -> Vec<(SessionId, u64)> {
        std::mem::take(&mut self.0.lock().unwrap().fired)
    }
}

impl Service for Log {
    fn on_message(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        Ok(())
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        let mut state = self.0.lock().unwrap();
        state.fired.push((cx.id(), token));
        match token {
            8 => {
                cx.timers().set(Duration::ZERO, 8).unwrap();
            }
            9 => {
                let other = state.to_cancel.take().unwrap();
                assert!(cx.timers().cancel(other), "it was not told yet");
                assert!(!cx.timers().cancel(other));
            }
            _ => {}
        }
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        let mut state = self.0.lock().unwrap();
        state.at_close.push(refusal(cx.timers().set(SECOND, 1)));
        cx.timers().set_for_lane(SECOND, 2).unwrap();
    }
}

/// The text for a timer of a session that has ended.
const ENDED: &str =
    "the session of the timer has ended; set a timer of the lane, which needs no session";

/// Returns why a timer was not set.
fn refusal(set: Result<TimerId, HandlerError>) -> String {
    set.unwrap_err().text().to_owned()
}

fn set_up(limits: Limits) -> (Lane<Log>, Log, u64) {
    let log = Log::default();
    let lane = lane_of(&Server::builder().limits(limits), &log);
    let started_ns = lane.core.sessions.timers.now_ns();
    (lane, log, started_ns)
}

fn turn_at(lane: &mut Lane<Log>, at_ns: u64) {
    lane.core.sessions.timers.set_time(at_ns);
    lane.turn();
}

#[test]
fn timers_of_sessions_and_of_the_lane_fire_once_and_never_early() {
    let (mut lane, log, started_ns) = set_up(Limits::default());
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core.context(id).timers().set(SECOND, 1).unwrap();
    lane.core
        .context(id)
        .timers()
        .set_for_lane(SECOND, 2)
        .unwrap();
    let at_ns = started_ns + 3 * SECOND_NS;
    let mut context = lane.core.context_without_session();
    context.timers().set_at(Moment::from_ns(at_ns), 3).unwrap();
    drop(context);
    turn_at(&mut lane, started_ns + SECOND_NS - 1);
    assert_eq!(log.fired(), []);
    turn_at(&mut lane, started_ns + SECOND_NS + 10_000_000);
    let mut fired = log.fired();
    fired.sort_by_key(|(_, token)| *token);
    assert_eq!(fired, [(id, 1), (SessionId::NONE, 2)]);
    turn_at(&mut lane, at_ns + 10_000_000);
    assert_eq!(log.fired(), [(SessionId::NONE, 3)]);
}

#[test]
fn a_timer_that_sets_itself_again_fires_once_a_turn() {
    let (mut lane, log, started_ns) = set_up(Limits::default());
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core
        .context(id)
        .timers()
        .set(Duration::ZERO, 8)
        .unwrap();
    for _ in 0..3 {
        turn_at(&mut lane, started_ns);
        assert_eq!(log.fired(), [(id, 8)]);
        let wake_ns = lane.core.wake_ns();
        assert!(
            wake_ns.is_some_and(|at| at <= started_ns),
            "no sleep before the next"
        );
    }
}

/// Regression: both timers fired in one step of the wheel, which no longer knew the second one.
#[test]
fn a_timer_cancelled_in_the_step_in_which_it_fires_is_not_reported() {
    let (mut lane, log, started_ns) = set_up(Limits::default());
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core.context(id).timers().set(SECOND, 9).unwrap();
    let other = lane.core.context(id).timers().set(2 * SECOND, 1).unwrap();
    log.0.lock().unwrap().to_cancel = Some(other);
    turn_at(&mut lane, started_ns + 5 * SECOND_NS);
    assert_eq!(log.fired(), [(id, 9)]);
    // The slot is used again. The old id does not find the new timer.
    lane.core.context(id).timers().set(SECOND, 5).unwrap();
    assert!(!lane.core.context(id).timers().cancel(other));
    let foreign = TimerId::new(1, other.key_on(0).unwrap());
    assert!(!lane.core.context(id).timers().cancel(foreign));
    turn_at(&mut lane, started_ns + 7 * SECOND_NS);
    assert_eq!(log.fired(), [(id, 5)]);
}

#[test]
fn the_timers_of_a_session_end_with_it() {
    let (mut lane, log, started_ns) = set_up(Limits::default());
    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    lane.core.context(id).timers().set(SECOND, 1).unwrap();
    // The timer fires in the turn in which the session ends, before `on_close`.
    lane.core.sessions.table.close(slot, CloseReason::Service);
    turn_at(&mut lane, started_ns + 2 * SECOND_NS);
    assert_eq!(log.fired(), []);
    let at_close = std::mem::take(&mut log.0.lock().unwrap().at_close);
    assert_eq!(at_close, [ENDED], "it would never be told");
    assert_eq!(
        refusal(lane.core.context(id).timers().set(SECOND, 1)),
        ENDED
    );
    // The lane's timer goes on.
    turn_at(&mut lane, started_ns + 4 * SECOND_NS);
    assert_eq!(log.fired(), [(SessionId::NONE, 2)]);

    let (slot, _far) = lane.open_session();
    let id = lane.core.sessions[slot].id;
    let before = lane.core.sessions.timers.waiting();
    for token in 0..10 {
        lane.core.context(id).timers().set(SECOND, token).unwrap();
    }
    lane.core.sessions.table.close(slot, CloseReason::Service);
    lane.turn();
    // The session's timers are gone, and `on_close` has set one of the lane.
    assert_eq!(lane.core.sessions.timers.waiting(), before);
}

#[test]
fn timers_are_bounded_for_each_session_and_for_the_lane() {
    let mut limits = Limits::default();
    limits.sessions.set_timers_max(2);
    limits.sessions.set_timers_per_lane_max(1);
    let (mut lane, log, started_ns) = set_up(limits);
    let (slot, _far) = lane.open_session();
    let (other, _other_far) = lane.open_session();
    let (id, other) = (lane.core.sessions[slot].id, lane.core.sessions[other].id);
    let mut context = lane.core.context(id);
    let first = context.timers().set(SECOND, 1).unwrap();
    context.timers().set(SECOND, 2).unwrap();
    assert!(refusal(context.timers().set(SECOND, 3)).starts_with("2 timers wait already"));
    context.timers().set_for_lane(SECOND, 4).unwrap();
    assert!(refusal(context.timers().set_for_lane(SECOND, 5)).starts_with("1 timers wait already"));
    drop(context);
    lane.core.context(other).timers().set(SECOND, 6).unwrap();
    assert!(lane.core.context(id).timers().cancel(first));
    lane.core.context(id).timers().set(SECOND, 7).unwrap();
    turn_at(&mut lane, started_ns + 2 * SECOND_NS);
    let mut tokens: Vec<u64> = log.fired().into_iter().map(|(_, token)| token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [2, 4, 6, 7]);
    lane.core
        .context(id)
        .timers()
        .set_for_lane(SECOND, 8)
        .unwrap();
}
