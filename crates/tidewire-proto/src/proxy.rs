//! The header of the PROXY protocol, versions 1 and 2: a proxy names the client of a connection.
//!
//! The header comes once, before all other bytes, also before TLS. A receiver must know by other means that the header
//! comes from a proxy, because any client could send one. See
//! <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.
//!
//! Version 1 is a line of text: `PROXY TCP4 192.0.2.7 198.51.100.9 51234 443`, CR, LF. The line has no length field,
//! but a receiver need not read too far: no line is shorter than 15 bytes, and before the line end at least two more
//! bytes follow, or one after a CR. Version 2 is binary:
//!
//! ```text
//!   0            12        13          14       16
//!   ┌────────────┬─────────┬───────────┬────────┬───────────┬──────┐
//!   │ signature  │ version │ family,   │ length │ addresses │ TLVs │
//!   │            │ command │ transport │        │           │      │
//!   └────────────┴─────────┴───────────┴────────┴───────────┴──────┘
//!                                               └──── length ──────┘
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// The connection that a proxy passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxied {
    /// The proxy's own connection, such as a health check, with the proxy's address.
    Local,
    /// A connection over TCP.
    Tcp {
        /// The address of the client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
    /// A connection without IP addresses: over a Unix socket, or of a kind that the proxy does not know.
    Unknown,
}

/// The result of [`decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The bytes are the beginning of a header.
    Partial {
        /// The total number of bytes needed to continue. The header is at least this long, so a receiver that reads no
        /// more reads nothing after the header.
        bytes: usize,
    },
    /// The bytes begin with a header.
    Whole {
        /// The connection.
        proxied: Proxied,
        /// The length of the header.
        bytes: usize,
    },
}

/// The bytes are no header that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// Other bytes came in place of a header.
    #[error("there is no PROXY header; let the proxy send one, or take its address off the list")]
    Missing,
    /// The line of version 1 has another form.
    #[error("the PROXY header of version 1 is malformed")]
    Line,
    /// The version is neither 1 nor 2.
    #[error("the PROXY header is of an unknown version")]
    Version,
    /// The command is neither LOCAL nor PROXY.
    #[error("the PROXY header has an unknown command")]
    Command,
    /// The connection is not a stream, or its addresses are of an unknown family.
    #[error("the PROXY header is about a connection that is no stream")]
    Transport,
    /// The header is shorter than its addresses, or than one of its extensions.
    #[error("the PROXY header is shorter than what it must hold")]
    TooShort,
    /// The header is longer than [`PROXY_HEADER_BYTES_MAX`], or than 107 bytes in version 1.
    #[error(
        "the PROXY header is longer than {PROXY_HEADER_BYTES_MAX} bytes, or that of version 1 than {LINE_BYTES_MAX}"
    )]
    TooLong,
    /// The connection ended within the header.
    #[error("the connection ended before the PROXY header did")]
    Truncated,
}

/// Decodes the header at the beginning of a connection. Call it again with more bytes while it is
/// [`ProxyHeader::Partial`].
///
/// # Errors
/// [`ProxyError`], as soon as the bytes cannot become a header any more.
pub fn decode(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let start = &bytes[..bytes.len().min(SIGNATURE.len())];
    if !SIGNATURE.starts_with(start) || bytes.is_empty() {
        return decode_line(bytes);
    }
    let Some(&[version_command, family, high, low]) = bytes.get(SIGNATURE.len()..HEAD_BYTES) else {
        return Ok(ProxyHeader::Partial { bytes: HEAD_BYTES });
    };
    if version_command >> 4 != 2 {
        return Err(ProxyError::Version);
    }
    let is_local = match version_command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(ProxyError::Command),
    };
    let whole = HEAD_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if whole > PROXY_HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let Some(body) = bytes.get(HEAD_BYTES..whole) else {
        return Ok(ProxyHeader::Partial { bytes: whole });
    };
    let proxied = match is_local {
        // The rest of such a header must be ignored.
        true => Proxied::Local,
        false => decode_body(family, body)?,
    };
    Ok(ProxyHeader::Whole {
        proxied,
        bytes: whole,
    })
}

