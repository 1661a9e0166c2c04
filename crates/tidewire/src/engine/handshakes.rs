//! Handshakes of layers such as TLS, and authentications: what they may cost a lane.
//!
//! Problem: a signature of TLS takes up to several milliseconds, and an authenticator may take as long. After a restart
//! thousands of clients come at once. A lane that serves them all in one turn answers nobody else meanwhile. A lane
//! that serves them in the order of their connections soon serves only peers that have given up, and never comes to the
//! others. Approach: the costly step of a handshake waits in a queue, and a turn spends [`TURN_NS`] on the queue.
//! Addresses are served in turn, and the oldest entry of an address first. Just before its costly step the lane looks
//! whether the peer is still there, and how long ago its bytes arrived at the machine. A peer that has waited for
//! [`PATIENCE_PERCENT`] of the handshake timeout is left out, because it would give up before the answer. A peer of TLS
//! that has ended its side has gone. A peer that has sent its credentials and ended its side may still read, so the
//! authenticator is asked about it after all others. See `docs/decisions/0088-handshakes-in-turn.md`.

use tidewire_io::socket::Presence;
use tidewire_proto::connection::PauseReason;

use super::fair_queue::FairQueue;
use crate::limits::nanoseconds;
use crate::session::{CloseReason, LaneSessions, SessionId};

/// The costly steps of handshakes that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    /// Sessions whose layers have a costly step to do.
    securing: FairQueue<SessionId>,
    /// Sessions whose peers the authenticator must be asked about, with their credentials. They go first, because their
    /// layers have already cost a step.
    authenticating: FairQueue<Question>,
    /// Questions whose peers have ended their side.
    doubtful: FairQueue<Question>,
    /// The time that this turn has spent on costly steps.
    spent_ns: u64,
}

/// A question to the authenticator: a session and its credentials.
type Question = (SessionId, Box<[u8]>);

/// A costly step that is due.
#[derive(Debug)]
pub(crate) enum CostlyStep {
    /// The layers of this session answer their peer.
    Secure(usize),
    /// The authenticator is asked about the peer of this session, with these credentials.
    Authenticate(usize, Box<[u8]>),
}

impl Handshakes {
    /// Begins a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.spent_ns = 0;
    }

    /// Whether a step waits.
    #[inline]
    pub(crate) fn are_waiting(&self) -> bool {
        !self.securing.is_empty() || !self.authenticating.is_empty() || !self.doubtful.is_empty()
    }

    fn has_time(&self) -> bool {
        self.spent_ns < TURN_NS
    }

    /// Counts the time of a step that began then.
    pub(crate) fn spend_since(&mut self, began_ns: u64, sessions: &LaneSessions) {
        self.spent_ns += sessions.timers.measured_ns() - began_ns;
    }

    /// Queues the costly step of a session's layers, if the peer has sent something for it.
    pub(crate) fn queue_step(&mut self, sessions: &mut LaneSessions, slot: usize) {
        if presence(sessions, slot) != Presence::Silent {
            let session = &sessions[slot];
            self.securing.push(session.owner(), session.id);
            sessions.pause_reading(slot, PauseReason::Authentication);
        }
    }

    /// Whether the authenticator may be asked about a session now. If not, the question waits, or the peer has gone.
    pub(super) fn may_ask(
        &mut self,
        sessions: &mut LaneSessions,
        slot: usize,
        token: &[u8],
    ) -> bool {
        let is_doubtful = presence(sessions, slot) == Presence::HalfClosed;
        if self.has_time() && self.authenticating.is_empty() && !is_doubtful {
            return is_awaited(sessions, slot, QUESTION_PATIENCE_PERCENT);
        }
        let session = &sessions[slot];
        let question = (session.id, token.into());
        match is_doubtful {
            true => self.doubtful.push(session.owner(), question),
            false => self.authenticating.push(session.owner(), question),
        }
        sessions.relief.charge(0, token.len());
        sessions.counters.handshakes_deferred.add(1);
        false
    }

    /// Takes the next costly step that may be done in this turn.
    pub(crate) fn next_step(&mut self, sessions: &mut LaneSessions) -> Option<CostlyStep> {
        while self.has_time() {
            if let Some((id, token)) = self.authenticating.pop() {
                match self.due_question(sessions, id, token, true) {
                    None => continue,
                    due => return due,
                }
            }
            if let Some(id) = self.securing.pop() {
                match due_handshake(sessions, id) {
                    None => continue,
                    due => return due,
                }
            }
            let (id, token) = self.doubtful.pop()?;
            if let Some(due) = self.due_question(sessions, id, token, false) {
                return Some(due);
            }
        }
        if !self.securing.is_empty() {
            sessions.counters.handshakes_deferred.add(1);
        }
        None
    }

    /// The question of a session that has its turn, if the peer still waits. A question whose peer has ended its side
    /// meanwhile goes to the others of this kind, the `first` time.
    fn due_question(
        &mut self,
        sessions: &mut LaneSessions,
        id: SessionId,
        token: Box<[u8]>,
        first: bool,
    ) -> Option<CostlyStep> {
        let waiting = sessions.table.slot_of(id);
        if let Some(slot) = waiting.filter(|_| first)
            && presence(sessions, slot) == Presence::HalfClosed
        {
            self.doubtful.push(sessions[slot].owner(), (id, token));
            return None;
        }
        sessions.relief.charge(token.len(), 0);
        let slot = waiting.filter(|slot| is_awaited(sessions, *slot, QUESTION_PATIENCE_PERCENT))?;
        Some(CostlyStep::Authenticate(slot, token))
    }
}

