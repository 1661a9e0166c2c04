//! The settings of a backplane on NATS, and how it connects.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tidewire::backplane::{Backplane, BackplaneError, Carrier};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::carrier::{NatsCarrier, pass_on};
use crate::error::NatsError;
use crate::kept::SUBSCRIPTION_PACKETS_MAX;
use crate::subject::Prefix;
use crate::tls;

/// A backplane on NATS. The crate's [first page](crate) has an example.
#[derive(Clone, Debug)]
pub struct Nats {
    address: ServerAddr,
    prefix: Prefix,
    credentials: Option<PathBuf>,
    authority: Option<PathBuf>,
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

    /// Sets the file with the credentials of a user, as `nsc` writes it.
    #[must_use]
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials = Some(path.into());
        self
    }

    /// Sets the file with the certificates of the authorities that NATS is trusted by, in place of those of the system.
    #[must_use]
    pub fn authority_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.authority = Some(path.into());
        self
    }

    /// Sets whether the server waits at its start until NATS can be reached, instead of failing. Default: it fails.
    #[must_use]
    pub fn wait_at_start(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// The address without credentials.
    fn shown(&self) -> String {
        format!("{}:{}", self.address.host(), self.address.port())
    }

    async fn options(&self, events: mpsc::Sender<Event>) -> Result<ConnectOptions, NatsError> {
        let mut options = ConnectOptions::new()
            .name("tidewire")
            // A node has its own messages already.
            .no_echo()
            .subscription_capacity(SUBSCRIPTION_PACKETS_MAX)
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(|attempt| {
                RECONNECT_STEP
                    .saturating_mul(u32::try_from(attempt).unwrap_or(u32::MAX))
                    .min(RECONNECT_MAX)
            })
            .event_callback(move |event| {
                pass_on(&events, event);
                std::future::ready(())
            });
        // The client leaves out what the address says of the user.
        options = match (self.address.username(), self.address.password()) {
            (Some(user), Some(password)) => {
                options.user_and_password(user.to_owned(), password.to_owned())
            }
            (Some(token), None) => options.token(token.to_owned()),
            (None, _) => options,
        };
        if let Some(path) = &self.credentials {
            let read = options.credentials_file(path).await;
            options = read.map_err(|source| NatsError::Credentials {
                path: path.clone(),
                source,
            })?;
        }
        options = options.tls_client_config(tls::config(self.authority.as_deref())?);
        if self.address.tls_required() {
            options = options.require_tls(true);
        }
        Ok(options)
    }

    /// Connects, again and again if it shall wait.
    async fn open(&self, events: &mpsc::Sender<Event>) -> Result<Client, NatsError> {
        let mut delay = RECONNECT_STEP;
        loop {
            let options = self.options(events.clone()).await?;
            let error = match options.connect(self.address.clone()).await {
                Ok(client) => return Ok(client),
                Err(error) => self.judge(error),
            };
            if !self.waits || !matches!(error, NatsError::Unreachable { .. }) {
                return Err(error);
            }
            tracing::warn!(%error, "waiting for NATS");
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(WAIT_MAX);
        }
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
            address: self.shown(),
        })
    }
}

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

/// The delay before the first attempt to connect again. It grows by this much with each attempt.
const RECONNECT_STEP: Duration = Duration::from_millis(50);

/// The longest delay between two attempts.
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// The longest delay between two attempts at the start.
const WAIT_MAX: Duration = Duration::from_secs(5);
