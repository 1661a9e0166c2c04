//! The settings of an admin server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidewire::auth::Token;

/// The settings of an admin server. The [crate] has an example.
#[derive(Clone, Default)]
pub struct Settings {
    pub(crate) token: Option<Token>,
    pub(crate) hosts: Vec<String>,
    pub(crate) is_plaintext_allowed: bool,
    pub(crate) actions: Actions,
    pub(crate) pace: Pace,
}

/// The reactions of a program to requests that the library cannot serve alone.
#[derive(Clone, Default)]
pub(crate) struct Actions {
    pub(crate) drain: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) reload: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Times that tests shorten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) every: Duration,
    pub(crate) stall_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            every: EVERY,
            stall_max: STALL_MAX,
        }
    }
}

impl Settings {
    /// Requires this token for everything but health and the empty dashboard. Programs send it as `Authorization: Bearer`, and people
    /// type it into the dashboard once.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Answers requests for this name, too, such as that of a proxy. Without it only IP addresses and `localhost` are
    /// answered, so that no page of the web can reach the server under a name of its own.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// Allows an address that other machines reach, although the server has no encryption and the token can be read on the way. A token
    /// is still needed.
    #[must_use]
    pub fn allow_plaintext(mut self, allow: bool) -> Self {
        self.is_plaintext_allowed = allow;
        self
    }

    /// Sets what a request to drain does. It is called on the admin server's thread and must not block. Default: the request is refused.
    #[must_use]
    pub fn on_drain(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.actions.drain = Some(Arc::new(act));
        self
    }

    /// Sets what a request to read users and certificates again does, as [`Self::on_drain`].
    #[must_use]
    pub fn on_reload(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.actions.reload = Some(Arc::new(act));
        self
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("token", &self.token)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// The time between two snapshots.
const EVERY: Duration = Duration::from_secs(1);

/// The longest time that a peer may leave an answer unread.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(10);