/// Decodes a header of version 1, or its beginning.
fn decode_line(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let start = &bytes[..bytes.len().min(TEXT.len())];
    if !TEXT.starts_with(start) {
        return Err(ProxyError::Missing);
    }
    if bytes.len() < LINE_BYTES_MIN {
        return Ok(ProxyHeader::Partial {
            bytes: LINE_BYTES_MIN,
        });
    }
    let line = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return match line.len() + LINE_END.len() <= LINE_BYTES_MAX {
            true => Ok(ProxyHeader::Partial {
                bytes: line.len() + LINE_END.len(),
            }),
            false => Err(ProxyError::TooLong),
        };
    };
    let whole = end + LINE_END.len();
    match bytes.get(end..whole) {
        Some(found) if found == LINE_END => {}
        None if bytes[end] == b'\r' => return Ok(ProxyHeader::Partial { bytes: whole }),
        _ => return Err(ProxyError::Line),
    }
    let text = str::from_utf8(&line[TEXT.len()..end]).map_err(|_| ProxyError::Line)?;
    let proxied = read_line(text).ok_or(ProxyError::Line)?;
    Ok(ProxyHeader::Whole {
        proxied,
        bytes: whole,
    })
}

/// Reads a line of version 1 without its first word and its end.
fn read_line(text: &str) -> Option<Proxied> {
    let mut words = text.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        // The rest of such a line must be ignored.
        return Some(Proxied::Unknown);
    }
    let [source, destination, source_port, destination_port] = [(); 4].map(|()| words.next());
    let address = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::from),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        _ => None,
    };
    let port = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let is_plain = is_plain && (text == "0" || !text.starts_with('0'));
        text.parse::<u16>().ok().filter(|_| is_plain)
    };
    let proxied = Proxied::Tcp {
        source: SocketAddr::new(address(source?)?, port(source_port?)?),
        destination: SocketAddr::new(address(destination?)?, port(destination_port?)?),
    };
    words.next().is_none().then_some(proxied)
}

fn decode_body(family: u8, body: &[u8]) -> Result<Proxied, ProxyError> {
    let (proxied, extensions) = match family {
        UNSPECIFIED => return Ok(Proxied::Unknown),
        TCP_OVER_IPV4 => {
            let (addresses, rest) = split::<12>(body)?;
            let [a, b, c, d, e, f, g, h, ports @ ..] = *addresses;
            let source = Ipv4Addr::new(a, b, c, d).into();
            let destination = Ipv4Addr::new(e, f, g, h).into();
            (tcp(source, destination, ports), rest)
        }
        TCP_OVER_IPV6 => {
            let (source, rest) = split::<16>(body)?;
            let (destination, rest) = split::<16>(rest)?;
            let (ports, rest) = split::<4>(rest)?;
            let [source, destination] = [source, destination].map(|it| Ipv6Addr::from(*it).into());
            (tcp(source, destination, *ports), rest)
        }
        UNIX_STREAM => {
            let (_, rest) = split::<216>(body)?;
            (Proxied::Unknown, rest)
        }
        _ => return Err(ProxyError::Transport),
    };
    skip_extensions(extensions)?;
    Ok(proxied)
}

fn tcp(source: IpAddr, destination: IpAddr, ports: [u8; 4]) -> Proxied {
    let [a, b, c, d] = ports;
    Proxied::Tcp {
        source: SocketAddr::new(source, u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
    }
}

/// Checks that the extensions fill the rest of the header. They have a type, a length and a value each, and none is
/// used.
fn skip_extensions(mut rest: &[u8]) -> Result<(), ProxyError> {
    while !rest.is_empty() {
        let (&[_, high, low], values) = split::<3>(rest)?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        rest = values.get(length..).ok_or(ProxyError::TooShort)?;
    }
    Ok(())
}

fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), ProxyError> {
    bytes.split_first_chunk().ok_or(ProxyError::TooShort)
}

