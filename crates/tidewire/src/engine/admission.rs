//! Decides which peers get a place: by the limits of sessions and handshakes, and by the memory.
//!
//! # Memory of handshakes
//!
//! Problem: a handshake costs a server memory before it knows the peer, so one address that begins many could use up
//! what is meant for all. Approach: the memory of its unfinished handshakes has a limit, and the handshake that passes
//! it is closed.

use std::collections::HashMap;
use std::sync::Arc;

use tidewire_proto::body::{GoAwayBody, GoAwayCode};
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::layer::{LayerError, WebSocketFault};
use tidewire_proto::message::{Kind, Message};

use super::displacing::NewestSessions;
use crate::address::Endpoint;
use crate::memory::Holder;
use crate::observe::QuietLog;
use crate::session::{CloseReason, LaneSessions, Session, SessionLimiter, counted_address};
use crate::transport::{AnyTransport, Arrival, Transport};

/// The places of peers, as one lane gives them.
#[derive(Debug)]
pub(crate) struct Admission {
    limiter: Arc<SessionLimiter>,
    /// Limits the log lines about peers that a limit refuses.
    log: QuietLog,
    /// Limits the log lines about peers that TLS or WebSocket refuses, or that refuse this side.
    layer_log: QuietLog,
    /// The sessions that make room for newcomers.
    displaced: NewestSessions,
    /// Memory of the unfinished handshakes of layers, by slot, as it counts for their addresses.
    unfinished: HashMap<usize, usize>,
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

impl Admission {
    pub(super) fn new(limiter: Arc<SessionLimiter>) -> Self {
        Self {
            limiter,
            log: QuietLog::default(),
            layer_log: QuietLog::default(),
            displaced: NewestSessions::default(),
            unfinished: HashMap::new(),
        }
    }

    /// Counts a connection that has arrived: for its client, or as one of a proxy whose client is not known yet.
    pub(super) fn count_arrival(
        &mut self,
        sessions: &mut LaneSessions,
        arrival: &Arrival,
    ) -> Result<(), Refusal> {
        match &arrival.forwarder {
            Some(proxy) => self.count_unnamed(sessions, proxy),
            None => {
                self.check_handshake(sessions, arrival)?;
                self.count_in(sessions, arrival.peer.as_ref(), true)
            }
        }
    }

    /// Counts a peer, unless a limit is reached or memory is short. One with a proved address may displace a session of
    /// an address that has many. Refusals are logged at a limited rate, so that a flood of peers does not flood the
    /// log.
    pub(crate) fn count_in(
        &mut self,
        sessions: &mut LaneSessions,
        peer: Option<&Endpoint>,
        is_proved: bool,
    ) -> Result<(), Refusal> {
        let holder = peer.and_then(counted_address).map(Holder::Address);
        self.check_memory(sessions, peer, holder)?;
        match self.limiter.enter(peer) || is_proved && self.displace(sessions, peer) {
            true => Ok(()),
            false => Err(self.note_refusal(sessions, Refusal::Sessions, peer)),
        }
    }

    /// Counts a connection of a proxy whose client is not known yet, unless there are too many or memory is short.
    pub(super) fn count_unnamed(
        &mut self,
        sessions: &mut LaneSessions,
        proxy: &Endpoint,
    ) -> Result<(), Refusal> {
        self.check_memory(sessions, Some(proxy), None)?;
        match self.limiter.enter_unnamed() {
            true => Ok(()),
            false => Err(self.note_refusal(sessions, Refusal::Unnamed, Some(proxy))),
        }
    }

    /// Ends the count of a connection that [`Self::count_unnamed`] has counted.
    pub(super) fn leave_unnamed(&self) {
        self.limiter.leave_unnamed();
    }

    /// Checks that memory allows another peer.
    pub(super) fn check_memory(
        &mut self,
        sessions: &mut LaneSessions,
        peer: Option<&Endpoint>,
        holder: Option<Holder>,
    ) -> Result<(), Refusal> {
        if !sessions.relief_pass().must_refuse(holder) {
            return Ok(());
        }
        sessions.counters.memory_refused_sessions.add(1);
        Err(self.note_refusal(sessions, Refusal::Memory, peer))
    }

    /// Counts the handshake of a connection with layers, if its address may begin another one.
    pub(super) fn check_handshake(
        &mut self,
        sessions: &LaneSessions,
        arrival: &Arrival,
    ) -> Result<(), Refusal> {
        match arrival.stream.has_layers() {
            true => self.begin_handshake(sessions, arrival.peer.as_ref()),
            false => Ok(()),
        }
    }

