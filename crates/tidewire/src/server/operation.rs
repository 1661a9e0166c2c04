//! The operation of a server: whether it takes new clients, and where its clients go at its end.
//!
//! The first is answered without the lanes: readiness is a flag beside the marks of lanes that have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewire_io::socket::PassedSocket;

use super::{Server, ServerBuilder, Stopped};
use crate::address::Successor;
use crate::config::ConnectionAge;
use crate::limits::Limits;
use crate::mailbox::Mailbox;
use crate::transport::Proxies;
use tidewire_proto::setting::SettingError;

/// Whether a server takes new clients. Clones are handles to the same state.
#[derive(Clone, Debug)]
pub(super) struct Readiness {
    is_withdrawn: Arc<AtomicBool>,
    lanes: Arc<[Arc<Mailbox>]>,
}

impl Readiness {
    pub(super) fn new(lanes: Vec<Arc<Mailbox>>) -> Self {
        Self {
            is_withdrawn: Arc::default(),
            lanes: lanes.into(),
        }
    }

    pub(super) fn lanes(&self) -> &[Arc<Mailbox>] {
        &self.lanes
    }

    /// Whether every lane runs, and readiness was not withdrawn.
    pub(super) fn is_ready(&self) -> bool {
        !self.is_withdrawn.load(Ordering::Acquire)
            && !self.lanes.iter().any(|lane| lane.is_retired())
    }

    pub(super) fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Release);
    }
}

impl ServerBuilder {
    /// Sets the maximum age of accepted connections, so that clients spread over servers again behind a load balancer.
    /// A connection that is up to a tenth younger gets a go-away with
    /// [`GoAwayCode::Shutdown`](crate::GoAwayCode::Shutdown), and new requests of it are refused as at a shutdown. If
    /// its peer has not ended it after `grace`, the server closes it with
    /// [`CloseReason::ConnectionAge`](crate::CloseReason::ConnectionAge). A client that was built with `reconnect` is
    /// back at once. Default: connections may have any age.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidewire::Server;
    ///
    /// let builder = Server::builder().connection_age_max(Duration::from_secs(3_600), Duration::from_secs(10));
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn connection_age_max(mut self, max: Duration, grace: Duration) -> Self {
        self.age = Some(ConnectionAge::new(max, grace));
        self
    }

    /// Adds addresses of proxies, such as `10.0.0.0/8` or `192.0.2.7`. A TCP connection from there begins with a header
    /// of the PROXY protocol, version 1 or 2, also below `tls://` and `ws://`. The address that it names is the peer's
    /// for limits, logs, authenticators and sessions. A connection without such a header is closed, and
    /// [`proxy_headers_refused`](crate::metrics::Metrics::proxy_headers_refused) counts it. Connections from other
    /// addresses have no header: there it would be input like any other, because anybody could send one.
    ///
    /// ```
    /// use tidewire::Server;
    ///
    /// let builder = Server::builder().proxy_protocol_from("10.0.0.0/8")?;
    /// assert!(Server::builder().proxy_protocol_from("10.0.0.0/99").is_err());
    /// # drop(builder);
    /// # Ok::<(), tidewire::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// [`SettingError`] if the text is no range of addresses.
    pub fn proxy_protocol_from(mut self, network: &str) -> Result<Self, SettingError> {
        self.proxies.push(network.parse()?);
        Ok(self)
    }

    /// Adds addresses of proxies that write the address of their client into requests to `ws://` and `wss://`
    /// addresses, in `X-Forwarded-For` or `Forwarded`. The client is the last address of that header that is not listed
    /// here; it is the peer's for limits, logs, authenticators and sessions. Requests from other addresses are not
    /// believed. Requests with both headers are refused, from other addresses, too. A connection of a listed proxy
    /// counts for no address before its request.
    ///
    /// ```
    /// use tidewire::Server;
    ///
    /// let builder = Server::builder().forwarded_for_from("10.0.0.0/8")?;
    /// # drop(builder);
    /// # Ok::<(), tidewire::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// [`SettingError`] if the text is no range of addresses.
    pub fn forwarded_for_from(mut self, network: &str) -> Result<Self, SettingError> {
        self.forwarders.push(network.parse()?);
        Ok(self)
    }

