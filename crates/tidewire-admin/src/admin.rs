//! Starting the admin server.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use thiserror::Error;
use tidewire::Server;
use tidewire::socket::SocketOptions;
use tidewire::system::{SocketError, listen_tcp};
use tidewire::tls::{TlsAcceptor, TlsError};

use crate::access::Access;
use crate::events::Events;
use crate::http::{HttpServer, Intake};
use crate::openmetrics::Exporter;
use crate::routes::Routes;
use crate::sampler::Sampler;
use crate::settings::{Scope, Settings};

/// The admin server cannot start. [`Admin::bind`] has an example.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Any client that reaches the address could close sessions.
    #[error(
        "the admin server at {0} is reached by other machines and has no token; give it one, or use 127.0.0.1"
    )]
    NoToken(SocketAddr),
    /// The token could be read on the way.
    #[error(
        "the admin server at {0} is reached by other machines without encryption; give it a certificate, use \
         127.0.0.1, or allow plain text in a closed network"
    )]
    Plaintext(SocketAddr),
    /// The certificate cannot be used.
    #[error("the admin server cannot use its certificate: {0}")]
    Tls(#[from] TlsError),
    /// The address cannot be bound.
    #[error("the admin server {0}")]
    Bind(#[from] SocketError),
    /// The system refused the thread, or a descriptor.
    #[error("the admin server cannot start: {0}; look at the limits of threads and descriptors")]
    Start(#[source] io::Error),
}

/// An admin server that listens and does not answer yet. [`Admin::bind`] makes it, and has an example.
#[derive(Debug)]
pub struct BoundAdmin {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    settings: Settings,
}

/// A running admin server. Dropping it ends it. The [crate] has an example.
#[derive(Debug)]
pub struct Admin {
    http: HttpServer,
    url: String,
}

impl Admin {
    /// Binds the address. Connections wait until [`BoundAdmin::serve`].
    ///
    /// ```
    /// use tidewire_admin::{Admin, AdminError, Settings};
    ///
    /// let open = Admin::bind("0.0.0.0:0".parse()?, Settings::default());
    /// assert!(matches!(open, Err(AdminError::NoToken(_))));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn bind(address: SocketAddr, settings: Settings) -> Result<BoundAdmin, AdminError> {
        let is_open = matches!(settings.scope, Scope::Health { .. });
        if !is_open && !address.ip().to_canonical().is_loopback() {
            if settings.token.is_none() {
                return Err(AdminError::NoToken(address));
            }
            if settings.tls.is_none() && !settings.is_plaintext_allowed {
                return Err(AdminError::Plaintext(address));
            }
        }
        let tls = settings.tls.as_ref().map(|it| it.acceptor("http/1.1"));
        let tls = tls.transpose()?;
        let options = SocketOptions {
            ipv6_only: settings.is_ipv6_only,
            ..SocketOptions::default()
        };
        Ok(BoundAdmin {
            listener: listen_tcp(address, &options)?,
            tls,
            settings,
        })
    }

    /// The address, with the real port in place of port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }

    /// The address as a browser takes it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl BoundAdmin {
    /// Begins to answer, about this server.
    ///
    /// # Errors
    /// [`AdminError::Start`].
    pub fn serve(self, server: &Server) -> Result<Admin, AdminError> {
        let Self {
            listener,
            tls,
            settings,
        } = self;
        let sampler = Arc::new(Sampler::new(server));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let routes = Routes {
            access: Access::new(settings.token.as_ref(), &settings.hosts, tls.is_some()),
            scope: settings.scope,
            needs_backplane: settings.needs_backplane,
            exporter: Arc::new(Exporter::new(Arc::clone(&sampler))),
            sampler,
            events: Arc::new(Events::new()),
            actions: settings.actions,
            every: settings.pace.every,
        };
        let intake = Intake {
            stall_max: settings.pace.stall_max,
            tls,
            forwarders: settings.forwarders.into(),
        };
        let http = HttpServer::start(listener, Arc::new(routes), intake);
        let http = http.map_err(AdminError::Start)?;
        let url = format!("{scheme}://{}/", http.address());
        match settings.scope {
            Scope::All => tracing::info!("the dashboard is at {url}"),
            Scope::Health { .. } => tracing::info!("health is told at {url}readyz"),
        }
        Ok(Admin { http, url })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use tidewire::PubSub;
    use tidewire_testkit::wait_until;

    use super::*;
    use crate::settings::Pace;

    /// Asks for the events. Returns the connection and whether there was a place.
    fn listen(admin: &Admin) -> (TcpStream, bool) {
        let mut stream = TcpStream::connect(admin.address()).unwrap();
        let request = "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, &status == b"HTTP/1.1 200")
    }

    /// A browser with a sleeping tab takes nothing, and would hold its place for ever.
    #[test]
    fn a_listener_that_does_not_read_is_cut_and_makes_room() {
        let server = Server::builder().start_one(PubSub::new()).unwrap();
        let settings = Settings {
            pace: Pace {
                every: Duration::from_millis(1),
                stall_max: Duration::from_millis(100),
            },
            ..Settings::default()
        };
        let admin = Admin::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap();
        let admin = admin.serve(&server).unwrap();
        let mut asleep = Vec::new();
        loop {
            let (stream, has_room) = listen(&admin);
            if !has_room {
                break;
            }
            asleep.push(stream);
        }
        let newest = wait_until("one of them is cut", || {
            let (stream, has_room) = listen(&admin);
            has_room.then_some(stream)
        });
        let broken = || {
            let mut stream = TcpStream::connect(admin.address()).unwrap();
            let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let answer = io::read_to_string(stream).unwrap();
            let series = "tidewire_admin_requests_total{end=\"broken\"} ";
            let count = answer.lines().find_map(|line| line.strip_prefix(series));
            let is_counted = count.unwrap().parse::<f64>().unwrap() >= 1.0;
            is_counted.then_some(())
        };
        wait_until("it is counted", broken);
        drop((asleep, newest));
    }
}
