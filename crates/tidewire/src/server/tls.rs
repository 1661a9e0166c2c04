//! The certificate of a server: its setting, and reading it again while the server runs.

use std::sync::Arc;

use tidewire_proto::codec::Codec;

use super::{ServeError, Server, ServerBuilder};
use crate::tls::{Acceptor, ServerTls, TlsReloader};
use crate::transport::LayerFactory;

impl Server {
    /// Returns a handle that reads the server's certificate again, if it has one.
    #[must_use]
    pub fn tls_reloader(&self) -> Option<TlsReloader> {
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

    /// Reads the certificate, and puts TLS beneath the layers of `tls://` addresses.
    pub(super) fn secure(&mut self) -> Result<Option<Arc<Acceptor>>, ServeError> {
        let Some(settings) = self.tls.take() else {
            return match self.addresses.iter().find(|address| address.is_tls()) {
                Some(address) => Err(ServeError::NoCertificate {
                    address: address.clone(),
                }),
                None => Ok(None),
            };
        };
        let acceptor = Arc::new(Acceptor::load(settings, self.codec.name())?);
        let layers = Arc::clone(&acceptor);
        let upper = self.layers.take();
        self.layers = Some(LayerFactory::with_tls(move || layers.layer(), upper));
        Ok(Some(acceptor))
    }
}
