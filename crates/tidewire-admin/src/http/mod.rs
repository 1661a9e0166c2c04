//! HTTP on a separate thread: connections, their limits, and answers.
//!
//! `hyper` parses and frames. This module bounds it: the number of connections, the time and size of a request's head,
//! the size of its body, and the time for a peer to take an answer. See `docs/decisions/0065-admin-server.md` and
//! `docs/decisions/0099-places-and-encryption-of-the-admin-server.md`.

mod answer;
mod connection;
mod places;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioTimer;
use tidewire::auth::Network;
use tidewire::tls::TlsAcceptor;
use tidewire::websocket::WebSocketFault;
use tidewire_proto::layer::{Forwarded, Stack};
use tokio::runtime::{self, Runtime};
use tokio::sync::Notify;

use crate::settings::STALL_MAX;
pub(crate) use answer::{Answer, Body, EventFrames, answer, bytes, failure, json, text};
use connection::Connection;
use places::Places;
pub(crate) use places::network;

pub(crate) type Request = hyper::Request<Incoming>;

/// The address that a request came from, in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

pub(crate) trait Site: Send + Sync + 'static {
    /// Runs on the server's thread when it begins.
    fn begin(self: &Arc<Self>) {}

    fn answer(self: Arc<Self>, request: Request) -> impl Future<Output = Answer> + Send;

    /// Notes how a request ended.
    fn count(&self, _end: RequestEnd) {}
}

/// The ends of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestEnd {
    /// The request was answered, perhaps by the server's failure.
    Answered,
    /// The request was refused, or its path does not exist.
    Refused,
    /// The request was no HTTP, too large, too slow, or its connection was cut.
    Broken,
}

/// The numbers of requests, by their ends.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts([AtomicU64; 3]);

impl RequestCounts {
    pub(crate) fn count(&self, end: RequestEnd) {
        self.0[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> [(&'static str, u64); 3] {
        let [answered, refused, broken] = &self.0;
        [
            ("answered", answered),
            ("refused", refused),
            ("broken", broken),
        ]
        .map(|(end, count)| (end, count.load(Ordering::Relaxed)))
    }
}

/// A running HTTP server. Dropping it ends its thread and cuts its connections.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    pub(crate) fn start<S: Site>(
        listener: TcpListener,
        site: Arc<S>,
        intake: Intake,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("tidewire-ask")
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("tidewire-admin".to_owned())
            .spawn(move || {
                let acceptor = Acceptor {
                    listener,
                    intake,
                    places: Places::new(CONNECTIONS_MAX),
                };
                run(runtime, acceptor, site, &stopped);
            })?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// The address, with the real port in place of port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has reached the log.
            let _ = thread.join();
        }
    }
}

/// Serves one text at `/metrics` and `/`, without access control: for programs with their own metrics.
///
/// ```
/// use std::net::TcpListener;
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let server = tidewire_admin::serve_text(listener, tidewire_admin::CONTENT_TYPE, || "# EOF\n".to_owned())?;
/// println!("http://{}/metrics", server.address());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The system refused the thread, or a descriptor.
pub fn serve_text(
    listener: TcpListener,
    content_type: &'static str,
    make: impl Fn() -> String + Send + Sync + 'static,
) -> io::Result<HttpServer> {
    let site = TextSite { content_type, make };
    let intake = Intake {
        stall_max: STALL_MAX,
        tls: None,
        forwarders: Arc::default(),
    };
    HttpServer::start(listener, Arc::new(site), intake)
}

struct TextSite<F> {
    content_type: &'static str,
    make: F,
}

