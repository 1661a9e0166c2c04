//! The certificate of a server: its setting, and reading it again while the server runs.

use std::sync::Arc;

use tidewire_proto::codec::AnyCodec;

use super::codecs::AddressCodecs;
use super::{ServeError, Server, ServerBuilder};
use crate::address::Address;
use crate::engine::Outgoing;
use crate::lane::Tasks;
use crate::tls::{Acceptor, ClientTls, OutgoingTls, ServerTls, TlsAcceptor, protocol};
use crate::transport::{LayerFactory, Layers};

impl Server {
    /// Returns the server's certificate, if it has one, to read it again.
    #[must_use]
    pub fn tls_acceptor(&self) -> Option<TlsAcceptor> {
        self.tls.clone()
    }
}

impl ServerBuilder {
    /// Sets the certificate of the server's `tls://` addresses, and whether clients need one.
    #[must_use]
    pub fn tls(mut self, settings: ServerTls) -> Self {
        self.tls = Some(settings);
        self
    }

    /// Sets whom handlers trust when they [connect](crate::ConnectionActions::connect) to `tls://` addresses, and which
    /// certificate they show. A server's certificate must have the IP address of the connection, unless the settings
    /// have a [name](ClientTls::server_name). Without this, such connections fail.
    #[must_use]
    pub fn outgoing_tls(mut self, settings: ClientTls) -> Self {
        self.outgoing_tls = Some(settings);
        self
    }

    /// Lets handlers send [credentials](crate::ConnectionActions::set_credentials) also to another machine without
    /// `tls://`, where others may read and use them. For a closed network.
    #[must_use]
    pub fn allow_plaintext_credentials(mut self) -> Self {
        self.allow_plaintext_credentials = true;
        self
    }

    /// Sets up the one connection that the lane of a client makes.
    pub(crate) fn for_client(
        mut self,
        tasks: Arc<Tasks>,
        layers: Option<Layers>,
        spin_us: Option<u32>,
        allow_plaintext_credentials: bool,
        follows_moves: bool,
    ) -> Self {
        self.tasks = Some(tasks);
        self.outgoing_layers = layers;
        self.spin_us = spin_us;
        self.allow_plaintext_credentials = allow_plaintext_credentials;
        self.follows_moves = follows_moves;
        self
    }

    /// Reads what the settings of connections that the lanes make name.
    pub(super) fn outgoing(&self) -> Result<Outgoing, ServeError> {
        let settings = self.outgoing_tls.as_ref();
        let tls = settings.map(|it| OutgoingTls::load(it, self.codec.name()));
        Ok(Outgoing::new(
            self.outgoing_layers.clone(),
            tls.transpose()?,
            self.allow_plaintext_credentials,
        ))
    }

    /// Reads the certificate, and puts TLS beneath the layers of `tls://` addresses.
    pub(super) fn secure(
        &mut self,
        codecs: &AddressCodecs,
    ) -> Result<Option<Arc<Acceptor>>, ServeError> {
        let Some(settings) = self.tls.take() else {
            return match self.addresses.iter().find(|address| address.is_tls()) {
                Some(address) => Err(ServeError::NoCertificate {
                    address: address.clone(),
                }),
                None => Ok(None),
            };
        };
        let acceptor = Arc::new(Acceptor::load(
            settings,
            codecs.all().iter().map(AnyCodec::name),
        )?);
        let layers = Arc::clone(&acceptor);
        let upper = self.layers.take();
        let secured = self.addresses.iter().filter(|address| address.is_tls());
        let protocol_of = |address: &Address| {
            let is_web = address.websocket_path().is_some();
            (address.clone(), protocol(is_web, codecs.codec(address)))
        };
        let protocols: Vec<_> = secured.map(protocol_of).collect();
        let make = move |address: &Address| {
            let (_, protocol) = protocols.iter().find(|(known, _)| known == address)?;
            Some(layers.layer(protocol))
        };
        self.layers = Some(LayerFactory::beneath(upper, make));
        Ok(Some(acceptor))
    }
}
