//! Names of codecs with their parameters, as people write them in flags and configuration files.
//!
//! `length-field:size=-4,header=00000001` must fit an argument of a command and a value of a file. So a codec is a
//! name, a colon, and keys with values between commas. Every error names the wrong part and the expected value.
//! Rejected: a TOML table per codec (it does not fit a flag), and ignoring unknown keys (a misspelt key would break
//! communication without an error).

use super::{AnyCodec, Codec, Format};
use crate::setting::SettingError;

pub(super) fn unknown_codec(name: &str) -> SettingError {
    let names = AnyCodec::NAMES.join(", ");
    let text = format!("unknown codec {name:?}; choose one of: {names}");
    SettingError::new("codec", name, text)
}

/// The error of a parameter that a program gave a value outside of its range.
pub(super) fn out_of_range(parameter: &'static str, expected: &str) -> SettingError {
    SettingError::new(parameter, "", format!("{parameter} must be {expected}"))
}

/// A codec that has a name in flags and configuration files. Its default is the codec without parameters.
pub(super) trait BuiltIn: Codec + Default {
    const FORMAT: Format;
    /// Names of the parameters, in the order in which to offer them.
    const PARAMETERS: &'static [&'static str] = &[];

    fn configured(parameters: &Parameters<'_>) -> Result<Self, SettingError> {
        let _ = parameters;
        Ok(Self::default())
    }

    /// Makes the codec of the text after its name and a colon.
    fn parse(text: &str) -> Result<Self, SettingError> {
        Self::configured(&Parameters::read(
            Self::FORMAT.name,
            text,
            Self::PARAMETERS,
        )?)
    }
}

/// The parameters of a codec, all of them known to the codec.
pub(super) struct Parameters<'a> {
    codec: &'static str,
    given: Vec<(&'static str, &'a str)>,
}

impl<'a> Parameters<'a> {
    fn read(
        codec: &'static str,
        text: &'a str,
        known: &'static [&'static str],
    ) -> Result<Self, SettingError> {
        let mut given: Vec<(&'static str, &'a str)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let Some(parameter) = known.iter().find(|name| **name == key) else {
                let known = listed(known);
                let text = format!("codec {codec} has no parameter {key:?}; it has {known}");
                return Err(SettingError::new("codec", key, text));
            };
            if given.iter().any(|(name, _)| name == parameter) {
                let text = format!("parameter {parameter} of codec {codec} is given twice");
                return Err(SettingError::new(parameter, value, text));
            }
            given.push((parameter, value));
        }
        Ok(Self { codec, given })
    }

    pub(super) fn value(&self, parameter: &str) -> Option<&'a str> {
        let found = self.given.iter().find(|(name, _)| *name == parameter);
        found.map(|(_, value)| *value)
    }

    /// Returns whether a switch is on: it is given, and not as false.
    pub(super) fn flag(&self, parameter: &'static str) -> Result<bool, SettingError> {
        match self.value(parameter) {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(value) => Err(self.bad(parameter, value, "true or false")),
        }
    }

    pub(super) fn bad(
        &self,
        parameter: &'static str,
        value: &str,
        expected: &'static str,
    ) -> SettingError {
        let codec = self.codec;
        let text = format!(
            "parameter {parameter} of codec {codec} cannot be {value:?}; it must be {expected}"
        );
        SettingError::new(parameter, value, text)
    }
}

/// Lists the parameters of a codec as text.
fn listed(parameters: &[&str]) -> String {
    match parameters {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// Decodes pairs of hex digits.
pub(super) fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|value| value as u8))
        .collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{Delimited, KnownCodec, LengthField, LengthSize, Uvrpc};
    use super::*;

    fn length_field_of(text: &str) -> LengthField {
        match AnyCodec::by_name(text).map(KnownCodec::of) {
            Ok(KnownCodec::LengthField(codec)) => codec,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn delimited_of(text: &str) -> Delimited {
        match AnyCodec::by_name(text).map(KnownCodec::of) {
            Ok(KnownCodec::Delimited(codec)) => codec,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn parameters_reach_the_codec() {
        let plain = LengthField::new(LengthSize::U32Be);
        let with_header = plain.with_header(&[0, 0, 0, 1]).unwrap();
        assert_eq!(length_field_of("length-field"), LengthField::default());
        assert_eq!(length_field_of("length-field:"), LengthField::default());
        assert_eq!(length_field_of("length-field:size=-4"), plain);
        assert_eq!(
            length_field_of("length-field:size=-4,offset=2,header=00000001"),
            with_header.with_offset(2)
        );
        assert_eq!(
            length_field_of("length-field:header=00000001,size=-4"),
            with_header
        );
        assert_eq!(delimited_of("delimited"), Delimited::new());
        let null = Delimited::new().with_delimiter(&[0]).unwrap();
        assert_eq!(
            delimited_of("delimited:delimiter=00,keep_delimiter,limit=100"),
            null.keep_delimiter(true).with_frame_bytes_max(100).unwrap()
        );
        assert_eq!(
            delimited_of("delimited:keep_delimiter=false,delimiter=0d0A"),
            Delimited::new()
        );
    }

    #[test]
    fn uvrpc_has_three_framings() {
        let uvrpc_of = |text| match AnyCodec::by_name(text).map(KnownCodec::of) {
            Ok(KnownCodec::Uvrpc(codec)) => codec,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(uvrpc_of("uvrpc"), Uvrpc::new());
        assert_eq!(uvrpc_of("uvrpc:legacy_unframed=false"), Uvrpc::new());
        let unframed = uvrpc_of("uvrpc:legacy_unframed");
        assert_eq!(unframed, Uvrpc::legacy_unframed());
        let datagrams = KnownCodec::Uvrpc(unframed).chosen().for_datagrams();
        assert!(
            matches!(KnownCodec::of(datagrams), KnownCodec::Uvrpc(codec) if codec == Uvrpc::for_datagrams())
        );
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        let cases = [
            (
                "TW1",
                "unknown codec \"TW1\"; choose one of: tw1, lines, json, srmp, srmp-rpc, length-field, delimited, raw, \
                 uvrpc",
            ),
            (
                "lines:crlf",
                "codec lines has no parameter \"crlf\"; it has none",
            ),
            (
                "length-field:width=2",
                "codec length-field has no parameter \"width\"; it has size, offset and header",
            ),
            (
                "length-field:size=2,",
                "codec length-field has no parameter \"\"; it has size, offset and header",
            ),
            (
                "length-field:size=3",
                "parameter size of codec length-field cannot be \"3\"; it must be one of 1, 2, -2, 4, -4, or 0 for a \
                 varint",
            ),
            (
                "length-field:size=2,size=2",
                "parameter size of codec length-field is given twice",
            ),
            (
                "length-field:offset=256",
                "parameter offset of codec length-field cannot be \"256\"; it must be a number of bytes from 0 to 255",
            ),
            (
                "length-field:header=000",
                "parameter header of codec length-field cannot be \"000\"; it must be at most 16 bytes in hex, such as \
                 00000001",
            ),
            (
                "delimited:delimiter",
                "parameter delimiter of codec delimited cannot be \"\"; it must be 1 to 16 bytes in hex, such as 0D0A",
            ),
            (
                "delimited:keep_delimiter=yes",
                "parameter keep_delimiter of codec delimited cannot be \"yes\"; it must be true or false",
            ),
            (
                "delimited:limit=0",
                "parameter limit of codec delimited cannot be \"0\"; it must be a number of bytes from 1",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(AnyCodec::by_name(text).unwrap_err().to_string(), message);
        }
    }
}
