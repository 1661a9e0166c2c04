//! Newcomers at a full server: a session of the address that has the most makes room, and who cannot be let in is told so.
//!
//! Problem: one address could hold every session or every descriptor, and all others waited without a word. Approach: a newcomer
//! whose address has less than half as many sessions takes the place of the newest session of the address that has the most.
//! Without a free descriptor, a spare one is given up to accept the connection, and to refuse it if nobody makes room.
//!
//! Rejected: a fixed part of all descriptors for each address, because a server with one client machine could not use them all.

use std::fs::File;
use std::net::IpAddr;

use tidewire_io::socket::Accepted;
use tidewire_proto::body::GoAwayCode;

use super::Core;
use super::accept::Refusal;
use crate::address::Endpoint;
use crate::session::{CloseReason, SessionId};
use crate::transport::{Arrival, StreamListener};

/// The sessions that make room for newcomers next.
#[derive(Debug, Default)]
pub(super) struct Displaced {
    owner: Option<IpAddr>,
    /// The newest is the last one.
    newest: Vec<SessionId>,
    /// The time of the next search.
    search_ns: u64,
}

impl Core {
    /// Counts a peer that finds no place, if the address with the most sessions makes room for it.
    pub(super) fn displace(&mut self, peer: Option<&Endpoint>) -> bool {
        let Some(owner) = self.shared.limiter.displace(peer) else {
            return false;
        };
        let makes_room = self.close_newest_of(owner);
        if !makes_room {
            self.shared.limiter.leave(peer);
        }
        makes_room
    }

    /// Closes the newest session of an address on this lane.
    fn close_newest_of(&mut self, owner: IpAddr) -> bool {
        for _ in 0..2 {
            if self.acceptor.displaced.owner != Some(owner) {
                self.acceptor.displaced.newest.clear();
            }
            while let Some(id) = self.acceptor.displaced.newest.pop() {
                if let Some(slot) = self.sessions.slot_of(id) {
                    self.sessions.close(slot, CloseReason::Displaced);
                    return true;
                }
            }
            if !self.find_newest_of(owner) {
                return false;
            }
        }
        false
    }

    /// Searches the newest sessions of an address. Returns false if the last search was in vain a moment ago.
    fn find_newest_of(&mut self, owner: IpAddr) -> bool {
        let now_ns = self.sessions.now_ns();
        if now_ns < self.acceptor.displaced.search_ns {
            return false;
        }
        let sessions = self.sessions.iter().map(|(_, session)| session);
        let is_its = |session: &&crate::session::Session| {
            let connection = &session.connection;
            !connection.handshake().is_outgoing()
                && !connection.is_closed()
                && session.owner() == Some(owner)
        };
        let mut found: Vec<SessionId> = sessions.filter(is_its).map(|it| it.id).collect();
        found.sort_unstable_by_key(|id| self.sessions.age_of(*id));
        found.truncate(DISPLACED_MAX);
        found.reverse();
        if found.is_empty() {
            self.acceptor.displaced.search_ns = now_ns.saturating_add(SEARCH_NS);
        }
        let any = !found.is_empty();
        self.acceptor.displaced.owner = Some(owner);
        self.acceptor.displaced.newest = found;
        any
    }

    /// Accepts a connection without a free descriptor, by giving up the spare one. Takes it up if a session makes room for it, and
    /// refuses it otherwise. Returns whether the listener may go on.
    pub(super) fn accept_with_spare(&mut self, listener: usize, ready: &mut Vec<usize>) -> bool {
        if self.acceptor.spare.take().is_none() {
            return false;
        }
        let Some(StreamListener { socket, terms }) = self.acceptor.listeners.get(listener) else {
            return false;
        };
        if let Ok(Accepted { stream, peer }) = socket.accept() {
            // The header of a proxy is not read, so nobody knows whose connection it is.
            let has_header = peer.is_some_and(|peer| terms.is_proxy(peer.ip()));
            let arrival = Arrival::accepted(stream, peer, terms);
            let is_known = !has_header && arrival.forwarder.is_none();
            let peer = arrival.peer.as_ref();
            if is_known && self.check_handshake(&arrival).is_ok() && self.displace(peer) {
                self.adopt(arrival, ready);
            } else {
                let refusal = self.note_refusal(Refusal::Descriptors, peer);
                self.turn_away(arrival.stream, GoAwayCode::LimitReached, refusal.text());
            }
        }
        self.keep_spare();
        self.acceptor.spare.is_some()
    }

    /// Opens the spare descriptor, unless it is open.
    pub(super) fn keep_spare(&mut self) {
        if self.acceptor.spare.is_none() {
            self.acceptor.spare = File::open("/dev/null").ok();
        }
    }
}

/// Sessions that one search finds. It visits all sessions of the lane, so each of many newcomers pays for a small part.
const DISPLACED_MAX: usize = 64;

/// The pause after a search that found none.
const SEARCH_NS: u64 = 100_000_000;
