//! Follows a draining server to the address that its go-away has.
//!
//! The address comes from a peer, so it passes the same checks as an operator's address. Its transport must be that of
//! the program's address: encryption stays. TLS checks the certificate of the new host by its own name. Credentials go
//! only where they would go from the program's own address; see
//! [`ClientBuilder::credentials`](crate::ClientBuilder::credentials).
//!
//! The client stays with the new server until an attempt to connect there fails, and then returns to the program's
//! address. So a wrong address costs one attempt, and a vanished server is not tried for ever.

use std::sync::Arc;

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::text::escaped;

use super::dialing::Dialing;
use crate::address::{Address, Successor};
use crate::dial::Target;
use crate::tls::{ClientConfigs, Connector};
use crate::transport::Layers;

/// The settings of a client that follows moves.
#[derive(Clone, Debug)]
pub(super) struct Mover {
    /// The configuration of TLS, if the address that the program gave asks for TLS.
    pub(super) tls: Option<Arc<ClientConfigs>>,
    pub(super) codec: AnyCodec,
}

impl Mover {
    fn follow(&self, home: &Address, to: &str) -> Result<Target, String> {
        let successor: Successor = to.parse().map_err(|error| format!("{error}"))?;
        if !successor.is_like(home) {
            return Err(format!("its transport is not that of {home}"));
        }
        let address = successor.address().clone();
        let tls = Connector::to(&address, self.tls.as_ref());
        let tls = tls.map_err(|error| error.to_string())?;
        let layers = Layers::to(&address, tls.as_ref(), &self.codec, None);
        let target = Target::of(address).map_err(|error| error.to_string())?;
        Ok(target.with_layers(layers))
    }
}

impl Dialing {
    /// Lets the next connection be to this address, if the client follows moves and the address is allowed.
    pub(super) fn follow(&mut self, to: &str) {
        let Some(mover) = &self.mover else {
            return;
        };
        match mover.follow(self.dialer.home(), to) {
            Ok(target) => {
                tracing::debug!(to, "the server sends this client to another one");
                self.dialer.move_to(target);
            }
            Err(why) => {
                // Both texts may contain text of the peer.
                let (to, why) = (escaped(to.as_bytes()), escaped(why.as_bytes()));
                tracing::warn!(%to, %why, "the server sends this client to an address that it does not follow");
            }
        }
    }
}
