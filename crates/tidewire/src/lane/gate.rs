//! Counts sessions of the whole server against its limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use tidewire_io::socket::SocketAddress;

use crate::address::Endpoint;
use crate::limits::Limits;

/// How many sessions there are, in all and from each IP address. Asked once per connection.
#[derive(Debug)]
pub(crate) struct Gate {
    sessions_max: usize,
    per_address_max: usize,
    registrations_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: usize,
    by_address: HashMap<IpAddr, usize>,
    registrations: usize,
}

impl Gate {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            sessions_max: limits.sessions_max,
            per_address_max: limits.sessions_per_address_max,
            registrations_max: limits.registrations_max,
            state: Mutex::default(),
        }
    }

    /// Counts a session in, unless a limit says no.
    pub(crate) fn enter(&self, peer: Option<&Endpoint>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.sessions >= self.sessions_max {
            return false;
        }
        if let Some(ip) = peer.and_then(ip_of) {
            let count = state.by_address.entry(ip).or_default();
            if *count >= self.per_address_max {
                return false;
            }
            *count += 1;
        }
        state.sessions += 1;
        true
    }

    /// Counts a subscriber's registration in, unless the limit says no.
    pub(crate) fn register(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let may = state.registrations < self.registrations_max;
        state.registrations += usize::from(may);
        may
    }

    /// Counts a registration out.
    pub(crate) fn unregister(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.registrations -= 1;
    }

    /// Counts a session out.
    pub(crate) fn leave(&self, peer: Option<&Endpoint>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions -= 1;
        if let Some(ip) = peer.and_then(ip_of)
            && let Some(count) = state.by_address.get_mut(&ip)
        {
            *count -= 1;
            if *count == 0 {
                state.by_address.remove(&ip);
            }
        }
    }
}

/// The IP address that counts, the same whether it came over IPv4 or wrapped up in IPv6.
fn ip_of(peer: &Endpoint) -> Option<IpAddr> {
    match peer {
        Endpoint::Socket(SocketAddress::Tcp(address)) | Endpoint::Udp(address) => {
            Some(address.ip().to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Option<Endpoint> {
        Some(Endpoint::Socket(SocketAddress::Tcp(text.parse().unwrap())))
    }

    #[test]
    fn both_limits_hold_and_places_come_back() {
        let gate = Gate::new(&Limits {
            sessions_max: 3,
            sessions_per_address_max: 2,
            ..Limits::default()
        });
        assert!(gate.enter(peer("10.0.0.1:1").as_ref()));
        assert!(gate.enter(peer("10.0.0.1:2").as_ref()));
        assert!(
            !gate.enter(peer("10.0.0.1:3").as_ref()),
            "two from one address"
        );
        let datagrams = Endpoint::Udp("[::ffff:10.0.0.1]:9".parse().unwrap());
        assert!(!gate.enter(Some(&datagrams)), "the same address");
        assert!(gate.enter(peer("10.0.0.2:1").as_ref()));
        assert!(!gate.enter(None), "three in all");
        gate.leave(peer("10.0.0.1:1").as_ref());
        assert!(gate.enter(peer("10.0.0.1:4").as_ref()));
    }
}
