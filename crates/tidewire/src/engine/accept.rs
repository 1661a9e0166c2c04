//! Accepts connections, counts them, and distributes them over the lanes.
//!
//! One lane watches the listeners and gives each connection to a lane ([`Placement`]). Rejected: a listener for each lane on the
//! same port. The kernel then distributes by a hash, so a few long-lived sessions may all be on one lane.

use crate::observe::QuietLog;
use crate::session::{Profile, TimerKey, counted_address};
use crate::transport::Arrival;
use std::fs::File;
use std::sync::Arc;
use tidewire_io::poller::{Interest, Token};

use tidewire_io::socket::{AcceptError, Accepted};
use tidewire_proto::body::{GoAwayBody, GoAwayCode};
use tidewire_proto::codec::Codec;
use tidewire_proto::connection::{Connection, Phase};
use tidewire_proto::layer::{LayerError, WebSocketFault};
use tidewire_proto::message::{Kind, Message};

use super::Core;
use super::displacing::Displaced;
use super::placement::Placement;
use super::proxied::ProxiedArrivals;
use crate::address::Endpoint;
use crate::mailbox::LaneMessage;
use crate::memory::Holder;
use crate::transport::StreamListener;
use crate::transport::{AnyTransport, Transport};
use std::os::fd::AsFd;

#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    pub(crate) listeners: Vec<StreamListener>,
    placement: Placement,
    /// Limits the log lines about failures to accept, or to receive datagrams.
    pub(crate) error_log: QuietLog,
    /// Limits the log lines about peers that a limit refuses.
    pub(super) refusal_log: QuietLog,
    /// Limits the log lines about peers that are not let in.
    pub(super) authentication_log: QuietLog,
    /// Limits the log lines about peers that TLS or WebSocket refuses, or that refuse this side.
    layer_log: QuietLog,
    /// The connections of proxies whose headers are awaited.
    pub(super) proxied: ProxiedArrivals,
    /// The sessions that make room for newcomers.
    pub(super) displaced: Displaced,
    /// A descriptor that is given up to accept and refuse a connection when no other is free.
    pub(super) spare: Option<File>,
}

/// The reason why a new peer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The limit of sessions is reached, in total or for the peer's address.
    Sessions,
    /// The address has begun too many handshakes of layers.
    Handshakes,
    /// The server is near its memory limit, so it refuses new peers first.
    Memory,
    /// The process has no descriptor left.
    Descriptors,
    /// Proxies have opened too many connections whose clients they did not name yet.
    Unnamed,
}

impl Refusal {
    /// Returns the text that is sent to the peer.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Sessions => "a limit on the number of sessions is reached",
            Self::Handshakes => "this address begins too many handshakes",
            Self::Memory => "the server is short of memory",
            Self::Descriptors => "the server has no descriptor left",
            Self::Unnamed => "too many connections of proxies wait for their first bytes",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Sessions => "raise `sessions_max` or `sessions_per_address_max`",
            Self::Handshakes => {
                "raise `handshakes_per_address_per_second_max` unless this is an attack"
            }
            Self::Memory => "raise `memory_bytes_max` unless this is an attack",
            Self::Descriptors => "raise the limit with `ulimit -n`, or `LimitNOFILE=` of its unit",
            Self::Unnamed => {
                "let the proxy connect only when it has the request; it may also be short of descriptors"
            }
        }
    }
}

impl Core {
    /// Watches a listener from this lane.
    pub(crate) fn add_listener(
        &mut self,
        listener: StreamListener,
    ) -> Result<(), tidewire_io::poller::RegisterError> {
        let token = listener_token(self.acceptor.listeners.len());
        self.sessions
            .poller
            .add(listener.socket.as_fd(), token, Interest::READ)?;
        self.acceptor.listeners.push(listener);
        self.keep_spare();
        Ok(())
    }

