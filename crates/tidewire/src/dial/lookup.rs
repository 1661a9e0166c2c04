//! The lookups before an attempt to connect: of the addresses of a host name, of credentials, and of files of TLS.
//!
//! Each may take seconds, and a lane has deadlines to keep. So they are looked up on a thread of their own.
//!
//! Problem: the resolver of the system may take a minute, and cannot be interrupted. Approach: a name has the time of a
//! handshake. Its resolver runs on one more thread, which is abandoned after this time. At most [`LOOKUPS_MAX`] threads
//! are abandoned at a time. Credentials and files have no such limit: the program provides them, and some providers ask
//! another server.

use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use tidewire_proto::layer::Stack;

use crate::address::{Address, AddressError, Endpoint};
use crate::auth::{Credentials, Token};
use crate::tls::ClientConfigs;
use crate::transport::Layers;

/// A server's address and the endpoints that it resolves to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    address: Address,
    /// Resolves the host name. `None` if the address has no name.
    resolver: Option<Resolver>,
    /// Empty while the host name is not resolved.
    endpoints: Vec<Endpoint>,
    /// The endpoint of the last connection that was open.
    last_good: Option<Endpoint>,
    /// The layers of connections there, if they are not those that the lane has for such an address.
    layers: Option<Layers>,
}

/// Resolves an address to all endpoints of its host. It may take seconds.
pub(crate) type Resolver = fn(&Address) -> Result<Vec<Endpoint>, AddressError>;

/// The lookups of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    address: Address,
    /// Resolves the host name, if it is asked for, within this time.
    resolver: Option<(Resolver, Duration)>,
    credentials: Option<Credentials>,
    /// The files of TLS, which are read again if they have changed.
    tls: Option<Arc<ClientConfigs>>,
}

/// The results of a lookup. A field is `None` if the lookup was not asked for it.
#[derive(Debug)]
pub(crate) struct LookupResult {
    pub(crate) endpoints: Option<Result<Vec<Endpoint>, AddressError>>,
    /// Credentials for the server, or why there are none.
    pub(crate) token: Option<Result<Token, String>>,
}

impl Target {
    /// Creates a target. It resolves IP addresses at once, and leaves host names to a lookup.
    pub(crate) fn of(address: Address) -> Result<Self, AddressError> {
        let is_name = |host: &str| host != "*" && host.parse::<IpAddr>().is_err();
        match address.host().is_some_and(is_name) {
            true => Ok(Self::new(address, Some(Address::resolve_all), Vec::new())),
            false => {
                let endpoints = address.resolve_all()?;
                Ok(Self::new(address, None, endpoints))
            }
        }
    }

    pub(crate) fn new(
        address: Address,
        resolver: Option<Resolver>,
        endpoints: Vec<Endpoint>,
    ) -> Self {
        Self {
            address,
            resolver,
            endpoints,
            last_good: None,
            layers: None,
        }
    }

