//! Times and sizes on the command line and in files: one reader for all of them.
//!
//! A number alone is in the unit that the flag had before there were units, so old command lines and files mean what
//! they meant.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The unit of a number that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bare {
    Seconds,
    Milliseconds,
}

/// A number of bytes: `1073741824` or `1G`. A type of its own, so that a file may have it as a text, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) usize);

/// Reads a time that is more than nothing: seconds, or a number with a unit.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let time = time(text, Bare::Seconds)?;
    match time > Duration::ZERO && time <= WAIT_MAX {
        true => Ok(time),
        false => Err(format!("{text} is not more than 0 and at most a day")),
    }
}

/// Reads a time that may be nothing: milliseconds, or a number with a unit.
pub(crate) fn parse_milliseconds(text: &str) -> Result<Duration, String> {
    let time = time(text, Bare::Milliseconds)?;
    match time <= PAUSE_MAX {
        true => Ok(time),
        false => Err(format!("{text} is longer than an hour")),
    }
}

/// Reads how long something is kept or valid: seconds, or a number with a unit. It may be far longer than a wait.
pub(crate) fn parse_validity(text: &str) -> Result<Duration, String> {
    let time = time(text, Bare::Seconds)?;
    match time >= Duration::from_secs(1) && time <= VALIDITY_MAX {
        true => Ok(time),
        false => Err(format!("{text} is not between a second and 100 years")),
    }
}

fn time(text: &str, bare: Bare) -> Result<Duration, String> {
    let wanted = || format!("{text:?} is not a time; write one as 2s, 500ms, 5m, 12h or 30d");
    let (number, unit) = split(text);
    let unit = match (unit, bare) {
        ("", Bare::Seconds) => "s",
        ("", Bare::Milliseconds) => "ms",
        (unit, _) => unit,
    };
    let (_, seconds) = TIMES
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wanted)?;
    let number = decimal(number).ok_or_else(wanted)?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wanted())
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || {
            format!(
                "{text:?} is not a number of bytes; write one as 65536, 64k, 512M or 1G, of 1024 each"
            )
        };
        let (number, unit) = split(text);
        let (_, factor) = SIZES
            .iter()
            .find(|(names, _)| names.iter().any(|name| name.eq_ignore_ascii_case(unit)))
            .ok_or_else(wanted)?;
        // A whole number of bytes may be larger than a decimal one can be exact.
        if let (Ok(whole), 1) = (number.parse(), *factor) {
            return Ok(Self(whole));
        }
        #[expect(clippy::cast_precision_loss, reason = "the factors are powers of two")]
        let bytes = decimal(number).ok_or_else(wanted)? * *factor as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked just before"
        )]
        match bytes.fract() == 0.0 && bytes < MAX_EXACT {
            true => Ok(Self(bytes as usize)),
            false => Err(wanted()),
        }
    }
}

impl Bytes {
    /// Reads a number of bytes that is not less than this.
    pub(crate) fn at_least(text: &str, min: usize) -> Result<Self, String> {
        match text.parse()? {
            Self(bytes) if bytes < min => Err(format!(
                "{text} bytes are too few to serve with; use {min} or more"
            )),
            bytes => Ok(bytes),
        }
    }
}

/// As the plain number, which every version reads.
impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A number, and the letters after it.
fn split(text: &str) -> (&str, &str) {
    let letters = text.find(|it: char| it.is_ascii_alphabetic() || !it.is_ascii());
    text.split_at(letters.unwrap_or(text.len()))
}

/// A number without a sign or an exponent.
fn decimal(text: &str) -> Option<f64> {
    let is_plain = text.starts_with(|it: char| it.is_ascii_digit())
        && text.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    text.parse().ok().filter(|_| is_plain)
}

/// The units of a time, in seconds.
const TIMES: [(&str, f64); 8] = [
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3_600.0),
    ("d", DAY),
    ("w", 7.0 * DAY),
    ("y", 365.0 * DAY),
];

const DAY: f64 = 86_400.0;

/// The units of a size. Memory comes in powers of two, so all of them are.
const SIZES: [(&[&str], u64); 5] = [
    (&["", "B"], 1),
    (&["k", "kB", "KiB"], 1 << 10),
    (&["M", "MB", "MiB"], 1 << 20),
    (&["G", "GB", "GiB"], 1 << 30),
    (&["T", "TB", "TiB"], 1 << 40),
];

/// Above this, decimal numbers leave whole ones out.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Maximum of a day: a longer wait is a mistake.
const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// Maximum of an hour: a longer pause is a mistake.
const PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// The longest validity: it is far from the end of the clock.
const VALIDITY_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_old_numbers_mean_what_they_meant() {
        let ms = Duration::from_millis;
        for (text, time) in [
            ("0.5", ms(500)),
            ("5", ms(5_000)),
            ("2s", ms(2_000)),
            ("500ms", ms(500)),
            ("1.5m", ms(90_000)),
            ("24h", WAIT_MAX),
        ] {
            assert_eq!(parse_seconds(text), Ok(time), "{text}");
        }
        for (text, time) in [
            ("0.5", 500),
            ("5", 5_000),
            ("2s", 2_000_000),
            ("250us", 250),
        ] {
            assert_eq!(
                parse_milliseconds(text),
                Ok(Duration::from_micros(time)),
                "{text}"
            );
        }
        assert_eq!(parse_milliseconds("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn times_have_bounds_and_other_texts_are_refused() {
        for text in [
            "0", "0ms", "-1", "NaN", "inf", "86401", "25h", "5sec", "5 s", "1e3", ".5", "1.2.3s",
            "s", "",
        ] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
        for text in ["-1", "NaN", "inf", "3600001", "2h", "", "5é"] {
            assert!(parse_milliseconds(text).is_err(), "{text}");
        }
    }

    /// The parser of timeouts took a day at most.
    #[test]
    fn a_token_may_be_valid_for_more_than_a_day() {
        let day = 86_400;
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("90m", 5_400),
            ("1.5h", 5_400),
            ("12h", 43_200),
            ("30d", 30 * day),
            ("8w", 56 * day),
            ("1y", 365 * day),
            ("100y", 36_500 * day),
        ] {
            assert_eq!(
                parse_validity(text),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "0",
            "0d",
            "-1",
            "101y",
            "3 d",
            "7é",
            "1D",
            "1dd",
            "18446744073709551615y",
        ] {
            assert!(parse_validity(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1073741824", 1 << 30),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("512M", 512 << 20),
            ("64k", 64 << 10),
            ("64KB", 64 << 10),
            ("1.5k", 1_536),
            ("7", 7),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(usize::MAX.to_string().parse(), Ok(Bytes(usize::MAX)));
        for text in ["", "G", "-1", "1X", "1 G", "1.3k", "99999999T", "1e3"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes(1 << 30).to_string(), "1073741824");
        assert!(Bytes::at_least("1k", 2_048).is_err());
    }
}