impl<F: Fn() -> String + Send + Sync + 'static> Site for TextSite<F> {
    async fn answer(self: Arc<Self>, request: Request) -> Answer {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            _ if !is_read => failure(StatusCode::METHOD_NOT_ALLOWED, "only GET"),
            "/metrics" | "/" => text(StatusCode::OK, self.content_type, (self.make)()),
            _ => failure(StatusCode::NOT_FOUND, "see /metrics"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Intake {
    /// The longest time that a peer may leave an answer unread.
    pub(crate) stall_max: Duration,
    pub(crate) tls: Option<TlsAcceptor>,
    /// Proxies that name their clients in requests.
    pub(crate) forwarders: Arc<[Network]>,
}

struct Acceptor {
    listener: tokio::net::TcpListener,
    intake: Intake,
    places: Arc<Places>,
}

fn run<S: Site>(runtime: Runtime, acceptor: Acceptor, site: Arc<S>, stop: &Notify) {
    runtime.block_on(async {
        site.begin();
        tokio::spawn(acceptor.accept(site));
        stop.notified().await;
    });
    // A question to a lane that hangs may still wait. Its thread ends by itself.
    runtime.shutdown_background();
}

impl Acceptor {
    async fn accept<S: Site>(self, site: Arc<S>) {
        let mut logged: Option<tokio::time::Instant> = None;
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => self.take(stream, peer.ip().to_canonical(), &site),
                Err(error) => {
                    if logged.is_none_or(|at| at.elapsed() >= LOG_PAUSE) {
                        logged = Some(tokio::time::Instant::now());
                        tracing::warn!(%error, "the admin server cannot accept connections; this line comes once in 10 \
                            s");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn take<S: Site>(&self, stream: tokio::net::TcpStream, peer: IpAddr, site: &Arc<S>) {
        let (place, displaced) = self.places.take(peer);
        if displaced {
            site.count(RequestEnd::Broken);
        }
        let id = place.id();
        let connection = Connection::new(stream, self.stack(), self.intake.stall_max, place);
        let source = Source {
            peer,
            forwarders: Arc::clone(&self.intake.forwarders),
        };
        let task = tokio::spawn(serve(connection, source, Arc::clone(site)));
        self.places.set_task(id, task.abort_handle());
    }

    /// The layers of a new connection. The certificate is read again if it has changed.
    fn stack(&self) -> Option<Stack> {
        let tls = self.intake.tls.as_ref()?;
        // The reload logs its result. If the new certificate cannot be used, the old certificate stays.
        let _ = tls.reload_if_changed();
        Some(Stack::from(tls.layer()))
    }
}

/// The source of a connection's requests.
struct Source {
    peer: IpAddr,
    forwarders: Arc<[Network]>,
}

impl Source {
    /// The address that a request comes from: the client's if the peer is a listed proxy.
    ///
    /// # Errors
    /// The request has two headers that name the client.
    fn of(&self, request: &Request) -> Result<PeerAddress, WebSocketFault> {
        let is_listed = |ip| self.forwarders.iter().any(|it| it.contains(ip));
        if !is_listed(self.peer) {
            return Ok(PeerAddress(self.peer));
        }
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
        let client = Forwarded::read(headers)?.client(is_listed);
        Ok(PeerAddress(client.unwrap_or(self.peer)))
    }
}

async fn serve<S: Site>(connection: Connection, source: Source, site: Arc<S>) {
    let requested = Arc::clone(&site);
    let service = service_fn(move |mut request: Request| {
        let peer = source.of(&request);
        let site = Arc::clone(&requested);
        async move {
            let answer = match peer {
                Ok(peer) => {
                    request.extensions_mut().insert(peer);
                    Arc::clone(&site).answer(request).await
                }
                Err(fault) => failure(StatusCode::BAD_REQUEST, &fault.to_string()),
            };
            site.count(match answer.status().is_client_error() {
                true => RequestEnd::Refused,
                false => RequestEnd::Answered,
            });
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(connection, service)
        .await;
    if let Err(error) = served {
        site.count(RequestEnd::Broken);
        tracing::debug!(%error, "a connection of the admin server ended with an error");
    }
}

/// The time between two lines about connections that cannot be accepted.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Connections at a time. Browsers keep up to six. A further connection replaces another: see [`places`].
const CONNECTIONS_MAX: usize = 128;

/// Threads that wait for lanes. One question runs at a time, and a second thread serves health.
const BLOCKING_THREADS: usize = 4;

/// The longest time for the head of a request, and between two requests of a connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

const HEAD_BYTES_MAX: usize = 16 << 10;

/// As many as a handshake of WebSocket: proxies add some.
const HEADERS_MAX: usize = 128;

/// A pause after a failure to accept, such as no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
