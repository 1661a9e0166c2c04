//! Newcomers at a full server: a session of the address that has the most makes room, and who cannot be let in is told
//! so.
//!
//! Problem: one address could hold every session or every descriptor, and all others waited without a word. Approach: a
//! newcomer whose address has less than half as many sessions takes the place of the newest session of the address that
//! has the most. Without a free descriptor, a spare one is given up to accept the connection, and to refuse it if
//! nobody makes room.
//!
//! Rejected: a fixed part of all descriptors for each address, because a server with one client machine could not use
//! them all.

use std::net::IpAddr;

use crate::session::{CloseReason, LaneSessions, Session, SessionId};

/// The sessions that make room for newcomers next.
#[derive(Debug, Default)]
pub(super) struct NewestSessions {
    owner: Option<IpAddr>,
    /// The newest is the last one.
    newest: Vec<SessionId>,
    /// The time of the next search.
    search_ns: u64,
}

impl NewestSessions {
    /// Closes the newest session of an address on this lane.
    pub(super) fn close_newest_of(&mut self, sessions: &mut LaneSessions, owner: IpAddr) -> bool {
        for _ in 0..2 {
            if self.owner != Some(owner) {
                self.newest.clear();
            }
            while let Some(id) = self.newest.pop() {
                if let Some(slot) = sessions.table.slot_of(id) {
                    sessions.table.close(slot, CloseReason::Displaced);
                    return true;
                }
            }
            if !self.find_newest_of(sessions, owner) {
                return false;
            }
        }
        false
    }

    /// Searches the newest sessions of an address. Returns false if the last search was in vain a moment ago.
    fn find_newest_of(&mut self, sessions: &LaneSessions, owner: IpAddr) -> bool {
        let now_ns = sessions.timers.now_ns();
        if now_ns < self.search_ns {
            return false;
        }
        let is_its = |session: &&Session| {
            let connection = &session.connection;
            !connection.handshake().is_outgoing()
                && !connection.is_closed()
                && session.owner() == Some(owner)
        };
        let all = sessions.table.into_iter().map(|(_, session)| session);
        let mut found: Vec<SessionId> = all.filter(is_its).map(|it| it.id).collect();
        found.sort_unstable_by_key(|id| sessions.table.age_of(*id));
        found.truncate(DISPLACED_MAX);
        found.reverse();
        if found.is_empty() {
            self.search_ns = now_ns.saturating_add(SEARCH_NS);
        }
        self.owner = Some(owner);
        self.newest = found;
        !self.newest.is_empty()
    }
}

/// Sessions that one search finds. It visits all sessions of the lane, so each of many newcomers pays for a small part.
const DISPLACED_MAX: usize = 64;

/// The pause after a search that found none.
const SEARCH_NS: u64 = 100_000_000;
