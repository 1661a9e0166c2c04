//! The pages that may open a connection.
//!
//! A browser lets any page open a WebSocket to any host, with the user's cookies and from the user's machine, and names
//! the page's origin. Without a check, a foreign page could talk to a server on the user's own machine.

use std::net::IpAddr;

/// The origins whose pages may connect. A peer that names no origin is no browser, and this check is not for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    allowed: Vec<String>,
}

impl Origins {
    /// Allows these origins, such as `https://example.com` or `http://localhost:3000`. The origin `*` allows all.
    #[must_use]
    pub fn new(allowed: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let allowed = allowed.into_iter().map(Into::into).collect();
        Self { allowed }
    }

    /// Whether a page of `origin` may connect to this host, which is that of the request.
    ///
    /// A page of the host itself may, if the host is an IP address or `localhost`. A name is not enough: whoever owns a
    /// name can let it point to this machine.
    #[must_use]
    pub fn allow(&self, origin: &str, host: &str) -> bool {
        let is_listed = |it: &String| it == "*" || it.eq_ignore_ascii_case(origin);
        self.allowed.iter().any(is_listed) || (is_of_host(origin, host) && is_address(host))
    }
}

fn is_of_host(origin: &str, host: &str) -> bool {
    let place = origin
        .strip_prefix("http://")
        .or(origin.strip_prefix("https://"));
    place.is_some_and(|place| place.eq_ignore_ascii_case(host))
}

/// Whether the host is an IP address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_pages_are_refused_and_listed_ones_are_not() {
        let none = Origins::default();
        for (origin, host) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://[::1]:8080", "[::1]:8080"),
            ("https://LOCALHOST", "localhost"),
        ] {
            assert!(none.allow(origin, host), "{origin}");
        }
        for (origin, host) in [
            ("http://evil.example", "127.0.0.1:8080"),
            // The name of the attacker points to this machine.
            ("http://evil.example:8080", "evil.example:8080"),
            ("http://127.0.0.1:8080", "127.0.0.1:9090"),
            ("null", "127.0.0.1:8080"),
            ("http://localhost.evil.example", "localhost.evil.example"),
            ("", ""),
        ] {
            assert!(!none.allow(origin, host), "{origin}");
        }
        let some = Origins::new(["https://app.example"]);
        assert!(some.allow("https://app.example", "api.example"));
        assert!(!some.allow("https://app.example.evil.example", "api.example"));
        assert!(!some.allow("http://app.example", "api.example"));
        assert!(Origins::new(["*"]).allow("null", "api.example"));
    }
}