    /// Accepts waiting connections of a listener, up to a bound, and distributes them over the lanes.
    pub(crate) fn accept(&mut self, listener: usize, ready: &mut Vec<usize>) {
        for _ in 0..ACCEPTS_PER_EVENT {
            let Some(StreamListener { socket, terms }) = self.acceptor.listeners.get(listener)
            else {
                return;
            };
            match socket.accept() {
                Ok(Accepted {
                    stream,
                    peer: Some(peer),
                }) if terms.is_proxy(peer.ip()) => {
                    let terms = Arc::clone(terms);
                    self.await_header(stream, peer, terms, ready);
                }
                Ok(Accepted { stream, peer }) => {
                    self.assign(Arrival::accepted(stream, peer, terms), ready);
                }
                Err(AcceptError::WouldBlock) => return,
                Err(AcceptError::Aborted) => {}
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    // The attempts go on ten times a second as long as the cause lasts. One line of log is enough for
                    // it.
                    if let Some(unlogged) = self.acceptor.error_log.may_log(self.sessions.now_ns())
                    {
                        tracing::error!(
                            %error,
                            cause,
                            unlogged,
                            "cannot accept; trying again every 100 ms"
                        );
                    }
                    // The counter changes last, so that a test that sees the count finds the line in the log.
                    self.counters.accept_errors.add(1);
                    let is_exhausted = matches!(error, AcceptError::DescriptorsExhausted { .. });
                    if !is_exhausted || !self.accept_with_spare(listener, ready) {
                        return self.pause_listener(listener);
                    }
                }
            }
        }
    }

    /// Counts a connection and passes it to a lane.
    pub(crate) fn assign(&mut self, arrival: Arrival, ready: &mut Vec<usize>) {
        let counted = match &arrival.forwarder {
            Some(proxy) => self.count_unnamed(proxy),
            None => self
                .check_handshake(&arrival)
                .and_then(|()| self.count_in(arrival.peer.as_ref(), true)),
        };
        if let Err(refusal) = counted {
            return self.turn_away(arrival.stream, GoAwayCode::LimitReached, refusal.text());
        }
        let shared = Arc::clone(&self.shared);
        let (lanes, now_ns) = (shared.lanes.all(), self.sessions.now_ns());
        let chosen = self.acceptor.placement.choose(lanes, now_ns);
        match chosen.filter(|lane| *lane != self.exchange.lane) {
            Some(lane) => {
                let message = LaneMessage::Adopt(Box::new(arrival));
                if let Err(LaneMessage::Adopt(arrival)) = lanes[lane].post(message) {
                    // The mailbox of the other lane is full, or that lane has ended, so this lane takes the connection.
                    self.adopt(*arrival, ready);
                }
            }
            None => self.adopt(arrival, ready),
        }
    }

    /// Counts a peer, unless a limit is reached or memory is short. One with a proved address may displace a session of an
    /// address that has many. Refusals are logged at a limited rate, so that a flood of peers does not flood the log.
    pub(crate) fn count_in(
        &mut self,
        peer: Option<&Endpoint>,
        is_proved: bool,
    ) -> Result<(), Refusal> {
        let holder = peer.and_then(counted_address).map(Holder::Address);
        self.find_place((peer, holder), Refusal::Sessions, |core| {
            core.shared.limiter.enter(peer) || is_proved && core.displace(peer)
        })
    }

    /// Counts a connection of a proxy whose client is not known yet, unless there are too many or memory is short.
    pub(super) fn count_unnamed(&mut self, proxy: &Endpoint) -> Result<(), Refusal> {
        self.find_place((Some(proxy), None), Refusal::Unnamed, |core| {
            core.shared.limiter.enter_unnamed()
        })
    }

    /// Lets a peer in if memory allows it and `enter` finds a place. Otherwise the refusal is noted.
    fn find_place(
        &mut self,
        (peer, holder): (Option<&Endpoint>, Option<Holder>),
        without_place: Refusal,
        enter: impl FnOnce(&mut Self) -> bool,
    ) -> Result<(), Refusal> {
        let refusal = if self.sessions.must_refuse(holder) {
            self.counters.memory_refused_sessions.add(1);
            Refusal::Memory
        } else if enter(self) {
            return Ok(());
        } else {
            without_place
        };
        Err(self.note_refusal(refusal, peer))
    }

    /// Checks that the address of a connection with layers may begin another handshake.
    pub(super) fn check_handshake(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        match arrival.stream.has_layers() {
            true => self.begin_handshake(arrival.peer.as_ref()),
            false => Ok(()),
        }
    }

    /// Counts a handshake that an address begins.
    pub(super) fn begin_handshake(&mut self, peer: Option<&Endpoint>) -> Result<(), Refusal> {
        let now_ns = self.sessions.now_ns();
        if self.shared.limiter.begin_handshake(peer, now_ns) {
            return Ok(());
        }
        self.counters.handshakes_refused.add(1);
        Err(self.note_refusal(Refusal::Handshakes, peer))
    }

    /// Counts and logs a refusal. Returns it.
    pub(super) fn note_refusal(&mut self, refusal: Refusal, peer: Option<&Endpoint>) -> Refusal {
        self.counters.sessions_refused.add(1);
        if let Some(unlogged) = self.acceptor.refusal_log.may_log(self.sessions.now_ns()) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(
                peer,
                unlogged,
                "refusing a peer: {}; {}; further refusals are not logged for 10 s",
                refusal.text(),
                refusal.remedy()
            );
        }
        refusal
    }

    /// Counts and logs why a layer of an accepted session failed. It logs at a limited rate.
    #[cold]
    pub(super) fn note_layer_error(
        &mut self,
        error: LayerError,
        refused: Option<&str>,
        profile: &Profile,
    ) {
        let is_websocket = || {
            profile
                .listener
                .as_ref()
                .is_some_and(|it| it.is_websocket())
        };
        let layer = match error {
            LayerError::Tls(_) => "TLS",
            LayerError::WebSocket(fault) => {
                self.count_websocket_fault(fault);
                "WebSocket"
            }
            // The peer pings and does not read the pongs.
            LayerError::Flood if is_websocket() => {
                self.counters.websocket_frames_refused.add(1);
                "WebSocket"
            }
            LayerError::Flood => "a layer",
            _ => return,
        };
        if let Some(unlogged) = self.acceptor.layer_log.may_log(self.sessions.now_ns()) {
            let peer = profile.source().map(tracing::field::display);
            tracing::warn!(
                peer,
                refused,
                unlogged,
                "{layer} failed: {error}; further failures are not logged for 10 s"
            );
        }
    }

    fn count_websocket_fault(&self, fault: WebSocketFault) {
        let counters = &self.counters;
        match fault {
            WebSocketFault::ForeignOrigin => counters.websocket_origins_refused.add(1),
            fault if fault.is_of_handshake() => counters.websocket_handshakes_refused.add(1),
            WebSocketFault::Closed(_) => {}
            _ => counters.websocket_frames_refused.add(1),
        }
    }

    /// Takes up a connection that the session limiter has counted.
    pub(crate) fn adopt(&mut self, arrival: Arrival, ready: &mut Vec<usize>) {
        if self.ending.drain_deadline_ns.is_some() {
            // Another lane accepted the connection before it learnt of the drain.
            self.shared.limiter.release_arrival(&arrival);
            self.counters.sessions_refused.add(1);
            let text = "the server is shutting down";
            return self.turn_away(arrival.stream, GoAwayCode::Shutdown, text);
        }
        let Arrival {
            stream,
            peer,
            forwarder,
            listener,
        } = arrival;
        let (counted, is_unnamed) = (peer.clone(), forwarder.is_some());
        let now_ns = self.sessions.now_ns();
        let mut connection = Connection::accepted(&self.config.rules, stream.delivery(), now_ns);
        if !stream.is_secured() {
            connection.secure(now_ns);
        }
        let begins_now = connection.phase() != Phase::AwaitHello;
        match self.insert(stream, peer, connection) {
            Ok(slot) => {
                let profile = &mut self.sessions[slot].profile;
                profile.listener = listener;
                if let Some(proxy) = forwarder {
                    profile.attach().forwarder = Some(Arc::new(proxy));
                }
                if self.sessions[slot].stream.has_layers() && !self.hold_handshake(slot) {
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

    /// Stops accepting for a moment. Otherwise a listener whose connections cannot be accepted would be reported
    /// ready all the time and use up the lane.
    pub(crate) fn pause_listener(&mut self, index: usize) {
        self.watch_listener(index, Interest::NONE);
        self.sessions
            .timers
            .set_after(ACCEPT_PAUSE_NS, TimerKey::Listener(index));
    }

    pub(crate) fn resume_listener(&mut self, index: usize) {
        self.keep_spare();
        self.watch_listener(index, Interest::READ);
    }

    fn watch_listener(&mut self, index: usize, interest: Interest) {
        let Some(listener) = self.acceptor.listeners.get(index) else {
            return;
        };
        let token: Token = listener_token(index);
        if let Err(error) = self
            .sessions
            .poller
            .modify(listener.socket.as_fd(), token, interest)
        {
            tracing::error!(%error, "cannot change how a listener is watched");
        }
    }

    /// Sends a refused connection the reason, in one attempt that does not wait.
    pub(super) fn turn_away(&self, mut stream: AnyTransport, code: GoAwayCode, text: &str) {
        let (mut body, mut frame) = (Vec::new(), Vec::new());
        GoAwayBody { code, text }.encode(&mut body);
        let message = Message::new(Kind::GoAway, 0, &body);
        // If the codec cannot express the message, or the peer has gone, the connection is closed without it.
        if self.config.codec.encode(&message, &mut frame).is_ok() {
            let _ = stream.write(&frame);
            let _ = stream.shutdown_write();
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
        assert!(lane.core.sessions.is_empty());
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
