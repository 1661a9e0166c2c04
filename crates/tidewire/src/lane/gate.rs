//! Counts sessions of the whole server against its limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use tidewire_io::socket::SocketAddress;

/// How many sessions there are, in all and from each IP address. Asked once per connection.
#[derive(Debug)]
pub(crate) struct Gate {
    sessions_max: usize,
    per_address_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Gate {
    pub(crate) fn new(sessions_max: usize, per_address_max: usize) -> Self {
        Self {
            sessions_max,
            per_address_max,
            state: Mutex::default(),
        }
    }

    /// Counts a session in, unless a limit says no.
    pub(crate) fn enter(&self, peer: Option<&SocketAddress>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.sessions >= self.sessions_max {
            return false;
        }
        if let Some(SocketAddress::Tcp(address)) = peer {
            let count = state.by_address.entry(address.ip()).or_default();
            if *count >= self.per_address_max {
                return false;
            }
            *count += 1;
        }
        state.sessions += 1;
        true
    }

    /// Counts a session out.
    pub(crate) fn leave(&self, peer: Option<&SocketAddress>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions -= 1;
        if let Some(SocketAddress::Tcp(address)) = peer
            && let Some(count) = state.by_address.get_mut(&address.ip())
        {
            *count -= 1;
            if *count == 0 {
                state.by_address.remove(&address.ip());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Option<SocketAddress> {
        Some(SocketAddress::Tcp(text.parse().unwrap()))
    }

    #[test]
    fn both_limits_hold_and_places_come_back() {
        let gate = Gate::new(3, 2);
        assert!(gate.enter(peer("10.0.0.1:1").as_ref()));
        assert!(gate.enter(peer("10.0.0.1:2").as_ref()));
        assert!(
            !gate.enter(peer("10.0.0.1:3").as_ref()),
            "two from one address"
        );
        assert!(gate.enter(peer("10.0.0.2:1").as_ref()));
        assert!(!gate.enter(None), "three in all");
        gate.leave(peer("10.0.0.1:1").as_ref());
        assert!(gate.enter(peer("10.0.0.1:4").as_ref()));
    }
}
