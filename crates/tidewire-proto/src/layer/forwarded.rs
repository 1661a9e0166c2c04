//! The addresses that proxies write into a request: `X-Forwarded-For`, and `Forwarded` of RFC 7239.
//!
//! Each proxy appends the address that it got the request from. Any client can send such headers, so only an entry of a
//! listed proxy counts. A proxy that knows one of the two headers passes the other on as its client sent it. So a
//! request with both is refused: a client could choose the header that is believed.

use std::net::{IpAddr, SocketAddr};

use super::WebSocketFault;

/// The addresses that proxies wrote into a request, the client's first.
///
/// ```
/// use std::net::IpAddr;
/// use tidewire_proto::layer::Forwarded;
///
/// let headers = [("X-Forwarded-For", &b"203.0.113.7, 10.0.0.1"[..])];
/// let forwarded = Forwarded::read(headers.into_iter())?;
/// let proxy: IpAddr = "10.0.0.1".parse()?;
/// assert_eq!(forwarded.client(|address| address == proxy), "203.0.113.7".parse().ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded(Vec<IpAddr>);

impl Forwarded {
    /// Reads the headers of a request. An entry that is no address hides all earlier entries.
    ///
    /// # Errors
    /// [`WebSocketFault::TwoForwarded`]: the request has both headers.
    pub fn read<'a>(
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Self, WebSocketFault> {
        let mut of_client = [Vec::new(), Vec::new()];
        for (name, value) in headers {
            let (entries, parse): (_, fn(&str) -> Option<IpAddr>) = match name {
                _ if name.eq_ignore_ascii_case("x-forwarded-for") => (&mut of_client[0], address),
                _ if name.eq_ignore_ascii_case("forwarded") => (&mut of_client[1], forwarded_for),
                _ => continue,
            };
            let elements = str::from_utf8(value)
                .unwrap_or("not text")
                .split(',')
                .map(str::trim);
            entries.extend(elements.filter(|it| !it.is_empty()).map(parse));
        }
        let entries = match of_client {
            [x, forwarded] if x.is_empty() => forwarded,
            [x, forwarded] if forwarded.is_empty() => x,
            _ => return Err(WebSocketFault::TwoForwarded),
        };
        let last = entries.iter().rev().take(ENTRIES_MAX);
        let mut addresses: Vec<IpAddr> = last.map_while(|entry| *entry).collect();
        addresses.reverse();
        Ok(Self(addresses))
    }

    /// The client: the last address that is not a listed proxy, or the first address if all are listed proxies. `None`
    /// if the request names no address. Ask only for requests that come from a listed proxy.
    pub fn client(&self, is_listed: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut from_here = self.0.iter().rev();
        let client = from_here.find(|it| !is_listed(**it));
        client.or(self.0.first()).copied()
    }
}

/// The address in an element of `Forwarded`, such as `for="[2001:db8::1]:4711";proto=https`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    let value = value.trim();
    let quoted = value.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    address(quoted.unwrap_or(value))
}

/// An address, perhaps with a port, perhaps in brackets.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>();
    let with_port = || text.parse::<SocketAddr>().map(|it| it.ip());
    address
        .or_else(|_| with_port())
        .ok()
        .map(|it| it.to_canonical())
}

/// Proxies in a row that are looked at.
const ENTRIES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &str) -> Result<Forwarded, WebSocketFault> {
        let lines = headers.lines().filter_map(|line| line.split_once(": "));
        Forwarded::read(lines.map(|(name, value)| (name, value.as_bytes())))
    }

    fn of(headers: &str) -> Vec<String> {
        let addresses = read(headers).unwrap().0;
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_read_in_the_order_of_the_proxies() {
        for (headers, expected) in [
            ("X-Forwarded-For: 192.0.2.7\r\n", &["192.0.2.7"][..]),
            (
                "x-forwarded-for: 192.0.2.7, 10.0.0.1\r\n",
                &["192.0.2.7", "10.0.0.1"],
            ),
            (
                "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-For: 2001:db8::1\r\n",
                &["192.0.2.7", "2001:db8::1"],
            ),
            (
                "X-Forwarded-For: 192.0.2.7:80, [2001:db8::1]:80, [::1]\r\n",
                &["192.0.2.7", "2001:db8::1", "::1"],
            ),
            ("X-Forwarded-For: ::ffff:192.0.2.7\r\n", &["192.0.2.7"]),
            (
                "Forwarded: for=192.0.2.60;proto=http;by=203.0.113.43\r\n",
                &["192.0.2.60"],
            ),
            (
                "Forwarded: For=\"[2001:db8:cafe::17]:4711\", for=192.0.2.43\r\n",
                &["2001:db8:cafe::17", "192.0.2.43"],
            ),
        ] {
            assert_eq!(of(headers), expected, "{headers}");
        }
    }

    #[test]
    fn an_invalid_address_ends_the_list_and_two_kinds_are_refused() {
        for (headers, expected) in [
            ("", &[][..]),
            ("X-Forwarded-For: \r\n", &[]),
            ("X-Forwarded-For: unknown\r\n", &[]),
            (
                "X-Forwarded-For: 192.0.2.1, evil, 192.0.2.7\r\n",
                &["192.0.2.7"],
            ),
            ("X-Forwarded-For: 192.0.2.7, evil\r\n", &[]),
            ("Forwarded: for=_hidden, for=192.0.2.7\r\n", &["192.0.2.7"]),
            ("Forwarded: proto=https\r\n", &[]),
            ("Forwarded: for=\"192.0.2.7\r\n", &[]),
        ] {
            assert_eq!(of(headers), expected, "{headers}");
        }
        let many = format!("X-Forwarded-For: {}192.0.2.7\r\n", "192.0.2.1,".repeat(100));
        assert_eq!(of(&many).len(), ENTRIES_MAX);
        let both = read("X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n");
        assert_eq!(both, Err(WebSocketFault::TwoForwarded));
    }
}
