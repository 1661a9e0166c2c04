//! The values of the flags of `tidewire serve`.

use std::convert::Infallible;

use clap::builder::TypedValueParser;
use clap::{Arg, ArgAction};
use tidewire::socket::SocketOptions;
use tidewire_proto::layer::RECORD_BYTES_MAX;

use super::rpc::Methods;
use crate::offered::offered;
use crate::units::Bytes;

/// The parser of methods. Whether the app has them is checked together with the app.
pub(super) fn methods() -> impl TypedValueParser<Value = String> {
    let names: Vec<&str> = Methods::names(&[]).collect();
    offered(&names, |name: &str| Ok::<_, Infallible>(name.to_owned()))
}

/// Lets a switch have a value, so that a file can set the switch and the command line can override the file.
pub(super) fn with_value(flag: Arg) -> Arg {
    match flag.get_action() {
        ArgAction::SetTrue => flag
            .action(ArgAction::Set)
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_value("false")
            .default_missing_value("true")
            .hide_default_value(true),
        _ => flag,
    }
}

pub(super) fn parse_memory_bytes(text: &str) -> Result<Bytes, String> {
    Bytes::at_least(text, MEMORY_BYTES_MAX_MIN)
}

pub(super) fn parse_handshake_bytes(text: &str) -> Result<Bytes, String> {
    Bytes::at_least(text, HANDSHAKE_BYTES_MIN)
}

pub(super) fn parse_lag_bytes(text: &str) -> Result<Bytes, String> {
    Bytes::at_least(text, 1)
}

pub(super) fn parse_head_bytes(text: &str) -> Result<Bytes, String> {
    match Bytes::at_least(text, HEAD_BYTES_MIN)? {
        Bytes(bytes) if bytes > RECORD_BYTES_MAX => Err(format!(
            "{text} is more than {RECORD_BYTES_MAX} bytes, which is what a connection may hold"
        )),
        bytes => Ok(bytes),
    }
}

/// Checks permission bits.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) if mode & OWN == OWN => Ok(mode),
        Ok(0..=0o777) => Err(format!(
            "{text} lets not even its owner connect; use one such as 600 or 660"
        )),
        _ => Err(format!(
            "{text:?} is not a mode in octal; use one such as 660"
        )),
    }
}

/// The minimum of the memory limit: a lane's spare buffers and a handful of connections.
const MEMORY_BYTES_MAX_MIN: usize = 16 << 20;

/// The minimum of what the unfinished handshakes of one address may hold: one of them takes as much.
const HANDSHAKE_BYTES_MIN: usize = 144 << 10;

/// The minimum of the head of a WebSocket handshake: the headers of a browser without cookies.
const HEAD_BYTES_MIN: usize = 1 << 10;

/// The bits that let the owner of a socket's file connect.
const OWN: u32 = 0o600;

/// Returns the options of sockets whose files have this mode. An abstract socket has no file and refuses any mode.
pub(super) fn sockets(mode: u32) -> SocketOptions {
    SocketOptions {
        unix_mode: Some(mode),
        ..SocketOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bug: mode 0 was taken, and nobody could connect.
    #[test]
    fn a_mode_lets_at_least_the_owner_connect() {
        for (text, mode) in [("600", 0o600), ("660", 0o660), ("777", 0o777)] {
            assert_eq!(parse_mode(text), Ok(mode));
        }
        for text in ["0", "400", "066", "1000", "888", "rw"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_that_no_server_can_work_with_are_refused() {
        assert_eq!(parse_memory_bytes("1G"), Ok(Bytes(1 << 30)));
        assert!(parse_memory_bytes("15M").is_err());
        assert!(parse_handshake_bytes("64k").is_err());
        assert!(parse_lag_bytes("0").is_err());
        assert_eq!(parse_head_bytes("32k"), Ok(Bytes(32 << 10)));
        assert!(parse_head_bytes("33k").is_err());
        assert!(parse_head_bytes("100").is_err());
    }
}
