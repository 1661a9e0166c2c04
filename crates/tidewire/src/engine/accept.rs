//! Accepts connections, counts them, and distributes them over the lanes.
//!
//! One lane watches the listeners and gives each connection to a lane ([`Placement`]). Rejected: a listener for each
//! lane on the same port. The kernel then distributes by a hash, so a few long-lived sessions may all be on one lane.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use tidewire_io::poller::{Interest, PollerError, Token};
use tidewire_io::socket::{AcceptError, Accepted};
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::connection::{Connection, Phase};

use super::Core;
use super::admission::{Admission, Refusal, turn_away};
use super::placement::Placement;
use super::proxied::ProxiedArrivals;
use crate::mailbox::LaneMessage;
use crate::observe::QuietLog;
use crate::session::{LaneSessions, TimerKey};
use crate::transport::{Arrival, StreamListener, Transport};

/// The listeners that a lane watches, and the connections of proxies whose headers it awaits.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    listeners: Vec<StreamListener>,
    placement: Placement,
    /// Limits the log lines about failures to accept.
    log: QuietLog,
    proxied: ProxiedArrivals,
    /// A descriptor that is given up to accept and refuse a connection when no other is free.
    spare: Option<File>,
}

/// The outcome of one attempt to accept a connection.
#[derive(Debug)]
enum AcceptStep {
    /// There is a new connection.
    Arrival(Arrival),
    /// A session made room for a new connection, so this lane has counted the connection already. Others wait for the
    /// next turn, in which the session has given its descriptor back.
    Counted(Arrival),
    /// There may be more connections.
    Nothing,
    /// There are no more connections for now.
    Over,
}

impl Acceptor {
    /// Watches a listener from this lane.
    pub(super) fn add(
        &mut self,
        sessions: &mut LaneSessions,
        listener: StreamListener,
    ) -> Result<(), PollerError> {
        let token = listener_token(self.listeners.len());
        let socket = listener.socket.as_fd();
        sessions.poller.add(socket, token, Interest::READ)?;
        self.listeners.push(listener);
        self.keep_spare();
        Ok(())
    }

    /// Takes no more connections. Returns the listeners.
    pub(super) fn end(
        &mut self,
        sessions: &mut LaneSessions,
        admission: &Admission,
    ) -> Vec<StreamListener> {
        self.proxied.end(sessions, admission);
        let listeners = std::mem::take(&mut self.listeners);
        for listener in &listeners {
            if let Err(error) = sessions.poller.remove(listener.socket.as_fd()) {
                tracing::error!(%error, "cannot stop watching a listener");
            }
        }
        listeners
    }

    /// Accepts a waiting connection of a listener.
    fn accept(
        &mut self,
        listener: usize,
        sessions: &mut LaneSessions,
        admission: &mut Admission,
    ) -> AcceptStep {
        let Some(StreamListener { socket, terms }) = self.listeners.get(listener) else {
            return AcceptStep::Over;
        };
        match socket.accept() {
            Ok(Accepted {
                stream,
                peer: Some(peer),
            }) if terms.is_proxy(peer.ip()) => {
                let terms = Arc::clone(terms);
                let arrival = self
                    .proxied
                    .await_header(stream, peer, terms, sessions, admission);
                arrival.map_or(AcceptStep::Nothing, AcceptStep::Arrival)
            }
            Ok(Accepted { stream, peer }) => {
                AcceptStep::Arrival(Arrival::accepted(stream, peer, terms))
            }
            Err(AcceptError::WouldBlock) => AcceptStep::Over,
            Err(AcceptError::Aborted) => AcceptStep::Nothing,
            Err(error) => {
                self.note_failure(sessions, &error);
                let step = match error {
                    AcceptError::DescriptorsExhausted { .. } => {
                        self.accept_with_spare(listener, sessions, admission)
                    }
                    _ => AcceptStep::Over,
                };
                // Without a spare descriptor the next attempt would fail for the same cause.
                if matches!(step, AcceptStep::Over) || self.spare.is_none() {
                    self.pause(sessions, listener);
                }
                step
            }
        }
    }

    /// Logs and counts a failure. The attempts go on ten times a second as long as the cause lasts, and one line of log
    /// is enough for the cause.
    fn note_failure(&mut self, sessions: &LaneSessions, error: &AcceptError) {
        if let Some(unlogged) = self.log.may_log(sessions.timers.now_ns()) {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(
                %error,
                cause,
                unlogged,
                "cannot accept; trying again every 100 ms"
            );
        }
        // The counter changes last, so that a test that sees the count finds the line in the log.
        sessions.counters.accept_errors.add(1);
    }