/// The handshake of a session that has its turn, if the peer still waits.
fn due_handshake(sessions: &mut LaneSessions, id: SessionId) -> Option<CostlyStep> {
    let slot = sessions.table.slot_of(id)?;
    if presence(sessions, slot) == Presence::HalfClosed {
        abandon(sessions, slot);
    }
    if !is_awaited(sessions, slot, PATIENCE_PERCENT) {
        return None;
    }
    let connection = &mut sessions[slot].connection;
    connection.input_mut().resume(PauseReason::Authentication);
    Some(CostlyStep::Secure(slot))
}

/// Whether the peer of a session is there, and an answer of the authenticator still reaches it in time. If its
/// connection is over, the session is closed.
pub(super) fn still_waits(sessions: &mut LaneSessions, slot: usize) -> bool {
    presence(sessions, slot) != Presence::Gone
        && is_awaited(sessions, slot, QUESTION_PATIENCE_PERCENT)
}

/// Whether an answer still reaches the peer of a session in time. If not, the timeout of the handshake closes the
/// session. The lane does not close it before, so that the peer sees a timeout and pauses for longer. The peer of an
/// open session, which renews its credentials, waits until they expire.
fn is_awaited(sessions: &LaneSessions, slot: usize, percent: u64) -> bool {
    let session = &sessions[slot];
    if session.connection.is_closed() || session.connection.is_open() {
        return session.connection.is_open();
    }
    let waited = session.stream.since_arrival();
    let patience_ns = sessions
        .config
        .codecs
        .rules(session.codec_number())
        .handshake_timeout_ns
        / 100
        * percent;
    let is_late = waited.map_or(0, nanoseconds) >= patience_ns;
    sessions.counters.handshakes_expired.add(u64::from(is_late));
    !is_late
}

/// Looks whether the peer of a session is there. If its connection is over, the session is closed.
fn presence(sessions: &mut LaneSessions, slot: usize) -> Presence {
    let presence = sessions[slot].stream.presence();
    if presence == Presence::Gone {
        abandon(sessions, slot);
    }
    presence
}

fn abandon(sessions: &mut LaneSessions, slot: usize) {
    if !sessions[slot].connection.is_closed() {
        sessions.counters.handshakes_abandoned.add(1);
        sessions.table.close(slot, CloseReason::PeerReset);
    }
}

/// The time that one turn spends on costly steps. The last step that begins within it is done, so a turn takes 11 ms
/// with RSA 4096. An open session waits for two turns at most, and its p99 stays below 100 ms.
const TURN_NS: u64 = 5_000_000;

/// The part of the handshake timeout after which a peer is left out. The rest is time for the answer to arrive.
const PATIENCE_PERCENT: u64 = 95;

/// The same for a question to the authenticator. An authenticator that answers later has other questions before this
/// one. With the other part it answered only peers that had just given up: of 4,000 clients none came back after the
/// first 5 s.
const QUESTION_PATIENCE_PERCENT: u64 = 50;

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    use tidewire_io::socket::{Listener, SocketAddress, SocketOptions};
    use tidewire_proto::codec::AnyCodec;
    use tidewire_proto::connection::{Connection, Delivery};

    use super::*;
    use crate::auth::{AuthOutcome, AuthRequest, Authenticate, Identity, Permissions};
    use crate::config::CodecNumber;
    use crate::engine::Core;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::server::Server;

    struct Everybody;

    impl Authenticate for Everybody {
        fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
            AuthOutcome::admit(Identity::new("ann", Permissions::everything()))
        }
    }

    /// Regression: a renewal that had waited for half of the patience was left out without an answer, and the session
    /// could not renew its credentials again.
    #[test]
    fn a_late_renewal_is_asked_about_and_a_late_login_is_left_to_its_timeout() {
        const PATIENCE: Duration = Duration::from_millis(20);
        let mut limits = Limits::default();
        limits.connections.set_handshake_timeout(PATIENCE);
        let codec = AnyCodec::by_name("raw").unwrap();
        let builder = Server::builder().codec(codec).limits(limits);
        let mut lane = lane(&builder.authenticate(Everybody));
        let core = &mut lane.core;
        let any = SocketAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = Listener::bind(&any, &SocketOptions::default()).unwrap();
        let SocketAddress::Tcp(at) = *listener.local_address() else {
            panic!("not over TCP");
        };
        let mut connect = || {
            let far = TcpStream::connect(at).unwrap();
            let near = listener.accept().unwrap().stream;
            let now_ns = core.sessions.timers.now_ns();
            let connection = Connection::accepted(
                core.config.codecs.rules(CodecNumber::MAIN),
                Delivery::Reliable,
                now_ns,
            );
            assert!(core.shared.limiter.enter(None));
            let slot = core
                .insert(near.into(), CodecNumber::MAIN, None, connection)
                .unwrap();
            (slot, core.sessions[slot].id, far)
        };
        let ((open, open_id, _far), (login, login_id, _other)) = (connect(), connect());
        assert!(core.guard().ask_about(open, &[]), "it is open");
        for slot in [open, login] {
            // The time that the kernel says cannot be set.
            while core.sessions[slot].stream.since_arrival().unwrap() < PATIENCE {
                std::thread::yield_now();
            }
        }
        let due = |core: &mut Core, id| {
            let (handshakes, sessions) = (&mut core.handshakes, &mut core.sessions);
            handshakes.due_question(sessions, id, Box::default(), true)
        };
        let renewal = due(core, open_id);
        assert!(matches!(renewal, Some(CostlyStep::Authenticate(slot, _)) if slot == open));
        assert!(due(core, login_id).is_none());
        assert_eq!(core.counters.handshakes_expired.read(), 1);
        assert!(!core.sessions[login].connection.is_closed());
    }
}
