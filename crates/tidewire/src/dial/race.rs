//! One attempt to connect to a host with several addresses: the next address begins before the previous address has
//! failed, as in [RFC 8305](https://www.rfc-editor.org/rfc/rfc8305).
//!
//! Problem: an address may be silent. One after the other, each silent address costs a whole timeout. Approach: the
//! next address begins [`STAGGER_NS`] after the previous address, or at once if that failed. The first address to end
//! its handshake wins, and the others are closed. One timeout holds for all of them.
//!
//! A server that refuses is the right server: no further address begins. Those that have begun may still win, unless
//! the server refuses for good.

use super::DialStep;
use crate::address::Endpoint;
use crate::session::{CloseReason, SessionId};
use crate::transport::ConnectError;

/// The addresses of one attempt to connect, and their progress.
#[derive(Debug)]
pub(super) struct Race {
    /// The addresses that have not begun, the next address last.
    waiting: Vec<Endpoint>,
    running: Vec<(SessionId, Endpoint)>,
    /// When the next address begins, even if earlier addresses continue.
    next_ns: u64,
    deadline_ns: u64,
    /// The failure to report if no address wins: of an address with a server that answered, else of the last address.
    failure: Option<ConnectError>,
}

impl Race {
    pub(super) fn new(mut endpoints: Vec<Endpoint>, now_ns: u64, timeout_ns: u64) -> Self {
        endpoints.reverse();
        let deadline_ns = match endpoints.len() {
            // The session has the same timeout, and reports what it waited for.
            1 => u64::MAX,
            _ => now_ns.saturating_add(timeout_ns),
        };
        Self {
            waiting: endpoints,
            running: Vec::new(),
            next_ns: now_ns,
            deadline_ns,
            failure: None,
        }
    }

    /// Returns the next step: the next address, a wait, or the failure of all of them.
    pub(super) fn step(&mut self, now_ns: u64) -> DialStep {
        if now_ns < self.deadline_ns {
            if (self.running.is_empty() || now_ns >= self.next_ns)
                && let Some(endpoint) = self.waiting.pop()
            {
                self.next_ns = now_ns.saturating_add(STAGGER_NS);
                return DialStep::Connect(endpoint);
            }
            if !self.running.is_empty() {
                return DialStep::Wait;
            }
        }
        DialStep::Failed(match self.failure.take() {
            // A server may have been there and too slow.
            Some(failure) if self.running.is_empty() || !is_without_server(&failure) => failure,
            _ => ConnectError::Closed(CloseReason::HandshakeTimeout),
        })
    }

    /// When the next step is due, unless a session ends before.
    pub(super) fn wake_ns(&self) -> u64 {
        match self.waiting.is_empty() {
            true => self.deadline_ns,
            false => self.next_ns.min(self.deadline_ns),
        }
    }

    pub(super) fn note_started(&mut self, id: SessionId, endpoint: Endpoint) {
        self.running.push((id, endpoint));
    }

    /// Whether this session belongs to the race and has not ended.
    pub(super) fn has(&self, id: SessionId) -> bool {
        self.running.iter().any(|(running, _)| *running == id)
    }

    /// Notes that a session has ended without being open. Returns its address, or `None` if it does not belong to the
    /// race.
    pub(super) fn take(&mut self, id: SessionId) -> Option<Endpoint> {
        let index = self.running.iter().position(|(it, _)| *it == id)?;
        Some(self.running.swap_remove(index).1)
    }

    /// Notes why an address failed. The next address begins at once.
    pub(super) fn note_failure(&mut self, failure: ConnectError) {
        tracing::debug!(%failure, "an address cannot be connected to");
        if is_final(&failure) {
            return self.end(failure);
        }
        self.next_ns = 0;
        if ends_search(&failure) {
            self.waiting.clear();
        }
        // The answer of a server says more than the absence of a server.
        if self.failure.as_ref().is_none_or(is_without_server) {
            self.failure = Some(failure);
        }
    }

    /// Lets the next step be that no address has won, because of this failure.
    pub(super) fn end(&mut self, failure: ConnectError) {
        self.deadline_ns = 0;
        self.failure = Some(failure);
    }

    /// The sessions that have not ended.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.running.iter().map(|(id, _)| *id)
    }
}