    /// Reads what has come of the header of a proxy. Returns its connection once the header is whole.
    pub(super) fn read_header(
        &mut self,
        index: usize,
        sessions: &mut LaneSessions,
        admission: &Admission,
    ) -> Option<Arrival> {
        self.proxied.read(index, sessions, admission)
    }

    /// Ends a connection whose header did not come in time.
    pub(crate) fn expire_header(
        &mut self,
        index: usize,
        sessions: &mut LaneSessions,
        admission: &Admission,
    ) {
        let reason = &"no PROXY header came in time";
        self.proxied.refuse(index, sessions, admission, reason);
    }

    /// Stops accepting for a moment. Otherwise a listener whose connections cannot be accepted would be reported
    /// ready all the time and use up the lane.
    fn pause(&mut self, sessions: &mut LaneSessions, index: usize) {
        self.watch(sessions, index, Interest::NONE);
        sessions
            .timers
            .set_after(ACCEPT_PAUSE_NS, TimerKey::Listener(index));
    }

    pub(crate) fn resume(&mut self, sessions: &mut LaneSessions, index: usize) {
        self.keep_spare();
        self.watch(sessions, index, Interest::READ);
    }

    fn watch(&self, sessions: &mut LaneSessions, index: usize, interest: Interest) {
        let Some(listener) = self.listeners.get(index) else {
            return;
        };
        let (socket, token) = (listener.socket.as_fd(), listener_token(index));
        if let Err(error) = sessions.poller.modify(socket, token, interest) {
            tracing::error!(%error, "cannot change how a listener is watched");
        }
    }

    /// Accepts a connection without a free descriptor, by giving up the spare one. Takes it up if a session makes room
    /// for it, and refuses it otherwise. [`AcceptStep::Over`] if the listener must pause.
    fn accept_with_spare(
        &mut self,
        listener: usize,
        sessions: &mut LaneSessions,
        admission: &mut Admission,
    ) -> AcceptStep {
        if self.spare.take().is_none() {
            return AcceptStep::Over;
        }
        let accepted = self.listeners[listener].socket.accept();
        let mut outcome = AcceptStep::Nothing;
        if let Ok(Accepted { stream, peer }) = accepted {
            // The header of a proxy is not read, so nobody knows whose connection it is.
            let terms = &self.listeners[listener].terms;
            let has_header = peer.is_some_and(|peer| terms.is_proxy(peer.ip()));
            let arrival = Arrival::accepted(stream, peer, terms);
            let is_known = !has_header && arrival.forwarder.is_none();
            let peer = arrival.peer.as_ref();
            if is_known
                && admission.check_handshake(sessions, &arrival).is_ok()
                && admission.displace(sessions, peer)
            {
                outcome = AcceptStep::Counted(arrival);
            } else {
                let refusal = admission.note_refusal(sessions, Refusal::Descriptors, peer);
                let codec = sessions.config.codecs.get(arrival.codec_number());
                let code = GoAwayCode::LimitReached;
                turn_away(codec, arrival.stream, code, refusal.text());
            }
        }
        self.keep_spare();
        match outcome {
            AcceptStep::Nothing if self.spare.is_none() => AcceptStep::Over,
            outcome => outcome,
        }
    }

    /// Opens the spare descriptor, unless it is open.
    fn keep_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = File::open("/dev/null").ok();
        }
    }
}

impl Core {
    /// Accepts waiting connections of a listener, up to a bound, and distributes them over the lanes.
    pub(crate) fn accept(&mut self, listener: usize, ready: &mut Vec<usize>) {
        for _ in 0..ACCEPTS_PER_EVENT {
            let (sessions, admission) = (&mut self.sessions, &mut self.admission);
            match self.acceptor.accept(listener, sessions, admission) {
                AcceptStep::Arrival(arrival) => self.assign(arrival, ready),
                AcceptStep::Counted(arrival) => return self.adopt(arrival, ready),
                AcceptStep::Nothing => {}
                AcceptStep::Over => return,
            }
        }
    }

    /// Reads what has come of the header of a proxy. Once the header is whole, the connection goes to a lane.
    pub(crate) fn read_header(&mut self, index: usize, ready: &mut Vec<usize>) {
        let (sessions, admission) = (&mut self.sessions, &self.admission);
        if let Some(arrival) = self.acceptor.read_header(index, sessions, admission) {
            self.assign(arrival, ready);
        }
    }

