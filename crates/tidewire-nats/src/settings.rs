//! The settings of a backplane on NATS, and how it connects.

use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Auth, Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tidewire::backplane::{Backplane, BackplaneError, Carrier};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::carrier::{NatsCarrier, pass_on};
use crate::credentials::CredentialsFile;
use crate::error::NatsError;
use crate::retry::{AT_START, Pauses, QuietLog};
use crate::streams::SUBSCRIPTION_PACKETS_MAX;
use crate::subject::Prefix;
use crate::tls;

/// A backplane on NATS. The crate's [first page](crate) has an example.
#[derive(Clone, Debug)]
pub struct Nats {
    address: ServerAddr,
    prefix: Prefix,
    credentials: Option<PathBuf>,
    authority: Option<PathBuf>,
    replicas: usize,
    waits: bool,
}

impl Nats {
    /// A backplane on the NATS at an address such as `nats://127.0.0.1:4222`, `nats://USER:PASSWORD@HOST`,
    /// `nats://TOKEN@HOST` or `tls://HOST`.
    ///
    /// # Errors
    /// [`NatsError::Address`] if the text is no address of NATS.
    pub fn new(address: &str) -> Result<Self, NatsError> {
        Ok(Self {
            address: address.parse().map_err(NatsError::Address)?,
            prefix: Prefix::default(),
            credentials: None,
            authority: None,
            replicas: 1,
            waits: false,
        })
    }

    /// Sets the prefix of all subjects. Servers with another prefix are another cluster. Default: `tidewire`.
    ///
    /// # Errors
    /// [`NatsError::Prefix`] if it cannot begin a subject.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, NatsError> {
        self.prefix = Prefix::new(prefix)?;
        Ok(self)
    }

    /// Sets the file with the credentials of a user, as `nsc` writes it. It is read again for a connection if it has
    /// changed. If the file cannot be read, the earlier credentials stay in use, with a warning in the log.
    #[must_use]
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials = Some(path.into());
        self
    }

    /// Sets the file with the certificates of trusted authorities for NATS, in place of the system's. It is read again
    /// as [credentials](Self::credentials_file) are.
    #[must_use]
    pub fn authority_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authority = Some(path.into());
        self
    }

    /// Sets the number of NATS servers that keep each history of this node, from 1 to 5. With 3, histories continue
    /// while one of three servers is down. Default: 1. Existing streams keep their number; an operator of NATS changes
    /// it.
    #[must_use]
    pub fn stream_replicas(mut self, count: usize) -> Self {
        self.replicas = count.clamp(1, REPLICAS_MAX);
        self
    }

    /// Sets whether the server waits at its start until NATS can be reached, instead of failing. Default: it fails.
    #[must_use]
    pub fn wait_at_start(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// The files that a refusal of NATS may be about, for the log.
    fn files(&self) -> String {
        let paths = self.credentials.iter().chain(&self.authority);
        let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
        paths.join(" ")
    }

    fn shown(&self) -> String {
        format!("{}:{}", self.address.host(), self.address.port())
    }

    fn options(&self, events: mpsc::Sender<Event>) -> Result<ConnectOptions, NatsError> {
        let pauses = Pauses::new();
        let mut options = self
            .authentication()?
            .name("tidewire")
            // A node has its own messages already.
            .no_echo()
            .subscription_capacity(SUBSCRIPTION_PACKETS_MAX)
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(move |attempt| pauses.next(attempt, Instant::now()))
            .event_callback(move |event| {
                pass_on(&events, event);
                ready(())
            });
        options = options.tls_client_config(tls::config(self.authority.as_deref())?);
        if self.address.tls_required() {
            options = options.require_tls(true);
        }
        Ok(options)
    }

    /// Options that show NATS the user of the address and of the file of credentials, at each connection.
    fn authentication(&self) -> Result<ConnectOptions, NatsError> {
        let mut auth = Auth::new();
        // The client of NATS ignores the user of the address.
        match (self.address.username(), self.address.password()) {
            (Some(user), Some(password)) => {
                (auth.username, auth.password) = (Some(user.to_owned()), Some(password.to_owned()));
            }
            (Some(token), None) => auth.token = Some(token.to_owned()),
            (None, _) => {}
        }
        let file = self.credentials.as_deref().map(CredentialsFile::load);
        let file = file.transpose()?.map(Arc::new);
        Ok(ConnectOptions::with_auth_callback(move |nonce| {
            let signed = match &file {
                Some(file) => file.sign(auth.clone(), &nonce),
                None => Ok(auth.clone()),
            };
            ready(signed)
        }))
    }

    /// Connects, and repeats attempts if the settings say to wait.
    async fn open(&self, events: &mpsc::Sender<Event>) -> Result<Client, NatsError> {
        let mut log = QuietLog::default();
        for attempt in 0_u32.. {
            let options = self.options(events.clone())?;
            let error = match options.connect(self.address.clone()).await {
                Ok(client) => return Ok(client),
                Err(error) => self.judge(error),
            };
            let cause = match &error {
                NatsError::Unreachable { source, .. } if self.waits => source,
                _ => return Err(error),
            };
            if let Some(unlogged) = log.may_log(Instant::now()) {
                let address = self.shown();
                tracing::warn!(address, %cause, unlogged, "NATS cannot be reached; waiting for it");
            }
            tokio::time::sleep(AT_START.delay(attempt, fastrand::f64())).await;
        }
        unreachable!("attempts are not counted to an end")
    }

    fn judge(&self, source: ConnectError) -> NatsError {
        let address = self.shown();
        match source.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                NatsError::Denied { address, source }
            }
            ConnectErrorKind::Tls => NatsError::Tls { address, source },
            _ if tls::is_cause(&source) => NatsError::Tls { address, source },
            _ => NatsError::Unreachable { address, source },
        }
    }

    fn start(&self) -> Result<NatsCarrier, NatsError> {
        let runtime: Runtime = Builder::new_current_thread().enable_all().build()?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let client = runtime.block_on(self.open(&sender))?;
        let packet_bytes_max = client.server_info().max_payload;
        tracing::info!(
            address = self.shown(),
            packet_bytes_max,
            "connected to NATS"
        );
        Ok(NatsCarrier {
            runtime,
            client,
            events,
            prefix: self.prefix.clone(),
            packet_bytes_max,
            keeps_histories: false,
            replicas: self.replicas,
            address: self.shown(),
            files: self.files(),
        })
    }
}

/// The most servers of NATS that keep a stream.
const REPLICAS_MAX: usize = 5;

impl Backplane for Nats {
    fn connect(&self) -> Result<Box<dyn Carrier>, BackplaneError> {
        match self.start() {
            Ok(carrier) => Ok(Box::new(carrier)),
            Err(error) => Err(BackplaneError::Engine(error.into())),
        }
    }
}

/// Events of the client that wait. They are rare.
const EVENTS_MAX: usize = 256;

/// After two of these without an answer the connection counts as lost.
const PING_INTERVAL: Duration = Duration::from_secs(2);