    /// Adds a socket that another program, such as systemd, has bound and passed to this one. The
    /// [address](Self::listen) at which it is bound takes it instead of binding a socket; so TLS, WebSocket and framing
    /// are chosen as always. A passed socket that no address takes is an error at the start.
    ///
    /// ```
    /// use std::net::TcpListener;
    /// use tidewire::socket::PassedSocket;
    /// use tidewire::{Context, Message, Server};
    ///
    /// let bound = TcpListener::bind("127.0.0.1:0")?;
    /// let server = Server::builder()
    ///     .listen(&format!("tcp://{}", bound.local_addr()?))?
    ///     .passed_socket(PassedSocket::new(bound)?)
    ///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
    /// # drop(server);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn passed_socket(mut self, socket: PassedSocket) -> Self {
        self.passed_sockets.push(socket);
        self
    }

    /// The passed sockets, and the addresses of proxies.
    pub(super) fn intake(&self) -> (Vec<PassedSocket>, Proxies) {
        let proxies = Proxies::new(&self.proxies, &self.forwarders);
        (self.passed_sockets.clone(), proxies)
    }
}

impl Server {
    /// Shuts down as [`Server::shutdown`] does, and sends clients that [follow
    /// moves](crate::ClientBuilder::follow_moves) to the successor.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidewire::{Backoff, Client};
    ///
    /// let start = || {
    ///     tidewire::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload))
    /// };
    /// let (old, new) = (start()?, start()?);
    /// let builder = Client::builder().reconnect(Backoff::default()).follow_moves(true);
    /// let client = builder.connect(&old.to_string()).wait()?;
    /// let _ = old.shutdown_to(&new.to_string().parse()?, Duration::from_secs(5));
    /// assert_eq!(client.request(b"hello").idempotent().wait()?.payload(), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown_to(self, successor: &Successor, deadline: Duration) -> Stopped {
        // A server drains once.
        let _ = self.shared.config.successor.set(successor.to_string());
        self.shutdown(deadline)
    }

    /// Puts the limits of the whole server and of one address into force while it runs: `memory.bytes_max`,
    /// `sessions.max`, `sessions.per_address_max`, `udp.registrations_max`, `udp.registrations_per_address_max`,
    /// `handshakes.per_address_per_second_max` and `handshakes.bytes_per_address_max`. All other limits stay as they
    /// were at the start, because sessions have agreed on them with their peers, and so does the share of UDP addresses
    /// that are not validated. Sessions beyond a new limit stay open; beyond the limit of memory the slowest ones
    /// close, as always.
    ///
    /// # Errors
    /// A limit makes no sense. No limit has changed.
    pub fn change_limits(&self, limits: &Limits) -> Result<(), SettingError> {
        limits.check()?;
        self.shared.limiter.change(limits);
        self.shared.memory.set_bytes_max(limits.memory.bytes_max());
        for lane in &self.lanes {
            lane.waker.wake();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{Client, Context, Message};

    #[test]
    fn a_lane_in_a_handler_that_blocks_is_stuck_and_an_idle_one_is_not() {
        let (entered, is_entered) = mpsc::channel();
        let (leave, may_leave) = mpsc::channel::<()>();
        let mut ends = Some((entered, may_leave));
        let server = Server::builder()
            .listen("tcp://127.0.0.1:0")
            .unwrap()
            .lanes(2)
            .start(|_| {
                let ends = ends.take();
                move |cx: &mut Context<'_>, message: Message<'_>| {
                    if let Some((entered, may_leave)) = &ends {
                        entered.send(()).unwrap();
                        may_leave.recv().unwrap();
                    }
                    cx.reply(message.payload)
                }
            })
            .unwrap();
        let mut inspector = server.inspector();
        assert!(
            inspector.stuck_lanes().is_empty(),
            "the first call only begins the watch"
        );
        let mut is_calm = || loop {
            // A lane needs a moment to wake, so one check may come too early.
            if inspector.stuck_lanes().is_empty() {
                break;
            }
            std::thread::yield_now();
        };
        is_calm();
        is_calm();
        // Connections go to the lanes in turns, and the handler of the first lane blocks.
        let clients: Vec<Client> = (0..2)
            .map(|_| {
                let address = server.to_string();
                Client::connect(&address).wait().unwrap()
            })
            .collect();
        let requests: Vec<_> = clients.iter().map(|it| it.request(b"x").send()).collect();
        is_entered.recv().unwrap();
        let mut stuck = Vec::new();
        for _ in 0..3 {
            // Each call looks at the time since the one before.
            tidewire_testkit::wait_until("only the first lane is stuck", || {
                stuck = inspector.stuck_lanes();
                (stuck == [0]).then_some(())
            });
        }
        leave.send(()).unwrap();
        for request in requests {
            assert_eq!(request.wait().unwrap().payload(), b"x");
        }
        tidewire_testkit::wait_until("it turns again", || {
            inspector.stuck_lanes().is_empty().then_some(())
        });
        drop(clients);
        assert!(inspector.is_ready());
        drop(server);
        assert!(!inspector.is_ready());
    }
}