    /// Counts a connection and passes it to a lane.
    pub(crate) fn assign(&mut self, arrival: Arrival, ready: &mut Vec<usize>) {
        let counted = self.admission.count_arrival(&mut self.sessions, &arrival);
        if let Err(refusal) = counted {
            let codec = self.config.codecs.get(arrival.codec_number());
            let code = GoAwayCode::LimitReached;
            return turn_away(codec, arrival.stream, code, refusal.text());
        }
        let (lanes, now_ns) = (self.exchange.lanes.all(), self.sessions.timers.now_ns());
        let chosen = self.acceptor.placement.choose(lanes, now_ns);
        let arrival = match chosen.filter(|lane| *lane != self.exchange.lane()) {
            Some(lane) => match lanes[lane].post(LaneMessage::Adopt(Box::new(arrival))) {
                // The mailbox of the other lane is full, or that lane has ended, so this lane takes the connection.
                Err(LaneMessage::Adopt(arrival)) => *arrival,
                _ => return,
            },
            None => arrival,
        };
        self.adopt(arrival, ready);
    }

    /// Takes up a connection that the session limiter has counted.
    pub(crate) fn adopt(&mut self, arrival: Arrival, ready: &mut Vec<usize>) {
        if self.ending.is_draining() {
            // Another lane accepted the connection before it learnt of the drain.
            self.shared.limiter.release_arrival(&arrival);
            self.counters.sessions_refused.add(1);
            let codec = self.config.codecs.get(arrival.codec_number());
            let text = "the server is shutting down";
            return turn_away(codec, arrival.stream, GoAwayCode::Shutdown, text);
        }
        let codec = arrival.codec_number();
        let Arrival {
            stream,
            peer,
            forwarder,
            listener,
        } = arrival;
        let (counted, is_unnamed) = (peer.clone(), forwarder.is_some());
        let now_ns = self.sessions.timers.now_ns();
        let mut connection =
            Connection::accepted(self.config.codecs.rules(codec), stream.delivery(), now_ns);
        if !stream.is_secured() {
            connection.secure(now_ns);
        }
        let begins_now = connection.phase() != Phase::AwaitHello;
        match self.insert(stream, codec, peer, connection) {
            Ok(slot) => {
                let session = &mut self.sessions[slot];
                session.profile.listener = listener;
                if forwarder.is_some() {
                    session.profile.attach().set_forwarder(forwarder);
                }
                let has_layers = session.stream.has_layers();
                if has_layers && !self.admission.hold_handshake(&mut self.sessions, slot) {
                    return;
                }
                if begins_now {
                    ready.push(slot);
                }
            }
            Err(reason) => {
                let limiter = &self.shared.limiter;
                limiter.release(counted.as_ref(), is_unnamed);
                tracing::warn!(%reason, "an accepted connection could not be watched");
            }
        }
    }
}

/// The pause of a listener after a failure, such as too many open descriptors.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// Most connections that are accepted at once, so that many new connections do not starve the open ones.
const ACCEPTS_PER_EVENT: usize = 64;

/// Returns the poller token of a listener. It is below the waker's and above every session's.
pub(crate) fn listener_token(index: usize) -> Token {
    Token(usize::MAX - 1 - index)
}

#[cfg(test)]
mod tests {
    use tidewire_io::socket::Stream;

    use super::*;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::server::Server;

    #[test]
    fn a_connection_adopted_during_a_drain_is_refused_with_a_reason_and_counted() {
        let mut limits = Limits::default();
        limits.sessions.set_max(1);
        let mut lane = lane(&Server::builder().limits(limits));
        let mailbox = Arc::clone(&lane.core.exchange.mailbox);
        let (near, mut far) = Stream::pair().unwrap();
        // Another lane had accepted and counted it before the drain began.
        assert!(lane.core.shared.limiter.enter(None));
        let deadline_ns = u64::MAX;
        mailbox.post(LaneMessage::Drain { deadline_ns }).unwrap();
        let arrival = Arrival::unlisted(near.into());
        let message = LaneMessage::Adopt(Box::new(arrival));
        mailbox.post(message).unwrap();
        lane.take_messages();

        assert_eq!(lane.core.counters.sessions_refused.read(), 1);
        assert_eq!(lane.core.counters.sessions_opened.read(), 0);
        assert!(lane.core.sessions.table.is_empty());
        assert!(
            lane.core.shared.limiter.enter(None),
            "its slot is free again"
        );
        let mut told = [0; 256];
        let count = far.read(&mut told).unwrap();
        let text = String::from_utf8_lossy(&told[..count]);
        assert!(text.contains("shutting down"), "{text:?}");
        assert_eq!(far.read(&mut told).unwrap(), 0, "and then the end");
    }
}