    pub(crate) fn with_layers(self, layers: Option<Layers>) -> Self {
        Self { layers, ..self }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn stack(&self) -> Option<Stack> {
        self.layers.as_ref().map(Layers::stack)
    }

    /// The lookups that the next attempt needs. `None` if it needs none. A host name has this time.
    pub(super) fn lookup(
        &self,
        timeout: Duration,
        credentials: Option<Credentials>,
        tls: Option<Arc<ClientConfigs>>,
    ) -> Option<Lookup> {
        let resolver = self.resolver.filter(|_| self.endpoints.is_empty());
        let lookup = Lookup {
            address: self.address.clone(),
            resolver: resolver.map(|resolver| (resolver, timeout)),
            credentials,
            tls: tls.filter(|tls| tls.has_files()),
        };
        let is_needed =
            lookup.resolver.is_some() || lookup.credentials.is_some() || lookup.tls.is_some();
        is_needed.then_some(lookup)
    }

    /// Whether the host name is still to be resolved.
    pub(super) fn is_unresolved(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Stores the endpoints that a lookup has found.
    pub(super) fn set_endpoints(&mut self, endpoints: Vec<Endpoint>) {
        self.endpoints = endpoints;
    }

    /// The endpoints in the order of attempts: the last good endpoint, then the others in the resolver's order.
    pub(super) fn in_order(&self) -> Vec<Endpoint> {
        let mut endpoints = self.endpoints.clone();
        if let Some(good) = &self.last_good
            && let Some(index) = endpoints.iter().position(|it| it == good)
        {
            endpoints[..=index].rotate_right(1);
        }
        endpoints
    }

    pub(super) fn note_good(&mut self, endpoint: Endpoint) {
        self.last_good = Some(endpoint);
    }

    /// Drops the resolved endpoints after an attempt has failed with all of them. The server may have moved, so its
    /// name is looked up again.
    pub(super) fn forget_addresses(&mut self) {
        if self.resolver.is_some() {
            self.endpoints.clear();
        }
    }
}

impl Lookup {
    pub(super) fn of_credentials(address: Address, credentials: Credentials) -> Self {
        Self {
            address,
            resolver: None,
            credentials: Some(credentials),
            tls: None,
        }
    }

    /// Looks up on this thread. It may take seconds.
    pub(crate) fn run(&self) -> LookupResult {
        if let Some(tls) = &self.tls {
            tls.refresh();
        }
        LookupResult {
            endpoints: self
                .resolver
                .map(|(resolver, timeout)| resolve_within(resolver, &self.address, timeout)),
            token: self.credentials.as_ref().map(Credentials::get),
        }
    }

    /// Looks up on a new thread, which passes the results to `done`.
    pub(crate) fn start(self, done: impl FnOnce(LookupResult) + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name("tidewire-resolve".to_owned());
        thread.spawn(move || done(self.run())).map(drop)
    }
}

/// Resolves a host name within this time.
fn resolve_within(
    resolver: Resolver,
    address: &Address,
    timeout: Duration,
) -> Result<Vec<Endpoint>, AddressError> {
    let late = || AddressError::LookupTimeout {
        host: address.host().unwrap_or_default().to_owned(),
        timeout,
    };
    let until = Instant::now() + timeout;
    let Some(place) = PLACES.take(timeout) else {
        return Err(late());
    };
    let (sender, receiver) = sync_channel(1);
    let asked = address.clone();
    let thread = thread::Builder::new().name("tidewire-resolve".to_owned());
    let spawned = thread.spawn(move || {
        // After the time the receiver is gone.
        let _ = sender.send(resolver(&asked));
        drop(place);
    });
    if let Err(error) = spawned {
        tracing::debug!(%error, "cannot start a thread for a lookup; its time is not bounded");
        return resolver(address);
    }
    match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => Err(late()),
        // The resolver panicked.
        Err(RecvTimeoutError::Disconnected) => Err(AddressError::Unresolved {
            host: address.host().unwrap_or_default().to_owned(),
            detail: "the resolver failed".to_owned(),
        }),
    }
}

/// The places of threads that ask the resolver. A thread keeps its place until the resolver answers, also if no caller
/// waits for it.
#[derive(Debug)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

static PLACES: Places = Places {
    taken: Mutex::new(0),
    freed: Condvar::new(),
};

/// A place that is taken. Dropping it gives the place back.
#[derive(Debug)]
struct Place;

impl Places {
    /// Waits for a place, for this time at most.
    fn take(&self, timeout: Duration) -> Option<Place> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut usize| *taken >= LOOKUPS_MAX;
        let waited = self.freed.wait_timeout_while(taken, timeout, is_full);
        let (mut taken, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        if outcome.timed_out() {
            return None;
        }
        *taken += 1;
        Some(Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *PLACES.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        PLACES.freed.notify_one();
    }
}

/// Threads of a process that ask the resolver. Lookups that answer take milliseconds, so more threads than this wait
/// for a resolver that does not, and each costs memory.
const LOOKUPS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Held while no name can be resolved.
    static GATE: Mutex<()> = Mutex::new(());
    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

    fn close_gate() -> MutexGuard<'static, ()> {
        GATE.lock().unwrap()
    }

    /// Regression: a resolver that did not answer kept a client for as long as the system's own timeouts take.
    #[test]
    fn a_name_has_a_time_and_few_threads_are_abandoned() {
        let resolver: Resolver = |_| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            drop(close_gate());
            Ok(vec![Endpoint::Udp(([127, 0, 0, 1], 1).into())])
        };
        let address: Address = "udp://server.example:1".parse().unwrap();
        let target = Target::new(address, Some(resolver), Vec::new());
        let found = |timeout| {
            let lookup = target.lookup(timeout, None, None).unwrap();
            lookup.run().endpoints.unwrap()
        };
        let gate = close_gate();
        for _ in 0..LOOKUPS_MAX + 3 {
            let error = found(Duration::from_millis(1)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("server.example"), "{text}");
            assert!(text.contains("/etc/resolv.conf"), "{text}");
        }
        drop(gate);
        let endpoints = found(Duration::from_secs(3_600)).unwrap();
        assert_eq!(endpoints.len(), 1);
        assert!(LOOKUPS.load(Ordering::SeqCst) <= LOOKUPS_MAX + 1);
    }

    #[test]
    fn the_last_good_address_is_tried_first_as_long_as_the_name_has_it() {
        let at = |port: u16| Endpoint::Udp(([127, 0, 0, 1], port).into());
        let address = "udp://server.example:1".parse().unwrap();
        let mut target = Target::new(address, None, vec![at(1), at(2), at(3)]);
        assert_eq!(target.in_order(), [at(1), at(2), at(3)]);
        target.note_good(at(3));
        assert_eq!(target.in_order(), [at(3), at(1), at(2)]);
        target.set_endpoints(vec![at(1), at(4)]);
        assert_eq!(target.in_order(), [at(1), at(4)]);
    }
}
