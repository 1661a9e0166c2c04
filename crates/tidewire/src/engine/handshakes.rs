//! Handshakes of layers such as TLS, and authentications: what they may cost a lane.
//!
//! # Time
//!
//! Problem: a signature of TLS takes up to several milliseconds, and an authenticator may take as long. After a restart thousands
//! of clients come at once. A lane that serves them all in one turn answers nobody else meanwhile. A lane that serves them in the
//! order of their connections soon serves only peers that have given up, and never comes to the others. Approach: the costly step
//! of a handshake waits in a queue, and a turn spends [`TURN_NS`] on the queue. Addresses are served in turn, and the oldest entry
//! of an address first. Just before its costly step the lane looks whether the peer is still there, and how long ago its bytes
//! arrived at the machine. A peer that has waited for [`PATIENCE_PERCENT`] of the handshake timeout is left out, because it would
//! give up before the answer. A peer of TLS that has ended its side has gone. A peer that has sent its credentials and ended its side
//! may still read, so the authenticator is asked about it after all others. See `docs/decisions/0088-handshakes-in-turn.md`.
//!
//! # Memory
//!
//! Problem: a handshake costs a server memory before it knows the peer, so one address that begins many could use up what is
//! meant for all. Approach: the memory of its unfinished handshakes has a limit, and the handshake that passes it is closed.

use std::collections::HashMap;

use tidewire_io::socket::Presence;
use tidewire_proto::connection::PauseReason;

use super::Core;
use super::fair_queue::FairQueue;
use crate::limits::nanoseconds;
use crate::session::{CloseReason, SessionId};
use crate::transport::Transport;

/// The unfinished handshakes of a lane.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    /// Memory of the unfinished handshakes of layers, by slot, as it counts for their addresses.
    unfinished: HashMap<usize, usize>,
    /// Sessions whose layers have a costly step to do.
    securing: FairQueue<SessionId>,
    /// Sessions whose peers the authenticator must be asked about, with their credentials. They go first, because their layers
    /// have already cost a step.
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
}

impl Core {
    /// Queues the costly step of a session's layers, if the peer has sent something for it.
    pub(crate) fn queue_costly_step(&mut self, slot: usize) {
        if self.presence(slot) != Presence::Silent {
            let session = &self.sessions[slot];
            let (owner, id) = (session.owner(), session.id);
            self.handshakes.securing.push(owner, id);
            self.sessions
                .pause_reading(slot, PauseReason::Authentication);
        }
    }

    /// Whether the authenticator may be asked about a session now. If not, the question waits, or the peer has gone.
    pub(super) fn may_ask(&mut self, slot: usize, token: &[u8]) -> bool {
        let is_doubtful = self.presence(slot) == Presence::HalfClosed;
        let handshakes = &mut self.handshakes;
        if handshakes.has_time() && handshakes.authenticating.is_empty() && !is_doubtful {
            return self.is_awaited(slot, QUESTION_PATIENCE_PERCENT);
        }
        let session = &self.sessions[slot];
        let question = (session.id, token.into());
        match is_doubtful {
            true => handshakes.doubtful.push(session.owner(), question),
            false => handshakes.authenticating.push(session.owner(), question),
        }
        self.sessions.relief.charge(0, token.len());
        self.counters.handshakes_deferred.add(1);
        false
    }

    /// Takes the next costly step that may be done in this turn.
    pub(crate) fn next_costly_step(&mut self) -> Option<CostlyStep> {
        while self.handshakes.has_time() {
            if let Some((id, token)) = self.handshakes.authenticating.pop() {
                match self.due_question(id, token, true) {
                    None => continue,
                    due => return due,
                }
            }
            if let Some(id) = self.handshakes.securing.pop() {
                match self.due_handshake(id) {
                    None => continue,
                    due => return due,
                }
            }
            let (id, token) = self.handshakes.doubtful.pop()?;
            if let Some(due) = self.due_question(id, token, false) {
                return Some(due);
            }
        }
        if !self.handshakes.securing.is_empty() {
            self.counters.handshakes_deferred.add(1);
        }
        None
    }

    /// The question of a session that has its turn, if the peer still waits. A question whose peer has ended its side meanwhile
    /// goes to the others of this kind, the `first` time.
    fn due_question(&mut self, id: SessionId, token: Box<[u8]>, first: bool) -> Option<CostlyStep> {
        let waiting = self.sessions.slot_of(id);
        if let Some(slot) = waiting.filter(|_| first)
            && self.presence(slot) == Presence::HalfClosed
        {
            let owner = self.sessions[slot].owner();
            self.handshakes.doubtful.push(owner, (id, token));
            return None;
        }
        self.sessions.relief.charge(token.len(), 0);
        let slot = waiting.filter(|slot| self.is_awaited(*slot, QUESTION_PATIENCE_PERCENT))?;
        Some(CostlyStep::Authenticate(slot, token))
    }

    /// The handshake of a session that has its turn, if the peer still waits.
    fn due_handshake(&mut self, id: SessionId) -> Option<CostlyStep> {
        let slot = self.sessions.slot_of(id)?;
        if self.presence(slot) == Presence::HalfClosed {
            self.abandon_handshake(slot);
        }
        if !self.is_awaited(slot, PATIENCE_PERCENT) {
            return None;
        }
        let connection = &mut self.sessions[slot].connection;
        connection.input_mut().resume(PauseReason::Authentication);
        Some(CostlyStep::Secure(slot))
    }

