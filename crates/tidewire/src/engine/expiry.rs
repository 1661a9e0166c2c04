//! The expiry of credentials follows the wall clock.
//!
//! Problem: credentials expire at a moment of the wall clock, and the deadline of a session is one of the monotonic
//! clock. That one stands still while a machine sleeps, and does not know when the wall clock is set. Approach: each
//! lane compares the two clocks every few seconds, and at each reload. When they have moved against each other, all
//! deadlines are computed anew. Rejected: timers by the wall clock, because they would not know of a step either
//! without such a check.

use std::time::SystemTime;

use crate::session::{LaneSessions, TimerKey};

/// The wall clock as a lane saw it last.
#[derive(Debug, Default)]
pub(crate) struct WallClock {
    /// Its time minus that of the monotonic clock, in nanoseconds.
    offset_ns: i128,
}

impl WallClock {
    /// Begins to compare the clocks.
    pub(super) fn watch(&mut self, sessions: &mut LaneSessions) {
        self.offset_ns = sessions.timers.wall_offset_ns();
        sessions.timers.set_after(CHECK_NS, TimerKey::WallClock);
    }

    /// Compares the clocks, and plans the next time.
    pub(crate) fn check(&mut self, sessions: &mut LaneSessions) {
        self.follow(sessions);
        sessions.timers.set_after(CHECK_NS, TimerKey::WallClock);
    }

    /// Computes when the credentials of all sessions expire, if the clocks have moved against each other.
    pub(super) fn follow(&mut self, sessions: &mut LaneSessions) {
        let offset_ns = sessions.timers.wall_offset_ns();
        let moved_ns = offset_ns - self.offset_ns;
        if moved_ns.unsigned_abs() < MOVED_NS_MIN {
            return;
        }
        self.offset_ns = offset_ns;
        let mut changed = 0_u64;
        for slot in sessions.table.slots() {
            let admitted = sessions[slot].profile.admitted.as_ref();
            if let Some(expiry) = admitted.and_then(|it| it.identity().expiry()) {
                apply_expiry(sessions, slot, Some(expiry));
                changed += 1;
            }
        }
        if changed > 0 {
            let seconds = moved_ns / i128::from(SECOND_NS);
            tracing::info!(
                seconds,
                sessions = changed,
                "the wall clock has moved against the monotonic one: credentials expire by the wall clock"
            );
        }
    }
}

/// Lets the credentials of a session expire at this moment. Its peer hears of the moment, if the peer can renew them.
pub(super) fn apply_expiry(sessions: &mut LaneSessions, slot: usize, expiry: Option<SystemTime>) {
    let now_ns = sessions.timers.now_ns();
    let expires_ns = expiry.map(|at| sessions.timers.moment_of(at).unwrap_or(now_ns));
    let connection = &mut sessions[slot].connection;
    connection.handshake_mut().change_expiry(expires_ns);
    sessions.transmit(slot);
    sessions.arm_timer(slot);
}

const SECOND_NS: u64 = 1_000_000_000;

/// How often the clocks are compared: credentials outlive a step of the wall clock by no more.
const CHECK_NS: u64 = 3 * SECOND_NS;

/// The least movement that counts. Less is the correction of a clock, and the time between two readings.
const MOVED_NS_MIN: u128 = SECOND_NS as u128;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewire_io::socket::Stream;
    use tidewire_proto::codec::AnyCodec;
    use tidewire_proto::connection::{Connection, Delivery, Phase};

    use super::*;
    use crate::auth::{AuthOutcome, AuthRequest, Authenticate, Identity, Permissions};
    use crate::config::CodecNumber;
    use crate::lane::{Lane, lane};
    use crate::limits::Limits;
    use crate::server::Server;
    use crate::service::Service;
    use crate::session::CloseReason;
    use crate::transport::AnyTransport;

    /// Admits everybody until this moment.
    struct Until(SystemTime);

    impl Authenticate for Until {
        fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
            let identity = Identity::new("ann", Permissions::everything());
            AuthOutcome::admit(identity.expires_at(self.0))
        }
    }

    fn noon() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
    }

    /// A lane at noon, with a session whose credentials expire an hour later.
    fn lane_at_noon() -> (Lane<impl Service>, usize, Stream) {
        let codec = AnyCodec::by_name("raw").unwrap();
        let authenticator = Until(noon() + Duration::from_secs(3_600));
        let mut limits = Limits::default();
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::from_secs(100_000));
        let builder = Server::builder().codec(codec).limits(limits);
        let mut lane = lane(&builder.authenticate(authenticator));
        lane.core.sessions.timers.set_wall(noon());
        lane.core.watch([], Vec::new()).unwrap();
        let (near, far) = Stream::pair().unwrap();
        let now_ns = lane.core.sessions.timers.now_ns();
        let rules = lane.core.config.codecs.rules(CodecNumber::MAIN);
        let connection = Connection::accepted(rules, Delivery::Reliable, now_ns);
        assert!(lane.core.shared.limiter.enter(None));
        let slot = lane.core.insert(
            AnyTransport::from(near),
            CodecNumber::MAIN,
            None,
            connection,
        );
        let slot = slot.unwrap();
        assert!(lane.core.guard().authenticate(slot, &[]));
        (lane, slot, far)
    }

    fn phase_after(lane: &mut Lane<impl Service>, slot: usize, seconds: u64) -> Option<Phase> {
        let at_ns = lane.core.sessions.timers.now_ns() + seconds * SECOND_NS;
        // The clocks are compared first, and the deadlines that this sets come with a later tick. A lane that looks a
        // second late looks once more.
        for at_ns in [at_ns, at_ns + SECOND_NS, at_ns + 2 * SECOND_NS] {
            lane.core.sessions.timers.set_time(at_ns);
            lane.handle_timers();
        }
        let session = lane.core.sessions.table.get(slot);
        session.map(|session| session.connection.phase())
    }

    /// Regression: a session lived on for the whole time of its token after the wall clock had passed its expiry,
    /// because the machine had slept or its clock was set. A reload did not end it either.
    #[test]
    fn credentials_expire_by_the_wall_clock_whatever_the_monotonic_clock_did() {
        let ended = Some(Phase::Closed(CloseReason::CredentialsExpired));
        let (mut lane, slot, _far) = lane_at_noon();
        assert_eq!(phase_after(&mut lane, slot, 4), Some(Phase::Open));
        let later = |seconds| noon() + Duration::from_secs(seconds);
        lane.core.sessions.timers.set_wall(later(3_590));
        assert_eq!(phase_after(&mut lane, slot, 4), Some(Phase::Open));
        lane.core.sessions.timers.set_wall(later(3_700));
        assert_eq!(phase_after(&mut lane, slot, 4), ended);

        let (mut lane, slot, _far) = lane_at_noon();
        lane.core.sessions.timers.set_wall(later(3_700));
        lane.core.guard().reauthenticate();
        assert_eq!(
            phase_after(&mut lane, slot, 1),
            ended,
            "at a reload at once"
        );
    }

    #[test]
    fn a_wall_clock_that_is_set_back_lets_credentials_live_as_long_as_it_says() {
        let (mut lane, slot, _far) = lane_at_noon();
        let before = noon() - Duration::from_secs(3_600);
        lane.core.sessions.timers.set_wall(before);
        assert_eq!(phase_after(&mut lane, slot, 4), Some(Phase::Open));
        assert_eq!(phase_after(&mut lane, slot, 3_700), Some(Phase::Open));
    }
}
