//! The address at which a draining server wants its clients to connect.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tidewire_proto::limits::MOVED_ADDRESS_BYTES_MAX;
use tidewire_proto::setting::SettingError;

use super::{Address, AddressError, AddressKind, Parameters};

/// The address of the server for the clients of a draining server: `tcp://`, `tls://`, `ws://` or `wss://` with a host
/// that other machines know, and a port.
///
/// ```
/// use tidewire::address::Successor;
///
/// let successor: Successor = "tls://b.example.com:8443".parse()?;
/// assert_eq!(successor.to_string(), "tls://b.example.com:8443");
/// assert!("tls://*:8443".parse::<Successor>().is_err());
/// # Ok::<(), tidewire::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor(Address);

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
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let refused = |fault: String| SettingError::new("successor", text, fault);
        let too_long = |bytes: usize| {
            refused(format!(
                "cannot send clients to an address of {bytes} bytes (at most {MOVED_ADDRESS_BYTES_MAX}); use a shorter \
                 name or path"
            ))
        };
        let by_transport = || {
            refused(format!(
                "cannot send clients to {text:?}: only tcp://, tls://, ws:// and wss:// go to other servers; write one \
                 of them, without ?framing="
            ))
        };
        if text.len() > MOVED_ADDRESS_BYTES_MAX {
            return Err(too_long(text.len()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused(format!(
                "cannot send clients to {text:?}: an address has only visible ASCII characters"
            )));
        }
        let address: Address = text
            .parse()
            .map_err(|error: AddressError| refused(error.to_string()))?;
        let (AddressKind::Tcp { host, port }
        | AddressKind::Tls { host, port }
        | AddressKind::WebSocket { host, port, .. }) = &address.kind
        else {
            return Err(by_transport());
        };
        if address.parameters != Parameters::default() {
            return Err(by_transport());
        }
        let is_anywhere = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        if host == "*" || is_anywhere || *port == 0 {
            return Err(refused(format!(
                "cannot send clients to {text:?}: it is an address to listen on; write the host and the port that \
                 clients connect to"
            )));
        }
        // With its transport and path the address may be longer than the text.
        match address.to_string().len() {
            bytes if bytes > MOVED_ADDRESS_BYTES_MAX => Err(too_long(bytes)),
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
        let wrong = |text: &str| text.parse::<Successor>().unwrap_err().to_string();
        for text in [
            "udp://b:1",
            "ipc:///tmp/b",
            "inproc://b",
            "tcp://b:1?framing=none",
        ] {
            assert!(wrong(text).contains("go to other servers"), "{text}");
        }
        for text in ["tcp://*:1", "tcp://0.0.0.0:1", "tls://[::]:1", "tcp://b:0"] {
            assert!(wrong(text).contains("an address to listen on"), "{text}");
        }
        for text in ["", "tcp://", "http://b:1", "tcp://b", "ws://b:1/../x"] {
            let address = text.parse::<Address>().unwrap_err();
            assert_eq!(wrong(text), address.to_string());
        }
        for text in [
            "tcp://b\u{1b}[31m:1",
            "tcp://b b:1",
            "tcp://bé:1",
            "tcp://b:1\n",
        ] {
            assert!(wrong(text).contains("only visible ASCII"), "{text}");
        }
        for (bytes, text) in [
            (241, format!("tcp://{}:1", "b".repeat(233))),
            (244, format!("{}:8080", "b".repeat(233))),
        ] {
            let said = wrong(&text);
            assert!(
                said.contains(&format!("an address of {bytes} bytes")),
                "{said}"
            );
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
