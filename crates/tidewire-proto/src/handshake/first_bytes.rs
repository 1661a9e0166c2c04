//! The protocol that the first bytes of a peer look like, when they are no frame.
//!
//! A wrong port is the usual mistake, and the name of the other protocol shows the mistake. The bytes are never shown,
//! because they come from a stranger and could control a terminal.

use std::fmt;

/// A protocol that the first bytes of a peer look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FirstBytes {
    /// A request or an answer of HTTP.
    Http,
    /// A command or an answer of Redis.
    Redis,
    /// The first line of a server or client of NATS.
    Nats,
    /// The version of SSH.
    Ssh,
    /// A PROXY header of a load balancer, of version 1 or 2.
    ProxyHeader,
    /// Text of no protocol that is known here.
    Text,
    /// No text and no protocol that is known here.
    Unknown,
}

impl FirstBytes {
    /// Examines first bytes. The beginning of a first line is enough.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let sample = &bytes[..bytes.len().min(SAMPLE_BYTES)];
        let begins = |(prefix, _): &&(&[u8], Self)| sample.starts_with(prefix);
        match PREFIXES.iter().find(begins) {
            Some((_, known)) => *known,
            None if is_redis_error(sample) => Self::Redis,
            None if is_text(sample) => Self::Text,
            None => Self::Unknown,
        }
    }

    /// Whether this is another protocol for certain, and not only another codec.
    #[must_use]
    pub const fn is_foreign(self) -> bool {
        !matches!(self, Self::Text | Self::Unknown)
    }
}

impl fmt::Display for FirstBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Http => {
                "its first bytes look like HTTP; check the port, or use ws:// or wss:// on both sides for WebSocket"
            }
            Self::Redis => "its first bytes look like Redis; check the port",
            Self::Nats => "its first bytes look like NATS; check the port",
            Self::Ssh => "its first bytes look like SSH; check the port",
            Self::ProxyHeader => {
                "its first bytes are a PROXY header; let the server take such headers from this proxy, or let the \
                 proxy send none"
            }
            Self::Text => "it sent text; was one side started with --codec lines or json?",
            Self::Unknown => {
                "its first bytes are no frame; check the port, and that both sides have the same codec"
            }
        })
    }
}

/// A first line of Redis that refuses: a minus, and a word in capitals.
fn is_redis_error(sample: &[u8]) -> bool {
    let Some(rest) = sample.strip_prefix(b"-") else {
        return false;
    };
    let capitals = rest.iter().take_while(|byte| byte.is_ascii_uppercase());
    let capitals = capitals.count();
    capitals >= 3 && matches!(rest.get(capitals), Some(b' ' | b'\r'))
}

/// Whether a person or a text protocol would send such bytes.
fn is_text(sample: &[u8]) -> bool {
    let text = match str::from_utf8(sample) {
        Ok(text) => text,
        // The sample may end inside a character.
        Err(error) if error.error_len().is_none() => {
            str::from_utf8(&sample[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty()
        && text
            .chars()
            .all(|c| !c.is_control() || matches!(c, '\t' | '\r' | '\n'))
}

/// The beginnings of protocols. NATS comes before HTTP, because a method of HTTP has the same word.
const PREFIXES: &[(&[u8], FirstBytes)] = &[
    (b"INFO {", FirstBytes::Nats),
    (b"CONNECT {", FirstBytes::Nats),
    (b"HTTP/", FirstBytes::Http),
    (b"GET ", FirstBytes::Http),
    (b"HEAD ", FirstBytes::Http),
    (b"POST ", FirstBytes::Http),
    (b"PUT ", FirstBytes::Http),
    (b"DELETE ", FirstBytes::Http),
    (b"OPTIONS ", FirstBytes::Http),
    (b"CONNECT ", FirstBytes::Http),
    (b"PRI * HTTP/2", FirstBytes::Http),
    (b"+PONG\r\n", FirstBytes::Redis),
    (b"+OK\r\n", FirstBytes::Redis),
    (b"*1\r\n$", FirstBytes::Redis),
    (b"*2\r\n$", FirstBytes::Redis),
    (b"*3\r\n$", FirstBytes::Redis),
    (b"SSH-", FirstBytes::Ssh),
    (b"PROXY ", FirstBytes::ProxyHeader),
    (b"\r\n\r\n\0\r\nQUIT\n", FirstBytes::ProxyHeader),
];

/// The number of first bytes that are examined.
const SAMPLE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn protocols_are_known_by_their_first_bytes() {
        let cases: [(&[u8], FirstBytes); 17] = [
            (b"HTTP/1.1 400 Bad Request\r\n", FirstBytes::Http),
            (b"GET / HTTP/1.1\r\n", FirstBytes::Http),
            (b"CONNECT a:1 HTTP/1.1\r\n", FirstBytes::Http),
            (b"+PONG\r\n", FirstBytes::Redis),
            (b"-ERR unknown command\r\n", FirstBytes::Redis),
            (b"-NOAUTH Authentication required.\r\n", FirstBytes::Redis),
            (b"INFO {\"server_id\":\"N\"}\r\n", FirstBytes::Nats),
            (b"CONNECT {\"verbose\":false}\r\n", FirstBytes::Nats),
            (b"SSH-2.0-OpenSSH_9.2\r\n", FirstBytes::Ssh),
            (
                b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
                FirstBytes::ProxyHeader,
            ),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11", FirstBytes::ProxyHeader),
            (b"hi\n", FirstBytes::Text),
            (b"-1\n", FirstBytes::Text),
            (b"{\"kind\":\"welcome\"}\n", FirstBytes::Text),
            ("Grüß Gott 王".as_bytes(), FirstBytes::Text),
            (b"", FirstBytes::Unknown),
            (b"\x00\x00\x00", FirstBytes::Unknown),
        ];
        for (bytes, expected) in cases {
            assert_eq!(FirstBytes::of(bytes), expected, "{bytes:?}");
            assert_eq!(
                FirstBytes::of(bytes).is_foreign(),
                !matches!(expected, FirstBytes::Text | FirstBytes::Unknown)
            );
        }
    }

    proptest! {
        #[test]
        fn no_byte_of_a_stranger_is_shown(bytes: Vec<u8>) {
            let shown = FirstBytes::of(&bytes).to_string();
            prop_assert!(shown.chars().all(|letter| matches!(letter, ' '..='~')));
        }
    }
}
