//! Addresses that are not validated: the server does not know whether they receive what it sends.
//!
//! Problem: without a handshake the first datagram of an address makes a session, and the sender can forge the address.
//! 65,536 forged addresses would take every slot of a server until the idle timeout. Approach: such a session is
//! *unvalidated* at first. There are few slots for unvalidated sessions. Each of them ends after seconds of silence,
//! and a new one replaces the oldest when all slots are taken. So a new peer is always served, and an address whose
//! session was replaced starts again with its next datagram. An address becomes *established*, and its session an
//! ordinary one, if it is still heard after [`unvalidated_timeout`](crate::limits::UdpLimits::unvalidated_timeout) and
//! was never silent for that long. That is no proof, because a forger can continue. So established addresses have at
//! most half of the slots, and the others stay unvalidated. The last quarter of this half is for hosts that have few of
//! them.
//!
//! The server does not notify an unvalidated address of the end of its session. The notice would be unsolicited traffic
//! to a forged address, and a real peer needs none to continue. Rejected: a challenge, because these codecs have no
//! frame that every peer answers.

use std::collections::VecDeque;

use crate::limits::nanoseconds;
use crate::session::{CloseReason, LaneSessions, SessionId, Shares};
use crate::transport::datagram::Standing;

/// The lane's sessions of addresses that are not validated.
#[derive(Debug, Default)]
pub(super) struct UnvalidatedSessions {
    /// The sessions, oldest first. Entries that have ended or are established are skipped.
    queue: VecDeque<SessionId>,
    unvalidated: usize,
    established: usize,
    /// The established addresses of each host.
    established_shares: Shares,
}

impl UnvalidatedSessions {
    /// Makes room for another unvalidated address, on one of so many lanes.
    pub(super) fn evict(&mut self, sessions: &mut LaneSessions, lanes: usize) {
        let limits = &sessions.config.limits;
        let all = limits.udp.unvalidated_max().min(limits.sessions.max() / 4);
        let count_max = (all / lanes).max(1);
        while self.unvalidated >= count_max {
            let Some(id) = self.queue.pop_front() else {
                return;
            };
            if let Some(slot) = sessions.table.slot_of(id)
                && sessions[slot].stream.is_unvalidated()
            {
                self.set_standing(sessions, slot, Standing::Validated);
                sessions.table.close(slot, CloseReason::Evicted);
            }
        }
        if self.queue.len() > 2 * count_max + QUEUE_SLACK {
            self.queue.retain(|id| {
                let session = sessions.table.find(*id);
                session.is_some_and(|session| session.stream.is_unvalidated())
            });
        }
    }

    /// Marks the session's address as unvalidated.
    pub(super) fn add(&mut self, sessions: &mut LaneSessions, slot: usize) {
        let since_ns = sessions.timers.now_ns();
        self.set_standing(sessions, slot, Standing::Unvalidated { since_ns });
        self.queue.push_back(sessions[slot].id);
        sessions.arm_timer(slot);
    }

    /// Establishes an unvalidated address that was heard again after its time, if there is a slot on one of so many
    /// lanes.
    #[cold]
    pub(super) fn establish(&mut self, sessions: &mut LaneSessions, slot: usize, lanes: usize) {
        let established_max = (sessions.config.limits.sessions.max() / 2 / lanes).max(1);
        let since_ns = sessions.timers.now_ns();
        let owner = sessions[slot].owner();
        let shares = &self.established_shares;
        let place = shares.check(owner, established_max, self.established, established_max);
        let standing = match place {
            Ok(()) => Standing::Established,
            Err(_) => Standing::Unvalidated { since_ns },
        };
        self.set_standing(sessions, slot, standing);
    }

    /// Sets the standing of a session's address and updates the counts.
    pub(super) fn set_standing(
        &mut self,
        sessions: &mut LaneSessions,
        slot: usize,
        standing: Standing,
    ) {
        let owner = sessions[slot].owner();
        let Some(peer) = sessions[slot].stream.datagram_mut() else {
            return;
        };
        let former = peer.set_standing(standing);
        self.unvalidated -= usize::from(matches!(former, Standing::Unvalidated { .. }));
        self.unvalidated += usize::from(matches!(standing, Standing::Unvalidated { .. }));
        if former == Standing::Established {
            self.established -= 1;
            self.established_shares.remove(owner);
        }
        if standing == Standing::Established {
            self.established += 1;
            self.established_shares.add(owner);
        }
    }
}

/// Whether an unvalidated address has lasted long enough to be established.
#[inline]
pub(super) fn may_be_established(sessions: &LaneSessions, standing: Standing) -> bool {
    let Standing::Unvalidated { since_ns } = standing else {
        return false;
    };
    let lasted_ns = sessions.timers.now_ns().saturating_sub(since_ns);
    lasted_ns >= nanoseconds(sessions.config.limits.udp.unvalidated_timeout())
}

