//! The pages that may open a connection.
//!
//! A browser lets any page open a WebSocket to any host, with the user's cookies and from the user's machine, and names
//! the page's origin. Without a check, a foreign page could talk to a server on the user's own machine.

use std::net::IpAddr;

use crate::setting::SettingError;

/// The origins of pages that may connect. A peer that names no origin is no browser, and this check is not for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    allowed: Vec<Allowed>,
}

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    All,
    /// This origin, in lower case.
    One(String),
    /// The hosts below a name: the beginning and the end of their origins.
    Below {
        start: String,
        end: String,
    },
}

impl Origins {
    /// Allows these origins, such as `https://example.com` or `http://localhost:3000`. `https://*.example.com` allows
    /// all hosts below `example.com`, `null` pages without an origin, and `*` all pages. A slash at the end and the
    /// default port are dropped, because browsers do not send them.
    ///
    /// ```
    /// use tidewire_proto::websocket::Origins;
    ///
    /// let error = Origins::new(["app.example"]).unwrap_err();
    /// assert!(error.to_string().contains("write https://app.example"));
    /// ```
    ///
    /// # Errors
    /// A text can be no origin, so that it would allow nothing.
    pub fn new(allowed: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, SettingError> {
        let allowed = allowed.into_iter().map(|text| {
            let origin: String = text.into();
            Allowed::parse(&origin).map_err(|why| {
                let text = format!("{origin:?} is the origin of no page: {why}");
                SettingError::new("origin", origin, text)
            })
        });
        Ok(Self {
            allowed: allowed.collect::<Result<_, _>>()?,
        })
    }

    /// Whether a page of `origin` may connect to the request's host.
    ///
    /// A page of the host itself may, if the host is an IP address or `localhost`. Another name is not enough, because
    /// its owner can let the name point to this machine. A page of this machine may connect to this machine, with any
    /// ports: the page is from a program of the same user, usually a developer's server.
    #[must_use]
    pub fn allow(&self, origin: &str, host: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        let is_of_machine = || match page_host(&origin) {
            Some(page) => {
                (page.eq_ignore_ascii_case(host) && is_address(host))
                    || (is_loopback(page) && is_loopback(host))
            }
            None => false,
        };
        self.allowed.iter().any(|it| it.allows(&origin)) || is_of_machine()
    }
}

impl Allowed {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "*" => return Ok(Self::All),
            "null" => return Ok(Self::One(text.to_owned())),
            _ => {}
        }
        let lower = text.to_ascii_lowercase();
        let Some((scheme, rest)) = lower.split_once("://") else {
            return Err(suggest("https", lower.trim_matches(['/', ' '])));
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        match scheme {
            "ws" => return Err(suggest("http", rest)),
            "wss" => return Err(suggest("https", rest)),
            _ if !is_scheme(scheme) => return Err(suggest("https", rest)),
            _ => {}
        }
        let (host, port) = split_port(rest);
        let port = match (scheme, port) {
            (_, None) | ("http", Some("80")) | ("https", Some("443")) => String::new(),
            (_, Some(port)) if port.parse::<u16>().is_ok_and(|it| it > 0) => format!(":{port}"),
            (_, Some(_)) => return Err(suggest(scheme, host)),
        };
        match host.strip_prefix("*.") {
            Some(name) if is_host(name) => Ok(Self::Below {
                start: format!("{scheme}://"),
                end: format!(".{name}{port}"),
            }),
            None if is_host(host) => Ok(Self::One(format!("{scheme}://{host}{port}"))),
            _ => Err(suggest(scheme, host)),
        }
    }

    fn allows(&self, origin: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(known) => known == origin,
            Self::Below { start, end } => {
                let below = origin.strip_prefix(&**start);
                let labels = below.and_then(|it| it.strip_suffix(&**end));
                labels.is_some_and(is_host_name)
            }
        }
    }
}

/// Returns the text to write in place of an invalid origin: its host alone, if it has a valid host.
fn suggest(scheme: &str, rest: &str) -> String {
    let host = rest.split(['/', '?', '#', ',', ' ']).next().unwrap_or("");
    if !host.is_ascii() {
        return "browsers send a name with other letters than ASCII as xn--…; write that form"
            .to_owned();
    }
    let (name, _) = split_port(host);
    // A scheme with a typing error after it is no host.
    let name = if SCHEMES.contains(&name) { "" } else { name };
    match is_host(name.strip_prefix("*.").unwrap_or(name)) && is_scheme(scheme) {
        true => format!("write {scheme}://{host}"),
        false => "write one as https://app.example, several each by itself".to_owned(),
    }
}

const SCHEMES: [&str; 4] = ["http", "https", "ws", "wss"];

fn is_scheme(scheme: &str) -> bool {
    scheme.starts_with(|it: char| it.is_ascii_lowercase())
        && scheme
            .bytes()
            .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || b"+-.".contains(&it))
}

/// Whether it is a name or an address, in lower case.
fn is_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host_name(host),
    }
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_plain =
            |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-_".contains(&it);
        !label.is_empty() && label.bytes().all(is_plain)
    };
    name.split('.').all(is_label)
}

fn split_port(place: &str) -> (&str, Option<&str>) {
    match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (place, None),
    }
}

fn page_host(origin: &str) -> Option<&str> {
    origin
        .strip_prefix("http://")
        .or(origin.strip_prefix("https://"))
}

/// Whether the host is an IP address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether the host is this machine, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|it| it.to_canonical().is_loopback())
}

/// A host without its port and without the brackets of an address.
fn name_of(host: &str) -> &str {
    let (name, port) = split_port(host);
    match port.is_none_or(|port| port.bytes().all(|it| it.is_ascii_digit())) {
        true => {
            let address = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            address.unwrap_or(name)
        }
        false => "",
    }
}

#[cfg(test)]
mod tests;