/// The longest header. Proxies that pass a whole certificate on need some kilobytes; the format allows 64 KiB, which a
/// peer could make the server hold for each connection.
pub const PROXY_HEADER_BYTES_MAX: usize = 4_096;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The beginning of a header of version 1.
const TEXT: &[u8; 6] = b"PROXY ";

const LINE_END: &[u8] = b"\r\n";

/// The shortest line of version 1, which is `PROXY UNKNOWN` with its end.
const LINE_BYTES_MIN: usize = 15;

/// The longest line of version 1, as its specification says.
const LINE_BYTES_MAX: usize = 107;

/// Signature, version and command, family and transport, length.
const HEAD_BYTES: usize = 16;

const UNSPECIFIED: u8 = 0x00;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[version_command, family][..], &length, body].concat()
    }

    fn whole(proxied: Proxied, bytes: usize) -> Result<ProxyHeader, ProxyError> {
        Ok(ProxyHeader::Whole { proxied, bytes })
    }

    /// A header as HAProxy sends it: 192.0.2.7:51234 to 198.51.100.9:443, with a checksum (type 3) and a name (type 2).
    const VECTOR: [u8; 46] = [
        0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0x00,
        0x1e, 0xc0, 0x00, 0x02, 0x07, 0xc6, 0x33, 0x64, 0x09, 0xc8, 0x22, 0x01, 0xbb, 0x03, 0x00,
        0x04, 0x01, 0x02, 0x03, 0x04, 0x02, 0x00, 0x08, 0x61, 0x2e, 0x65, 0x78, 0x61, 0x6d, 0x70,
        0x6c,
    ];

    fn of_the_vector() -> Proxied {
        Proxied::Tcp {
            source: "192.0.2.7:51234".parse().unwrap(),
            destination: "198.51.100.9:443".parse().unwrap(),
        }
    }

    #[test]
    fn the_vector_is_read_after_each_cut_and_nothing_after_it() {
        for cut in 0..VECTOR.len() {
            let Ok(ProxyHeader::Partial { bytes }) = decode(&VECTOR[..cut]) else {
                panic!("{cut} bytes are no part");
            };
            assert!(cut < bytes && bytes <= VECTOR.len(), "{cut}: {bytes}");
        }
        let more = [&VECTOR[..], b"GET / HTTP/1.1"].concat();
        assert_eq!(decode(&more), whole(of_the_vector(), VECTOR.len()));
    }

    #[test]
    fn addresses_of_each_family_are_read() {
        let mut body = Vec::new();
        for text in ["2001:db8::1", "2001:db8::2"] {
            body.extend(text.parse::<Ipv6Addr>().unwrap().octets());
        }
        body.extend([0, 80, 1, 187]);
        let proxied = Proxied::Tcp {
            source: "[2001:db8::1]:80".parse().unwrap(),
            destination: "[2001:db8::2]:443".parse().unwrap(),
        };
        assert_eq!(decode(&header(0x21, 0x21, &body)), whole(proxied, 52));
        let unix = header(0x21, 0x31, &[0; 216]);
        assert_eq!(decode(&unix), whole(Proxied::Unknown, 232));
        assert_eq!(decode(&header(0x21, 0, b"?")), whole(Proxied::Unknown, 17));
        // A health check may have any content.
        assert_eq!(decode(&header(0x20, 0x99, b"?")), whole(Proxied::Local, 17));
    }

    #[test]
    fn bytes_that_are_no_header_are_refused_with_the_reason() {
        let long = vec![0; PROXY_HEADER_BYTES_MAX];
        let cut_extension = [&[0; 12][..], &[1, 0, 2, 0]].concat();
        for (bytes, error) in [
            (b"GET / HTTP/1.1".to_vec(), ProxyError::Missing),
            (b"PROXYING".to_vec(), ProxyError::Missing),
            (b"\r\n\r\nhello".to_vec(), ProxyError::Missing),
            (b"PROXY TCP4 192.0.2.7\r\n".to_vec(), ProxyError::Line),
            (header(0x11, 0x11, &[0; 12]), ProxyError::Version),
            (header(0x22, 0x11, &[0; 12]), ProxyError::Command),
            (header(0x21, 0x12, &[0; 12]), ProxyError::Transport),
            (header(0x21, 0x99, &[0; 12]), ProxyError::Transport),
            (header(0x21, 0x11, &[0; 11]), ProxyError::TooShort),
            (header(0x21, 0x21, &[0; 35]), ProxyError::TooShort),
            (header(0x21, 0x31, &[0; 215]), ProxyError::TooShort),
            (header(0x21, 0x11, &cut_extension), ProxyError::TooShort),
            (header(0x21, 0x11, &[0; 14]), ProxyError::TooShort),
            (header(0x21, 0x11, &long), ProxyError::TooLong),
        ] {
            assert_eq!(decode(&bytes), Err(error), "{bytes:?}");
        }
        // The longest length is refused before its bytes come.
        let head = [SIGNATURE, &[0x21, 0x11, 0xff, 0xff][..]].concat();
        assert_eq!(decode(&head), Err(ProxyError::TooLong));
    }

    const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.9 51234 443\r\n";

    #[test]
    fn a_line_of_version_1_is_read_after_each_cut_and_nothing_after_it() {
        let longest = b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
            65535 65535\r\n";
        for line in [LINE, b"PROXY UNKNOWN\r\n", longest] {
            assert!((LINE_BYTES_MIN..=LINE_BYTES_MAX).contains(&line.len()));
            for cut in 0..line.len() {
                let Ok(ProxyHeader::Partial { bytes }) = decode(&line[..cut]) else {
                    panic!("{cut} bytes are no part");
                };
                assert!(cut < bytes && bytes <= line.len(), "{cut}: {bytes}");
            }
            let more = [line, b"\x01\0\0\0"].concat();
            let Ok(ProxyHeader::Whole { bytes, .. }) = decode(&more) else {
                panic!("no header");
            };
            assert_eq!(bytes, line.len());
        }
        assert_eq!(decode(LINE), whole(of_the_vector(), LINE.len()));
        let unknown = b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n";
        assert_eq!(decode(unknown), whole(Proxied::Unknown, unknown.len()));
        let six = b"PROXY TCP6 2001:db8::1 2001:db8::2 80 443\r\n";
        let proxied = Proxied::Tcp {
            source: "[2001:db8::1]:80".parse().unwrap(),
            destination: "[2001:db8::2]:443".parse().unwrap(),
        };
        assert_eq!(decode(six), whole(proxied, six.len()));
    }

    #[test]
    fn lines_of_another_form_are_refused() {
        for text in [
            "PROXY TCP4 192.0.2.7 198.51.100.9 51234\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.9 51234 443 1\r\n",
            "PROXY TCP4  192.0.2.7 198.51.100.9 51234 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.9 051234 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.9 +1234 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.9 65536 443\r\n",
            "PROXY TCP4 ::1 ::2 51234 443\r\n",
            "PROXY TCP6 192.0.2.7 198.51.100.9 51234 443\r\n",
            "PROXY TCP5 192.0.2.7 198.51.100.9 51234 443\r\n",
            "PROXY UDP4 192.0.2.7 198.51.100.9 51234 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.9 51234 443\n\n",
            "PROXY TCP4 192.0.2.7 198.51.100.9 51234 443\rx",
            "PROXY \u{e9}UNKNOWN\r\n",
        ] {
            assert_eq!(decode(text.as_bytes()), Err(ProxyError::Line), "{text:?}");
        }
        let long = [b"PROXY UNKNOWN ", &[b'x'; 100][..]].concat();
        assert_eq!(decode(&long), Err(ProxyError::TooLong));
        assert_eq!(decode(b"PROXIED"), Err(ProxyError::Missing));
    }
}
