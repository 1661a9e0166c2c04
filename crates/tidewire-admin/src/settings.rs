//! The settings of an admin server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tidewire::SettingError;
use tidewire::auth::{Network, Token};
use tidewire::tls::ServerTls;

/// The settings of an admin server. The [crate] has an example.
#[derive(Clone, Default)]
pub struct Settings {
    pub(crate) token: Option<Token>,
    pub(crate) hosts: Vec<String>,
    pub(crate) is_plaintext_allowed: bool,
    pub(crate) is_ipv6_only: bool,
    pub(crate) tls: Option<ServerTls>,
    pub(crate) scope: Scope,
    /// Proxies that name their clients in requests.
    pub(crate) forwarders: Vec<Network>,
    /// A server that is cut off from its backplane is not ready.
    pub(crate) needs_backplane: bool,
    pub(crate) actions: Actions,
    pub(crate) pace: Pace,
}

/// The requests that an address answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    #[default]
    All,
    Health {
        has_metrics: bool,
    },
}

/// A text is no name of a host, so no request would ever name it.
///
/// ```
/// use tidewire_admin::Settings;
///
/// let error = Settings::default().host("https://ops.example:9090").unwrap_err();
/// assert!(error.to_string().contains("write ops.example"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name:?} is the name of no host: {why}")]
pub struct HostError {
    /// The text.
    pub name: String,
    /// The remedy: the text to write instead.
    pub why: String,
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
    /// Requires this token for everything but health and the empty dashboard. Programs send it as `Authorization:
    /// Bearer`, and people type it into the dashboard once.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Answers requests for this name, too, such as a proxy's name. Other requests must be for an IP address or
    /// `localhost`, so no page of the web can reach the server under the page's own name. A port is not part of the
    /// name.
    ///
    /// # Errors
    /// The text is no name of a host, so that no request would ever name it.
    pub fn host(mut self, name: impl Into<String>) -> Result<Self, HostError> {
        let name: String = name.into();
        let lower = name.to_ascii_lowercase();
        let host = lower.strip_suffix('/').unwrap_or(&lower);
        if !is_host(host) {
            let why = advice(host);
            return Err(HostError { name, why });
        }
        self.hosts.push(host.to_owned());
        Ok(self)
    }

    /// Encrypts the address by this certificate, which is read again when its files change.
    #[must_use]
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Adds addresses of proxies that write the address of their client into requests, as
    /// [`ServerBuilder::forwarded_for_from`](tidewire::ServerBuilder::forwarded_for_from) has it. Wrong tokens and
    /// streams of events then count for the client, so that one client of a proxy does not keep out the others.
    ///
    /// # Errors
    /// [`SettingError`] if the text is no range of addresses.
    pub fn forwarded_for_from(mut self, network: &str) -> Result<Self, SettingError> {
        self.forwarders.push(network.parse()?);
        Ok(self)
    }

    /// Answers only `/healthz` and `/readyz`, and optionally `/metrics`, without a token and under any name: for load
    /// balancers and scrapers, at an address that other machines may reach. Nothing there names a peer or changes the
    /// server.
    #[must_use]
    pub fn health_only(mut self, has_metrics: bool) -> Self {
        self.scope = Scope::Health { has_metrics };
        self
    }

    /// Sets whether a server that is cut off from its backplane is not ready. Default: it is ready, and serves its own
    /// clients.
    #[must_use]
    pub fn needs_backplane(mut self, needs: bool) -> Self {
        self.needs_backplane = needs;
        self
    }

    /// Allows an address that other machines reach without [encryption](Self::tls), although the token can be read on
    /// the way. A token is still needed.
    #[must_use]
    pub fn allow_plaintext(mut self, allow: bool) -> Self {
        self.is_plaintext_allowed = allow;
        self
    }

    /// Leaves IPv4 to another listener if the address is `[::]`. Otherwise `[::]` includes every address of IPv4,
    /// whatever the system's `net.ipv6.bindv6only` is.
    #[must_use]
    pub fn ipv6_only(mut self, only: bool) -> Self {
        self.is_ipv6_only = only;
        self
    }

    /// Sets the action of a request to drain. It is called on the admin server's thread and must not block. Default:
    /// the request is refused.
    #[must_use]
    pub fn on_drain(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.actions.drain = Some(Arc::new(act));
        self
    }

    /// Sets the action of a request to read users and certificates again, as [`Self::on_drain`].
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

/// Whether it is a name, in lower case, as a request has it without the port.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain =
            |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-_".contains(&it);
        !label.is_empty() && label.bytes().all(is_plain)
    };
    name.split('.').all(is_label)
}

/// Says what to write in place of something that is no name.
fn advice(text: &str) -> String {
    let (_, place) = text.split_once("://").unwrap_or(("", text));
    let host = place.split(['/', ':']).next().unwrap_or_default();
    match is_host(host) {
        true => format!("write {host}"),
        false if !text.is_ascii() => {
            "requests have a name with other letters than ASCII as xn--…; write that form"
                .to_owned()
        }
        false => "write one as ops.example.com, several each by itself".to_owned(),
    }
}

const EVERY: Duration = Duration::from_secs(1);

/// The longest time that a peer may leave an answer unread.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: these were taken, and every request under them got 421.
    #[test]
    fn impossible_names_of_requests_are_refused_with_the_remedy() {
        for (text, told) in [
            ("ops.example:9090", "write ops.example"),
            ("https://ops.example", "write ops.example"),
            ("http://ops.example:9090/x", "write ops.example"),
            ("*.example", "each by itself"),
            ("*", "each by itself"),
            ("", "each by itself"),
            ("a.example, b.example", "each by itself"),
            ("b\u{fc}cher.example", "xn--"),
        ] {
            let error = Settings::default().host(text).unwrap_err();
            assert!(error.why.contains(told), "{text:?}: {error}");
        }
        for text in ["ops.example", "Ops.Example/", "ops"] {
            let settings = Settings::default().host(text).unwrap();
            assert_eq!(settings.hosts[0], text.trim_end_matches('/').to_lowercase());
        }
    }
}