    /// Does a step of a handshake, and counts its time for this turn.
    pub(crate) fn timed<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> T {
        let began_ns = self.sessions.timers.measured_ns();
        let outcome = step(self);
        let took_ns = self.sessions.timers.measured_ns() - began_ns;
        self.handshakes.spent_ns += took_ns;
        outcome
    }

    /// Whether an answer still reaches the peer of a session in time. If not, the timeout of the handshake closes the session. The
    /// lane does not close it before, so that the peer sees a timeout and pauses for longer. The peer of an open session, which
    /// renews its credentials, waits until they expire.
    fn is_awaited(&mut self, slot: usize, percent: u64) -> bool {
        if self.sessions[slot].connection.is_closed() {
            return false;
        }
        if self.sessions[slot].connection.is_open() {
            return true;
        }
        let waited = self.sessions[slot].stream.since_arrival();
        let patience_ns = self.config.rules.handshake_timeout_ns / 100 * percent;
        let is_late = waited.map_or(0, nanoseconds) >= patience_ns;
        self.counters.handshakes_expired.add(u64::from(is_late));
        !is_late
    }

    /// Whether the peer of a session is there, and an answer still reaches it in time. If its connection is over, the session is
    /// closed.
    pub(super) fn still_waits(&mut self, slot: usize) -> bool {
        self.presence(slot) != Presence::Gone && self.is_awaited(slot, QUESTION_PATIENCE_PERCENT)
    }

    /// Looks whether the peer of a session is there. If its connection is over, the session is closed.
    fn presence(&mut self, slot: usize) -> Presence {
        let presence = self.sessions[slot].stream.presence();
        if presence == Presence::Gone {
            self.abandon_handshake(slot);
        }
        presence
    }

    fn abandon_handshake(&mut self, slot: usize) {
        if !self.sessions[slot].connection.is_closed() {
            self.counters.handshakes_abandoned.add(1);
            self.sessions.close(slot, CloseReason::PeerReset);
        }
    }

    /// Counts the memory of an unfinished handshake for its address. Closes the session, and returns false, if the address
    /// holds too much.
    pub(crate) fn hold_handshake(&mut self, slot: usize) -> bool {
        let session = &self.sessions[slot];
        let Some(owner) = session.owner() else {
            return true;
        };
        let held = self.handshakes.unfinished.entry(slot).or_default();
        let bytes = session.stream.memory_bytes();
        if self.shared.limiter.hold_handshake(owner, *held, bytes) {
            *held = bytes;
            return true;
        }
        let now_ns = self.sessions.now_ns();
        if let Some(unlogged) = self.acceptor.refusal_log.may_log(now_ns) {
            let peer = session.profile.peer.as_ref().map(tracing::field::display);
            tracing::warn!(
                peer,
                unlogged,
                "closing a handshake: the unfinished ones of its address hold too much memory; raise \
                 `handshake_bytes_per_address_max` unless this is an attack; further refusals are not logged for 10 s"
            );
        }
        self.sessions.close(slot, CloseReason::HandshakeLimit);
        false
    }

    /// Ends the count for a session that is open now, or is being removed.
    #[inline]
    pub(super) fn release_handshake(&mut self, slot: usize) {
        if self.handshakes.unfinished.is_empty() {
            return;
        }
        if let (Some(bytes), Some(owner)) = (
            self.handshakes.unfinished.remove(&slot),
            self.sessions[slot].owner(),
        ) {
            self.shared.limiter.hold_handshake(owner, bytes, 0);
        }
    }
}

/// The time that one turn spends on costly steps. The last step that begins within it is done, so a turn takes 11 ms with RSA 4096.
/// An open session waits for two turns at most, and its p99 stays below 100 ms.
const TURN_NS: u64 = 5_000_000;

/// The part of the handshake timeout after which a peer is left out. The rest is time for the answer to arrive.
const PATIENCE_PERCENT: u64 = 95;

/// The same for a question to the authenticator. An authenticator that answers later has other questions before this one. With the
/// other part it answered only peers that had just given up: of 4,000 clients none came back after the first 5 s.
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
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::server::Server;

    struct Everybody;

    impl Authenticate for Everybody {
        fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
            AuthOutcome::admit(Identity::new("ann", Permissions::everything()))
        }
    }

    /// Regression: a renewal that had waited for half of the patience was left out without an answer, and the session could not renew
    /// its credentials again.
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
            let now_ns = core.sessions.now_ns();
            let connection = Connection::accepted(&core.config.rules, Delivery::Reliable, now_ns);
            assert!(core.shared.limiter.enter(None));
            let slot = core.insert(near.into(), None, connection).unwrap();
            (slot, core.sessions[slot].id, far)
        };
        let ((open, open_id, _far), (login, login_id, _other)) = (connect(), connect());
        assert!(core.ask_about(open, &[]), "it is open");
        for slot in [open, login] {
            // The time that the kernel says cannot be set.
            while core.sessions[slot].stream.since_arrival().unwrap() < PATIENCE {
                std::thread::yield_now();
            }
        }
        let due = |core: &mut Core, id| core.due_question(id, Box::default(), true);
        let renewal = due(core, open_id);
        assert!(matches!(renewal, Some(CostlyStep::Authenticate(slot, _)) if slot == open));
        assert!(due(core, login_id).is_none());
        assert_eq!(core.counters.handshakes_expired.read(), 1);
        assert!(!core.sessions[login].connection.is_closed());
    }
}
