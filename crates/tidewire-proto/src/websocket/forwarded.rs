//! The addresses that proxies write into the request of a handshake: `X-Forwarded-For`, and `Forwarded` of RFC 7239.
//!
//! Each proxy appends the address that it got the request from. Everybody can send such headers, so only what a listed proxy appended
//! counts, and that is the caller's decision. A proxy that knows one of the two headers passes the other one on as its client sent
//! it. So a request with both says nothing: a client could choose which one is believed.

use std::net::{IpAddr, SocketAddr};

use super::http::Headers;

/// The addresses of a request, the client's first. Behind an entry that is no address, only the later ones are there. Empty if
/// nothing in the head can be believed.
pub(super) fn forwarded(head: &[u8], headers_max: usize) -> Vec<IpAddr> {
    let mut headers = vec![httparse::EMPTY_HEADER; headers_max];
    let mut request = httparse::Request::new(&mut headers);
    if !request.parse(head).is_ok_and(|it| it.is_complete()) {
        return Vec::new();
    }
    let headers = Headers::new(request.headers);
    let entries: Vec<Option<IpAddr>> =
        match (headers.has("x-forwarded-for"), headers.has("forwarded")) {
            (true, false) => headers.tokens("x-forwarded-for").map(address).collect(),
            (false, true) => headers.tokens("forwarded").map(forwarded_for).collect(),
            _ => return Vec::new(),
        };
    let last = entries.iter().rev().take(ENTRIES_MAX);
    let mut addresses: Vec<IpAddr> = last.map_while(|entry| *entry).collect();
    addresses.reverse();
    addresses
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

    fn of(headers: &str) -> Vec<String> {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        let addresses = forwarded(head.as_bytes(), 8);
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
    fn what_is_no_address_ends_the_list_and_two_kinds_say_nothing() {
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
            (
                "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n",
                &[],
            ),
        ] {
            assert_eq!(of(headers), expected, "{headers}");
        }
        let many = format!("X-Forwarded-For: {}192.0.2.7\r\n", "192.0.2.1,".repeat(100));
        assert_eq!(of(&many).len(), ENTRIES_MAX);
    }
}