    /// Counts a handshake that an address begins.
    pub(super) fn begin_handshake(
        &mut self,
        sessions: &LaneSessions,
        peer: Option<&Endpoint>,
    ) -> Result<(), Refusal> {
        if self.limiter.begin_handshake(peer, sessions.timers.now_ns()) {
            return Ok(());
        }
        sessions.counters.handshakes_refused.add(1);
        Err(self.note_refusal(sessions, Refusal::Handshakes, peer))
    }

    /// Counts a peer that finds no place, if the address with the most sessions makes room for it.
    pub(super) fn displace(
        &mut self,
        sessions: &mut LaneSessions,
        peer: Option<&Endpoint>,
    ) -> bool {
        let Some(owner) = self.limiter.displace(peer) else {
            return false;
        };
        let makes_room = self.displaced.close_newest_of(sessions, owner);
        if !makes_room {
            self.limiter.leave(peer);
        }
        makes_room
    }

    /// Counts and logs a refusal. Returns it.
    pub(super) fn note_refusal(
        &mut self,
        sessions: &LaneSessions,
        refusal: Refusal,
        peer: Option<&Endpoint>,
    ) -> Refusal {
        sessions.counters.sessions_refused.add(1);
        if let Some(unlogged) = self.log.may_log(sessions.timers.now_ns()) {
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
        sessions: &LaneSessions,
        session: &Session,
        error: LayerError,
    ) {
        let (profile, counters) = (&session.profile, &sessions.counters);
        let listener = profile.listener.as_ref();
        let layer = match error {
            LayerError::Tls(_) => "TLS",
            LayerError::WebSocket(fault) => {
                match fault {
                    WebSocketFault::ForeignOrigin => counters.websocket_origins_refused.add(1),
                    fault if fault.is_of_handshake() => {
                        counters.websocket_handshakes_refused.add(1);
                    }
                    WebSocketFault::Closed(_) => {}
                    _ => counters.websocket_frames_refused.add(1),
                }
                "WebSocket"
            }
            // The peer pings and does not read the pongs.
            LayerError::Flood if listener.is_some_and(|it| it.is_websocket()) => {
                counters.websocket_frames_refused.add(1);
                "WebSocket"
            }
            LayerError::Flood => "a layer",
            _ => return,
        };
        if let Some(unlogged) = self.layer_log.may_log(sessions.timers.now_ns()) {
            let peer = profile.source().map(tracing::field::display);
            let refused = session.stream.refused_part();
            tracing::warn!(
                peer,
                refused,
                unlogged,
                "{layer} failed: {error}; further failures are not logged for 10 s"
            );
        }
    }

    /// Counts the memory of an unfinished handshake for its address. Closes the session, and returns false, if the
    /// address holds too much.
    pub(crate) fn hold_handshake(&mut self, sessions: &mut LaneSessions, slot: usize) -> bool {
        let session = &sessions[slot];
        let Some(owner) = session.owner() else {
            return true;
        };
        let held = self.unfinished.entry(slot).or_default();
        let bytes = session.stream.memory_bytes();
        if self.limiter.hold_handshake(owner, *held, bytes) {
            *held = bytes;
            return true;
        }
        if let Some(unlogged) = self.log.may_log(sessions.timers.now_ns()) {
            let peer = session.profile.peer.as_ref().map(tracing::field::display);
            tracing::warn!(
                peer,
                unlogged,
                "closing a handshake: the unfinished ones of its address hold too much memory; raise \
                 `handshake_bytes_per_address_max` unless this is an attack; further refusals are not logged for 10 s"
            );
        }
        sessions.table.close(slot, CloseReason::HandshakeLimit);
        false
    }

    /// Ends the count for a session that is open now, or is being removed.
    #[inline]
    pub(super) fn release_handshake(&mut self, sessions: &LaneSessions, slot: usize) {
        if self.unfinished.is_empty() {
            return;
        }
        let owner = sessions[slot].owner();
        if let (Some(bytes), Some(owner)) = (self.unfinished.remove(&slot), owner) {
            self.limiter.hold_handshake(owner, bytes, 0);
        }
    }
}

/// Sends a refused connection the reason, in one attempt that does not wait.
pub(super) fn turn_away(codec: &AnyCodec, mut stream: AnyTransport, code: GoAwayCode, text: &str) {
    let (mut body, mut frame) = (Vec::new(), Vec::new());
    GoAwayBody { code, text }.encode(&mut body);
    let message = Message::new(Kind::GoAway, 0, &body);
    // If the codec cannot express the message, or the peer has gone, the connection is closed without it.
    if codec.encode(&message, &mut frame).is_ok() {
        let _ = stream.write(&frame);
        let _ = stream.shutdown_write();
    }
}
