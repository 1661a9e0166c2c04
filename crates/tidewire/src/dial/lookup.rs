//! The lookups before an attempt to connect: of the addresses of a host name, of credentials, and of files of TLS.
//!
//! Each may take seconds, and a lane has deadlines to keep. So they are looked up on a thread of their own.

use std::net::IpAddr;
use std::sync::Arc;
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
    /// Resolves the host name, if it is asked for.
    resolver: Option<Resolver>,
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

    /// The lookups that the next attempt needs. `None` if it needs none.
    pub(crate) fn lookup(
        &self,
        credentials: Option<Credentials>,
        tls: Option<&Arc<ClientConfigs>>,
    ) -> Option<Lookup> {
        let lookup = Lookup {
            address: self.address.clone(),
            resolver: self.resolver.filter(|_| self.endpoints.is_empty()),
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
            endpoints: self.resolver.map(|resolver| resolver(&self.address)),
            token: self.credentials.as_ref().map(Credentials::get),
        }
    }

    /// Looks up on a new thread, which passes the results to `done`.
    pub(crate) fn start(self, done: impl FnOnce(Found) + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name("tidewire-resolve".to_owned());
        thread.spawn(move || done(self.run())).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