/// Ended sessions that the queue may hold in addition to the others before it is cleaned.
const QUEUE_SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use tidewire_io::datagram::{Datagram, DatagramOptions, DatagramSocket};
    use tidewire_proto::codec::AnyCodec;

    use super::*;
    use crate::config::CodecNumber;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::server::Server;
    use crate::transport::datagram::BoundPort;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Regression: one host that sent from many ports took all places of established addresses, and the sessions of
    /// others ended after seconds of silence.
    #[test]
    fn the_last_places_of_established_addresses_are_for_hosts_that_have_few() {
        for attackers in [1, 50] {
            let codec = AnyCodec::by_name("raw").unwrap();
            let mut limits = Limits::default();
            limits.sessions.set_max(512);
            let mut lane = lane(&Server::builder().limits(limits).codec(codec.clone()));
            let any = "127.0.0.1:0".parse().unwrap();
            let socket = DatagramSocket::bind(&any, &DatagramOptions::default()).unwrap();
            let port = BoundPort::new(socket, CodecNumber::MAIN);
            lane.core.watch([], vec![port]).unwrap();
            let core = &mut lane.core;
            let mut port = 0;
            let mut establish = |host: u8| {
                port += 1;
                let datagram = Datagram {
                    peer: SocketAddr::from(([10, 0, 0, host], port)),
                    local: None,
                    bytes: b"hello",
                    truncated: false,
                };
                let slot = core.admit(0, &datagram, &codec).unwrap();
                core.ports
                    .unvalidated
                    .establish(&mut core.sessions, slot, 1);
                let peer = core.sessions[slot].stream.datagram().unwrap();
                (peer.standing() == Standing::Established).then_some(slot)
            };
            let before = establish(1).expect("it is the first");
            for host in 100..100 + attackers {
                while establish(host).is_some() {}
            }
            let after = establish(2).expect("a place is left");
            for slot in [before, after] {
                assert!(!lane.core.sessions[slot].connection.is_closed());
            }
            assert!(lane.core.ports.unvalidated.established > 192);
            lane.close_all();
            let shares = &lane.core.ports.unvalidated.established_shares;
            assert_eq!(shares.of(Some([10, 0, 0, 100].into())), 0);
        }
    }

    #[test]
    fn an_address_that_goes_on_is_established_and_may_be_silent_for_long() {
        let codec = AnyCodec::by_name("raw").unwrap();
        let mut limits = Limits::default();
        limits.udp.set_unvalidated_timeout(Duration::from_secs(10));
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::from_secs(1_000));
        limits.sessions.set_max(4);
        let mut lane = lane(&Server::builder().limits(limits).codec(codec.clone()));
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = DatagramSocket::bind(&any, &DatagramOptions::default()).unwrap();
        let port = BoundPort::new(socket, CodecNumber::MAIN);
        lane.core.watch([], vec![port]).unwrap();
        let mut admit = |port| {
            let datagram = Datagram {
                peer: SocketAddr::from(([10, 0, 0, 1], port)),
                local: None,
                bytes: b"hello",
                truncated: false,
            };
            let core = &mut lane.core;
            let slot = core.admit(0, &datagram, &codec).unwrap();
            for _ in 0..3 {
                core.sessions.pass_time(5 * SECOND_NS);
                let now_ns = core.sessions.timers.now_ns();
                core.sessions[slot]
                    .connection
                    .timing_mut()
                    .note_input(now_ns);
                let (ports, sessions) = (&mut core.ports, &mut core.sessions);
                assert!(!ports.is_looping(sessions, slot, &datagram, &codec));
            }
            slot
        };
        // Half of the slots are for established addresses.
        let slots = [1, 2, 3].map(&mut admit);
        let standings = slots.map(|slot| {
            let peer = lane.core.sessions[slot].stream.datagram().unwrap();
            peer.standing() == Standing::Established
        });
        assert_eq!(standings, [true, true, false]);
        for _ in 0..100 {
            lane.core.sessions.pass_time(SECOND_NS);
            lane.handle_timers();
        }
        let ended = slots.map(|slot| lane.core.sessions[slot].connection.is_closed());
        assert_eq!(ended, [false, false, true]);
        assert_eq!(lane.core.ports.unvalidated.established, 2);
        lane.close_all();
        let counts = &lane.core.ports.unvalidated;
        assert_eq!((counts.unvalidated, counts.established), (0, 0));
        assert_eq!(
            lane.core.counters.closed[CloseReason::Unvalidated.index()].read(),
            1
        );
    }
}