/// Whether the server refused this side for good.
pub(super) fn is_final(failure: &ConnectError) -> bool {
    match failure {
        ConnectError::Refused { reason, .. } | ConnectError::Closed(reason) => reason.is_final(),
        _ => false,
    }
}

/// Whether no server answered.
fn is_without_server(failure: &ConnectError) -> bool {
    matches!(
        failure,
        ConnectError::Socket(_) | ConnectError::Closed(CloseReason::HandshakeTimeout)
    )
}

/// Whether no other address would help: a server refused, or this side cannot connect to such an address.
fn ends_search(failure: &ConnectError) -> bool {
    matches!(
        failure,
        ConnectError::Refused { .. }
            | ConnectError::PlaintextCredentials { .. }
            | ConnectError::LongCredentials { .. }
            | ConnectError::NoTls
            | ConnectError::Framing { .. }
    ) || failure.is_inproc()
}

/// The head start of an address before the next begins: the value that RFC 8305 recommends. It is longer than a round
/// trip to most servers, and shorter than a person notices.
const STAGGER_NS: u64 = 250_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_NS: u64 = 4 * STAGGER_NS;

    fn at(port: u16) -> Endpoint {
        Endpoint::Udp(([127, 0, 0, 1], port).into())
    }

    fn session(number: u64) -> SessionId {
        SessionId::new(0, 0, number as u32)
    }

    fn nobody() -> ConnectError {
        ConnectError::Closed(CloseReason::HandshakeTimeout)
    }

    fn refused() -> ConnectError {
        let reason = CloseReason::Shutdown;
        ConnectError::Refused {
            reason,
            text: "no".to_owned(),
        }
    }

    /// The address to connect to now.
    fn next(race: &mut Race, now_ns: u64) -> Endpoint {
        match race.step(now_ns) {
            DialStep::Connect(endpoint) => endpoint,
            step => panic!("{step:?}"),
        }
    }

    fn waits(race: &mut Race, now_ns: u64) -> bool {
        matches!(race.step(now_ns), DialStep::Wait)
    }

    /// Regression: a silent first address cost a whole timeout at each connect.
    #[test]
    fn a_silent_address_does_not_delay_the_next_ones_for_long() {
        let mut race = Race::new(vec![at(1), at(2), at(3)], 0, TIMEOUT_NS);
        assert_eq!(next(&mut race, 0), at(1));
        race.note_started(session(1), at(1));
        assert!(waits(&mut race, 0));
        assert_eq!(race.wake_ns(), STAGGER_NS);
        assert_eq!(next(&mut race, STAGGER_NS), at(2));
        race.note_started(session(2), at(2));
        // The second address fails, so the third begins at once.
        assert_eq!(race.take(session(2)), Some(at(2)));
        race.note_failure(nobody());
        assert_eq!(next(&mut race, STAGGER_NS + 1), at(3));
        race.note_started(session(3), at(3));
        assert!(waits(&mut race, STAGGER_NS + 1));
        assert_eq!(race.wake_ns(), TIMEOUT_NS);
        assert!(race.has(session(1)) && race.has(session(3)) && !race.has(session(2)));
        let failed = race.step(TIMEOUT_NS);
        assert!(
            matches!(
                failed,
                DialStep::Failed(ConnectError::Closed(CloseReason::HandshakeTimeout))
            ),
            "one timeout for all: {failed:?}"
        );
    }

    #[test]
    fn a_server_that_refuses_ends_the_search_and_its_words_are_reported() {
        let mut race = Race::new(vec![at(1), at(2), at(3)], 0, TIMEOUT_NS);
        assert_eq!(next(&mut race, 0), at(1));
        race.note_started(session(1), at(1));
        assert_eq!(next(&mut race, STAGGER_NS), at(2));
        race.note_started(session(2), at(2));
        race.take(session(2));
        race.note_failure(refused());
        // The first address has begun and may still win.
        assert!(waits(&mut race, STAGGER_NS));
        race.take(session(1));
        race.note_failure(nobody());
        let failed = race.step(STAGGER_NS);
        assert!(
            matches!(failed, DialStep::Failed(ConnectError::Refused { .. })),
            "{failed:?}"
        );
    }
}
