//! The lookups before an attempt to connect: of the addresses of a host name, of credentials, and of files of TLS.
//!
//! Each may take seconds, and a lane has deadlines to keep. So they are looked up on a thread of their own.
//!
//! Problem: the resolver of the system may take a minute, and cannot be interrupted. Approach: a name has as long as a handshake. Its
//! resolver runs on one thread more, which is left behind after that time. At most [`LEFT_MAX`] threads are left behind at a time.
//! Credentials and files have no such time: the program provides them, and some ask another server.

use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use std::{io, thread};

use crate::address::{Address, AddressError, Endpoint};
use crate::auth::{Credentials, Token};
use crate::tls::ClientConfigs;

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
}

/// Resolves an address to all endpoints of its host. It may take seconds.
pub(crate) type Resolver = fn(&Address) -> Result<Vec<Endpoint>, AddressError>;

/// The lookups of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    address: Address,
    /// Resolves the host name, if it is asked for, within this time.
    resolver: Option<(Resolver, Duration)>,
    /// Gets the credentials, if they are asked for.
    credentials: Option<Credentials>,
    /// The files of TLS, which are read again if they have changed.
    tls: Option<Arc<ClientConfigs>>,
}

/// The results of a lookup. A field is `None` if the lookup was not asked for it.
#[derive(Debug)]
pub(crate) struct Found {
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
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The lookups that the next attempt needs. `None` if it needs none. A host name has this time.
    pub(crate) fn lookup(
        &self,
        timeout: Duration,
        credentials: Option<Credentials>,
        tls: Option<&Arc<ClientConfigs>>,
    ) -> Option<Lookup> {
        let resolver = self.resolver.filter(|_| self.endpoints.is_empty());
        let lookup = Lookup {
            address: self.address.clone(),
            resolver: resolver.map(|resolver| (resolver, timeout)),
            credentials,
            tls: tls.filter(|tls| tls.has_files()).cloned(),
        };
        let is_needed =
            lookup.resolver.is_some() || lookup.credentials.is_some() || lookup.tls.is_some();
        is_needed.then_some(lookup)
    }

    /// Whether the host name is still to be resolved.
    pub(crate) fn is_unresolved(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Stores the endpoints that a lookup has found.
    pub(crate) fn set_endpoints(&mut self, endpoints: Vec<Endpoint>) {
        self.endpoints = endpoints;
    }

    /// The endpoints in the order in which to try them: the last good one, and then the others as the resolver has them.
    pub(crate) fn in_order(&self) -> Vec<Endpoint> {
        let mut endpoints = self.endpoints.clone();
        if let Some(good) = &self.last_good
            && let Some(index) = endpoints.iter().position(|it| it == good)
        {
            endpoints[..=index].rotate_right(1);
        }
        endpoints
    }

    /// Notes the endpoint of an open connection.
    pub(crate) fn note_good(&mut self, endpoint: Endpoint) {
        self.last_good = Some(endpoint);
    }

    /// Drops the resolved endpoints after an attempt has failed with all of them. The server may have moved, so its name is
    /// looked up again.
    pub(crate) fn forget_addresses(&mut self) {
        if self.resolver.is_some() {
            self.endpoints.clear();
        }
    }
}

impl Lookup {
    /// A lookup of credentials alone.
    pub(crate) fn of_credentials(address: Address, credentials: Credentials) -> Self {
        Self {
            address,
            resolver: None,
            credentials: Some(credentials),
            tls: None,
        }
    }

    /// Looks up on this thread. It may take seconds.
    pub(crate) fn run(&self) -> Found {
        if let Some(tls) = &self.tls {
            tls.refresh();
        }
        Found {
            endpoints: self
                .resolver
                .map(|(resolver, timeout)| resolve_within(resolver, &self.address, timeout)),
            token: self.credentials.as_ref().map(Credentials::get),
        }
    }

    /// Looks up on a new thread, which passes the results to `done`.
    pub(crate) fn start(self, done: impl FnOnce(Found) + Send + 'static) -> io::Result<()> {
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
    if !LEFT_BEHIND.has_room() {
        return Err(late());
    }
    let (sender, receiver) = sync_channel(1);
    let running = Arc::new(());
    let seen = Arc::downgrade(&running);
    let asked = address.clone();
    let thread = thread::Builder::new().name("tidewire-resolve".to_owned());
    let spawned = thread.spawn(move || {
        // After the time the receiver is gone.
        let _ = sender.send(resolver(&asked));
        drop(running);
    });
    if let Err(error) = spawned {
        tracing::debug!(%error, "cannot start a thread for a lookup; its time is not bounded");
        return resolver(address);
    }
    match receiver.recv_timeout(timeout) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => {
            LEFT_BEHIND.add(seen);
            Err(late())
        }
        // The resolver panicked.
        Err(RecvTimeoutError::Disconnected) => Err(AddressError::Unresolved {
            host: address.host().unwrap_or_default().to_owned(),
            detail: "the resolver failed".to_owned(),
        }),
    }
}

/// The threads of this process whose lookups took too long.
#[derive(Debug)]
struct LeftBehind(Mutex<Vec<Weak<()>>>);

static LEFT_BEHIND: LeftBehind = LeftBehind(Mutex::new(Vec::new()));

impl LeftBehind {
    /// Whether another thread may be left behind. Those that have ended are forgotten.
    fn has_room(&self) -> bool {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|thread| thread.strong_count() > 0);
        left.len() < LEFT_MAX
    }

    fn add(&self, thread: Weak<()>) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(thread);
    }
}

/// Threads of lookups that took too long. More of them than that show that no name can be resolved now, and each costs memory.
const LEFT_MAX: usize = 16;

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
    fn a_name_has_a_time_and_few_threads_are_left_behind() {
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
        for _ in 0..LEFT_MAX + 3 {
            let error = found(Duration::from_millis(1)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("server.example"), "{text}");
            assert!(text.contains("/etc/resolv.conf"), "{text}");
        }
        drop(gate);
        while !LEFT_BEHIND.has_room() {
            thread::yield_now();
        }
        let endpoints = found(Duration::from_secs(3_600)).unwrap();
        assert_eq!(endpoints.len(), 1);
        assert!(LOOKUPS.load(Ordering::SeqCst) <= LEFT_MAX + 1);
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
