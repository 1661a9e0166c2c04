//! The reasons why a text is no address, or an address cannot be used.

use std::time::Duration;

use thiserror::Error;

use super::NAME_BYTES_MAX;

/// A text is not an address, or its host cannot be resolved. [`Address`](crate::address::Address) has an example.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The part before `://` is not a transport.
    #[error(
        "unknown transport {transport:?} in {text:?}; use tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, \
         wss://HOST:PORT/PATH, udp://HOST:PORT, ipc://PATH or inproc://NAME"
    )]
    UnknownTransport {
        /// The part before `://`.
        transport: String,
        /// The whole text.
        text: String,
    },
    /// The port is missing, or is not a number up to 65535.
    #[error(
        "no valid port in {text:?}; write tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH or udp://HOST:PORT, \
         for example tcp://127.0.0.1:8080"
    )]
    BadPort {
        /// The whole text.
        text: String,
    },
    /// The host or the path is missing.
    #[error(
        "nothing to connect to in {text:?}; use tcp://HOST:PORT, ipc://PATH or ipc://@ABSTRACT-NAME"
    )]
    Empty {
        /// The whole text.
        text: String,
    },
    /// The path is longer than a socket address of the kernel holds.
    #[error("socket path of {bytes} bytes is too long (at most {limit}); use a shorter directory")]
    PathTooLong {
        /// The length of the path in bytes.
        bytes: usize,
        /// The greatest length in bytes.
        limit: usize,
    },
    /// The in-process name is empty, is too long, or has other characters.
    #[error(
        "no in-process name in {text:?}; write inproc:// and 1 to {NAME_BYTES_MAX} ASCII letters, digits or -._/"
    )]
    BadName {
        /// The whole text.
        text: String,
    },
    /// The path of a WebSocket has characters that a URL does not have, a query, or the parts `.` and `..`.
    #[error(
        "no WebSocket path in {text:?}; write ws://HOST:PORT/PATH with a path of letters, digits and \
         -._~!$&'()*+,;=:@%/, without ?, # and .."
    )]
    BadPath {
        /// The whole text.
        text: String,
    },
    /// The host has no address.
    #[error("cannot resolve host {host:?}: {detail}")]
    Unresolved {
        /// The host.
        host: String,
        /// The error text of the resolver.
        detail: String,
    },
    /// The resolver of the system did not answer in time.
    #[error(
        "the lookup of host {host:?} took longer than {timeout:?}; check the name servers in /etc/resolv.conf, or use \
         an IP address"
    )]
    LookupTimeout {
        /// The host.
        host: String,
        /// The time that it had:
        /// [`ConnectionLimits::handshake_timeout`](crate::limits::ConnectionLimits::handshake_timeout).
        timeout: Duration,
    },
    /// The address exists once in the network of each interface.
    #[error(
        "the address [{host}] says nothing about the interface, and each has such addresses; write the zone after the \
         address, as in [{host}%eth0]; `ip -6 address` lists interfaces"
    )]
    NoZone {
        /// The address.
        host: String,
    },
    /// A parameter after the question mark is unknown, or comes twice.
    #[error(
        "unknown or repeated parameter {parameter:?}; write ?codec=NAME, ?framing=none or ?framing=length, two of them \
         as ?codec=NAME&framing=none, different codecs of a ws:// address as ?codec=NAME&codec=NAME, and no other ? in \
         a path"
    )]
    BadParameter {
        /// The text after the question mark.
        parameter: String,
    },
    /// The codec of the address is unknown, or its parameters are.
    #[error("the address sets the codec {codec:?}: {detail}")]
    Codec {
        /// The text after `codec=`.
        codec: String,
        /// The reason, and what is expected.
        detail: String,
    },
    /// The address is one within the process, and sets a codec.
    #[error(
        "connections within a process have the codec of their server; leave ?codec= out of {text:?}, and set it for \
         the server"
    )]
    InprocCodec {
        /// The whole text.
        text: String,
    },
    /// The address has a framing, but its transport preserves the boundaries of messages.
    #[error(
        "framing is for tcp://, tls:// and ipc:// only; leave ?framing= out of {text:?}, whose transport separates \
         messages"
    )]
    NoStream {
        /// The whole text.
        text: String,
    },
    /// Datagrams may be lost, and the requests to an [`Upstream`](crate::upstream::Upstream) are not repeated.
    #[error("an upstream cannot be asked over udp://; use tcp://, ipc:// or inproc://")]
    Datagrams,
    /// The address of an [`Upstream`](crate::upstream::Upstream) sets a codec or a framing.
    #[error(
        "an upstream is asked with the main codec of the server that asks; leave {parameters} out of its address, and \
         set the codec for the server"
    )]
    UpstreamCodec {
        /// The text from the question mark on.
        parameters: String,
    },
}
