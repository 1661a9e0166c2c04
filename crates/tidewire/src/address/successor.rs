//! The address at which a draining server wants its clients to connect.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;
use tidewire_proto::limits::MOVED_ADDRESS_BYTES_MAX;

use super::{Address, AddressError, AddressKind};

/// The address of the server for the clients of a draining server: `tcp://`, `tls://`, `ws://` or `wss://` with a host
/// that other machines know, and a port.
///
/// ```
/// use tidewire::address::Successor;
///
/// let successor: Successor = "tls://b.example.com:8443".parse()?;
/// assert_eq!(successor.to_string(), "tls://b.example.com:8443");
/// assert!("tls://*:8443".parse::<Successor>().is_err());
/// # Ok::<(), tidewire::address::SuccessorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor(Address);

/// A text is no address that clients can be sent to. [`Successor`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SuccessorError {
    /// It is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Its transport is none that clients move by.
    #[error(
        "cannot send clients to {text:?}: only tcp://, tls://, ws:// and wss:// go to other servers; write one of \
         them, without ?framing="
    )]
    Transport {
        /// The text.
        text: String,
    },
    /// It means no certain host or port.
    #[error(
        "cannot send clients to {text:?}: it is an address to listen on; write the host and the port that clients \
         connect to"
    )]
    Nowhere {
        /// The text.
        text: String,
    },
    /// It has spaces, or characters outside ASCII.
    #[error("cannot send clients to {text:?}: an address has only visible ASCII characters")]
    Characters {
        /// The text.
        text: String,
    },
    /// It does not fit a go-away.
    #[error(
        "cannot send clients to an address of {bytes} bytes (at most {MOVED_ADDRESS_BYTES_MAX}); use a shorter name or \
         path"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

impl Successor {
    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.0
    }

    /// Whether clients of `address` may go there: by the same transport, so that no encryption gets lost.
    pub(crate) fn is_like(&self, address: &Address) -> bool {
        scheme(&self.0.kind) == scheme(&address.kind)
    }
}

impl FromStr for Successor {
    type Err = SuccessorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MOVED_ADDRESS_BYTES_MAX {
            return Err(SuccessorError::TooLong { bytes: text.len() });
        }
        let named = || text.to_owned();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SuccessorError::Characters { text: named() });
        }
        let address: Address = text.parse()?;
        let (AddressKind::Tcp { host, port }
        | AddressKind::Tls { host, port }
        | AddressKind::WebSocket { host, port, .. }) = &address.kind
        else {
            return Err(SuccessorError::Transport { text: named() });
        };
        if address.framing.is_some() {
            return Err(SuccessorError::Transport { text: named() });
        }
        let is_anywhere = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        if host == "*" || is_anywhere || *port == 0 {
            return Err(SuccessorError::Nowhere { text: named() });
        }
        // With its transport and path the address may be longer than the text.
        match address.to_string().len() {
            bytes if bytes > MOVED_ADDRESS_BYTES_MAX => Err(SuccessorError::TooLong { bytes }),
            _ => Ok(Self(address)),
        }
    }
}

impl fmt::Display for Successor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

const fn scheme(kind: &AddressKind) -> &'static str {
    match kind {
        AddressKind::Tcp { .. } => "tcp",
        AddressKind::Tls { .. } => "tls",
        AddressKind::WebSocket { is_tls: false, .. } => "ws",
        AddressKind::WebSocket { is_tls: true, .. } => "wss",
        AddressKind::Udp { .. } => "udp",
        AddressKind::Ipc(_) => "ipc",
        AddressKind::Inproc(_) => "inproc",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_servers_elsewhere_are_successors() {
        for (text, whole) in [
            ("10.0.0.2:8080", "tcp://10.0.0.2:8080"),
            ("tls://b.example.com:8443", "tls://b.example.com:8443"),
            ("ws://[::1]:80", "ws://[::1]:80/"),
            ("wss://b:443/chat", "wss://b:443/chat"),
        ] {
            let successor: Successor = text.parse().unwrap();
            assert_eq!(successor.to_string(), whole);
        }
        let wrong = |text: &str| text.parse::<Successor>().unwrap_err();
        for text in [
            "udp://b:1",
            "ipc:///tmp/b",
            "inproc://b",
            "tcp://b:1?framing=none",
        ] {
            assert!(
                matches!(wrong(text), SuccessorError::Transport { .. }),
                "{text}"
            );
        }
        for text in ["tcp://*:1", "tcp://0.0.0.0:1", "tls://[::]:1", "tcp://b:0"] {
            assert!(
                matches!(wrong(text), SuccessorError::Nowhere { .. }),
                "{text}"
            );
        }
        for text in ["", "tcp://", "http://b:1", "tcp://b", "ws://b:1/../x"] {
            assert!(matches!(wrong(text), SuccessorError::Address(_)), "{text}");
        }
        for text in [
            "tcp://b\u{1b}[31m:1",
            "tcp://b b:1",
            "tcp://bé:1",
            "tcp://b:1\n",
        ] {
            assert!(
                matches!(wrong(text), SuccessorError::Characters { .. }),
                "{text}"
            );
        }
        for (bytes, text) in [
            (241, format!("tcp://{}:1", "b".repeat(233))),
            (244, format!("{}:8080", "b".repeat(233))),
        ] {
            assert_eq!(wrong(&text), SuccessorError::TooLong { bytes });
        }
    }

    #[test]
    fn a_transport_stays_what_it_is() {
        let successor: Successor = "tcp://b:1".parse().unwrap();
        for (from, is_like) in [
            ("tcp://a:2", true),
            ("tls://a:1", false),
            ("ws://a:1", false),
            ("udp://a:1", false),
        ] {
            assert_eq!(successor.is_like(&from.parse().unwrap()), is_like, "{from}");
        }
    }
}
