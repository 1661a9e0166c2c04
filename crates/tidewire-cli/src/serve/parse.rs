//! The values of the flags of `tidewire serve`.

use std::time::Duration;

use tidewire::SocketOptions;
use tidewire_io::poller::{ParsePollerError, PollerChoice};

/// Parses a poller's name. An empty variable counts as unset.
pub(super) fn parse_poller(text: &str) -> Result<PollerChoice, ParsePollerError> {
    match text {
        "" => Ok(PollerChoice::Auto),
        name => name.parse(),
    }
}

pub(super) fn parse_memory_bytes(text: &str) -> Result<usize, String> {
    let bytes: usize = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of bytes"))?;
    if bytes < MEMORY_BYTES_MAX_MIN {
        return Err(format!(
            "{text} bytes are too few to serve with; use {MEMORY_BYTES_MAX_MIN} or more"
        ));
    }
    Ok(bytes)
}

/// Checks permission bits.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) => Ok(mode),
        _ => Err(format!(
            "{text:?} is not a mode in octal; use one such as 660"
        )),
    }
}

pub(super) fn parse_milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of milliseconds"))?;
    if !(0.0..=MILLISECONDS_MAX).contains(&milliseconds) {
        return Err(format!(
            "{text} is not between 0 and {MILLISECONDS_MAX} milliseconds"
        ));
    }
    Ok(Duration::from_secs_f64(milliseconds / 1_000.0))
}

/// The minimum of the memory limit: a lane's spare buffers and a handful of connections.
const MEMORY_BYTES_MAX_MIN: usize = 16 << 20;

/// Maximum of an hour: a longer wait is a mistake.
const MILLISECONDS_MAX: f64 = 3_600_000.0;

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

    #[test]
    fn milliseconds_may_have_fractions_and_have_bounds() {
        assert_eq!(parse_milliseconds("0.5"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_milliseconds("0"), Ok(Duration::ZERO));
        for text in ["-1", "NaN", "inf", "3600001", "5ms", ""] {
            assert!(parse_milliseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_empty_poller_variable_is_as_good_as_unset() {
        assert_eq!(parse_poller(""), Ok(PollerChoice::Auto));
        assert!(parse_poller("kqueue").is_err());
    }
}
